"""Every row of the rules' table: when it matches, and what it chooses on both sides of its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide import decide
from prefect_ft.decide.rules import RULES
from prefect_ft.model import Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=100, suspect_limit=100)
EVAL = replace(POLICY, mode="eval")
TARGET = replace(POLICY, target_step=400)
UNCONDITIONAL = replace(POLICY, unconditional=True)
REPLACING = replace(POLICY, max_worker_replacements=5)
SUSPENSIONS = replace(POLICY, suspension_restart=True)
ENVIRONMENT = replace(
    POLICY,
    environment_only=True,
    rebuild_only=True,
    restart_on=frozenset(("hardware", "network", "storage", "port_in_use", "collective_timeout")),
)

IN_PLACE = "transient: restart_in_place"
REBUILD = "transient: rebuild"
HEALED = "fault-healed: restart_in_place"
CONFIRMED = "confirm-once: restart_in_place"
WOKEN = "suspended: restart_in_place"
REFUSED = "not-restartable: fail"


def failed(failure_class, **fields):
    return {"kind": "exit", "class": failure_class, **fields}


def fault(severity, healed=None, **fields):
    return {"kind": "device_fault", "severity": severity, "healed": healed, "device": "0", "code": "A1"} | {
        "system": "s1",
        **fields,
    }


SUSPENDED = {"kind": "suspended"}
S1_LOST = {"kind": "system_lost", "system": "s1"}

ONE_LINE = [
    ("completed", {"kind": "completed"}, POLICY, "completed: complete"),
    ("exit-code-0-completes", {"kind": "exit", "exit_code": 0}, POLICY, "completed: complete"),
    ("exit-code-0-of-class-none-completes", failed("none", exit_code=0), POLICY, "completed: complete"),
    ("class-none-with-exit-code-1-is-unknown", failed("none", exit_code=1), POLICY, IN_PLACE),
    ("class-none-without-exit-code-is-unknown", failed("none"), POLICY, IN_PLACE),
    ("exit-code-0-by-a-signal-is-unknown", {"kind": "exit", "exit_code": 0, "signal": 9}, POLICY,
     IN_PLACE),
    ("exit-without-class-is-unknown", {"kind": "exit", "exit_code": 1}, POLICY, IN_PLACE),
    ("exit-code-0-of-a-class-has-failed", failed("network", exit_code=0), POLICY, IN_PLACE),
    ("completed-at-the-target", {"kind": "completed", "step": 400}, TARGET, "completed: complete"),
    ("completed-below-the-target", {"kind": "completed", "step": 399}, TARGET, IN_PLACE),
    ("completed-at-an-unknown-step", {"kind": "completed"}, TARGET, IN_PLACE),
    ("incomplete-success-under-unconditional", {"kind": "completed"}, replace(TARGET, unconditional=True),
     "unconditional: rebuild"),
    ("counted-steps-are-not-held-against-the-target", {"kind": "completed", "step": 3, "counted": True}, TARGET,
     "completed: complete"),
    ("the-target-means-nothing-in-eval", {"kind": "completed"}, replace(EVAL, target_step=400),
     "completed: complete"),
    ("cancelled-by-the-user", {"kind": "cancelled"}, POLICY, "cancelled: cancel"),
    ("cancelled-by-class", failed("cancelled"), UNCONDITIONAL, "cancelled: cancel"),
    ("fault-warning", fault("warning"), POLICY, "fault-warning: continue"),
    ("fault-warning-even-if-healing-failed", fault("warning", False), POLICY, "fault-warning: continue"),
    ("in-process", {"kind": "in_process"}, POLICY, "in-process: continue"),
    ("compile-is-not-recoverable", failed("compile", step=100), POLICY, "non-recoverable: fail"),
    ("assertion-is-not-recoverable", failed("assertion", step=100), POLICY, "non-recoverable: fail"),
    ("config-without-progress-is-not-recoverable", failed("config"), POLICY, "non-recoverable: fail"),
    ("config-in-eval-is-not-recoverable", failed("config", step=100), EVAL, "non-recoverable: fail"),
    ("the-entry-says-not-recoverable", failed("network", recoverable=False), POLICY, "non-recoverable: fail"),
    ("not-recoverable-but-unconditional", failed("compile"), UNCONDITIONAL, "unconditional: rebuild"),
    ("compile-in-doubt-is-confirmed-first", failed("compile", confidence="low"), POLICY,
     "confirm-once: restart_in_place"),
    ("config-in-doubt-without-progress-too", failed("config", confidence="low"), POLICY,
     "confirm-once: restart_in_place"),
    ("an-entry-in-doubt-forbids-nothing", failed("network", recoverable=False, confidence="low"), POLICY,
     "confirm-once: restart_in_place"),
    ("a-class-in-doubt-that-is-restarted-anyway", failed("network", confidence="low"), POLICY, IN_PLACE),
    ("compile-of-high-confidence", failed("compile", confidence="high"), POLICY, "non-recoverable: fail"),
    ("in-doubt-but-unconditional", failed("compile", confidence="low"), UNCONDITIONAL, "unconditional: rebuild"),
    ("in-doubt-where-only-the-environment-is-restarted", failed("compile", confidence="low"), ENVIRONMENT, REFUSED),
    ("handed-over", {"kind": "handed_over"}, POLICY, "handed-over: rebuild"),
    ("handed-over-without-autorestart", {"kind": "handed_over"}, replace(POLICY, autorestart=False),
     "handed-over: rebuild"),
    ("handed-over-past-a-limit-of-0", {"kind": "handed_over"}, replace(POLICY, max_hand_overs=0),
     "handed-over: fail"),
    ("preempted-by-kind", {"kind": "preempted", "system": "s1"}, POLICY, "preempted: rebuild"),
    ("preempted-by-class", failed("preempted"), POLICY, "preempted: rebuild"),
    ("preempted-but-its-entry-forbids", failed("preempted", recoverable=False), POLICY,
     "non-recoverable: fail"),
    ("cancelled-whatever-its-entry-says", failed("cancelled", recoverable=False), POLICY, "cancelled: cancel"),
    ("preempted-past-a-limit-of-0", failed("preempted"), replace(POLICY, max_preemptions=0),
     "preempted: fail"),
    ("minor-fault-healed", fault("minor", True), POLICY, HEALED),
    ("major-fault-healed", fault("major", True), POLICY, HEALED),
    ("minor-fault-not-healed", fault("minor", False), POLICY, "fault-heal-failed: isolate_and_rebuild"),
    ("major-fault-healing-not-tried", fault("major"), POLICY, "fault-heal-failed: isolate_and_rebuild"),
    ("critical-fault-healing-failed", fault("critical", False), POLICY,
     "fault-heal-failed: isolate_and_rebuild"),
    ("critical-fault", fault("critical"), POLICY, "fault-critical: isolate_and_rebuild"),
    ("critical-fault-that-claims-to-be-healed", fault("critical", True), POLICY,
     "fault-critical: isolate_and_rebuild"),
    ("node-lost", S1_LOST, POLICY, "node-lost: isolate_and_rebuild"),
    ("node-lost-with-replacement", S1_LOST, REPLACING, "node-lost: replace_workers"),
    ("node-lost-named-by-its-worker", {"kind": "system_lost", "worker": 1}, REPLACING,
     "node-lost: replace_workers"),
    ("node-lost-with-nobody-to-blame", {**S1_LOST, "blame": "none"}, REPLACING, "node-lost: rebuild"),
    ("hardware-of-a-blamed-worker", failed("hardware", worker=1), POLICY, "node-lost: isolate_and_rebuild"),
    ("hardware-where-a-peer-is-to-blame", failed("hardware", worker=1, blame="peer"), POLICY,
     IN_PLACE),
    ("hardware-with-nobody-to-blame", failed("hardware"), POLICY, IN_PLACE),
    ("replacement-failed", {"kind": "replacement_failed", "system": "s1"}, POLICY,
     "replacement-failed: rebuild"),
    ("rebuild-failed-somewhere", {"kind": "rebuild_failed"}, POLICY, "rebuild-failed: rebuild"),
    ("rebuild-failed-on-a-system", {"kind": "rebuild_failed", "system": "s1"}, REPLACING,
     "rebuild-failed: isolate_and_rebuild"),
    ("rebuild-failed-of-a-worker", {"kind": "rebuild_failed", "worker": 1}, POLICY,
     "rebuild-failed: isolate_and_rebuild"),
    ("rebuild-failed-as-it-would-anywhere", {"kind": "rebuild_failed", "worker": 1, "system": "s1", "blame": "none"},
     POLICY, "rebuild-failed: rebuild"),
    ("in-place-failed", {"kind": "in_place_failed", "worker": 1}, POLICY, "in-place-failed: rebuild"),
    ("suspended", SUSPENDED, SUSPENSIONS, WOKEN),
    ("suspended-past-a-limit-of-0", SUSPENDED, replace(SUSPENSIONS, max_suspension_restarts=0),
     "suspended: fail"),
    ("suspension-reported", SUSPENDED, POLICY, "suspension-reported: continue"),
    ("checkpoint-unreadable", failed("checkpoint"), POLICY, "checkpoint-unreadable: restart_in_place"),
    ("checkpoint-unreadable-under-unconditional", failed("checkpoint"), UNCONDITIONAL,
     "checkpoint-unreadable: restart_in_place"),
    ("numeric", failed("numeric"), UNCONDITIONAL, "numeric: restart_in_place"),
    ("unconditional", failed("user_code"), UNCONDITIONAL, "unconditional: rebuild"),
    ("unconditional-takes-what-its-entry-forbids", failed("network", recoverable=False), UNCONDITIONAL,
     "unconditional: rebuild"),
    ("unconditional-takes-no-lost-system", failed("hardware", worker=1), UNCONDITIONAL,
     "node-lost: isolate_and_rebuild"),
    ("unconditional-takes-no-preemption", failed("preempted"), UNCONDITIONAL, "preempted: rebuild"),
    ("unconditional-takes-no-suspension", SUSPENDED, UNCONDITIONAL, "suspension-reported: continue"),
    ("unconditional-asks-for-no-confirmation", failed("network", recoverable="confirm"), UNCONDITIONAL,
     "unconditional: rebuild"),
    *[(f"transient-{name}", failed(name), POLICY, IN_PLACE) for name in sorted(POLICY.restart_on)],
    ("transient-rebuild-only", failed("network"), replace(POLICY, rebuild_only=True), REBUILD),
    ("rebuild-only-is-about-transient-alone", failed("user_code"), replace(POLICY, rebuild_only=True),
     CONFIRMED),
    ("rebuild-only-restarts-in-place-upon-suspension", SUSPENDED, replace(SUSPENSIONS, rebuild_only=True),
     WOKEN),
    ("a-class-that-the-user-adds", failed("user_code"), replace(POLICY, restart_on=frozenset(("user_code",))),
     IN_PLACE),
    ("confirm-user-code", failed("user_code"), POLICY, CONFIRMED),
    ("confirm-device-memory", failed("oom_device"), POLICY, CONFIRMED),
    ("confirm-config-after-progress", failed("config", step=100), POLICY, CONFIRMED),
    ("confirm-what-the-entry-asks-for", failed("network", recoverable="confirm"), POLICY,
     CONFIRMED),
    ("not-restartable", failed("network", step=1), replace(POLICY, restart_on=frozenset()), REFUSED),
    ("hardware-with-nobody-to-blame-not-restartable", failed("hardware"),
     replace(POLICY, restart_on=frozenset()), REFUSED),
    ("a-lost-system-needs-no-class", S1_LOST, replace(POLICY, restart_on=frozenset()),
     "node-lost: isolate_and_rebuild"),
    ("environment-only-checkpoint", failed("checkpoint"), ENVIRONMENT, REFUSED),
    ("environment-only-numeric", failed("numeric"), ENVIRONMENT, REFUSED),
    ("environment-only-user-code", failed("user_code"), ENVIRONMENT, REFUSED),
    ("environment-only-config-after-progress", failed("config", step=100), ENVIRONMENT, REFUSED),
    ("environment-only-entry-that-asks", failed("network", recoverable="confirm"), ENVIRONMENT, REBUILD),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "policy", "expected"), [pytest.param(*case, id=name) for name, *case in ONE_LINE]
)
def test_one_incident(verdicts, line, policy, expected):
    assert verdicts(policy, line) == [expected]


@pytest.mark.parametrize(
    ("line", "isolated"),
    [
        pytest.param(S1_LOST, ("s1",), id="the-lost-system"),
        pytest.param({"kind": "system_lost", "systems": ["s1", "s0"]}, ("s1", "s0"), id="both-lost-systems"),
        pytest.param({**S1_LOST, "systems": ["s0"]}, ("s1", "s0"), id="one-system-and-others"),
        pytest.param(failed("checkpoint", worker=1), (), id="not-where-a-checkpoint-was-unreadable"),
        pytest.param({**S1_LOST, "blame": "none"}, (), id="nobody-is-to-blame"),
        pytest.param(fault("critical"), ("s1",), id="the-system-of-a-device"),
        pytest.param({"kind": "rebuild_failed", "system": "s1"}, ("s1",), id="where-a-rebuild-failed"),
        pytest.param({"kind": "rebuild_failed", "worker": 0}, ("s0",), id="whose-worker-was-not-rebuilt"),
        pytest.param({"kind": "rebuild_failed"}, (), id="a-rebuild-that-failed-somewhere"),
        pytest.param({"kind": "replacement_failed", "system": "s1"}, (), id="not-where-a-replacement-failed"),
        pytest.param({"kind": "in_place_failed", "worker": 1}, (), id="not-where-an-agent-is-gone"),
        pytest.param({"kind": "preempted", "system": "s1"}, (), id="not-where-the-scheduler-took-a-machine"),
        pytest.param(failed("crash", worker=1), (), id="not-for-one-crash"),
    ],
)
def test_which_systems_a_decision_isolates(decisions, line, isolated):
    assert decisions(POLICY, line)[0].isolate == isolated


def test_a_confirmation_isolates_nobody(decisions):
    crash = failed("user_code", worker=1)
    assert [decision.isolate for decision in decisions(POLICY, crash, crash)] == [(), ()]


def test_nor_does_a_limit_that_is_passed(decisions):
    (decision,) = decisions(replace(POLICY, max_preemptions=0), {"kind": "preempted", "worker": 1})
    assert (decision.action, decision.isolate) == ("fail", ())


def test_the_table_has_a_case_for_every_rule():
    limited = {"fault-user-induced", "fault-repeated", "repeated-failure", "skip-steps"}
    told = {expected.split(":")[0] for *_, expected in ONE_LINE} | limited
    assert {rule.name for rule in RULES if rule.kinds} == told


CRASH = failed("crash", signature="c", step=100)
A1 = fault("minor", True)
USERS = fault("minor", True, code="80C98002")

STORIES = [
    (
        "restart-in-place-first-then-rebuild-until-progress",
        POLICY,
        [failed("network", step=1), failed("storage", step=1), failed("network"), failed("network", step=2)],
        [IN_PLACE, REBUILD, REBUILD, IN_PLACE],
    ),
    (
        "another-rule's-restart-does-not-use-up-the-one-in-place",
        POLICY,
        [failed("user_code"), A1, failed("network")],
        [CONFIRMED, HEALED, IN_PLACE],
    ),
    (
        "a-suspension-limit-of-2-allows-2",
        replace(SUSPENSIONS, max_suspension_restarts=2),
        [SUSPENDED, SUSPENDED, SUSPENDED],
        [WOKEN, WOKEN, "suspended: fail"],
    ),
    (
        "another-end-of-an-attempt-parts-suspensions",
        replace(SUSPENSIONS, max_suspension_restarts=1),
        [SUSPENDED, A1, SUSPENDED],
        [WOKEN, HEALED, WOKEN],
    ),
    (
        "a-failed-recovery-action-does-not-part-suspensions",
        replace(SUSPENSIONS, max_suspension_restarts=1),
        [SUSPENDED, {"kind": "in_place_failed"}, {"kind": "rebuild_failed"}, SUSPENDED],
        [WOKEN, "in-place-failed: rebuild", "rebuild-failed: rebuild", "suspended: fail"],
    ),
    (
        "an-agent-lost-in-mid-attempt-parts-suspensions",
        replace(SUSPENSIONS, max_suspension_restarts=1),
        [SUSPENDED, {"kind": "in_process"}, {"kind": "in_place_failed"}, SUSPENDED],
        [WOKEN, "in-process: continue", "in-place-failed: rebuild",
         WOKEN],
    ),
    (
        "three-unconditional-restarts-then-no-more",
        UNCONDITIONAL,
        [failed("assertion", step=1)] * 4,
        ["unconditional: rebuild"] * 3 + ["unconditional: fail"],
    ),
    (
        "unconditional-also-where-it-comes-back-identically",
        UNCONDITIONAL,
        [CRASH, CRASH, CRASH],
        ["unconditional: rebuild"] * 3,
    ),
    (
        "what-parts-unconditional-restarts-is-progress-alone",
        UNCONDITIONAL,
        [failed("data"), failed("data"), failed("data"), S1_LOST, failed("data", step=1), failed("data")],
        ["unconditional: rebuild"] * 3
        + ["node-lost: isolate_and_rebuild", "unconditional: rebuild", "unconditional: rebuild"],
    ),
    (
        "preemptions-have-a-limit-of-their-own",
        replace(POLICY, max_preemptions=2),
        [{"kind": "preempted"}, failed("preempted", step=9), {"kind": "preempted"}],
        ["preempted: rebuild", "preempted: rebuild", "preempted: fail"],
    ),
    (
        "the-same-failure-for-the-third-time",
        POLICY,
        [CRASH, CRASH, CRASH],
        [IN_PLACE, REBUILD, "repeated-failure: fail"],
    ),
    *[
        (
            f"the-same-{name}-for-the-third-time",
            POLICY,
            [failed(name, signature="c", step=100)] * 3,
            [IN_PLACE, REBUILD, "repeated-failure: fail"],
        )
        for name in ("data", "unknown")
    ],
    *[
        (
            f"the-same-{name}-may-come-back-identically",
            POLICY,
            [failed(name, signature="c", step=100)] * 3,
            [IN_PLACE, REBUILD, REBUILD],
        )
        for name in ("network", "storage", "port_in_use", "collective_timeout", "oom_host", "hardware")
    ],
    (
        "the-same-failure-comes-before-its-entry's-confirmation",
        replace(POLICY, stop_on_repeat=1),
        [failed("data", signature="c", step=100, recoverable="confirm")] * 2,
        [CONFIRMED, "repeated-failure: fail"],
    ),
    (
        "the-same-failure-at-another-step",
        POLICY,
        [CRASH, CRASH, {**CRASH, "step": 90}],
        [IN_PLACE, REBUILD, REBUILD],
    ),
    (
        "the-same-failure-with-something-else-between",
        POLICY,
        [CRASH, CRASH, A1, CRASH],
        [IN_PLACE, REBUILD, HEALED, REBUILD],
    ),
    (
        "reports-and-failed-recoveries-do-not-part-the-same-failure",
        POLICY,
        [CRASH, {"kind": "in_process"}, CRASH, {"kind": "rebuild_failed"}, CRASH],
        [IN_PLACE, "in-process: continue", REBUILD, "rebuild-failed: rebuild",
         "repeated-failure: fail"],
    ),
    (
        "an-unknown-signature-equals-nothing",
        POLICY,
        [failed("crash", step=100)] * 3,
        [IN_PLACE, REBUILD, REBUILD],
    ),
    (
        "an-unknown-step-equals-nothing",
        POLICY,
        [failed("crash", signature="c")] * 3,
        [IN_PLACE, REBUILD, REBUILD],
    ),
    (
        "stop-on-repeat-1-fails-the-second",
        replace(POLICY, stop_on_repeat=1),
        [CRASH, CRASH],
        [IN_PLACE, "repeated-failure: fail"],
    ),
    (
        "stop-on-repeat-0-turns-it-off",
        replace(POLICY, stop_on_repeat=0),
        [CRASH] * 4,
        [IN_PLACE] + [REBUILD] * 3,
    ),
    (
        "confirm-once-for-each-class",
        POLICY,
        [failed("user_code"), failed("oom_device"), failed("user_code")],
        [CONFIRMED, CONFIRMED, "confirm-once: fail"],
    ),
    (
        "config-at-a-step-that-was-verified-before-has-made-no-progress",
        POLICY,
        [failed("network", step=100), failed("config", step=100)],
        [IN_PLACE, "non-recoverable: fail"],
    ),
    (
        "config-one-step-further-has-made-progress",
        POLICY,
        [failed("network", step=100), failed("config", step=101)],
        [IN_PLACE, CONFIRMED],
    ),
    (
        "a-confirmation-of-config-lasts-no-longer-than-its-progress",
        POLICY,
        [failed("config", step=1), failed("config", step=2), failed("config", step=2)],
        [CONFIRMED, CONFIRMED, "non-recoverable: fail"],
    ),
    (
        "confirm-again-after-progress",
        POLICY,
        [failed("user_code"), failed("user_code", step=1), failed("user_code", step=1)],
        [CONFIRMED, CONFIRMED, "confirm-once: fail"],
    ),
    (
        "an-ordinary-failure-of-the-class-confirms-nothing",
        POLICY,
        [failed("data"), failed("data", recoverable="confirm"), failed("data", recoverable="confirm")],
        [IN_PLACE, CONFIRMED, "confirm-once: fail"],
    ),
    (
        "another-rule's-restart-of-the-class-confirms-nothing",
        POLICY,
        [failed("hardware", worker=1), failed("hardware", recoverable="confirm")],
        ["node-lost: isolate_and_rebuild", CONFIRMED],
    ),
    (
        "the-third-fault-of-one-code-on-one-device",
        POLICY,
        [A1, A1, A1],
        [HEALED, HEALED, "fault-repeated: isolate_and_rebuild"],
    ),
    (
        "the-third-fault-is-replaced-where-that-is-on",
        REPLACING,
        [A1, A1, A1],
        [HEALED, HEALED, "fault-repeated: replace_workers"],
    ),
    (
        "another-code-starts-anew",
        POLICY,
        [A1, A1, fault("minor", True, code="B2"), A1],
        [HEALED] * 4,
    ),
    (
        "a-warning-neither-counts-nor-parts",
        POLICY,
        [A1, fault("warning", code="B2"), A1, fault("warning"), A1],
        [HEALED, "fault-warning: continue", HEALED,
         "fault-warning: continue", "fault-repeated: isolate_and_rebuild"],
    ),
    (
        "another-device-counts-for-itself",
        POLICY,
        [A1, A1, fault("minor", True, device="1"), fault("minor", True, system="s0")],
        [HEALED] * 4,
    ),
    (
        "a-report-just-a-day-ago-counts",
        POLICY,
        [A1 | {"t": 0}, A1 | {"t": 1}, A1 | {"t": 86400}],
        [HEALED] * 2 + ["fault-repeated: isolate_and_rebuild"],
    ),
    (
        "a-report-more-than-a-day-ago-does-not",
        POLICY,
        [A1 | {"t": 0}, A1 | {"t": 1}, A1 | {"t": 86401}],
        [HEALED] * 3,
    ),
    (
        "a-code-of-the-user's-own-making",
        POLICY,
        [USERS, USERS, USERS, USERS],
        [HEALED] * 2 + ["fault-user-induced: rebuild"] * 2,
    ),
    (
        "a-code-of-the-user's-own-making-that-cannot-be-healed",
        POLICY,
        [fault("minor", code="80C98002"), fault("critical", worker=0, system=None, code="80C98002")],
        ["fault-heal-failed: isolate_and_rebuild", "fault-critical: isolate_and_rebuild"],
    ),
    (
        "the-third-critical-fault-of-the-user's-own-making",
        POLICY,
        [USERS, USERS, USERS | {"severity": "critical", "healed": False}],
        [HEALED] * 2 + ["fault-user-induced: rebuild"],
    ),
    (
        "the-third-fault-that-healing-failed-on",
        POLICY,
        [A1, A1, fault("major", False)],
        [HEALED] * 2 + ["fault-repeated: isolate_and_rebuild"],
    ),
    (
        "a-list-given-replaces-the-codes",
        replace(POLICY, user_induced_codes=frozenset(("A1",))),
        [USERS, USERS, USERS, A1, A1, A1],
        [HEALED] * 2
        + ["fault-repeated: isolate_and_rebuild"]
        + ["fault-healed: continue"] * 2
        + ["fault-user-induced: continue"],
    ),
    (
        "the-highest-step-of-all-attempts-reaches-the-target",
        TARGET,
        [failed("network", step=400), {"kind": "completed"}],
        [IN_PLACE, "completed: complete"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "lines", "expected"), [pytest.param(*case, id=name) for name, *case in STORIES]
)
def test_a_story(verdicts, policy, lines, expected):
    assert verdicts(policy, *lines) == expected


WITHOUT_RESTARTS = replace(POLICY, autorestart=False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(failed("network"), REFUSED, id="a-restart-becomes-fail"),
        pytest.param({"kind": "preempted"}, REFUSED, id="preemption-too"),
        pytest.param(failed("compile"), "non-recoverable: fail", id="a-rule-that-fails-keeps-its-name"),
        pytest.param({"kind": "completed"}, "completed: complete", id="completion-is-completion"),
        pytest.param({"kind": "cancelled"}, "cancelled: cancel", id="a-cancel-is-a-cancel"),
        pytest.param(SUSPENDED, "suspension-reported: continue", id="a-report-is-a-report"),
    ],
)
def test_without_autorestart_nothing_is_restarted(decisions, line, expected):
    (decision,) = decisions(WITHOUT_RESTARTS, line)
    assert f"{decision.rule}: {decision.action}" == expected
    assert decision.counters.failures_without_progress == 0


def test_without_autorestart_a_lost_system_is_isolated_all_the_same(decisions):
    (decision,) = decisions(WITHOUT_RESTARTS, S1_LOST)
    assert (decision.rule, decision.action, decision.isolate) == ("not-restartable", "fail", ("s1",))


def test_the_codes_of_the_users_own_making_that_are_known():
    assert POLICY.user_induced_codes == {"80C98002", "80CB8002"}


def test_a_history_without_an_incident_is_not_decided_about():
    with pytest.raises(ValueError, match=r"^decide needs a history with at least one incident"):
        decide(POLICY, ())
