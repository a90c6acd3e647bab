"""Why a run failed, from its logs, exit code and signal: the classes, and what each means for a restart.

Owns the reading of tracebacks and the choice between the ranks of a job. Pure: it is given the lines
and looks at a bounded number of them. What follows from a class is the policy's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from signal import Signals
from typing import NamedTuple

from prefect_ft.model import Evidence, FailureClass, Recoverable, Role, Verdict

__all__ = ["RECOVERABLE", "classify"]

RECOVERABLE: Mapping[FailureClass, Recoverable] = {
    "hardware": True,
    "network": True,
    "oom_device": "confirm",
    "oom_host": True,
    "storage": True,
    "checkpoint": True,
    "numeric": True,
    "data": True,
    "compile": False,
    "config": False,
    "assertion": False,
    "user_code": "confirm",
    "preempted": True,
    "cancelled": True,
    "collective_timeout": True,
    "port_in_use": True,
    "crash": True,
    "unknown": True,
    "none": None,
}
"""Whether a restart helps against a class; "confirm" is one confirming retry."""

_MAX_LINES, _MIN_LINES, _MAX_COLUMNS = 50_000, 500, 2_000  # of all logs, of each, of a line

_Lines = Sequence[tuple[int, str]]
"""What is looked at of a log: numbers from 1 and text."""


class _LineRule(NamedTuple):
    """A line that says by itself why a run failed; `codes` are the exit codes that it goes with."""

    rule: str
    failure_class: FailureClass
    pattern: re.Pattern[str]
    codes: tuple[int, ...] | None = None


_BY_LINE = (
    _LineRule(
        "oom-killer",
        "oom_host",
        re.compile(r"oom[-_]kill|Out of memory: Killed process|Memory cgroup out of memory"),
    ),
    _LineRule(
        "fatal-signal",
        "crash",
        re.compile(r"^Fatal Python error: |^terminate called after|Segmentation fault|\(core dumped\)"),
    ),
    _LineRule(
        "collective-watchdog",
        "collective_timeout",
        re.compile(r"Watchdog caught collective operation timeout"),
    ),
    _LineRule("no-such-script", "config", re.compile(r"python[\d.]*: (?:can't open file|No module named) ")),
    _LineRule("usage", "config", re.compile(r"^(?!slurm|srun)[\w./-]+(?: [\w-]+)*: error: "), (2,)),
    _LineRule(
        "no-such-command",
        "config",
        re.compile(r": (?:(?:command )?not found|Permission denied)$"),
        (126, 127),
    ),
    _LineRule("bare-kill", "unknown", re.compile(r"^Killed$")),
)

_BY_MESSAGE: tuple[tuple[FailureClass, re.Pattern[str]], ...] = (
    ("port_in_use", re.compile(r"Address already in use|EADDRINUSE")),
    ("storage", re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")),
    ("oom_device", re.compile(r"CUDA out of memory|RESOURCE_EXHAUSTED: Out of memory")),
    ("checkpoint", re.compile(r"PytorchStreamReader failed|^Ran out of input$|^No data left in file$")),
    ("numeric", re.compile(r"returned nan values in its|\bloss (?:is|became) (?:nan|inf)", re.IGNORECASE)),
    ("user_code", re.compile(r"^EOF when reading a line$")),
)
_BY_ERRNO: Mapping[int, FailureClass] = {
    **dict.fromkeys((5, 28, 30, 116, 122), "storage"),  # EIO, ENOSPC, EROFS, ESTALE, EDQUOT
    **dict.fromkeys((100, 101, 112, 113), "network"),  # network or host down or out of reach
    **dict.fromkeys((1, 2, 13, 20, 21), "config"),  # EPERM, ENOENT, EACCES, ENOTDIR, EISDIR
    98: "port_in_use",
}
# A MemoryError is none of these: only the killer's own word makes it `oom_host`, and a single request
# that is too large for any machine is the program's.
_BY_NAME: Mapping[str, FailureClass] = {
    "AssertionError": "assertion",
    "KeyboardInterrupt": "cancelled",
    **dict.fromkeys(("BadZipFile", "SafetensorError", "UnpicklingError"), "checkpoint"),
    **dict.fromkeys(("FileNotFoundError", "NotADirectoryError", "IsADirectoryError"), "config"),
    **dict.fromkeys(("ImportError", "ModuleNotFoundError", "PermissionError"), "config"),
    "UnidentifiedImageError": "data",
    **dict.fromkeys(("ChunkedEncodingError", "IncompleteRead", "RemoteDisconnected"), "network"),
    "gaierror": "network",
    "FloatingPointError": "numeric",
    **dict.fromkeys(("OutOfMemoryError", "ResourceExhaustedError"), "oom_device"),
}
_COMPILERS = ("torch._dynamo.", "torch._inductor.", "triton.")
_WRAPPERS = ("RuntimeError", "Exception")

# How little an exception explains where another rank has a better one: that a person interrupts or a
# peer is gone follows from something, and a launcher's report from all of it.
_ROOT, _INTERRUPTED, _BEREFT, _REPORT = range(4)
_BEREFT_NAMES = frozenset(
    (
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "EOFError",
        "TimeoutError",
        "timeout",
    )
)
_BEREFT_MESSAGE = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe|remote process exited")
_REPORT_NAMES = frozenset(("ChildFailedError", "SignalException"))
_REPORT_MESSAGE = re.compile(r"DataLoader worker \(pid.*\) (?:is killed by signal|exited unexpectedly)")

_CRASHES = frozenset((Signals.SIGILL, Signals.SIGABRT, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGSEGV))
_SIGNAL_NAMES = {one.value: one.name for one in Signals}

_HINTS: Mapping[FailureClass, str] = {
    "config": "a restart meets the same set-up: correct it and start again",
    "oom_device": "it needs less memory on each device: a smaller batch, or more devices",
    "port_in_use": "leave MASTER_PORT to the run, which takes a fresh one for every attempt",
    "storage": "look at space, quota and state of the file system; /dev/shm is one too",
}
_KILLED_HINT = "a kill without a word is often the host's memory: look into its kernel log"

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "([^"]+)", line \d+(?:, in (.+))?$')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?::\s*(.*))?$")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_NOT_FATAL = ("Exception ignored in", "Error in atexit", "--- Logging error ---")
_DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
_MEANWHILE = "During handling of the above exception, another exception occurred:"
_PROGRESS = re.compile(r"(?!wandb).*\b(?:step|epoch|iter|iteration)\b\W{0,3}\d", re.IGNORECASE)
_PROGRESS_LINES, _PROGRESS_COLUMNS = 2, 300
_ANSI = re.compile(r"\x1b\[[\d;]*m")

_VARYING = (
    (re.compile(r"(?<![\w.-])/(?:tmp|var/tmp|dev/shm|run)/[^\s'\",:)\]]+"), "<tmp>"),
    (re.compile(r"(?:/[^\s/'\",:)\]]+)*/([^\s/'\",:)\]]+)"), r"\1"),
    (re.compile(r"\b0x[0-9a-fA-F]+|\b(?=[a-f-]*\d)[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b"), "#"),
    (re.compile(r"\d+(?:\.\d+)*"), "#"),
)


def classify(
    logs: Mapping[str, Sequence[str]], *, exit_code: int | None = None, signal: int | None = None
) -> Verdict:
    """Say why a run failed; `logs` are the lines of its ranks by file name.

    `exit_code` and `signal` are those of the rank that ended first; an exit code of -n or 128 + n is
    taken for the signal n.
    """
    if exit_code == 0 and signal is None:
        return _verdict("none")
    share = max(_MIN_LINES, _MAX_LINES // max(1, len(logs)))
    recent = {file: _recent(lines, share) for file, lines in logs.items()}
    raised = [ending for file, lines in recent.items() if (ending := _ending(file, lines))]
    root = min(raised, key=lambda one: one.weight, default=None)
    if root is not None and root.weight < _BEREFT:
        return _exception_verdict(root, raised)
    told = _line_verdict(recent, exit_code, raised) or _signal_verdict(exit_code, signal, raised)
    if told is not None:
        return told
    if root is not None:
        return _exception_verdict(root, raised)
    if exit_code is None:
        return _verdict("none" if any(recent.values()) else "unknown")
    text = f"exit code {exit_code}"
    failure_class: FailureClass = "config" if exit_code in (126, 127) else "unknown"
    return _verdict(failure_class, Evidence(rule="exit-code", text=text), alike=text)


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception as a log shows it; `frame` is the innermost one, file and function."""

    name: str
    message: str
    file: str
    line: int
    frame: str
    failure_class: FailureClass
    weight: int

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    def evidence(self, role: Role) -> Evidence:
        hint = _HINTS.get(self.failure_class, "") if role == "root" else ""
        return Evidence(
            rule="python-exception", text=self.text, role=role, file=self.file, line=self.line, hint=hint
        )


def _verdict(
    failure_class: FailureClass,
    evidence: Evidence | None = None,
    *,
    alike: str | None = None,
    cascades: Sequence[_Raised] = (),
) -> Verdict:
    """A verdict; `alike` is the text that is the same for the same failure in another run."""
    return Verdict(
        failure_class=failure_class,
        recoverable=RECOVERABLE[failure_class],
        blame="none",
        signature=alike and sha256(alike.encode("utf-8", "replace")).hexdigest()[:12],
        evidence=evidence,
        cascades=tuple(one.evidence("cascade") for one in cascades),
    )


def _exception_verdict(root: _Raised, raised: Sequence[_Raised]) -> Verdict:
    return _verdict(
        root.failure_class,
        root.evidence("root"),
        alike=f"{_without_varying(root.text)}\n{root.frame}",
        cascades=[one for one in raised if one.weight > root.weight],
    )


def _line_verdict(
    recent: Mapping[str, _Lines], exit_code: int | None, cascades: Sequence[_Raised]
) -> Verdict | None:
    """The verdict of the first rule that finds its line, the last one of its kind.

    A rule that goes with exit codes and does not know the code trusts nothing but the last line.
    """
    for rule, failure_class, pattern, codes in _BY_LINE:
        if codes and exit_code not in (None, *codes):
            continue
        for file, lines in recent.items():
            for number, line in reversed(lines[-1:] if codes and exit_code is None else lines):
                if pattern.search(line):
                    hint = _HINTS.get(failure_class, "")
                    evidence = Evidence(rule=rule, text=line.strip(), file=file, line=number, hint=hint)
                    alike = _without_varying(line)
                    return _verdict(failure_class, evidence, alike=alike, cascades=cascades)
    return None


def _signal_verdict(exit_code: int | None, signal: int | None, cascades: Sequence[_Raised]) -> Verdict | None:
    if signal is None and exit_code is not None:
        signal = -exit_code if exit_code < 0 else exit_code - 128
    if signal not in _SIGNAL_NAMES:
        return None
    failure_class: FailureClass = "unknown"
    if signal in _CRASHES:
        failure_class = "crash"
    elif signal == Signals.SIGINT:
        failure_class = "cancelled"
    text = f"ended by {_SIGNAL_NAMES[signal]}"
    hint = _KILLED_HINT if signal == Signals.SIGKILL else ""
    evidence = Evidence(rule="signal", text=text, hint=hint)
    return _verdict(failure_class, evidence, alike=text, cascades=cascades)


def _without_varying(text: str) -> str:
    for varying, constant in _VARYING:
        text = varying.sub(constant, text)
    return text


def _recent(lines: Sequence[str], count: int) -> _Lines:
    """The last lines, without colours and what a carriage return overwrote; empty ones left out."""
    first = max(0, len(lines) - count)
    cleaned = (
        (number, _ANSI.sub("", line[:_MAX_COLUMNS].rstrip().rpartition("\r")[2]))
        for number, line in enumerate(lines[first:], start=first + 1)
    )
    return [(number, line) for number, line in cleaned if line]


def _ending(file: str, lines: _Lines) -> _Raised | None:
    """The last exception that no progress followed, by preference no consequence of another."""
    reader = _TracebackReader(file)
    for number, line in lines:
        reader.feed(number, line)
    return min(reversed(reader.found), key=lambda one: one.weight, default=None)


class _TracebackReader:
    """Finds the uncaught exceptions of a log, one for each chain.

    A prefix before the header (a rank's, say) is taken off the lines that follow.
    """

    def __init__(self, file: str) -> None:
        self.found: list[_Raised] = []
        self._file = file
        self._prefix: str | None = None
        self._frame: re.Match[str] | None = None
        self._link: str | None = None
        self._previous = ""
        self._fatal = True
        self._progress = 0

    def feed(self, number: int, line: str) -> None:
        if _HEADER in line:
            self._open(line.partition(_HEADER)[0])
        elif self._prefix is not None:
            self._continue(number, line.removeprefix(self._prefix))
        elif _FRAME.match(line):  # the header is beyond what is looked at, or it is a syntax error
            self._open("")
            self._continue(number, line)
        elif _DIRECT_CAUSE in line or _MEANWHILE in line:
            self._link = line
        elif self.found and _PROGRESS.match(line[:_PROGRESS_COLUMNS]):
            self._see_progress()
        self._previous = line

    def _open(self, prefix: str) -> None:
        self._prefix = prefix.removesuffix("Original ")
        self._frame = None
        self._fatal = not any(notice in self._previous for notice in _NOT_FATAL)

    def _continue(self, number: int, line: str) -> None:
        if frame := _FRAME.match(line):
            self._frame = frame
        elif self._frame is not None and (exception := _EXCEPTION.match(line)):
            self._close(number, exception[1], exception[2] or "")

    def _close(self, number: int, name: str, message: str) -> None:
        failure_class, weight = _judge(name, message)
        frame = f"{_without_varying(self._frame[1])} {self._frame[2] or ''}" if self._frame else ""
        last = _Raised(name, message, self._file, number, frame, failure_class, weight)
        if self._fatal:
            cause = self.found.pop() if self._link and self.found else None
            direct = cause is not None and _DIRECT_CAUSE in (self._link or "")
            self.found.append(cause if cause and _explains(cause, last, direct=direct) else last)
        self._prefix = self._frame = self._link = None
        self._fatal, self._progress = True, 0

    def _see_progress(self) -> None:
        """Forget what was raised: the run went on, or another one began in the same file."""
        self._progress += 1
        if self._progress >= _PROGRESS_LINES:
            self.found.clear()
            self._link = None


def _explains(cause: _Raised, last: _Raised, *, direct: bool) -> bool:
    """Whether the last exception of a chain only wraps a cause that says more."""
    wraps = last.failure_class == "user_code" and (direct or last.name in _WRAPPERS)
    return wraps and cause.failure_class != "user_code"


def _judge(name: str, message: str) -> tuple[FailureClass, int]:
    """The class of an exception, and how little it explains."""
    plain = name.rpartition(".")[2]
    if plain in _REPORT_NAMES or _REPORT_MESSAGE.search(message):
        return "unknown", _REPORT
    for failure_class, pattern in _BY_MESSAGE:
        if pattern.search(message):
            return failure_class, _ROOT
    if (errno := _ERRNO.match(message)) and (by_errno := _BY_ERRNO.get(int(errno[1]))):
        return by_errno, _ROOT
    if plain in _BEREFT_NAMES or _BEREFT_MESSAGE.search(message):
        return "network", _BEREFT
    if name.startswith(_COMPILERS):
        return "compile", _ROOT
    return _BY_NAME.get(plain, "user_code"), _INTERRUPTED if plain == "KeyboardInterrupt" else _ROOT
