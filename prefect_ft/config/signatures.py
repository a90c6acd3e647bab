"""A user's own signatures of failures: in the job file, or in files that it names.

Owns the reading of those files and the places of problems in them; `prefect_ft.signatures` owns what an
entry may contain.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from prefect_ft.config.fields import Problems, as_error, path_problem, problem, shown, text_problem
from prefect_ft.config.yaml_text import FieldPath, Place, dotted, parse
from prefect_ft.errors import ConfigError
from prefect_ft.signatures import EntryError, Signature, read_entry

__all__ = ["Signatures", "own_signatures", "read_signatures"]

_MAX_BYTES = 1 << 20


def _items(value: object) -> object:
    """Check the entries in the job itself; a single path need not be in a list."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise problem(f"must be a list of signatures and paths of files with them, got {shown(value)}")
    found: Problems = []
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        if isinstance(item, str):
            if message := text_problem(item) or path_problem(item):
                found.append(((index,), message))
            continue
        try:
            name = read_entry(item).id
        except EntryError as error:
            found.append(((index, *([error.field] if error.field else ())), error.message))
            continue
        if (other := seen.setdefault(name, index)) != index:
            found.append(((index, "id"), f"must be unique; {name!r} is also signatures[{other}]"))
    if found:
        raise as_error(found)
    return items


Signatures = Annotated[tuple[str | dict[str, Any], ...], BeforeValidator(_items)]


def own_signatures(items: Iterable[str | Mapping[str, Any]]) -> tuple[Signature, ...]:
    """Return a job's own signatures in order. Raises `ConfigError` for a file that cannot be used."""
    origins: dict[str, int] = {}
    signatures: list[Signature] = []
    listed = list(items)
    for index, item in enumerate(listed):
        where = f"signatures[{index}]"
        for signature in _file_of(item, where) if isinstance(item, str) else [read_entry(item)]:
            if (other := origins.setdefault(signature.id, index)) != index:
                first = listed[other] if isinstance(listed[other], str) else f"signatures[{other}]"
                message = f"must be unique; {signature.id!r} is also in {first}"
                raise ConfigError(message, field=where if isinstance(item, str) else f"{where}.id")
            signatures.append(signature)
    return tuple(signatures)


def _file_of(path: str, field: str) -> list[Signature]:
    """Read a file that a job names; an error that it cannot be read names that field."""
    try:
        return read_signatures(path)
    except UnreadableError as error:
        message = f"{path} {error.message}; write the path of a YAML file of signatures"
        raise ConfigError(message, field=field) from error


class UnreadableError(ConfigError):
    """A file of signatures cannot be read at all."""


def read_signatures(path: str) -> list[Signature]:
    """Read a file that holds a list of entries. Raises `ConfigError` with file, line and field."""
    value, places = parse(_text(path), path)
    if not isinstance(value, list):
        raise ConfigError("must hold a list of entries, like - id: my-error", file=path, line=1)
    signatures: list[Signature] = []
    seen: set[str] = set()
    for index, entry in enumerate(value):
        try:
            signature = read_entry(entry)
        except EntryError as error:
            at = (index, *([error.field] if error.field else ()))
            raise _error(path, places, at, error.message) from error
        if signature.id in seen:
            raise _error(path, places, (index, "id"), f"must be unique; {signature.id!r} is already above")
        seen.add(signature.id)
        signatures.append(signature)
    return signatures


def _error(path: str, places: Mapping[FieldPath, Place], at: FieldPath, message: str) -> ConfigError:
    place = places.get(at) or places.get(at[:1]) or Place(path)
    return ConfigError(message, file=path, line=place.line, field=dotted(at))


def _text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", file=os.fspath(path)) from error
    except ValueError as error:
        raise UnreadableError("is not a valid path", file=repr(path)) from error
    if len(data) > _MAX_BYTES:
        raise UnreadableError(f"cannot be read: it is larger than {_MAX_BYTES >> 20} MiB", file=path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableError("cannot be read: it is not UTF-8 text", file=path, line=line) from error
