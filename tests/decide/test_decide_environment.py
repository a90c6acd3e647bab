"""What the next attempt is told about its own past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide import skip_eval_at, start_counts
from prefect_ft.model import Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=99, stop_on_repeat=0)
REPLACING = replace(POLICY, max_worker_replacements=1)
SUSPENSIONS = replace(POLICY, suspension_restart=True)
FULL = replace(POLICY, systems=("s0", "s1"), isolation_ttl_s=2 * 3600)
TRAIN_AND_EVAL = replace(POLICY, mode="train_and_eval")

CRASH = {"kind": "exit", "class": "crash"}
PREEMPTED = {"kind": "preempted"}
S1_LOST = {"kind": "system_lost", "system": "s1"}
S2_LOST = {"kind": "system_lost", "system": "s2"}
FAILED_FOR_GOOD = {"kind": "exit", "class": "compile"}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(POLICY, [], ((1, 1), (1, 1)), id="the-first-attempt"),
        pytest.param(POLICY, [CRASH], ((1, 2), (1, 2)), id="in-place-starts-the-command-again"),
        pytest.param(POLICY, [PREEMPTED], ((2, 1), (2, 1)), id="a-rebuild-creates-all-anew"),
        pytest.param(POLICY, [PREEMPTED, CRASH], ((2, 2), (2, 2)), id="starts-are-counted-from-its-creation"),
        pytest.param(
            REPLACING,
            [CRASH, S1_LOST],
            ((1, 3), (2, 1)),
            id="only-the-replaced-anew",
        ),
        pytest.param(POLICY, [CRASH, {"kind": "in_process"}], ((1, 2), (1, 2)), id="a-report-starts-nothing"),
        pytest.param(POLICY, [CRASH, {"kind": "completed"}], ((1, 2), (1, 2)), id="the-end-starts-nothing"),
        pytest.param(POLICY, [CRASH, {"kind": "cancelled"}], ((1, 2), (1, 2)), id="a-cancel-starts-nothing"),
        pytest.param(POLICY, [CRASH, FAILED_FOR_GOOD], ((1, 2), (1, 2)), id="a-failure-starts-nothing"),
        pytest.param(POLICY, [S1_LOST], ((2, 1), (2, 1)), id="isolation-creates-all-anew"),
        pytest.param(POLICY, [S2_LOST], ((1, 1), (1, 1)), id="the-loss-of-a-spare-starts-nothing"),
        pytest.param(
            SUSPENSIONS, [{"kind": "suspended"}] * 2, ((1, 3), (1, 3)), id="upon-suspension-the-command-again"
        ),
        pytest.param(REPLACING, [S1_LOST, CRASH], ((1, 3), (2, 2)), id="in-place-after-a-replacement"),
        pytest.param(
            REPLACING,
            [S1_LOST, {"kind": "replacement_failed", "system": "s2"}, CRASH],
            ((2, 2), (3, 2)),
            id="a-replacement-that-failed-was-one",
        ),
        pytest.param(
            POLICY,
            [CRASH, {"kind": "in_place_failed"}],
            ((2, 1), (2, 1)),
            id="a-restart-in-place-that-failed-leaves-no-trace",
        ),
        pytest.param(
            replace(POLICY, workers=3),
            [{"kind": "system_lost", "system": "s0"}, CRASH],
            ((2, 2), (2, 2)),
            id="numbers-close-up",
        ),
        pytest.param(FULL, [S1_LOST], ((2, 1),), id="a-smaller-gang"),
        pytest.param(
            replace(FULL, isolated=("s1",)),
            [CRASH, CRASH],
            ((2, 1), (1, 1)),
            id="a-number-that-is-there-for-the-first-time",
        ),
        pytest.param(
            FULL, [S1_LOST, CRASH, CRASH], ((3, 1), (2, 1)), id="a-number-that-comes-back-goes-on-counting"
        ),
    ],
)
def test_start_counts(told, policy, lines, expected):
    assert start_counts(policy, told(policy, *lines)) == expected


def test_who_was_decided_about_before_the_first_attempt_starts_like_any_other(told):
    """Systems that did not pass their check, say; what counts is what comes after."""
    lost = told(POLICY, S1_LOST, {"kind": "system_lost", "system": "s0"})
    assert start_counts(POLICY, lost, before_first=2) == ((1, 1),)
    crashed = told(POLICY, S1_LOST, CRASH, PREEMPTED)
    assert start_counts(POLICY, crashed, before_first=1) == ((2, 1), (2, 1))
    assert start_counts(POLICY, crashed[:2], before_first=1) == ((1, 2), (1, 2))


FAILED_IN_VALIDATION = CRASH | {"stage": "validate", "stage_step": 100}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(TRAIN_AND_EVAL, [], None, id="the-first-attempt"),
        pytest.param(TRAIN_AND_EVAL, [FAILED_IN_VALIDATION], 100, id="failed-in-validation"),
        pytest.param(TRAIN_AND_EVAL, [CRASH | {"stage": "validate"}], None, id="in-which-is-unknown"),
        pytest.param(
            TRAIN_AND_EVAL, [CRASH | {"stage": "train", "stage_step": 100}], None, id="failed-in-training"
        ),
        pytest.param(TRAIN_AND_EVAL, [FAILED_IN_VALIDATION, CRASH], None, id="only-the-next-attempt-skips"),
        pytest.param(
            TRAIN_AND_EVAL,
            [FAILED_IN_VALIDATION, {"kind": "in_place_failed"}],
            100,
            id="also-if-a-recovery-action-fails",
        ),
        pytest.param(
            TRAIN_AND_EVAL,
            [FAILED_IN_VALIDATION, {"kind": "rebuild_failed"}, {"kind": "rebuild_failed"}],
            100,
            id="however-many-of-them-fail",
        ),
        pytest.param(
            replace(TRAIN_AND_EVAL, max_worker_replacements=1),
            [S1_LOST | {"stage": "validate", "stage_step": 100}, {"kind": "in_place_failed"}],
            100,
            id="also-if-it-fails-while-another-is-replaced",
        ),
        pytest.param(
            TRAIN_AND_EVAL,
            [FAILED_IN_VALIDATION, {"kind": "in_process"}],
            100,
            id="a-report-of-the-next-attempt",
        ),
        pytest.param(
            TRAIN_AND_EVAL,
            [CRASH, FAILED_IN_VALIDATION | {"stage_step": 0}],
            0,
            id="in-the-validation-of-step-0",
        ),
        pytest.param(
            TRAIN_AND_EVAL,
            [FAILED_IN_VALIDATION, FAILED_IN_VALIDATION | {"stage_step": 200}],
            200,
            id="in-the-next-validation-as-well",
        ),
        pytest.param(
            replace(TRAIN_AND_EVAL, suspension_restart=True),
            [{"kind": "suspended", "stage": "validate", "stage_step": 100}],
            100,
            id="suspended-in-validation",
        ),
        pytest.param(
            TRAIN_AND_EVAL,
            [
                FAILED_IN_VALIDATION,
                PREEMPTED,
                {"kind": "in_place_failed", "stage": "validate", "stage_step": 300},
            ],
            300,
            id="an-agent-lost-in-validation",
        ),
        pytest.param(replace(POLICY, mode="train"), [FAILED_IN_VALIDATION], None, id="not-in-train"),
        pytest.param(replace(POLICY, mode="eval"), [FAILED_IN_VALIDATION], None, id="not-in-eval"),
    ],
)
def test_skip_eval_at(told, policy, lines, expected):
    assert skip_eval_at(policy, told(policy, *lines)) == expected
