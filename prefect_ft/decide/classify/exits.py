"""What the end of a process shows where its log shows nothing: exit codes, signals, a shell's last words.

Owns the table of codes that cannot be mistaken. All other codes decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import TYPE_CHECKING, NamedTuple

from prefect_ft.model import Evidence, FailureClass, Incident, Recoverable

if TYPE_CHECKING:
    from prefect_ft.decide.classify.findings import LogFindings

__all__ = ["CODES", "ExitFinding", "asks_for_other_hardware", "by_last_words", "by_status", "signal_of"]


class ExitFinding(NamedTuple):
    """What the end of a process shows; `likeness` is the text that is the same in every run."""

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
"""Exit codes that decide by themselves. 93 is what NVIDIA's resiliency extension, and job scripts modelled on it,
return for "do not requeue"; 126 and 127 are the shell's."""

RESUME_ELSEWHERE, RESULT_REJECTED = 16, 17
"""What Megatron-LM's rerun state machine ends with (megatron/core/rerun_state_machine.py). Other programs use the codes
for other things, so they mean that only beside its words."""

_BY_WINDOWS: Mapping[int, Signals] = {
    0xC0000005: Signals.SIGSEGV,
    0xC000001D: Signals.SIGILL,
    0xC00000FD: Signals.SIGSEGV,
    0xC000013A: Signals.SIGINT,
    0xC0000374: Signals.SIGABRT,
    0xC0000409: Signals.SIGABRT,
}
"""The signals that stand for what Windows ends programs with: an access violation, an illegal instruction, a full
stack, Ctrl-C, a corrupt heap, and what a program reports itself (the NTSTATUS values of [MS-ERREF])."""

_CRASHES = frozenset((Signals.SIGILL, Signals.SIGABRT, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGSEGV))
_SIGNAL_NAMES = {one.value: one.name for one in Signals}
_KILLED_HINT = "a kill without a word is often the host's memory: look into its kernel log"
_TERMINATED_HINT = "somebody ended it from outside: the scheduler's log says who"


class _LastWords(NamedTuple):
    rule: str
    pattern: re.Pattern[str]
    codes: tuple[int, ...]
    failure_class: FailureClass = "config"
    hint: str = "a restart meets the same set-up: correct it and start again"


_LAST_WORDS = (
    _LastWords("usage", re.compile(r"(?!slurm|srun)[\w./-]+(?: [\w-]+)*: error: "), (2,)),
    _LastWords(
        "no-such-command", re.compile(r".*: (?:(?:command )?not found|Permission denied)$"), (126, 127)
    ),
    _LastWords(
        "ctrl-c",
        re.compile(r"(?:.*[\])\s])?(?:\^C)+$"),
        (-Signals.SIGINT, 128 + Signals.SIGINT),
        "cancelled",
        "the run was interrupted with Ctrl-C; resume it when ready",
    ),
    _LastWords(
        "megatron-resume-elsewhere",
        re.compile(r".*[Ee]xiting now\. Please resume the job from the (?:same )?checkpoint"),
        (RESUME_ELSEWHERE,),
        "numeric",
        "the result came again on this device: resume from the checkpoint on another one to see which is wrong",
    ),
    _LastWords(
        "megatron-result-rejected",
        re.compile(r".*Exiting now\. A checkpoint at the last iteration"),
        (RESULT_REJECTED,),
        "numeric",
        "the trainer has rejected a result after trying it again: its own output says what came of that",
    ),
)


def by_last_words(logs: Sequence[LogFindings], exit_code: int | None) -> ExitFinding | None:
    """Read the last lines that go with exit codes.

    Where the code is not known, nothing but the very last line is trusted.
    """
    for words in _LAST_WORDS:
        if exit_code not in (None, *words.codes):
            continue
        for log in logs:
            if words.rule == "no-such-command" and exit_code is None and log.had_progress:
                continue  # a later line of the script
            last = len(log.tail) - 1
            for index in range(last, last - 1 if exit_code is None else -1, -1):
                if index >= 0 and words.pattern.match(log.tail[index]):
                    return _from_last_words(words, log, index)
    return None


def _from_last_words(words: _LastWords, log: LogFindings, index: int) -> ExitFinding:
    text = log.tail[index].strip()
    number = log.number_of_tail(index)
    evidence = Evidence(rule=words.rule, text=text, file=log.file, line=number, hint=words.hint)
    return ExitFinding(words.failure_class, evidence, text)


def asks_for_other_hardware(incident: Incident) -> bool:
    """Return whether a trainer has ended so that its last checkpoint is tried on another device."""
    by = incident.evidence.rule if incident.evidence is not None else ""
    is_megatron = "megatron" in by or incident.signature == "megatron-resume-elsewhere"
    return incident.exit_code == RESUME_ELSEWHERE and incident.failure_class == "numeric" and is_megatron


def signal_of(exit_code: int | None, signal: int | None) -> int | None:
    """Return the signal that ended a process: an exit code of -n or 128 + n is taken for n."""
    if signal is None and exit_code is not None:
        if (by_windows := _BY_WINDOWS.get(exit_code % 2**32)) is not None:
            return by_windows
        signal = -exit_code if exit_code < 0 else exit_code - 128
    return signal if signal in _SIGNAL_NAMES else None


def by_status(exit_code: int | None, signal: int | None, *, had_progress: bool) -> ExitFinding | None:
    """Read how a process ended; `had_progress`: its run was progressing, so a SIGTERM came from outside."""
    if (number := signal_of(exit_code, signal)) is not None:
        return _by_signal(number, had_progress=had_progress)
    if exit_code is None or exit_code == 0:
        return None
    text = f"exit code {exit_code}"
    known = CODES.get(exit_code, ExitCode("unknown", ""))
    evidence = Evidence(rule="exit-code", text=text, hint=known.hint)
    return ExitFinding(known.failure_class, evidence, text, known.recoverable)


def _by_signal(number: int, *, had_progress: bool) -> ExitFinding:
    failure_class: FailureClass = "unknown"
    hint = ""
    if number in _CRASHES:
        failure_class = "crash"
    elif number in (Signals.SIGHUP, Signals.SIGINT):
        failure_class = "cancelled"
    elif number == Signals.SIGTERM:
        failure_class, hint = ("preempted" if had_progress else "unknown"), _TERMINATED_HINT
    elif number == Signals.SIGKILL:
        hint = _KILLED_HINT
    text = f"ended by {_SIGNAL_NAMES[number]}"
    return ExitFinding(failure_class, Evidence(rule="signal", text=text, hint=hint), text)
