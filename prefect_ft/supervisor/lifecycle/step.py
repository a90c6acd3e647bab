"""The steps that follow when the wait of a state is over: another state, or another part's first step."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_ft.model import Decision
from prefect_ft.supervisor.asking import Wait
from prefect_ft.supervisor.failures import AttemptFailedError, HandedOverError
from prefect_ft.supervisor.judging import Obstacle
from prefect_ft.supervisor.lifecycle.states import State


@dataclass(frozen=True, slots=True)
class Go:
    """Be in a state until its wait is over; None: until the next attempt is begun."""

    state: State
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class Enact:
    """Carry out a decision; None: begin the phase."""

    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch the attempt: its ranks run."""


@dataclass(frozen=True, slots=True)
class Halt:
    """End whatever runs."""


@dataclass(frozen=True, slots=True)
class Meet:
    """Deal with an obstacle to the decision."""

    obstacle: Obstacle


@dataclass(frozen=True, slots=True)
class Clear:
    """End what may run of an attempt that is not known to have begun, without a decision about it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The attempt has ended; None: and with it the phase, complete."""

    outcome: AttemptFailedError | HandedOverError | None


Step = Go | Enact | Watch | Halt | Meet | Clear | Finish
