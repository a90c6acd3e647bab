"""The verified checkpoints of one directory, kept up to date at the cost of a listing.

Owns which entries are looked at, what is remembered between scans, and what time decides where a
format proves nothing: an observed rename, a settle time, and the deaths of writers. What has once been
verified, here or by an earlier agent, stays verified as long as it is the same on disk.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Collection, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from prefect_ft.worker.checkpoints import trackers
from prefect_ft.worker.checkpoints.entry import COMPLETE, Entry, Stat, Verdict, newest_ns, walk
from prefect_ft.worker.checkpoints.layouts import LAYOUTS
from prefect_ft.worker.checkpoints.manifest import BESIDE
from prefect_ft.worker.checkpoints.marks import Mark
from prefect_ft.worker.checkpoints.names import PatternNames, Reading, UsualNames
from prefect_ft.worker.checkpoints.trackers import Tracker


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `path` is absolute; `layout` names the check that verified it.

    `size` is in bytes, `mtime` in seconds since the epoch: both over all its files. `device` and `inode` are
    those of the file or directory itself.
    """

    step: int
    path: str
    layout: str
    size: int
    mtime: float
    device: int = 0
    inode: int = 0

    @property
    def mark(self) -> Mark:
        """Return what tells this content from whatever takes its place."""
        return Mark(self.size, self.mtime, self.device, self.inode)


class _Judged(NamedTuple):
    """A verdict on an entry, good as long as the entry is the same."""

    entry: Entry
    verdict: Verdict
    checkpoint: Checkpoint


class Finder:
    """Looks for checkpoints in one directory. Not safe for use from several threads at once."""

    def __init__(
        self, path: str, layout: str = "auto", pattern: Optional[str] = None, settle_s: float = 2.0
    ) -> None:
        """Raises ValueError for an unknown layout or a pattern that can match nothing.

        `layout` is `auto` or a key of `LAYOUTS`; `pattern` is for names that are not the usual ones.
        """
        if layout != "auto" and layout not in LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}: write one of auto, {', '.join(LAYOUTS)}")
        self._path = os.path.abspath(path)
        self._layouts = list(LAYOUTS) if layout == "auto" else [layout]
        self._names = PatternNames(pattern) if pattern is not None else UsualNames()
        self._settle_s = settle_s
        self._judged: Dict[str, _Judged] = {}
        self._why_not: Dict[str, str] = {}
        self._proven: Dict[str, Mark] = {}
        """By path, what was last verified there."""

    def learn(self, verified: Mapping[str, Mark]) -> None:
        """Take over what others have verified, by path; what has been seen since then wins."""
        self._proven = {**verified, **self._proven}

    def scan(
        self, now: float, deaths: Sequence[float] = (), renamed: Collection[str] = ()
    ) -> List[Checkpoint]:
        """Return all verified checkpoints by step; where two have the same step, the one written last.

        All times are seconds since the epoch. `deaths` are those at which writers were killed,
        `renamed` the names that were seen moved into place whole and not written to since.
        An entry is read again only when its files have changed or are younger than the settle time.
        What was verified before and has not changed needs no second proof, whatever its format is.
        """
        self._why_not = {}
        judged = {item.entry.name: item for item in self._judge_all(self._entries())}
        # What was written just now may change again within the same tick of the file system's clock.
        self._judged = {
            name: item for name, item in judged.items() if now - item.checkpoint.mtime >= self._settle_s
        }
        moved = frozenset(renamed)
        found: Dict[int, _Judged] = {}
        for name, item in judged.items():
            reason = self._objection(item, now, deaths, moved)
            if reason:
                self._why_not[name] = reason
            elif item.entry.step not in found or _is_newer(item.entry, found[item.entry.step].entry):
                found[item.entry.step] = item
        checkpoints = [found[step].checkpoint for step in sorted(found)]
        self._proven.update((item.path, item.mark) for item in checkpoints)
        return checkpoints

    def why_not(self) -> Dict[str, str]:
        """Return what kept entries from being verified in the last scan, by name; `.` is the directory."""
        return dict(self._why_not)

    def _objection(
        self, item: _Judged, now: float, deaths: Sequence[float], moved: Collection[str]
    ) -> Optional[str]:
        """Say why an entry does not count at this time, or `None`."""
        name, verdict = item.entry.name, item.verdict
        if verdict.complete is not None:
            return verdict.reason
        is_moved = name in moved or name.partition("/")[0] in moved
        if is_moved or self._is_proven(item.checkpoint):
            return None
        if self._was_proven_by(verdict, item.checkpoint.path):
            return f"{verdict.reason}, and was whole before that"
        return self._time_tells(item, now, deaths)

    def _is_proven(self, found: Checkpoint) -> bool:
        """Tell whether it is the same as it was when it was verified."""
        proven = self._proven.get(found.path)
        return proven is not None and proven.is_of(found.mark)

    def _was_proven_by(self, verdict: Verdict, path: str) -> bool:
        """Tell whether it was verified with the marker that is there now: what was written later has damaged it."""
        proven = self._proven.get(path)
        return (
            proven is not None and verdict.marked_ns is not None and verdict.marked_ns / 1e9 <= proven.mtime
        )

    def _time_tells(self, item: _Judged, now: float, deaths: Sequence[float]) -> Optional[str]:
        mark = item.verdict.reason or "its format has no mark of its end"
        written = item.checkpoint.mtime
        if now - written < self._settle_s:
            return f"{mark}; last written {now - written:.1f} s ago, counts after {self._settle_s:g} s"
        for death in deaths:
            if death - self._settle_s < written <= death:
                return f"{mark}; last written {death - written:.1f} s before its writer was killed"
        return None

    def _judge_all(self, entries: Iterable[Entry]) -> Iterator[_Judged]:
        for entry in entries:
            known = self._judged.get(entry.name)
            if known is not None and known.entry == entry:
                yield known
                continue
            try:
                layout, verdict = self._verify(entry)
            except OSError as error:
                self._why_not[entry.name] = _unreadable(error)
                continue
            yield _Judged(entry, verdict, _checkpoint(entry, layout))

    def _verify(self, entry: Entry) -> Tuple[str, Verdict]:
        """Apply the layout that was asked for or, in `auto`, the first that claims the entry."""
        name = next(name for name in self._layouts if len(self._layouts) == 1 or LAYOUTS[name].claims(entry))
        return name, LAYOUTS[name].check(entry)

    def _entries(self) -> Iterator[Entry]:
        """Give every name with a step in it and the state of its files."""
        listing = self._listing("")
        latest = self._tracker(trackers.LATEST, listing)
        iteration = self._tracker(trackers.ITERATION, listing)
        for name in sorted(listing):
            inside = self._names.enters(name)
            candidates = self._listing(name) if inside else listing
            for base in sorted(candidates) if inside else [name]:
                relative = f"{name}/{base}" if inside else base
                step = self._step(relative)
                if step is None:
                    continue
                entry = self._entry(relative, step, candidates[base], candidates.get(base + BESIDE))
                if entry is not None:
                    yield self._tracked(entry, latest, iteration)

    def _step(self, name: str) -> Optional[int]:
        reading: Reading = self._names.read(name)
        if isinstance(reading, str):
            self._why_not[name] = reading
            return None
        return reading

    def _listing(self, directory: str) -> "Dict[str, os.DirEntry[str]]":
        """List a directory; one that is missing or cannot be read is empty and says why."""
        try:
            with os.scandir(os.path.join(self._path, directory)) as items:
                return {item.name: item for item in items}
        except NotADirectoryError:
            reason = "it is not a directory"
        except OSError as error:
            reason = _unreadable(error)
        self._why_not[directory or "."] = reason
        return {}

    def _entry(
        self, name: str, step: int, item: "os.DirEntry[str]", beside: "Optional[os.DirEntry[str]]"
    ) -> Optional[Entry]:
        """Take the state of one candidate, `None` if it cannot be had."""
        try:
            state = item.stat()
            is_directory = stat.S_ISDIR(state.st_mode)
            if not is_directory and not stat.S_ISREG(state.st_mode):
                self._why_not[name] = "it is neither a file nor a directory"
                return None
            path = os.path.join(self._path, name)
            files = walk(path) if is_directory else {"": Stat.of(state)}
            manifest = Stat.of(beside.stat()) if beside is not None else None
        except OSError as error:
            self._why_not[name] = _unreadable(error)
            return None
        return Entry(name, path, step, is_directory, files, manifest, device=state.st_dev, inode=state.st_ino)

    def _tracked(self, entry: Entry, latest: Optional[Tracker], iteration: Optional[Tracker]) -> Entry:
        """Add what the trackers say of an entry; of one that was verified before they said that already.

        A tracker names an earlier checkpoint once training has gone back to one.
        """
        if latest is None and iteration is None:
            return entry
        if self._is_proven(_checkpoint(entry)):
            return entry._replace(latest=latest and COMPLETE, iteration=iteration and COMPLETE)
        facts = (entry.name, entry.step, newest_ns(entry.files))
        return entry._replace(
            latest=latest.verdict(*facts) if latest else None,
            iteration=iteration.verdict(*facts) if iteration else None,
        )

    def _tracker(self, name: str, listing: "Dict[str, os.DirEntry[str]]") -> Optional[Tracker]:
        try:
            state = listing[name].stat() if name in listing else None
        except OSError:
            return None
        if state is None or not stat.S_ISREG(state.st_mode):
            return None
        return trackers.read(os.path.join(self._path, name), Stat.of(state))


def choose(
    checkpoints: Iterable[Checkpoint], limit: Optional[int] = None, avoid: Collection[int] = ()
) -> Optional[Checkpoint]:
    """Take the highest step that is not above `limit` and not in `avoid`; `None`: there is none."""
    allowed = [
        item for item in checkpoints if (limit is None or item.step <= limit) and item.step not in avoid
    ]
    return max(allowed, key=lambda item: item.step, default=None)


def _checkpoint(entry: Entry, layout: str = "") -> Checkpoint:
    mtime = entry.mtime_ns / 1e9
    return Checkpoint(entry.step, entry.path, layout, entry.size, mtime, entry.device, entry.inode)


def _is_newer(entry: Entry, other: Entry) -> bool:
    return (entry.mtime_ns, entry.name) > (other.mtime_ns, other.name)


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
