"""`run`: a job from its beginning to its end."""

from __future__ import annotations

import argparse

from prefect_ft.cli.arguments import add_job, add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a job, where its files go, and what becomes of a run that is there already."""
    add_json(parser)
    add_job(parser)
    parser.add_argument(
        "--model-dir", metavar="DIR", help="where the run leaves its files, instead of the job's"
    )
    unfinished = parser.add_mutually_exclusive_group()
    for choice, text in (
        ("resume", "resume the run that the model directory holds, if it has not completed"),
        ("fresh", "end the run that the model directory holds and that nobody watches, and begin a new one"),
    ):
        unfinished.add_argument(
            f"--{choice}", dest="unfinished", action="store_const", const=choice, default="refuse", help=text
        )
    unfinished.add_argument(
        "--restartable",
        action="store_true",
        help="for process managers that restart it on failure: as --resume; SIGTERM leaves the run; "
        "exit code 0 at its end",
    )
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="begin without the existing checkpoints, which are kept: resume: never in all phases",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the job until it ends."""
    from prefect_ft.cli import foreground  # loads pydantic, later Prefect

    return foreground.run(
        arguments.job,
        arguments.set,
        arguments.model_dir,
        unfinished="resume" if arguments.restartable else arguments.unfinished,
        is_restartable=arguments.restartable,
        from_scratch=arguments.from_scratch,
        as_json=arguments.json,
    )
