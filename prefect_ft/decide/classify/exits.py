"""What the end of a process says where its log says nothing: exit codes, signals, a shell's last words.

Owns the table of codes that cannot be mistaken. All other codes decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import TYPE_CHECKING, NamedTuple

from prefect_ft.model import Evidence, FailureClass, Recoverable

if TYPE_CHECKING:
    from prefect_ft.decide.classify.findings import LogFindings

__all__ = ["CODES", "Told", "by_last_words", "by_status", "signal_of"]


class Told(NamedTuple):
    """What an end says; `likeness` is what it is in any run."""

    failure_class: FailureClass
    evidence: Evidence
    likeness: str
    recoverable: Recoverable = None


class ExitCode(NamedTuple):
    """A code with one meaning only; `recoverable` is `None` where the class's own answer holds."""

    failure_class: FailureClass
    hint: str
    recoverable: Recoverable = None


CODES: Mapping[int, ExitCode] = {
    93: ExitCode("config", "the program asks not to be started again: its own output says why", False),
    126: ExitCode("config", "the command cannot be executed: look at its permissions and its first line"),
    127: ExitCode("config", "there is no such command: look at PATH and at the spelling"),
}
"""Exit codes that decide by themselves. 93 is what NVIDIA's resiliency extension and job scripts after its
fashion give for "do not requeue"; 126 and 127 are the shell's."""

_CRASHES = frozenset((Signals.SIGILL, Signals.SIGABRT, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGSEGV))
_SIGNAL_NAMES = {one.value: one.name for one in Signals}
_KILLED_HINT = "a kill without a word is often the host's memory: look into its kernel log"
_TERMINATED_HINT = "somebody ended it from outside: the scheduler's log says who"


class _LastWords(NamedTuple):
    rule: str
    pattern: re.Pattern[str]
    codes: tuple[int, ...]


_LAST_WORDS = (
    _LastWords("usage", re.compile(r"(?!slurm|srun)[\w./-]+(?: [\w-]+)*: error: "), (2,)),
    _LastWords(
        "no-such-command", re.compile(r".*: (?:(?:command )?not found|Permission denied)$"), (126, 127)
    ),
)


def by_last_words(logs: Sequence[LogFindings], exit_code: int | None) -> Told | None:
    """Read the last lines that go with exit codes.

    Where the code is not known, nothing but the very last line is trusted.
    """
    for words in _LAST_WORDS:
        if exit_code not in (None, *words.codes):
            continue
        for log in logs:
            last = len(log.tail) - 1
            for index in range(last, last - 1 if exit_code is None else -1, -1):
                if index >= 0 and words.pattern.match(log.tail[index]):
                    return _as_setup(words.rule, log, index)
    return None


def _as_setup(rule: str, log: LogFindings, index: int) -> Told:
    text = log.tail[index].strip()
    number = log.number_of_tail(index)
    evidence = Evidence(rule=rule, text=text, file=log.file, line=number, hint=_CONFIG_HINT)
    return Told("config", evidence, text)


_CONFIG_HINT = "a restart meets the same set-up: correct it and start again"


def signal_of(exit_code: int | None, signal: int | None) -> int | None:
    """Return the signal that ended a process: an exit code of -n or 128 + n is taken for n."""
    if signal is None and exit_code is not None:
        signal = -exit_code if exit_code < 0 else exit_code - 128
    return signal if signal in _SIGNAL_NAMES else None


def by_status(exit_code: int | None, signal: int | None, *, got_on: bool) -> Told | None:
    """Read how a process ended; `got_on`: its run was progressing, so a SIGTERM came from outside."""
    if (number := signal_of(exit_code, signal)) is not None:
        return _by_signal(number, got_on=got_on)
    if exit_code is None or exit_code == 0:
        return None
    text = f"exit code {exit_code}"
    known = CODES.get(exit_code, ExitCode("unknown", ""))
    evidence = Evidence(rule="exit-code", text=text, hint=known.hint)
    return Told(known.failure_class, evidence, text, known.recoverable)


def _by_signal(number: int, *, got_on: bool) -> Told:
    failure_class: FailureClass = "unknown"
    hint = ""
    if number in _CRASHES:
        failure_class = "crash"
    elif number == Signals.SIGINT:
        failure_class = "cancelled"
    elif number == Signals.SIGTERM:
        failure_class, hint = ("preempted" if got_on else "unknown"), _TERMINATED_HINT
    elif number == Signals.SIGKILL:
        hint = _KILLED_HINT
    text = f"ended by {_SIGNAL_NAMES[number]}"
    return Told(failure_class, Evidence(rule="signal", text=text, hint=hint), text)
