"""Where hanging ranks are: their own stacks, and what the kernel says of their processes. Changes nothing.

A process is asked for its stacks by a signal, but only if it is known to handle it: others would be killed. A
process that does not answer is inspected from outside.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from prefect_ft import heartbeat
from prefect_ft.worker import processes, spy
from prefect_ft.worker.gang import Rank
from prefect_ft.worker.loop import Loop

MAX_PROCESSES = 16
"""How many processes of one rank are inspected."""

MAX_STACKS_BYTES = 64 << 10
"""Of one process."""

LOOK_S = 0.02
"""How often to check whether a process has written its stacks: a file that has not grown since is complete."""

ANSWER_S = 0.5
"""How long a process has to begin writing; a stopped one does not."""


class Diagnosis:
    """One look at all ranks; `on_end(found)` is called once, at the latest after `timeout_s`."""

    def __init__(
        self, ranks: List[Rank], timeout_s: float, loop: Loop, on_end: Callable[[Dict[int, Any]], None]
    ) -> None:
        self._loop, self._on_end = loop, on_end
        self._deadline_s = time.monotonic() + timeout_s
        living = [rank for rank in ranks if rank.exit is None]
        self._trees = {rank.number: _tree(rank) for rank in living}
        self._asking = [_Asking(rank, self._trees[rank.number]) for rank in living]
        self._look()

    def close(self) -> None:
        """Stop looking, and do not report. Idempotent."""
        self._loop.drop("diagnosis")
        for asking in self._asking:
            asking.close()

    def _look(self) -> None:
        over = time.monotonic() >= self._deadline_s
        waiting = [asking for asking in self._asking if not asking.advance()]
        if waiting and not over:
            self._loop.after("diagnosis", LOOK_S, self._look)
            return
        for asking in self._asking:
            asking.close()
        self._on_end(
            {
                asking.rank.number: {
                    "stacks": asking.stacks,
                    "processes": [_described(each) for each in self._trees[asking.rank.number]],
                }
                for asking in self._asking
            }
        )


class _Process(NamedTuple):
    """A process of a rank; `started` None: it was a zombie when it was seen."""

    pid: int
    started: Optional[int]

    @property
    def is_same(self) -> bool:
        """Whether it is alive, and its pid has not been reused."""
        return self.started is not None and processes.started(self.pid) == self.started

    @property
    def pid_was_reused(self) -> bool:
        """Whether its pid has been reused."""
        return processes.started(self.pid) not in (None, self.started)


class _Asking:
    """The processes of one rank, asked one after the other: those that it forked write to the same file."""

    def __init__(self, rank: Rank, tree: List[_Process]) -> None:
        self.rank = rank
        self.stacks: Dict[str, str] = {}
        self._path = rank.beat_path + heartbeat.STACKS
        self._tree = tree
        self._left = list(tree)
        self._asked: Optional[int] = None
        self._asked_s = 0.0
        self._begin = self._size = 0
        self._spying: Optional[spy.Look] = None
        """The look at those that have not answered."""

    def advance(self) -> bool:
        """Collect the answers so far and ask the next process; return whether all have been asked."""
        if not self._has_asked_all():
            return False
        if self._spying is None:
            silent = [each.pid for each in self._tree if str(each.pid) not in self.stacks and each.is_same]
            self._spying = spy.Look(silent, self._path + ".spy")
        return self._spying.advance()

    def close(self) -> None:
        """Stop asking, and keep what was seen."""
        if self._spying is not None:
            self.stacks.update(self._spying.stacks)
            self._spying.close()

    def _has_asked_all(self) -> bool:
        if self._asked is not None and not self._is_answered():
            return False
        self._asked = None
        while self._left and self._asked is None:
            self._ask(self._left.pop(0))
        return self._asked is None

    def _ask(self, process: _Process) -> None:
        """Ask a process that handles the signal now: a forked one may have executed another program meanwhile."""
        with contextlib.suppress(OSError), contextlib.closing(processes.Held(process.pid)) as held:
            if process.is_same and _takes_signal(process.pid):
                self._begin = self._size = self._file_size()
                self._asked, self._asked_s = process.pid, time.monotonic()
                held.send(heartbeat.STACKS_SIGNAL)

    def _is_answered(self) -> bool:
        size = self._file_size()
        has_grown, self._size = size != self._size, size
        if has_grown or (size == self._begin and time.monotonic() - self._asked_s < ANSWER_S):
            return False
        if size > self._begin:
            self.stacks[str(self._asked)] = self._written()
        return True

    def _file_size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _written(self) -> str:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._begin)
                return file.read(MAX_STACKS_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def _tree(rank: Rank) -> List[_Process]:
    pids = [rank.process.pid, *processes.descendants(rank.process.pid)][:MAX_PROCESSES]
    return [_Process(pid, processes.started(pid)) for pid in pids]


def _takes_signal(pid: int) -> bool:
    caught = _status(pid).get("SigCgt", "0")
    return bool(int(caught, 16) >> (heartbeat.STACKS_SIGNAL - 1) & 1)


def _described(process: _Process) -> Dict[str, Any]:
    pid = process.pid
    if process.pid_was_reused:
        return {"pid": pid, "name": "", "state": "gone", "threads": 0, "waits_in": "", "kernel_stack": ""}
    status = _status(pid)
    return {
        "pid": pid,
        "name": status.get("Name", ""),
        "state": status.get("State", "gone"),
        "threads": int(status.get("Threads", "0")),
        "waits_in": _content(f"/proc/{pid}/wchan").strip("0"),
        "kernel_stack": _content(f"/proc/{pid}/stack"),
    }


def _status(pid: int) -> Dict[str, str]:
    lines = _content(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 14).decode("utf-8", "replace").strip()
    except OSError:
        return ""
