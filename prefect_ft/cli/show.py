"""A run's status and report on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from prefect_ft import plaintext
from prefect_ft.amounts import count, save_noun
from prefect_ft.console import QuietConsole, plain
from prefect_ft.journal.lines import proposal_in
from prefect_ft.journal.records import ProposedLine
from prefect_ft.journal.summary import PhaseSummary, WarmSummary, summarise
from prefect_ft.report import read_phase, read_story
from prefect_ft.report.story import PhaseJournal
from prefect_ft.report.terminal import STATUS_STYLES, show

PIPE_WIDTH = 160
"""Columns of output that does not go to a terminal."""


def read_phases(directories: Iterable[Path]) -> list[PhaseJournal]:
    """Read phases, and warn on standard error about damaged lines."""
    phases = [read_phase(directory) for directory in directories]
    for phase in phases:
        if phase.damage is not None:
            print(f"warning: {phase.damage}", file=sys.stderr)
    return phases


def print_summaries(phases: Iterable[PhaseJournal]) -> None:
    """Print the phases' current summaries, in the form of `summary.json`."""
    print(plaintext.as_json([summary.to_json() for summary in _summaries(phases)], indent=2))


def print_status(phases: Sequence[PhaseJournal]) -> None:
    """Print the status of each phase, and the decisions that wait for approval."""
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
    """Return a console on standard output, wide enough for the tables if it is not a terminal."""
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
    line = plain(f"{summary.phase or 'a phase that has only just begun'}: ")
    line.append(plaintext.as_line(summary.status), style=STATUS_STYLES.get(summary.status, ""))
    by_action = ", ".join(f"{number} {action}" for action, number in summary.restarts.items())
    if summary.final_step is not None:
        line.append(f" at {save_noun(counted=summary.counted)} {summary.final_step}")
    line.append(f", {count(sum(summary.restarts.values()), 'restart')}")
    line.append(f" ({by_action})" if by_action else "")
    return line.append(plain(f": {summary.reason}") if summary.status == "failed" else "")


def _proposal_line(proposed: ProposedLine) -> Text:
    """Return the line about a decision that waits for approval, with the command that answers."""
    text = f"  waits for `prefect-ft approve` until {proposed.until}: {proposed.action}: {proposed.reason}"
    return plain(text)


def _warm_line(warm: WarmSummary) -> Text:
    """Return the line about what a worker keeps ready for the next restart."""
    if warm.why_cold is not None:
        return plain(f"  worker {warm.worker}: starts cold: {warm.why_cold}")
    held = f"{count(warm.parked, 'rank')} parked with {count(warm.modules, 'module')}"
    return plain(f"  worker {warm.worker}: {held}, {warm.memory_mb} MB")
