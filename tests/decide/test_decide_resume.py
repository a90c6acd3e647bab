"""From which step the next attempt resumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide import set_aside
from prefect_ft.model import Policy

POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=99, stop_on_repeat=0)


def failed(failure_class, step=None, **fields):
    return {"kind": "exit", "class": failure_class, "step": step, **fields}


def crash(step=None, **fields):
    return failed("crash", step, **fields)


def numeric(step=None, **fields):
    return failed("numeric", step, **fields)


def unreadable(step=None, **fields):
    return failed("checkpoint", step, **fields)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([crash()], [None], id="nothing-verified-is-from-scratch"),
        pytest.param([crash(0)], [0], id="step-0-is-a-checkpoint"),
        pytest.param(
            [crash(100), crash(), crash(200)], [100, 100, 200], id="the-line's-step-else-the-highest"
        ),
        pytest.param([crash(100), crash(40)], [100, 40], id="the-line's-step-also-if-it-is-lower"),
        pytest.param([{"kind": "in_process", "step": 70}, crash()], [None, 70], id="a-report-verifies-too"),
        pytest.param(
            [crash(100), {"kind": "completed", "step": 200}], [100, None], id="complete-resumes-nothing"
        ),
        pytest.param([crash(100), failed("compile", 200)], [100, None], id="fail-resumes-nothing"),
        # checkpoint-unreadable
        pytest.param([crash(100), unreadable(200)], [100, 100], id="the-next-lower-one"),
        pytest.param([unreadable(200)], [None], id="no-lower-one"),
        pytest.param([unreadable()], [None], id="unreadable-but-none-known"),
        pytest.param(
            [crash(100), unreadable(200), crash()], [100, 100, 100], id="what-is-set-aside-stays-so"
        ),
        pytest.param(
            [crash(100), unreadable(200), crash(200)], [100, 100, 200], id="verified-anew-is-good-again"
        ),
        pytest.param(
            [crash(100), crash(200), crash(150), unreadable(200, stage="load")],
            [100, 200, 150, 100],
            id="in-load-the-one-resumed-from",
        ),
        pytest.param(
            [crash(100), crash(200), crash(150), unreadable(200, stage="train")],
            [100, 200, 150, 150],
            id="in-another-stage-the-last",
        ),
        pytest.param(
            [unreadable(300, stage="load"), crash()], [None, None], id="in-load-of-the-first-attempt-the-last"
        ),
        pytest.param(
            [crash(100), crash(200), crash(300), unreadable(stage="load"), unreadable(stage="load")],
            [100, 200, 300, 200, 100],
            id="one-after-the-other",
        ),
        pytest.param(
            [
                crash(200, verified=[100, 200]),
                unreadable(100, stage="load", verified=[100], started_from=100),
            ],
            [200, None],
            id="in-load-the-one-that-it-really-started-from",
        ),
        pytest.param(
            [crash(200, verified=[200]), unreadable(200, stage="load", started_from=0)],
            [200, None],
            id="in-load-from-scratch-the-last",
        ),
        # numeric
        pytest.param(
            [
                crash(300, verified=[100, 200, 300]),
                numeric(300, verified=[100, 200, 300]),
                numeric(300, verified=[100, 300], started_from=100),
            ],
            [300, 200, None],
            id="numeric-goes-on-back-from-where-it-really-started",
        ),
        pytest.param([crash(100), crash(200), numeric(300)], [100, 200, 200], id="numeric-goes-one-back"),
        pytest.param([numeric(300)], [None], id="numeric-with-none-before"),
        pytest.param([numeric()], [None], id="numeric-with-none-known"),
        pytest.param(
            [crash(100), crash(200), numeric(300), numeric(300), numeric(300), numeric(300)],
            [100, 200, 200, 100, None, None],
            id="each-further-one-goes-one-back-until-none-is-left",
        ),
        pytest.param(
            [crash(100), crash(200), numeric(300), crash(300), {"kind": "preempted", "step": 250}],
            [100, 200, 200, 200, 200],
            id="other-restarts-stay-there",
        ),
        pytest.param(
            [crash(100), numeric(200), numeric(200), crash(200)],
            [100, 100, None, None],
            id="also-from-scratch",
        ),
        pytest.param(
            [crash(100), crash(200), numeric(300), crash(400), numeric(400)],
            [100, 200, 200, 400, 300],
            id="until-progress",
        ),
        pytest.param(
            [crash(100), crash(200), numeric(300), unreadable(300, stage="load"), crash()],
            [100, 200, 200, 100, 100],
            id="the-one-that-numeric-went-back-to-is-unreadable",
        ),
        pytest.param(
            [crash(100), crash(200), numeric(300), unreadable(300, stage="train"), crash()],
            [100, 200, 200, 200, 200],
            id="the-last-is-unreadable-while-numeric-holds-further-back",
        ),
        pytest.param(
            [crash(100), crash(200), numeric(300), {"kind": "in_process", "step": 201}, unreadable(300)],
            [100, 200, 200, None, 200],
            id="what-was-verified-above-it-meanwhile-does-not-tempt",
        ),
        pytest.param(
            [crash(100), crash(200), numeric(300), unreadable(verified=[])],
            [100, 200, 200, None],
            id="none-is-left-that-could-be-unreadable",
        ),
        # what a run knows beyond its lines
        pytest.param([numeric(300, verified=[100, 200, 300])], [200], id="numeric-knows-all-that-is-there"),
        pytest.param(
            [unreadable(300, verified=[100, 200, 300])], [200], id="unreadable-knows-all-that-is-there"
        ),
        pytest.param(
            [crash(100), crash(verified=[50])], [100, 50], id="what-is-no-longer-there-is-not-chosen"
        ),
        pytest.param([crash(100), crash(verified=[])], [100, None], id="none-is-there-any-more"),
        pytest.param([crash(100, seen_step=200), crash()], [100, 100], id="a-damaged-one-is-not-chosen"),
    ],
)
def test_resume_step(decisions, lines, expected):
    assert [decision.resume_step for decision in decisions(POLICY, *lines)] == expected


@pytest.mark.parametrize("failure_class", ["crash", "numeric", "checkpoint"])
def test_eval_is_always_from_scratch(told, failure_class):
    policy = replace(POLICY, mode="eval")
    history = told(policy, crash(100), failed(failure_class, 200))
    assert [entry.decision.resume_step for entry in history] == [None, None]
    assert set_aside(policy, history) == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([crash(100)], (), id="none"),
        pytest.param([crash(100), unreadable(200)], (200,), id="the-unreadable-one"),
        pytest.param([crash(100), unreadable(200), unreadable(stage="load")], (100, 200), id="both"),
        pytest.param([crash(100), unreadable(200), crash(200)], (), id="verified-anew"),
        pytest.param(
            [unreadable(200, verified=[100, 200]), crash(100, verified=[100])], (200,), id="still-aside"
        ),
        pytest.param(
            [unreadable(200, verified=[100, 200]), crash(100, verified=[100, 200])], (), id="there-again"
        ),
        pytest.param([numeric(200)], (), id="numeric-sets-nothing-aside"),
    ],
)
def test_set_aside(told, lines, expected):
    assert set_aside(POLICY, told(POLICY, *lines)) == expected
