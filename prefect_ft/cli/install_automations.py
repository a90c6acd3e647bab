"""`install-automations`: what Prefect's server does when the process of a train-flow dies."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how often flow runs say that they live."""
    add_json(parser)
    parser.add_argument(
        "--heartbeat-s",
        metavar="SECONDS",
        type=int,
        help="how often flow runs send a heartbeat, three of which may be missed; "
        "default: PREFECT_FLOWS_HEARTBEAT_FREQUENCY",
    )


def run(arguments: argparse.Namespace) -> int:
    """Create the automations, or update them."""
    from prefect_ft.cli.automations import install  # loads Prefect

    return install(arguments.heartbeat_s, as_json=arguments.json)
