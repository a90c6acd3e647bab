"""Hands on what ranks print and report, as fast as the reader takes it; their files keep the rest."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional

from prefect_ft.worker import inotify
from prefect_ft.worker.current import Current
from prefect_ft.worker.gang import Rank
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.reporter import Reporter

COALESCE_S = 0.05
"""How long changes of output are gathered before they are read: bounds the cost of a chatty rank."""

MAX_TURNS = 8
"""Pieces of each rank to hand on before other events are handled: a reader may be as fast as a rank."""

UNWATCHED_S = 0.5
"""How often to look for output where changes of files cannot be watched."""


class Forwarder:
    """`stays`: ranks' output stays in its files, and only excerpts are handed on."""

    def __init__(
        self,
        directory: str,
        current: Current,
        *,
        stays: bool,
        loop: Loop,
        reporter: Reporter,
        on_first_line: Callable[[], None],
        on_caught_up: Callable[[], None],
    ) -> None:
        """`directory` is that of the ranks' files. `on_first_line()` is called once for each attempt.

        `on_caught_up()` is called whenever all that the ranks have left has been handed on.
        """
        self._current, self._stays = current, stays
        self._loop, self._reporter = loop, reporter
        self._on_first_line, self._on_caught_up = on_first_line, on_caught_up
        self._has_printed = False
        """Whether a rank of this attempt has printed anything."""
        self._is_behind = False
        """Whether output remains that could not be handed on yet."""
        self._excerpts_due: List[Rank] = []
        """The ranks whose excerpt is still to be sent."""
        self._excerpts: Dict[int, int] = {}
        """Up to which offset the reader has had an excerpt of each rank."""
        self._changes = _changes_of(directory)
        if self._changes is not None:
            loop.watch(self._changes, lambda _: self._files_changed())

    def begin(self) -> None:
        """Hand on what the current attempt prints from now on."""
        self._has_printed = False
        self._excerpts.clear()
        if self._changes is None:
            self._files_changed()
        elif self._loop.is_set("changes"):  # the first line is reported when it comes
            self._loop.drop("changes")
            self._read_changes()

    def forget(self) -> None:
        """Send no more excerpts: no reader waits for them."""
        self._excerpts_due.clear()

    def end(self, *, with_excerpts: bool) -> None:
        """Note that the ranks have ended: hand on the rest of their output, or an excerpt of each."""
        self._excerpts_due = self._current.ranks if with_excerpts and self._stays else []

    def rewind(self, have: Dict[str, int]) -> None:
        """Go back, in each rank's output, to the offset at which a new reader stopped."""
        self._excerpts.clear()
        for rank in self._current.ranks:
            rank.rewind(have.get(str(rank.number), 0))

    def excerpts(self) -> Dict[int, Dict[str, Any]]:
        """Return an excerpt of all that each rank printed, for a reader that comes after this agent has gone."""
        return {rank.number: rank.spool.excerpt_of_all() for rank in self._current.ranks}

    def hand_on(self) -> None:
        """Hand on beats, reports and output as fast as the reader takes them."""
        if self._hand_on(self._current.ranks) and self._send_excerpts():
            self._on_caught_up()

    def hand_on_last(self, rank: Rank) -> None:
        """Hand on what a rank printed before it ended, as much as the reader takes without a wait."""
        for _ in range(MAX_TURNS):
            if not (self._stays or self._reporter.has_room) or not self._take_piece(rank, final=True):
                break
        if self._stays and self._reporter.has_room:
            self._send_excerpt(rank)

    def _hand_on(self, ranks: Iterable[Rank]) -> bool:
        """Hand on the output of these ranks; False: some remains."""
        waiting = ranks = list(ranks)
        if not self._has_printed and any(rank.spool.has_begun for rank in ranks):
            self._has_printed = True
            self._on_first_line()
        for rank in ranks:
            self._send_beat(rank)
            self.send_reports(rank)
        is_over = self._current.gang is not None and self._current.is_over
        for _ in range(MAX_TURNS):  # in turns, so that a rank that prints a lot does not delay others
            if not waiting or not (self._stays or self._reporter.has_room):
                break
            waiting = [rank for rank in waiting if self._take_piece(rank, final=is_over)]
        else:
            self._loop.after("more", 0.0, self.hand_on)
        for rank in ranks:
            rank.spool.bound()
        self._is_behind = bool(waiting)
        return not waiting

    def _send_beat(self, rank: Rank) -> None:
        beat = rank.new_beat() if self._reporter.has_room else None
        if beat is not None:
            self._reporter.send("beat", rank=rank.number, **beat._asdict(), **rank.new_values())

    def send_reports(self, rank: Rank) -> None:
        """Send a rank's reports of in-process restarts and faults."""
        for event, reports in (("in_process", rank.restarts), ("fault", rank.faults)):
            for number, report in reports.new() if self._reporter.has_room else ():
                self._reporter.send(event, rank=rank.number, n=number, report=report)

    def _take_piece(self, rank: Rank, *, final: bool) -> bool:
        """Take one piece of a rank's output, with `final` also a line without an end; False: there is none."""
        return rank.spool.sift(final) if self._stays else self._send_piece(rank, final)

    def _send_piece(self, rank: Rank, final: bool) -> bool:
        """Send one piece of a rank's output; False: there is none."""
        if rank.spool.dropped:
            self._reporter.send("dropped", rank=rank.number, bytes=rank.spool.dropped)
            self._reporter.send("excerpt", rank=rank.number, **rank.spool.excerpt())
            rank.spool.dropped = 0
        piece = rank.spool.next_piece(final)
        if piece is None:
            return False
        text = piece.data.decode("utf-8", "surrogateescape")
        self._reporter.send("output", rank=rank.number, offset=piece.offset, text=text)
        return True

    def _send_excerpts(self) -> bool:
        """Send excerpts that may explain why the ranks ended; False: some remain."""
        while self._excerpts_due and self._reporter.has_room:
            self._send_excerpt(self._excerpts_due.pop())
        return not self._excerpts_due

    def _send_excerpt(self, rank: Rank) -> None:
        """Send an excerpt, unless the reader has the same already."""
        excerpt = rank.spool.excerpt()
        if self._excerpts.get(rank.number) != excerpt["bytes"]:
            self._excerpts[rank.number] = excerpt["bytes"]
            self._reporter.send("excerpt", rank=rank.number, **excerpt)

    # -- changes of files -------------------------------------------------------------------------

    def _files_changed(self) -> None:
        """Read with a delay: a rank that prints a lot must not wake the agent at every line."""
        if self._changes is None:
            self._loop.after("changes", UNWATCHED_S, self._look_for_changes)
        elif not self._has_printed:
            self._read_changes()  # the time of the first line is reported, so it is not delayed
        else:
            self._loop.forget(self._changes)
            self._loop.after("changes", COALESCE_S, self._read_changes)

    def _look_for_changes(self) -> None:
        self.hand_on()
        if not self._current.is_idle:
            self._files_changed()

    def _read_changes(self) -> None:
        assert self._changes is not None
        changes = self._changes.read()
        self._loop.watch(self._changes, lambda _: self._files_changed())
        if any(change.mask & inotify.Q_OVERFLOW for change in changes):
            self.hand_on()
        elif self._current.gang is not None:
            by_file = self._current.gang.by_file
            changed = {by_file[change.name] for change in changes if change.name in by_file}
            self._hand_on(self._current.ranks if self._is_behind else changed)  # in turns, if others wait too


def _changes_of(directory: str) -> Optional[inotify.Inotify]:
    """Watch a directory's files; None where the user's limits allow no more watches."""
    try:
        changes = inotify.Inotify()
    except OSError:
        return None
    try:
        changes.watch(directory, inotify.MODIFY)
    except OSError:
        changes.close()
        return None
    return changes
