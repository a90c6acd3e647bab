"""A user's own signatures of failures: in the job file, or in files that it names.

Owns the reading of those files and the places of what is wrong in them; what an entry may say is
`prefect_ft.signatures`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from prefect_ft.config.fields import Problems, as_error, problem, shown
from prefect_ft.config.yaml_text import FieldPath, Place, dotted, parse
from prefect_ft.errors import ConfigError
from prefect_ft.signatures import EntryError, Signature, read_entry

__all__ = ["Signatures", "own_signatures", "read_signatures"]

_MAX_BYTES = 1 << 20


def _items(value: object) -> object:
    """Check the entries that stand in the job itself; a single path may stand without its list."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise problem(f"must be a list of signatures and paths of files with them, got {shown(value)}")
    found: Problems = []
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        if isinstance(item, str):
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
    """Give a job's own signatures in their order. Raises `ConfigError` for a file that cannot be used."""
    origins: dict[str, str] = {}
    signatures: list[Signature] = []
    for item in items:
        where = item if isinstance(item, str) else "the job file"
        for signature in read_signatures(item) if isinstance(item, str) else [read_entry(item)]:
            if (other := origins.setdefault(signature.id, where)) != where:
                message = f"must be unique; {signature.id!r} stands in {other} too"
                raise ConfigError(message, file=where, field="id")
            signatures.append(signature)
    return tuple(signatures)


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
            raise _error(path, places, (index, "id"), f"must be unique; {signature.id!r} stands above too")
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
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=os.fspath(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            "is not UTF-8 text", file=path, line=data.count(b"\n", 0, error.start) + 1
        ) from error
    except ValueError as error:
        raise ConfigError("is no path that a file can have", file=repr(path)) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"is larger than {_MAX_BYTES >> 20} MiB", file=path)
    return text
