"""The zygote's process from the agent's side: started, heard, asked for ranks, ended.

`warm.py` decides what a zygote is for and when it is used; `zygote.py` is what runs in it.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
from typing import Any, Dict, NamedTuple, Optional, Sequence

from prefect_ft.worker import zygote
from prefect_ft.worker.command import Program
from prefect_ft.worker.processes import Held, parent

ANSWER_TIMEOUT_S = 2.0
"""How long to wait for a fork."""

Environment = Dict[str, str]


class Wanted(NamedTuple):
    """What a zygote is made for."""

    program: Program
    cwd: str
    env: Environment
    """Without the variables that are each rank's own."""


class Parked(NamedTuple):
    """A rank that was forked and waits for its attempt."""

    process: Held
    connection: socket.socket

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_waiting(self) -> bool:
        """Whether it is alive and has sent nothing.

        A closed connection alone does not show its end: for a moment after the fork, the zygote holds it too.
        """
        if self.process.ends(0):
            return False
        self.connection.settimeout(0)
        try:
            self.connection.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


class Zygote:
    """The zygote's process; readable when it has sent something or is gone."""

    def __init__(self, wanted: Wanted, modules: Sequence[str], log: str, *, are_learned: bool) -> None:
        """Raises OSError. `are_learned`: leave out what is not installed, and do not report failures."""
        self.wanted = wanted
        self.is_ready = False
        self.modules = 0
        program = wanted.program
        self._connection, theirs = socket.socketpair()
        with theirs, open(log, "ab") as output:
            try:
                self._process = subprocess.Popen(
                    [program.interpreter, *program.options, zygote.__file__, str(theirs.fileno())],
                    cwd=wanted.cwd,
                    env=wanted.env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
                self.process = Held(self._process.pid)
            except (OSError, ValueError):
                self._connection.close()
                raise
        self.pid = self._process.pid
        send(
            self._connection,
            {
                "kind": program.kind,
                "target": program.target,
                "arguments": list(program.arguments),
                "modules": list(modules),
                "are_learned": are_learned,
            },
        )

    def fileno(self) -> int:
        return self._connection.fileno()

    def hear(self) -> Optional[Dict[str, Any]]:
        """Return the result of preloading; None if the zygote is gone."""
        self._connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            answer, _ = zygote.receive(self._connection)
        except OSError:
            return None
        if answer is not None:
            self.modules = answer["modules"]
            self.is_ready = not answer["unfit"]
        return dict(answer) if answer is not None else None

    def fork(self) -> Optional[Parked]:
        """Have a rank forked, and wait for it; None if none comes."""
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_TIMEOUT_S)
        with theirs:
            try:
                send(self._connection, True, [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        try:
            pid, _ = zygote.receive(ours)
        except OSError:
            pid = None
        held = _held_child(pid) if pid is not None else None
        if held is None:
            ours.close()
            return None
        return Parked(held, ours)

    def end(self) -> None:
        self._connection.close()
        self.process.send(signal.SIGKILL)
        self.process.close()
        self._process.returncode = 0  # the agent reaps it, as any other child


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a message whole, and descriptors with its first byte."""
    data = marshal.dumps(message, 2)
    data = len(data).to_bytes(4, "little") + data
    sent = socket.send_fds(connection, [data], list(descriptors)) if descriptors else 0
    if sent < len(data):  # a peer that has received all may have closed already
        connection.sendall(data[sent:])


def _held_child(pid: int) -> Optional[Held]:
    """Hold a process that the zygote has forked; None where it is gone, or not a child of this one."""
    try:
        held = Held(pid)
    except OSError:
        return None
    if parent(pid) == os.getpid():
        return held
    held.close()
    return None
