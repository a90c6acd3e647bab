"""What an attempt's end comes to, beside what its ranks said: whose memory ran out, which saves count, what is kept."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from heard import heard

from prefect_ft.backends.base import OUT_OF_MEMORY, USED_UP
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import AttemptLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.ending import Ended, Ending
from prefect_ft.supervisor.events import Lost, Output
from prefect_ft.supervisor.incidents import OUT_OF_THE_USUAL
from prefect_ft.supervisor.saves import Saves

NOW_S = 1000.12345
KERNEL = Evidence(rule=OUT_OF_MEMORY, text="so the engine says")
PREEMPTED = Evidence(rule="pod-preempted", text="so the cluster says")


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


class Clock(PhaseClock):
    """Stands still, a phase's second at each second of the machine."""

    def at(self, boottime_ns: int) -> float:
        return boottime_ns / 1e9

    def epoch(self) -> float:
        return NOW_S


class Case:
    """An attempt of two workers with a rank each, and what says how it ended."""

    def __init__(
        self,
        *,
        has_checkpoints: bool = True,
        lost_ranks_last_s: float | None = None,
        evidence: Callable[[int], Evidence | None] = lambda _: None,
    ) -> None:
        plan: Any = SimpleNamespace(has_checkpoints=has_checkpoints, lost_ranks_last_s=lost_ranks_last_s)
        self.saves, self.journal = Saves(), MemoryJournal()
        self.attempt = Attempt(3, {0: 0, 1: 1})
        self.ending = Ending(plan, self.saves, self.journal, Clock(), evidence)

    def started(self, attempt: int, resume_step: int | None = None, t: float = 1.0) -> None:
        line = AttemptLine(attempt=attempt, placement=("s0", "s1"), resume_step=resume_step)
        self.journal.append(line, t=t)

    def hear(self, *events: tuple[int, Any]) -> None:
        for worker, event in events:
            is_output = isinstance(event, Output)
            self.attempt.take(
                worker, event.but(offset=self.attempt.ranks[worker].heard) if is_output else event
            )

    def save(self, *items: tuple[int, float]) -> None:
        new = [
            {
                "step": step,
                "path": f"/ck/{step}",
                "counted": False,
                "mtime": mtime,
                "size": 1,
                "device": 1,
                "inode": step,
            }
            for step, mtime in items
        ]
        self.saves.report(heard("checkpoints", new=new, gone=[]))

    def ended(self, **fields: Any) -> Ended:
        return Ended(self.attempt, t=50.0, reaped_t=52.0, **fields)

    def incident(self, cancelled_by: str | None = None) -> Incident:
        return self.ending.incident(self.ended(), 3, cancelled_by)


def exited(
    rank: int, code: int | None = None, by: int | None = None, t_ns: int = 40 * 10**9, **fields: Any
) -> Any:
    return rank, heard("exited", rank=rank, code=code, signal=by, t_ns=t_ns, **fields)


# -- one incident ----------------------------------------------------------------------------------------


def test_a_stop_before_any_attempt_is_a_cancellation() -> None:
    case = Case()
    case.save((10, 900.0))
    found = case.ending.incident(Ended(None, t=5.0), 4, "SIGINT")
    assert found == Incident(
        t=5.0,
        kind="cancelled",
        attempt=4,
        evidence=Evidence(rule="stop-request", text="SIGINT"),
        step=10,
        seen_step=10,
        verified=(10,),
    )


def test_a_stop_goes_before_what_failed_at_the_same_time() -> None:
    case = Case()
    case.hear(exited(0, 1))
    found = case.incident("SIGTERM")
    assert (found.kind, found.attempt, found.t) == ("cancelled", 3, 50.0)
    assert found.evidence == Evidence(rule="stop-request", text="SIGTERM")


@pytest.mark.parametrize(
    ("resumed", "has_checkpoints", "expected"),
    [
        pytest.param([(2, 10), (3, 20)], True, 20, id="a-step"),
        pytest.param([(3, 20), (3, 30)], True, 30, id="the-last-start-of-it"),
        pytest.param([(3, None)], True, 0, id="from-scratch"),
        pytest.param([(2, 10)], True, None, id="stopped-before-all-ranks-had-started"),
        pytest.param([(3, 20)], False, None, id="without-checkpoints"),
    ],
)
def test_where_the_attempt_had_started(
    resumed: Sequence[tuple[int, int | None]], has_checkpoints: bool, expected: int | None
) -> None:
    case = Case(has_checkpoints=has_checkpoints)
    for number, step in resumed:
        case.started(number, step)
    case.hear(exited(0, 1))
    assert case.incident().started_from == expected


def test_an_incident_has_what_is_known_of_checkpoints_where_there_are_any() -> None:
    for has_checkpoints, step in ((True, 10), (False, None)):
        case = Case(has_checkpoints=has_checkpoints)
        case.save((10, 900.0))
        case.hear(exited(0, 1))
        assert (case.incident().step, case.ending.known_saves().get("step")) == (step, step)


# -- memory that was used up -------------------------------------------------------------------------------


def says(rank: int, line: str) -> Any:
    return rank, heard("output", rank=rank, text=f"{line}\n")


RAISED = [
    says(1, "Traceback (most recent call last):"),
    says(1, '  File "/a/train.py", line 3, in step'),
    says(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
]


@pytest.mark.parametrize(
    ("events", "known", "expected"),
    [
        pytest.param([exited(1, by=signal.SIGKILL)], KERNEL, ("oom_host", KERNEL), id="its-infrastructure-knows"),
        pytest.param([exited(1, by=signal.SIGKILL, oom=True)], None, ("oom_host", USED_UP), id="its-agent-knows"),
        pytest.param([exited(1, by=signal.SIGKILL)], None, ("unknown", None), id="nobody-knows"),
        pytest.param([exited(1, by=signal.SIGKILL)], PREEMPTED, ("unknown", None), id="it-was-something-else"),
        pytest.param([exited(1, by=signal.SIGSEGV)], KERNEL, ("crash", None), id="another-signal"),
        pytest.param([exited(1, 1)], KERNEL, ("unknown", None), id="no-signal"),
        pytest.param([exited(0, 1), exited(1, by=signal.SIGKILL)], KERNEL, ("unknown", None), id="another-rank"),
        pytest.param(
            [*RAISED, exited(1, by=signal.SIGKILL)], KERNEL, ("oom_device", ...),
            id="the-rank-says-why",
        ),
    ],
)  # fmt: skip
def test_a_bare_death_by_sigkill_has_the_cause_that_others_know(
    events: Sequence[Any], known: Evidence | None, expected: tuple[str, Any]
) -> None:
    asked: list[int] = []

    def evidence(worker: int) -> Evidence | None:
        asked.append(worker)
        return known

    case = Case(evidence=evidence)
    case.hear(*events)
    found = case.incident()
    assert found.failure_class == expected[0]
    if expected[0] == "oom_host":
        assert found.evidence == expected[1]
    assert found.worker in (0, 1)
    assert set(asked) <= {1}


# -- checkpoints that do not count -------------------------------------------------------------------------


def odd(reached: int | None) -> Incident:
    evidence = Evidence(rule=OUT_OF_THE_USUAL, text="loss")
    return Incident(t=0, kind="exit", failure_class="numeric", worker=1, evidence=evidence, reached=reached)


def test_what_was_saved_since_values_went_out_of_the_usual_does_not_count() -> None:
    case = Case()
    case.save((10, 900.0), (20, 950.0006), (30, 960.0))
    case.attempt.found_odd(odd(20))
    ended = case.ended()
    found = case.ending.incident(ended, 3, None)
    assert (found.step, found.verified) == (10, (10,))
    assert ended.fences == ((950.0, 1000.123),)
    assert case.ending.facts(ended, [])["fences"] == ended.fences


@pytest.mark.parametrize("reached", [None, 40], ids=["not-known-since-when", "nothing-saved-since"])
def test_else_it_counts(reached: int | None) -> None:
    case = Case()
    case.save((10, 900.0))
    case.attempt.found_odd(odd(reached))
    ended = case.ended()
    assert case.ending.incident(ended, 3, None).verified == (10,)
    assert "fences" not in case.ending.facts(ended, [])


@pytest.mark.parametrize(
    ("lasts_s", "answers", "expected"),
    [
        pytest.param(30.0, False, ((1000.123, 1030.123),), id="a-lost-system-goes-on"),
        pytest.param(30.0, True, (), id="the-system-is-there"),
        pytest.param(None, False, (), id="ranks-end-with-their-system"),
    ],
)
def test_what_lost_ranks_write_later_does_not_count(
    lasts_s: float | None, answers: bool, expected: tuple[tuple[float, float], ...]
) -> None:
    case = Case(lost_ranks_last_s=lasts_s)
    case.hear((1, Lost(system_answers=answers, evidence=None)), (0, Lost(system_answers=True, evidence=None)))
    facts = case.ending.facts(case.ended(), [])
    assert facts.get("fences", ()) == expected
    case.save((10, 1010.0))
    assert case.saves.verified == (() if expected else (10,))


# -- what the journal keeps ----------------------------------------------------------------------------------


def test_the_facts_of_an_attempt() -> None:
    case = Case()
    case.hear(
        (0, heard("beat", rank=0, beats=1, step=5)), (0, heard("beat", rank=0, beats=2, step=8)), exited(0, 1)
    )
    case.attempt.healing_s = 2.5
    assert case.ending.facts(case.ended(deaths=[7.0, 3.0]), [5.0, 3.0]) == {
        "deaths": (3.0, 5.0, 7.0),
        "ended_t": 40.0,
        "first_step": 5,
        "last_step": 8,
        "healing_s": 2.5,
        "reaped_t": 52.0,
    }


def test_the_ranks_of_a_lost_agent_are_dead_by_now() -> None:
    case = Case()
    case.hear((1, Lost(system_answers=True, evidence=None)))
    facts = case.ending.facts(case.ended(), [5.0])
    assert (facts["deaths"], facts["ended_t"]) == ((5.0, NOW_S), None)


def test_an_attempt_that_hung_ended_when_it_began_to() -> None:
    case = Case()
    case.hear(exited(0, 1))
    case.attempt.hung_since_t = 12.0
    assert case.ending.facts(case.ended(), [])["ended_t"] == 12.0


def test_where_no_attempt_had_begun_only_the_end_is_known() -> None:
    assert Case().ending.facts(Ended(None, t=5.0, reaped_t=6.0), [1.0]) == {"reaped_t": 6.0}


def test_an_attempt_began_when_all_its_ranks_had_been_started() -> None:
    case = Case()
    for number, t in ((3, 4.0), (3, 6.0), (4, 9.0)):
        case.started(number, t=t)
    assert case.ending.began_t(case.attempt) == 6.0
