"""The values that a phase passes to its command as a YAML file: any mapping, read as it was meant.

Owns what may be in it. The command interprets it; the run writes the file.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator

from prefect_ft.config.fields import Problems, as_error, problem, shown
from prefect_ft.config.yaml_text import SURROGATE, DoubtfulText, FieldPath


def _params(value: object) -> object:
    if not isinstance(value, dict):
        raise problem(f"must be a mapping of keys to values, got {shown(value)}")
    found: Problems = []
    read = _read(value, (), found)
    if found:
        raise as_error(found)
    return read


def _read(value: object, at: FieldPath, found: Problems) -> object:
    """Return a copy of a value, with doubtful text read as the number that it is; problems are added to `found`."""
    if isinstance(value, dict):
        if wrong := [name for name in value if not isinstance(name, str) or SURROGATE.search(name)]:
            found.append((at, f"a key must be text, got {shown(wrong[0])}"))
            return value
        return {name: _read(item, (*at, name), found) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_read(item, (*at, index), found) for index, item in enumerate(value)]
    number = value.decimal() if isinstance(value, DoubtfulText) else None
    read = value if number is None else number
    if message := _single_problem(read):
        found.append((at, message))
    return read


def _single_problem(value: object) -> str | None:
    """Return why a value that is neither list nor mapping would not reach the command as it was meant."""
    if isinstance(value, DoubtfulText):
        return (
            f"{value} is more than text to some readers of YAML; put it in quotes, or write a decimal number"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, got {value}; put it in quotes and let the command convert it"
    if isinstance(value, str) and SURROGATE.search(value):
        return "the text holds half a surrogate pair; write the character itself"
    if value is None or isinstance(value, (str, bool, int, float)):
        return None
    return f"must be text, a number, true or false, a list or a mapping, got {shown(value)}"


Params = Annotated[dict[str, Any], BeforeValidator(_params)]
