"""`resume`: a run that failed, or whose orchestrator died, until it ends."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_json, add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and where it may be."""
    add_json(parser)
    parser.add_argument(
        "--moved", action="store_true", help="its directory was moved, or the machine of its processes is off"
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume the run."""
    from prefect_ft.cli import foreground  # loads pydantic, later Prefect

    return foreground.resume(arguments.run, is_moved=arguments.moved, as_json=arguments.json)
