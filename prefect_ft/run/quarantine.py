"""The quarantine: a file of the systems that no run may begin with, shared by all jobs that name it.

JSON lines, one for each system; docs/quarantine.md has the fields. Read without a lock, and changed by replacing
the file under one (`.NAME.lock` beside it), so that runs on several machines can share it. Expired entries are
ignored, and removed with the next change.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_ft.clock import seconds_since
from prefect_ft.errors import ConfigError
from prefect_ft.files import parse_json, replace_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A system that is out of use. Times are UTC; `until` of `None`: until a person releases it.

    The other fields say which run decided so and why, as far as is known: people may write entries too. `more`
    has further fields, written by a later version of this package.
    """

    system: str
    since: str
    until: str | None = None
    run: str | None = None
    job: str | None = None
    phase: str | None = None
    rule: str | None = None
    reason: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_expired(self) -> bool:
        return self.until is not None and seconds_since(self.until) >= 0

    def outlasts(self, other: Quarantined) -> bool:
        """Whether it keeps the system out of use for longer than another entry does."""
        if self.until is None or other.until is None:
            return other.until is not None
        return seconds_since(self.until) < seconds_since(other.until)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        return {**{name: getattr(self, name) for name in _FIELDS}, **self.more}


def read(path: Path) -> tuple[Quarantined, ...]:
    """Return the systems in quarantine, by name; none where there is no file. Raises ConfigError."""
    return tuple(_in_force(_entries(path)).values())


def add(path: Path, entries: Iterable[Quarantined]) -> None:
    """Put systems into quarantine; of two entries for a system the one that lasts longer stays.

    Raises ConfigError; a file that cannot be read is left as it is.
    """
    with _changing(path) as change:
        change(lambda known: _in_force((*known, *entries)))


def release(path: Path, system: str) -> bool:
    """Release a system, for runs that begin later; return whether it was there. Raises ConfigError."""
    released: list[Quarantined] = []

    def without(known: Iterable[Quarantined]) -> dict[str, Quarantined]:
        left = _in_force(known)
        if system in left:
            released.append(left.pop(system))
        return left

    with _changing(path) as change:
        change(without)
    return bool(released)


# -- the file ---------------------------------------------------------------------------------------

Change = Callable[[Iterable[Quarantined]], Mapping[str, Quarantined]]


@contextmanager
def _changing(path: Path) -> Iterator[Callable[[Change], None]]:
    """Hold the file's lock; yields a function that writes the file, if its contents change."""
    path = path.resolve()  # a link is to stay one

    def change(made: Change) -> None:
        before = _entries(path)
        after = tuple(made(before).values())
        if after != before:
            lines = "".join(json.dumps(entry.to_json()) + "\n" for entry in after)
            replace_file(path, lines, durable=True)

    try:
        fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield change
        finally:
            os.close(fd)
    except OSError as exc:
        raise ConfigError(f"cannot be changed: {exc.strerror}", file=str(path)) from exc


def _in_force(entries: Iterable[Quarantined]) -> dict[str, Quarantined]:
    """Return unexpired entries, one for each system, by name."""
    found: dict[str, Quarantined] = {}
    for entry in entries:
        before = found.get(entry.system)
        if not entry.has_expired and (before is None or entry.outlasts(before)):
            found[entry.system] = entry
    return dict(sorted(found.items()))


def _entries(path: Path) -> tuple[Quarantined, ...]:
    """Read the whole file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(path)) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 text; {_REMEDY}", file=str(path)) from exc
    return tuple(
        _entry(line, path, number) for number, line in enumerate(text.split("\n"), start=1) if line.strip()
    )


_REMEDY = "put the quarantine back from a copy, or take out what is damaged"


def _entry(text: str, path: Path, number: int) -> Quarantined:
    def damaged(message: str, field: str | None = None) -> ConfigError:
        return ConfigError(f"{message}; {_REMEDY}", file=str(path), line=number, field=field)

    try:
        value = parse_json(text)
    except ValueError as exc:
        raise damaged("is not JSON") from exc
    if not isinstance(value, dict):
        raise damaged("is not a JSON object")
    for name, (says, holds) in _FIELDS.items():
        if not holds(value.get(name)):
            raise damaged(f"{value.get(name)!r} is not {says}", name)
    known = {name: value[name] for name in _FIELDS if name in value}
    return Quarantined(**known, more={name: each for name, each in value.items() if name not in _FIELDS})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_utc(value: Any) -> bool:
    try:
        seconds_since(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return True


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


_TEXT = ("a text", _or_none(_is_text))
_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "system": ("a system's name", _is_text),
    "since": ("a time like 2026-01-31T23:59:59Z", _is_utc),
    "until": ("a time like 2026-01-31T23:59:59Z", _or_none(_is_utc)),
    "run": _TEXT,
    "job": _TEXT,
    "phase": _TEXT,
    "rule": _TEXT,
    "reason": _TEXT,
}
