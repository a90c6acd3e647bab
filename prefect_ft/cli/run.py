"""`run`: runs a job to its end."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_job, add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job, its model directory, and what to do with an unfinished run."""
    add_json(parser)
    add_job(parser)
    parser.add_argument(
        "--model-dir", metavar="DIR", help="directory for the run's files, instead of the job's"
    )
    unfinished = parser.add_mutually_exclusive_group()
    for choice, text in (
        ("resume", "resume the run in the model directory, if it has not completed"),
        ("fresh", "end the unwatched run in the model directory, and begin a new one"),
    ):
        unfinished.add_argument(
            f"--{choice}", dest="unfinished", action="store_const", const=choice, default="refuse", help=text
        )
    unfinished.add_argument(
        "--restartable",
        action="store_true",
        help="for process managers that restart it on failure: as --resume, but SIGTERM leaves the run running; "
        "exit code 0 once the run has ended",
    )
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="ignore the existing checkpoints, without deleting them: sets resume: never in all phases",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the job until it ends."""
    from prefect_ft.cli import foreground  # loads pydantic, later Prefect

    return foreground.run(
        arguments.job,
        arguments.set,
        arguments.model_dir,
        command=arguments.job_command,
        unfinished="resume" if arguments.restartable else arguments.unfinished,
        is_restartable=arguments.restartable,
        from_scratch=arguments.from_scratch,
        as_json=arguments.json,
    )
