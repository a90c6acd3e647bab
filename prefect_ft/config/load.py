"""From a job file to a `JobConfig`: read, apply the command line, validate, make paths absolute.

Other formats that users may write are rewritten to a job's own keys between reading and validating, by the
front doors, so that there is one set of models and one set of checks.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping

from pydantic import ValidationError

from prefect_ft.config import cerebras, modelarts
from prefect_ft.config.blocks import BlockLookup, with_blocks
from prefect_ft.config.explain import first_problem
from prefect_ft.config.job import JobConfig
from prefect_ft.config.places import check_places
from prefect_ft.config.signatures import own_signatures
from prefect_ft.config.source import Document, apply_overrides, read_document
from prefect_ft.config.yaml_text import Place
from prefect_ft.errors import ConfigError

FRONT_DOORS: Mapping[str, Callable[[Document], Document]] = {
    "kind": modelarts.without_kind,
    "trainer": cerebras.phases_of_trainers,
    **dict.fromkeys(("metadata", "algorithm", "spec", "tasks", "endpoints"), modelarts.job_of_request),
}
"""The front doors, by the key at the top of a document that selects each; in this order.

Annotations come after trainers: they must not occur beside restarts of trainers.
"""


def load_job(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    model_dir: str | os.PathLike[str] | None = None,
    *,
    command: str | None = None,
    blocks: BlockLookup | None = None,
) -> JobConfig:
    """Read a job file; relative paths in it start at its directory.

    `overrides` are the `KEY=VALUE` of `--set`. `model_dir`, from the command line, overrides both; a
    relative one starts at the current directory. `command`, in shell syntax, is that of a file without phases
    (a trainer configuration, a request of ModelArts). `blocks` looks up the infrastructure in a saved block;
    None: blocks are not available. Raises `ConfigError` for the first problem.
    """
    return job_in(job_document(path, overrides, model_dir, command=command, blocks=blocks), path)


def job_document(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    model_dir: str | os.PathLike[str] | None = None,
    *,
    command: str | None = None,
    blocks: BlockLookup | None = None,
) -> Document:
    """Return what a user wrote for a job, in its own keys, with the places; arguments as of `load_job`."""
    document = apply_overrides(read_document(path), overrides)
    if model_dir is not None:
        document = document.put(("model_dir",), _from_here(os.fspath(model_dir)), Place("--model-dir"))
    if command is not None:
        document = _with_command(document, command)
    return _through_front_doors(with_blocks(document, blocks))


def _with_command(document: Document, command: str) -> Document:
    place = Place("--command")
    if "phases" in document.value:
        message = "the phases of the job have commands; write --set 'phases.0.command=[…]'"
        raise ConfigError(message, file=place.file)
    try:
        return document.put(("command",), shlex.split(command), place)
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}; close the quote", file=place.file) from error


def job_in(document: Document, path: str | os.PathLike[str]) -> JobConfig:
    """Return the job of a document that was read from `path`. Raises `ConfigError`."""
    job = validate(document).at(os.path.dirname(os.path.abspath(path)))
    try:
        check_places(job)
        own_signatures(job.signatures)  # an unusable file is reported before anything starts
    except ConfigError as error:
        raise document.located(error) from error
    return job


def _from_here(path: str) -> str:
    """Return a path of the command line, made absolute; `~` of an unknown user stays, to be refused."""
    expanded = os.path.expanduser(path)
    return expanded if expanded.startswith("~") else os.path.abspath(expanded)


def _through_front_doors(document: Document) -> Document:
    for key, rewritten in FRONT_DOORS.items():
        if key in document.value:
            document = rewritten(document)
    return document


def validate(document: Document) -> JobConfig:
    """Return the job of a document, with paths as they were written. Raises `ConfigError`."""
    document = _through_front_doors(document)
    try:
        return JobConfig.model_validate(document.value)
    except ValidationError as error:
        raise first_problem(error, document, FRONT_DOORS) from error
