"""The commands that only look at what a user wrote: `validate` and `replay`. They start nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import yaml

from prefect_ft.cli import COMPLETED
from prefect_ft.config import JobConfig, load_job, own_signatures, resolved, warnings
from prefect_ft.decide.classify import with_own
from prefect_ft.errors import ConfigError
from prefect_ft.model import Decision, Policy
from prefect_ft.replay import read_incidents
from prefect_ft.replay import replay as decisions_of
from prefect_ft.wire import decision_to_json


def validate(path: str, overrides: Sequence[str], *, as_json: bool) -> int:
    """Print a job with everything resolved; warnings go to standard error."""
    job = load_job(path, overrides)
    for warning in warnings(job):
        print(f"warning: {path}: {warning}", file=sys.stderr)
    content = resolved(job)
    text = json.dumps(content, indent=2) if as_json else yaml.safe_dump(content, sort_keys=False).rstrip()
    print(text)
    return COMPLETED


def replay(path: str, incidents_path: str, phase: str | None, *, as_json: bool) -> int:
    """Print the decision about each incident of a file, none if any line of it is wrong."""
    job = load_job(path)
    incidents = read_incidents(incidents_path)
    catalogue = with_own(own_signatures(job.signatures))
    decisions = list(
        decisions_of(_policy(job, phase, path), incidents, file=incidents_path, catalogue=catalogue)
    )
    for decision in decisions:
        print(json.dumps(decision_to_json(decision)) if as_json else _line(decision))
    return COMPLETED


def _policy(job: JobConfig, phase: str | None, path: str) -> Policy:
    names = [known.name for known in job.phases]
    if phase is None:
        return job.policy(0)
    if phase not in names:
        raise ConfigError(f"no phase {phase!r}; there are: {', '.join(names)}", file=path, field="phases")
    return job.policy(names.index(phase))


def _line(decision: Decision) -> str:
    return f"{decision.n:4}  {decision.rule:<22} {decision.action:<20} {decision.reason}"
