"""Getting hold of a model directory, and keeping it: one orchestrator for one run at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_ft.clock import BootClock
from prefect_ft.errors import ConfigError, LeaseLostError
from prefect_ft.formats import check_run
from prefect_ft.run.identity import RUNS, Run, new_run, read_run
from prefect_ft.run.lease import RENEWALS, Claim, Claims, Lease, take, wait_until_free
from prefect_ft.run.lookup import latest_run
from prefect_ft.run.ownership import check_own
from prefect_ft.run.systems import HeldSystems

LISTEN_S = 1.0
"""How often a holder checks for a request to cancel."""

LEASE_TIME_S = 30.0
"""How long a holder on another machine may be silent before it counts as dead."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A run that this process may act on, until another one takes a higher epoch."""

    run: Run
    lease: Lease
    systems: HeldSystems = field(default_factory=HeldSystems)

    @contextmanager
    def kept(
        self,
        *,
        on_lost: Callable[[LeaseLostError], None],
        on_cancel: Callable[[str, bool], None],
        each_time: Callable[[], None],
    ) -> Iterator[None]:
        """Renew the lease while entered, and release it at exit; the callbacks run in a thread of their own.

        `on_cancel` is called once, with the source of a request to cancel and whether to save a checkpoint first,
        also for a request from before; `each_time` about every second.
        """
        over = threading.Event()
        thread = threading.Thread(
            target=self._keep,
            args=(over, on_lost, on_cancel, each_time),
            name="prefect-ft-lease",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.lease.release()
            self.systems.release()

    def _keep(
        self,
        over: threading.Event,
        on_lost: Callable[[LeaseLostError], None],
        on_cancel: Callable[[str, bool], None],
        each_time: Callable[[], None],
    ) -> None:
        is_cancel_heard = False
        while True:
            with suppress(OSError):  # a full disk: the epochs still fence off other orchestrators
                try:
                    self.lease.renew()
                except LeaseLostError as error:
                    on_lost(error)
                    return
                if not is_cancel_heard and (wish := self.run.cancel_wanted()) is not None:
                    is_cancel_heard = True
                    on_cancel(*wish)
            each_time()
            if over.wait(min(LISTEN_S, self.lease.time_s / RENEWALS)):
                return


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A model directory without a holder when it was checked; `previous` is the run that was held last."""

    model_dir: Path
    previous: Run | None
    _claims: Claims
    _after: Claim | None
    _time_s: float
    _clock: BootClock

    def begin(self, run_id: str, job_name: str, **fields: Any) -> Holding:
        """Begin a run; raises RunHeldError if another process was faster, ConfigError if nothing can be written."""
        lease = self._take(run_id)
        run = new_run(self.model_dir, job_name, run_id=run_id, **fields)
        return Holding(run, lease)

    def resume(self) -> Holding:
        """Take the previous run.

        Raises RunHeldError if another process was faster, ConfigError if it is a copy of a run, another user's, or
        of a later version that this one cannot read.
        """
        run = self.previous
        assert run is not None
        check_run(run.record(), str(run.root))
        try:
            check_own(run)
        except OSError as exc:
            raise _unwritable(self.model_dir, exc) from exc
        holding = Holding(run, self._take(run.run_id))
        run.taken_up()
        return holding

    def _take(self, run_id: str) -> Lease:
        try:
            return take(self._claims, self._after, run_id, self._time_s, self._clock)
        except OSError as exc:
            raise _unwritable(self.model_dir, exc) from exc


def vacancy(model_dir: Path, time_s: float = LEASE_TIME_S, clock: BootClock | None = None) -> Vacancy:
    """Return a model directory once it has no holder; waits for one that may be dead, raises RunHeldError."""
    clock = clock or BootClock()
    claims = Claims(model_dir / RUNS)
    try:
        after = wait_until_free(claims, time_s, clock)
        # The holder of an epoch may have died before it created its run: then the run before it is the last.
        previous = read_run(claims.root / after.run_id) if after is not None and after.run_id else None
        previous = previous or latest_run(model_dir)
    except OSError as exc:
        raise _unwritable(model_dir, exc) from exc
    return Vacancy(model_dir, previous, claims, after, time_s, clock)


def holder_of(run: Run) -> str | None:
    """Return the present holder of a run, without waiting; None: there is none. Raises OSError."""
    claims = Claims(run.model_dir / RUNS)
    claim = claims.highest()
    if claim is None or claim.run_id != run.run_id:
        return None
    pulse = claims.pulse(run.run_id)
    if pulse.get("epoch") == claim.epoch and pulse.get("released"):
        return None
    if claim.owner is not None and claim.owner.is_gone():
        return None
    return str(claim.owner or "another process")


def _unwritable(model_dir: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"{model_dir} cannot be written: {exc.strerror}", field="model_dir")
