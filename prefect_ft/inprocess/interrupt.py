"""Gets the main thread out of the wrapped function, wherever it is in Python code.

Owns one signal, SIGURG, which is ignored by default. The kernel sends it as soon as the store's alert
arrives, so that a busy main thread need not first hand the interpreter to another thread; the watch
sends it again where that is not enough.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import threading
import time
from typing import Any, Callable, Iterator, Optional, Type, TypeVar

from prefect_ft.inprocess.errors import HookTimeoutError, InProcessError, Interrupted
from prefect_ft.worker.coordination import ALERT

SIGNAL = signal.SIGURG

_F_SETSIG = 10
_F_SETOWN_EX = 15
_F_OWNER_TID = 0
_ALERT_BYTES = 4096
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)

Result = TypeVar("Result")


class Interrupter:
    """Interrupts what `run` and `run_hook` call. Everything but `press` and `ended` is for the main thread only.

    `ended` is the highest iteration that is known to have ended; the watch keeps it.
    """

    def __init__(self, alert: socket.socket) -> None:
        """Raises InProcessError outside the main thread, the only one that can be interrupted."""
        if threading.current_thread() is not threading.main_thread():
            raise InProcessError("the wrapper has to be called in the main thread")
        self.ended = self.iteration = -1
        self.since_s = time.monotonic()
        """When the main thread last entered or left the function or a hook."""
        self.due_s: Optional[float] = None
        """The deadline of the current call; None: the end of its iteration."""
        self._alert = alert
        self._expects: Optional[Type[BaseException]] = None
        """What is raised in the current call; None: nothing may be interrupted."""
        self._insists = self._has_raised = False
        self._atomic_depth = 0
        self._was_signalled = True
        """Whether something may have arrived that has not been read."""
        self._main, self._pid = threading.get_ident(), os.getpid()
        self._previous = signal.signal(SIGNAL, self._handle)
        self.has_kernel_signal = _have_kernel_signal(alert)
        """Whether the main thread is signalled without the watch."""

    def close(self) -> None:
        """Restore the signal's handler."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._alert, fcntl.F_SETFL, fcntl.fcntl(self._alert, fcntl.F_GETFL) & ~os.O_ASYNC)
        signal.signal(SIGNAL, self._previous or signal.SIG_DFL)

    @property
    def is_in_function(self) -> bool:
        """Whether the main thread is in the wrapped function."""
        return self._expects is Interrupted

    @property
    def is_in_hook(self) -> bool:
        """Whether the main thread is in a hook."""
        return self._expects is HookTimeoutError

    # -- the main thread --------------------------------------------------------------------------

    def run(self, iteration: int, call: Callable[[], Result]) -> Result:
        """Call the wrapped function; raises Interrupted as soon as the iteration has ended."""
        self.iteration = iteration
        return self._guard(Interrupted, None, call)

    def run_hook(self, limit_s: Optional[float], call: Callable[[], Result]) -> Result:
        """Call a hook; raises HookTimeoutError when it takes longer than `limit_s`."""
        due_s = None if limit_s is None else time.monotonic() + limit_s
        return self._guard(HookTimeoutError, due_s, call)

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Delay an interruption until the block is left."""
        self._atomic_depth += 1
        try:
            yield
        finally:
            self._atomic_depth -= 1
            if self._expects is Interrupted and not self._atomic_depth and self._is_over():
                raise Interrupted

    def _guard(
        self, expects: Type[BaseException], due_s: Optional[float], call: Callable[[], Result]
    ) -> Result:
        try:
            try:
                self.since_s, self.due_s = time.monotonic(), due_s
                self._insists = self._has_raised = False
                self._atomic_depth = 0
                self._expects = expects
                if self._is_over():
                    raise expects
                return call()
            finally:
                self._expects = None
        finally:  # the interruption is raised once, at worst in the first `finally`
            self.disarm()

    def disarm(self) -> None:
        """Stop interrupting. Idempotent."""
        self._expects, self.since_s = None, time.monotonic()

    def _is_over(self) -> bool:
        if self._expects is HookTimeoutError:
            return self.due_s is not None and time.monotonic() >= self.due_s
        if self.ended >= self.iteration:
            return True
        may_have_come, self._was_signalled = self._was_signalled or not self.has_kernel_signal, False
        return may_have_come and _announces_end(self._alert, self.iteration)

    def _handle(self, number: int, frame: Any) -> None:
        self._was_signalled = True
        expects = self._expects
        if expects is not None and os.getpid() == self._pid:  # a child inherits the handler
            may_raise = not self._atomic_depth and (self._insists or not self._has_raised)
            if may_raise and self._is_over():
                self._has_raised, self._insists = True, False
                raise expects
        if callable(self._previous):
            self._previous(number, frame)

    # -- the watch --------------------------------------------------------------------------------

    def press(self, insists: bool) -> None:
        """Interrupt; if it `insists`, even a second time: the first exception may have been caught."""
        self._insists = insists
        signal.pthread_kill(self._main, SIGNAL)


def _have_kernel_signal(alert: socket.socket) -> bool:
    """Have the kernel signal the main thread when something arrives; False: it cannot, so the watch must."""
    try:
        fcntl.fcntl(alert, _F_SETOWN_EX, struct.pack("ii", _F_OWNER_TID, threading.get_native_id()))
        fcntl.fcntl(alert, _F_SETSIG, SIGNAL)
        fcntl.fcntl(alert, fcntl.F_SETFL, fcntl.fcntl(alert, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def has_come(alert: socket.socket) -> bool:
    """Return whether something has arrived, or the connection is closed."""
    try:
        alert.recv(1, _LOOK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _announces_end(alert: socket.socket, iteration: int) -> bool:
    """Peek at what has arrived without reading it, which is up to the watch."""
    try:
        data = alert.recv(_ALERT_BYTES, _LOOK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    if not data:
        return True
    whole = len(data) // ALERT.size
    return bool(whole and ALERT.unpack_from(data, (whole - 1) * ALERT.size)[0] >= iteration)
