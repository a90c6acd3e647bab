"""Writes the tables of job-file.md, from the models that read job files.

    python docs/generate_job_reference.py

Owns what stands between the page's two markers, and leaves the rest of the page to its author.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from prefect_ft.backends.docker.config import DockerInfrastructure, DockerSystem
from prefect_ft.backends.docker.fields import DeviceRequest, Resources
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure, KubernetesSystem
from prefect_ft.backends.kubernetes.fields import PodResources, PodVolume, Toleration
from prefect_ft.backends.process.config import ProcessInfrastructure
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.config import (
    Advisor,
    AutoRestart,
    Checkpoints,
    Faults,
    JobConfig,
    Metrics,
    Numeric,
    OnDemand,
    Phase,
    RecurringLine,
    Suspension,
    System,
)

PAGE = Path(__file__).with_name("job-file.md")
BEGIN = "<!-- The tables down to the end mark are written by generate_job_reference.py. -->"
END = "<!-- End of the generated tables. -->"

SECTIONS: Mapping[type[BaseModel], str] = {
    JobConfig: "The job",
    Phase: "`phases[]`",
    ProcessInfrastructure: "`infrastructure` of type `process`",
    System: "`infrastructure.systems[]` of type `process`",
    DockerInfrastructure: "`infrastructure` of type `docker`",
    DockerSystem: "`infrastructure.systems[]` of type `docker`",
    DeviceRequest: "`device_requests[]`",
    Resources: "`resources` of type `docker`",
    KubernetesInfrastructure: "`infrastructure` of type `kubernetes`",
    KubernetesSystem: "`infrastructure.systems[]` of type `kubernetes`",
    PodVolume: "`volumes[]` of type `kubernetes`",
    PodResources: "`resources` of type `kubernetes`",
    Toleration: "`tolerations[]`",
    SlurmInfrastructure: "`infrastructure` of type `slurm`",
    AutoRestart: "`autorestart`",
    Suspension: "`suspension`",
    RecurringLine: "`suspension.logs[]`",
    Numeric: "`numeric`",
    Checkpoints: "`checkpoints`",
    OnDemand: "`checkpoints.on_demand`",
    Faults: "`faults`",
    Advisor: "`classify`",
    Metrics: "`metrics`",
}
"""Every model that a job file is made of, in the order of the page, with its heading."""

REMARKS: Mapping[tuple[type[BaseModel], str], str] = {
    (
        JobConfig,
        "sample_period_s",
    ): "As often an agent hands on what it has missed, bounds output, and looks at "
    "the checkpoints even if it heard of no change",
    (JobConfig, "orphan_timeout_s"): "It counts from the end of the last rank: ranks that are training are "
    "never ended by it",
    (Phase, "nproc_per_worker"): "`auto` looks at the environment of job and phase, not at a system's",
    (ProcessInfrastructure, "systems"): "A system that is named serves one run at a time",
    (
        DockerInfrastructure,
        "engine",
    ): "`unix://` of this machine, `tcp://` with TLS, or `ssh://`: see [docker.md](docker.md#engines)",
    (DockerInfrastructure, "systems"): "Nothing holds them: another run may use the same engine",
    (
        KubernetesInfrastructure,
        "system_label",
    ): "A worker runs on its system's node and nowhere else, so that a system that is isolated gets none",
    (KubernetesInfrastructure, "systems"): "Nothing holds them: another run may use the same nodes",
    (AutoRestart, "isolation_ttl_s"): "It holds in the job's quarantine too",
    (Suspension, "stages"): "By stage: `load`, `compile`, `train`, `validate`, `checkpoint`, `finish`",
    (Suspension, "logs"): "With `output: workers` nobody reads them",
    (Checkpoints, "path"): "At a URL the orchestrator looks: see [checkpoints.md](checkpoints.md#at-a-url)",
}
"""What a reader must know of a field and its description does not say."""

_COLUMNS = ("field", "type", "unit", "bounds", "default", "description")
_UNITS = {"_s": "seconds", "_mb": "MiB"}
_WORDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}


def rewritten(page: str) -> str:
    """Return the page with new tables; raises ValueError where a marker is missing."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def tables() -> str:
    """Return one heading and one table for each section; raises KeyError for a model without a heading."""
    headings = {model.__name__: heading for model, heading in SECTIONS.items()}
    for name in JobConfig.model_json_schema()["$defs"]:
        headings[name]  # a new model has to be given a heading
    for model, field in REMARKS:
        model.model_fields[field]  # a remark on a field that has gone has to go too
    return "\n".join(_section(model, headings) for model in SECTIONS)


def _section(model: type[BaseModel], headings: Mapping[str, str]) -> str:
    schema = model.model_json_schema()
    fields = [_row(model, name, schema, headings) for name in model.model_fields]
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *fields]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join((f"### {headings[model.__name__]}", "", str(schema["description"]), "", *lines, ""))


def _row(
    model: type[BaseModel], name: str, schema: Mapping[str, Any], headings: Mapping[str, str]
) -> tuple[str, ...]:
    entry = schema["properties"][name]
    kinds = [kind for kind in _choices(entry) if kind.get("type") != "null"]
    said = [model.model_fields[name].description or "", REMARKS.get((model, name), "")]
    return (
        ", ".join(f"`{each}`" for each in _names(model, name)),
        " or ".join(_type(kind, headings) for kind in kinds),
        next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), ""),
        ", ".join(bound for kind in kinds for bound in _bounds(kind)),
        "required" if name in schema.get("required", ()) else _default(entry),
        ". ".join(text for text in said if text) + ".",
    )


def _choices(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a field may be, one of which it is."""
    below = entry.get("anyOf") or entry.get("oneOf")
    return [choice for each in below for choice in _choices(each)] if below else [entry]


def _names(model: type[BaseModel], name: str) -> list[str]:
    """Return all names of a field, as its alias lists them."""
    alias = model.model_fields[name].validation_alias
    return [name] if alias is None else [str(choice) for choice in alias.choices]  # type: ignore[union-attr]


def _type(kind: Mapping[str, Any], headings: Mapping[str, str]) -> str:
    if "$ref" in kind:
        return f"a mapping: {headings[kind['$ref'].rpartition('/')[2]]}"
    if "enum" in kind:
        return f"one of {', '.join(f'`{each}`' for each in kind['enum'])}"
    if "const" in kind:
        return f"`{kind['const']}`"
    if kind["type"] == "array":
        return f"list, each {' or '.join(_type(item, headings) for item in _choices(kind['items']))}"
    if kind["type"] == "object":
        return _mapping(kind.get("additionalProperties"))
    return _WORDS[kind["type"]]


def _mapping(values: Any) -> str:
    choices = _choices(values) if isinstance(values, dict) else []
    if not choices or not _is_text(choices[0]):
        return "any mapping"
    may_be_null = any(choice.get("type") == "null" for choice in choices)
    return "mapping of names to text or null" if may_be_null else "mapping of names to text"


def _is_text(kind: Any) -> bool:
    return isinstance(kind, dict) and kind.get("type") == "string" and "enum" not in kind


def _bounds(kind: Mapping[str, Any]) -> list[str]:
    words = {"minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}"}
    found = [text.format(kind[key]) for key, text in words.items() if key in kind]
    if "pattern" in kind:
        found.append(f"`{kind['pattern'].strip('^$')}`")
    if "minItems" in kind:
        found.append(f"at least {kind['minItems']} item")
    return found


def _default(entry: Mapping[str, Any]) -> str:
    """Return the default as one would write it; a section's is that of its own fields."""
    if entry.get("default", ...) is None:
        return "absent"
    if "$ref" in entry or "oneOf" in entry:
        return "as its fields say"
    default = entry["default"]
    if isinstance(default, str):
        return f"`{default}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
