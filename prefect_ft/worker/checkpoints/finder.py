"""The verified checkpoints of one directory, kept up to date at the cost of a listing.

Owns which entries are checked, what is remembered between scans, and the step of each version of a file that is
overwritten with each checkpoint. Where a format proves nothing, `proof` decides.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from dataclasses import dataclass, replace
from typing import (
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from prefect_ft.worker.checkpoints import copies, trackers
from prefect_ft.worker.checkpoints.entry import FILE_SYSTEM, Entry, Item, Place, Stat, Verdict
from prefect_ft.worker.checkpoints.layouts import LAYOUTS
from prefect_ft.worker.checkpoints.manifest import BESIDE, Hashes
from prefect_ft.worker.checkpoints.marks import Known, Mark
from prefect_ft.worker.checkpoints.names import (
    TEMPORARY_NAME,
    UNKNOWN_NAME,
    Overwritten,
    PatternNames,
    Reading,
    UsualNames,
    holds_weights,
)
from prefect_ft.worker.checkpoints.parts import Part, part_of
from prefect_ft.worker.checkpoints.proof import Moment, Proofs, mark_of
from prefect_ft.worker.checkpoints.sets import Sets
from prefect_ft.worker.checkpoints.siblings import Siblings
from prefect_ft.worker.checkpoints.trackers import Tracker

StepAt = Callable[[float], Optional[int]]
"""Returns the step that the ranks had reached at a time in seconds since the epoch; `None`: unknown."""

MAX_UNRECOGNISED = 100

ALL, CUT, NOTHING = "all", "cut", "nothing"
"""Which overwritten files that do not count give way to their copies."""

_AS_LARGE = 0.9
"""How large a best model is, as a share of another checkpoint, if it holds all that this does."""

_MANIFEST = "manifest"
"""The layout that lists hashes."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `path` is absolute; `layout` names the check that verified it.

    `size` is in bytes, `mtime` in seconds since the epoch: both over all its files. `device` and `inode` are
    those of the file or directory itself. `counted`: nothing states its step, so it is the number of a version.
    `follows` is the step that was known of the same file before, where this is a version not seen before.
    `part` is set where other machines have the rest.
    """

    step: int
    path: str
    layout: str
    size: int
    mtime: float
    device: int = 0
    inode: int = 0
    counted: bool = False
    follows: Optional[int] = None
    part: Optional[Part] = None

    @property
    def known(self) -> Known:
        """Return what other agents need to know of it."""
        return Known(Mark(self.size, self.mtime, self.device, self.inode), self.step, self.counted)


class _Judged(NamedTuple):
    """A verdict on an entry, good as long as the entry is the same."""

    entry: Entry
    verdict: Verdict
    layout: str
    part: Optional[Part] = None

    def checkpoint(self, step: int, *, counted: bool, follows: Optional[int]) -> Checkpoint:
        mark, path = mark_of(self.entry), self.entry.path
        return Checkpoint(step, path, self.layout, *mark, counted=counted, follows=follows, part=self.part)


class Finder:
    """Looks for checkpoints in one directory. Not safe for use from several threads at once."""

    def __init__(
        self,
        path: str,
        layout: str = "auto",
        pattern: Optional[str] = None,
        settle_s: float = 2.0,
        keep_copies: bool = False,
        *,
        local: bool = False,
        place: Place = FILE_SYSTEM,
    ) -> None:
        """Raises ValueError for an unknown layout or a pattern that can match nothing.

        `layout` is `auto` or a key of `LAYOUTS`; `pattern` is for names that are not the usual ones.
        `keep_copies`: of files that are overwritten with each checkpoint. `local`: other machines have the rest.
        `place`: where they are, by default in this machine's file systems; elsewhere hashes are not compared.
        """
        if layout != "auto" and layout not in LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}: write one of auto, {', '.join(LAYOUTS)}")
        self._place, self._is_here = place, place is FILE_SYSTEM
        self._path = os.path.abspath(path) if self._is_here else path.rstrip("/")
        self._layouts = list(LAYOUTS) if layout == "auto" else [layout]
        self._names = PatternNames(pattern) if pattern is not None else UsualNames()
        self._settle_s = settle_s
        self._keeps_copies = keep_copies
        self._is_local = local
        self._judged: Dict[str, _Judged] = {}
        self._why_not: Dict[str, str] = {}
        self._unrecognised: Dict[str, str] = {}
        self._listed: Mapping[str, Item] = {}
        """The directory in the last scan."""
        self._first_seen: Dict[str, int] = {}
        """For files of unknown names, their modification time when first seen (ns since the epoch)."""
        self._proofs = Proofs(settle_s)
        self._hashes = Hashes(is_local=local)
        self._versions: Dict[str, Optional[int]] = {}
        """The overwritten files of the last scan, with their steps; None: it does not count."""
        self._written: Dict[str, Tuple[int, int]] = {}
        """When files that are overwritten were last whole, and before that, by name (ns since the epoch)."""
        self._cut: Set[str] = set()
        """The entries of the last scan that are surely not complete, or have something beside them that is not."""
        self._sets = Sets()
        self._siblings = Siblings((), {})
        """Which files belonged together in the last scan."""
        self._begun: Optional[float] = None
        """When the first scan was, in seconds since the epoch."""
        self.settles_at: Optional[float] = None
        """When an entry may count that was too young in the last scan, in seconds since the epoch."""

    def learn(self, verified: Mapping[str, Known]) -> None:
        """Take over what others have verified, by path; what was seen here since then takes precedence."""
        self._proofs.learn(verified)

    def scan(
        self,
        now: float,
        deaths: Sequence[float] = (),
        renamed: Collection[str] = (),
        step_at: StepAt = lambda _: None,
        *,
        is_over: bool = False,
    ) -> List[Checkpoint]:
        """Return all verified checkpoints by step; where two have the same step, the one that `_rank_of` prefers.

        All times are seconds since the epoch. `deaths` are those at which writers were killed,
        `renamed` the names that were seen moved into place whole and not written to since.
        An entry is read again only when its files have changed or are younger than the settle time.
        What was verified before and has not changed needs no second proof, whatever its format is.
        `step_at` tells the step of a new version of a file that is overwritten; else versions are counted.
        `is_over`: all writers have completed, so that no file is missed beside a checkpoint.
        """
        moment = Moment(now, deaths, frozenset(renamed), is_over)
        self._begun = now if self._begun is None else self._begun
        self._why_not, self._unrecognised, self.settles_at = {}, {}, None
        self._cut = set()
        judged = {item.entry.name: item for item in self._judge_all(self._entries(), self._layouts)}
        siblings, beside = self._look_beside(judged)
        self._siblings = siblings
        candidates = [item for name, item in judged.items() if name not in beside]
        # What was written just now may change again within the same tick of the file system's clock.
        self._judged = {
            name: item for name, item in {**beside, **judged}.items() if self._is_settled(item.entry, now)
        }
        self._versions = {}
        found: Dict[int, Checkpoint] = {}
        whole = self._whole(candidates, moment, siblings, {**beside, **judged})
        highest = max([self._proofs.highest_step, *(self._stated_step(item.entry) for item in whole)])
        for item in sorted(whole, key=self._turn_of):
            step, counted = self._step_of(item.entry, step_at, highest)
            highest = max(step, highest)
            checkpoint = item.checkpoint(step, counted=counted, follows=self._followed_by(item.entry))
            if item.entry.step is None:
                self._versions[item.entry.name] = step
                self._note_set(item.entry.name, checkpoint.known, beside)
            if step not in found or self._rank_of(checkpoint) > self._rank_of(found[step]):
                found[step] = checkpoint
        for checkpoint in found.values():
            self._proofs.add(checkpoint.path, checkpoint.known)
        return [found[step] for step in sorted(found)]

    def _rank_of(self, checkpoint: Checkpoint) -> Tuple[bool, float, str]:
        """Return a key for choosing among checkpoints of one step: averaged weights come last, then older ones."""
        is_aside = self._names.is_aside(os.path.basename(checkpoint.path))
        return not is_aside, checkpoint.mtime, checkpoint.path

    def why_not(self) -> Dict[str, str]:
        """Return why entries were not verified in the last scan, by name; `.` is the directory."""
        return dict(self._why_not)

    def unrecognised(self) -> Dict[str, str]:
        """Return the entries of the last scan that look like checkpoints and are not, by name, with the reason."""
        return dict(list(self._unrecognised.items())[:MAX_UNRECOGNISED])

    def keep(self, found: Iterable[Checkpoint], is_wanted: Callable[[], bool]) -> None:
        """Copy the files among these that are overwritten with each checkpoint, if that is wanted. Raises OSError."""
        for item in found if self._keeps_copies else ():
            name = os.path.relpath(item.path, self._path)
            if "/" not in name and name in self._versions and os.path.isfile(item.path):
                beside = self._sets.of(name)
                if beside is not None:
                    copies.keep(self._path, name, item.known, beside, is_wanted)

    def replace_damaged(
        self,
        limit: Optional[int],
        avoid: Collection[int],
        unreadable: Collection[int],
        gives_way: str = ALL,
    ) -> bool:
        """Replace overwritten files that cannot be resumed from by their newest copies; return whether any was.

        These are those that do not count (`gives_way`: `ALL`, `CUT`: surely cut ones, or `NOTHING`, and no other file
        either), and those whose step is `unreadable`; without a copy they are renamed, because a script that loads its
        one file, whatever it is given, would load it again and again. So is what is overwritten with them.
        `limit` and `avoid` as for `choose`. Raises OSError.
        """
        if not self._keeps_copies or gives_way == NOTHING:
            return False
        bad = [
            name
            for name, step in self._versions.items()
            if (step in unreadable or (step is None and (gives_way == ALL or name in self._cut)))
            and os.path.isfile(os.path.join(self._path, name))
        ]
        good = {each for name in self._versions.keys() - {*bad} for each in self._beside_of(name)}
        put_back: List[copies.Copy] = []
        without: List[str] = []
        for name in bad:
            kept = copies.copies_of(self._path, name)
            allowed = [
                copy for copy in kept if copy.step not in avoid and (limit is None or copy.step <= limit)
            ]
            if allowed:
                put_back.append(allowed[-1])
            elif not os.path.islink(os.path.join(self._path, name)):
                without.append(name)
        # Where another one is resumed from, the script may want this one with it: it is not taken away.
        goes_on = put_back or any(
            step is not None for name, step in self._versions.items() if name not in bad
        )
        for name in without if not goes_on else ():
            for each in [*self._beside_of(name), name]:
                if each == name or (each not in good and os.path.isfile(os.path.join(self._path, each))):
                    copies.set_aside(self._path, each)
        # What several have beside them is that of the newest.
        for copy in sorted(put_back, key=lambda copy: copy.step):
            self._put_back(copy)
        return bool(bad)

    def confirm(self, chosen: Checkpoint) -> Optional[str]:
        """Return why a checkpoint must not be resumed from: its hashes differ; `None`: they do not."""
        if chosen.layout != _MANIFEST or not self._is_here:
            return None
        try:
            fault = self._hashes.fault(chosen.path, chosen.known.mark)
        except OSError as error:
            return _unreadable(error)
        if fault is not None:
            self._judged.pop(os.path.relpath(chosen.path, self._path), None)
        return fault

    @property
    def hashing_s(self) -> float:
        """Return how many seconds hashes have taken so far."""
        return self._hashes.taken_s

    def put_back(self, chosen: Checkpoint) -> Checkpoint:
        """Restore a chosen copy in place of its file; return the checkpoint there. Raises OSError."""
        name = os.path.relpath(chosen.path, self._path)
        copy = copies.read_name(os.path.basename(name)) if _is_copy(name) else None
        if copy is None:
            self._point_links_at(chosen)
            return chosen
        path = os.path.join(self._path, copy.of)
        known = self._proofs.known_at(path)
        is_there = known is not None and known.step == copy.step and copies.is_put_back(self._path, copy)
        mark = known.mark if known is not None and is_there else self._put_back(copy)
        return replace(chosen, path=path, device=mark.device, inode=mark.inode)

    def _point_links_at(self, chosen: Checkpoint) -> None:
        """Have links to checkpoints that do not count lead to the one that is resumed from, if copies are kept."""
        bad = [name for name, step in self._versions.items() if step is None and "/" not in name]
        for path in (os.path.join(self._path, name) for name in bad if self._keeps_copies):
            if os.path.islink(path) and os.path.dirname(chosen.path) == self._path:
                with contextlib.suppress(OSError):  # what was chosen is as good without it
                    copies.point(path, os.path.basename(chosen.path))

    def _put_back(self, copy: copies.Copy) -> Mark:
        marks = copies.put_back(self._path, copy)
        for name, mark in marks.items():
            self._proofs.add(os.path.join(self._path, name), Known(mark, copy.step, copy.counted))
        return marks[copy.of]

    def _beside_of(self, name: str) -> List[str]:
        """Return what is overwritten with a file."""
        return self._siblings.of(name) if self._siblings.has(name) else []

    def _note_set(self, name: str, known: Known, beside: Mapping[str, _Judged]) -> None:
        """Note what is beside a version that counts: that is whole, too, as long as it does not change."""
        entries = [beside[each].entry for each in self._beside_of(name) if each in beside]
        self._sets.note(name, known.mark, {entry.name: mark_of(entry) for entry in entries})
        for entry in entries:
            self._proofs.add(entry.path, known._replace(mark=mark_of(entry)))

    def _is_ours(self, entry: Entry) -> bool:
        """Return whether an overwritten entry is certainly a checkpoint, complete or not."""
        if entry.step is not None:
            return False
        return self._is_sure(entry) or self._proofs.known_at(entry.path) is not None

    def _without_bare(self, whole: List[_Judged]) -> List[_Judged]:
        """Leave out best models and the like, if clearly smaller than the newest checkpoint with a step in its name."""
        named = [item for item in whole if item.entry.step is not None and not _is_copy(item.entry.name)]
        aside = {item.entry.name for item in named if self._names.is_aside(item.entry.name)}
        others = [item.entry for item in named if item.entry.name not in aside]
        if not aside or not others:
            return whole
        size = max(others, key=lambda entry: (entry.mtime_ns, entry.name)).size
        return [item for item in whole if item.entry.name not in aside or item.entry.size >= _AS_LARGE * size]

    def _look_beside(self, judged: Mapping[str, _Judged]) -> Tuple[Siblings, Dict[str, _Judged]]:
        """Return which files belong together, and those of them that are no checkpoints by themselves."""
        steps = {
            name: item.entry.step
            for name, item in judged.items()
            if item.entry.step is not None and not item.entry.is_directory and "/" not in name
        }
        can_be_sets = self._is_here and not self._is_local
        overwritten = [
            name
            for name, item in (judged.items() if can_be_sets else ())
            if item.entry.step is None and not item.entry.is_directory and "/" not in name
        ]
        siblings = Siblings(self._listed, steps, overwritten)
        names = {each for name in [*steps, *overwritten] for each in siblings.of(name)}
        entries = (
            self._entry(name, None, self._listed[name], None) for name in sorted(names - judged.keys())
        )
        found = self._judge_all((entry for entry in entries if entry is not None), [*LAYOUTS])
        also = {name: judged[name] for name in names.intersection(overwritten)}  # as `last_opt.pt`
        return siblings, {**also, **{item.entry.name: item for item in found}}

    def _whole(
        self,
        judged: Collection[_Judged],
        moment: Moment,
        siblings: Siblings,
        beside: Mapping[str, _Judged],
    ) -> List[_Judged]:
        """Return the entries that count now, copies first and versions last; note why the others do not."""
        whole = []
        for item in judged:
            entry, reason = item.entry, self._objection(item, moment, siblings, beside)
            if not reason or (_is_copy(entry.name) and item.verdict.complete is None):
                whole.append(item)  # a copy gets its name when it is complete
                continue
            self._why_not[entry.name] = reason
            if self._is_ours(entry):
                self._versions[entry.name] = None
            if item.verdict.complete is False:
                self._cut.add(entry.name)
            if self._is_settled(entry, moment.now):
                self._unrecognised[entry.name] = reason
                continue
            if item.verdict.complete is not False:
                self._wait_for(entry)
        whole = self._without_bare(whole)
        named = [
            item.entry for item in whole if item.entry.step is not None and not _is_copy(item.entry.name)
        ]
        stated = (entry.mtime_ns for entry in named if not self._names.is_dated(entry.name))
        past = self._past(whole, max(stated, default=0))
        newest_ns = max((entry.mtime_ns for entry in named), default=None)
        sure = (item.entry.mtime_ns for item in judged if self._may_be_checkpoint(item))
        bare = self._bare_among(whole, max(sure, default=0))
        versions = [
            item
            for item in whole
            if item.entry.step is None
            and item.entry.name not in bare
            and self._is_newest(item.entry, newest_ns)
        ]
        # Of several files that are overwritten only the newest counts: nothing orders their steps.
        newest = max(versions, key=lambda item: (item.entry.mtime_ns, item.entry.name), default=None)
        return [
            item
            for item in whole
            if (item.entry.step is not None and item.entry.name not in past) or item is newest
        ]

    def _past(self, whole: Iterable[_Judged], stated_ns: int) -> Set[str]:
        """Return the dated ones that get no number, which would be above the newer steps that names state.

        A date may also be a date with a step that reads like a time of day: ckpt_2026-11-29_1000.pt.
        """
        return {
            item.entry.name
            for item in whole
            if item.entry.mtime_ns <= stated_ns
            and self._names.is_dated(item.entry.name)
            and self._proofs.of(item.entry) is None
        }

    def _bare_among(self, whole: Iterable[_Judged], sure_ns: int) -> Set[str]:
        """Return the overwritten files that may be weights saved beside a checkpoint that is overwritten too.

        They are those whose names are not sure, until they have been whole twice since the newest that is.
        """
        found = set()
        for entry in (each.entry for each in whole if each.entry.step is None):
            last_ns, before_ns = self._written.get(entry.name, (entry.mtime_ns, 0))
            before_ns = before_ns if entry.mtime_ns == last_ns else last_ns
            self._written[entry.name] = entry.mtime_ns, before_ns
            known = self._proofs.known_at(entry.path)
            counted_ns = round(known.mark.mtime * 1e9) if known is not None else 0
            if not self._is_sure(entry) and max(before_ns, counted_ns) < sure_ns:
                found.add(entry.name)
        return found

    def _may_be_checkpoint(self, item: _Judged) -> bool:
        """Return whether a file is overwritten for sure and was whole, or may be: another layout's never is."""
        was_whole = self._proofs.known_at(item.entry.path) is not None
        return self._is_sure(item.entry) and (item.verdict.complete is not False or was_whole)

    def _is_sure(self, entry: Entry) -> bool:
        return entry.step is None and self._names.overwritten(entry.name) is Overwritten.SURE

    def _objection(
        self, item: _Judged, moment: Moment, siblings: Siblings, beside: Mapping[str, _Judged]
    ) -> Optional[str]:
        """Return why an entry does not count at this moment, or `None`."""
        entry = item.entry
        reason = self._proofs.objection(entry, item.verdict, moment)
        is_known = self._proofs.of(entry) is not None
        if reason or not siblings.has(entry.name):
            return reason
        if not (is_known or moment.is_over) and (shape := siblings.missing(entry.name)) is not None:
            return f"{shape} is missing, which every other one has beside it"
        for name in siblings.of(entry.name):
            other = beside.get(name)
            if other is None or (is_known and self._was_proved(other, entry)):
                continue
            if why := self._proofs.objection(other.entry, other.verdict, moment):
                if other.verdict.complete is False:
                    self._cut.add(entry.name)
                elif not self._is_settled(other.entry, moment.now):
                    self._wait_for(other.entry)
                return f"{name} beside it: {why}"
        return None

    def _was_proved(self, item: _Judged, known: Entry) -> bool:
        """Return whether what is beside a known checkpoint is not surely cut, and was proved with it, or never seen."""
        if item.verdict.complete is False:
            return False
        return known.step is not None or (
            item.verdict.complete is None and self._proofs.known_at(item.entry.path) is None
        )

    def _wait_for(self, entry: Entry) -> None:
        """Have this directory looked at when an entry has settled."""
        settles_at = entry.mtime_ns / 1e9 + self._settle_s
        self.settles_at = min(settles_at, self.settles_at or settles_at)

    def _is_settled(self, entry: Entry, now: float) -> bool:
        return now - entry.mtime_ns / 1e9 >= self._settle_s

    def _is_newest(self, version: Entry, newest_ns: Optional[int]) -> bool:
        """Return whether an overwritten file counts beside checkpoints whose names state their steps."""
        if newest_ns is not None and version.mtime_ns <= newest_ns:
            return False
        if self._is_sure(version):
            return True
        is_known = self._proofs.known_at(version.path) is not None
        return newest_ns is None and (is_known or version.mtime_ns / 1e9 >= (self._begun or 0.0))

    def _followed_by(self, entry: Entry) -> Optional[int]:
        """Return the step of the version that this one has replaced; `None`: none, or unknown."""
        is_version = entry.step is None or self._names.is_dated(entry.name)  # a date may be that of the run
        known = self._proofs.known_at(entry.path) if is_version else None
        return known.step if known is not None and self._proofs.of(entry) is None else None

    def _turn_of(self, item: _Judged) -> float:
        """Return when an entry is numbered: those with a date in its order, files that are overwritten last."""
        step = item.entry.step
        return math.inf if step is None else step if self._names.is_dated(item.entry.name) else 0

    def _stated_step(self, entry: Entry) -> int:
        return 0 if self._names.is_dated(entry.name) else entry.step or 0

    def _step_of(self, entry: Entry, step_at: StepAt, highest: int) -> Tuple[int, bool]:
        """Return an entry's step, and whether that is only counted, from the highest that is known."""
        copy = copies.read_name(entry.name.rpartition("/")[2]) if _is_copy(entry.name) else None
        if copy is not None:
            return copy.step, copy.counted
        if entry.step is not None and not self._names.is_dated(entry.name):
            return entry.step, False
        known = self._proofs.of(entry)
        if known is not None:
            return known.step, known.counted
        reported = step_at(entry.mtime_ns / 1e9)
        return (highest + 1, True) if reported is None else (reported, False)

    def _judge_all(self, entries: Iterable[Entry], layouts: Sequence[str]) -> Iterator[_Judged]:
        for entry in entries:
            known = self._judged.get(entry.name)
            if known is not None and known.entry == entry:
                yield known
                continue
            try:
                layout, verdict = self._verify(entry, layouts)
            except OSError as error:
                self._why_not[entry.name] = _unreadable(error)
                continue
            verdict, part = part_of(entry, verdict) if self._is_local else (verdict, None)
            yield _Judged(entry, verdict, layout, part)

    def _verify(self, entry: Entry, layouts: Sequence[str]) -> Tuple[str, Verdict]:
        """Apply the only layout or, of several, the first that claims the entry."""
        name = next(name for name in layouts if len(layouts) == 1 or LAYOUTS[name].claims(entry))
        verdict = LAYOUTS[name].check(entry)
        if name == _MANIFEST and verdict.complete and self._is_hashed_now(entry):
            fault = self._hashes.fault(entry.path, mark_of(entry))
            verdict = verdict if fault is None else Verdict(False, fault)
        return name, verdict

    def _is_hashed_now(self, entry: Entry) -> bool:
        """Return whether to compare hashes now, and not only before resuming from it.

        Before the first scan there may be many checkpoints, and only the newest matters.
        """
        if not self._is_here:
            return False
        is_new = entry.mtime_ns / 1e9 >= (self._begun or 0.0) and self._proofs.of(entry) is None
        return is_new or self._hashes.knows(entry.path, mark_of(entry))

    def _entries(self) -> Iterator[Entry]:
        """Return every entry that may be a checkpoint and the state of its files."""
        listing = self._listed = self._listing("")
        latest = self._tracker(trackers.LATEST, listing)
        iteration = self._tracker(trackers.ITERATION, listing)
        for name in sorted(listing):
            inside = self._names.enters(name)
            candidates = self._listing(name) if inside else listing
            for base in sorted(candidates) if inside else [name]:
                relative = f"{name}/{base}" if inside else base
                entry = self._candidate(relative, candidates[base], candidates.get(base + BESIDE))
                if entry is not None:
                    yield self._proofs.tracked(entry, latest, iteration)
        if self._keeps_copies and copies.DIRECTORY in listing:
            yield from self._copies()

    def _candidate(self, name: str, item: Item, beside: Optional[Item]) -> Optional[Entry]:
        reading: Reading = self._names.read(name)
        if isinstance(reading, str):
            self._why_not[name] = reading
            if reading != TEMPORARY_NAME:
                self._unrecognised[name] = reading
            return None
        if reading is None and self._names.overwritten(name) is None:
            if self._names.resembles(name) or self._is_rewritten(name, item):
                self._unrecognised[name] = UNKNOWN_NAME
            return None
        return self._entry(name, reading, item, beside)

    def _is_rewritten(self, name: str, item: Item) -> bool:
        """Return whether a file of unknown name is overwritten repeatedly, as checkpoints are."""
        if not holds_weights(name):
            return False
        try:
            mtime_ns = item.stat().st_mtime_ns
        except OSError:
            return False
        return self._first_seen.setdefault(name, mtime_ns) != mtime_ns

    def _copies(self) -> Iterator[Entry]:
        listing = self._listing(copies.DIRECTORY)
        read = [copy for copy in map(copies.read_name, listing) if copy is not None]
        usable = {copy for name in {copy.of for copy in read} for copy in copies.copies_of(self._path, name)}
        for copy in sorted(usable.intersection(read)):
            entry = self._entry(copy.name, copy.step, listing[os.path.basename(copy.name)], None)
            if entry is not None:
                yield entry

    def _listing(self, directory: str) -> Mapping[str, Item]:
        """List a directory; one that is missing or cannot be read is empty and says why."""
        try:
            return self._place.listing(os.path.join(self._path, directory) if directory else self._path)
        except NotADirectoryError:
            reason = "it is not a directory"
        except OSError as error:
            reason = _unreadable(error)
        self._why_not[directory or "."] = reason
        return {}

    def _entry(self, name: str, step: Optional[int], item: Item, beside: Optional[Item]) -> Optional[Entry]:
        """Return the state of one candidate, `None` if it cannot be read."""
        try:
            state = item.stat()
            is_directory = stat.S_ISDIR(state.st_mode)
            if not is_directory and not stat.S_ISREG(state.st_mode):
                self._why_not[name] = "it is neither a file nor a directory"
                return None
            path = os.path.join(self._path, name)
            files = self._place.walk(path) if is_directory else {"": Stat.of(state)}
            manifest = Stat.of(beside.stat()) if beside is not None else None
        except OSError as error:
            self._why_not[name] = _unreadable(error)
            return None
        device, inode, where = state.st_dev, state.st_ino, self._place
        return Entry(name, path, step, is_directory, files, manifest, device=device, inode=inode, place=where)

    def _tracker(self, name: str, listing: Mapping[str, Item]) -> Optional[Tracker]:
        try:
            state = listing[name].stat() if name in listing else None
        except OSError:
            return None
        if state is None or not stat.S_ISREG(state.st_mode):
            return None
        return trackers.read(os.path.join(self._path, name), Stat.of(state), self._place)


def choose(
    checkpoints: Iterable[Checkpoint], limit: Optional[int] = None, avoid: Collection[int] = ()
) -> Optional[Checkpoint]:
    """Return the highest step that is not above `limit` and not in `avoid`; `None`: there is none.

    A version not seen before counts as the one that it has overwritten, which no longer exists.
    """
    allowed = [
        item
        for item in checkpoints
        if item.step not in avoid and (limit is None or min(item.step, item.follows or item.step) <= limit)
    ]
    return max(allowed, key=lambda item: item.step, default=None)


def _is_copy(name: str) -> bool:
    return name.startswith(f"{copies.DIRECTORY}/")


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
