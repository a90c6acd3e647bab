"""The ranks of one attempt in one worker: started together, watched by pidfd, ended together.

Owns their processes, output files and heartbeat files. Knows nothing of connections.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from prefect_ft import heartbeat
from prefect_ft.worker import processes
from prefect_ft.worker.spool import Spool

KILL_TIMEOUT_S = 2.0
"""How long a walk waits for processes to die of SIGKILL before they count as stuck in the kernel."""

Token = Tuple[int, int, int]
"""Orchestrator's epoch, phase index, attempt: what orders are fenced by."""


class Exit(NamedTuple):
    """How a rank ended: by exit code or by signal, and when (CLOCK_BOOTTIME ns)."""

    code: Optional[int]
    signal: Optional[int]
    t_ns: int


class Rank:
    """One training process. `pidfd` is readable when it has ended."""

    def __init__(self, number: int, process: "subprocess.Popen[bytes]", spool: Spool, beat_path: str) -> None:
        self.number = number
        self.process = process
        self.spool = spool
        self.beat_path = beat_path
        self.last_beat: Optional[heartbeat.Beat] = None
        self.exit: Optional[Exit] = None
        self.pidfd: Optional[int] = os.pidfd_open(process.pid)

    def ended(self, info: Any) -> None:
        """Take the rank's end from waitid's answer."""
        by_signal = info.si_code != os.CLD_EXITED
        self.exit = Exit(
            None if by_signal else info.si_status,
            info.si_status if by_signal else None,
            time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        )
        self.process.returncode = -info.si_status if by_signal else info.si_status

    def close(self) -> None:
        """Stop watching; for a rank that has ended."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def new_beat(self) -> Optional[heartbeat.Beat]:
        """Give the last heartbeat if there was one since the last call."""
        beat = heartbeat.read(self.beat_path)
        if beat is None or (self.last_beat is not None and beat.beats == self.last_beat.beats):
            return None
        self.last_beat = beat
        return beat


class Gang:
    """The ranks of one attempt. `stuck` are pids that SIGKILL did not end."""

    def __init__(self, token: Token, directory: str, spool_bytes: int) -> None:
        """`directory` is where output and heartbeats go; it must be on a local disk."""
        self.token = token
        self.ranks: Dict[int, Rank] = {}
        self.stuck: List[int] = []
        self.over = False
        """Whether every process below this one has been ended, and nothing more will come."""
        self._directory = directory
        self._spool_bytes = spool_bytes

    def start(self, command: List[str], cwd: str, env: Dict[str, str], ranks: Dict[int, Dict[str, str]]) -> None:
        """Start all ranks, each with `env` and its own variables; raises OSError with none left running."""
        try:
            for number, own in ranks.items():
                self.ranks[number] = self._start_rank(number, command, cwd, {**env, **own})
        except OSError:
            self.end()
            raise

    def _start_rank(self, number: int, command: List[str], cwd: str, env: Dict[str, str]) -> Rank:
        stem = os.path.join(self._directory, f"{self.token[2]}-{number}")
        spool = Spool(stem + ".log", self._spool_bytes)
        beat_path = stem + ".beat"
        with open(spool.path, "ab") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**env, "PREFECT_FT_HEARTBEAT": beat_path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Rank(number, process, spool, beat_path)

    def reap(self) -> None:
        """Collect every child that has ended, orphans of ranks too, without blocking."""
        by_pid = {rank.process.pid: rank for rank in self.ranks.values() if rank.exit is None}
        with contextlib.suppress(ChildProcessError):
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
                if info is None:
                    return
                if info.si_pid in by_pid:
                    by_pid[info.si_pid].ended(info)

    def terminate(self) -> None:
        """Ask every rank's process group to end (SIGTERM, and SIGCONT so that stopped ones hear it)."""
        for rank in self.ranks.values():
            if rank.exit is None:
                with contextlib.suppress(OSError):
                    os.killpg(rank.process.pid, signal.SIGTERM)
                    os.killpg(rank.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """SIGKILL every process below this one, whoever started it. Idempotent."""
        self.stuck = processes.end_descendants(self.reap, KILL_TIMEOUT_S)
        self.over = True

    @property
    def all_exited(self) -> bool:
        return all(rank.exit is not None for rank in self.ranks.values())

    def remove(self) -> None:
        """Delete output and heartbeats; for an attempt whose output has been handed on."""
        for rank in self.ranks.values():
            with contextlib.suppress(OSError):
                rank.spool.remove()
            with contextlib.suppress(OSError):
                os.unlink(rank.beat_path)
