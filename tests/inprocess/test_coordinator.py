"""Rounds and keys, message by message: who waits, who is told, and what ends an iteration."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.worker.coordinator import Coordinator

FAULT = {"rank": 1, "kind": "exception", "text": "boom"}


class Told:
    """A coordinator of `size` ranks, with what it has told whom since the last look."""

    def __init__(self, size: int) -> None:
        self.size, self.now_s = size, 0.0
        self._told: list[tuple[str, Any]] = []
        self.dropped: list[str] = []
        self.coordinator = Coordinator(
            lambda whom, message: self._told.extend((who, message) for who in whom),
            lambda whom, iteration: self._told.extend((who, iteration) for who in whom),
            self.dropped.append,
        )
        for rank in range(size):
            self.say(f"alert{rank}", op="listen", rank=rank)
        self.told()

    def say(self, who: str, **message: Any) -> None:
        self.coordinator.hear(who, message, self.now_s)

    def told(self) -> dict[str, Any]:
        told, self._told = dict(self._told), []
        return told

    def enter(self, iteration: int, *ranks: int) -> None:
        for rank in ranks or range(self.size):
            self.say(
                f"rank{rank}",
                op="enter",
                rank=rank,
                size=self.size,
                iteration=iteration,
                step=None,
                without=[],
                barrier_s=10,
            )

    def fault(self, iteration: int = 0, **fault: Any) -> None:
        self.say("rank1", op="fault", iteration=iteration, **{**FAULT, **fault})

    def wait(self, op: str, *ranks: int, active: int = 2) -> None:
        for rank in ranks:
            self.say(f"rank{rank}", op=op, rank=rank, iteration=0, active=active, completion_s=5)


def began(iteration: int, *ranks: int, size: int = 2, fault: Any = None) -> dict[str, Any]:
    without = [rank for rank in range(size) if rank not in ranks]
    return {"ev": "round", "iteration": iteration, "without": without, "step": None, "fault": fault}


@pytest.fixture
def two() -> Told:
    """Two ranks in iteration 0."""
    told = Told(2)
    told.enter(0)
    assert told.told() == {"rank0": began(0, 0, 1), "rank1": began(0, 0, 1)}
    return told


def test_nobody_begins_before_all_are_there() -> None:
    told = Told(2)
    told.enter(0, 1)
    assert told.told() == {}


def test_who_never_comes_is_not_waited_for_longer_than_allowed() -> None:
    told = Told(2)
    told.enter(0, 1)
    assert told.coordinator.deadline_s == 10
    told.coordinator.expire(10)
    assert told.told() == {"rank1": began(0, 1)}
    assert told.dropped == ["alert0"]


def test_a_fault_is_told_to_all_once_and_one_of_an_iteration_that_ended_to_nobody(two: Told) -> None:
    two.fault()
    assert two.told() == {"alert0": 0}, "rank 1 has left the function already"
    two.fault(kind="hang")
    assert two.told() == {}
    two.enter(1)
    assert two.told()["rank0"] == began(1, 0, 1, fault=FAULT)
    two.fault(iteration=0)
    assert two.told() == {}


def test_what_a_watch_tells_interrupts_its_own_rank_too(two: Told) -> None:
    two.say("alert1", op="fault", iteration=0, **{**FAULT, "kind": "hang"})
    assert two.told() == {"alert0": 0, "alert1": 0}


def test_a_connection_that_closes_is_a_lost_rank(two: Told) -> None:
    two.coordinator.left("rank1", 0.0)
    assert two.told() == {"alert0": 0}
    two.enter(1, 0)
    assert two.told()["rank0"]["fault"]["kind"] == "lost"
    two.enter(1, 1)
    assert two.told()["rank1"]["excluded"] is True


def test_a_rank_lost_between_two_iterations_is_waited_for_no_more(two: Told) -> None:
    two.fault()
    two.enter(1, 0)
    two.told()
    two.coordinator.left("alert1", 0.0)
    assert two.told() == {"rank0": began(1, 0, fault=FAULT)}


def test_all_that_run_have_to_complete_and_the_reserve_is_told(two: Told) -> None:
    two.wait("reserve", 1)
    assert two.told() == {}
    two.wait("done", 0, active=1)
    assert two.told() == {f"rank{rank}": {"ev": "complete"} for rank in range(2)}
    assert two.coordinator.over == "completed"


def test_a_spare_that_comes_late_to_the_end_is_told_too(two: Told) -> None:
    two.wait("done", 0, active=1)
    two.wait("reserve", 1)
    assert two.told()["rank1"] == {"ev": "complete"}


def test_who_has_completed_is_called_back_by_a_fault_and_by_the_time_out(two: Told) -> None:
    two.wait("done", 0)
    assert two.coordinator.deadline_s == 5
    two.coordinator.expire(5)
    assert two.told()["rank0"] == {"ev": "fault"}
    two.enter(1)
    assert two.told()["rank0"]["fault"]["kind"] == "completion_timeout"


def test_giving_up_reaches_who_runs_and_who_waits(two: Told) -> None:
    two.wait("reserve", 0)
    two.say("rank1", op="give_up", why="enough")
    assert two.told() == {
        "rank0": {"ev": "over", "why": "enough", "excluded": False},
        "alert0": 0,
        "alert1": 0,
    }


def test_keys_are_waited_for_and_end_with_their_iteration(two: Told) -> None:
    two.say("reader", op="get", keys=["a", "b"], iteration=0)
    two.say("writer", op="set", keys=["a"], value="1", iteration=0)
    assert "reader" not in two.told()
    two.say("writer", op="add", keys=["b"], value="2", iteration=0)
    assert two.told()["reader"] == {"ev": "values", "values": ["1", "2"]}
    two.say("reader", op="get", keys=["c"], iteration=0)
    two.fault()
    assert two.told()["reader"] == {"ev": "stale"}
    two.enter(1)
    two.say("reader", op="count", keys=["a"], iteration=1)
    two.say("late", op="set", keys=["a"], value="1", iteration=0)
    told = two.told()
    assert (told["reader"], told["late"]) == ({"ev": "value", "value": "0"}, {"ev": "stale"})


@pytest.mark.parametrize(
    ("held", "expected", "now"), [(None, "", "new"), ("old", "old", "new"), ("other", "old", "other")]
)
def test_swap(two: Told, held: str | None, expected: str, now: str) -> None:
    if held is not None:
        two.say("writer", op="set", keys=["k"], value=held, iteration=0)
    two.say("writer", op="swap", keys=["k"], expected=expected, value="new", iteration=0)
    assert two.told()["writer"] == {"ev": "value", "value": now}


def test_delete_says_whether_it_was_there(two: Told) -> None:
    two.say("writer", op="set", keys=["k"], value="v", iteration=0)
    for number in ("1", "0"):
        two.say("writer", op="delete", keys=["k"], iteration=0)
        assert two.told()["writer"] == {"ev": "value", "value": number}


@pytest.fixture
def three() -> Told:
    """Three ranks in iteration 0."""
    told = Told(3)
    told.enter(0)
    told.told()
    return told


def standing(told: Told) -> tuple[list[int], list[int]]:
    return sorted(told.coordinator.bound_ranks), sorted(told.coordinator.excused)


def test_who_is_lost_stays_bound_until_the_others_have_done_without(three: Told) -> None:
    assert standing(Told(2)) == ([], [])
    assert standing(three) == ([0, 1, 2], [])
    three.coordinator.left("rank1", 0.0)
    three.enter(1, 0, 2)
    assert standing(three) == ([0, 1, 2], [])
    three.coordinator.left("rank2", 0.0)
    assert standing(three) == ([0, 1, 2], [1])


@pytest.mark.parametrize(
    ("end", "excused"),
    [
        pytest.param({"op": "give_up", "why": "too few"}, [], id="given-up"),
        pytest.param(
            {"op": "done", "rank": 0, "iteration": 1, "active": 1, "completion_s": 5}, [1, 2], id="completed"
        ),
    ],
)
def test_when_a_call_is_over_nobody_is_bound(three: Told, end: dict[str, Any], excused: list[int]) -> None:
    for rank in (1, 2):
        three.coordinator.left(f"rank{rank}", 0.0)
    three.enter(1, 0)
    three.say("rank0", **end)
    assert standing(three) == ([], excused)


def test_a_call_that_all_have_left_is_over(two: Told) -> None:
    for rank in (0, 1):
        two.coordinator.left(f"rank{rank}", 0.0)
    assert (two.coordinator.over, standing(two)) == ("all ranks have gone", ([], []))


def test_who_was_lost_in_an_earlier_call_is_not_waited_for() -> None:
    told = Told(3)
    for rank in (0, 2):
        fields = {"size": 3, "iteration": 0, "step": None, "without": [1], "barrier_s": 10}
        told.say(f"rank{rank}", op="enter", rank=rank, **fields)
    assert told.told()["rank0"] == began(0, 0, 2, size=3)


def test_who_comes_to_a_call_that_is_over_is_left_out() -> None:
    said: list[tuple[str, Any]] = []
    over = Coordinator(
        lambda whom, message: said.extend((who, message) for who in whom),
        lambda whom, iteration: None,
        lambda who: None,
        is_over=True,
    )
    over.hear("alert2", {"op": "listen", "rank": 2}, 0.0)
    enter = {"rank": 2, "size": 3, "iteration": 0, "step": None, "without": [], "barrier_s": 10}
    over.hear("rank2", {"op": "enter", **enter}, 0.0)
    why = "rank 2 was left out: it was lost, or too late"
    assert said == [("rank2", {"ev": "over", "why": why, "excluded": True})]
