"""What there is of one kind of object in a cluster, as it tells by itself: one list, then a stream of changes.

Owns the stream and its mending: it is taken up where it ended, and where what happened since is not told any
more the list is made anew. Knows nothing of pods, nodes or the client library.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from prefect_ft.errors import BackendError

ANSWER_TIMEOUT_S = 60.0
"""How long the first list may take."""

LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 2.0
"""Between tries, where a stream ends without an event; doubled each time."""

Json = Mapping[str, Any]
_T = TypeVar("_T")


class ExpiredError(Exception):
    """Changes since a version are no longer available; only a new list says what there is."""


class Stream(Protocol):
    """Events as they come; it ends where the cluster, or the way to it, ends it."""

    def __iter__(self) -> Iterator[Json]: ...

    def hang_up(self) -> None:
        """Have it end for whoever reads it in another thread. Idempotent."""

    def close(self) -> None:
        """Let go of it; by who reads it."""


class Source(Protocol):
    """The requests that a watch makes; both raise BackendError."""

    def listed(self) -> tuple[Sequence[Json], str]:
        """Return what there is, and the version at which that was so."""

    def changes(self, version: str) -> Stream:
        """Return what has changed since a version; raises ExpiredError."""


@dataclass(frozen=True, slots=True)
class View:
    """What is known now. `away` says why the cluster tells nothing new; None: it does."""

    objects: Mapping[str, Json]
    """By name."""
    gone: Mapping[str, Json]
    """By uid: those that were there and are not any more, as they were last."""
    away: str | None

    def find(self, name: str, uid: str) -> Json | None:
        """Return this very object; None: it is not there."""
        found = self.objects.get(name)
        return found if found is not None and uid_of(found) == uid else None

    def last(self, name: str) -> Json | None:
        """Return the object of this name, as it is or was last; None: there was none."""
        was = (each for each in reversed([*self.gone.values()]) if each["metadata"]["name"] == name)
        return self.objects.get(name) or next(was, None)


class Watch:
    """Follows a source in a thread of its own, from the first question to `close`."""

    def __init__(self, source: Source, news: threading.Condition | None = None) -> None:
        """Watches share `news` where several of them may bring what is awaited."""
        self._source = source
        self._news = news or threading.Condition()
        self._objects: dict[str, Json] = {}
        self._gone: dict[str, Json] = {}
        self._noted: set[str] = set()
        """Uids of what was made known while a list was on its way, which may be older."""
        self._version: str | None = None
        """The version from which changes are wanted; None: a list is needed."""
        self._is_listed = False
        self._away: str | None = None
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    # -- asking -----------------------------------------------------------------------------------

    def now(self) -> View:
        """Return what is known now; raises BackendError where the cluster does not tell."""
        with self._news:
            self._start()
            self._news.wait_for(lambda: self._is_listed or self._away is not None, ANSWER_TIMEOUT_S)
            if self._away is not None or not self._is_listed:
                raise BackendError(self._away or "the cluster does not answer")
            return View(dict(self._objects), dict(self._gone), None)

    def until(self, look: Callable[[View], _T | None], timeout_s: float) -> _T | None:
        """Look at each change, and return what `look` gives once it is not None; None: not in time.

        `look` is called while nothing new is taken, so that it must not wait for anything. What it raises
        ends the wait. A cluster that is away is waited for.
        """
        deadline = time.monotonic() + timeout_s
        with self._news:
            self._start()
            while True:
                found = look(View(self._objects, self._gone, self._away)) if self._is_listed else None
                left_s = deadline - time.monotonic()
                if found is not None or left_s <= 0:
                    return found
                self._news.wait(left_s)

    def note(self, told: Json) -> None:
        """Record an object that a request has just returned and the stream may not have reported yet."""
        with self._news:
            known = self._objects.get(told["metadata"]["name"])
            if known is None or uid_of(known) != uid_of(told):
                self._put(told)
            self._noted.add(uid_of(told))

    def close(self) -> None:
        """Follow no more. Idempotent."""
        with self._news:
            self._is_over.set()
            if self._stream is not None:
                self._stream.hang_up()

    def _start(self) -> None:
        if self._thread is None and not self._is_over.is_set():
            self._thread = threading.Thread(target=self._follow, name="prefect-ft-watch", daemon=True)
            self._thread.start()

    # -- in the thread ----------------------------------------------------------------------------

    def _follow(self) -> None:
        pause_s = LEAST_PAUSE_S
        while not self._is_over.is_set():
            before = self._version
            try:
                if self._version is None:
                    self._list()
                self._hear()
            except (ExpiredError, LookupError, TypeError):  # or what nobody understands
                self._version = None
            except BackendError as exc:
                self._tell_away(str(exc))
            has_told = self._version not in (None, before)
            pause_s = LEAST_PAUSE_S if has_told else min(2 * pause_s, MOST_PAUSE_S)
            if not has_told:
                self._is_over.wait(pause_s)

    def _list(self) -> None:
        """Put what there is in the place of what was known."""
        with self._news:
            self._noted.clear()
        listed, version = self._source.listed()
        with self._news:
            there = set(map(uid_of, listed))
            for each in list(self._objects.values()):
                if uid_of(each) not in there | self._noted:
                    self._lose(each)
            for each in listed:
                self._put(each)
            self._version, self._is_listed, self._away = version, True, None
            self._news.notify_all()

    def _hear(self) -> None:
        """Take changes until they end; raises ExpiredError and BackendError."""
        assert self._version is not None
        stream = self._source.changes(self._version)
        with self._news:
            self._stream, self._away = stream, None
            if self._is_over.is_set():
                stream.hang_up()
            self._news.notify_all()
        try:
            for event in stream:
                self._take(event)
        finally:
            with self._news:
                self._stream = None
            stream.close()

    def _take(self, event: Json) -> None:
        kind, told = event["type"], event["object"]
        if kind == "ERROR":
            raise ExpiredError
        with self._news:
            if kind in ("ADDED", "MODIFIED"):
                self._put(told)
            elif kind == "DELETED":
                self._lose(told)
            self._version = told["metadata"]["resourceVersion"]
            self._news.notify_all()

    def _tell_away(self, why: str) -> None:
        with self._news:
            self._away = why
            self._news.notify_all()

    def _put(self, told: Json) -> None:
        """Know an object as it is now; another one that had its name is gone, and what is gone stays so."""
        if uid_of(told) in self._gone:
            return
        before = self._objects.get(told["metadata"]["name"])
        if before is not None and uid_of(before) != uid_of(told):
            self._lose(before)
        self._objects[told["metadata"]["name"]] = told

    def _lose(self, told: Json) -> None:
        self._gone[uid_of(told)] = told
        known = self._objects.get(told["metadata"]["name"])
        if known is not None and uid_of(known) == uid_of(told):
            del self._objects[told["metadata"]["name"]]


def uid_of(told: Json) -> str:
    """Return what names an object once and for all: its name may be another's later."""
    return str(told["metadata"]["uid"])
