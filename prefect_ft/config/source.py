"""What a user wrote, before validation: a file, changed by `--set`, and the place of each part.

Knows none of the keys of a job; `explain` combines the models' errors with these places.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_ft.config.yaml_text import MAX_DEPTH, FieldPath, Place, dotted, parse
from prefect_ft.errors import ConfigError

_MAX_BYTES = 1 << 20
_COMMAND_LINE = Place("--set")


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping of plain values, and the places of the keys and items that the user wrote, in order.

    `origins` maps fields of `value` to the different ones that the user wrote for them, including
    everything below. `warnings` say which have no effect here, or another one, each as
    `FIELD: MESSAGE`.
    """

    value: dict[str, Any]
    places: dict[FieldPath, Place]
    origins: Mapping[FieldPath, FieldPath] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def origin(self, path: FieldPath) -> FieldPath:
        """Return the field that the user wrote for the field at `path`."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]] + path[end:]
        return path

    def known(self, path: FieldPath) -> FieldPath:
        """Return `path` as far as it was written: a missing key has its parent's place."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def error(self, path: FieldPath, message: str) -> ConfigError:
        """Return the error with `message` about the field that the user wrote at `path`."""
        place = self.places.get(self.known(path), Place(None))
        return ConfigError(message, file=place.file, line=place.line, field=dotted(path) or None)

    def located(self, error: ConfigError) -> ConfigError:
        """Return the same error with the place of its field; one that has a place keeps it."""
        if error.file is not None or error.field is None:
            return error
        ways = {dotted(path): path for path in _ways(self.value) if _leads(dotted(path), error.field)}
        nearest = max(ways, key=len)
        path = self.origin(ways[nearest])
        place = self.places.get(self.known(path), Place(None))
        rest = error.field[len(nearest) :]
        field = dotted(path) + rest if path else rest
        return ConfigError(error.message, file=place.file, line=place.line, field=field)

    def put(self, path: FieldPath, value: object, place: Place) -> Document:
        """Return a copy with `value` at `path`; missing mappings are created, a list grows by one item at most.

        Raises `ConfigError` where the path leads through something that is neither.
        """
        written = _put(self.value, path, 0, value, place)
        kept = {at: where for at, where in self.places.items() if at[: len(path)] != path}
        ways = (path[:end] for end in range(1, len(path) + 1))
        return replace(self, value=written, places=kept | {way: place for way in ways if way not in kept})

    def rewritten(
        self,
        value: dict[str, Any],
        origins: Mapping[FieldPath, FieldPath],
        warnings: Iterable[tuple[FieldPath, str]] = (),
    ) -> Document:
        """Return a copy with another `value`; `origins` maps its new fields to what the user wrote.

        `warnings` name fields that the user wrote.
        """
        texts = (f"{dotted(path)}: {message}" for path, message in warnings)
        return replace(
            self, value=value, origins={**self.origins, **origins}, warnings=(*self.warnings, *texts)
        )


def _ways(value: object, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the paths of all parts of a value, and of itself."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _ways(part, (*path, key))


def _leads(way: str, field: str) -> bool:
    """Return whether a path leads to a field, or to its parent."""
    return not way or field == way or field.startswith((f"{way}.", f"{way}["))


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a file that holds one mapping.

    Raises `ConfigError` if it cannot be read: the file, its encoding, its syntax.
    """
    file = os.fspath(path)
    value, places = parse(_read_text(file), file)
    if value is None:
        raise ConfigError("is empty; write keys and values, like name: my-job", file=file)
    if not isinstance(value, dict):
        what = "a list" if isinstance(value, list) else "a single value"
        raise ConfigError(f"must hold keys and values, like name: my-job, not {what}", file=file, line=1)
    return Document(value, places)


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Apply each `KEY=VALUE` of `--set` to the document, later ones over earlier ones.

    KEY is dotted (`phases.0.command` or `phases[0].command`), VALUE is YAML. Raises `ConfigError`.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        parts = key.strip().replace("[", ".").replace("]", "").split(".")
        if not equals or "" in parts or len(parts) > MAX_DEPTH:
            message = f"write KEY=VALUE, like autorestart.max_num_restarts=5, not {override!r}"
            raise ConfigError(message, file=_COMMAND_LINE.file)
        path = _as_path(document.value, parts)
        try:
            value, _ = parse(text, "--set")
        except ConfigError as error:
            raise ConfigError(error.message, file=_COMMAND_LINE.file, field=dotted(path)) from error
        document = document.put(path, value, _COMMAND_LINE)
    return document


def _as_path(here: Any, parts: list[str]) -> FieldPath:
    """Turn parts that are list indices into numbers; all others stay text."""
    path: list[str | int] = []
    for part in parts:
        if isinstance(here, list):
            index = next((index for index in range(len(here) + 1) if str(index) == part), None)
            path.append(part if index is None else index)
            here = here[index] if index is not None and index < len(here) else None
        else:
            path.append(part)
            here = here.get(part) if isinstance(here, dict) else None
    return tuple(path)


def _put(here: Any, path: FieldPath, done: int, value: object, place: Place) -> Any:
    """Return a copy of `here`, which is at `path[:done]`, with `value` at `path`."""
    if done == len(path):
        return value
    part, parent = path[done], dotted(path[:done])
    if here is None or isinstance(here, dict):
        mapping = here or {}
        return mapping | {part: _put(mapping.get(part), path, done + 1, value, place)}
    if isinstance(here, list) and isinstance(part, int):
        item = _put(here[part] if part < len(here) else None, path, done + 1, value, place)
        return [*here[:part], item, *here[part + 1 :]]
    if isinstance(here, list):
        message = f"{parent} is a list; write an index from 0 to {len(here)}, not {part!r}"
    else:
        message = f"{parent} holds a single value; set {parent} itself"
    raise ConfigError(message, file=place.file, line=place.line, field=dotted(path))


def _read_text(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError("no such file; pass the path of a job file", file=file) from error
    except IsADirectoryError as error:
        raise ConfigError("is a directory; give the path of the job file in it", file=file) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=file) from error
    except ValueError as error:
        raise ConfigError("is not a valid path; pass the path of a job file", file=repr(file)) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"is larger than {_MAX_BYTES >> 20} MiB; pass the path of a job file", file=file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8 text"
        raise ConfigError(message, file=file, line=line) from error
