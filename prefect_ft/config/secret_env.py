"""Environment variables that are never shown: how they are written, and how a job is stored without them.

Wherever a job is printed or stored, their values are masked; the run stores them separately.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, SecretStr

from prefect_ft.config.fields import Problems, as_error, problem, shown

if TYPE_CHECKING:
    from prefect_ft.config.job import JobConfig

MASK = str(SecretStr("any"))
"""The substitute for a value that is not shown."""

Kept = Mapping[str, Mapping[str, str]]
"""The values of a job, by the name of the phase whose infrastructure has them; the job's own by an empty name."""


def _secret_env(value: object) -> object:
    """As `Env`, but messages never repeat a value."""
    if not isinstance(value, dict):
        raise problem(f"must be a mapping of names to text, got {shown(value)}")
    texts = {name: str(text) if type(text) is int else text for name, text in value.items()}
    found: Problems = []
    for name, text in texts.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^=\0]+", name):
            found.append(((str(name),), "the name of a variable must be text without ="))
        elif message := _problem(text.get_secret_value() if isinstance(text, SecretStr) else text):
            found.append(((name,), message))
    if found:
        raise as_error(found)
    return texts


def _problem(text: object) -> str | None:
    if not isinstance(text, str) or "\0" in text:
        return "must be text without a NUL character; write it in quotes"
    return "is masked; give the value that this stands for" if text == MASK else None


SecretEnv = Annotated[dict[str, SecretStr], BeforeValidator(_secret_env)]


def plain(values: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return secret values in plain text."""
    return {name: value.get_secret_value() for name, value in values.items()}


def secrets_of(job: JobConfig) -> dict[str, dict[str, str]]:
    """Return the values that a job's resolved form masks, for `with_secrets`."""
    parts = [("", job.infrastructure), *((phase.name, phase.infrastructure) for phase in job.phases)]
    return {name: plain(part.secret_env) for name, part in parts if part is not None and part.secret_env}


def with_secrets(resolved: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """Return a job's resolved form with its secret values; without stored ones they stay masked."""

    def completed(section: Mapping[str, Any], name: str) -> dict[str, Any]:
        if name not in kept:
            return dict(section)
        return {**section, "infrastructure": {**section["infrastructure"], "secret_env": kept[name]}}

    phases = [completed(phase, phase["name"]) for phase in resolved["phases"]]
    return {**completed(resolved, ""), "phases": phases}
