"""The root cause among the findings of all logs of a job: the earliest that explains the failure, not a consequence.

A pure function of findings, exit code and signal. Reads no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from signal import Signals
from typing import NamedTuple

from prefect_ft.decide.classify.chains import (
    ASIDE,
    BARE,
    BY_EXCEPTION,
    CASCADE,
    GENERIC,
    INTERRUPTED,
    MENTIONED,
    REPORT,
    ROOT,
    only_reports,
    says_nothing,
    weight,
    wraps,
)
from prefect_ft.decide.classify.closing import (
    AFTER_LINE,
    WEAK_LEVELS,
    Complaint,
    code_in,
    is_frame,
    is_lost_loss,
    is_message_of_crash,
    root_of,
    signature_of_complaint,
)
from prefect_ft.decide.classify.confidence import confidence_in, confidence_of_end, confidence_of_none
from prefect_ft.decide.classify.exits import ExitFinding, by_last_words, by_status, signal_of
from prefect_ft.decide.classify.findings import Finding, LogFindings
from prefect_ft.decide.classify.launchers import (
    FirstEnd,
    ended_otherwise_first,
    first_end,
    is_of_rank,
    rank_named_first,
    reports_end,
)
from prefect_ft.decide.classify.likeness import likeness_of_exception, likeness_of_line, signature_of
from prefect_ft.decide.classify.reading import is_library
from prefect_ft.decide.classify.survived import (
    ENDS_ITS_PROGRAM,
    FAR_LINES,
    begins,
    with_word_of_scheduler,
    without_survived,
    without_unheeded,
)
from prefect_ft.decide.classify.unreadable import UNREADABLE, as_resumed
from prefect_ft.decide.classify.watchdog import as_aborted
from prefect_ft.model import Blame, Evidence, FailureClass, Recoverable, Role, Verdict
from prefect_ft.signatures import RECOVERABLE

__all__ = ["judge", "only_lost_its_peer"]

_ERRNO = "errno"
_NEAR_LINES = 30
_AT_ONCE_LINES = 2
_LAST_LINES = 3
_FAREWELL_LINES = 5
"""How many lines a program may print after it was asked to end, that one included."""

_LOGGED_LINES = 150
"""How many lines of tracebacks a program may log before it ends by the exception that the first line names."""

_MESSAGE_LINES = 8
_MAX_CASCADES = 32
_STACK_BYTES = 1 << 13
"""How long a stack may be below what it is of."""

_RAISED = 1
"""The exit code after an exception."""

_ELSEWHERE = frozenset(
    ("cfg-python-script-missing", "cfg-shell-not-found", "cfg-shell-syntax", "slurm-launch-config")
)
"""Failures of another program than the one that raises an exception after it: an interpreter that does not start,
a command of a script."""

_BEFORE_USAGE = ENDS_ITS_PROGRAM | _ELSEWHERE
"""Failures before a program that could not start: of earlier starts, and of other commands of its script."""

_ENDS_ALL = frozenset(("cancelled", "preempted", "hardware", "oom_host", "storage"))
"""Classes that explain why processes lose each other, in whatever words a program says so."""

_OF_LAUNCHERS = "/bin/"
"""A folder of programs that start others."""

_OF_RANKS = frozenset(("mpi-exit-term",))
"""What a launcher says of a rank that it may have ended itself, since another one failed."""

_OF_TASKS = frozenset(("nextflow-failed",))
"""What a workflow manager says of a task that has failed, beside the last lines of the task's own output."""

_SAYS_NOTHING = frozenset(("cfg-hydra-cascade",))

_OF_DEVICES, _IN_KERNELS, _ASSERTED = ("cublas-", "cuda-", "cudnn-"), "cuda-assert-", "cuda-device-assert"

_PROCESS, _CAUGHT = "pid=", 3
"""The part of a prefix that names a process, and the number of exceptions of which a process cannot have died."""

_OF_ANY_CONNECTION = frozenset(("connection-refused", "net-broken-pipe", "net-peer-reset", "py-eof"))
"""What a lost peer brings, but any other program too to which a rank was connected."""

_BY_KEYBOARD = "interrupt-keyboard"
_SAID_BY_PROGRAMS = frozenset((_BY_KEYBOARD, "sigterm-received"))
"""What a program says itself of an end from outside, at any level, before it saves its state."""

_HINTS: dict[FailureClass, str] = {
    "config": "a restart meets the same set-up: correct it and start again",
    "oom_device": "it needs less memory on each device: a smaller batch, or more devices",
    "port_in_use": "leave MASTER_PORT to the run, which takes a fresh one for every attempt",
    "storage": "look at space, quota and state of the file system; /dev/shm is one too",
}

_Place = tuple[LogFindings, Finding]


def judge(logs: Sequence[LogFindings], *, exit_code: int | None = None, signal: int | None = None) -> Verdict:
    """Return why a job failed; `exit_code` and `signal` are those of the rank that ended first."""
    verdict = _judge(logs, exit_code=exit_code, signal=signal)
    if any(log.earlier for log in logs) and _only_follows_another(verdict, logs):
        logs = [replace(log, findings=(*log.earlier, *log.findings), earlier=()) for log in logs]
        verdict = _judge(logs, exit_code=exit_code, signal=signal)
    if not any(log.held_back for log in logs) or not _says_nothing(verdict, exit_code, signal):
        return verdict
    logs = [replace(log, findings=(*log.held_back, *log.findings), held_back=()) for log in logs]
    return _judge(logs, exit_code=exit_code, signal=signal)


def only_lost_its_peer(verdict: Verdict, log: LogFindings) -> bool:
    """Return whether the verdict on one log is that its rank lost a connection to another rank, and no more."""
    line = verdict.evidence.line if verdict.evidence is not None else None
    return verdict.failure_class == "network" and any(
        one.line == line and weight(one) == CASCADE and one.signature.id not in _OF_ANY_CONNECTION
        for one in log.findings
    )


def _only_follows_another(verdict: Verdict, logs: Sequence[LogFindings]) -> bool:
    """Return whether a failure is known only by what follows from one, or by how its process ended."""
    evidence = verdict.evidence
    if verdict.failure_class in ("cancelled", "preempted"):
        rule = evidence.rule if evidence is not None else ""
        return rule in _OF_RANKS and any(log.is_warned for log in logs)
    if evidence is None:
        return verdict.failure_class == "unknown"
    of_it = (one for log in logs for one in log.findings if one.signature.id == evidence.rule)
    return evidence.rule == "exit-code" or any(weight(one) >= CASCADE for one in of_it)


def _says_nothing(verdict: Verdict, exit_code: int | None, signal: int | None) -> bool:
    """Return whether the verdict holds nothing that could not be a late line of an earlier run."""
    if exit_code not in (None, _RAISED) or signal is not None:
        return False
    return verdict.evidence is None or verdict.evidence.rule in ("exit-code", *_ELSEWHERE)


def _judge(logs: Sequence[LogFindings], *, exit_code: int | None, signal: int | None) -> Verdict:
    if exit_code == 0 and signal is None:
        return _plain("none")
    logs = [_as_resumed(log) for log in logs]
    reported = first_end(logs) if signal_of(exit_code, signal) is None else None
    if reported is not None:  # a launcher's own status says nothing of the rank that failed
        exit_code, signal = reported.exit_code, None
    if signal_of(exit_code, signal) == Signals.SIGABRT:
        aborted = [as_aborted(log, reported) for log in logs]
        if reported is not None:
            reported = reported._replace(log=aborted[_index(logs, reported.log)])
        logs = aborted
    is_known_to_fail = exit_code is not None or signal is not None or any(log.breaks_off for log in logs)
    candidates = [_candidates_of(log, is_known_to_fail=is_known_to_fail) for log in logs]
    found = zip(logs, map(_first_of, logs, candidates), strict=True)
    firsts = [(log, first) for log, first in found if first is not None]
    undated = {weight(first) for _, first in firsts if first.stamp is None}
    chosen = min(firsts, key=lambda place: _rank_of_cause(place[1], undated), default=None)
    exit_finding = _exit_finding(logs, exit_code, signal, reported)
    is_mute = chosen is not None and (says_nothing(chosen[1]) or chosen[1].signature.id in _OF_TASKS)
    complaint = _complaint(logs, is_known_to_fail=is_known_to_fail or is_mute)
    is_killed = signal_of(exit_code, signal) == Signals.SIGKILL and not (
        reported is None and any(map(ended_otherwise_first, logs))
    )
    if complaint is not None and _is_best(complaint, chosen, exit_finding, is_killed=is_killed):
        return _complaint_verdict(complaint, logs)
    if chosen is not None and (
        (is_killed and _only_says_exception(chosen[1]))
        or _says_more(exit_finding, chosen, exit_code, signal)
        or _came_first(reported, chosen)
        or _is_of_killed(reported, chosen)
    ):
        chosen = None if exit_finding is not None else _reported(logs, candidates)
    if chosen is not None:
        return _verdict(chosen, logs, candidates)
    if exit_finding is not None:
        is_doubtful = exit_code is None and signal is None and bool(firsts)
        return _exit_verdict(exit_finding, logs, signal_of(exit_code, signal), is_doubtful=is_doubtful)
    if is_known_to_fail or not any(log.tail for log in logs):
        return _plain("unknown")
    return replace(_plain("none"), confidence=confidence_of_none(logs, exit_code))


def _reported(logs: Sequence[LogFindings], candidates: Sequence[Sequence[Finding]]) -> _Place | None:
    """Return a launcher's report that a rank has failed, in a log where nothing near its end says why."""
    places = ((log, one) for log, each in zip(logs, candidates, strict=True) for one in each)
    return next(((log, one) for log, one in places if weight(one) == REPORT), None)


def _index(logs: Sequence[LogFindings], wanted: LogFindings) -> int:
    return next(index for index, log in enumerate(logs) if log is wanted)


class _Complained(NamedTuple):
    log: LogFindings
    complaint: Complaint


def _complaint(logs: Sequence[LogFindings], *, is_known_to_fail: bool) -> _Complained | None:
    """Return the complaint of the last lines of the logs; of several, one with a class, then the first."""
    roots = ((log, root_of(log.complaints, is_known_to_fail=is_known_to_fail)) for log in logs)
    found = [
        _Complained(log, root)
        for log, root in roots
        if root is not None and (is_known_to_fail or log.completed is None or is_lost_loss(root.text))
    ]
    return min(found, key=lambda one: one.complaint.failure_class is None, default=None)


def _is_best(
    one: _Complained, chosen: _Place | None, exit_finding: ExitFinding | None, *, is_killed: bool
) -> bool:
    """Return whether a complaint explains more than the best finding, and than how the job ended.

    `is_killed`: by SIGKILL, which no exception leads to.
    """
    says = one.complaint.failure_class
    if is_killed and says in BY_EXCEPTION:
        return False
    if _is_cause_of_crash(one, chosen, exit_finding):
        return True
    if exit_finding is not None and (exit_finding.failure_class != "unknown" or says is None):
        return False
    return chosen is None or (says is not None and _says_more_than(one, says, chosen))


def _says_more_than(one: _Complained, says: FailureClass, chosen: _Place) -> bool:
    """Return whether a complaint of a known kind explains more than the best finding."""
    log, first = chosen
    if log is one.log and says_nothing(first):
        return 0 < first.line - one.complaint.line <= _NEAR_LINES
    if weight(first) == CASCADE and one.complaint.is_strong and says in _ENDS_ALL:
        return says != first.signature.failure_class
    if weight(first) == MENTIONED:
        return one.complaint.is_strong and not _is_at_end(log, first)
    return weight(first) >= REPORT


def _is_cause_of_crash(one: _Complained, chosen: _Place | None, exit_finding: ExitFinding | None) -> bool:
    """Return whether a program states, just before it crashes, a fatal problem."""
    if (
        one.complaint.failure_class in (None, "crash", "assertion", "user_code")
        or not one.complaint.is_strong
    ):
        return False
    if chosen is None:
        return (
            exit_finding is not None
            and exit_finding.failure_class == "crash"
            and one.complaint.after <= _AT_ONCE_LINES
        )
    log, crash = chosen
    is_bare = weight(crash) in (BARE, CASCADE) and crash.signature.failure_class == "crash"
    is_near = 0 < crash.line - one.complaint.line <= _AT_ONCE_LINES
    is_its_message = one.complaint.line == crash.line + 1 and is_message_of_crash(one.complaint.text)
    return is_bare and log is one.log and (is_near or is_its_message)


def _complaint_verdict(one: _Complained, logs: Sequence[LogFindings]) -> Verdict:
    log, complaint = one
    signature = signature_of_complaint(complaint.failure_class)
    return Verdict(
        failure_class=signature.failure_class,
        recoverable=_recoverable(signature.failure_class, None),
        blame="none",
        signature=signature_of(likeness_of_line(signature.id, complaint.text)),
        evidence=Evidence(
            rule=signature.id,
            text=complaint.text,
            file=log.file,
            line=complaint.line,
            hint=_HINTS.get(signature.failure_class, signature.hint),
        ),
        cascades=_cascades(logs, None),
        confidence="low",
    )


def _as_resumed(log: LogFindings) -> LogFindings:
    if log.resumption is None:
        return log
    return replace(log, findings=tuple(as_resumed(finding, log.resumption) for finding in log.findings))


def _exit_finding(
    logs: Sequence[LogFindings], exit_code: int | None, signal: int | None, reported: FirstEnd | None
) -> ExitFinding | None:
    if (exit_finding := by_last_words(logs, exit_code)) is not None:
        return exit_finding
    exit_finding = by_status(exit_code, signal, had_progress=any(log.had_progress for log in logs))
    if exit_finding is None:
        return None
    if reported is not None:
        place = reported.finding.text, reported.log.file, reported.finding.line
    elif (stated := _stated(logs, exit_code)) is not None:
        place = stated
    else:
        return exit_finding
    text, file, line = place
    return exit_finding._replace(evidence=replace(exit_finding.evidence, text=text, file=file, line=line))


def _stated(logs: Sequence[LogFindings], exit_code: int | None) -> tuple[str, str, int] | None:
    """Return the last line of a log that states the exit code: its text, its log and its number."""
    if exit_code is None:
        return None
    places = ((log, at) for log in logs for at in range(len(log.tail) - 1, -1, -1))
    found = ((log, at) for log, at in places if code_in(log.tail[at]) == exit_code)
    return next(((log.tail[at].strip(), log.file, log.number_of_tail(at)) for log, at in found), None)


def _came_first(reported: FirstEnd | None, place: _Place) -> bool:
    """Return whether a log's finding only followed from the end of the rank that a launcher reports.

    A lost peer follows from it wherever it is reported, other failures of connections if they came later.
    """
    log, first = place
    if reported is None or first.signature.failure_class not in ("network", "collective_timeout"):
        return False
    if reported.exit_code == -Signals.SIGABRT and first.signature.failure_class == "collective_timeout":
        return False  # a watchdog aborts its own process
    is_later = log is reported.log and first.order > reported.finding.order
    return weight(first) >= CASCADE or is_later


def _is_of_killed(reported: FirstEnd | None, place: _Place) -> bool:
    """Return whether all that is known is a launcher's report of a kill: then it is told like the kill of a rank."""
    return reported is not None and reported.exit_code == -Signals.SIGKILL and weight(place[1]) == REPORT


def _is_at_end(log: LogFindings, finding: Finding) -> bool:
    """Return whether an exception without a traceback is named among the last lines of a log.

    An end from outside counts only in the very last line.
    """
    is_after = log.completed is None or log.completed < finding.order
    if not is_after or not log.tail:
        return False
    if finding.is_mention:
        is_last = finding.line >= log.number_of_tail(0) or _is_just_reported(finding, log)
        return (is_last or _is_above_stack(log)) and finding.level not in WEAK_LEVELS
    raised = finding.raised
    is_of_all = finding.signature.failure_class in _ENDS_ALL
    if raised is not None and (not raised.is_aside or raised.has_own or is_of_all):
        last = AFTER_LINE if raised.is_of_thread else _LAST_LINES
        return finding.line >= log.number_of_tail(max(-last, -len(log.tail)))
    last = -1 if finding.signature.id not in _SAID_BY_PROGRAMS else max(-_FAREWELL_LINES, -len(log.tail))
    is_outside = finding.signature.failure_class in ("preempted", "cancelled")
    return is_outside and finding.line >= log.number_of_tail(len(log.tail) + last)


def _is_above_stack(log: LogFindings) -> bool:
    """Return whether the last lines of a log are a stack, and no more than one follows the last finding."""
    return all(map(is_frame, log.tail)) and log.bytes_after <= _STACK_BYTES


def _ends_badly(log: LogFindings, finding: Finding) -> bool:
    """Return whether a log ends with complaints after what one thread met, and the others must meet too."""
    raised = finding.raised
    is_thread_s = raised is not None and raised.is_aside
    complaints = (one for one in log.complaints if one.line > finding.line and one.after <= AFTER_LINE)
    return is_thread_s and finding.signature.failure_class in _ENDS_ALL and any(complaints)


def _is_just_reported(finding: Finding, log: LogFindings) -> bool:
    """Return whether a launcher reports, a few lines below, that a rank has ended."""
    return any(
        0 < one.order - finding.order <= _MESSAGE_LINES and weight(one) == REPORT for one in log.findings
    )


def _only_says_exception(finding: Finding) -> bool:
    """Return whether a line without a traceback tells of what ends programs by exceptions: it may have been handled.

    Nothing handles an assertion on a device, which leaves the process without it.
    """
    is_on_device = finding.signature.id.startswith((_IN_KERNELS, _ASSERTED))
    return finding.raised is None and finding.signature.failure_class in BY_EXCEPTION and not is_on_device


def _says_more(
    exit_finding: ExitFinding | None, place: _Place, exit_code: int | None, signal: int | None
) -> bool:
    """Return whether the way in which the first rank ended explains more than the logs do."""
    log, first = place
    heavy = weight(first)
    is_end_known = exit_code is not None or signal is not None or log.breaks_off
    is_end_known = is_end_known or rank_named_first(log) is not None
    is_own = first.is_mention and first.signature.failure_class == "user_code"
    if is_own or (heavy in (MENTIONED, ASIDE) and not is_end_known):
        return not (_is_at_end(log, first) or _ends_badly(log, first))
    if exit_finding is None or heavy < CASCADE:
        return False
    number = signal_of(exit_code, signal)
    if exit_finding.failure_class == "crash":  # a watchdog aborts its own process
        return not (first.signature.failure_class == "collective_timeout" and number == Signals.SIGABRT)
    if heavy >= REPORT:
        return exit_finding.failure_class != "unknown"
    if first.signature.failure_class == "network":
        return number is not None
    return exit_finding.evidence.rule in ("usage", "no-such-command") or exit_finding.recoverable is False


# -- one log ----------------------------------------------------------------------------------------


def _candidates_of(log: LogFindings, *, is_known_to_fail: bool) -> list[Finding]:
    """Return the candidates for the root in one log: what explains most first, then the earliest of its kind."""
    findings = without_survived(
        log.findings
        if is_known_to_fail
        else without_unheeded(log, _without_caught(log, _before_completion(log)))
    )
    findings = _until_interrupted(log, findings)
    findings = findings if is_known_to_fail else _of_the_interrupted_program(findings)
    findings = _without_earlier_usage(_without_echoes(findings))
    ended = _ends_of([one for one in findings if not _follows_interruption(one, findings)])
    lines = (finding for finding in findings if finding.raised is None)
    said = [finding for finding in lines if not _is_outdone(finding, ended, findings)]
    named = rank_named_first(log)
    is_first = {id(one) for one in ended if named is not None and is_of_rank(one, named)}
    in_order = sorted(
        (*ended, *said),
        key=lambda one: (
            _group(one),
            id(one) not in is_first,
            _says_no_end(one),
            _follows(one, log),
            one.order,
        ),
    )
    return with_word_of_scheduler(in_order)


def _first_of(log: LogFindings, candidates: Sequence[Finding]) -> Finding | None:
    """Return what explains most in one log, shown by the most informative line of its event."""
    if not candidates:
        return None
    lines = [finding for finding in log.findings if finding.raised is None]
    ended = [finding for finding in candidates if finding.raised is not None]
    first = _in_its_kernel(_as_raised(candidates[0], ended), lines)
    first = _last_word(log, first, lines) if says_nothing(first) else _in_its_message(first, lines)
    return _with_its_number(first, lines)


def _last_word(log: LogFindings, first: Finding, lines: Sequence[Finding]) -> Finding:
    """Return what the last lines say of an exception that says nothing: its message may fill a log."""
    if not log.tail:
        return first
    end = log.number_of_tail(max(-_LAST_LINES, -len(log.tail)) + len(log.tail))
    said = (line for line in lines if line.order > first.order and line.line >= end and weight(line) == ROOT)
    return next(said, first)


def _with_its_number(first: Finding, lines: Sequence[Finding]) -> Finding:
    """Return the warning just before a line that says the same with the system's number for it.

    It weighs no less than the line that it stands for.
    """
    if first.raised is not None or _ERRNO in first.text.lower():
        return first
    closer = (
        line
        for line in lines
        if 0 < first.order - line.order <= _MESSAGE_LINES
        and line.rank == first.rank
        and line.signature.failure_class == first.signature.failure_class
        and _ERRNO in line.text.lower()
    )
    found = next(closer, first)
    return found if found is first else replace(found, level=first.level, is_mention=first.is_mention)


def _before_completion(log: LogFindings) -> list[Finding]:
    """Leave out consequences printed after the run completed: the ends of other ranks.

    A run that made no progress may have printed its last words too early: an exception still ended it.
    """
    return [
        one
        for one in log.findings
        if log.completed is None
        or one.order < log.completed
        or weight(one) < CASCADE
        or (one.raised is not None and one.raised.has_own and not log.had_progress)
    ]


def _without_caught(log: LogFindings, findings: Sequence[Finding]) -> list[Finding]:
    """Leave out exceptions of which one process had several and then went on: it can have died of one of them only."""
    raised = [one for one in findings if _is_of_process(one)]
    if not raised or log.number_of_tail(max(-_CAUGHT, -len(log.tail))) <= raised[-1].line:
        return list(findings)
    by_process = Counter((one.rank, one.signature.id) for one in raised)
    caught = {
        one.raised.file for one in raised if one.raised and by_process[one.rank, one.signature.id] >= _CAUGHT
    }
    return [
        one
        for one in findings
        if one.raised is None or not _is_of_process(one) or one.raised.file not in caught
    ]


def _is_of_process(finding: Finding) -> bool:
    """Return whether the prefix of an exception, other than an interruption, names its process."""
    return finding.raised is not None and _PROCESS in finding.rank and weight(finding) != INTERRUPTED


def _until_interrupted(log: LogFindings, findings: Sequence[Finding]) -> list[Finding]:
    """Leave out exceptions that a program printed and went on after, until it says that it was interrupted."""
    said = (one.order for one in findings if one.signature.id == _BY_KEYBOARD and _is_at_end(log, one))
    end = max(said, default=0)
    return [
        one
        for one in findings
        if one.raised is None or one.order >= end or not one.raised.is_printed or weight(one) != ROOT
    ]


def _of_the_interrupted_program(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out exceptions that had ended other programs of a script before the one that was interrupted."""
    interrupted = [one for one in findings if weight(one) == INTERRUPTED and _program_of(one)]
    if not interrupted:
        return list(findings)
    last = interrupted[-1]
    return [
        one
        for one in findings
        if one.order >= last.order
        or one.rank != last.rank
        or one.signature.failure_class not in BY_EXCEPTION
        or _program_of(one) in ("", _program_of(last))
        or last.first_line - one.last_line <= _AT_ONCE_LINES
    ]


def _program_of(finding: Finding) -> str:
    """Return the file of the program that an exception ended; empty if none is known."""
    raised = finding.raised
    if raised is None or raised.is_printed or raised.outermost is None:
        return ""
    file = raised.outermost[0]
    return "" if is_library(file) or _OF_LAUNCHERS in file else file


def _without_echoes(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out the last lines of threads' tracebacks that were printed into each other: one has them all."""
    aside = {one.text for one in findings if one.raised is not None and one.raised.is_aside}
    return [one for one in findings if not (one.is_mention and one.text in aside)]


def _follows_interruption(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Return whether an exception was raised as its process was interrupted with others, or cleaned up."""
    if finding.raised is None or weight(finding) != ROOT:
        return False
    interrupted = [one for one in findings if weight(one) == INTERRUPTED]
    if finding.raised.is_cleanup:
        return any(0 < finding.order - one.order <= _LOGGED_LINES for one in interrupted)
    return any(_is_below(finding, one) for one in interrupted)


def _is_below(finding: Finding, above: Finding) -> bool:
    """Return whether a traceback begins where another ends: a terminal interrupts all processes at once."""
    is_chain = above.last_line > above.line  # with empty lines in it, which do not count there
    near = _MESSAGE_LINES if is_chain else _AT_ONCE_LINES
    return finding.rank == above.rank and abs(finding.first_line - above.last_line) <= near


def _without_earlier_usage(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out what refused programs that were started again, and refused their arguments, in the same log.

    What stands far above another program that could not start is over as well.
    """
    last = {one.rank: one for one in findings if one.signature.id in ENDS_ITS_PROGRAM}
    return [
        one
        for one in findings
        if one.rank not in last
        or one.order >= last[one.rank].order
        or not (begins(one) or one.signature.id in _BEFORE_USAGE or _is_far_above(one, last[one.rank]))
    ]


def _is_far_above(one: Finding, other: Finding) -> bool:
    """Return whether an exception was printed, and much more until another program could not start."""
    return one.raised is not None and one.raised.is_printed and other.line - one.last_line > FAR_LINES


def _group(finding: Finding) -> int:
    """A bare crash and what follows from another's failure: the earlier one explains the later."""
    return CASCADE if weight(finding) == BARE else weight(finding)


def _says_no_end(finding: Finding) -> bool:
    """Return whether a launcher reports a failure without saying how the rank ended."""
    return weight(finding) == REPORT and not reports_end(finding)


def _follows(finding: Finding, log: LogFindings) -> bool:
    """Return whether a report says only that something else has failed, or is beside the end of the log."""
    is_beside = weight(finding) == MENTIONED and finding.raised is None and not _is_at_end(log, finding)
    return is_beside or finding.signature.id in _SAYS_NOTHING


def _ends_of(findings: Sequence[Finding]) -> list[Finding]:
    """Return the exception that ended each rank: its last one, preferably not a consequence."""
    ends: dict[str, Finding] = {}
    before: dict[str, Finding] = {}
    for finding in findings:
        if finding.raised is None:
            continue
        known, above = ends.get(finding.rank), before.get(finding.rank)
        before[finding.rank] = finding
        if above is not None and _only_follows(finding, above):
            ends[finding.rank] = before[finding.rank] = _as_end(above)
        elif (
            known is None
            or _is_crash_of_another(finding, known)
            or not (
                _is_full_twice(known, finding)
                or weight(known) < weight(finding)
                or wraps(finding, known, is_direct=False)
            )
        ):
            ends[finding.rank] = finding
    return list(ends.values())


def _is_crash_of_another(later: Finding, known: Finding) -> bool:
    """Return whether an exception that explains little stands so far below another one that its program is another."""
    assert later.raised is not None
    return weight(later) == BARE and later.raised.begun - known.order > _LOGGED_LINES


def _only_follows(later: Finding, known: Finding) -> bool:
    """Return whether the later exception begins where the other ends, and only reports it."""
    if later.raised is None or not only_reports(later) or only_reports(known):
        return False
    return 0 < later.raised.begun - known.order <= _AT_ONCE_LINES


def _as_end(finding: Finding) -> Finding:
    """Return the exception of a thread that has ended the program as well."""
    assert finding.raised is not None
    return replace(finding, raised=replace(finding.raised, is_aside=False))


def _is_full_twice(known: Finding, later: Finding) -> bool:
    """Return whether both are about storage: a full disk shows in several places, first where it matters."""
    return known.signature.failure_class == later.signature.failure_class == "storage"


def _is_outdone(line: Finding, ended: Sequence[Finding], findings: Sequence[Finding]) -> bool:
    """Return whether a later exception, and not this line, is what ended the program.

    A line just before an exception explains it, unless it ended another program, or was printed before as well.
    """
    is_end = line.signature.id in ENDS_ITS_PROGRAM
    is_apart = is_end or line.signature.id in _ELSEWHERE or _is_repeated(line, findings)
    near = 0 if is_apart else _NEAR_LINES
    ends = (ROOT, INTERRUPTED) if is_end else (ROOT,)
    return line.signature.failure_class in BY_EXCEPTION and any(
        weight(end) in ends and end.raised is not None and end.raised.begun - line.order > near
        for end in ended
    )


def _is_repeated(line: Finding, findings: Sequence[Finding]) -> bool:
    """Return whether a process printed a line at another time as well, and went on."""
    return any(
        one.signature is line.signature and one.rank == line.rank and abs(line.line - one.line) > _NEAR_LINES
        for one in findings
    )


def _as_raised(first: Finding, ended: Sequence[Finding]) -> Finding:
    """Return the exception for which a line just before it already said the same.

    A signal is best shown by the line that received it, a rank's end by the line of its launcher.
    """
    is_received = first.signature.failure_class in ("cancelled", "preempted") and not first.level
    if is_received or reports_end(first):
        return first
    raised = (
        end
        for end in ended
        if end.signature.id == first.signature.id
        and end.rank == first.rank
        and 0 < end.order - first.order <= _LOGGED_LINES
    )
    return next(raised, first)


def _in_its_kernel(first: Finding, lines: Sequence[Finding]) -> Finding:
    """Return the assertion that failed in a kernel for what a call to the device raises: it may be printed later."""
    if first.raised is None or not first.signature.id.startswith(_OF_DEVICES):
        return first
    asserted = (line for line in lines if line.signature.id.startswith(_IN_KERNELS))
    return next((line for line in asserted if abs(line.line - first.line) <= _NEAR_LINES), first)


def _in_its_message(first: Finding, lines: Sequence[Finding]) -> Finding:
    """Return a finding from further lines of an exception's message, where the first one says nothing."""
    is_bare_cascade = weight(first) == CASCADE and first.signature.failure_class == "crash"
    if first.signature not in (GENERIC, UNREADABLE) and (first.raised is None or not is_bare_cascade):
        return first
    inner = (
        line
        for line in lines
        if 0 < line.order - first.order <= _MESSAGE_LINES
        and line.rank == first.rank
        and _says_why(line, is_bare_cascade)
    )
    return next(inner, first)


def _says_why(line: Finding, is_cascade_enough: bool) -> bool:
    return weight(line) == ROOT or (
        is_cascade_enough and weight(line) == CASCADE and line.signature.failure_class != "crash"
    )


# -- all logs ---------------------------------------------------------------------------------------


def _rank_of_cause(finding: Finding, undated: Container[int]) -> tuple[float, ...]:
    """Order the logs' findings: what explains most first, then the earliest, unless `undated` holds their weight."""
    order = weight(finding)
    is_timeout = finding.signature.failure_class == "collective_timeout"
    stamp = 0.0 if finding.stamp is None or order in undated else finding.stamp
    return (order, order == CASCADE and not is_timeout, stamp)


def _verdict(place: _Place, logs: Sequence[LogFindings], candidates: Sequence[Sequence[Finding]]) -> Verdict:
    log, finding = place
    rivals = [rival for each in candidates for rival in each]
    signature = finding.signature
    alike = (
        likeness_of_exception(finding.raised)
        if finding.raised
        else likeness_of_line(signature.id, finding.text)
    )
    recoverable = _recoverable(signature.failure_class, signature.recoverable)
    return Verdict(
        failure_class=signature.failure_class,
        recoverable=recoverable,
        blame=_blame(place, logs),
        signature=signature_of(alike),
        evidence=_evidence(log, finding, "root"),
        cascades=_cascades(logs, finding),
        confidence=confidence_in(finding, recoverable, log, rivals),
    )


def _recoverable(failure_class: FailureClass, narrowed: Recoverable) -> Recoverable:
    return RECOVERABLE[failure_class] if narrowed is None else narrowed


def _blame(place: _Place, logs: Sequence[LogFindings]) -> Blame:
    """Return the entry's blame; where some ranks wait for silent ones, the silent ones."""
    _, finding = place
    if finding.signature.failure_class != "collective_timeout" or len(logs) < 2:
        return finding.signature.blame
    reporters = [log for log in logs if any(_is_timeout(one) for one in log.findings)]
    return "peer" if len(reporters) < len(logs) else finding.signature.blame


def _is_timeout(finding: Finding) -> bool:
    return finding.signature.failure_class == "collective_timeout"


def _evidence(log: LogFindings, finding: Finding, role: Role) -> Evidence:
    signature = finding.signature
    hint = signature.hint or _HINTS.get(signature.failure_class, "")
    return Evidence(
        rule=signature.id,
        text=finding.text,
        role=role,
        file=log.file,
        line=finding.line,
        hint=hint if role == "root" else "",
    )


def _cascades(logs: Sequence[LogFindings], root: Finding | None) -> tuple[Evidence, ...]:
    """Return the consequences, the first of each rule in each log."""
    least = CASCADE if root is None else weight(root) + 1
    found: dict[tuple[str, str], Evidence] = {}
    for log in logs:
        for finding in log.findings:
            if finding is not root and weight(finding) >= least and weight(finding) != MENTIONED:
                found.setdefault((log.file, finding.signature.id), _evidence(log, finding, "cascade"))
    return tuple(found.values())[:_MAX_CASCADES]


def _exit_verdict(
    exit_finding: ExitFinding, logs: Sequence[LogFindings], number: int | None, *, is_doubtful: bool
) -> Verdict:
    """Return the verdict of a process's end; doubtful if it is only the last line of a log in which more went wrong."""
    return Verdict(
        failure_class=exit_finding.failure_class,
        recoverable=_recoverable(exit_finding.failure_class, exit_finding.recoverable),
        blame="none",
        signature=signature_of(exit_finding.likeness),
        evidence=exit_finding.evidence,
        cascades=tuple(one for one in _cascades(logs, None) if not _is_same_line(one, exit_finding.evidence)),
        confidence="low"
        if is_doubtful
        else confidence_of_end(number, exit_finding.failure_class, exit_finding.evidence.rule),
    )


def _is_same_line(one: Evidence, other: Evidence) -> bool:
    return other.line is not None and (one.file, one.line) == (other.file, other.line)


def _plain(failure_class: FailureClass) -> Verdict:
    return Verdict(
        failure_class=failure_class, recoverable=RECOVERABLE[failure_class], blame="none", signature=None
    )
