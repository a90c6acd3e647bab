"""A list of objects in a cluster and the stream of its changes, as a watch follows them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from prefect_ft.backends.kubernetes.answers import change_in
from prefect_ft.backends.kubernetes.api import CONNECTION_ERRORS, TIMEOUT_S, Api, Json, RefusedError
from prefect_ft.backends.kubernetes.watch import ExpiredError
from prefect_ft.errors import BackendError

WATCH_S = 240
"""After how long the API ends a stream of changes, which then resumes, on any of its servers."""

_PIECE = 1 << 16


class Listing:
    """The source of a watch: one list request, whose `call` takes `names`, for objects that match `selector`."""

    def __init__(self, api: Api, call: Callable[..., Any], names: tuple[str, ...], selector: str) -> None:
        self._api, self._call, self._names, self._selector = api, call, names, selector

    def listed(self) -> tuple[Sequence[Json], str]:
        """Return the objects, and the version of the list."""
        return self._api.listed(self._call, *self._names, label_selector=self._selector)

    def changes(self, version: str) -> Changes:
        """Return the changes since a version; raises ExpiredError."""
        try:
            answer = self._api.open(
                self._call,
                *self._names,
                label_selector=self._selector,
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_S,
            )
        except RefusedError as exc:
            if exc.status == HTTPStatus.GONE:
                raise ExpiredError from exc
            raise
        return Changes(answer)


class Changes:
    """The lines of a streamed answer, each a change."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        with suppress(AttributeError):  # the next change may be long in coming
            self._answer.connection.sock.settimeout(WATCH_S + TIMEOUT_S[1])

    def __iter__(self) -> Iterator[Json]:
        waiting = b""
        # However it breaks off: the caller reports what is missing.
        with suppress(*CONNECTION_ERRORS, ValueError):
            for piece in self._answer.stream(_PIECE):
                *lines, waiting = (waiting + piece).split(b"\n")
                for line in filter(None, lines):
                    yield _change_in(line)

    def hang_up(self) -> None:
        """End it for the thread that reads it. Idempotent."""
        with suppress(OSError, AttributeError):  # it has ended already
            self._answer.connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release it; called by the thread that reads it."""
        with suppress(*CONNECTION_ERRORS):
            self._answer.close()


def _change_in(line: bytes) -> Json:
    try:
        return change_in(line)
    except BackendError as exc:  # a new list is needed
        raise ExpiredError from exc
