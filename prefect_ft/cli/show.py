"""What a terminal shows of a run: its status and its report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from prefect_ft import plaintext
from prefect_ft.console import QuietConsole, plain
from prefect_ft.journal.lines import proposal_in
from prefect_ft.journal.records import ProposedLine
from prefect_ft.journal.summary import PhaseSummary, WarmSummary, summarise
from prefect_ft.report import read_phase, read_story
from prefect_ft.report.story import PhaseJournal
from prefect_ft.report.terminal import STATUS_STYLES, show

PIPE_WIDTH = 160
"""Columns where there is no terminal to ask."""


def read_phases(directories: Iterable[Path]) -> list[PhaseJournal]:
    """Read phases, and say on standard error which lines are missing in what is shown of them."""
    phases = [read_phase(directory) for directory in directories]
    for phase in phases:
        if phase.damage is not None:
            print(f"warning: {phase.damage}", file=sys.stderr)
    return phases


def print_summaries(phases: Iterable[PhaseJournal]) -> None:
    """Print the phases' `summary.json`, as they stand."""
    print(plaintext.as_json([summary.to_json() for summary in _summaries(phases)], indent=2))


def print_status(phases: Sequence[PhaseJournal]) -> None:
    """Print where each of these phases stands, and what waits for a person."""
    console = console_for()
    summaries = _summaries(phases)
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


def console_for() -> Console:
    """Return a console on standard output, wide enough for the tables where it is no terminal."""
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


def _summaries(phases: Iterable[PhaseJournal]) -> list[PhaseSummary]:
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


def _proposal_line(proposed: ProposedLine) -> Text:
    """Say what waits for a person, and how to answer."""
    text = f"  waits for `prefect-ft approve` until {proposed.until}: {proposed.action}: {proposed.reason}"
    return plain(text)


def _warm_line(warm: WarmSummary) -> Text:
    """Say what a worker keeps ready for the next restart, and what it takes."""
    if warm.why_cold is not None:
        return plain(f"  worker {warm.worker}: starts cold: {warm.why_cold}")
    held = f"{warm.parked} rank{'' if warm.parked == 1 else 's'} parked with {warm.modules} modules"
    return plain(f"  worker {warm.worker}: {held}, {warm.memory_mb} MB")
