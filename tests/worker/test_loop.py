"""The loop calls what is ready and what is due, once, and never what is no longer wanted."""

from __future__ import annotations

import os
import selectors

import pytest

from prefect_ft.worker.loop import Loop


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def pipes():
    ends = [os.pipe() for _ in range(2)]
    yield ends
    for end in (end for pipe in ends for end in pipe):
        try:
            os.close(end)
        except OSError:
            continue


def test_timers_come_in_their_time_and_once(loop: Loop) -> None:
    calls: list[str] = []
    loop.after("late", 0.02, lambda: calls.append("late"))
    loop.after("soon", 0.0, lambda: calls.append("soon"))
    while "late" not in calls:
        loop.step()
    assert calls == ["soon", "late"]
    assert not loop.is_set("soon")


def test_a_timer_that_is_set_stays_as_it_is(loop: Loop) -> None:
    calls: list[str] = []
    loop.after("tick", 0.0, lambda: calls.append("first"))
    loop.after("tick", 0.0, lambda: calls.append("second"))
    loop.step()
    assert calls == ["first"]


def test_a_call_may_drop_a_timer_that_is_due_as_well(loop: Loop) -> None:
    calls: list[str] = []
    loop.after("tick", 0.0, lambda: (calls.append("tick"), loop.drop("kill")))
    loop.after("kill", 0.0, lambda: calls.append("kill"))
    loop.step()
    assert calls == ["tick"]


def test_a_call_may_set_its_own_timer_again(loop: Loop) -> None:
    calls: list[int] = []

    def tick() -> None:
        calls.append(1)
        loop.after("tick", 0.0, tick)

    loop.after("tick", 0.0, tick)
    loop.step()
    loop.step()
    assert len(calls) == 2


@pytest.mark.parametrize("delay_s", [1e9, 1e300, float("inf")])
def test_a_timer_may_be_years_away(loop: Loop, pipes, delay_s: float) -> None:
    calls: list[str] = []
    read, write = pipes[0]
    loop.after("orphan", delay_s, lambda: calls.append("orphan"))
    loop.watch(read, lambda _: calls.append("read"))
    os.write(write, b"!")
    loop.step()
    assert calls == ["read"]


def test_what_was_forgotten_in_the_same_step_is_not_called(loop: Loop, pipes) -> None:
    calls: list[int] = []
    reads = [read for read, _ in pipes]

    def only_me(number: int) -> None:
        calls.append(number)
        for read in reads:
            loop.forget(read)

    for number, (read, write) in enumerate(pipes):
        os.write(write, b"!")
        loop.watch(read, lambda _, number=number: only_me(number))
    loop.step()
    assert len(calls) == 1


def test_a_descriptor_that_was_closed_and_given_out_anew_is_not_called_for_the_old_one(
    loop: Loop, pipes
) -> None:
    (first, first_in), (second, second_in) = pipes
    calls: list[str] = []

    def replace_both(_: int) -> None:
        calls.append("old")
        for read in (first, second):
            loop.forget(read)
            os.close(read)
        pipes.append(os.pipe())  # a new pipe gets the lowest free numbers: those that were just closed
        for end in pipes[-1]:
            loop.watch(end, lambda _: calls.append("new"), selectors.EVENT_READ)

    for read, write in ((first, first_in), (second, second_in)):
        os.write(write, b"!")
        loop.watch(read, replace_both)
    loop.step()
    assert calls == ["old"]


def test_watching_again_replaces_the_call(loop: Loop, pipes) -> None:
    calls: list[str] = []
    read, write = pipes[0]
    os.write(write, b"!")
    loop.watch(read, lambda _: calls.append("first"))
    loop.watch(read, lambda _: calls.append("second"))
    loop.step()
    assert calls == ["second"]
