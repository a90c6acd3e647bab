"""What becomes of losses and gradient norms that ranks report: what is recorded, and what ends an attempt."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prefect_ft.clock import PhaseClock
from prefect_ft.decide.spikes import Limits
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import OddValueLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.events import Beat, read_event
from prefect_ft.supervisor.incidents import OUT_OF_THE_USUAL, incident_of
from prefect_ft.supervisor.values import Values, WatchPlan

LIMITS = Limits(window=16, least=4, deviations=5.0)


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def beat(rank: int, *values: tuple[int, int | None, Any, Any], attempt: int = 1, **fields: Any) -> Beat:
    told = {
        "ev": "beat", "token": [1, 0, attempt], "rank": rank, "beats": 1, "t_ns": 1, "step": 5, "stage": "train",
        "stage_t_ns": 1, "stage_step": 1, "every": 1, "values": [list(value) for value in values], **fields,
    }  # fmt: skip
    event = read_event(told)
    assert isinstance(event, Beat)
    return event


class Watched:
    """An attempt of one rank on each of two workers, and the watch over it."""

    def __init__(
        self, response: Any = "act", journal: MemoryJournal | None = None, max_acts: int = 3
    ) -> None:
        self.journal = journal or MemoryJournal()
        plan = WatchPlan(response=response, limits=LIMITS, max_acts=max_acts)
        self.values = Values("train", plan, self.journal, PhaseClock())
        self.attempt = Attempt(1, {0: 0, 1: 1})

    def hear(self, *beats: Beat) -> Watched:
        for event in beats:
            self.attempt.take(event.rank, event)
            self.values.hear(self.attempt, event.rank, event)
        return self

    @property
    def found(self) -> list[tuple[int, int, str, bool | None]]:
        lines = [line for line in self.journal.lines if isinstance(line, OddValueLine)]
        return [(line.rank, line.step, line.text, line.acted) for line in lines]


NAN = beat(1, (7, 33, "nan", 0.5), sample="shard-7")
AT_33 = (1, 33, "loss is NaN at step 33", True)


def test_what_ends_an_attempt_is_the_incident_that_a_failure_of_the_script_would_be() -> None:
    watched = Watched().hear(NAN)
    assert watched.found == [AT_33]
    assert watched.attempt.over
    assert incident_of(watched.attempt, 9.0) == Incident(
        t=9.0, kind="exit", attempt=1, worker=1, failure_class="numeric", blame="none",
        signature=OUT_OF_THE_USUAL, reached=33, reached_every=1, sample="shard-7", stage="train", reported=(1,),
        evidence=Evidence(rule=OUT_OF_THE_USUAL, text="loss is NaN at step 33", file="rank1"),
    )  # fmt: skip


def test_a_rank_that_fails_by_itself_says_more() -> None:
    watched = Watched().hear(NAN)
    exited = read_event(
        {
            "ev": "exited",
            "token": [1, 0, 1],
            "rank": 1,
            "code": 1,
            "signal": None,
            "t_ns": 5,
            "oom": False,
            "ends": True,
        }
    )
    assert exited is not None
    watched.attempt.take(1, exited)
    assert incident_of(watched.attempt, 9.0).exit_code == 1


def test_all_that_have_it_are_told() -> None:
    watched = Watched().hear(NAN, beat(0, (3, 33, "nan", None)))
    assert incident_of(watched.attempt, 9.0).reported == (0, 1)
    assert incident_of(watched.attempt, 9.0).worker == 1, "the first one"


@pytest.mark.parametrize(("every", "reached"), [(None, None), (1, 33), (10, 33), (11, None)])
def test_a_step_is_known_only_where_steps_are_told_often(every: int | None, reached: int | None) -> None:
    watched = Watched().hear(beat(0, (1, 33, "inf", None), every=every))
    assert incident_of(watched.attempt, 9.0).reached == reached


def test_it_is_only_recorded_where_the_job_wants_no_more() -> None:
    watched = Watched("report").hear(NAN)
    assert (watched.found, watched.attempt.over) == ([(*AT_33[:3], False)], False)
    assert Watched("off").hear(NAN).found == []


def test_a_jump_is_found_in_the_values_of_each_rank_by_itself() -> None:
    usual = [(number, number, 2.0, None) for number in range(1, 9)]
    others = [(number, number, 50.0, None) for number in range(1, 9)]
    watched = Watched().hear(beat(0, *usual), beat(1, *others), beat(0, (9, 9, 50.0, None)))
    assert [each[:2] for each in watched.found] == [(0, 9)]


def test_what_was_heard_before_is_no_news() -> None:
    """An agent tells its last values again to a new connection."""
    assert Watched().hear(NAN, NAN).found == [AT_33]


def test_who_comes_back_records_nothing_twice_and_knows_it_again() -> None:
    watched = Watched().hear(NAN)
    again = Watched(journal=watched.journal).hear(NAN)
    assert again.found == [AT_33]
    assert again.attempt.over


def test_values_of_another_attempt_are_nobodys() -> None:
    assert Watched().hear(beat(1, (7, 33, "nan", None), attempt=2)).found == []


def test_a_value_without_a_step_is_passed_over() -> None:
    assert Watched().hear(beat(1, (7, None, "nan", None))).found == []


def test_only_so_many_attempts_are_ended() -> None:
    journal = MemoryJournal()
    for number in range(2):
        watched = Watched(journal=journal, max_acts=2).hear(NAN)
        assert watched.attempt.over
        journal.append_incident(incident_of(watched.attempt, float(number)), n=number + 1, ended_t=0.0)
    third = Watched(journal=journal, max_acts=2).hear(beat(0, (1, 40, "nan", None)))
    assert not third.attempt.over
    assert third.found[-1] == (0, 40, "loss is NaN at step 40", False)


def test_a_training_that_never_calms_down_does_not_fill_the_journal() -> None:
    watched = Watched("report")
    for number in range(2200):
        watched.hear(beat(0, (number + 1, number, "nan" if number % 2 else 1.0, None)))
    assert len(watched.found) == 1000


@pytest.mark.parametrize("value", [math.inf, True, "high", [1], {}])
def test_what_is_no_value_is_no_event(value: Any) -> None:
    with pytest.raises(ValueError, match="values must be"):
        beat(0, (1, 1, value, None))
