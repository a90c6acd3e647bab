"""`status`: where a run stands, read from its files; the run need not be alive."""

from __future__ import annotations

import argparse

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.run import Run, find_run, phase_directories
from prefect_ft.run.lookup import is_phase


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run."""
    add_json(parser)
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print where each phase of the run stands."""
    from prefect_ft.cli.show import print_status, print_summaries, read_phases  # loads rich

    phases = read_phases(phase_directories(arguments.run))
    if arguments.json:
        print_summaries(phases)
    else:
        print_status(phases)
        if not is_phase(arguments.run):
            _print_standing(find_run(arguments.run))
    return COMPLETED


def _print_standing(run: Run) -> None:
    """Print what the run has of its scheduler, if it has not ended and has any."""
    from prefect_ft.backends.kind import all_kinds  # loads pydantic

    if run.status == "running":
        for line in (line for kind in all_kinds() for line in kind.standing(run.root)):
            print(plaintext.as_line(line))
