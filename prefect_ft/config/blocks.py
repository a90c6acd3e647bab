"""`{block: docker-training/gpu-box}` in a document: replaced by the block that is saved under that name.

The caller passes the lookup: nothing here knows where blocks are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prefect_ft.config.fields import shown
from prefect_ft.config.source import Document
from prefect_ft.config.yaml_text import FieldPath
from prefect_ft.errors import ConfigError

BlockLookup = Callable[[str], Mapping[str, Any]]
"""Returns the fields of an infrastructure by the name of its block; raises ConfigError."""

_KEY = "block"


def with_blocks(document: Document, lookup: BlockLookup | None) -> Document:
    """Return the document with its blocks filled in; keys beside `block` take precedence. Raises `ConfigError`.

    `lookup` is None where blocks are not available.
    """
    value = document.value
    origins: dict[FieldPath, FieldPath] = {}
    for path, section in _with_a_block(value):
        said = _looked_up(document, (*path, _KEY), section[_KEY], lookup)
        beside = {key: item for key, item in section.items() if key != _KEY}
        value = _replaced(value, path, {**said, **beside})
        origins |= {(*path, field): (*path, _KEY) for field in said if field not in beside}
    return document.rewritten(value, origins)


def _with_a_block(value: Mapping[str, Any]) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    """Return the infrastructures that name a block, each with its path."""
    phases = value.get("phases")
    holders: list[tuple[FieldPath, Any]] = [((), value)]
    holders += [
        (("phases", index), phase) for index, phase in enumerate(phases if isinstance(phases, list) else ())
    ]
    for path, holder in holders:
        section = holder.get("infrastructure") if isinstance(holder, dict) else None
        if isinstance(section, dict) and _KEY in section:
            yield (*path, "infrastructure"), section


def _looked_up(
    document: Document, path: FieldPath, name: object, lookup: BlockLookup | None
) -> Mapping[str, Any]:
    if not isinstance(name, str):
        message = f"must be the name of a saved block, like docker-training/gpu-box, got {shown(name)}"
        raise document.error(path, message)
    if lookup is None:
        raise document.error(path, "saved blocks are not looked up here; write the infrastructure itself")
    try:
        return lookup(name)
    except ConfigError as error:
        raise document.error(path, str(error)) from error


def _replaced(here: Any, path: FieldPath, value: object) -> Any:
    """Return a copy of `here` with `value` at the existing `path`."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(here, list):
        return [_replaced(item, rest, value) if index == part else item for index, item in enumerate(here)]
    return {**here, part: _replaced(here[part], rest, value)}
