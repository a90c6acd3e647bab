"""`status` and `report`: a run read from its files, alive or long over."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefect_ft.cli import COMPLETED
from prefect_ft.console import QuietConsole
from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.journal import Line, read_lines
from prefect_ft.run import JOURNAL, phase_directories
from prefect_ft.stages import STAGES
from prefect_ft.summary import AttemptSummary, PhaseSummary, WarmSummary, summarise

PIPE_WIDTH = 160
"""Columns where there is no terminal to ask."""

_SIGNALS = {known.value: known.name for known in signal.Signals}

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def status(run: str, *, as_json: bool) -> int:
    """Print where each phase of a run stands."""
    summaries = _summaries(phase_directories(run))
    if as_json:
        print(json.dumps([summary.to_json() for summary in summaries], indent=2))
        return COMPLETED
    console = console_for()
    for summary in summaries:
        console.print(_status_line(summary), soft_wrap=True)
        for each in summary.warm if summary.status == "running" else ():
            console.print(_warm_line(each), soft_wrap=True)
    if not summaries:
        console.print("no phase has begun")
    return COMPLETED


def report(run: str, *, as_json: bool) -> int:
    """Print what a run lost, to what, and why."""
    directories = phase_directories(run)
    if as_json:
        print(json.dumps([summary.to_json() for summary in _summaries(directories)], indent=2))
    else:
        print_report(directories)
    return COMPLETED


def console_for() -> Console:
    """Give a console on standard output, wide enough for the tables where it is no terminal."""
    console = QuietConsole(highlight=False)
    return console if console.is_terminal else QuietConsole(highlight=False, width=PIPE_WIDTH)


def print_report(directories: Sequence[Path], console: Console | None = None) -> None:
    """Print the table of attempts, and for each phase what it cost."""
    summaries = _summaries(directories)
    console = console or console_for()
    console.print(_attempts_table(summaries))
    if any(attempt.stages_s for summary in summaries for attempt in summary.attempts):
        console.print(_stages_table(summaries))
    for summary in summaries:
        console.print(_status_line(summary), soft_wrap=True)
        console.print(_time_line(summary), soft_wrap=True)
        for line in _hang_lines(summary):
            console.print(line, soft_wrap=True)
    for directory in directories:
        console.print(Text(f"  log and journal: {directory}", style="dim"), soft_wrap=True)


def plain(text: str) -> Text:
    """Give a text from somewhere else as it is: no markup of ours, nothing that a terminal would obey."""
    return Text("".join(char if char.isprintable() else " " for char in text))


def _summaries(directories: Iterable[Path]) -> list[PhaseSummary]:
    return [_summary(directory / JOURNAL) for directory in directories]


def _summary(journal: Path) -> PhaseSummary:
    """Sum a phase up; one without an end has been running until now, as far as its journal tells."""
    try:
        lines = read_lines(journal)
    except FileNotFoundError:
        lines = []  # the phase is just beginning
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(journal)) from exc
    try:
        return summarise(lines, now_t=_now_t(lines))
    except JournalError as exc:
        raise ConfigError(str(exc), file=str(journal)) from exc


def _now_t(lines: Sequence[Line]) -> float | None:
    """Give the time that a phase has reached which has begun and has no end."""
    if not lines or any(line["type"] == "end" for line in lines):
        return None
    first = datetime.fromisoformat(lines[0]["utc"].replace("Z", "+00:00"))
    return float(lines[0]["t"]) + (datetime.now(timezone.utc) - first).total_seconds()


def _attempts_table(summaries: Sequence[PhaseSummary]) -> Table:
    table = Table(title="Attempts", title_justify="left", header_style="bold")
    for name in (
        "phase",
        "attempt",
        "from step",
        "to step",
        "ended by",
        "rule",
        "action",
        "steps lost",
        "evidence",
    ):
        numeric = name in ("attempt", "from step", "to step", "steps lost")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name in ("rule", "action"))
    for summary in summaries:
        for attempt in summary.attempts:
            table.add_row(*map(plain, (summary.phase, *_attempt_cells(attempt))))
        table.add_section()
    return table


def _attempt_cells(attempt: AttemptSummary) -> list[str]:
    return [
        str(attempt.number),
        _step(attempt.resume_step, "start"),
        _step(attempt.last_step, "?"),
        _ended_by(attempt),
        attempt.rule or "",
        attempt.action or "",
        _step(attempt.steps_lost, "" if attempt.action in (None, "complete") else "?"),
        _because(attempt),
    ]


def _stages_table(summaries: Sequence[PhaseSummary]) -> Table:
    """Say how long each stage of each restart took."""
    table = Table(title="Restarts, milliseconds", title_justify="left", header_style="bold", box=None)
    for name in ("phase", "attempt", *(stage.replace("_", " ") for stage in STAGES)):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for summary in summaries:
        for attempt in summary.attempts:
            if attempt.stages_s:
                times = (attempt.stages_s.get(stage) for stage in STAGES)
                cells = ("" if seconds is None else f"{1000 * seconds:.1f}" for seconds in times)
                table.add_row(*map(plain, (summary.phase, str(attempt.number), *cells)))
        table.add_section()
    return table


def _because(attempt: AttemptSummary) -> str:
    """Give the line that says why, with the signature that took it and whom it blames."""
    if attempt.evidence is None:
        return ""
    blamed = f", blames the {attempt.blame}" if attempt.blame not in (None, "none") else ""
    return f"{attempt.evidence} ({attempt.cause}{blamed})"


def _ended_by(attempt: AttemptSummary) -> str:
    if attempt.outcome != "exit":
        return attempt.outcome.replace("_", " ")
    if attempt.signal is None:
        how = "" if attempt.exit_code is None else f", exit {attempt.exit_code}"
    else:
        how = f", {_SIGNALS.get(attempt.signal, f'signal {attempt.signal}')}"
    return f"{attempt.failure_class or 'unknown'}{how}"


def _step(step: int | None, unknown: str) -> str:
    return unknown if step is None else str(step)


def _status_line(summary: PhaseSummary) -> Text:
    line = plain(f"{summary.phase or 'a phase that is just beginning'}: ")
    line.append(summary.status, style=COLOURS.get(summary.status, ""))
    count = sum(summary.restarts.values())
    by_action = ", ".join(f"{count} {action}" for action, count in summary.restarts.items())
    line.append(f" at step {_step(summary.final_step, '?')}, {count} restart{'' if count == 1 else 's'}")
    line.append(f" ({by_action})" if by_action else "")
    return line.append(plain(f": {summary.reason}") if summary.status == "failed" else "")


def _hang_lines(summary: PhaseSummary) -> Iterator[Text]:
    """Say of each suspension where it hung and whether it was one, and how often that was a false alarm."""
    for hang in summary.hangs:
        rank = "" if hang.blamed_rank is None else f", rank {hang.blamed_rank} is to blame"
        end = f"; it went on after {hang.after_s:.0f} s" if hang.went_on else ""
        file = f" ({hang.diagnosis})" if hang.diagnosis else ""
        where = hang.where or hang.evidence
        yield plain(f"  suspended in attempt {hang.attempt} ({hang.response}){rank}: {where}{end}{file}")
    if summary.false_alarm_ratio is not None:
        seen = [hang for hang in summary.hangs if hang.went_on is not None]
        yield plain(f"  false alarms: {summary.false_alarm_ratio:.0%} of {len(seen)} that ended nothing")
    if summary.stragglers:
        yield plain(f"  stragglers: {', '.join(f'rank {rank}' for rank in summary.stragglers)}")


def _warm_line(warm: WarmSummary) -> Text:
    """Say what a worker keeps ready for the next restart, and what it takes."""
    if warm.why_cold is not None:
        return plain(f"  worker {warm.worker}: starts cold: {warm.why_cold}")
    held = f"{warm.parked} rank{'' if warm.parked == 1 else 's'} parked with {warm.modules} modules"
    return plain(f"  worker {warm.worker}: {held}, {warm.memory_mb} MB")


def _time_line(summary: PhaseSummary) -> str:
    """Say how much of the time was productive, and where the rest went, the largest part first."""
    times = dict(summary.time_s)
    total, productive = times.pop("total"), times.pop("productive")
    ratio = f"{summary.effective_ratio:.1%}" if summary.effective_ratio is not None else "unknown"
    parts = sorted(times.items(), key=lambda part: -part[1])
    lost = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts if round(seconds, 2) > 0)
    return f"  effective ratio {ratio}: {productive:.2f} of {total:.2f} s productive" + (
        f"; {lost}" if lost else ""
    )
