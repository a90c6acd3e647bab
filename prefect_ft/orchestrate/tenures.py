"""The tenures of a run: got from the scheduler, watched until they end, and followed by the next one.

What is asked of a scheduler is its kind's; what a hand-over does to ranks and journal is the supervisor's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from prefect_ft.backends.kind import Place, Tenure, kind_of
from prefect_ft.clock import epoch_now, utc_at
from prefect_ft.config import Infrastructure
from prefect_ft.errors import BackendError
from prefect_ft.journal.records import Line, TenureLine
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor import PhasePlan, StopRequest
from prefect_ft.supervisor.moving import Move, left_behind, was_left_in_order, workers_in

LOOK_S = 60.0
"""How often it is looked, at most, whether a tenure's end has been moved once it is near."""


class Tenancy:
    """The tenure that a phase is executed in."""

    def __init__(self, infrastructure: Infrastructure, place: Place, tenure: Tenure) -> None:
        self._kind, self._infrastructure, self._place = kind_of(infrastructure), infrastructure, place
        self._tenure = tenure
        self._has_grown = False

    @property
    def tenure(self) -> Tenure:
        """The tenure, as it was known last."""
        return self._tenure

    @property
    def line(self) -> TenureLine:
        """Return what the journal says of it."""
        ends_s = self._tenure.ends_s
        until = None if ends_s is None else utc_at(ends_s)
        return TenureLine(name=self._tenure.name, systems=self._tenure.systems, until=until)

    def move(self, lines: Sequence[Line]) -> Move | None:
        """Return how a phase comes here that was in another tenure; None: it was not."""
        before, here = left_behind(lines, self._tenure.name), self._tenure
        if before is None:
            return None
        if was_left_in_order(lines):
            return Move(before=before, name=here.name, systems=here.systems)
        end = self._kind.end_of_tenure(self._infrastructure, self._place, before)
        return Move(
            before=before,
            name=here.name,
            systems=here.systems,
            kind=end.kind,
            reason=end.reason,
            failure_class=end.failure_class,
            lost=end.systems,
        )

    def queue_successor(self) -> None:
        """Have the next tenure queued; where that fails, the run ends with this one unless it is resumed by hand."""
        try:
            name = self._kind.succeed(self._infrastructure, self._place, self._tenure)
        except BackendError as exc:
            tell(Notice(text=f"{self._tenure.name} will have no successor: {exc}"))
            return
        if name is not None:
            tell(Notice(text=f"{name} is queued to continue after {self._tenure.name}"))

    def cancelled(self) -> str | None:
        """Return why the ended tenure was cancelled; None: it was not."""
        end = self._kind.end_of_tenure(self._infrastructure, self._place, self._tenure.name)
        return end.reason if end.kind == "cancelled" else None

    def leave(self, stop: StopRequest) -> bool:
        """End the tenure: keep its systems where it has grown or lost a part, else give them back.

        Return whether this process continues in the next one.
        """
        may_last = (self._has_grown and not stop.tenure_is_taken) or stop.part_is_taken
        if may_last and not stop.was_terminated and self._kind.join(*self._asked_about):
            return True
        self._kind.release(*self._asked_about)
        return not self._tenure.contains_us

    @property
    def _asked_about(self) -> tuple[Infrastructure, Place, Tenure]:
        return self._infrastructure, self._place, self._tenure

    @contextmanager
    def watched(
        self, plan: PhasePlan, stop: StopRequest, lines: Callable[[], Sequence[Line]]
    ) -> Iterator[None]:
        """Ask for the hand-over of the phase, while entered, when the tenure is about to end, or has grown.

        `lines` are the phase's journal.
        """

        def grown(what: str) -> None:
            if stop.hands_over is None:
                self._has_grown = True
                stop.hand_over(what)

        growth: AbstractContextManager[None] = nullcontext()
        if plan.has_checkpoints:
            growth = self._kind.growing(*self._asked_about, lambda: workers_in(lines()), grown)
        margin_s = self._tenure.reserve_s + plan.stop_grace_s
        margin_s += plan.on_demand.grace_s if plan.on_demand is not None else 0.0
        left = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(margin_s, left, stop), name="prefect-ft-tenure", daemon=True
        )
        watch.start()
        stop.hands_over_on_sigterm = self._tenure.contains_us
        try:
            with growth:
                yield
            if self._has_grown and not stop.tenure_is_taken:
                stop.take_over()  # the phase has ended as it grew, and the next one is in the same systems
        finally:
            # Between two tenures of this process SIGTERM means the same.
            stop.hands_over_on_sigterm = self._tenure.contains_us and self._has_grown
            left.set()
            watch.join()

    def _watch(self, margin_s: float, left: threading.Event, stop: StopRequest) -> None:
        while (ends_s := self._tenure.ends_s) is not None:
            left_s = ends_s - margin_s - epoch_now()
            if left.wait(max(0.0, min(left_s, LOOK_S))):
                return
            if left_s > LOOK_S:
                continue  # suspends of the machine, and clocks that are set, are noticed
            self._tenure = self._kind.renewed(self._infrastructure, self._place, self._tenure)
            now_ends_s = self._tenure.ends_s
            if now_ends_s is not None and now_ends_s - margin_s <= epoch_now():
                stop.hand_over(f"{self._tenure.name} ends at {utc_at(now_ends_s)}")
                return
