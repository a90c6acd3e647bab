"""The lease: which orchestrator may act on a model directory. The one with the highest epoch, and no other.

An epoch is a file, `.prefect-ft/epochs/<N>`, created atomically and only once (a hard link), on local disks and
on NFS alike; epochs only grow. The holder renews `lease.json` in its run's directory. Another process waits until
that has not changed for the lease's time, by its own clock; less only if it can see that the holder has ended.
Safety does not depend on time: before each action a holder checks for a higher epoch, agents obey the highest
that they know, and its journal is another file.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_ft.clock import BootClock
from prefect_ft.errors import LeaseLostError, RunHeldError
from prefect_ft.files import read_json, write_json
from prefect_ft.run.owner import Owner, boot_id, this_process

EPOCHS = "epochs"
LEASE = "lease.json"

RENEWALS = 5
"""How often a lease is renewed in its time."""

_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK))
"""Errors of a file system without hard links."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One epoch: its owner, its run, and when it was taken, in seconds of that machine's CLOCK_BOOTTIME."""

    epoch: int
    run_id: str
    owner: Owner | None
    at_s: float


class Claims:
    """The epochs of a model directory; `root` is its `.prefect-ft`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._directory = root / EPOCHS

    def highest(self) -> Claim | None:
        """Return the claim with the highest epoch; None: there has been none. Raises OSError."""
        epoch = self.highest_epoch()
        if not epoch:
            return None
        record = read_json(self._path(epoch))  # whole, unless the file system has no hard links
        return Claim(
            epoch,
            str(record.get("run", "")),
            Owner.from_json(record.get("owner")),
            float(record.get("at_s", 0.0)),
        )

    def highest_epoch(self) -> int:
        """Return the highest epoch, 0 if there is none. Lists the directory: a lookup of one name may be cached."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdigit()), default=0)

    def take(self, claim: Claim) -> bool:
        """Take an epoch; False: it is taken. Raises OSError, and then it may have been taken all the same."""
        owner = claim.owner.to_json() if claim.owner else None
        content = {"epoch": claim.epoch, "run": claim.run_id, "owner": owner, "at_s": claim.at_s}
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = self._directory / f".{uuid.uuid4().hex}"
        try:
            self._write(scratch, content)
            return self._link(scratch, self._path(claim.epoch))
        finally:
            with suppress(OSError):
                scratch.unlink()

    def pulse(self, run_id: str) -> Mapping[str, Any]:
        """Return what the holder wrote last in its run's directory."""
        return read_json(self.root / run_id / LEASE)

    def beat(self, run_id: str, pulse: Mapping[str, Any]) -> None:
        """Write a sign of life; raises OSError."""
        write_json(self.root / run_id / LEASE, pulse)

    def _path(self, epoch: int) -> Path:
        return self._directory / f"{epoch:06d}"

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        with path.open("x") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())

    def _link(self, scratch: Path, target: Path) -> bool:
        """Link a file to its name; after a lost reply of the server, the count of links tells whether it worked."""
        try:
            os.link(scratch, target)
        except FileExistsError:
            return scratch.stat().st_nlink == 2
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            return self._create(target, scratch.read_text())
        return True

    def _create(self, target: Path, text: str) -> bool:
        """Create the file without hard links: a reader of a torn one sees a claim without owner, and waits."""
        try:
            with target.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True


class Lease:
    """The holder's side of a claim."""

    def __init__(
        self,
        claims: Claims,
        claim: Claim,
        time_s: float,
        clock: BootClock,
        *,
        free_since_s: float | None = None,
    ) -> None:
        """`time_s` is how long a holder may be silent before it counts as dead.

        `free_since_s` is when the holder before gave its last sign of life, as `last_sign_s` returns it.
        """
        self.claim, self.time_s, self.free_since_s = claim, time_s, free_since_s
        self._claims, self._clock = claims, clock
        self._beats = 0

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    def check(self) -> None:
        """Raise LeaseLostError if another orchestrator may act now. Call it before every action.

        Ignores a directory that cannot be read: agents and journal have their own fences.
        """
        with suppress(OSError):
            highest = self._claims.highest_epoch()
            if highest > self.epoch:
                raise LeaseLostError(
                    f"an orchestrator of epoch {highest} has taken over from this one, of epoch {self.epoch}"
                )

    def renew(self) -> None:
        """Write a sign of life; raises LeaseLostError, and OSError where it cannot be written."""
        self.check()
        self._write(released=False)

    def release(self) -> None:
        """Release the lease, so that the next orchestrator need not wait; does nothing once it is lost."""
        with suppress(OSError, LeaseLostError):
            self.check()
            self._write(released=True)

    def _write(self, *, released: bool) -> None:
        self._beats += 1
        owner = self.claim.owner.to_json() if self.claim.owner else None
        pulse = {
            "epoch": self.epoch,
            "beat": self._beats,
            "owner": owner,
            "at_s": self._clock.now(),
            "time_s": self.time_s,
            "released": released,
        }
        self._claims.beat(self.claim.run_id, pulse)


def wait_until_free(claims: Claims, time_s: float, clock: BootClock) -> Claim | None:
    """Return the last claim once it has no holder, None if there was none; raises RunHeldError, OSError.

    At once where the holder has released it or can be seen to be dead or alive; else wait for a sign of
    life, for the time that the holder itself announced.
    """
    watched: tuple[int, Any] | None = None
    deadline_s = 0.0
    while True:
        claim = claims.highest()
        if claim is None:
            return None
        pulse = claims.pulse(claim.run_id)
        if pulse.get("epoch") != claim.epoch:
            pulse = {}  # there is no sign of life yet
        if pulse.get("released") or (claim.owner is not None and claim.owner.is_gone()):
            return claim
        seen = (claim.epoch, pulse.get("beat"))
        term_s = float(pulse.get("time_s", time_s))
        if watched is None:
            watched, deadline_s = seen, clock.now() + _left(claim, pulse, term_s, clock)
            if deadline_s - clock.now() > 0 and claim.owner is not None and claim.owner.is_gone() is False:
                raise RunHeldError(claim.run_id, str(claim.owner))
        if seen != watched:
            raise RunHeldError(claim.run_id, str(claim.owner or "another process"))
        if clock.now() >= deadline_s:
            return claim
        clock.sleep(term_s / RENEWALS / 2)


def _left(claim: Claim, pulse: Mapping[str, Any], term_s: float, clock: BootClock) -> float:
    """Return how long a holder may still be silent; its timestamps are comparable only on the same machine."""
    if claim.owner is None or claim.owner.is_gone() is None:
        return term_s
    return float(pulse.get("at_s", claim.at_s)) + term_s - clock.now()


def last_sign_s(claims: Claims, claim: Claim) -> float | None:
    """Return when a holder gave its last sign of life, in seconds of this machine's CLOCK_BOOTTIME; raises OSError.

    `None`: it held the lease on another machine, or in another boot of this one.
    """
    if claim.owner is None or claim.owner.boot != boot_id():
        return None
    pulse = claims.pulse(claim.run_id)
    return float(pulse.get("at_s", claim.at_s)) if pulse.get("epoch") == claim.epoch else claim.at_s


def take(claims: Claims, after: Claim | None, run_id: str, time_s: float, clock: BootClock) -> Lease:
    """Take the epoch after the one that was found free; raises RunHeldError if another process was faster.

    Raises OSError where the directory cannot be written.
    """
    claim = Claim((after.epoch if after else 0) + 1, run_id, this_process(), clock.now())
    free_since_s = last_sign_s(claims, after) if after is not None and after.run_id == run_id else None
    if not claims.take(claim):
        highest = claims.highest()
        holder = str(highest.owner) if highest and highest.owner else "another process"
        raise RunHeldError(highest.run_id if highest else run_id, holder)
    return Lease(claims, claim, time_s, clock, free_since_s=free_since_s)
