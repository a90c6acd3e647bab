"""Python's tracebacks as they stand in a log: where each ends, in which frame, and what it only wraps.

Owns the structure: headers, frames, chains, groups. What the last line of one means is the catalogue's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CHAINS", "FRAME", "HEADER", "Raised", "TracebackReader"]

HEADER = "Traceback (most recent call last)"
DIRECT_CAUSE = "The above exception was the direct cause of the following exception"
MEANWHILE = "During handling of the above exception, another exception occurred"
CHAINS = (DIRECT_CAUSE, MEANWHILE)
FRAME = '", line '

_FRAME_LINE = re.compile(r'\s*File "([^"]+)", line \d+(?:, in (.+))?$')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*(?:\([\w.]+\))?)(?::(?:\s+(.*))?)?$")
_BOX_FRAME = re.compile(r"│ (/\S+|\S+\.py):\d+ in\s+(\S*)")
_GUTTER = re.compile(r"(?:\s*[|+])+ ?")
_CODE = re.compile(r"\s")
_NOT_FATAL = (
    "Exception ignored",
    "Error in atexit",
    "Error in sys.excepthook",
    "--- Logging error ---",
    "Future exception was never retrieved",
    "Task exception was never retrieved",
)
"""What stands above a traceback that has ended nothing."""
_ASIDE = "Exception in thread "
"""What stands above the traceback of a thread: the program goes on without it."""
_ENDING = re.compile(
    r"_*(?:teardown|on_exception|cleanup|clean_up|shutdown|destroy_process_group|finish|close|stop|__del__|"
    r"__exit__|_?exit|terminate|_run_exitfuncs)\b"
)
_PATIENCE_LINES = 400
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception at the end of its traceback; `file` and `function` are its innermost frame's.

    `begun` is the place of the traceback's first line among all lines of its log.
    """

    name: str
    message: str
    begun: int
    file: str = ""
    function: str = ""
    is_cleanup: bool = False
    is_aside: bool = False

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def plain_name(self) -> str:
        return self.name.partition("(")[0].rpartition(".")[2]


class TracebackReader:
    """Reads the lines of one rank of one log; gives the exceptions that count as they end.

    A chain comes out as its parts, each with what it follows: the reader knows no classes.
    """

    def __init__(self) -> None:
        self._prefix: re.Pattern[str] | None = None
        self._frame: tuple[str, str] | None = None
        """File and function of the last frame."""
        self._is_boxed = False
        self._is_cleanup = False
        self._patience = 0
        self._is_fatal = True
        self._is_aside = False
        self._begun = 0
        self.link: str | None = None
        """How the exception that comes next follows the one before; `None`: not at all."""

    @property
    def is_open(self) -> bool:
        return self._prefix is not None

    @property
    def is_fatal(self) -> bool:
        return self._is_fatal

    def feed(self, text: str, order: int, before: Callable[[], str]) -> tuple[bool, Raised | None]:
        """Take a line: whether it belongs to a traceback, and the exception that it ends, if it does.

        `order` is the line's place among all that were read, `before` gives the line above it.
        """
        if HEADER in text:
            self._open(text.partition(HEADER)[0], order)
            above = before()
            self._is_fatal = not any(notice in above for notice in _NOT_FATAL)
            self._is_aside = _ASIDE in above
            return True, None
        if self._prefix is not None:
            return self._continue(self._prefix.sub("", text, count=1))
        if _FRAME_LINE.match(text):  # the header is beyond what is there, or it is a syntax error
            self._open("", order)
            return self._continue(text)
        for chain in CHAINS:
            if chain in text:
                self.link = chain
                return True, None
        return False, None

    def _open(self, prefix: str, order: int) -> None:
        if prefix.endswith("Original "):
            prefix, self.link = prefix.removesuffix("Original "), HEADER
        self._is_boxed = "╭" in prefix
        prefix = prefix.partition("╭")[0]
        self._prefix = _alike("" if "Exception Group" in prefix else prefix)
        self._frame, self._is_cleanup = None, False
        self._patience, self._begun = _PATIENCE_LINES, order
        self._is_fatal, self._is_aside = True, False

    def _continue(self, text: str) -> tuple[bool, Raised | None]:
        self._patience -= 1
        if self._is_boxed:
            return self._continue_box(text)
        text = _GUTTER.sub("", text, count=1) if text.lstrip()[:1] in ("|", "+") else text
        if frame := _FRAME_LINE.match(text):
            return self._enter(frame[1], frame[2] or "")
        if self._frame is not None and (exception := _EXCEPTION.match(text)):
            return True, self._close(exception)
        if self._patience <= 0:
            self._prefix = None
        return not text or _CODE.match(text) is not None, None

    def _continue_box(self, text: str) -> tuple[bool, Raised | None]:
        """Take a line of a traceback that is drawn in a box, as rich does: the exception stands below it."""
        if frame := _BOX_FRAME.match(text):
            return self._enter(frame[1], frame[2])
        self._is_boxed = not text.startswith("╰") and self._patience > 0
        return True, None

    def _enter(self, file: str, function: str) -> tuple[bool, Raised | None]:
        self._frame = file, function
        self._is_cleanup |= _ENDING.match(function) is not None
        return True, None

    def _close(self, exception: re.Match[str]) -> Raised:
        assert self._frame is not None
        raised = Raised(
            name=exception[1],
            message=exception[2] or "",
            begun=self._begun,
            file=self._frame[0],
            function=self._frame[1],
            is_cleanup=self._is_cleanup,
            is_aside=self._is_aside,
        )
        self._prefix = self._frame = None
        return raised


def _alike(prefix: str) -> re.Pattern[str]:
    """Give what stands before each line of a traceback: what stood before the first one, but for its numbers."""
    return re.compile(r"\A" + r"\d+".join(map(re.escape, _DIGITS.split(prefix))))
