"""Turns pydantic's errors about a document into the one error that a user sees.

That is the first problem in the order of the file, with file, line and field, in plain words: what is
wrong, and what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from prefect_ft.config import kinds
from prefect_ft.config.fields import shown, unknown_key
from prefect_ft.config.infrastructure import Infrastructure
from prefect_ft.config.job import JobConfig
from prefect_ft.config.source import Document
from prefect_ft.config.yaml_text import FieldPath
from prefect_ft.errors import ConfigError


def first_problem(error: ValidationError, document: Document, other_keys: Iterable[str] = ()) -> ConfigError:
    """Return the error for the first problem in the document.

    `other_keys` are allowed at the top besides the job's own.
    """
    begins = {path: number for number, path in enumerate(document.places)}
    ends = {path[:end]: number for path, number in begins.items() for end in range(len(path) + 1)}

    def position(found: tuple[FieldPath, ErrorDetails, str | None]) -> tuple[int, bool]:
        """Return its place in the document's order; a missing key counts as at the end of its section."""
        path = document.origin(found[0])
        missing = path not in begins
        return (ends.get(document.known(path), 0) if missing else begins[path]), missing

    details = error.errors(include_url=False)
    path, first, message = min(
        (found for each in details for found in _located(each, document)), key=position
    )
    return document.error(document.origin(path), message or message_of(first, other_keys))


def _located(
    details: ErrorDetails, document: Document
) -> Iterator[tuple[FieldPath, ErrorDetails, str | None]]:
    """Yield the paths of an error, and the messages of our own validators."""
    if details["type"] == "job":
        for at, message in details["ctx"]["problems"]:
            yield _as_written(details["loc"] + at, document), details, message
    else:
        yield untagged(details["loc"]), details, None


def message_of(details: ErrorDetails, other_keys: Iterable[str] = ()) -> str:
    """Return what is wrong with a value, and what to write instead."""
    kind, got = details["type"], shown(details["input"])
    if kind == "missing":
        return _missing(details["loc"])
    if kind == "extra_forbidden":
        return _unknown_key(details["loc"], other_keys)
    say = _MESSAGES.get(kind)
    return say(details.get("ctx", {}), got) if say else f"{details['msg']}, got {got}"


def _whole(_: dict[str, Any], got: str) -> str:
    return f"must be a whole number, got {got}"


def _decimal(_: dict[str, Any], got: str) -> str:
    return f"must be a number, got {got}"


def _truth(_: dict[str, Any], got: str) -> str:
    return f"must be true or false, got {got}"


def _mapping(_: dict[str, Any], got: str) -> str:
    return f"must be a mapping of keys to values, got {got}"


def _bound(number: float) -> str:
    """Return a bound as a job file has it, without an exponent."""
    return str(int(number)) if number == int(number) else f"{number:g}"


_MESSAGES: dict[str, Callable[[dict[str, Any], str], str]] = {
    "bool_parsing": _truth,
    "bool_type": _truth,
    "finite_number": _decimal,
    "float_parsing": _decimal,
    "float_type": _decimal,
    "greater_than": lambda context, got: f"must be above {_bound(context['gt'])}, got {got}",
    "greater_than_equal": lambda context, got: f"must be at least {_bound(context['ge'])}, got {got}",
    "int_from_float": _whole,
    "int_parsing": _whole,
    "int_parsing_size": _whole,
    "int_type": _whole,
    "less_than_equal": lambda context, got: f"must be at most {_bound(context['le'])}, got {got}",
    "literal_error": lambda context, got: f"must be one of {context['expected']}, got {got}",
    "model_type": _mapping,
    "tuple_type": lambda _, got: f"must be a list, like [first, second], got {got}",
}


def _missing(path: FieldPath) -> str:
    field = _fields(_section_at(path[:-1])).get(str(path[-1]))
    example = field.examples[0] if field is not None and field.examples else None
    written = f"; write {path[-1]}: {json.dumps(example)}" if example is not None else ""
    return f"missing{written}"


def _unknown_key(path: FieldPath, other_keys: Iterable[str]) -> str:
    section, key = _section_at(path[:-1]), str(path[-1])
    known = _fields(section)
    if key in known:  # two names of one field
        other = next(name for name, field in known.items() if name != key and field is known[key])
        return f"is another name of {other!r}; give one of the two"
    return unknown_key(key, known if path[:-1] else [*known, *other_keys])


def _section_at(path: FieldPath) -> type[BaseModel]:
    """Return the model of the section at a path; the type of an infrastructure is a part of the path."""
    sections: list[type[BaseModel]] = [JobConfig]
    for part in path:
        if tagged := [each for each in sections if _type_of(each) == part]:
            sections = tagged
        elif isinstance(part, str) and part in _fields(sections[0]):
            sections = _sections_in(_fields(sections[0])[part].annotation) or sections
    return sections[0]


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if parts := get_args(annotation):  # checked first: Python 3.10 takes tuple[X, ...] for a class
        return [found for part in parts for found in _sections_in(part)]
    if annotation is Infrastructure:
        return [kind.config for kind in kinds.usable_kinds()]
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return [annotation] if is_section else []


def _type_of(section: type[BaseModel]) -> str | None:
    """Return the one `type` that a section may have, if it has one."""
    field = section.model_fields.get("type")
    return get_args(field.annotation)[0] if field is not None else None


def untagged(path: FieldPath) -> FieldPath:
    """Return `path` without the parts that pydantic adds for the choice of a type."""
    return tuple(
        part
        for index, part in enumerate(path)
        if not (index and path[index - 1] == "infrastructure" and part in kinds.names())
    )


def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a section by all their names."""
    return {name: field for first, field in section.model_fields.items() for name in _names(first, field)}


def _names(name: str, field: FieldInfo) -> list[str]:
    choices = field.validation_alias
    return [str(choice) for choice in choices.choices] if isinstance(choices, AliasChoices) else [name]


def _as_written(path: FieldPath, document: Document) -> FieldPath:
    """Return `path` with the document's name for the last field."""
    fields = _fields(_section_at(path[:-1]))
    path = untagged(path)
    if path and document.origin(path) not in document.places and isinstance(path[-1], str):
        ways = [(*path[:-1], name) for name, field in fields.items() if field is fields.get(path[-1])]
        return next((way for way in ways if document.origin(way) in document.places), path)
    return path
