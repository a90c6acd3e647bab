"""The state that the parts of a lifecycle share."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.model import Decision
from prefect_ft.supervisor.attempt import Attempt, Start
from prefect_ft.supervisor.beginning import Beginning
from prefect_ft.supervisor.gang import Gang
from prefect_ft.supervisor.hangs import Hangs
from prefect_ft.supervisor.judging import Judging
from prefect_ft.supervisor.launch import PhasePlan
from prefect_ft.supervisor.listening import Listener
from prefect_ft.supervisor.parts import Parts
from prefect_ft.supervisor.remote import Remote
from prefect_ft.supervisor.reports import Reports
from prefect_ft.supervisor.resuming import Resuming
from prefect_ft.supervisor.roster import Roster
from prefect_ft.supervisor.saves import Saves
from prefect_ft.supervisor.stopping import StopRequest
from prefect_ft.supervisor.upkeep import Upkeep
from prefect_ft.worker.protocol import Token


@dataclass(slots=True)
class Context:
    """One phase: its state, and the services for it. `epoch` is the orchestrator's.

    `free_since_s` is when the orchestrator before gave its last sign of life, in seconds of CLOCK_BOOTTIME; None:
    unknown, or there was none.
    """

    plan: PhasePlan
    epoch: int
    free_since_s: float | None
    roster: Roster
    gang: Gang
    listener: Listener
    saves: Saves
    parts: Parts | None
    remote: Remote | None
    reports: Reports
    hangs: Hangs
    upkeep: Upkeep
    beginning: Beginning
    resuming: Resuming
    judging: Judging
    journal: MemoryJournal
    clock: PhaseClock
    stop: StopRequest
    now_s: float = 0.0
    """The driver's clock."""
    is_ahead: bool = False
    """Whether the attempt has not been requested yet: an earlier orchestrator's work is being adopted."""
    decision: Decision | None = None
    """The decision that is being carried out; None: the phase begins."""
    number: int = 0
    """The last attempt's, from 1; 0: none has begun."""
    last_started: int | None = None
    """The last attempt whose ranks started; None: none."""
    placement: tuple[str, ...] = ()
    """The systems of its workers, by worker."""

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that runs: what agents report is about it."""
        return self.listener.attempt

    @property
    def running(self) -> Attempt:
        """The attempt, where one is known to run."""
        attempt = self.listener.attempt
        assert attempt is not None
        return attempt

    @property
    def token(self) -> Token:
        """The last attempt's token: agents refuse an older one's orders."""
        return self.epoch, self.plan.phase_index, self.number

    @property
    def wants_stop(self) -> bool:
        """Whether the run is to stop or be handed over, and the attempt to be stopped has been requested."""
        is_wanted = self.stop.wanted is not None or self.stop.hands_over is not None
        return is_wanted and not self.is_ahead

    def set_out(self, number: int, placement: tuple[str, ...], start: Start) -> None:
        """Listen to an attempt from now on."""
        self.placement = placement
        self.upkeep.trust(placement)
        attempt = self.listener.attempt = self.beginning.attempt(number, placement, start)
        if self.remote is not None:
            self.remote.begin(self.resuming.all_deaths())
        self.hangs.begin(attempt)
