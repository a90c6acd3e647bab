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
            replace(POLICY, systems=("s0", "s1", "s2", "s3"), workers=4, min_num_systems=2),
            [{"kind": "system_lost", "systems": ["s1", "s2", "s3"]}],
            "system lost (system s1 and s2 and s3) without progress, failure 1 of 3: "
            "only 1 of the 2 systems that it needs are usable, s1 and s2 and s3 isolated, the phase fails",
            id="below-the-minimum-of-a-larger-gang",
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
            "data (signature d) without progress, 3 times in a row since step 7: "
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
        pytest.param(
            POLICY,
            [{"kind": "preempted", "step": 7}, failed("compile", exit_code=1, step=7)],
            "compile (exit code 1) without progress: a restart would not help, the phase fails",
            id="non-recoverable",
        ),
        pytest.param(
            POLICY,
            [HEALED | {"code": "80C98002"}] * 3,
            "device fault 80C98002 (minor, healed, system s1, device 0) without progress, failure 1 of 3, "
            "3 times within a day: the code means that the program or its data caused it, "
            "all workers created anew from scratch after 10 s",
            id="user-induced",
        ),
        pytest.param(
            POLICY,
            [HEALED | {"healed": None, "severity": "major"}],
            "device fault A1 (major, healing not tried, system s1, device 0) without progress, failure 1 of 3: "
            "s1 isolated, all workers created anew from scratch after 10 s",
            id="healing-not-tried",
        ),
        pytest.param(
            POLICY,
            [HEALED | {"healed": False, "severity": "critical"}],
            "device fault A1 (critical, healing failed, system s1, device 0) without progress, failure 1 of 3: "
            "s1 isolated, all workers created anew from scratch after 10 s",
            id="healing-failed",
        ),
        pytest.param(
            POLICY,
            [S1_LOST | {"blame": "none"}],
            "system lost (system s1) without progress, failure 1 of 3: no system is to blame, "
            "all workers created anew from scratch after 10 s",
            id="nobody-to-blame",
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1", "s2", "s3"), max_worker_replacements=1),
            [{"kind": "system_lost", "systems": ["s0", "s1"]}],
            "system lost (system s0 and s1) without progress, failure 1 of 3, replacement 1 of 1: "
            "s0 and s1 isolated, worker 0 on s2 and 1 on s3 created anew, the others restarted in place "
            "from scratch after 10 s",
            id="two-replaced",
        ),
        pytest.param(
            POLICY,
            [S1_LOST, {"kind": "replacement_failed", "worker": 1}],
            "replacing workers failed (worker 1), failure 2 of 3: all workers created anew from scratch after 20 s",
            id="replacement-failed",
        ),
        pytest.param(
            POLICY,
            [{"kind": "preempted"}, {"kind": "rebuild_failed", "worker": 1}],
            "rebuilding the gang failed (worker 1), failure 1 of 3: s1 isolated, "
            "all workers created anew from scratch after 10 s",
            id="rebuild-failed",
        ),
        pytest.param(
            POLICY,
            [failed("network"), {"kind": "in_place_failed", "worker": 0}],
            "a worker's agent or container is gone (worker 0), failure 2 of 3: "
            "all workers created anew from scratch after 20 s",
            id="in-place-failed",
        ),
        pytest.param(
            replace(POLICY, suspension_restart=True, max_suspension_restarts=1),
            [{"kind": "suspended"}] * 2,
            "suspension without progress, restart upon suspension 1 of 1 in a row: "
            "max_suspension_restarts is used up, the phase fails",
            id="suspended-too-often",
        ),
        pytest.param(
            replace(POLICY, max_preemptions=0),
            [{"kind": "preempted"}],
            "preemption without progress, restart after preemption 0 of 0: "
            "max_preemptions is used up, the phase fails",
            id="preempted-too-often",
        ),
        pytest.param(
            replace(POLICY, unconditional=True, max_num_restarts=9),
            [failed("user_code")] * 4,
            "user_code without progress, unconditional restart 3 of 3: "
            "rebuilding does not help, so the program itself must be at fault, the phase fails",
            id="unconditional-too-often",
        ),
        pytest.param(
            POLICY,
            [failed("user_code")],
            "user_code without progress, failure 1 of 3: once, to confirm, "
            "restarted in place from scratch after 10 s",
            id="confirm",
        ),
        pytest.param(
            POLICY,
            [failed("user_code")] * 2,
            "user_code without progress: the confirming restart has failed in the same way, the phase fails",
            id="confirmed",
        ),
        pytest.param(
            POLICY,
            [failed("data", step=1), failed("numeric", step=2)],
            "numeric after progress to step 2, failure 1 of 3: one checkpoint further back, "
            "restarted in place from step 1 after 10 s",
            id="numeric",
        ),
        pytest.param(
            replace(POLICY, restart_on=frozenset()),
            [failed("network", signal=40)],
            "network (signal 40) without progress: the policy restarts nothing of this class, the phase fails",
            id="not-restartable",
        ),
        pytest.param(
            replace(POLICY, target_step=400),
            [{"kind": "completed", "exit_code": 0, "worker": 1}],
            "incomplete success, unknown whether target_step 400 was reached (no checkpoint with a step was "
            "recognised, worker 1) without progress, failure 1 of 3: restarted in place from scratch after 10 s",
            id="incomplete-at-an-unknown-step",
        ),
        pytest.param(
            replace(POLICY, target_step=400),
            [{"kind": "completed", "exit_code": 0, "step": 0}],
            "incomplete success, step 0 of target_step 400 without progress, failure 1 of 3: "
            "restarted in place from step 0 after 10 s",
            id="incomplete-at-step-0",
        ),
        pytest.param(
            replace(POLICY, systems=("s0", "s1"), isolation_ttl_s=1),
            [S1_LOST, failed("network"), failed("network")],
            "network without progress, failure 3 of 3: "
            "all workers created anew (2 instead of 1) from scratch after 40 s",
            id="grown-back",
        ),
        pytest.param(
            POLICY,
            [failed("data", worker=1)] * 3,
            "data (worker 1) without progress, failure 3 of 3: s1 is suspect after 3 failures, s1 isolated, "
            "all workers created anew from scratch after 40 s",
            id="suspect",
        ),
        pytest.param(
            POLICY,
            [failed("crash", evidence={"rule": "r", "text": "x" * 161, "line": 1})],
            f"crash «{'x' * 159}…» without progress, failure 1 of 3: restarted in place from scratch after 10 s",
            id="a-line-that-is-too-long-to-quote",
        ),
        pytest.param(
            POLICY,
            [failed("crash", evidence={"rule": "r", "text": "x" * 160, "line": 1})],
            f"crash «{'x' * 160}» without progress, failure 1 of 3: restarted in place from scratch after 10 s",
            id="a-line-that-is-just-not-too-long",
        ),
        pytest.param(
            POLICY,
            [{"kind": "exit", "exit_code": 1, "log": ["Segmentation fault (core dumped)"]}],
            "crash «Segmentation fault (core dumped)» (exit code 1) without progress, failure 1 of 3: "
            "restarted in place from scratch after 10 s",
            id="a-line-of-a-log-without-a-name",
        ),
        pytest.param(
            POLICY,
            [failed("crash", signature="s", evidence={"rule": "start-failed", "text": "no such file"})],
            "crash without progress, failure 1 of 3: restarted in place from scratch after 10 s",
            id="evidence-that-is-no-line-of-output",
        ),
        pytest.param(
            POLICY,
            [{"kind": "in_process", "worker": 1, "step": 7}],
            "the ranks restarted by themselves (worker 1): reported only, the attempt goes on",
            id="in-process",
        ),
        pytest.param(
            POLICY,
            [{"kind": "system_lost", "system": "s2"}],
            "system lost (system s2): s2 isolated, reported only, the attempt goes on",
            id="a-spare-lost",
        ),
        pytest.param(
            POLICY, [{"kind": "cancelled"}], "cancelled: the phase ends and is not restarted", id="cancelled"
        ),
        pytest.param(
            POLICY,
            [failed("cancelled", step=7)],
            "cancelled after progress to step 7: the phase ends and is not restarted",
            id="cancelled-by-class",
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
