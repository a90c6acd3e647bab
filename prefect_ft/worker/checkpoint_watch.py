"""Looks for checkpoints in a thread of its own: a file system that hangs must not hang the agent.

Everything that touches the checkpoint directory happens in that thread. It looks when asked, and from then on
by itself when something has changed; where changes cannot be watched, only when asked.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import queue
import select
import sys
import threading
import time
from types import MappingProxyType
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from prefect_ft.worker import inotify
from prefect_ft.worker.checkpoints import ALL, NOTHING, Checkpoint, Finder, Known, choose, known_by_path
from prefect_ft.worker.checkpoints.entry import FILE_SYSTEM, AwayError, Place

LOOK_DELAY_S = 0.25
"""How long after a change to look at the directory, so that one save causes one look."""

_AFTER_S = 0.01
"""How long after a file has settled to look: its time may have been rounded."""

_LONG_S = 60.0
"""How long to wait at most for a file to settle: clocks of other machines may run ahead of this one's."""

LOOK_SHARE = 20
"""After a change, the pause as a multiple of the last look's duration: bounds the cost of large trees."""

_WROTE = inotify.CREATE | inotify.MODIFY | inotify.CLOSE_WRITE | inotify.DELETE | inotify.MOVED_FROM


class Criteria(NamedTuple):
    """Which checkpoint to take: the highest step up to `limit` (None: any) that is not in `avoid`.

    `verified` is what was verified before, by others too, by path. `unreadable` are those to be avoided that could
    not be loaded. `gives_way`: which overwritten files that do not count are replaced or renamed, if copies are kept.
    """

    limit: Optional[int]
    avoid: List[int]
    verified: Mapping[str, Known] = MappingProxyType({})
    unreadable: Sequence[int] = ()
    gives_way: str = ALL


def criteria_of(order: Mapping[str, Any]) -> Criteria:
    """Return the criteria of the order `choose`; orders of earlier versions have fewer fields."""
    limit = order["limit"]
    known = known_by_path(order.get("verified", []))
    gives_way = order.get("gives_way", NOTHING if limit is not None and limit < 0 else ALL)
    return Criteria(limit, order["avoid"], known, order.get("unreadable", []), gives_way)


class Question(NamedTuple):
    """A look that is wanted; `number` is None for a periodic one.

    `settled`: all writers have completed, so there is no need to wait for files.
    """

    number: Optional[int] = None
    criteria: Optional[Criteria] = None
    settled: bool = False


class Answer(NamedTuple):
    """What one look found; `number` is the question's.

    `chosen` is for questions with criteria; `why_not` says why other entries were not verified, and
    `unrecognised` which entries look like checkpoints where none was found.
    """

    number: Optional[int]
    found: List[Checkpoint]
    chosen: Optional[Checkpoint]
    why_not: Dict[str, str]
    unrecognised: Mapping[str, str] = MappingProxyType({})
    is_away: bool = False
    """Whether the place could not be reached, so that this is the result of the previous look."""


class CheckpointWatch:
    """One checkpoint directory. `fileno()` is readable when `answers()` has something."""

    def __init__(
        self,
        settings: Dict[str, Any],
        place: Place = FILE_SYSTEM,
        *,
        every_s: Optional[float] = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`settings`: `path`, and what Finder takes: `layout`, `pattern`, `settle_s`, `keep_copies`, `local`.

        `place` is where they are. `every_s`: also look at this period, once it has begun. `on_answer` is called in
        the thread that looks, when there is an answer.
        """
        self._every_s, self._on_answer = every_s, on_answer
        self._directory: str = settings["path"]
        self._steps = Steps()
        self._finder = Finder(**settings, place=place)
        self._settle_s: float = settings["settle_s"]
        self._deaths: Tuple[float, ...] = ()
        self._numbers = itertools.count(1)
        self._has_begun = False
        self._urgent = threading.Event()
        """Whether an attempt waits for the answer; a periodic look can wait for a copy."""
        self._unanswered: Optional[int] = None
        """The last question without criteria, until it is answered."""
        self._asked: "queue.SimpleQueue[Question]" = queue.SimpleQueue()
        self._answered: "queue.SimpleQueue[Answer]" = queue.SimpleQueue()
        self._asked_out, self._asked_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._answered_out, self._answered_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._renames = _Renames(self._directory, is_watched=place is FILE_SYSTEM)
        self._found: List[Checkpoint] = []
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="checkpoints", daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor to wait on for answers."""
        return self._answered_out

    def follow(self, step_now: Callable[[], Optional[int]]) -> None:
        """Get the ranks' last step from this function, called in the thread that looks."""
        self._steps.source = step_now

    def writers_died(self, *times: float) -> None:
        """Note when writers died (seconds since the epoch): what they left unfinished never counts."""
        self._deaths = tuple(sorted({*self._deaths, *times}))

    def look(self, settled: bool = False) -> int:
        """Ask for all verified checkpoints as they are from now on; return the question's number."""
        self._urgent.set()
        return self._look(settled)

    def _look(self, settled: bool = False) -> int:
        number = next(self._numbers)
        self._unanswered = number
        self._ask(Question(number, settled=settled))
        return number

    def begin(self) -> None:
        """Look from now on. Idempotent.

        Before the first question of its orchestrator an agent does not know what earlier ranks left half-written.
        """
        if not self._has_begun:
            self.look()

    def look_again(self) -> None:
        """Ask for all verified checkpoints, unless a question is open or none was ever asked."""
        if self._has_begun and self._unanswered is None:
            self._look()

    def choose(self, criteria: Criteria) -> int:
        """Ask for the checkpoint to resume from; return the question's number."""
        self._urgent.set()
        number = next(self._numbers)
        self._ask(Question(number, criteria))
        return number

    def answers(self) -> List[Answer]:
        """Return the answers that have come since the last call, in the order of the questions."""
        _drain(self._answered_out)
        answers = []
        while not self._answered.empty():
            answers.append(self._answered.get())
            if answers[-1].number == self._unanswered:
                self._unanswered = None
        return answers

    def close(self) -> None:
        """Stop looking; a look in progress ends first, unanswered. Nothing may be asked after that. Idempotent."""
        if not self._closed.is_set():
            self._closed.set()
            _ring(self._asked_in)

    def _ask(self, question: Question) -> None:
        self._has_begun = True
        self._asked.put(question)
        _ring(self._asked_in)

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        pause_s = LOOK_DELAY_S
        _block_on(self._asked_out)
        while not self._closed.is_set():
            self._wait(pause_s)
            if self._closed.is_set():
                break
            began = time.monotonic() - self._finder.hashing_s
            if self._asked.empty():
                self._answer(Question())
            self._urgent.clear()
            while not self._asked.empty():
                self._answer(self._asked.get())
            self._keep_copies()
            # Each checkpoint is hashed once, so hashing does not predict what the next look costs.
            pause_s = max(LOOK_DELAY_S, LOOK_SHARE * (time.monotonic() - self._finder.hashing_s - began))
        self._renames.close()
        for fd in (self._asked_out, self._asked_in, self._answered_out, self._answered_in):
            os.close(fd)

    def _wait(self, pause_s: float) -> None:
        """Return as soon as something is asked, a file may have settled, or `pause_s` after a change."""
        poll = select.poll()
        poll.register(self._asked_out, select.POLLIN)
        changes = self._renames.fileno()
        if changes is not None:
            poll.register(changes, select.POLLIN)
        due_s = [] if self._every_s is None else [self._every_s]
        if (settles_at := self._finder.settles_at) is not None:
            due_s.append(min(settles_at + _AFTER_S - time.time(), _LONG_S))
        ready = [fd for fd, _ in poll.poll(1000 * max(pause_s, min(due_s)) if due_s else None)]
        self._steps.note()
        if changes in ready and self._asked_out not in ready:
            poll.unregister(changes)
            poll.poll(1000 * pause_s)
        _drain(self._asked_out)

    def _answer(self, question: Question) -> None:
        criteria, chosen, is_away = question.criteria, None, False
        unrecognised: Dict[str, str] = {}
        try:
            if criteria is not None:
                self._finder.learn(criteria.verified)
            self._scan(question)
            why_not = self._finder.why_not()
            unrecognised = {} if self._found else self._finder.unrecognised()
            if criteria is not None:
                chosen = self._chosen(question, criteria, why_not)
        except AwayError as exc:
            is_away, why_not = True, {".": str(exc)}
            chosen = choose(self._found, criteria.limit, criteria.avoid) if criteria is not None else None
        except Exception as exc:  # after any error there must be an answer, and the thread continues
            sys.excepthook(type(exc), exc, exc.__traceback__)
            why_not = {".": f"could not be looked at: {exc!r}"}
            chosen = choose(self._found, criteria.limit, criteria.avoid) if criteria is not None else None
        self._answered.put(Answer(question.number, self._found, chosen, why_not, unrecognised, is_away))
        _ring(self._answered_in)
        self._on_answer()

    def _scan(self, question: Question) -> None:
        self._steps.note()
        renamed = self._renames.update()
        now = time.time() + (self._settle_s if question.settled else 0.0)
        self._found = self._finder.scan(now, self._deaths, renamed, self._steps.at, is_over=question.settled)

    def _chosen(
        self, question: Question, criteria: Criteria, why_not: Dict[str, str]
    ) -> Optional[Checkpoint]:
        """Choose a checkpoint; a copy is put back first, and where that fails the reason is added."""
        try:
            if self._finder.replace_damaged(
                criteria.limit, criteria.avoid, criteria.unreadable, criteria.gives_way
            ):
                self._scan(question)
        except OSError as exc:
            why_not["."] = f"a damaged file cannot be replaced: {exc}"
        damaged: Dict[str, str] = {}
        avoid = [*criteria.avoid]
        chosen = choose(self._found, criteria.limit, avoid)
        while chosen is not None and (fault := self._finder.confirm(chosen)) is not None:
            damaged[os.path.relpath(chosen.path, self._directory)] = fault
            avoid.append(chosen.step)
            chosen = choose(self._found, criteria.limit, avoid)
        if damaged:
            self._scan(question)
            why_not.update(damaged)
        if chosen is None:
            return None
        try:
            return self._finder.put_back(chosen)
        except OSError as exc:
            why_not[os.path.relpath(chosen.path, self._directory)] = f"cannot be put back: {exc}"
            return choose(self._found, criteria.limit, [*avoid, chosen.step])

    def _keep_copies(self) -> None:
        """Copy files that will be overwritten, unless an attempt starts to wait for an answer."""
        try:
            self._finder.keep(self._found, lambda: not self._urgent.is_set())
        except Exception as exc:  # the thread continues after any error
            sys.stderr.write(f"prefect-ft: no copy was kept: {exc!r}\n")


class Steps:
    """The steps that the ranks had reached, each with when it was noted, in seconds since the epoch."""

    def __init__(self) -> None:
        self.source: Callable[[], Optional[int]] = lambda: None
        self._noted: Deque[Tuple[float, int]] = collections.deque(maxlen=64)

    def note(self) -> None:
        """Note the current step; ranks that have reported none yet are new: earlier notes are dropped."""
        step = self.source()
        if step is None:
            self._noted.clear()
        else:
            self._noted.append((time.time(), step))

    def at(self, when: float) -> Optional[int]:
        """Return the first step noted from this time on, else the last one before; `None`: there is none."""
        later = next((step for noted, step in self._noted if noted >= when), None)
        return later if later is not None or not self._noted else self._noted[-1][1]


class _Renames:
    """The names that were seen moved into the directory whole and not written to since."""

    def __init__(self, directory: str, *, is_watched: bool) -> None:
        self._directory = directory
        self._names: Set[str] = set()
        self._watch: Optional[int] = None
        try:
            self._changes: Optional[inotify.Inotify] = inotify.Inotify() if is_watched else None
        except OSError:
            self._changes = None  # the user's limit of instances

    def close(self) -> None:
        """Stop watching."""
        if self._changes is not None:
            self._changes.close()

    def fileno(self) -> Optional[int]:
        """Return the descriptor to wait on for changes; None where they cannot be watched."""
        return self._changes.fileno() if self._changes is not None else None

    def update(self) -> Set[str]:
        """Process the pending events, and return the names."""
        if self._changes is None:
            return self._names
        self._look_at_the_path(self._changes)
        for change in self._changes.read():
            if change.mask & inotify.Q_OVERFLOW:
                self._names.clear()
            elif change.watch != self._watch:
                continue
            elif change.mask & inotify.MOVED_TO:
                self._names.add(change.name)
            else:
                self._names.discard(change.name)
        return self._names

    def _look_at_the_path(self, changes: inotify.Inotify) -> None:
        """Watch the directory now at the path: the script may create or replace it."""
        watch = None
        with contextlib.suppress(OSError):  # not there yet; the next look sees it
            watch = changes.watch(self._directory, _WROTE | inotify.MOVED_TO)
        if watch != self._watch:
            if self._watch is not None:
                changes.unwatch(self._watch)
            self._watch = watch
            self._names.clear()


def _block_on(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()


def _ring(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):  # full: the reader is already being woken
        os.write(fd, b"!")


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 65536)
