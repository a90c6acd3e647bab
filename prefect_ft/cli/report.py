"""`report`: what happened to a run, why, and what it cost, read from its files; the run need not be alive."""

from __future__ import annotations

import argparse
from pathlib import Path

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError
from prefect_ft.run import phase_directories


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, and the file for its report."""
    add_json(parser)
    parser.add_argument("--html", metavar="FILE", help="write the report to one self-contained HTML file")
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the run's report, or write it to an HTML file."""
    from prefect_ft.cli.show import print_report, print_summaries, read_phases  # loads rich

    directories = phase_directories(arguments.run)
    phases = read_phases(directories)
    if arguments.html is not None:
        from prefect_ft.report.html import page
        from prefect_ft.report.story import story_of

        _write(Path(arguments.html), page(story_of(phases)))
    if arguments.json:
        print_summaries(phases)
    elif arguments.html is not None:
        print(plaintext.as_line(arguments.html))
    else:
        print_report(directories)
    return COMPLETED


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror}", file=str(path), field="--html") from exc
