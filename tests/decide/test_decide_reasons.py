"""The sentence that a person reads at night."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.model import Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=3, restart_delay_s=10)


def failed(failure_class, **fields):
    return {"kind": "exit", "class": failure_class, **fields}


CRASH = failed("crash", signature="crash-0001", exit_code=139, worker=1)
S1_LOST = {"kind": "system_lost", "system": "s1"}
HEALED = {
    "kind": "device_fault",
    "system": "s1",
    "device": "0",
    "code": "A1",
    "severity": "minor",
    "healed": True,
}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(
            POLICY,
            [CRASH | {"step": 100}],
            "crash (signature crash-0001, exit code 139, worker 1) after progress to step 100, "
            "failure 1 of 3: restarted in place from step 100 after 10 s",
            id="in-place",
        ),
        pytest.param(
            POLICY,
            [failed("network")] * 2,
            "network without progress, failure 2 of 3: all workers created anew from scratch after 20 s",
            id="rebuild",
        ),
        pytest.param(
            POLICY,
            [failed("network")] * 4,
            "network without progress, failure 4 of 3: max_num_restarts is used up, the phase fails",
            id="max-restarts",
        ),
        pytest.param(
            replace(POLICY, max_worker_replacements=2),
            [S1_LOST],
            "system lost (system s1) without progress, failure 1 of 3, replacement 1 of 2: s1 isolated, "
            "worker 1 on s2 created anew, the others restarted in place from scratch after 10 s",
            id="replaced",
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1")),
            [S1_LOST],
            "system lost (system s1) without progress, failure 1 of 3: s1 isolated, "
            "all workers created anew (1 instead of 2) from scratch after 10 s",
            id="shrunk",
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1"), min_num_systems=2),
            [S1_LOST],
            "system lost (system s1) without progress, failure 1 of 3: "
            "only 1 of the 2 systems that it needs are usable, s1 isolated, the phase fails",
            id="min-systems",
        ),
        pytest.param(
            replace(POLICY, suspension_restart=True),
            [{"kind": "suspended", "step": 5}] * 2,
            "suspension without progress, restart upon suspension 2 of 3 in a row: "
            "restarted in place from step 5",
            id="suspended",
        ),
        pytest.param(
            POLICY,
            [HEALED],
            "device fault A1 (minor, healed, system s1, device 0) without progress, costs nothing: "
            "restarted in place from scratch",
            id="healed",
        ),
        pytest.param(
            replace(POLICY, target_step=400),
            [{"kind": "completed", "step": 300}],
            "incomplete success, step 300 of target_step 400 after progress to step 300, failure 1 of 3: "
            "restarted in place from step 300 after 10 s",
            id="incomplete-success",
        ),
        pytest.param(
            POLICY,
            [failed("data", signature="d", step=7)] * 3,
            "data (signature d) without progress, 3 times in a row at step 7: "
            "it comes back identically, which is not chance, the phase fails",
            id="repeated-names-step-and-signature",
        ),
        pytest.param(
            POLICY,
            [failed("data", step=100), failed("checkpoint", step=200)],
            "checkpoint after progress to step 200, failure 1 of 3: the checkpoint of step 200 is set aside, "
            "restarted in place from step 100 after 10 s",
            id="unreadable",
        ),
        pytest.param(
            POLICY,
            [failed("checkpoint")],
            "checkpoint without progress, failure 1 of 3: restarted in place from scratch after 10 s",
            id="unreadable-but-which",
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1"), elastic=False),
            [S1_LOST],
            "system lost (system s1) without progress, failure 1 of 3: "
            "only 1 of the 2 systems that it needs are usable, s1 isolated, the phase fails",
            id="not-elastic",
        ),
        pytest.param(
            replace(POLICY, unconditional=True),
            [failed("crash", signal=11)] * 2,
            "crash (SIGSEGV) without progress, failure 2 of 3, unconditional restart 2 of 3: "
            "all workers created anew from scratch after 20 s",
            id="unconditional",
        ),
        pytest.param(
            POLICY,
            [{"kind": "preempted"}],
            "preemption without progress, restart after preemption 1: all workers created anew from scratch",
            id="preempted",
        ),
        pytest.param(
            replace(POLICY, max_preemptions=4),
            [{"kind": "preempted"}],
            "preemption without progress, restart after preemption 1 of 4: "
            "all workers created anew from scratch",
            id="preempted-within-a-limit",
        ),
        pytest.param(
            POLICY,
            [HEALED] * 3,
            "device fault A1 (minor, healed, system s1, device 0) without progress, failure 1 of 3, "
            "3 times within a day: s1 isolated, all workers created anew from scratch after 10 s",
            id="fault-repeated",
        ),
        pytest.param(
            replace(POLICY, autorestart=False),
            [failed("network")],
            "network without progress: autorestart is not configured, the phase fails",
            id="nothing-is-restarted",
        ),
        pytest.param(POLICY, [{"kind": "completed"}], "completed: the phase is complete", id="complete"),
        pytest.param(
            POLICY,
            [{"kind": "suspended", "worker": 1}],
            "suspension (worker 1): reported only, the attempt goes on",
            id="reported",
        ),
        pytest.param(
            POLICY,
            [
                failed(
                    "hardware",
                    worker=1,
                    evidence={"rule": "xid-79", "text": "Xid 79", "file": "rank3", "line": 7},
                )
            ],
            "hardware «Xid 79» (rank3, worker 1) without progress, failure 1 of 3: s1 isolated, "
            "all workers created anew from scratch after 10 s",
            id="the-rank-that-said-so",
        ),
    ],
)
def test_reason(decisions, policy, lines, expected):
    assert decisions(policy, *lines)[-1].reason == expected
