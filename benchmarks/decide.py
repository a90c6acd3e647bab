"""What a decision costs: decisions a second at histories of several lengths, for several courses of a phase.

Each course is a story that a phase can live through, repeated to the length that is wanted; each of its
incidents is the last one in turn. Of `alone` the history is folded anew for each decision, as it is in a run, which
decides once in a while. Of `in turn` every incident of the history is decided after the one before, as a replay does
it. A second is one of CPU time, so that other work on the machine counts as little as can be.

    python -m benchmarks.decide [--json FILE] [--quick] [--no-peers]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice, product

from benchmarks.harness import OURS, Results, Row, finish, options, row
from prefect_ft.decide import InTurn, decide
from prefect_ft.model import RESTARTS, Entry, Evidence, History, Incident, Policy

LENGTHS = (1, 10, 100)
GAP_S = 3600.0
POLICY = Policy(systems=tuple(f"s{number}" for number in range(8)), workers=4, max_num_restarts=128)
CRASH = Incident(t=0, kind="exit", failure_class="crash", exit_code=139, worker=0)
NETWORK = Incident(t=0, kind="exit", failure_class="network", exit_code=1)
SUSPENDED = Incident(t=0, kind="suspended")
HEALED = Incident(t=0, kind="device_fault", worker=1, device="0", code="A1", severity="minor", healed=True)
LOST = Incident(t=0, kind="system_lost", worker=1)


@dataclass(frozen=True, slots=True)
class Course:
    """A policy and a round of incidents. `is_saving`: every round ends at a higher step than the one before."""

    policy: Policy
    incidents: tuple[Incident, ...]
    is_saving: bool = True


COURSES: Mapping[str, Course] = {
    "exits": Course(POLICY, (NETWORK, replace(NETWORK, failure_class="storage"))),
    "exits, no progress": Course(POLICY, (NETWORK,), is_saving=False),
    "exits as runs tell them": Course(
        POLICY,
        (
            replace(
                CRASH,
                attempt=1,
                blame="none",
                seen_step=50,
                baseline_step=40,
                verified=(10, 20, 30, 40, 50),
                signature="3f6c0a1b2c3d4e5f",
                stage="train",
                stage_step=50,
                evidence=Evidence(rule="segfault", text="Fatal Python error: Segmentation fault", line=7),
            ),
        ),
    ),
    "unconditional": Course(replace(POLICY, unconditional=True), (CRASH, CRASH, CRASH)),
    "suspensions": Course(replace(POLICY, suspension_restart=True), (SUSPENDED,) * 3),
    "healed faults": Course(
        POLICY, tuple(replace(HEALED, worker=worker, code=code) for worker in (1, 2) for code in ("A1", "B2"))
    ),
    "reports": Course(POLICY, (Incident(t=0, kind="in_process"), replace(HEALED, severity="warning"))),
    "mixed faults": Course(
        replace(POLICY, suspension_restart=True, isolation_ttl_s=6 * GAP_S, max_worker_replacements=128),
        (
            NETWORK,
            HEALED,
            SUSPENDED,
            CRASH,
            Incident(t=0, kind="preempted", worker=1),
            replace(HEALED, worker=3, healed=False),
            Incident(t=0, kind="replacement_failed"),
            LOST,
            replace(HEALED, worker=0, severity="warning"),
            Incident(t=0, kind="rebuild_failed", worker=2),
        ),
    ),
    "a suspect isolated": Course(replace(POLICY, isolation_ttl_s=4 * GAP_S), (replace(CRASH, worker=1),) * 3),
    "silent workers": Course(
        replace(POLICY, isolation_ttl_s=8 * GAP_S),
        (replace(NETWORK, failure_class="collective_timeout", reported=(0, 1, 2)),),
    ),
    "replaced workers": Course(
        replace(POLICY, isolation_ttl_s=3 * GAP_S, max_worker_replacements=128), (LOST, LOST, NETWORK)
    ),
    "shrinking and growing back": Course(
        replace(POLICY, systems=POLICY.systems[:4], isolation_ttl_s=2.5 * GAP_S), (LOST, NETWORK, NETWORK)
    ),
    "checkpoints set aside": Course(
        POLICY,
        (
            replace(CRASH, failure_class="checkpoint", stage="load"),
            replace(CRASH, failure_class="numeric"),
            CRASH,
        ),
    ),
}


def told(course: Course, first: int, length: int) -> list[Incident]:
    """Return `length` incidents of the course, beginning in the middle of a round with its `first`."""
    size = len(course.incidents)
    return [
        replace(
            incident,
            t=(number + 1) * GAP_S,
            step=10 * ((first + number + 1) // size) if course.is_saving else None,
        )
        for number, incident in enumerate(islice(cycle(course.incidents), first, first + length))
    ]


def undecided(course: Course, first: int, length: int) -> History:
    """Decide about all incidents but the last."""
    history: History = ()
    for incident in told(course, first, length):
        decision = decide(course.policy, (*history, Entry(incident=incident)))
        assert decision.action in RESTARTS or decision.action == "continue", decision
        history = (*history, Entry(incident=incident, decision=decision))
    return (*history[:-1], Entry(incident=history[-1].incident))


def alone(policy: Policy, history: History) -> int:
    """Decide about the last incident; return the number of decisions."""
    decide(policy, history)
    return 1


def in_turn(policy: Policy, history: History) -> int:
    """Decide about all incidents; return the number of decisions."""
    deciding = InTurn(policy)
    for entry in history:
        deciding.decide(entry.incident)
    return len(history)


WAYS: Mapping[str, Callable[[Policy, History], int]] = {"alone": alone, "in turn": in_turn}


def decisions_per_s(way: str, policy: Policy, histories: list[History], measure_s: float) -> float:
    """Decide about each history, again and again, for at least that much CPU time."""
    decided, began_s = 0, time.process_time()
    while (elapsed_s := time.process_time() - began_s) < measure_s:
        for history in histories:
            decided += WAYS[way](policy, history)
    return decided / elapsed_s


def measure(repeats: int, measure_s: float) -> list[Row]:
    """Measure every course at every length, decided either way: a slice of each in turn, as often as asked."""
    cases = list(product(COURSES, LENGTHS, WAYS))
    speeds: dict[tuple[str, int, str], list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for name, length, way in cases:
            course = COURSES[name]
            histories = [undecided(course, first, length) for first in range(len(course.incidents))]
            speeds[name, length, way].append(decisions_per_s(way, course.policy, histories, measure_s))
    return [
        row(OURS, f"{name}, history {length}", speeds[name, length, way], unit="decisions/s", settings=way)
        for name, length, way in cases
    ]


def main() -> None:
    """Measure every course at every length."""
    arguments = options("What a decision costs.")
    repeats, measure_s = (5, 0.02) if arguments.quick else (25, 0.02)
    results = Results(
        rows=measure(repeats, measure_s),
        notes=["seconds of CPU time; 8 systems, 4 workers (shrinking: 4 systems)"],
    )
    finish(results, arguments)


if __name__ == "__main__":
    main()
