"""Reports what happens in a run to its observers: the live view, Prefect's reporter, a test.

Watchers are called on the supervisor's thread and must return at once; what takes time belongs in a
queue of their own. A watcher never changes what is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from prefect_ft.model import Decision, Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A phase begins; `index` counts from 0 of `phases`."""

    run_id: str
    phase: str
    index: int
    phases: int
    directory: Path
    target_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """All ranks of an attempt have been started, `resume_step` of `None` means from scratch.

    `counted`: it is the number of a version.
    """

    phase: str
    attempt: int
    ranks: int
    placement: tuple[str, ...]
    resume_step: int | None
    counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReached:
    """A rank reported a step above all reported before in this attempt."""

    phase: str
    attempt: int
    step: int
    stage: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointVerified:
    """A checkpoint is complete and can be resumed from. `counted`: its step is the number of a version."""

    phase: str
    attempt: int
    step: int
    path: str
    counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision is in the journal and is about to be carried out."""

    phase: str
    attempt: int
    incident: Incident
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A decision waits for a person, until a time in UTC."""

    phase: str
    attempt: int
    decision: Decision
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded:
    """A phase is over; `status` is `completed`, `failed` or `cancelled`."""

    phase: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a person should know, without an effect on the run."""

    text: str


Fact = (
    PhaseStarted
    | AttemptStarted
    | StepReached
    | CheckpointVerified
    | Proposed
    | Decided
    | PhaseEnded
    | Notice
)
Observer = Callable[[Fact], None]

_log = logging.getLogger(__name__)
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("prefect_ft_observers", default=())


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every run that this context executes."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


def tell(fact: Fact) -> None:
    """Tell all observers of the current context; one that fails is logged, and the run goes on."""
    for observer in _observers.get():
        try:
            observer(fact)
        except Exception:
            _log.exception("%s could not be shown", type(fact).__name__)


class Replay:
    """An observer that passes all facts on to another one, which may come late and gets those from the beginning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._missed: list[Fact] = []
        self._observer: Observer | None = None

    def take(self, fact: Fact) -> None:
        """Take one fact; of steps the newest is enough."""
        with self._lock:
            if self._observer is not None:
                self._observer(fact)
                return
            if isinstance(fact, StepReached) and self._missed and isinstance(self._missed[-1], StepReached):
                self._missed.pop()
            self._missed.append(fact)

    @contextmanager
    def passed_on(self, observer: Observer) -> Iterator[None]:
        """Tell `observer` what it has missed, and everything from now on, while entered."""
        with self._lock:
            for fact in self._missed:
                observer(fact)
            self._missed, self._observer = [], observer
        try:
            yield
        finally:
            with self._lock:
                self._observer = None
