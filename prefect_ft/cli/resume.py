"""`resume`: runs a run that failed or lost its orchestrator to its end."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_json, add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, and whether it was moved."""
    add_json(parser)
    parser.add_argument(
        "--moved",
        action="store_true",
        help="confirm that its directory was moved, or that the machine of its processes is off",
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume the run."""
    from prefect_ft.cli import foreground  # loads pydantic, later Prefect

    return foreground.resume(arguments.run, is_moved=arguments.moved, as_json=arguments.json)
