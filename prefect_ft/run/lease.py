"""The lease: which orchestrator may act on a model directory. The one with the highest epoch, and no other.

An epoch is a file, `.prefect-ft/epochs/<N>`, that comes into being whole and only once (a hard link), on
local disks and on NFS alike; epochs only grow. The holder shows that it lives in `lease.json` in its run's
directory. Who comes later waits until that has stood still for the lease's time, by its own clock; sooner
only if it can see that the process has ended. What makes a late holder harmless is not time: before each
act it looks for a higher epoch, agents obey the highest that they know, and its journal is another file.
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
from prefect_ft.run.owner import Owner, this_process

EPOCHS = "epochs"
LEASE = "lease.json"

RENEWALS = 5
"""How often a lease is renewed in its time."""

_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK))
"""What a file system says that has no hard links."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One epoch: who took it, for which run, in seconds of that machine's CLOCK_BOOTTIME."""

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
        """Return the claim that holds; None: there has been none. Raises OSError."""
        epoch = self.highest_epoch()
        if not epoch:
            return None
        told = read_json(self._path(epoch))  # whole, unless the file system has no hard links
        return Claim(
            epoch, str(told.get("run", "")), Owner.from_json(told.get("owner")), float(told.get("at_s", 0.0))
        )

    def highest_epoch(self) -> int:
        """Return the highest epoch, 0 if there is none. Reads the directory: a look at one name may be cached."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdigit()), default=0)

    def take(self, claim: Claim) -> bool:
        """Take an epoch; False: somebody has it. Raises OSError, and then it may yet be there, ours."""
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
        """Link a file to its name; an answer that got lost on its way is looked for in the file's links."""
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
        """Where there are no links: who reads it torn sees a claim of nobody known, and waits."""
        try:
            with target.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True


class Lease:
    """A claim that was taken, and the holder's side of it."""

    def __init__(self, claims: Claims, claim: Claim, time_s: float, clock: BootClock) -> None:
        """`time_s` is how long a holder may be silent before it counts as dead."""
        self.claim, self.time_s = claim, time_s
        self._claims, self._clock = claims, clock
        self._beats = 0

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    def check(self) -> None:
        """Raise LeaseLostError if somebody else may act now. To be asked before every act.

        A directory that cannot be read says nothing: agents and journal have their own fences.
        """
        with suppress(OSError):
            highest = self._claims.highest_epoch()
            if highest > self.epoch:
                raise LeaseLostError(
                    f"an orchestrator of epoch {highest} has taken over from this one, of epoch {self.epoch}"
                )

    def renew(self) -> None:
        """Show that the holder lives; raises LeaseLostError, and OSError where it cannot be written."""
        self.check()
        self._write(released=False)

    def release(self) -> None:
        """Let go: who comes next need not wait. Nothing is written by whom it no longer belongs to."""
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
    """Return the last claim once nobody holds it, None if there was none; raises RunHeldError, OSError.

    At once where the holder has let go or can be seen to be dead or alive; else it watches for a sign of
    life, for the time that the holder itself named.
    """
    watched: tuple[int, Any] | None = None
    deadline_s = 0.0
    while True:
        claim = claims.highest()
        if claim is None:
            return None
        pulse = claims.pulse(claim.run_id)
        if pulse.get("epoch") != claim.epoch:
            pulse = {}  # it has not shown a sign of life yet
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
    """Return how long a holder may still be silent; its clock is this one only where its process is seen."""
    if claim.owner is None or claim.owner.is_gone() is None:
        return term_s
    return float(pulse.get("at_s", claim.at_s)) + term_s - clock.now()


def take(claims: Claims, after: Claim | None, run_id: str, time_s: float, clock: BootClock) -> Lease:
    """Take the epoch that follows the one that was found free; raises RunHeldError if somebody was faster.

    Raises OSError where the directory cannot be written.
    """
    claim = Claim((after.epoch if after else 0) + 1, run_id, this_process(), clock.now())
    if not claims.take(claim):
        highest = claims.highest()
        holder = str(highest.owner) if highest and highest.owner else "another process"
        raise RunHeldError(highest.run_id if highest else run_id, holder)
    return Lease(claims, claim, time_s, clock)
