"""The journal of a phase: append-only JSON lines, the one truth about what happened and was decided.

A line is complete or it does not count: readers skip a torn last line, a writer removes it first. Lines are read only
here, into records (`records.py`). A damaged line before the last is reported as missing to readers, and blocks a
resume: budgets that forget what happened are worth nothing.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

from prefect_ft import formats
from prefect_ft.clock import utc_now
from prefect_ft.errors import JournalError
from prefect_ft.files import parse_json, replace_file, reserve, sync_directory
from prefect_ft.journal.records import (
    DecisionLine,
    EndLine,
    IncidentLine,
    Line,
    PhaseLine,
    ProposedLine,
    names_a_type,
    read_line,
)
from prefect_ft.model import Decision, Entry, History, Incident
from prefect_ft.worker.forms import FormError

# -- reading ----------------------------------------------------------------------------------------


def check_format(data: bytes, file: str) -> None:
    """Raise NewerFormatError for a journal in the format of a later version."""
    for raw in data.split(b"\n")[:-1]:
        if b'"format"' in raw and (line := _object(raw)) is not None:
            formats.check("journal", line.get("format"), line.get("version"), file)


class Damage(NamedTuple):
    """A line that cannot be read: its number from 1, the offset of its first byte, and why."""

    line: int
    offset: int
    why: str


class Scan(NamedTuple):
    """The contents of a journal: readable lines, each with its number, and damaged ones."""

    lines: list[tuple[int, Line]]
    damaged: list[Damage]


def scan(data: bytes) -> Scan:
    """Read a journal's lines without a torn last one; never raises."""
    found = Scan([], [])
    offset = 0
    for number, raw in enumerate(data.split(b"\n")[:-1], start=1):
        line = _read_line(raw)
        if isinstance(line, str):
            found.damaged.append(Damage(number, offset, line))
        elif line is not None:
            found.lines.append((number, line))
        offset += len(raw) + 1
    return found


def read_lines(path: Path) -> list[Line]:
    """Return the readable lines, for display; raises NewerFormatError, and OSError for the file itself."""
    data = path.read_bytes()
    check_format(data, str(path))
    return [line for _, line in scan(data).lines]


def checked_lines(path: Path, data: bytes | None = None) -> list[Line]:
    """Return all lines, for decisions; raises JournalError where one is damaged, NewerFormatError and OSError."""
    data = path.read_bytes() if data is None else data
    check_format(data, str(path))
    found = scan(data)
    if found.damaged:
        raise JournalError(describe_damage(path, found.damaged))
    return [line for _, line in found.lines]


def describe_damage(path: Path, damaged: Sequence[Damage]) -> str:
    """Describe the first damaged line, and what to do."""
    first, more = damaged[0], len(damaged) - 1
    others = f" (and {more} more)" if more else ""
    return (
        f"{path}:{first.line}: byte {first.offset}: the journal is damaged: {first.why}{others}; "
        f"`prefect-ft repair {shlex.quote(str(path.parent))}` shows what is lost and can go on without it"
    )


_SUM = b',"sum":"'
_SUM_BYTES = len(b',"sum":"00000000"}')


def encoded(record: Mapping[str, Any]) -> bytes:
    """Return a line's bytes in the file: JSON that ends with `sum`, the CRC-32 of everything before it."""
    data = json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    return b'%s%s%08x"}\n' % (data, _SUM, crc32(data))


def _read_line(raw: bytes) -> Line | str | None:
    """Read a line; None: skip it, a text: why it is damaged. Earlier versions wrote lines without a checksum."""
    if not raw:
        return None
    has_sum = raw[-_SUM_BYTES : -_SUM_BYTES + len(_SUM)] == _SUM
    if has_sum and b"%08x" % crc32(raw[:-_SUM_BYTES]) != raw[-10:-2]:
        return "its checksum is wrong"
    record = _object(raw)
    if record is None:
        return "it is no JSON object"
    if (record.pop("sum", None) is not None) != has_sum:
        return "its checksum is not at its end"
    try:
        return read_line(record)
    except FormError:
        return None if has_sum else "it lacks what a line of its type has"


def is_journal(data: bytes) -> bool:
    """Whether a file of JSON lines is a journal: then its first object has a type."""
    first = next((line for raw in data.split(b"\n") if (line := _object(raw)) is not None), {})
    return names_a_type(first)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def head_of(lines: Iterable[Line]) -> PhaseLine | None:
    """Return a journal's line about its phase; None: it is not a phase's journal, or the line is lost."""
    return next((line for line in lines if isinstance(line, PhaseLine)), None)


def end_of(lines: Iterable[Line]) -> EndLine | None:
    """Return how the phase ended; None: it has not."""
    return next((line for line in lines if isinstance(line, EndLine)), None)


def proposal_in(lines: Sequence[Line]) -> ProposedLine | None:
    """Return the decision that waits for a person."""
    proposed = next((line for line in reversed(lines) if isinstance(line, ProposedLine)), None)
    if proposed is None or end_of(lines) is not None:
        return None
    is_decided = any(isinstance(line, DecisionLine) and line.n == proposed.n for line in lines)
    return None if is_decided else proposed


def history_of(lines: Iterable[Line]) -> History:
    """Return the incidents that a journal records, each with its decision where one was made.

    Raises JournalError where one cannot be read: budgets that skip what happened are worth nothing.
    """
    reading = _Reading()
    reading.take(lines)
    return reading.history()


class _Reading:
    """The history in the lines taken so far."""

    def __init__(self) -> None:
        self._incidents: list[tuple[int, Incident]] = []
        self._decisions: dict[int, Decision] = {}

    def take(self, lines: Iterable[Line]) -> None:
        """Take the next lines; raises JournalError."""
        for line in lines:
            if isinstance(line, IncidentLine):
                self._incidents.append((line.n, line.incident))
            elif isinstance(line, DecisionLine):
                self._decisions[line.n] = line.decision

    def history(self) -> History:
        return tuple(
            [Entry(incident=incident, decision=self._decisions.get(n)) for n, incident in self._incidents]
        )


# -- writing ----------------------------------------------------------------------------------------


class MemoryJournal:
    """A journal in memory, for histories that need not outlive the process. Thread-safe, in one process."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        """`lines` are the first ones."""
        self.lock = RLock()
        """Held from an incident to its decision: a decision in between would miss the incident."""
        self._lines = list(lines)
        self._reading, self._read = _Reading(), 0
        """The history so far, and how many lines it covers."""

    @property
    def lines(self) -> Sequence[Line]:
        """All lines so far, in their order."""
        return self._lines

    @property
    def last_number(self) -> int:
        """The number of the last incident, 0 before the first; above their count where lines were lost."""
        return max((line.n for line in self._lines if isinstance(line, IncidentLine)), default=0)

    @property
    def last_t(self) -> float:
        """The time of the last line, in seconds since the phase began; 0 in an empty journal."""
        return float(self._lines[-1].t) if self._lines else 0.0

    def history(self) -> History:
        """Return the incidents so far, each with its decision. Raises JournalError."""
        with self.lock:
            self._reading.take(self._lines[self._read :])
            self._read = len(self._lines)
            return self._reading.history()

    def append(self, line: Line, *, t: float, utc: str | None = None) -> None:
        """Write one line with its time; it survives a crash of this process, and after `sync` one of the machine.

        `t` is in seconds since the phase began, and never falls; `utc` is now by default.
        """
        with self.lock:
            line = line.stamped(round(max(t, self.last_t), 6), utc or utc_now())
            self._write(line)
            self._lines.append(line)

    def append_incident(
        self, incident: Incident, *, n: int, ended_t: float, utc: str | None = None, **facts: Any
    ) -> None:
        """Write the `n`-th incident; `ended_t` is when it happened, as precisely as is known."""
        line = IncidentLine(n=n, ended_t=round(ended_t, 6), facts=incident, **facts)
        self.append(line, t=incident.t, utc=utc)

    def append_decision(self, decision: Decision, *, t: float, utc: str | None = None) -> None:
        """Write a decision and sync the journal: only then may it be carried out."""
        self.append(DecisionLine(n=decision.n, facts=decision), t=t, utc=utc)
        self.sync()

    def sync(self) -> None:
        """Make all lines survive a crash of the machine."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a journal cannot be pickled: another process would not see what this one decides. With a task runner "
            "that starts processes (ProcessPoolTaskRunner, Dask, Ray) leave `journal` out of restart_handler(...): "
            "each task run then has a history of its own"
        )

    def _write(self, line: Line) -> None:
        """Store a line durably."""


RESERVE_BYTES = 1 << 20
"""Space reserved for the journal, on a small file system at most a sixteenth of it: some hundred restarts."""


class Journal(MemoryJournal):
    """The one writer of a phase's journal. Raises JournalError where a line cannot be written.

    Space for further lines is reserved, where the file system can: a restart has to be recorded even after
    something else has filled the disk.
    """

    def __init__(self, path: Path, check: Callable[[], None] | None = None) -> None:
        """Create a journal, or continue one; a torn last line, which was never acted on, is dropped.

        An existing journal is replaced by a copy: an earlier writer that has it open still writes into a file that
        is read no more. `check` is called before each line, and raises to refuse it.
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
        """Make all lines survive a crash of the machine."""
        try:
            os.fsync(self._fd)
        except OSError as exc:
            raise _failed(self.path, exc) from exc

    def close(self) -> None:
        """Close the file; nothing can be written any more. Idempotent."""
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # releases the reserved space
            os.close(self._fd)
            self._fd = -1  # the number may be reused

    def _write(self, line: Line) -> None:
        """Append the line, all of it or nothing."""
        if self._check is not None:
            self._check()
        if os.getpid() != self._pid:
            owner = f"process {self._pid}, of which this one is a fork"
            raise JournalError(f"{self.path}: the journal belongs to {owner}; open another")
        try:
            append_whole(self._fd, encoded(line.write()))
            self._keep_room()
        except OSError as exc:
            self._kept_until = 0  # truncating the partial line has released the reserved space
            raise _failed(self.path, exc) from exc

    def _keep_room(self) -> None:
        """Reserve more space once half of it is used."""
        size = os.fstat(self._fd).st_size
        if self._kept_until - size < self._ahead // 2 and reserve(self._fd, size, self._ahead):
            self._kept_until = size + self._ahead


def _ahead(fd: int) -> int:
    """Return how many bytes to reserve on a file's file system."""
    found = os.fstatvfs(fd)
    return min(RESERVE_BYTES, found.f_blocks * found.f_frsize // 16)


def _replace(path: Path, whole: bytes) -> None:
    """Replace a journal by a copy; its reserved space suffices for that on a full disk."""
    try:
        replace_file(path, whole, durable=True)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.truncate(path, len(whole))  # releases the reserved space
        replace_file(path, whole, durable=True)


def without_damage(path: Path) -> bytes:
    """Return a journal without damaged lines and a torn last one; raises OSError."""
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
        with suppress(OSError):  # then a torn line stays, which readers skip
            os.ftruncate(fd, size)
        raise


def _failed(path: Path, exc: OSError) -> JournalError:
    return JournalError(f"{path}: the journal cannot be written: {exc.strerror}")
