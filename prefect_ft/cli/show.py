"""`status` and `report`: a run read from its files, alive or long over."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from prefect_ft import plaintext
from prefect_ft.cli import COMPLETED
from prefect_ft.console import QuietConsole, plain
from prefect_ft.errors import ConfigError
from prefect_ft.journal import Line, proposal_in
from prefect_ft.report import page, read_phase, read_story
from prefect_ft.report.terminal import STATUS_STYLES, show
from prefect_ft.run import phase_directories
from prefect_ft.summary import PhaseSummary, WarmSummary, summarise

PIPE_WIDTH = 160
"""Columns where there is no terminal to ask."""


def status(run: str, *, as_json: bool) -> int:
    """Print where each phase of a run stands."""
    directories = phase_directories(run)
    _warn_of_damage(directories)
    phases = [read_phase(directory) for directory in directories]
    summaries = [summarise(phase.lines, now_t=phase.now_t) for phase in phases]
    if as_json:
        print(plaintext.as_json([summary.to_json() for summary in summaries], indent=2))
        return COMPLETED
    console = console_for()
    for summary in summaries:
        console.print(_status_line(summary), soft_wrap=True)
        for text in summary.warnings:
            console.print(plain(f"  warning: {text}"), soft_wrap=True)
        for each in summary.warm if summary.status == "running" else ():
            console.print(_warm_line(each), soft_wrap=True)
    for phase in phases:
        if (proposed := proposal_in(phase.lines)) is not None:
            console.print(_proposal_line(proposed), soft_wrap=True)
    if not summaries:
        console.print("no phase has begun")
    return COMPLETED


def report(run: str, html: str | None, *, as_json: bool) -> int:
    """Tell what happened to a run, why, and what it cost: here, or in an HTML file."""
    directories = phase_directories(run)
    _warn_of_damage(directories)
    if html is not None:
        _write(Path(html), page(read_story(directories)))
    if as_json:
        print(plaintext.as_json([summary.to_json() for summary in _summaries(directories)], indent=2))
    elif html is not None:
        print(plaintext.as_line(html))
    else:
        print_report(directories)
    return COMPLETED


def _warn_of_damage(directories: Iterable[Path]) -> None:
    """Say on standard error which lines are missing in what is shown."""
    for directory in directories:
        if (damage := read_phase(directory).damage) is not None:
            print(f"warning: {damage}", file=sys.stderr)


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror}", file=str(path), field="--html") from exc


def console_for() -> Console:
    """Give a console on standard output, wide enough for the tables where it is no terminal."""
    console = QuietConsole(highlight=False)
    return console if console.is_terminal else QuietConsole(highlight=False, width=PIPE_WIDTH)


def print_report(directories: Sequence[Path], console: Console | None = None) -> None:
    """Print the report of the run of these phases."""
    console = console or console_for()
    show(read_story(directories), console)
    for directory in directories:
        line = plain(f"  log and journal: {directory}")
        line.stylize("dim")
        console.print(line, soft_wrap=True)


def _summaries(directories: Iterable[Path]) -> list[PhaseSummary]:
    phases = [read_phase(directory) for directory in directories]
    return [summarise(phase.lines, now_t=phase.now_t) for phase in phases]


def _status_line(summary: PhaseSummary) -> Text:
    line = plain(f"{summary.phase or 'a phase that is just beginning'}: ")
    line.append(plaintext.as_line(summary.status), style=STATUS_STYLES.get(summary.status, ""))
    count = sum(summary.restarts.values())
    by_action = ", ".join(f"{count} {action}" for action, count in summary.restarts.items())
    step = "?" if summary.final_step is None else summary.final_step
    line.append(f" at step {step}, {count} restart{'' if count == 1 else 's'}")
    line.append(f" ({by_action})" if by_action else "")
    return line.append(plain(f": {summary.reason}") if summary.status == "failed" else "")


def _proposal_line(proposed: Line) -> Text:
    """Say what waits for a person, and how to answer."""
    text = f"  waits for `prefect-ft approve` until {proposed['until']}: {proposed['action']}: {proposed['reason']}"
    return plain(text)


def _warm_line(warm: WarmSummary) -> Text:
    """Say what a worker keeps ready for the next restart, and what it takes."""
    if warm.why_cold is not None:
        return plain(f"  worker {warm.worker}: starts cold: {warm.why_cold}")
    held = f"{warm.parked} rank{'' if warm.parked == 1 else 's'} parked with {warm.modules} modules"
    return plain(f"  worker {warm.worker}: {held}, {warm.memory_mb} MB")
