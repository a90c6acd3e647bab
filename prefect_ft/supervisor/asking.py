"""Waits for agents' answers, each with its time limit. Pure.

`look` is called whenever something has happened, or `due_s` has come, by the driver's clock. While the connection to
a worker is being restored the wait continues: that time does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prefect_ft.supervisor.events import Attached, Diagnosis, Event, Stopped
from prefect_ft.supervisor.roster import Roster, WorkerGoneError


class Wait(Protocol):
    """A wait for something."""

    @property
    def due_s(self) -> float | None:
        """When `look` has to be called though nothing has happened; None: never."""

    def look(self, roster: Roster, now_s: float, /) -> bool:
        """Return whether it is over; raises WorkerGoneError."""


class Until:
    """A condition, or a time."""

    def __init__(self, condition: Callable[[], bool], due_s: float | None = None) -> None:
        self._condition, self.due_s = condition, due_s

    def look(self, _roster: Roster, now_s: float) -> bool:
        return self._condition() or (self.due_s is not None and now_s >= self.due_s)


class Answers:
    """One of several kinds of answers from each worker; a worker that does not answer counts as gone."""

    def __init__(
        self, numbers: Iterable[int], kinds: tuple[type[Event], ...], now_s: float, within_s: float
    ) -> None:
        self._missing = list(reversed(tuple(numbers)))
        self._kinds, self._within_s = kinds, within_s
        self._breaks = -1
        self.due_s = now_s + within_s

    def look(self, roster: Roster, now_s: float) -> bool:
        """Check all workers only where one of them may be gone: there may be thousands."""
        while self._missing and roster.answer(self._missing[-1], *self._kinds) is not None:
            self._missing.pop()
        if not self._missing:
            return True
        if roster.breaks == self._breaks and now_s < self.due_s:
            return False
        unanswered = [each for each in self._missing if roster.answer(each, *self._kinds) is None]
        for number in sorted(unanswered):
            roster.require(number)
        if any(roster.is_being_reached(number) for number in unanswered):
            self.due_s = now_s + self._within_s
            return False
        if now_s >= self.due_s:
            raise WorkerGoneError(min(unanswered), "its agent does not answer")
        self._breaks = roster.breaks
        return False


class Adoption:
    """An answer from each agent that was found; one that does not answer in time is left out."""

    def __init__(self, numbers: Iterable[int], now_s: float, within_s: float) -> None:
        self._numbers = tuple(numbers)
        self.due_s = now_s + within_s

    def look(self, roster: Roster, now_s: float) -> bool:
        silent = [each for each in self._numbers if roster.answer(each, Attached) is None]
        if now_s < self.due_s and not all(roster.is_gone(each) for each in silent):
            return False
        for number in silent:
            roster.let_go(number)
        return True


class Diagnoses:
    """Diagnoses from agents, within the time; an agent that ends the attempt by itself is not waited for."""

    def __init__(self, numbers: Iterable[int], now_s: float, within_s: float) -> None:
        self._numbers = tuple(numbers)
        self.due_s = now_s + within_s

    def look(self, roster: Roster, now_s: float) -> bool:
        owing = (each for each in self._numbers if roster.answer(each, Diagnosis) is None)
        return now_s >= self.due_s or not any(roster.may_answer(each) for each in owing)


class AllStopped:
    """A report from each agent that all ranks have ended; one that sends neither that nor output is unusable.

    Checked one after the other: of thousands that answer in any order, each is checked a few times.
    """

    def __init__(self, numbers: Sequence[int], now_s: float, grace_s: float, within_s: float) -> None:
        self._left = list(reversed(numbers))
        self._since_s, self._within_s = now_s + grace_s, within_s
        self.due_s = self._since_s + within_s

    def look(self, roster: Roster, now_s: float) -> bool:
        while self._left:
            number = self._left[-1]
            if roster.is_present(number) and roster.answer(number, Stopped) is None:
                self.due_s = max(self._since_s, roster.printed_s(number)) + self._within_s
                if now_s < self.due_s:
                    return False
                roster.give_up(number, "its agent does not answer")
            self._left.pop()
        return True
