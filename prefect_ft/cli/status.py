"""`status`: where a run stands, read from its files; the run need not be alive."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.run import phase_directories


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
    return COMPLETED
