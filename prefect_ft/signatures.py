"""Signatures of failures: the form of an entry of the catalogue, ours or a user's, and its checks.

Owns what an entry may contain. The classifier owns the search, the configuration where users write
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import re2

from prefect_ft.model import Blame, FailureClass, Recoverable, Role

__all__ = ["KEYS", "RECOVERABLE", "EntryError", "Signature", "compiled", "re2_options", "read_entry"]

RECOVERABLE: Mapping[FailureClass, Recoverable] = {
    "hardware": True,
    "network": True,
    "oom_device": "confirm",
    "oom_host": True,
    "storage": True,
    "checkpoint": True,
    "numeric": True,
    "data": True,
    "compile": False,
    "config": False,
    "assertion": False,
    "user_code": "confirm",
    "preempted": True,
    "cancelled": True,
    "collective_timeout": True,
    "port_in_use": True,
    "crash": True,
    "unknown": True,
    "none": None,
}
"""Whether a restart helps against a class; "confirm" is one confirming retry."""

KEYS = ("id", "class", "role", "blame", "recoverable", "pattern", "hint", "source", "example")
"""The keys of an entry."""

_MATCH_MEMORY_BYTES = 64 << 20
"""The memory that the automaton over a whole log may take before it starts over; used only as needed."""


_ENTRY_MEMORY_BYTES = 256 << 10
"""The memory of one entry's program: some 15,000 instructions. RE2 may try each of them at each character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One entry of the catalogue: what a line says about a failure.

    `recoverable` is `None` where that of the class holds. `example` is a line that it matches.
    """

    id: str
    failure_class: FailureClass
    pattern: str
    role: Role = "root"
    blame: Blame = "none"
    recoverable: Recoverable = None
    hint: str = ""
    source: str = ""
    example: str = ""


class EntryError(ValueError):
    """An entry that cannot be used: `field` is the key that is wrong, `None` for the entry as a whole."""

    def __init__(self, message: str, field: str | None = None) -> None:
        self.message, self.field = message, field
        super().__init__(f"{field}: {message}" if field else message)


def read_entry(entry: object) -> Signature:
    """Read one entry in the form of the catalogue's file. Raises EntryError."""
    if not isinstance(entry, Mapping):
        raise EntryError("must be a mapping with id, class and pattern")
    for key in entry:
        if key not in KEYS:
            raise EntryError(f"is not known; an entry has {', '.join(KEYS)}", str(key))
    signature = Signature(
        id=_text(entry, "id"),
        failure_class=_one_of(entry, "class", get_args(FailureClass), None),
        pattern=_text(entry, "pattern"),
        role=_one_of(entry, "role", get_args(Role), "root"),
        blame=_one_of(entry, "blame", get_args(Blame), "none"),
        recoverable=_narrowed(entry),
        hint=_text(entry, "hint", ""),
        source=_text(entry, "source", ""),
        example=_text(entry, "example", ""),
    )
    _check(signature)
    return signature


def _text(entry: Mapping[Any, Any], key: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        raise EntryError("missing" if key not in entry else f"must be text, got {value!r}", key)
    return value


def _one_of(entry: Mapping[Any, Any], key: str, known: tuple[str, ...], default: str | None) -> Any:
    value = entry.get(key, default)
    if value not in known:
        raise EntryError(
            "missing" if key not in entry else f"must be one of {', '.join(known)}, got {value!r}", key
        )
    return value


def _narrowed(entry: Mapping[Any, Any]) -> Recoverable:
    """Read `recoverable`, which may only narrow that of the class: an entry cannot make a class recoverable."""
    value = entry.get("recoverable")
    if value is None:
        return None
    if value is not False and value != "confirm":
        raise EntryError(f"must be false or confirm, or be left out, got {value!r}", "recoverable")
    if RECOVERABLE.get(entry["class"]) in (False, None) and value == "confirm":
        raise EntryError("may only narrow what the class says; leave it out", "recoverable")
    return False if value is False else "confirm"


def _check(signature: Signature) -> None:
    silent = signature.role in ("advice", "noise")
    if (signature.failure_class == "none") != silent:
        raise EntryError("the class none goes with the roles advice and noise, and they with it", "class")
    try:
        pattern = re2.compile(signature.pattern, re2_options(_ENTRY_MEMORY_BYTES))
        matched = pattern.search(signature.example or "")
        if pattern.search("") is not None:
            raise EntryError("matches the empty text; require something that is in the line", "pattern")
    except re2.error as exc:
        raise EntryError(f"is not a pattern of RE2: {_said(exc)}", "pattern") from exc
    if signature.example and matched is None:
        raise EntryError("is not matched by the pattern", "example")


def _said(error: Exception) -> str:
    text = error.args[0] if error.args else error
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def re2_options(memory_bytes: int = _MATCH_MEMORY_BYTES) -> Any:
    """Return the options with which all patterns are compiled; more memory is an error."""
    options = re2.Options()
    options.max_mem = memory_bytes
    options.log_errors = False
    options.never_capture = True
    return options


def capturing(pattern: str) -> Any:
    """Compile a pattern with a capturing group. Raises re2.error."""
    options = re2_options()
    options.never_capture = False
    return re2.compile(pattern, options)


def compiled(pattern: str) -> Any:
    """Compile a pattern. Raises re2.error."""
    return re2.compile(pattern, re2_options())
