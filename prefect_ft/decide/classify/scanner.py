"""One log, read as it comes: what in it may say why the run failed.

Owns the splitting into lines and the choice of what is kept: a bounded number of findings, whatever the
log. `root` weighs them against those of other ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import re2

from prefect_ft.decide.classify.before import Before
from prefect_ft.decide.classify.beginnings import Beginning, Warned
from prefect_ft.decide.classify.catalogue import Catalogue, Match, builtin_catalogue
from prefect_ft.decide.classify.chains import GENERIC, wraps_in_chain
from prefect_ft.decide.classify.closing import (
    Complaint,
    is_message_of_crash,
    is_of_tracker,
    last_complaints,
    reports_failure,
)
from prefect_ft.decide.classify.findings import (
    BUFFERED_BYTES,
    KEPT_LAST,
    WENT_ON,
    Finding,
    LogFindings,
    Store,
)
from prefect_ft.decide.classify.heads import ESCAPES, Line, after_time, read_line, stamp_of
from prefect_ft.decide.classify.kinds import (
    as_checked,
    as_kind,
    is_quoting,
    kind_said,
    leads_to_more,
    says_little,
)
from prefect_ft.decide.classify.progress import PLACES, Progress, place_of
from prefect_ft.decide.classify.repeats import Repeats
from prefect_ft.decide.classify.said import says_to_go_on
from prefect_ft.decide.classify.survived import ENDS_ITS_PROGRAM
from prefect_ft.decide.classify.tracebacks import (
    ASIDE,
    CHAINS,
    FRAME,
    HEADER,
    Raised,
    TracebackReader,
    draws_bar,
)
from prefect_ft.decide.classify.unreadable import as_read
from prefect_ft.signatures import Signature

__all__ = ["LogScanner"]

_HELD_BYTES = 1 << 16  # of a line that has not ended
_BLOCK_BYTES = 1 << 18  # that are read in one go: some steps cost more in longer ones
_LINE_BYTES = 4000  # of a line that is looked at: of a longer one what is around the spotted place
_FAR_BYTES, _BEFORE_BYTES = 2000, 1000  # from its beginning, from which on so much before the place is enough
_RANKS = 1024
_RUNS = 64  # of which the first lines are read
_TAIL_LINES, _TAIL_BYTES = 20, 4000
_ABOVE_LINES = 8  # how many lines above a traceback may be of other ranks, or bars
_CLOSING_LINES, _CLOSING_BYTES = 60, 8000  # in which complaints are looked for
_GAP_BYTES = 1 << 16  # of them with the empty lines below
_STAMP_COLUMNS, _STAMP_BYTES = 400, 4096  # of a finding's line and before it, in which its time is looked for
_AROUND_BYTES = 300  # before and after what says where a run is
_NEW_RUN, _THROUGH = "an earlier run", "the run then said that it was through"
_MESSAGE_LINES, _LONG_LINES = 8, 120
_ADVICE = re.compile(r"(?i)\b(?:complete|full) (?:stack ?trace|traceback)\b|=\w+ for more\b")
"""What libraries print below each exception: how to see more of it."""

_OF_A_GRAPH = "in user code:"
"""The message with which TensorFlow begins the traceback of a function that it traces; its end names the exception."""
_QUIET_LINES = 2000  # without anything of a traceback, after which open ones are given up

CountLines = Callable[[int, int], int]
"""Counts the line ends between two byte offsets of a log."""

PRINTED_LATE = "Setting OMP_NUM_THREADS environment variable for each process"
"""What a launcher prints at the beginning, possibly after everything else: output to a file is buffered."""

_LATE_BYTES = 2000
_FIRST_LINES = 3

RESTARTS = (
    "Starting elastic_operator with launch configs",
    "Restarting worker group",
    PRINTED_LATE,
    "Started a local Ray instance",
    "The following values were not passed to `accelerate launch`",
    "] dist_world_size=",
    "has been requeued",
    " Job executing on host: ",
    "run started, returning control to user process",
    "restarting training run",
)
"""Texts of the beginning of a run; what is before them is of an earlier one."""

FIRST_LINES = (
    "Namespace(",
    "nohup: ignoring input",
    "wandb: Currently logged in as: ",
    "wandb: Tracking run with wandb version ",
    "GPU available: ",
    "Global seed set to ",
    "Seed set to ",
    "Using TensorFlow backend.",
    "Using backend: ",
    "Ultralytics YOLO",
    "pygame 2.",
    "Importing module 'gym_",
)
"""How a line begins that a program, a library that it loads, or what starts it, prints first: what is before it is of
an earlier run, unless only several processes started one after the other."""

_AT_ONCE = FIRST_LINES[:2]
"""Those that are never printed late."""

ENDS_OF_JOBS = ("The output (if any) is above this job summary", "> for stderr output of this job")
"""Texts that close a scheduler's report of a job: what is after the last of them is another job's."""

ENDED_WELL = " exits successfully."
"""How DeepSpeed's launcher reports a process that has exited with 0; once one fails, it kills the others."""

SUCCEEDED = (
    "Process finished with exit code 0",
    "[Done] exited with code=0 ",
    "Exit Status:        0",
)
"""How editors and PBS (at NCI) report that a program has exited with 0."""

_TRAINED = "'train_runtime':"
"""What Hugging Face's trainer reports once a training is through, and nothing else does."""

ENDINGS = (
    _TRAINED,
    "raining complete",
    "raining finished",
    "raining done",
    "raining has finished",
    "raining is complete",
    "`Trainer.fit` stopped: `max_",
    " epochs completed in ",
    ENDED_WELL,
    *SUCCEEDED,
)
"""Texts of a completed run; a script prints them too, after any end."""

_FROM_BELOW = frozenset(("hardware", "oom_host"))
"""Classes that may end a run even where an exception of that class does not end its own process."""

_CTRL_C = "^C"
"""What a terminal shows when a person presses it."""

_PROGRESS_NEEDED = {"hardware": 5, "preempted": 40, "cancelled": 40, "oom_host": 5}
"""How many different places show that a finding did not end the run; two, where other ranks cannot continue."""


_OF_RANK, _LATE_PLACES = "[rank", 40
"""How torch begins the report of an exception that ended a rank. As the others are ended, they may print what they
did before, up to what a stream buffers."""

_HEAD_COLUMNS = 80  # in which it is looked for, behind another prefix


def _needed(one: Finding, *, may_be_late: bool) -> int:
    """Return how many places a finding needs; `may_be_late`: the lines that name them may be of another rank."""
    needed = _PROGRESS_NEEDED.get(one.signature.failure_class, 2)
    is_uncaught = one.raised is not None and _OF_RANK in one.rank
    return max(needed, _LATE_PLACES) if is_uncaught and may_be_late else needed


def _ends_program(finding: Finding) -> bool:
    """Return whether a finding is the exception, or the complaint about its arguments, that ended a program."""
    raised = finding.raised
    if raised is None:
        return finding.signature.id in ENDS_ITS_PROGRAM
    return not (raised.is_printed or raised.is_aside)


def _is_enough(places: int, losses: int, needed: int) -> bool:
    """Return whether as many places as needed have been seen, or, where many are, as many losses within an epoch."""
    return places >= needed or (needed >= _LATE_PLACES and losses >= needed)


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many line ends are before a place."""

    at: int = 0
    lines: int = 0


@lru_cache(maxsize=8)
def _spotter(catalogue: Catalogue) -> Any:
    return catalogue.spotter(HEADER, ASIDE, *CHAINS, FRAME, *RESTARTS, *ENDS_OF_JOBS, *ENDINGS, *FIRST_LINES)


@lru_cache(maxsize=1)
def _places() -> Any:
    return re2.compile(PLACES)


_LINE_END = re.compile(rb"[\n\r]")
_BOUND = re.compile("|".join(map(re.escape, (*RESTARTS, *ENDS_OF_JOBS))))
_END = re.compile("|".join(map(re.escape, ENDINGS)))
_SUCCESS = re.compile("|".join(map(re.escape, SUCCEEDED)))


class LogScanner:
    """Reads one log in pieces of any size."""

    def __init__(
        self, file: str = "", catalogue: Catalogue | None = None, count: CountLines | None = None
    ) -> None:
        """`count` counts lines in what has been fed, where the log can be read again: that avoids most counting."""
        self.file = file
        self._count = count
        self._catalogue = catalogue or builtin_catalogue()
        self._rest = self._block = self._last = b""
        self._fed = 0
        """Bytes before the block, without terminal sequences."""
        self._stored, self._length = 0, 0
        """Bytes of the log before the block, and of the block, as they are stored: `count` counts lines by them."""
        self._lines = _Counted()
        """Line ends before some place of the log, at most the beginning of the block."""
        self._here = _Counted()
        """Line ends of the block before some place of it."""
        self._order = 0
        self._kept = Store()
        self._readers: dict[str, TracebackReader] = {}
        self._open = 0
        self._quiet = 0
        self._chain: dict[str, Finding] = {}
        self._little: tuple[Finding, int] | None = None
        """An exception whose first line says little, and how many further lines of its message may say more."""
        self._progress = Progress()
        self._had_progress = False
        self._completed: int | None = None
        self._begun = 0
        self._is_job_over = False
        """Whether a scheduler has reported the end of a job, and nothing of interest has come since."""
        self._held: tuple[tuple[Finding, ...], int] = (), 0
        """The findings before the last line that may be printed late, and that line's place."""
        self._rank_ended = -BUFFERED_BYTES
        """The place of the last exception that ended a rank."""
        self._kept_at = 0
        """The place of the last finding."""
        self._warned = Warned()
        self._firsts: set[str] = set()
        """Which of the lines that programs print first have come."""
        self._before = Before()
        self._stamp: float | None = None
        self._begins_in_time = False
        """Whether launchers' first lines are first lines in this log: then none is printed late."""
        self._beginning = Beginning()
        self._runs = 0
        self._starts: deque[tuple[int, int]] | None = None
        """The first lines that this block repeats; None: not searched for yet."""
        self._earlier: tuple[Finding, ...] = ()
        """The findings before the last start that was recognised by its lines."""
        self._repeats = Repeats(self._catalogue.signatures)
        self._skipped: defaultdict[str, deque[tuple[int, int, int]]] = defaultdict(_last_places)
        """The last lines of a rule in this block that were not read: order, beginning, end."""

    # -- in ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take the next piece of the log; a line counts once it has ended."""
        for start in range(0, len(data), _BLOCK_BYTES):
            self._feed(data[start : start + _BLOCK_BYTES])

    def _feed(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _HELD_BYTES:
            end = data.rfind(b"\r") + 1 or len(data)
        self._rest = data[end:]
        if end:
            self._scan(data[:end])

    def feed_lines(self, lines: Iterable[str]) -> None:
        """Take whole lines, without newlines."""
        text = "\n".join(line.replace("\n", " ") for line in lines)
        if text:
            self.feed(text.encode(errors="replace") + b"\n")

    def pass_over(self, line: int) -> None:
        """Continue at this line, from 1; the lines between are missing."""
        self._end_line()
        self._begin(0)
        self._block = self._last = b""
        self._lines = _Counted(self._stored, line - 1)
        self._give_up()

    def findings(self) -> LogFindings:
        """Return the result so far; an unfinished line is taken as it is."""
        self._end_line()
        closing = self._closing()
        for rank, reader in self._readers.items():
            if (raised := reader.broken_off()) is not None and closing:
                self._end_within(raised, rank, closing)
        last = self._tail()
        tail = tuple(line.text for _, line in last)
        return LogFindings(
            file=self.file,
            findings=(*(self._earlier if self._is_warned_at_end() else ()), *self._kept.in_order()),
            held_back=self._held_back(),
            earlier=self._earlier,
            is_warned=self._warned.at >= 0,
            tail=tail,
            bytes_after=self._end - self._kept_at,
            closing_ranks=tuple(line.rank for _, line in closing),
            had_progress=self._had_progress or _is_progress(tail),
            completed=self._completed,
            begun=self._begun,
            goes_on=self._before.goes_on([line for _, line in closing], self._end),
            breaks_off=any(reader.breaks_off for reader in self._readers.values()),
            over=self._kept.over(),
            survived=self._kept.survived(),
            complaints=self._complaints(closing),
            number_of_tail=lambda index: self._number(len(self._block)) - last[index][0],
        )

    @property
    def _end(self) -> int:
        """The offset at which the block ends."""
        return self._fed + len(self._block)

    def _is_warned_at_end(self) -> bool:
        recent = (self._last + self._block)[-_CLOSING_BYTES:]
        return self._warned.is_at_end(recent, self._end - len(recent))

    def _held_back(self) -> tuple[Finding, ...]:
        """Return the findings before the log's last lines, if these report a beginning that no run follows."""
        held, at = self._held
        is_last = self._end - at < _LATE_BYTES
        is_seen = any(one.raised is not None for one in self._kept.in_order())
        return held if is_last and not is_seen else ()

    def _end_line(self) -> None:
        if self._rest:
            self._scan(self._rest)
            self._rest = b""

    # -- a block of lines -------------------------------------------------------------------------

    def _scan(self, block: bytes) -> None:
        self._begin(len(block))
        if b"\x1b" in block:
            block = ESCAPES.sub(b"", block)
        spotter, at, end = _spotter(self._catalogue), 0, len(block)
        self._block = block
        self._beginning.take(block, self._fed)
        while at < end:
            if self._open:
                at = self._step(at, at)
                continue
            hit = spotter.search(block, at)
            spotted = end if hit is None else hit.start()
            if self._kept or self._held[0] or self._earlier:
                self._watch(at, spotted)
                self._find_beginning(at, spotted)
            at = end if hit is None else self._meet(at, spotted)
        self._catch_up()

    def _meet(self, at: int, spotted: int) -> int:
        """Read the line at `spotted`, and skip repeated ones; return where to continue."""
        if self._repeats:
            start = max(at, self._block.rfind(b"\n", at, spotted) + 1)
            if (after := self._skip_repeats(start)) > start:
                return after
        return self._skip_repeats(self._step(at, spotted))

    def _skip_repeats(self, at: int) -> int:
        """Skip the lines from a place on whose result is already known; return where they end."""
        block = self._block
        while not self._open and (stop := block.find(b"\n", at, at + _LINE_BYTES)) != -1:
            rule = self._repeats.rule_of(block[at:stop])
            if rule is None or (rule and self._kept.is_among_the_first(rule)):
                break
            self._order += 1
            if rule:
                self._skipped[rule].append((self._order, at, stop))
                self._progress.clear()
            at = stop + 1
        return at

    def _catch_up(self) -> None:
        """Read the last of the lines that were skipped."""
        if not self._skipped:
            return
        passed = sorted(place for places in self._skipped.values() for place in places)
        self._skipped.clear()
        now = self._order
        for self._order, start, stop in passed:
            line = read_line(self._block[start:stop])
            if (match := self._catalogue.find(line.views)) is not None:
                self._kept.add(self._finding(match, line, start, None))
        self._order = now

    def _begin(self, length: int) -> None:
        """Start a block of stored bytes; the previous one is counted now if it cannot be counted later."""
        self._stored += self._length
        if self._count is None and self._length:
            rest = self._block.count(b"\n", self._here.at)
            self._lines = _Counted(self._stored, self._lines.lines + self._here.lines + rest)
        recent = self._last + self._block
        text = recent.rstrip(b"\r\n")
        self._last = (text[-_CLOSING_BYTES:] + recent[len(text) :])[-_GAP_BYTES:]
        self._fed = self._end
        self._length = length
        self._here = _Counted()
        self._starts = None

    def _step(self, at: int, spotted: int) -> int:
        """Read the stretch of text around `spotted`; return where the one after begins."""
        start, stop = self._stretch(spotted, at)
        after = stop + 1
        if stop - start > _LINE_BYTES:
            if spotted - start >= _FAR_BYTES:
                start = spotted - _BEFORE_BYTES
            stop = after = min(stop, start + _LINE_BYTES)
        if stop > start:
            if self._kept:
                self._find_beginning(start, stop)
            self._read(self._block[start:stop], start)
        return after

    def _number(self, at: int) -> int:
        """Return the number of the line at a place of this block, from 1; each place is behind the one before."""
        if self._lines.at < self._stored:
            assert self._count is not None
            more = self._count(self._lines.at, self._stored)
            self._lines = _Counted(self._stored, self._lines.lines + more)
        here = self._here
        self._here = _Counted(at, here.lines + self._block.count(b"\n", here.at, at))
        return self._lines.lines + self._here.lines + 1

    def _tail(self) -> list[tuple[int, Line]]:
        return self._closing(_TAIL_BYTES, _TAIL_LINES)

    def _closing(self, size: int = _CLOSING_BYTES, count: int = _CLOSING_LINES) -> list[tuple[int, Line]]:
        """Return the last lines, each with how many line ends follow its beginning."""
        recent = self._last + self._block
        text = recent.rstrip(b"\r\n")
        last = text[-size:].split(b"\n")[-2 * _CLOSING_LINES :]
        after = len(last) - 1 + recent.count(b"\n", len(text))
        if len(text) > size and len(last) > 1:
            last[0] = b""  # the end of a line says something else than the whole
        lines: list[tuple[int, Line]] = []
        for number in range(len(last) - 1, -1, -1):
            line = read_line(ESCAPES.sub(b"", last[number].rstrip(b"\r").rpartition(b"\r")[2]))
            if line.text:
                lines.insert(0, (after - number, line))
            if len(lines) == count:
                break
        if not lines and (wiped := text.rstrip()):
            lines.append((0, read_line(ESCAPES.sub(b"", wiped.rpartition(b"\r")[2]))))
        return lines

    def _complaints(self, closing: list[tuple[int, Line]]) -> tuple[Complaint, ...]:
        """Return the complaints among the last lines that no signature matches."""
        lines = [(-after, line) for after, line in closing]
        said = last_complaints(lines, self._is_explained)
        if not said:
            return ()  # lines are counted only where their number is needed
        ends = self._number(len(self._block))
        kept = self._kept.in_order()
        found = {finding.line for finding in kept if not is_message_of_crash(finding.text)}
        numbered = (replace(one, line=ends + one.line) for one in said)
        return tuple(one for one in numbered if one.line not in found)

    def _is_explained(self, line: Line) -> bool:
        """Return whether the catalogue has an entry for a line, other than one that is found in tracebacks only."""
        match = self._catalogue.find(line.views)
        return match is not None and self._catalogue.is_spotted(match.signature)

    # -- progress ---------------------------------------------------------------------------------

    def _watch(self, at: int, end: int) -> None:
        """Check whether the run progresses between two places: then earlier findings did not end it."""
        while (self._kept or self._held[0] or self._earlier) and at < end:
            place = _places().search(self._block, at, end)
            if place is None:
                return
            start, stop = self._stretch(place.start(), max(at, place.start() - _AROUND_BYTES))
            text = self._block[start : min(stop, place.start() + _AROUND_BYTES)]
            self._note_place(text.decode(errors="replace"), self._fed + start)
            at = max(stop, place.end())

    def _find_beginning(self, at: int, end: int) -> None:
        """Check whether the program starts again between two places; earlier findings are then an earlier run's."""
        if self._kept and (place := self._warned.search(self._block, at, end)) is not None:
            self._catch_up()
            self._begin_again()
            self._warned.at = self._fed + place
        if not self._beginning.is_closed:
            return
        if self._starts is None:
            self._starts = self._beginning.occurrences(self._block, at)
        while self._starts and self._starts[0][0] < end:
            place, index = self._starts.popleft()
            if place >= at and self._beginning.see(index, self._fed + place, partial(self._pause_s, place)):
                self._catch_up()
                self._begin_again()

    def _pause_s(self, at: int) -> float:
        """Return how long after the line above it a line of this block was logged; 0 if either has no time."""
        line = self._block[at : at + _STAMP_COLUMNS].partition(b"\n")[0]
        above = self._recent(at).rstrip().rpartition(b"\n")[2][:_STAMP_COLUMNS]
        began, last = (stamp_of(text.decode(errors="replace")) for text in (line, above))
        return 0.0 if began is None or last is None else began - last

    def _begin_again(self) -> None:
        """Keep the findings so far in reserve: they seem to be of an earlier run."""
        earlier = self._kept.in_order() or self._earlier
        self._begin_run(None)
        self._earlier = earlier

    def _take_beginning(self, at: int) -> None:
        """Read the first lines of the run that begins at a place."""
        if self._runs < _RUNS:
            self._runs += 1
            self._beginning = Beginning()
            self._beginning.take(self._block[at:].lstrip(b"\r\n"), self._fed + at)
            self._starts = None

    def _stretch(self, at: int, floor: int) -> tuple[int, int]:
        """Return the bounds of the text around a place, between line ends or carriage returns."""
        block = self._block
        start = max(block.rfind(b"\n", floor, at), block.rfind(b"\r", floor, at)) + 1 or floor
        ceiling = min(len(block), at + _LINE_BYTES + 1)
        stop = _LINE_END.search(block, at, ceiling)
        return start, stop.start() if stop else ceiling

    def _note_place(self, text: str, at: int) -> None:
        places = self._progress.see(text)
        if places < 2:
            return
        self._catch_up()
        self._had_progress = True
        self._held = (), 0
        self._earlier = ()
        may_be_late = at - self._rank_ended <= BUFFERED_BYTES and _OF_RANK not in text[:_HEAD_COLUMNS]
        losses = self._progress.losses if at - self._kept_at > BUFFERED_BYTES else 0
        self._kept.forget(
            lambda one: _is_enough(places, losses, _needed(one, may_be_late=may_be_late)), WENT_ON
        )
        self._chain.clear()

    # -- a line -----------------------------------------------------------------------------------

    def _read(self, raw: bytes, at: int) -> None:
        line = read_line(raw[:_LINE_BYTES])
        if not line.text:
            return
        self._catch_up()
        self._order += 1
        bound = _BOUND.search(line.text)
        is_restart = bound is not None and bound[0] in RESTARTS
        if is_restart or (self._is_job_over and bound is None):
            is_launchers = PRINTED_LATE in line.text
            self._begins_in_time |= is_launchers and self._is_at_top(at)
            self._begin_run(at if is_launchers and not self._begins_in_time else None)
        self._is_job_over = bound is not None and not is_restart
        if bound is not None:
            self._take_beginning(at + len(raw))
            return
        is_first = line.views[-1].startswith(FIRST_LINES) or line.text.startswith(FIRST_LINES)
        if is_first:
            self._note_first_line(line)
        is_end = _END.search(line.text) is not None and not reports_failure(line.text)
        if is_end:
            is_success = _SUCCESS.search(line.text) is not None
            if _TRAINED in line.text:
                self._kept.forget(lambda one: one.rank == line.rank, _THROUGH)
            self._complete(is_stated=ENDED_WELL in line.text, is_success=is_success)
        if self._little is not None:
            self._read_on(self._little[0], line, at)
        if self._read_traceback(line, at) and not line.text.startswith(_CTRL_C):
            return
        rule = self._read_message(line, at)
        if not (self._open or is_first or is_end or place_of(line.text)):
            self._repeats.note(raw, rule)

    def _note_first_line(self, line: Line) -> None:
        """Take a line that a program prints first: one that has come before marks another start.

        Else it may be the same program's, which prints late what it had buffered.
        """
        first = next(text for text in FIRST_LINES if any(view.startswith(text) for view in line.views))
        if self._kept and (first in self._firsts or first in _AT_ONCE):
            self._begin_again()
        self._firsts.add(first)

    def _is_at_top(self, at: int) -> bool:
        return self._fed == 0 and self._block.count(b"\n", 0, at) < _FIRST_LINES

    def _begin_run(self, printed_late: int | None) -> None:
        """Drop findings of earlier runs in this log.

        `printed_late` is the place of a line that may be printed only after the run whose beginning it reports.
        """
        if printed_late is not None:
            self._held = self._kept.in_order(), self._fed + printed_late
        if self._little is not None:
            self._little = None
            self._open -= 1
        self._kept.clear(_NEW_RUN)
        self._earlier, self._warned.at = (), -1
        self._chain.clear()
        self._progress.clear()
        self._completed = None
        self._begun = self._order

    def _complete(self, *, is_stated: bool, is_success: bool) -> None:
        """Note that the run reports its completion, which counts if it progressed after the earlier findings.

        `is_stated`: its launcher reports it; then only exceptions still count. `is_success`: its exit code was 0.
        """
        if is_stated:
            self._kept.forget(lambda one: one.raised is None, _THROUGH)
        if is_success or not self._kept or self._progress.places:
            self._kept.clear(_THROUGH)
            self._chain.clear()
            self._completed = self._order

    def _read_traceback(self, line: Line, at: int) -> bool:
        """Pass the line to its rank's reader; return whether it belongs to a traceback, and is not one as a whole."""
        if line.text.startswith("{"):
            return False
        reader = self._reader(line.rank)
        was_open = reader.is_open
        taken, raised = reader.feed(line.text, self._order, partial(self._line_before, at, line.rank))
        if reader.is_open and not was_open and reader.link is None:
            self._before.keep(
                self._last + self._block[max(0, at - _TAIL_BYTES) : at], self._fed + at, line.rank
            )
        self._open += reader.is_open - was_open
        self._quiet = 0 if taken else self._quiet + 1
        if self._quiet > _QUIET_LINES:
            self._give_up()
        if raised is not None:
            self._end_of(raised, reader, line, at)
        return taken

    def _line_before(self, at: int, rank: str) -> str:
        """Return the line above the one at a place of this block, of the same rank if one is near; no bar."""
        above = [raw for raw in _LINE_END.split(self._recent(at))[-_ABOVE_LINES:] if raw]
        texts = [
            (raw, text) for raw in reversed(above) if not draws_bar(text := raw.decode(errors="replace"))
        ]
        of_rank = (text for raw, text in texts if read_line(raw).rank == rank)
        return next(of_rank, texts[0][1] if texts else "")

    def _above(self, at: int) -> Iterable[str]:
        """Return the last lines above a place of this block."""
        return (text.decode(errors="replace") for text in _LINE_END.split(self._recent(at)))

    def _recent(self, at: int) -> bytes:
        """Return what precedes a place of this block, of a length that is looked at."""
        here = self._block[max(0, at - _TAIL_BYTES) : at]
        return here if at >= _TAIL_BYTES else self._last[at - _TAIL_BYTES :] + here

    def _level_above(self, at: int) -> str:
        """Return the level of the message that an indented line at a place of this block continues."""
        for text in reversed([*self._above(at)]):
            line = read_line(text.encode(errors="replace"))
            if line.text and not after_time(line.text)[:1].isspace():
                return line.level
        return ""

    def _reader(self, rank: str) -> TracebackReader:
        if rank not in self._readers and len(self._readers) >= _RANKS:
            self._give_up()
        return self._readers.setdefault(rank, TracebackReader())

    def _give_up(self) -> None:
        self._readers.clear()
        self._open = self._quiet = 0
        self._little = None

    def _end_of(self, raised: Raised, reader: TracebackReader, line: Line, at: int) -> None:
        """Note an exception, or what it only wraps."""
        link, reader.link = reader.link, None
        match = self._catalogue.find((raised.text,), is_raised=True) or Match(GENERIC, raised.text)
        if match.signature.role == "noise":
            return
        if not reader.is_fatal and match.signature.failure_class not in _FROM_BELOW:
            return
        match = match._replace(signature=as_kind(as_read(match.signature, raised), raised))
        if raised.is_of_feeder and match.signature.role == "cascade":
            raised = replace(raised, is_aside=True)
        finding = self._finding(match, line, at, raised)
        if raised.asserted and finding.text == raised.name and raised.plain_name == "AssertionError":
            finding = replace(finding, text=f"{finding.text}: {raised.asserted}"[:_LINE_BYTES])
        earlier = self._chain.pop(line.rank, None) if link else None
        if earlier is not None:
            self._kept.drop(earlier)
            if link != HEADER and wraps_in_chain(finding, earlier, is_direct=link == CHAINS[0]):
                assert earlier.raised is not None
                finding = replace(
                    earlier, raised=replace(earlier.raised, outermost=raised.outermost, ended=self._order)
                )
        self._chain[line.rank] = finding
        self._keep(finding, at)
        if _OF_RANK in line.rank:
            self._rank_ended = self._fed + at
        if finding.raised is raised:
            self._expect_more(finding, raised.message)

    def _expect_more(self, finding: Finding, message: str) -> None:
        """Expect further lines of a message whose first one says little and leads to them."""
        leads_on = leads_to_more(finding.signature, message)
        if leads_on or (finding.signature.role == "cascade" and finding.signature.failure_class == "crash"):
            self._open += self._little is None
            is_long = message.lower() == _OF_A_GRAPH or is_quoting(message)
            self._little = finding, _LONG_LINES if is_long else _MESSAGE_LINES

    def _end_within(self, raised: Raised, rank: str, closing: list[tuple[int, Line]]) -> None:
        """Note an exception in whose traceback the log breaks off."""
        match = self._catalogue.find((raised.text,), is_raised=True) or Match(GENERIC, raised.text)
        signature = as_kind(as_read(match.signature, raised), raised)
        after, last = closing[-1]
        ends = self._number(len(self._block))
        self._kept.add(
            Finding(
                signature=signature,
                text=last.text[:_LINE_BYTES],
                line=ends - after,
                order=self._order,
                rank=rank,
                raised=raised,
            )
        )

    def _read_on(self, finding: Finding, line: Line, at: int) -> None:
        """Read a further line of a message whose first line says little."""
        assert self._little is not None
        left = self._little[1] - 1
        matches_other = finding.signature.role == "cascade" and self._matches_other_signature(line, finding)
        is_over = HEADER in line.text or is_of_tracker(line.text) or _ADVICE.search(line.text) is not None
        is_more = line.rank == finding.rank and not (is_over or matches_other)
        said = self._said_within(line) if is_more else None
        if said is not None:
            self._kept.drop(finding)
            more = replace(finding, signature=said, text=line.text[:_LINE_BYTES], line=self._number(at))
            self._kept.add(more)
            if self._chain.get(line.rank) is finding:
                self._chain[line.rank] = more
        if said is not None or left <= 0 or matches_other or is_over:
            self._little = None
            self._open -= 1
        else:
            self._little = finding, left

    def _said_within(self, line: Line) -> Signature | None:
        """Return what a further line of a message says: the kind of the failure, or the exception within."""
        if (inner := _INNER.match(after_time(line.text))) is not None:
            raised = Raised(inner[1], inner[2], self._order)
            match = self._catalogue.find((raised.text,), is_raised=True)
            return as_kind(GENERIC if match is None else match.signature, raised)
        return kind_said(line.text)

    def _matches_other_signature(self, line: Line, finding: Finding) -> bool:
        """Return whether a line matches a signature other than the finding's."""
        match = self._catalogue.find(line.views)
        return match is not None and match.signature is not finding.signature

    def _read_message(self, line: Line, at: int) -> str:
        """Note what a line says; return the rule that it follows, empty if it says nothing."""
        match = _stated_in(line.views, self._catalogue)
        if match is None or _OF_CODE.match(after_time(line.text)) is not None:
            if self._open and self._kept:
                self._note_place(line.text, self._fed + at)
            return ""
        if match.signature.role not in ("root", "cascade"):
            return ""
        match = match._replace(signature=as_checked(match.signature, match.text))
        finding = self._finding(match, line, at, None)
        if _continues(line) and match.signature.failure_class not in _OUTSIDE:
            finding = replace(finding, level=self._level_above(at))
        if says_to_go_on(match.text) or line.text.startswith(_TRACKER):
            finding = replace(finding, level="I")
        mention = None if match.signature.id in _REPORTS else _mention_in(match, line.views)
        if mention is not None:
            if match.signature.failure_class == "assertion" or (named := _NAMED.match(mention)) is None:
                return ""
            finding = replace(
                finding, signature=_kind_of(match.signature, named, self._order), is_mention=True
            )
            self._keep(finding, at)
            self._expect_more(finding, named[2])
            return match.signature.id
        if says_little(match.signature) and (named := _NAMED.match(match.text)) is not None:
            finding = replace(finding, signature=_kind_of(match.signature, named, self._order))
        self._keep(finding, at)
        return match.signature.id

    def _finding(self, match: Match, line: Line, at: int, raised: Raised | None) -> Finding:
        return Finding(
            signature=match.signature,
            text=match.text[:_LINE_BYTES],
            line=self._number(at),
            order=self._order,
            rank=line.rank,
            level=line.level,
            raised=raised,
            stamp=self._time(at) if self._kept.is_among_the_first(match.signature.id) else None,
        )

    def _time(self, at: int) -> float | None:
        """Return when a line was written: the last full time in or before it."""
        line = self._block[at : at + _STAMP_COLUMNS].partition(b"\n")[0]
        for text in (line, self._block[max(0, at - _STAMP_BYTES) : at]):
            if (stamp := stamp_of(text.decode(errors="replace"))) is not None:
                self._stamp = stamp
                break
        return self._stamp

    def _keep(self, finding: Finding, at: int) -> None:
        if not (self._kept or self._had_progress):
            self._had_progress = _is_progress(self._above(at))
        self._kept.add(finding)
        self._kept_at = self._fed + at
        self._warned.rank = finding.rank if _ends_program(finding) else None
        self._warned.is_first = not self._had_progress
        self._progress.clear()
        self._beginning.close(self._kept_at)
        self._beginning.clear()


def _last_places() -> deque[tuple[int, int, int]]:
    return deque(maxlen=KEPT_LAST)


def _is_progress(tail: Iterable[str]) -> bool:
    places = Progress()
    return any(places.see(text) >= 2 for text in tail)


_POSSIBLE = re.compile(
    r"(?i)\b(?:common|possible|potential|likely) (?:causes?|reasons?)\b|"
    r"\b(?:this |it |which )?(?:might|may|could|can) (?:also |often )?be (?:caused by|due to|because|the result of)\b"
)
"""What precedes causes that a message only supposes: none of them is stated."""

_SUPPOSES = ("ause", "eason", "due to", "result of")
"""Texts of which each match contains one: most lines need no further check."""


def _stated_in(views: tuple[str, ...], catalogue: Catalogue) -> Match | None:
    """Return what a line says, apart from what it only supposes."""
    if not any(text in views[0] for text in _SUPPOSES) or _POSSIBLE.search(views[0]) is None:
        return catalogue.find(views)
    match = catalogue.find([_POSSIBLE.split(view)[0] for view in views])
    whole = next((view for view in views if match is not None and view.startswith(match.text)), "")
    return match and match._replace(text=whole)


_TRACKER = "wandb: "
"""How wandb begins what it says beside the run, of its own connections too."""

_OF_CODE = re.compile(
    r"\s+(?:#|//|(?:raise|return|assert)\b|(?:\w+\.)*(?:print|log|logger|warn|warning|debug|info|error|exception)\w*\()"
)
"""How an indented line of a program's own code begins, which some programs write to their logs."""

_OUTSIDE = frozenset(("cancelled", "preempted"))


def _continues(line: Line) -> bool:
    """Return whether a line without a level of its own is indented, and no bar."""
    return not line.level and after_time(line.text)[:1].isspace() and "%|" not in line.text


_INNER = re.compile(r"\s+([A-Za-z_][\w.]*(?:Error|Exception)): (.+)")
_EXCEPTION = re.compile(r"(?!Error: )[\w.]*(?:Error|Exception|Exit)(?:[:(.,]|\s*$)")
_REPORTS = frozenset(("julia-code",))
"""How a language reports what ended its program: no mention of an exception."""

_NAMED = re.compile(r"([A-Za-z_][\w.]*): (.+)")
_HANDED_ON = re.compile(r"[\w.]+: Caught \w+ in ")


def _kind_of(signature: Signature, named: re.Match[str], order: int) -> Signature:
    """Correct the finding of an exception that only a line names by the exception's kind."""
    return as_kind(signature, Raised(named[1], named[2], order))


def _mention_in(match: Match, views: tuple[str, ...]) -> str | None:
    """Return the view of a line that only names an exception: without a traceback it ends nothing for certain."""
    form = _EXCEPTION if match.signature.role == "root" else _HANDED_ON
    return next((view for view in views if form.match(view) is not None), None)
