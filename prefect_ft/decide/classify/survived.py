"""What a run survived: older findings that a later end from outside shows not to have ended it.

Owns the statements of schedulers that show an end from outside. A time limit, a cancellation or a preemption
ends what still runs, so what was printed long before did not end it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from prefect_ft.decide.classify.chains import (
    BY_EXCEPTION,
    CASCADE,
    INTERRUPTED,
    REPORT,
    ROOT,
    weight,
)
from prefect_ft.decide.classify.closing import (
    AFTER_LINE,
    SERVES,
    WEAK_LEVELS,
    complains,
    is_frame,
    is_of_tracker,
)
from prefect_ft.decide.classify.findings import BUFFERED_BYTES, Finding, LogFindings
from prefect_ft.decide.classify.heads import after_time, stamp_of
from prefect_ft.decide.classify.progress import is_result
from prefect_ft.signatures import compiled

__all__ = [
    "ENDS_ITS_PROGRAM",
    "FAR_LINES",
    "MAY_BE_UNHEEDED",
    "begins",
    "end_from_outside",
    "with_word_of_scheduler",
    "without_survived",
    "without_unheeded",
]

_SCHEDULER = compiled(
    r"^(?:slurm|srun-interrupt|lsf|pbs|sge|condor|k8s|aws|gcp|azure|sagemaker|vertex|jax-tpu|kueue)-|^srun-interrupt$"
)
"""Entries of the catalogue, by their ids, with which a scheduler states an end itself."""

_TIME_LIMITS = frozenset(
    (
        "k8s-deadline", "limit-cpu-time", "lsf-runlimit", "pbs-walltime", "sagemaker-stopped", "sge-limits",
        "slurm-state-timeout", "slurm-time-limit", "submitit-timed-out", "wall-time",
    )
)  # fmt: skip

_NO_REASON = frozenset(("lsf-owner", "pbs-deleted", "slurm-job-cancelled", "slurm-state-cancelled"))
"""Statements of an end whose reason may be in another line."""

_OF_FAILED_TASKS = frozenset(
    ("mpi-abort", "srun-task-aborted", "srun-task-exited", "srun-task-killed", "srun-task-segfault")
)
"""What a task reports that ends the others, and srun of one that has failed, and of one that it has ended after it
said that the step ends."""

_OF_ENDED_STEPS = frozenset(("slurm-step-cancelled", "srun-task-terminated"))

_JOB = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)")

_REPORTS = frozenset(("interrupt-aborted",))
"""Signatures of what a program prints when an interruption ends it, whatever sent it."""

_AS_IT_BEGINS = frozenset(("ImportError", "IndentationError", "ModuleNotFoundError", "SyntaxError"))

ENDS_ITS_PROGRAM = frozenset(
    ("cfg-argparse", "cfg-hydra-override", "cfg-jsonargparse", "cfg-python-script-missing")
)
"""The last line of a program: what comes long after it is another program's."""

_NUMBER = re.compile(r"\d+")
_ITEM = re.compile(r"\W{0,2}(\d{1,9})\b")
_ITEMS = 4
"""How many lines about items show that a program goes on after each."""

_NEAR_LINES = 30
_OUTSIDE = frozenset(("cancelled", "preempted"))

_ENDS_ALL = frozenset(("hardware", "oom_host"))
"""Classes of failures that may leave a job hanging until it is ended from outside."""

FAR_LINES = 100
"""How many lines may follow a failure that ends a program: tracebacks of other ranks, reports of launchers."""

_VERY_FAR_LINES = 500
"""How many lines may follow an exception that ended the run, if none of them reports a failure."""

_AFTER_UNCAUGHT = 60
"""The same, if the last lines are of many forms, as those of another program are, and none of them complains."""

_FORMS = 8
"""How many forms of lines are many."""

_REPORT_OF_POWERSHELL = re.compile(
    r"\S.{0,200}:\d+ \S{1,12}:\s?\d+$|\+ | +\+ (?:CategoryInfo|FullyQualifiedErrorId) |Line \|$| {2,4}\d* {1,3}\| "
)
"""The lines of its report of an error, beside the message, in any language; those of version 7 have bars."""
_ORIGIN_IN_POWERSHELL = re.compile(r" +\+ CategoryInfo |Line \|$")
"""The line that each such report has."""

_FORMS_OF_ONE = 2
"""Of how many forms the lines of one message are."""

_ADVICE = "Set the environment variable HYDRA_FULL_ERROR=1"
"""What Hydra prints below the exception that ended its program."""

_TIMED, _TIMED_S = 3, 60
"""How often the same line, over how many seconds, shows the same by its times."""

_AFTER_PRINTED = 30
"""How many lines without any report of a failure show that a run went on after an exception that was printed."""

_AMONG_OTHERS = 0.25
"""The least share of the last lines that a process has printed which prints among others; what has less has ended."""

_HANDLED, _APART_LINES = 3, 3
"""How often an exception comes that a program handles, and how many lines stand in between at least."""

_AFTER_IMPORT = 3
"""How many lines without any report of a failure follow an exception that ended a program as it was loaded: it had
hardly anything to print."""

_AFTER_SHELL = 3
"""How many show that a shell went on, as it does with the next line of its script."""

_OF_SCRIPTS = frozenset(
    ("cfg-shell-not-found", "cfg-shell-syntax", "nvidia-smi-no-devices", "nvidia-smi-no-driver")
)
"""Complaints of a shell and of a command of its script: it runs the next line."""

_ENOUGH = {
    **dict.fromkeys(_OF_SCRIPTS, _AFTER_SHELL),
    "crash-windows-exception": _AFTER_PRINTED,  # by Python's faulthandler, before the program can handle it
    **dict.fromkeys(("ompi-slots", "rabbitmq-node"), _AFTER_PRINTED),  # they explain it at length
    **dict.fromkeys(("address-sanitizer", "nextflow-code", "nextflow-config"), FAR_LINES),  # stacks follow
    **dict.fromkeys(("crash-rust-panic", "rust-file-missing", "rust-main-panic"), FAR_LINES),
    **dict.fromkeys(("cfg-traitlets", "julia-code"), _VERY_FAR_LINES),  # the usage follows, or a long stack
}
"""How many lines show that a run went on after certain signatures."""

_OF_CONNECTIONS = "net-"
"""How the ids of entries begin that are of any program's connections."""

_SYNTAX = "cfg-shell-syntax"
"""The complaint of a shell with which it stops reading a script."""

_NO_SCRIPT = re.compile(r"(?:ba|da|k|z)?sh: (?:\d+: )?[^:]+: No such file")
"""How a shell complains that it cannot read the script for which it was started."""

_SERVES = re.compile(
    rf"{SERVES}|INFO: +[\d.]+:\d+ - \"[A-Z]+ /|TensorBoard caught SIGTERM; |\[C [\d:. -]+ \w+App\] received signal \d"
)
"""How servers log further requests, or that they were asked to stop."""

_ENGINE_DIED = re.compile(r"\w*EngineDeadError$")
"""The exception with which vLLM refuses each request once its engine has ended, until its server ends too."""
_ENGINE_ANSWERS = re.compile(r"INFO: +[\d.]+:\d+ - \"POST /.* 200 OK$")
"""How vLLM's server logs a request that its engine has answered."""
_ENGINE_IS_STOPPED = re.compile(r"INFO: +Shutting down$")
"""What vLLM's server logs as it stops."""

_KILLS = frozenset(("shell-killed", "shell-terminated"))
"""A shell's reports of how a program ended that a later line of its script had started."""

MAY_BE_UNHEEDED = BY_EXCEPTION | {"network", "oom_device", "port_in_use", "storage"}
"""Classes that one part of a program may report while the program as a whole continues."""


def without_unheeded(log: LogFindings, findings: Sequence[Finding]) -> list[Finding]:
    """Leave out lines far from the end of a log after which nothing reports a failure: the run went on.

    Only for a log whose run ended in an unknown way.
    """
    if not findings or not log.tail:
        return list(findings)
    killed = max((one.order for one in findings if one.signature.id in _KILLS), default=0)
    findings = [
        one
        for one in findings
        if one.signature.id not in _OF_SCRIPTS or one.order > killed + (_AFTER_SHELL if killed else 0)
    ]
    findings = [one for one in findings if not (_follows_stop(one, log) or _was_survived_before(one, log))]
    serves = _ENGINE_ANSWERS if any(map(_is_of_dead_engine, findings)) else _SERVES
    findings = [one for one in findings if not _is_served_after(one, log, serves)]
    findings = _without_items(_without_passed_lines(findings))
    if not findings:
        return []
    end = log.number_of_tail(len(log.tail) - 1)  # this may count the lines of a whole log
    findings = _without_handled(findings, end)
    result = max((log.number_of_tail(at) for at, text in enumerate(log.tail) if is_result(text)), default=0)
    uncaught = (
        _AFTER_PRINTED if log.goes_on else _AFTER_UNCAUGHT if _is_of_many_forms(log) else _VERY_FAR_LINES
    )
    left = sorted(
        (one for one in findings if not _is_of_earlier_program(one, end)), key=lambda one: one.order
    )
    if any(one.is_strong and one.after < _AFTER_PRINTED for one in log.complaints):
        return left
    warned: list[Finding] = []
    while left:
        if not log.complaints and begins(left[-1]) and _another_prints_after(left[-1], end, log):
            left.clear()
            break
        is_over = (
            _is_unheeded(left[-1], _lines_after(left[-1], end, log), uncaught, log)
            or _is_before_result(left[-1], result)
            or (log.had_progress and left[-1].signature.id in _OF_SCRIPTS and not _ends_script(left[-1], end))
            or _warns_of_connection(left[-1])
        )
        if not (is_over or _only_warns(left[-1])):
            break
        last = left.pop()
        if not is_over:
            warned.append(last)
    return [*left, *reversed(warned)]


def _ends_script(finding: Finding, end: int) -> bool:
    is_end = finding.signature.id == _SYNTAX or _NO_SCRIPT.match(finding.text) is not None
    return is_end and end - finding.line <= 1


def _only_warns(finding: Finding) -> bool:
    return finding.raised is None and finding.level in WEAK_LEVELS


def _warns_of_connection(finding: Finding) -> bool:
    """Return whether a program warns of a connection that it lost: another one, or a peer that has ended before."""
    return _only_warns(finding) and finding.signature.id.startswith(_OF_CONNECTIONS)


def _without_passed_lines(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out complaints of a script's shell long before another one: it ran the next lines, whatever it missed."""
    lines = sorted(one.line for one in findings if one.signature.id in _OF_SCRIPTS)
    passed = max((one for one, after in pairwise(lines) if after - one > _AFTER_SHELL), default=0)
    return [one for one in findings if one.signature.id not in _OF_SCRIPTS or one.line > passed]


def _without_items(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out lines of one rule that begin with ever greater numbers: they are about items, one after the other."""
    numbers: dict[str, list[int]] = {}
    for one in sorted(findings, key=lambda one: one.order):
        if one.raised is None and (number := _ITEM.match(after_time(one.text))) is not None:
            numbers.setdefault(one.signature.id, []).append(int(number[1]))
    items = {
        rule
        for rule, each in numbers.items()
        if len(each) >= _ITEMS and all(one < after for one, after in pairwise(each))
    }
    return [
        one for one in findings if one.signature.id not in items or _ITEM.match(after_time(one.text)) is None
    ]


def _without_handled(findings: Sequence[Finding], end: int) -> list[Finding]:
    """Leave out exceptions that were printed again and again with other lines in between.

    Only where nothing else is reported after the last of them: else they may be of several ranks.
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in sorted(findings, key=lambda one: one.order):
        if one.raised is not None and one.raised.is_printed and weight(one) == ROOT:
            alike.setdefault((one.rank, one.text), []).append(one)
    handled = {
        id(one)
        for each in alike.values()
        if 1 + sum(_comes_later(one, after) for one, after in pairwise(each)) >= _HANDLED
        and end - each[-1].last_line > AFTER_LINE
        for one in each
    }
    last = max((one.order for one in findings if id(one) in handled), default=0)
    left = [one for one in findings if id(one) not in handled]
    return list(findings) if any(one.order > last for one in left) else left


def _comes_later(one: Finding, after: Finding) -> bool:
    return after.first_line - one.last_line > _APART_LINES


def _may_be_unheeded(finding: Finding) -> bool:
    is_said = (
        finding.raised is None or finding.raised.is_printed
    ) and finding.signature.failure_class in MAY_BE_UNHEEDED
    return is_said and (weight(finding) == ROOT or finding.is_mention)


def _is_before_result(finding: Finding, result: int) -> bool:
    """Return whether a line names a failure, and the program has a result later."""
    return finding.raised is None and _may_be_unheeded(finding) and finding.line < result


def _is_of_earlier_program(finding: Finding, end: int) -> bool:
    return finding.signature.id in ENDS_ITS_PROGRAM and end - finding.line > FAR_LINES


def _another_prints_after(finding: Finding, end: int, log: LogFindings) -> bool:
    """Return whether another program prints after one that ended as it was loaded."""
    enough = _AFTER_PRINTED if weight(finding) == INTERRUPTED else _AFTER_IMPORT
    return _lines_after(finding, end, log) > enough


def _is_of_many_forms(log: LogFindings) -> bool:
    lines = (after_time(text) for text in log.tail if not is_frame(text))
    forms = {_NUMBER.sub("", text) for text in lines if not text[:1].isspace()}
    is_complaining = bool(log.complaints) or 2 * sum(map(complains, log.tail)) > len(log.tail)
    return len(forms) >= _FORMS and not is_complaining


def _lines_after(finding: Finding, end: int, log: LogFindings) -> float:
    """Return how many lines follow, without the share of other processes that print among those of the finding's."""
    if finding.raised is not None and _is_one_message(log.tail):
        return 0
    of_its_own = log.closing_ranks.count(finding.rank) / max(1, len(log.closing_ranks))
    behind = [text for at, text in enumerate(log.tail) if log.number_of_tail(at) > finding.last_line]
    is_powershell = any(map(_ORIGIN_IN_POWERSHELL.match, behind))
    beside = sum(
        _is_of_report(text) or (is_powershell and _REPORT_OF_POWERSHELL.match(text) is not None)
        for text in behind
    )
    return max(0, end - finding.last_line - beside) * (of_its_own if of_its_own >= _AMONG_OTHERS else 1)


def _is_of_report(text: str) -> bool:
    """Return whether a line belongs to the report of a failure, or comes from what tracks the experiment."""
    return is_frame(text) or is_of_tracker(text) or text.startswith(_ADVICE)


def _is_one_message(lines: Sequence[str]) -> bool:
    """Return whether lines are all indented and alike: a message of thousands of lines, as NumPy's of each bad line."""
    texts = [after_time(text) for text in lines]
    return (
        len(texts) >= _FORMS
        and all(text[:1].isspace() for text in texts)
        and (len({_NUMBER.sub("", text) for text in texts}) <= _FORMS_OF_ONE)
    )


def _is_unheeded(finding: Finding, after: float, after_uncaught: int, log: LogFindings) -> bool:
    """Return whether the run went on by how many lines follow, after an uncaught exception `after_uncaught`."""
    if finding.raised is not None and not finding.raised.is_printed:
        if weight(finding) == INTERRUPTED:
            # other processes print what they had left
            return after > _VERY_FAR_LINES and log.bytes_after > BUFFERED_BYTES
        return after > after_uncaught
    if finding.signature.failure_class in _OUTSIDE:
        return after > (FAR_LINES if _is_schedulers(finding) and not log.complaints else _VERY_FAR_LINES)
    if weight(finding) in (CASCADE, REPORT):
        return after > FAR_LINES
    if (enough := _ENOUGH.get(finding.signature.id)) is not None:
        return after > enough
    return _may_be_unheeded(finding) and _goes_on_after(finding, after, log)


def _is_served_after(finding: Finding, log: LogFindings, serves: re.Pattern[str]) -> bool:
    """Return whether a server goes on after an exception: it handled it, or its kernel did, or it started later."""
    serving = (at for at, text in enumerate(log.tail) if finding.raised and serves.match(text) is not None)
    return any(log.number_of_tail(at) > finding.last_line for at in serving)


def _is_of_dead_engine(finding: Finding) -> bool:
    return finding.raised is not None and _ENGINE_DIED.match(finding.raised.plain_name) is not None


def _follows_stop(finding: Finding, log: LogFindings) -> bool:
    """Return whether an engine has ended because its server was stopped."""
    if not _is_of_dead_engine(finding):
        return False
    stopping = (at for at, text in enumerate(log.tail) if _ENGINE_IS_STOPPED.match(text) is not None)
    return any(log.number_of_tail(at) < finding.first_line for at in stopping)


def _was_survived_before(finding: Finding, log: LogFindings) -> bool:
    """Return whether the run went on after others like this one, again and again."""
    return _may_be_unheeded(finding) and finding.form in log.survived


def _goes_on_after(finding: Finding, after: float, log: LogFindings) -> bool:
    if finding.raised is not None:
        return after > _AFTER_PRINTED
    return after > AFTER_LINE or _goes_on_in_time(finding, log)


def _goes_on_in_time(finding: Finding, log: LogFindings) -> bool:
    """Return whether the same line follows again and again for a minute and more, and nothing complains."""
    after = [text for at, text in enumerate(log.tail) if log.number_of_tail(at) > finding.line]
    stamps: dict[str, list[float]] = {}
    for text in after:
        if (stamp := stamp_of(text)) is not None:
            stamps.setdefault(_NUMBER.sub("", after_time(text)), []).append(stamp)
    is_quiet = not any(map(complains, after))
    return is_quiet and any(
        len(each) >= _TIMED and each[-1] - each[0] >= _TIMED_S for each in stamps.values()
    )


def with_word_of_scheduler(candidates: Sequence[Finding]) -> list[Finding]:
    """Replace what a process reports of the signal that it received by the scheduler's statement."""
    stated = next((one for one in candidates if weight(one) in (ROOT, CASCADE) and _is_schedulers(one)), None)
    if stated is None:
        return list(candidates)
    return [stated if _reports_signal(one) and weight(one) >= weight(stated) else one for one in candidates]


def _reports_signal(finding: Finding) -> bool:
    is_report = weight(finding) == CASCADE or finding.signature.id in _REPORTS
    return is_report and finding.signature.failure_class in _OUTSIDE and not _is_schedulers(finding)


def _is_schedulers(finding: Finding) -> bool:
    is_outside = finding.signature.failure_class in _OUTSIDE
    return is_outside and bool(_SCHEDULER.search(finding.signature.id))


def end_from_outside(findings: Sequence[Finding]) -> Finding | None:
    """Return the last statement that the run was ended from outside."""
    ends = [
        finding
        for finding in findings
        if finding.signature.failure_class in _OUTSIDE and weight(finding) in (ROOT, INTERRUPTED)
    ]
    return max(ends, key=lambda finding: finding.order, default=None)


def without_survived(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out findings after which the run continued until it was ended from outside, and ends of known reason."""
    findings = _without_ends_that_follow(_of_the_job_named_last(findings))
    end = end_from_outside(findings)
    if end is None:
        return findings
    findings = _of_the_last_job(findings)
    if end not in findings:
        return without_survived(findings)
    reasons = [one for one in findings if one.signature.id in _TIME_LIMITS or _is_preemption(one)]
    findings = [
        one
        for one in findings
        if one.signature.id not in _NO_REASON or not any(_is_near(one, reason) for reason in reasons)
    ]
    last = {
        one.signature.id: one for one in sorted(findings, key=lambda one: one.order) if one.order < end.order
    }
    return [one for one in findings if not _is_survived(one, last.get(one.signature.id, one), end)]


def _without_ends_that_follow(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out the end of a step in which a task had failed, and the eviction of a job that is then removed."""
    in_order = sorted(findings, key=lambda one: one.order)
    follows = {id(one) for one in _ends_of_failed_steps(in_order)}
    for before, after in pairwise(in_order):
        if before.signature.id == "condor-evicted" and after.signature.id == "condor-removed":
            follows.add(id(before))
    return [one for one in findings if id(one) not in follows]


def _ends_of_failed_steps(in_order: Sequence[Finding]) -> Iterator[Finding]:
    """Return what Slurm says of the other tasks of a step after the first has failed: it ends the step itself."""
    failed: Finding | None = None
    for one in in_order:
        if one.signature.id in _OF_FAILED_TASKS:
            failed = one
        elif one.signature.id in _OF_ENDED_STEPS and failed is not None and _is_near(one, failed):
            yield one


def _job_of(finding: Finding) -> str:
    """Return the number of the job that a statement of Slurm's names, empty if none."""
    named = _JOB.search(finding.text)
    return named[1] if named is not None else ""


def _of_the_job_named_last(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out findings up to what Slurm says of another job, some lines above what it says of the last one."""
    named = sorted((one for one in findings if _job_of(one)), key=lambda one: one.order)
    others = (
        one.order
        for one in named
        if _job_of(one) != _job_of(named[-1]) and named[-1].line - one.line > _APART_LINES
    )
    earlier = max(others, default=0)
    return [one for one in findings if one.order > earlier]


def _of_the_last_job(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out findings before the end of an earlier job: two ends far from each other are of two jobs.

    A program that fails at its start is also another job's.
    """
    stated = [one for one in findings if _is_schedulers(one) and weight(one) == ROOT]
    last = max((one.line for one in stated), default=0)
    begun = max((one.order for one in findings if one.raised is not None and begins(one)), default=0)
    ends = (one for one in stated if _is_of_a_job(one))
    earlier = max(
        (one.order for one in ends if last - one.line > _NEAR_LINES or one.order < begun), default=0
    )
    return [one for one in findings if one.order > earlier]


def begins(finding: Finding) -> bool:
    """Return whether an exception ended a program that was only being loaded."""
    raised = finding.raised
    return raised is not None and (raised.is_import or raised.plain_name in _AS_IT_BEGINS)


def _is_of_a_job(finding: Finding) -> bool:
    return "*** JOB " in finding.text or finding.signature.id.startswith("lsf-")


def _is_preemption(finding: Finding) -> bool:
    return finding.signature.failure_class == "preempted" and weight(finding) == ROOT


def _is_near(one: Finding, other: Finding) -> bool:
    return abs(one.line - other.line) <= _NEAR_LINES


def _is_survived(finding: Finding, last_alike: Finding, end: Finding) -> bool:
    if finding.signature.id in _OF_SCRIPTS and end.line - finding.line > _AFTER_SHELL:
        return True
    if finding.order >= end.order or finding.signature.failure_class in _OUTSIDE | _ENDS_ALL:
        return False
    if weight(finding) >= CASCADE:
        return False
    is_far = end.line - last_alike.line > FAR_LINES
    if finding.raised is None or finding.raised.is_printed:
        is_stated = finding.signature.failure_class in BY_EXCEPTION and _is_schedulers(end)
        return is_far or is_stated or end.signature.id in _TIME_LIMITS
    return is_far
