"""Keeps a copy of one kind of object in a cluster up to date: one list, then a stream of changes.

Owns the stream and its recovery: it resumes where it ended, and where the changes since have expired it lists again.
Knows nothing of pods, nodes or the client library.
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

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
"""Between tries, where a stream ends without an event; doubled each time."""

Json = Mapping[str, Any]
_T = TypeVar("_T")


class ExpiredError(Exception):
    """Changes since a version are no longer available; a new list is needed."""


class Stream(Protocol):
    """Events as they arrive; it ends when the cluster or the connection ends it."""

    def __iter__(self) -> Iterator[Json]: ...

    def hang_up(self) -> None:
        """End it for the thread that reads it. Idempotent."""

    def close(self) -> None:
        """Release it; called by the thread that reads it."""


class Source(Protocol):
    """The requests that a watch makes; both raise BackendError."""

    def listed(self) -> tuple[Sequence[Json], str]:
        """Return the objects, and the version of the list."""

    def changes(self, version: str) -> Stream:
        """Return what has changed since a version; raises ExpiredError."""


@dataclass(frozen=True, slots=True)
class View:
    """The objects as known now. `away` says why the cluster is unreachable; None: it is not."""

    objects: Mapping[str, Json]
    """By name."""
    gone: Mapping[str, Json]
    """By uid: deleted objects in their last state."""
    away: str | None

    def find(self, name: str, uid: str) -> Json | None:
        """Return the object with this name and uid; None: there is none."""
        found = self.objects.get(name)
        return found if found is not None and uid_of(found) == uid else None

    def last(self, name: str) -> Json | None:
        """Return the object of this name in its last known state; None: there was none."""
        was = (each for each in reversed([*self.gone.values()]) if each["metadata"]["name"] == name)
        return self.objects.get(name) or next(was, None)


class Watch:
    """Follows a source in a thread of its own, from the first query to `close`."""

    def __init__(self, source: Source, news: threading.Condition | None = None) -> None:
        """Watches share `news` where a wait depends on several of them."""
        self._source = source
        self._news = news or threading.Condition()
        self._objects: dict[str, Json] = {}
        self._gone: dict[str, Json] = {}
        self._noted: set[str] = set()
        """Uids of objects recorded by `note` during a list request, whose answer may be older."""
        self._version: str | None = None
        """The version from which to follow changes; None: a list is needed."""
        self._is_listed = False
        self._away: str | None = None
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    # -- asking -----------------------------------------------------------------------------------

    def now(self) -> View:
        """Return the objects as known now; raises BackendError where the cluster is unreachable."""
        with self._news:
            self._start()
            self._news.wait_for(lambda: self._is_listed or self._away is not None, ANSWER_TIMEOUT_S)
            if self._away is not None or not self._is_listed:
                raise BackendError(self._away or "the cluster does not answer")
            return View(dict(self._objects), dict(self._gone), None)

    def until(self, look: Callable[[View], _T | None], timeout_s: float) -> _T | None:
        """Call `look` after each change until it returns something, and return that; None: not in time.

        `look` is called with the lock held, so it must not block. What it raises ends the wait. The wait continues
        while the cluster is unreachable.
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

    def note(self, obj: Json) -> None:
        """Record an object that a request has just returned and the stream may not have reported yet."""
        with self._news:
            known = self._objects.get(obj["metadata"]["name"])
            if known is None or uid_of(known) != uid_of(obj):
                self._put(obj)
            self._noted.add(uid_of(obj))

    def close(self) -> None:
        """Stop following. Idempotent."""
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
        pause_s = MIN_PAUSE_S
        while not self._is_over.is_set():
            before = self._version
            try:
                if self._version is None:
                    self._list()
                self._read_stream()
            except (ExpiredError, LookupError, TypeError):  # or an unexpected event
                self._version = None
            except BackendError as exc:
                self._set_away(str(exc))
            has_advanced = self._version not in (None, before)
            pause_s = MIN_PAUSE_S if has_advanced else min(2 * pause_s, MAX_PAUSE_S)
            if not has_advanced:
                self._is_over.wait(pause_s)

    def _list(self) -> None:
        """Replace the known objects by a new list."""
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

    def _read_stream(self) -> None:
        """Take changes until the stream ends; raises ExpiredError and BackendError."""
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
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise ExpiredError
        with self._news:
            if kind in ("ADDED", "MODIFIED"):
                self._put(obj)
            elif kind == "DELETED":
                self._lose(obj)
            self._version = obj["metadata"]["resourceVersion"]
            self._news.notify_all()

    def _set_away(self, why: str) -> None:
        with self._news:
            self._away = why
            self._news.notify_all()

    def _put(self, obj: Json) -> None:
        """Store an object; an earlier one of the same name is gone, and a deleted one stays deleted."""
        if uid_of(obj) in self._gone:
            return
        before = self._objects.get(obj["metadata"]["name"])
        if before is not None and uid_of(before) != uid_of(obj):
            self._lose(before)
        self._objects[obj["metadata"]["name"]] = obj

    def _lose(self, obj: Json) -> None:
        self._gone[uid_of(obj)] = obj
        known = self._objects.get(obj["metadata"]["name"])
        if known is not None and uid_of(known) == uid_of(obj):
            del self._objects[obj["metadata"]["name"]]


def uid_of(obj: Json) -> str:
    """Return the unique id of an object: names are reused."""
    return str(obj["metadata"]["uid"])
