"""`classify`: why jobs failed. Reads logs and prints verdicts; starts nothing.

`jobs` finds the logs below directories, `show` prints verdicts and what they were chosen from, `check` measures them
against labels.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_ft.cli.arguments import add_json
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError

if TYPE_CHECKING:
    from prefect_ft.decide.classify import Catalogue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the logs, the exit code or signal, own signatures, and what else is to be shown."""
    add_json(parser)
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="*",
        help="the logs of one job's ranks; - is standard input; of a directory each job in it",
    )
    parser.add_argument(
        "--exit-code", metavar="N", type=int, help="the exit code of the rank that ended first"
    )
    parser.add_argument("--signal", metavar="N", type=int, help="the signal that ended it")
    parser.add_argument(
        "--signatures",
        metavar="FILE",
        help="a YAML file of signatures that are tried before the built-in ones",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show the other candidates, why each is not the root, and the lines around the root",
    )
    parser.add_argument(
        "--check",
        metavar="LABELLED.jsonl",
        help="compare the verdicts about labelled logs with their labels, and print figures by class",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print why the job failed, or each of several, or how often that is right."""
    catalogue = _catalogue(arguments.signatures)
    if arguments.check is not None:
        return _check(arguments, catalogue)
    if not arguments.logs:
        raise ConfigError("no log to read; name files or a directory", file="LOG")
    if any(path != _STANDARD_INPUT and os.path.isdir(path) for path in arguments.logs):
        return _many(arguments, catalogue)
    return _one(
        arguments.logs,
        arguments.exit_code,
        arguments.signal,
        catalogue,
        as_json=arguments.json,
        explain=arguments.explain,
    )


_STANDARD_INPUT = "-"


def _one(
    paths: Sequence[str],
    exit_code: int | None,
    signal: int | None,
    catalogue: Catalogue,
    *,
    as_json: bool,
    explain: bool,
) -> int:
    """Print why the job whose ranks wrote these logs failed."""
    from prefect_ft.cli.classify.show import as_one
    from prefect_ft.cli.log_files import read_log  # loads the catalogue
    from prefect_ft.decide.classify import judge

    if list(paths).count(_STANDARD_INPUT) > 1:
        raise ConfigError("standard input can be read only once", file=_STANDARD_INPUT)
    logs = [read_log(path, catalogue) for path in paths]
    verdict = judge(logs, exit_code=exit_code, signal=signal)
    print(as_one(verdict, logs if explain else (), as_json=as_json))
    return COMPLETED


def _many(arguments: argparse.Namespace, catalogue: Catalogue) -> int:
    """Print a verdict about each job that is found."""
    from prefect_ft.cli.classify.jobs import jobs_below
    from prefect_ft.cli.classify.show import as_many
    from prefect_ft.decide.classify import judge

    if arguments.exit_code is not None or arguments.signal is not None:
        raise ConfigError("an exit code or a signal is one job's; name its log files", file=arguments.logs[0])
    verdicts = []
    for path in arguments.logs:
        for job in jobs_below(path, catalogue):
            verdict = judge(job.logs, exit_code=job.exit_code, signal=job.signal)
            verdicts.append((job.name, verdict, job.logs if arguments.explain else ()))
    if not verdicts:
        raise ConfigError("holds no log", file=arguments.logs[0])
    print(as_many(verdicts, as_json=arguments.json))
    return COMPLETED


def _check(arguments: argparse.Namespace, catalogue: Catalogue) -> int:
    """Print how often the verdicts about labelled logs are right."""
    from prefect_ft.cli.classify.check import measured

    if arguments.logs:
        raise ConfigError("--check reads the logs that the file names, and no others", file=arguments.logs[0])
    print(measured(arguments.check, catalogue, as_json=arguments.json, explain=arguments.explain))
    return COMPLETED


def _catalogue(path: str | None) -> Catalogue:
    from prefect_ft.decide.classify import with_own

    if path is None:
        return with_own(())
    from prefect_ft.config import read_signatures  # loads pydantic

    return with_own(read_signatures(path))
