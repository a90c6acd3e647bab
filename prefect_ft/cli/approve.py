"""`approve`: the answer to a decision that waits for approval."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Sequence
from pathlib import Path

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError
from prefect_ft.journal.lines import head_of, proposal_in, read_lines
from prefect_ft.journal.records import ProposedLine
from prefect_ft.model import CHOICES, Action, Answer
from prefect_ft.run import JOURNAL, Run, find_run, holder_of
from prefect_ft.run.lookup import phases_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the answer; without an answer the decision is approved."""
    add_json(parser)
    add_run(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--reject", action="store_true", help="restart instead, and isolate nothing")
    instead.add_argument(
        "--action",
        choices=CHOICES,
        help="do this instead, and isolate nothing",
    )
    instead.add_argument(
        "--isolate", metavar="SYSTEM", action="append", default=[], help="isolate this system instead"
    )
    parser.add_argument("--by", metavar="NAME", help="name recorded with the answer; default: your user name")


def run(arguments: argparse.Namespace) -> int:
    """Answer the decision that a run proposes."""
    return _approve(
        arguments.run,
        reject=arguments.reject,
        action=arguments.action,
        isolate=arguments.isolate,
        by=arguments.by,
        as_json=arguments.json,
    )


def _approve(
    name: str, *, reject: bool, action: Action | None, isolate: Sequence[str], by: str | None, as_json: bool
) -> int:
    """Answer the decision that a run proposes; raises ConfigError if none waits."""
    run = find_run(name)
    directory, proposed = _waiting(run, name)
    _check_systems(run, directory, isolate)
    kind = "reject" if reject else "change" if action is not None or isolate else "approve"
    answer = Answer(answer=kind, by=by or getpass.getuser(), action=action, isolate=tuple(isolate))  # type: ignore[arg-type]
    try:
        run.answer(directory.name, proposed.n, answer)
    except OSError as exc:
        raise ConfigError(f"{run.root} cannot be written: {exc.strerror}", file=name) from exc
    _print_answer(run, proposed, answer, as_json=as_json)
    return COMPLETED


def _waiting(run: Run, name: str) -> tuple[Path, ProposedLine]:
    """Return the phase whose decision waits, and its line in the journal."""
    for directory in reversed(phases_of(run)):
        try:
            proposed = proposal_in(read_lines(directory / JOURNAL))
        except OSError as exc:
            raise ConfigError(f"cannot be read: {exc.strerror}", file=str(directory / JOURNAL)) from exc
        if proposed is not None:
            return directory, proposed
    raise ConfigError("no decision of this run waits for an answer", file=name)


def _check_systems(run: Run, directory: Path, isolate: Sequence[str]) -> None:
    head = head_of(read_lines(directory / JOURNAL))
    known = (head.systems or ()) if head is not None else ()
    for system in isolate:
        if system not in known:
            message = f"unknown system {system!r}; run {run.run_id} has {', '.join(known)}"
            raise ConfigError(message, field="--isolate")


def _print_answer(run: Run, proposed: ProposedLine, answer: Answer, *, as_json: bool) -> None:
    holder = holder_of(run)
    if as_json:
        content = {
            "run": run.run_id,
            "n": proposed.n,
            "proposed": proposed.action,
            "answer": answer.answer,
        }
        print(plaintext.as_json({**content, "watched_by": holder}))
        return
    print(plaintext.as_line(f"proposed: {proposed.action}: {proposed.reason}"))
    effect = (
        f"{holder} applies it" if holder else "no process watches the run; `prefect-ft resume` applies it"
    )
    print(plaintext.as_line(f"answer: {answer.answer}, by {answer.by}; {effect}"))
