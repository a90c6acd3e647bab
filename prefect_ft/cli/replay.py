"""`replay`: what a policy would decide, and where that differs from a journal. Starts nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_command, add_json
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError
from prefect_ft.journal.forms import decision_to_json
from prefect_ft.model import Decision, Policy

if TYPE_CHECKING:
    from prefect_ft.config import JobConfig
    from prefect_ft.journal.replay import Comparison, Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job whose policy decides, and the incidents."""
    add_json(parser)
    parser.add_argument("job", metavar="JOB.yaml")
    add_command(parser)
    parser.add_argument(
        "recording", metavar="INCIDENTS.jsonl", help="a file of incidents, or the journal.jsonl of a phase"
    )
    parser.add_argument(
        "--phase",
        metavar="NAME",
        help="the phase whose policy decides; default: the one that the journal names, else the first",
    )
    parser.add_argument(
        "--diff",
        action="store_true",
        help="show only where the policy's decisions differ from the journal's; each incident is decided "
        "on the history in the journal, not on the policy's own earlier decisions",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what the policy decides."""
    return _replay(
        arguments.job,
        arguments.recording,
        arguments.phase,
        command=arguments.job_command,
        diff=arguments.diff,
        as_json=arguments.json,
    )


def _replay(
    path: str, recording_path: str, phase: str | None, *, command: str | None, diff: bool, as_json: bool
) -> int:
    """Print the decision about each incident of a file, or none if any line is invalid.

    With `diff`, print only those that differ from the journal's.
    """
    from prefect_ft.config import load_job, own_signatures  # loads pydantic
    from prefect_ft.decide.classify import with_own
    from prefect_ft.journal.replay import compare, read_recording
    from prefect_ft.journal.replay import replay as decisions_of

    job = load_job(path, command=command)
    recording = read_recording(recording_path)
    if recording.damage is not None:
        print(f"warning: {recording.damage}", file=sys.stderr)
    policy = _policy(job, phase, path, recording)
    catalogue = with_own(own_signatures(job.signatures))
    if diff:
        if not recording.is_journal:
            message = "records no decisions to compare with; pass the journal.jsonl of a phase"
            raise ConfigError(message, file=recording_path)
        return _show_differences(list(compare(policy, recording.history, catalogue)), as_json=as_json)
    decisions = list(decisions_of(policy, recording, catalogue))
    for decision in decisions:
        print(plaintext.as_json(decision_to_json(decision)) if as_json else _line(decision))
    if left_out := len(recording.history) - len(decisions):
        later = f"{left_out} later incident{' is' if left_out == 1 else 's are'}"
        print(f"incident {decisions[-1].n} ends the phase: the journal's {later} ignored", file=sys.stderr)
    return COMPLETED


def _policy(job: JobConfig, phase: str | None, path: str, recording: Recording) -> Policy:
    """Return the policy of the given phase, or else of the one that the journal names, or else of the first."""
    names = [known.name for known in job.phases]
    name = phase or recording.phase or names[0]
    if name in names:
        return job.policy(names.index(name), recording.isolated)
    what = f"no phase {name!r}" if phase else f"no phase {name!r}, which the journal names"
    remedy = "" if phase else "; choose one with --phase"
    raise ConfigError(f"{what}; the job has {', '.join(names)}{remedy}", file=path, field="phases")


def _line(decision: Decision) -> str:
    return plaintext.as_line(f"{decision.n:4}  {decision.rule:<22} {decision.action:<20} {decision.reason}")


# -- differences --------------------------------------------------------------------------------------


def _show_differences(comparisons: list[Comparison], *, as_json: bool) -> int:
    others = [each for each in comparisons if each.differs]
    for each in others:
        if as_json:
            print(plaintext.as_json(each.to_json()))
            continue
        changes = [change for name in each.differs for change in _changes(name, each)]
        for index, (name, before, after) in enumerate(changes):
            print(plaintext.as_line(f"{'' if index else each.recorded.n:>4}  {name:<36} {before} -> {after}"))
    if not as_json:
        count = len(comparisons)
        print(f"{len(others)} of {count} decision{'' if count == 1 else 's'} differ")
    return COMPLETED


def _changes(name: str, comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield the differences in a field as name, recorded and new value; of counters, one each."""
    before, after = (decision_to_json(each)[name] for each in (comparison.recorded, comparison.now))
    if name != "counters":
        yield name, _text(before), _text(after)
        return
    for counter in before:
        if before[counter] != after[counter]:
            yield counter, _text(before[counter]), _text(after[counter])


def _text(value: Any) -> str:
    """Return a decision's value as text; an empty one as `none`."""
    if isinstance(value, dict):
        value = [f"{name}={each}" for name, each in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
