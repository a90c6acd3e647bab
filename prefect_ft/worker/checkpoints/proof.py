"""Whether an entry counts where its format does not prove that, as long as it stays the same.

Owns the evidence of time (an observed rename, a settle time, the deaths of writers) and what was verified before,
here or by an earlier agent. Reads no file.
"""

from __future__ import annotations

from typing import Collection, Dict, Mapping, NamedTuple, Optional, Sequence

from prefect_ft.worker.checkpoints.entry import COMPLETE, Entry, Verdict, newest_ns
from prefect_ft.worker.checkpoints.marks import Known, Mark
from prefect_ft.worker.checkpoints.trackers import Tracker


class Moment(NamedTuple):
    """What is known besides the files at the time of a scan; times are seconds since the epoch.

    `deaths` are those at which writers were killed, `renamed` the names that were seen moved into place whole and
    not written to since. `is_over`: all writers have completed.
    """

    now: float
    deaths: Sequence[float] = ()
    renamed: Collection[str] = ()
    is_over: bool = False


class Proofs:
    """What has been verified, by path."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._known: Dict[str, Known] = {}

    def learn(self, verified: Mapping[str, Known]) -> None:
        """Take over what others have verified; what was seen here since then takes precedence."""
        self._known = {**verified, **self._known}

    def add(self, path: str, known: Known) -> None:
        """Remember that this has been verified."""
        self._known[path] = known

    def of(self, entry: Entry) -> Optional[Known]:
        """Return what is known of an entry that has not changed since it was verified; `None`: it has."""
        known = self._known.get(entry.path)
        return known if known is not None and known.mark.is_of(mark_of(entry)) else None

    def known_at(self, path: str) -> Optional[Known]:
        """Return what was verified at a path last, whatever is there now."""
        return self._known.get(path)

    @property
    def highest_step(self) -> int:
        """The highest step of all that was ever verified; 0: none was."""
        return max((known.step for known in self._known.values()), default=0)

    def objection(self, entry: Entry, verdict: Verdict, moment: Moment) -> Optional[str]:
        """Return why an entry with this verdict does not count at this moment, or `None`."""
        if verdict.complete is not None:
            return verdict.reason
        is_moved = entry.name in moment.renamed or entry.name.partition("/")[0] in moment.renamed
        if is_moved or self.of(entry) is not None:
            return None
        if self._was_verified_with(verdict.marked_ns, entry.path):
            return f"{verdict.reason}, and was whole before that"
        return self._time_proves(entry, verdict, moment)

    def _was_verified_with(self, marked_ns: Optional[int], path: str) -> bool:
        """Return whether it was verified with the current marker: then later writes have damaged it."""
        known = self._known.get(path)
        return known is not None and marked_ns is not None and marked_ns / 1e9 <= known.mark.mtime

    def _time_proves(self, entry: Entry, verdict: Verdict, moment: Moment) -> Optional[str]:
        mark = verdict.reason or "its format has no mark of its end"
        written = entry.mtime_ns / 1e9
        age_s = moment.now - written
        if age_s < self._settle_s:
            return f"{mark}; last written {age_s:.1f} s ago, counts after {self._settle_s:g} s"
        for death in moment.deaths:
            if death - self._settle_s < written <= death:
                return f"{mark}; last written {death - written:.1f} s before its writer was killed"
        return None

    def tracked(self, entry: Entry, latest: Optional[Tracker], iteration: Optional[Tracker]) -> Entry:
        """Add what the trackers say of an entry, unless it was verified before.

        A tracker names an earlier checkpoint once training has gone back to it.
        """
        if entry.step is None or (latest is None and iteration is None):
            return entry
        if self.of(entry) is not None:
            return entry._replace(latest=latest and COMPLETE, iteration=iteration and COMPLETE)
        facts = (entry.name, entry.step, newest_ns(entry.files))
        return entry._replace(
            latest=latest.verdict(*facts) if latest else None,
            iteration=iteration.verdict(*facts) if iteration else None,
        )


def mark_of(entry: Entry) -> Mark:
    """Return what distinguishes an entry's content from a later one at its path."""
    return Mark(entry.size, entry.mtime_ns / 1e9, entry.device, entry.inode)
