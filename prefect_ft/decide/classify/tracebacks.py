"""Python's tracebacks in a log: where each ends, in which frame, and what it only wraps.

Owns the structure: headers, frames, chains, groups. The catalogue decides what the last line means.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from prefect_ft.decide.classify.reading import Reading, is_library, reading_after

__all__ = ["ASIDE", "CHAINS", "FRAME", "HEADER", "Raised", "TracebackReader", "draws_bar"]

HEADER = "Traceback (most recent call last)"
DIRECT_CAUSE = "The above exception was the direct cause of the following exception"
MEANWHILE = "During handling of the above exception, another exception occurred"
CHAINS = (DIRECT_CAUSE, MEANWHILE)
FRAME = '", line '

_FRAME_LINE = re.compile(r'\s*File "([^"]+)", line \d+(?:, in (.+))?$')
_NAME_AHEAD = re.compile(r"\A[A-Za-z_][\w.]*(?: {2,}|(?<=Error): |(?<=Exception): )\Z")
"""What precedes the header in a notebook, and where a message begins with it: the name of the exception, which ends the
traceback as well."""
_IPYTHON_FRAME = re.compile(r"(?:File )?((?:[A-Za-z]:\\|[~/<])[^\s:]*)(?::\d+)?,? in ([\w.<>]+)")
_INDENTED = re.compile(r" *?(?=(?:  )?File )")
_LABEL = re.compile(r"(?=[^ ]*\d)\S.{0,120}?[\d\]:|>)Z] ?(?=\s*File \")")
_EXCEPTION = re.compile(
    r"((?:error|timeout|gaierror|herror|(?=\w*[A-Z.])[A-Za-z_][\w.]*)(?:\((?:\w+\.)*[A-Z]\w*\))?)(?::(?:\s+(.*))?)?$"
)
_WARNED = "Warning: "
"""How programs warn; below frames without a header it is no exception of that name."""
_BOX = re.compile(r"╭|\+-{2,} $")
_BOX_FRAME = re.compile(r"[│|] (/\S+|\S+\.py):\d+ in\s+(\S*)")
_BOX_END = ("╰", "+-")
_BARS = ("━", "%|", "█", "[?25")
"""What shows that a line is a progress bar, which may be drawn last over a traceback, or the cursor after it."""
_GUTTER = re.compile(r"\A(?:\s*[|+])+ ?")
_CODE = re.compile(r"\s|-{2,}>")
_MARGIN = re.compile(r"[\s\d\[\]>=-]*")
"""What precedes a line of code: in notebooks its number or an arrow too."""
_RAISES = re.compile(r"raise ([A-Z][\w.]*)\((?:[rfb]?[\"']([^\"']{0,400}))?")
_ASSERTS = re.compile(r"assert .{1,400}")
_NOT_FATAL = (
    "Exception ignored",
    "Error in atexit",
    "Error in sys.excepthook",
    "--- Logging error ---",
    "Future exception was never retrieved",
    "Task exception was never retrieved",
    "Call stack:",
    "Jax plugin configuration error",
    " fits failed with the following error:",  # scikit-learn, as the next
    "Scoring failed. The score on this train-test partition",
)
"""What precedes a traceback that has ended nothing."""
_LOGS = re.compile(r"\W?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.{0,80}?\bERROR\b")
_OF_AN_END = re.compile(r"(?i)uncaught|unhandled|fatal|elastic")
"""A line with which a logger prints an exception that its program has caught, and what says that it has not."""

_QUOTED = re.compile(r"(?i)\W*(?:captured )?(?:std ?err(?:or)?|error output)\W*")
"""What precedes the output of another program that this one prints."""
_OF_A_LOGGER = ("Message: ", "Arguments: ")
"""What ends the frames that Python's `logging` prints where it cannot log."""
_OF_A_TRACKER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+\s+[\w-]+\s*:\d+ \[\w+\.py:\w+\(\):\d+\]"
)
"""The head of a line in wandb's own log: exceptions logged there do not end training, except one that it raises."""
_RAISED_AGAIN = "error in wandb.init()"
ASIDE = "Exception in thread "
"""What precedes the traceback of a thread: the program continues without it."""
_ENDING = re.compile(
    r"_*(?:teardown|on_exception|cleanup|clean_up|shutdown|destroy_process_group|finish|close|stop|__del__|"
    r"__exit__|_?exit|terminate|_run_exitfuncs)\b"
)
_REPORTS_END = "Error executing job with overrides: "
"""What Hydra prints above the traceback of a program's exception, before it exits."""
_RUNS_A_PROGRAM = ("_run_code", "_run_module_as_main", "_run_module_code", "run_path")
"""Functions of runpy, which run a library's module as a program (`python -m`)."""

_BEGINS = frozenset(
    ("<module>", "_bootstrap", "_bootstrap_inner", "_run_code", "_run_module_as_main", "_wrap")
)
"""Functions in which a program, a thread, or a process of torch's `spawn` begins."""

_QUEUES, _FEED = "multiprocessing/queues.py", "_feed"
"""File and function of the thread that writes to a queue: it prints what it could not write, and goes on."""

_PATIENCE_LINES = 400
_THREAD_LINES = 3
"""How many of the lines that are read may come between the report of a thread's exception and its traceback."""
_MAX_THREADS = 16
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception at the end of its traceback; `file` and `function` are its innermost frame's.

    `begun` is the place of the traceback's first line among all lines of its log. `is_import`: a library was
    being imported, and nothing of the user's own was called from there.
    """

    name: str
    message: str
    begun: int
    file: str = ""
    function: str = ""
    is_cleanup: bool = False
    is_aside: bool = False
    is_import: bool = False
    reading: Reading = ""
    asserted: str = ""
    """The code of the last assertion in the traceback."""
    outermost: tuple[str, str] | None = None
    """File and function of the frame with which the traceback begins; `None` if its header is missing."""
    has_own: bool = False
    """Whether the user's own code is in the traceback."""
    ended: int = 0
    """The place of the last line of its chain, if another exception followed it; else 0."""
    is_cut: bool = False
    """Whether the log ends before the traceback does, and the code alone says what it raises."""
    is_reported: bool = False
    """Whether what runs the program (Hydra) reports the exception as its end, without its own frames."""
    is_logged: bool = False
    """Whether a logger printed it below an error of its own."""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def plain_name(self) -> str:
        return self.name.partition("(")[0].rpartition(".")[2]

    @property
    def is_of_thread(self) -> bool:
        """Whether it ended a thread, not the program."""
        return self.is_aside and self.outermost is not None and self.outermost[1] == "_bootstrap_inner"

    @property
    def is_of_feeder(self) -> bool:
        """Whether it is of a thread that writes to a queue."""
        file, function = self.outermost or ("", "")
        return file.endswith(_QUEUES) and function == _FEED

    @property
    def is_printed(self) -> bool:
        """Whether a function caught and printed it: the report of an uncaught one begins where its program does."""
        is_caught = self.outermost is not None and self.outermost[1] not in _BEGINS
        return (is_caught or self.is_logged) and not self.is_reported


@dataclass(slots=True)
class _Traceback:
    """A traceback that has begun; `prefix` precedes its lines, `frame` is file and function of its last frame."""

    prefix: re.Pattern[str]
    begun: int
    is_boxed: bool
    is_aside: bool
    has_head: bool
    is_reported: bool = False
    is_logged: bool = False
    is_quoted: bool = False
    is_cleanup: bool = False
    is_import: bool = False
    outermost: tuple[str, str] | None = None
    has_own: bool = False
    frame: tuple[str, str] | None = None
    reading: Reading = ""
    is_indented: bool = False
    asserted: str = ""
    raising: tuple[str, str] | None = None
    """Name and message of the exception that the last line of code raises."""
    patience: int = _PATIENCE_LINES

    def enter(self, file: str, function: str) -> None:
        file = file.replace("\\", "/")  # Windows
        if self.frame is None and self.has_head and _is_within_library(file, function):
            self.is_aside = True  # it was caught and printed there: a program's end begins with the program
        elif self.frame is None and function == "<module>":
            self.is_aside = self.is_quoted  # a thread does not begin there
        if self.frame is None and self.has_head:
            self.outermost = file, function
        caller = self.frame[1] if self.frame is not None else ""
        self.frame, self.asserted = (file, function), ""
        self.has_own |= not is_library(file)
        self.reading = reading_after(self.reading, file, function)
        is_of_a_file = not file.startswith("<")  # `<string>` and `<stdin>` are programs, not libraries
        is_imported = function == "<module>" and is_of_a_file and caller not in _RUNS_A_PROGRAM
        self.is_import = is_library(file) and (is_imported or self.is_import)
        self.is_cleanup |= _ENDING.match(function) is not None


class TracebackReader:
    """Reads the lines of one rank of one log; yields the exceptions that count as they end.

    A chain comes out as its parts, each with what it follows: the reader knows no classes.
    """

    def __init__(self) -> None:
        self._now: _Traceback | None = None
        self._is_fatal = True
        self._last_was_part = False
        self._threads: deque[int] = deque(maxlen=_MAX_THREADS)
        """The places of the reports of threads whose tracebacks have not begun: they may be printed at once."""
        self.link: str | None = None
        """How the next exception follows the one before; `None`: not at all."""

    @property
    def is_open(self) -> bool:
        return self._now is not None

    @property
    def breaks_off(self) -> bool:
        """Whether only a header or frames came last: the exception would have been further below."""
        return (
            self._now is not None
            and (self._now.frame is not None or self._now.has_head)
            and not self._now.is_aside
            and self._is_fatal
            and self._last_was_part
        )

    def broken_off(self) -> Raised | None:
        """Return the exception whose last line is missing, from the code that raises it."""
        if not self.breaks_off or self._now is None or self._now.raising is None or self._now.frame is None:
            return None
        return replace(_raised(*self._now.raising, self._now, *self._now.frame), is_cut=True)

    @property
    def is_fatal(self) -> bool:
        return self._is_fatal

    def feed(self, text: str, order: int, before: Callable[[], str]) -> tuple[bool, Raised | None]:
        """Take a line; return whether it belongs to a traceback, and the exception that it ends, if any.

        `order` is the line's place among all that were read, `before` returns the line above it.
        """
        taken, raised = self._feed(text, order, before)
        if taken or not draws_bar(text):
            self._last_was_part = taken
        return taken, raised

    def _feed(self, text: str, order: int, before: Callable[[], str]) -> tuple[bool, Raised | None]:
        if ASIDE in text:
            self._threads.append(order)
        if HEADER in text:
            self._begin(text.partition(HEADER)[0], order, before(), has_head=True)
            return True, None
        if self._now is not None:
            return self._continue(self._now, _without(self._now, text))
        if FRAME in text and (label := _label_of(text)) is not None:
            # the header is missing, or it is a syntax error
            label = label or _indent_of(text)
            return self._continue(self._begin(label, order, before()), text[len(label) :])
        for chain in CHAINS:
            if chain in text:
                self.link = chain
                return True, None
        return False, None

    def _begin(self, prefix: str, order: int, above: str, *, has_head: bool = False) -> _Traceback:
        if prefix.endswith("Original "):
            prefix, self.link = prefix.removesuffix("Original "), HEADER
        margin, *box = _BOX.split(_NAME_AHEAD.sub("", prefix), maxsplit=1)
        if self.link is None:  # the parts of a chain are all of one exception
            self._is_fatal = not (any(notice in above for notice in _NOT_FATAL) or _is_of_tracker(above))
        is_quoted = has_head and _QUOTED.fullmatch(above) is not None
        self._now = _Traceback(
            prefix=_alike(margin),
            begun=order,
            is_boxed=bool(box),
            is_aside=is_quoted or self._is_of_thread(order),
            has_head=has_head,
            is_reported=_REPORTS_END in above,
            is_logged=has_head and _LOGS.match(above) is not None and _OF_AN_END.search(above) is None,
            is_quoted=is_quoted,
        )
        return self._now

    def _is_of_thread(self, order: int) -> bool:
        """Return whether the report of a thread's exception without a traceback came just before."""
        while self._threads:
            if order - self._threads.popleft() <= _THREAD_LINES:
                return True
        return False

    def _continue(self, now: _Traceback, text: str) -> tuple[bool, Raised | None]:
        now.patience -= 1
        if now.is_boxed:
            _continue_box(now, text)
            return True, None
        text = _GUTTER.sub("", text)
        if frame := _FRAME_LINE.match(text) or _IPYTHON_FRAME.match(text):
            now.enter(frame[1], frame[2] or "")
            now.is_indented = text[0].isspace()
            return True, None
        if now.frame is not None and text.startswith(_OF_A_LOGGER):
            self._now = None
            return True, None
        is_warned = not now.has_head and text.startswith(_WARNED)
        if now.frame is not None and not is_warned and (exception := _EXCEPTION.match(text)):
            self._now = None
            return True, _raised(exception[1], exception[2] or "", now, *now.frame)
        if text and not text[0].isspace() and _ends_bare(now):
            assert now.raising is not None
            assert now.frame is not None
            self._now = None  # a program printed frames and message itself, without header and name
            return True, _raised(now.raising[0], text, now, *now.frame)
        _note_code(now, text)
        if now.patience <= 0:
            self._now = None
        return not text or _CODE.match(text) is not None, None


def _is_of_tracker(line: str) -> bool:
    return _OF_A_TRACKER.search(line) is not None and not line.endswith(_RAISED_AGAIN)


def _ends_bare(now: _Traceback) -> bool:
    """Return whether a line that is not indented is the message of a traceback without header and name."""
    return now.raising is not None and now.frame is not None and not now.has_head and now.is_indented


def _continue_box(now: _Traceback, text: str) -> None:
    """Take a line of a traceback that is drawn in a box, as rich does: the exception is below it."""
    if frame := _BOX_FRAME.match(text):
        now.enter(frame[1], frame[2])
    else:
        now.is_boxed = not text.startswith(_BOX_END) and now.patience > 0
        if not now.is_boxed and now.frame is None:
            now.frame = "", ""  # its frames were too long for the box


def _note_code(now: _Traceback, text: str) -> None:
    """Note what a line of code says of the exception that follows."""
    margin = _MARGIN.match(text)
    at = margin.end() if margin else 0
    if asserted := _ASSERTS.match(text, at):
        now.asserted = asserted[0].rstrip()
    if raising := _RAISES.match(text, at):
        now.raising = raising[1], raising[2] or ""
    elif text and _CODE.match(text) is None:
        now.raising = None


def _raised(name: str, message: str, ended: _Traceback, file: str, function: str) -> Raised:
    return Raised(
        name=name,
        message=message,
        begun=ended.begun,
        file=file,
        function=function,
        is_cleanup=ended.is_cleanup,
        is_aside=ended.is_aside,
        is_reported=ended.is_reported,
        is_logged=ended.is_logged,
        is_import=ended.is_import,
        reading=ended.reading,
        asserted=ended.asserted,
        outermost=ended.outermost,
        has_own=ended.has_own,
    )


def _is_within_library(file: str, function: str) -> bool:
    return function == "<module>" and is_library(file) and not file.startswith("<")


def draws_bar(text: str) -> bool:
    """Return whether a line draws a progress bar."""
    return any(bar in text for bar in _BARS)


def _label_of(text: str) -> str | None:
    """Return what precedes a frame in its line, a time or a rank; `None` where the line is not a frame."""
    if _FRAME_LINE.match(text):
        return ""
    label = _LABEL.match(text)
    return label[0] if label and _FRAME_LINE.match(text, label.end()) else None


def _indent_of(frame: str) -> str:
    """Return the blanks before a frame, without those that Python prints: what shows its output may indent it all."""
    indented = _INDENTED.match(frame)
    return indented[0] if indented else ""


def _without(now: _Traceback, text: str) -> str:
    """Remove what precedes each line of a traceback; more may precede its header, such as a bar."""
    rest = now.prefix.sub("", text)
    if now.frame is None and rest is text and FRAME in text and (label := _label_of(text)):
        now.prefix = _alike(label)
        return text[len(label) :]
    return rest


def _alike(prefix: str) -> re.Pattern[str]:
    """Return what precedes each line of a traceback: the prefix of the first one, with any numbers."""
    return re.compile(r"\A" + r"\d+".join(map(re.escape, _DIGITS.split(prefix))))
