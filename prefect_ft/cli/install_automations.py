"""`install-automations`: the automations with which Prefect's server restarts a train-flow whose process died."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the interval of flow runs' heartbeats."""
    add_json(parser)
    parser.add_argument(
        "--heartbeat-s",
        metavar="SECONDS",
        type=int,
        help="interval of flow runs' heartbeats; a flow run counts as crashed after three missed ones; "
        "default: PREFECT_FLOWS_HEARTBEAT_FREQUENCY",
    )


def run(arguments: argparse.Namespace) -> int:
    """Create the automations, or update them."""
    from prefect_ft.cli.automations import install  # loads Prefect

    return install(arguments.heartbeat_s, as_json=arguments.json)
