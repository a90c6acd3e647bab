"""`classify`: why a job failed. Reads logs and prints one verdict; starts nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError
from prefect_ft.model import Verdict

if TYPE_CHECKING:
    from prefect_ft.decide.classify import Catalogue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the logs, the exit code or signal, and own signatures."""
    add_json(parser)
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", help="the logs of one job's ranks; - is standard input"
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


def run(arguments: argparse.Namespace) -> int:
    """Print why the job failed."""
    return _classify(
        arguments.logs,
        arguments.exit_code,
        arguments.signal,
        arguments.signatures,
        as_json=arguments.json,
    )


def _classify(
    paths: Sequence[str], exit_code: int | None, signal: int | None, signatures: str | None, *, as_json: bool
) -> int:
    """Print why the job whose ranks wrote these logs failed."""
    from prefect_ft.cli.log_files import STANDARD_INPUT, read_log  # loads the catalogue
    from prefect_ft.decide.classify import judge

    if list(paths).count(STANDARD_INPUT) > 1:
        raise ConfigError("standard input can be read only once", file=STANDARD_INPUT)
    catalogue = _catalogue(signatures)
    logs = [read_log(path, catalogue) for path in paths]
    verdict = judge(logs, exit_code=exit_code, signal=signal)
    print(plaintext.as_json(_document(verdict)) if as_json else _text(verdict))
    return COMPLETED


def _catalogue(path: str | None) -> Catalogue:
    from prefect_ft.decide.classify import with_own

    if path is None:
        return with_own(())
    from prefect_ft.config import read_signatures  # loads pydantic

    return with_own(read_signatures(path))


def _document(verdict: Verdict) -> dict[str, Any]:
    evidence = verdict.evidence
    return {
        "class": verdict.failure_class,
        "recoverable": verdict.recoverable,
        "blame": verdict.blame,
        "rule": evidence and evidence.rule,
        "role": evidence and evidence.role,
        "file": evidence and evidence.file,
        "line": evidence and evidence.line,
        "evidence": evidence and evidence.text,
        "cascades": [{"rule": one.rule, "file": one.file, "line": one.line} for one in verdict.cascades],
        "signature": verdict.signature,
        "hint": evidence and (evidence.hint or None),
    }


_RESTART_HELPS = {True: "yes", False: "no", "confirm": "one retry to confirm", None: "nothing failed"}


def _text(verdict: Verdict) -> str:
    evidence = verdict.evidence
    lines = [f"class        {verdict.failure_class}", f"restart      {_RESTART_HELPS[verdict.recoverable]}"]
    if evidence is not None:
        place = f"{evidence.file}:{evidence.line}: " if evidence.line is not None else ""
        lines += [f"blame        {verdict.blame}", f"evidence     {place}{evidence.text}"]
        lines += [f"rule         {evidence.rule}", f"signature    {verdict.signature}"]
    if evidence is not None and evidence.hint:
        lines.append(f"hint         {evidence.hint}")
    lines += [f"followed by  {one.file}:{one.line}: {one.rule}" for one in verdict.cascades]
    return "\n".join(map(plaintext.as_line, lines))
