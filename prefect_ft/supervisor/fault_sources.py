"""Sources of fault reports besides the ranks: a file that a monitor appends to, a command.

Each source is a function that runs in a thread of its own until it is stopped: a file server or a
command that hangs blocks nothing else. They deliver lines; `fault_records` interprets them.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_ft.config import Faults
from prefect_ft.files import read_json, write_json
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.command import Command, Outcome

LOOK_S = 1.0
"""How often to read a monitor's file: a file server does not announce changes."""

MAX_READ_BYTES = 1 << 20
"""How much of it is read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """`place` remembers how far a monitor's file has been read, over lives and phases of a run."""

    faults: Faults
    place: Path
    cwd: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a source: its origin, for the person who has to fix it, and its text."""

    where: str
    text: str


Deliver = Callable[[Iterable[Line], Callable[[], None]], None]
"""Delivers lines; the second argument is called once they are recorded."""

Source = Callable[[SourcePlan, Deliver, threading.Event], None]


class FaultSources:
    """All sources of a phase that are configured, from its construction until `close`."""

    def __init__(self, plan: SourcePlan, calls: Calls, hear: Callable[[Line], None]) -> None:
        """`hear` is called for every line, by way of `calls`."""
        self._over = threading.Event()

        def deliver(lines: Iterable[Line], safe: Callable[[], None]) -> None:
            def hand_on() -> None:
                for line in lines:
                    hear(line)
                safe()

            calls.soon(hand_on)

        for name, source in SOURCES.items():
            if getattr(plan.faults, name) is not None:
                arguments = (plan, deliver, self._over)
                threading.Thread(
                    target=source, args=arguments, name=f"prefect-ft-faults-{name}", daemon=True
                ).start()

    def close(self) -> None:
        """Stop the sources, without waiting for them. Idempotent."""
        self._over.set()


# -- a file -----------------------------------------------------------------------------------------


def follow_file(plan: SourcePlan, deliver: Deliver, over: threading.Event) -> None:
    """Deliver complete lines appended to a file, from the position read last, or else from its end."""
    path = Path(plan.faults.file or "")
    place = _Place(plan.place, path)
    place.keeper()()  # an orchestrator that comes back begins where the first one did
    while True:
        with suppress(OSError):  # not there yet, or its server is not: there may be more the next time
            if lines := place.next_lines():
                deliver(lines, place.keeper())
                continue
        if over.wait(LOOK_S):
            return


class _Place:
    """How far a file has been read: from the start again where the file was replaced or truncated."""

    def __init__(self, memory: Path, path: Path) -> None:
        self._memory, self._path = memory, path
        known = _remembered(memory, path)
        if known is None:
            known = _identity_and_size(path)
        self._identity, self._position = known

    def next_lines(self) -> list[Line]:
        """Read the next complete lines; raises OSError."""
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            identity = f"{found.st_dev}:{found.st_ino}"
            if identity != self._identity or found.st_size < self._position:
                self._identity, self._position = identity, 0
            file.seek(self._position)
            content = file.read(MAX_READ_BYTES)
        end = content.rfind(b"\n") + 1
        if not end and len(content) == MAX_READ_BYTES:
            end = len(content)  # no report is that long; skip to the next line
        self._position += end
        texts = content[:end].decode("utf-8", "replace").splitlines()
        return [Line(str(self._path), text) for text in texts if text.strip()]

    def keeper(self) -> Callable[[], None]:
        """Return a function that stores the present position."""
        record = {"path": str(self._path), "file": self._identity, "position": self._position}

        def keep() -> None:
            with suppress(OSError):  # a full disk: then the next orchestrator reads from the end
                write_json(self._memory, record)

        return keep


def _remembered(memory: Path, path: Path) -> tuple[str, int] | None:
    record = read_json(memory)
    if record.get("path") != str(path):
        return None
    file, position = record.get("file"), record.get("position")
    return (file, position) if isinstance(file, str) and isinstance(position, int) else None


def _identity_and_size(path: Path) -> tuple[str, int]:
    """Return where a file ends now; one that does not exist yet will be read from its first line."""
    try:
        found = path.stat()
    except OSError:
        return "", 0
    return f"{found.st_dev}:{found.st_ino}", found.st_size


# -- a command --------------------------------------------------------------------------------------


def repeat_command(plan: SourcePlan, deliver: Deliver, over: threading.Event) -> None:
    """Execute a command periodically, and deliver lines that it did not print the last time.

    A line that is printed again is the same fault, still present.
    """
    known: set[str] = set()
    while not over.is_set():
        outcome = _executed(plan, over)
        where = plan.faults.command[0] if plan.faults.command else ""
        if outcome.succeeded:
            texts = [text for text in outcome.output.decode("utf-8", "replace").splitlines() if text.strip()]
            deliver([Line(where, text) for text in texts if text not in known], _nothing)
            known = set(texts)
        elif not over.is_set():
            deliver([Line(where, outcome.problem)], _nothing)
        over.wait(plan.faults.every_s)


def _executed(plan: SourcePlan, over: threading.Event) -> Outcome:
    """Execute the command to its end, or until `over`."""
    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    command = Command(
        plan.faults.command or (),
        cwd=plan.cwd,
        env=plan.env,
        timeout_s=plan.faults.every_s,
        on_end=ended.put,
    )
    while True:
        with suppress(queue.Empty):
            return ended.get(timeout=LOOK_S)
        if over.is_set():
            command.end()


def _nothing() -> None:
    """Do nothing: a command has no position to store."""


SOURCES: Mapping[str, Source] = {"file": follow_file, "command": repeat_command}
"""By the field of `faults` that configures them."""
