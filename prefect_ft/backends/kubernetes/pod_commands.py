"""Commands in pods, run through the cluster's API: to their end, or with a socket to their input and output."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import closing, suppress
from typing import Any, TypeVar

from prefect_ft.backends.kubernetes.api import Api
from prefect_ft.backends.kubernetes.request import CONTAINER
from prefect_ft.backends.kubernetes.websocket_frames import ProcessFrames
from prefect_ft.backends.pump import Pump
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json

NODES_LOOK_S = 2.0
"""How often a connection checks whether its node is lost."""

_PIECE = 1 << 16

_T = TypeVar("_T")


def execute(api: Api, namespace: str, pod: str, words: Sequence[str], timeout_s: float) -> bool:
    """Run a command in a pod; return whether it succeeded, and in time."""
    frames, received = ProcessFrames(), bytearray()
    with api.translated_errors():
        opened = _opened(api, namespace, pod, words, timeout_s, stdin=False)
    with closing(opened.sock.sock) as connection, suppress(TimeoutError, ConnectionError):
        connection.settimeout(timeout_s)
        while not frames.has_ended and (data := connection.recv(_PIECE)):
            received += data
            frames.unwrapped(received)
    return bool(parse_json(frames.status or b"{}").get("status") == "Success")


def connect(
    api: Api, namespace: str, pod: str, words: Sequence[str], timeout_s: float, *, is_cut: Callable[[], bool]
) -> socket.socket:
    """Run a command in a pod and return a socket to its input and output; raises OSError.

    `is_cut` is called periodically: it returns whether the pod's node is lost, which the API does not report.
    """
    try:
        with api.translated_errors():
            opened = _opened(api, namespace, pod, words, timeout_s, stdin=True)
    except BackendError as exc:
        raise ConnectionError(str(exc)) from exc
    return Pump.start(opened.sock.sock, ProcessFrames(), is_cut=is_cut, look_s=NODES_LOOK_S)


def _opened(
    api: Api, namespace: str, pod: str, words: Sequence[str], timeout_s: float, *, stdin: bool
) -> Any:
    return _with_timeout(lambda: api.command_stream(namespace, pod, CONTAINER, words, stdin=stdin), timeout_s)


def _with_timeout(call: Callable[[], _T], timeout_s: float) -> _T:
    """Make a call that has no time-out of its own; raises TimeoutError. A late result is closed."""
    answer: Future[_T] = Future()
    threading.Thread(target=_resolve, args=(answer, call), daemon=True).start()
    try:
        return answer.result(timeout_s)
    except NotInTimeError as exc:
        answer.add_done_callback(_close)
        raise TimeoutError(f"nothing for {timeout_s:g} s") from exc


def _close(late: Future[Any]) -> None:
    if late.exception() is None:
        late.result().close()


def _resolve(answer: Future[_T], call: Callable[[], _T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as exc:
        answer.set_exception(exc)
