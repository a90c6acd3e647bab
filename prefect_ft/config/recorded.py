"""A job as a run records it, for any version that resumes the run: unknown fields are ignored.

Only for job.json. In a person's file, an unknown field is an error (`load`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from prefect_ft.config.explain import message_of, untagged
from prefect_ft.config.fields import Added, shown
from prefect_ft.config.job import JobConfig, resolved
from prefect_ft.config.yaml_text import FieldPath, dotted
from prefect_ft.errors import ConfigError


class RecordedJob(NamedTuple):
    """A recorded job; `warnings` say what was ignored or changed, each as `FIELD: MESSAGE`."""

    job: JobConfig
    warnings: tuple[str, ...]


_BOUNDS = {"less_than_equal": "le", "greater_than_equal": "ge"}
_STAND_INS: Mapping[str, Any] = {"command": ["true"], "name": "unreadable", "model_dir": "."}
"""Substitutes for required fields, where a run is only to be ended."""

_INFRASTRUCTURE, _FOR_RANKS_ALONE = "infrastructure", "secret_env"
_LAUNCHER = "rewrite_launcher"
"""The setting that constrains a phase's command, which this version may not be able to read."""

_NOT_FOR_AN_END = ("signatures", "metrics")
"""Sections about files and ports that ending a run does not need."""


def recorded(job: JobConfig) -> dict[str, Any]:
    """Return the content of job.json: the resolved job, without later fields at their defaults.

    So an earlier version reads the job of a run that uses nothing new.
    """
    content = resolved(job)
    _leave_out_added(job, content)
    return content


def _leave_out_added(section: BaseModel, content: dict[str, Any]) -> None:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value == field.default and any(isinstance(each, Added) for each in field.metadata):
            del content[name]
        elif isinstance(value, BaseModel):
            _leave_out_added(value, content[name])
        elif isinstance(value, tuple):
            for each, inner in zip(value, content[name], strict=True):
                if isinstance(each, BaseModel):
                    _leave_out_added(each, inner)


def read_recorded(content: Mapping[str, Any], *, only_to_end: bool = False) -> RecordedJob:
    """Read a recorded job: unknown fields are ignored, values beyond a bound of this version become the bound.

    `only_to_end`: its workers are only to be found and ended, so defaults will do for everything else.
    Raises ConfigError, with the field, for what cannot be read.
    """
    value: dict[str, Any] = deepcopy(dict(content))
    for name in _NOT_FOR_AN_END if only_to_end else ():
        value.pop(name, None)
    for phase in _phases_in(value) if only_to_end else ():
        phase.pop(_LAUNCHER, None)
    warnings: list[str] = []
    repaired: set[tuple[FieldPath, str]] = set()
    while True:
        try:
            return RecordedJob(JobConfig.model_validate(value), tuple(dict.fromkeys(warnings)))
        except ValidationError as error:
            found = [place for details in error.errors(include_url=False) for place in _places(details)]
            new = [each for each in found if (each.path, each.details["type"]) not in repaired]
            repaired |= {(each.path, each.details["type"]) for each in new}
            said = [text for each in new if (text := _repaired(value, each, only_to_end=only_to_end))]
            if not said:  # or a repaired value is wrong again: a substitute will not do either
                raise ConfigError(found[0].message, field=dotted(found[0].path) or None) from error
            warnings += said


def _phases_in(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    phases = value.get("phases")
    return [each for each in phases if isinstance(each, dict)] if isinstance(phases, list) else []


class _Problem(NamedTuple):
    path: FieldPath
    details: ErrorDetails
    message: str


def _places(details: ErrorDetails) -> Iterator[_Problem]:
    """Yield the problems of an error; our own validators report several, with their messages."""
    if details["type"] != "job":
        yield _Problem(untagged(details["loc"]), details, message_of(details))
        return
    for at, message in details["ctx"]["problems"]:
        yield _Problem(untagged(details["loc"] + at), details, message)


def _repaired(value: dict[str, Any], problem: _Problem, *, only_to_end: bool) -> str | None:
    """Fix one error, and return a warning about it; None: it cannot be fixed."""
    path, details, _ = problem
    section, key = _nearest(value, path)
    kind = details["type"]
    if kind == "extra_forbidden" and key in section:
        del section[key]
        return f"{dotted(path)}: unknown to this version; it has no effect"
    if kind in _BOUNDS and key in section:
        was, section[key] = section[key], details["ctx"][_BOUNDS[kind]]
        return f"{dotted(path)}: {shown(was)} is beyond a bound of this version, which takes {section[key]:g}"
    if not only_to_end or not _may_be_left_out(path):
        return None
    if kind == "missing" and path[-1] in _STAND_INS:
        section[str(path[-1])] = deepcopy(_STAND_INS[str(path[-1])])
    elif key in section:
        del section[key]
    else:
        return None
    return f"{dotted(path)}: cannot be read by this version; the run is ended without it"


def _nearest(value: dict[str, Any], path: FieldPath) -> tuple[dict[str, Any], str]:
    """Return the innermost mapping on a path, and the path's key in it."""
    section, key = value, ""
    here: Any = value
    for part in path:
        if isinstance(here, dict):
            section, key = here, str(part)
        try:
            here = here[part]
        except (LookupError, TypeError):
            break
    return section, key


def _may_be_left_out(path: FieldPath) -> bool:
    """Return whether workers can be found and ended without a field: only infrastructures say where they are."""
    if _INFRASTRUCTURE not in path:
        return path != ("phases",)
    return path[path.index(_INFRASTRUCTURE) + 1 :][:1] == (_FOR_RANKS_ALONE,)
