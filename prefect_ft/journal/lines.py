"""The journal of a phase: append-only JSON lines, the one truth about what happened and was decided.

A line is whole or it does not count: a reader passes over a torn last line, a writer removes it first.
Every line has `type`, `t` (seconds since the phase began, never falling), `utc` and `sum`; docs/journal.md
lists the types. A line before the last that is damaged is shown as missing by what only looks on, and keeps a run
from being resumed: budgets that forget what happened are worth nothing.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

from prefect_ft import formats
from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.files import parse_json, replace_file, reserve, sync_directory
from prefect_ft.journal.forms import (
    decision_from_json,
    decision_to_json,
    incident_from_json,
    incident_to_json,
    known_alone,
)
from prefect_ft.model import Decision, Entry, History, Incident

Line = Mapping[str, Any]


# -- reading ----------------------------------------------------------------------------------------


def check_format(data: bytes, file: str) -> None:
    """Raise NewerFormatError for a journal that a later version has written to in a format of its own."""
    for raw in data.split(b"\n")[:-1]:
        if b'"format"' in raw and (line := _object(raw)) is not None:
            formats.check("journal", line.get("format"), line.get("version"), file)


class Damage(NamedTuple):
    """A line that cannot be read: its number from 1, the offset of its first byte, and why."""

    line: int
    offset: int
    why: str


class Scan(NamedTuple):
    """What stands in a journal: the lines that can be read, each with its number, and those that cannot."""

    lines: list[tuple[int, Line]]
    damaged: list[Damage]


def scan(data: bytes) -> Scan:
    """Read a journal's lines but a last one that is cut off; never raises."""
    found = Scan([], [])
    offset = 0
    for number, raw in enumerate(data.split(b"\n")[:-1], start=1):
        line = _understood(raw)
        if isinstance(line, str):
            found.damaged.append(Damage(number, offset, line))
        elif line is not None:
            found.lines.append((number, line))
        offset += len(raw) + 1
    return found


def read_lines(path: Path) -> list[Line]:
    """Return the lines that can be read, to look on; raises NewerFormatError, and OSError for the file itself."""
    data = path.read_bytes()
    check_format(data, str(path))
    return [line for _, line in scan(data).lines]


def checked_lines(path: Path, data: bytes | None = None) -> list[Line]:
    """Return all lines, to act on them; raises JournalError where one is damaged, NewerFormatError and OSError."""
    data = path.read_bytes() if data is None else data
    check_format(data, str(path))
    found = scan(data)
    if found.damaged:
        raise JournalError(told_damage(path, found.damaged))
    return [line for _, line in found.lines]


def told_damage(path: Path, damaged: Sequence[Damage]) -> str:
    """Return which line is damaged, the first of several, and what to do."""
    first, more = damaged[0], len(damaged) - 1
    others = f" (and {more} more)" if more else ""
    return (
        f"{path}:{first.line}: byte {first.offset}: the journal is damaged: {first.why}{others}; "
        f"`prefect-ft repair {shlex.quote(str(path.parent))}` shows what is lost and can go on without it"
    )


_SUM = b',"sum":"'
_SUM_BYTES = len(b',"sum":"00000000"}')


def encoded(line: Line) -> bytes:
    """Write a line as it stands in the file: JSON that ends with `sum`, the CRC-32 of what is before that."""
    data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    return b'%s%s%08x"}\n' % (data, _SUM, crc32(data))


def _understood(raw: bytes) -> Line | str | None:
    """Read a line; None: it does not count, a text: why it is damaged. One without a checksum is an older writer's."""
    if not raw:
        return None
    has_sum = raw[-_SUM_BYTES : -_SUM_BYTES + len(_SUM)] == _SUM
    if has_sum and b"%08x" % crc32(raw[:-_SUM_BYTES]) != raw[-10:-2]:
        return "its checksum is wrong"
    line = _object(raw)
    if line is None:
        return "it is no JSON object"
    if (line.pop("sum", None) is not None) != has_sum:
        return "its checksum is not at its end"
    if _is_whole(line):
        return line
    return None if has_sum else "it lacks what a line of its type has"


def is_journal(data: bytes) -> bool:
    """Whether a file of JSON lines is a journal: then its first object says of which type it is."""
    first = next((line for raw in data.split(b"\n") if (line := _object(raw)) is not None), {})
    return _is_text(first.get("type"))


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_whole(line: Line) -> bool:
    """Whether a line has what every reader may take for granted; more fields, and more types, may come."""
    kind = line.get("type")
    if not isinstance(kind, str):
        return False
    form = {**_EVERY, **_FORMS.get(kind, {})}
    return all(holds(line.get(name)) for name, holds in form.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_step(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_time(value: Any) -> bool:
    """Seconds, of any length that a run may have; below 0 is before the phase began."""
    return type(value) in (int, float) and abs(value) < 1e12


def _are_texts(value: Any) -> bool:
    return value is None or _is_texts(value)


def _is_time_or_none(value: Any) -> bool:
    return value is None or _is_time(value)


def _are_times(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_time, value)))


def _are_spans(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(each, list) and len(each) == 2 and _are_times(each) for each in value)
    )


def _are_limits(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(_is_step, value.values())))


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_signs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and _is_text(each.get("text")) for each in value
    )


def _are_pauses(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, list) and all(map(_is_time, each)) for each in value.values()
    )


def _is_utc(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is not None
    except (AttributeError, TypeError, ValueError):
        return False


def _is_report(value: Any) -> bool:
    try:
        incident_from_json(known_alone(value))
    except (AttributeError, ConfigError):
        return False
    return True


Form = Mapping[str, Callable[[Any], bool]]

_EVERY: Form = {"t": _is_time, "utc": _is_utc}
_FORMS: Mapping[str, Form] = {
    "phase": {
        "run": _is_text,
        "job": _is_text,
        "phase": _is_text,
        "isolated": _are_texts,
        "systems": _are_texts,
        "target_step": _is_step,
        "limits": _are_limits,
    },
    "attempt": {
        "attempt": _is_count,
        "resume_step": _is_step,
        "placement": _is_texts,
        "begun_t": _is_time_or_none,
    },
    "warning": {"attempt": _is_count, "what": _is_text, "text": _is_text},
    "came-up": {"attempt": _is_count, "what": _is_text, "at_t": _is_time},
    "checkpoint": {"step": _is_count, "written_t": _is_time},
    "report": {"report": _is_report},
    "warm": {
        "worker": _is_count,
        "parked": _is_count,
        "modules": _is_count,
        "memory_kb": _is_count,
        "why_cold": lambda value: value is None or _is_text(value),
    },
    "comeback": {"epoch": _is_count, "by_hand": _is_flag},
    "hang": {
        "n": _is_count,
        "attempt": _is_count,
        "response": _is_text,
        "ranks": _are_counts,
        "evidence": _are_signs,
    },
    "hang-over": {"n": _is_count, "went_on": _is_flag, "after_s": _is_time},
    "pace": {"pauses": _are_pauses},
    "straggler": {"rank": _is_count},
    "incident": {
        "n": _is_count,
        "ended_t": _is_time,
        "deaths": _are_times,
        "fences": _are_spans,
        "first_step": _is_step,
        "last_step": _is_step,
        "healing_s": _is_time_or_none,
        "reaped_t": _is_time_or_none,
    },
    "proposed": {"n": _is_count, "action": _is_text, "reason": _is_text, "until": _is_utc},
    "answer": {"n": _is_count, "answer": _is_text, "by": _is_text},
    "decision": {"n": _is_count},
    "end": {"status": _is_text, "reason": _is_text},
}
"""What a line of each type has; an incident's and a decision's own fields are read by `wire`."""


def proposal_in(lines: Sequence[Line]) -> Line | None:
    """Return the decision that waits for a person."""
    proposed = next((line for line in reversed(lines) if line["type"] == "proposed"), None)
    if proposed is None or any(
        line["type"] in ("decision", "end") and line.get("n", proposed["n"]) == proposed["n"]
        for line in lines
    ):
        return None
    return proposed


def history_of(lines: Sequence[Line]) -> History:
    """Return the incidents that a journal records, each with its decision where one was made.

    Raises JournalError where one cannot be read: budgets that pass over what happened are worth nothing.
    """
    reading = _Reading()
    reading.take(lines)
    return reading.history()


class _Reading:
    """What the lines that were taken so far come to."""

    def __init__(self) -> None:
        self._incidents: list[tuple[int, Incident]] = []
        self._decisions: dict[int, Decision] = {}

    def take(self, lines: Iterable[Line]) -> None:
        """Read the next lines; raises JournalError."""
        try:
            for line in lines:
                if line["type"] == "incident":
                    self._incidents.append((line["n"], _incident(line)))
                elif line["type"] == "decision":
                    self._decisions[line["n"]] = _decision(line)
        except ConfigError as exc:
            raise JournalError(f"the journal is damaged: {exc}") from exc

    def history(self) -> History:
        return tuple(
            [Entry(incident=incident, decision=self._decisions.get(n)) for n, incident in self._incidents]
        )


def _incident(line: Line) -> Incident:
    return incident_from_json(known_alone(line))


def _decision(line: Line) -> Decision:
    return decision_from_json(known_alone(line))


# -- writing ----------------------------------------------------------------------------------------


class MemoryJournal:
    """A journal that ends with the process, for what need not outlive it. Safe in threads, of one process."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        """`lines` are those that it begins with."""
        self.lock = RLock()
        """Held from an incident to its decision: what is decided in between would not know of it."""
        self._lines = list(lines)
        self._reading, self._read = _Reading(), 0
        """What the lines come to, and how many of them have been read for it."""

    @property
    def lines(self) -> Sequence[Line]:
        """All lines so far, in their order."""
        return self._lines

    @property
    def last_number(self) -> int:
        """The number of the last incident, 0 before the first; where lines were lost it is more than there are."""
        return max((line["n"] for line in self._lines if line["type"] == "incident"), default=0)

    @property
    def last_t(self) -> float:
        """Seconds since the phase began of the last line; 0 in an empty journal."""
        return float(self._lines[-1]["t"]) if self._lines else 0.0

    def history(self) -> History:
        """Return the incidents so far, each with its decision. Raises JournalError."""
        with self.lock:
            self._reading.take(self._lines[self._read :])
            self._read = len(self._lines)
            return self._reading.history()

    def append(self, line_type: str, /, *, t: float, utc: str, **fields: Any) -> None:
        """Write one line; it survives this process's death, but the machine's only after `sync`."""
        with self.lock:
            line = {"type": line_type, "t": round(max(t, self.last_t), 6), "utc": utc, **fields}
            self._write(line)
            self._lines.append(line)

    def append_incident(self, incident: Incident, *, n: int, utc: str, ended_t: float, **facts: Any) -> None:
        """Write the `n`-th incident; `ended_t` is when what it reports happened, as near as is known."""
        fields = incident_to_json(incident)
        t = fields.pop("t")
        self.append("incident", t=t, utc=utc, n=n, ended_t=round(ended_t, 6), **facts, **fields)

    def append_decision(self, decision: Decision, *, t: float, utc: str) -> None:
        """Write a decision and make it, and all before it, last: only then may it be carried out."""
        self.append("decision", t=t, utc=utc, **decision_to_json(decision))
        self.sync()

    def sync(self) -> None:
        """Make all lines survive the machine's death."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a journal cannot be pickled: another process would not see what this one decides. With a task runner "
            "that starts processes (ProcessPoolTaskRunner, Dask, Ray) leave `journal` out of restart_handler(...): "
            "each task run then has a history of its own"
        )

    def _write(self, line: Line) -> None:
        """Put a line where the journal lasts."""


RESERVE_BYTES = 1 << 20
"""Room that is kept for the journal ahead, on a small file system a sixteenth of it: some hundred restarts."""


class Journal(MemoryJournal):
    """The one writer of a phase's journal. Raises JournalError where the disk does not take a line.

    Room for lines to come is kept in advance, where the file system can: a restart has to be written down also
    where something else has filled the disk.
    """

    def __init__(self, path: Path, check: Callable[[], None] | None = None) -> None:
        """Begin a journal, or go on with one; a torn last line, which was never acted on, is left out.

        The journal that is there is copied, and the copy takes its place: what had it open before writes
        into a file that nobody reads. `check` is called before each line, and raises what keeps it out.
        """
        self.path = path
        self._check = check
        self._pid = os.getpid()
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            lines = checked_lines(path, whole)
            if whole:
                _replace(path.resolve(), whole)
            elif data:
                os.truncate(path, 0)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._kept_until = 0
            self._ahead = _ahead(self._fd)
            self._keep_room()
            sync_directory(path.resolve().parent)
        except OSError as exc:
            raise _failed(path, exc) from exc
        super().__init__(lines)

    def sync(self) -> None:
        """Make all lines survive the machine's death."""
        try:
            os.fsync(self._fd)
        except OSError as exc:
            raise _failed(self.path, exc) from exc

    def close(self) -> None:
        """Let go of the file; nothing can be written any more. Idempotent."""
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # gives back what was kept
            os.close(self._fd)
            self._fd = -1  # the number may soon be somebody else's

    def _write(self, line: Line) -> None:
        """Append the line, all of it or nothing."""
        if self._check is not None:
            self._check()
        if os.getpid() != self._pid:
            owner = f"process {self._pid}, of which this one is a fork"
            raise JournalError(f"{self.path}: the journal belongs to {owner}; open another")
        try:
            append_whole(self._fd, encoded(line))
            self._keep_room()
        except OSError as exc:
            self._kept_until = 0  # a line that had no room was cut off, and what was kept with it
            raise _failed(self.path, exc) from exc

    def _keep_room(self) -> None:
        """Have room kept for what is to come, before half of what was kept is used up."""
        size = os.fstat(self._fd).st_size
        if self._kept_until - size < self._ahead // 2 and reserve(self._fd, size, self._ahead):
            self._kept_until = size + self._ahead


def _ahead(fd: int) -> int:
    """Return how much room is kept ahead on a file's file system, in bytes."""
    found = os.fstatvfs(fd)
    return min(RESERVE_BYTES, found.f_blocks * found.f_frsize // 16)


def _replace(path: Path, whole: bytes) -> None:
    """Put a copy in a journal's place; the room that was kept for it is enough for that on a full disk."""
    try:
        replace_file(path, whole, durable=True)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.truncate(path, len(whole))  # gives back what was kept
        replace_file(path, whole, durable=True)


def without_damage(path: Path) -> bytes:
    """Return a journal as it stands, but for lines that are damaged and a last one that is cut off; raises OSError."""
    data = path.read_bytes()
    lost = {each.line for each in scan(data).damaged}
    raw = data.split(b"\n")[:-1]
    return b"".join(each + b"\n" for number, each in enumerate(raw, start=1) if number not in lost)


def append_whole(fd: int, data: bytes) -> None:
    """Append all of `data` to a file that was opened for appending, or nothing; raises OSError."""
    size = os.fstat(fd).st_size
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        with suppress(OSError):  # then a torn line stays, which readers pass over
            os.ftruncate(fd, size)
        raise


def _failed(path: Path, exc: OSError) -> JournalError:
    return JournalError(f"{path}: the journal cannot be written: {exc.strerror}")
