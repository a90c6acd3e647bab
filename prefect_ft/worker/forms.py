"""Forms of JSON values: the name of each in the documentation, and how to read a value of it."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional


class FormError(ValueError):
    """A value is not of its form; the text says which field is wrong, or what is expected."""


class Form(NamedTuple):
    """A form: its name, and the function that reads a JSON value of it, which raises FormError.

    A field whose form `may_be_absent` is optional: earlier versions did not write it.
    """

    name: str
    read: Callable[[Any], Any]
    may_be_absent: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a value is of this form."""
        try:
            self.read(value)
        except FormError:
            return False
        return True


def form(name: str, holds: Callable[[Any], bool]) -> Form:
    """Return the form of values that are returned unchanged if `holds`."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise FormError(f"must be {name}")
        return value

    return Form(name, read)


_MAX = sys.float_info.max


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _MAX  # a whole number may be too large for a float


ANY = form("any", lambda _: True)
BOOL = form("bool", lambda value: isinstance(value, bool))
INT = form("int", lambda value: type(value) is int)  # excludes bool
NUMBER = form("number", _is_number)
OBJECT = form("object", lambda value: isinstance(value, dict))
SECONDS = form("seconds", lambda value: _is_number(value) and value >= 0)
STRING = form("string", lambda value: isinstance(value, str))


def named(name: str, its: Form) -> Form:
    """Return a form under another name."""
    return its._replace(name=name)


def or_null(its: Form) -> Form:
    """Return the form of a value that may be null, which is None."""
    return Form(f"{its.name} or null", lambda value: None if value is None else its.read(value))


def or_absent(its: Form) -> Form:
    """Return the form of a field that may be absent."""
    return its._replace(name=f"{its.name}, or absent", may_be_absent=True)


def list_of(item: Form) -> Form:
    """Return the form of a list, which is read as a tuple."""

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise FormError("is not a list")
        return tuple(item.read(each) for each in value)

    return Form(f"[{item.name}]", read)


def object_of(item: Form, keys: str = "string") -> Form:
    """Return the form of an object with any keys, and values of one form."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FormError("is not an object")
        return {key: item.read(each) for key, each in value.items()}

    return Form(f"{{{keys}: {item.name}}}", read)


def by_rank(item: Form) -> Form:
    """Return the form of an object whose keys are ranks in decimal digits; they are read as numbers."""
    its = object_of(item, "rank")

    def read(value: Any) -> Any:
        entries = its.read(value)
        if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in entries):
            raise FormError("has a key that is not a rank")
        return {int(key): each for key, each in entries.items()}

    return Form(its.name, read)


def fields_of(fields: Mapping[str, Form]) -> Form:
    """Return the form of an object that has at least these fields."""
    return form(
        "{" + ", ".join(fields) + "}",
        lambda value: isinstance(value, dict) and problem_of(fields, value) is None,
    )


def read_fields(fields: Mapping[str, Form], record: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the values of these fields, without absent ones; raises FormError."""
    values = {}
    for name, (form_name, read, may_be_absent) in fields.items():
        if name in record:
            try:
                values[name] = read(record[name])
            except FormError as exc:
                raise FormError(f"{name} must be {form_name}") from exc
        elif not may_be_absent:
            raise FormError(f"{name} is missing")
    return values


def problem_of(fields: Mapping[str, Form], record: Mapping[str, Any]) -> Optional[str]:
    """Return what is wrong with an object that should have these fields; None: nothing."""
    try:
        read_fields(fields, record)
    except FormError as exc:
        return str(exc)
    return None
