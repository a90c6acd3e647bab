"""The ranks of one attempt in one worker: started together, held by pidfds, ended together.

Owns their processes, output files and heartbeat files. Knows nothing of connections.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from typing import Any, Callable, Container, Dict, List, Mapping, NamedTuple, Optional, Union

from prefect_ft import heartbeat
from prefect_ft.worker import faults, processes
from prefect_ft.worker.container import ContainerMeter
from prefect_ft.worker.handlers import send_to_handlers
from prefect_ft.worker.loop import now_s
from prefect_ft.worker.reached import Reached
from prefect_ft.worker.restarts import Restarts
from prefect_ft.worker.spool import Keeping, Spool
from prefect_ft.worker.warm import Process, Starter

KILL_TIMEOUT_S = 20.0
"""How long processes may take to end by SIGKILL before they count as stuck in the kernel.

Releasing hundreds of gigabytes, or a device's memory, takes seconds.
"""

ERROR = ".error.json"
"""Suffix of the file to which torch's `@record` writes a rank's exception, as under torchrun."""


class Exit(NamedTuple):
    """How a rank ended: by exit code or by signal, and when (CLOCK_BOOTTIME ns).

    `oom`: by SIGKILL, and the OOM killer had struck in the container since the attempt began.
    """

    code: Optional[int]
    signal: Optional[int]
    t_ns: int
    oom: bool = False


class Rank:
    """One training process. `held` is readable when it has ended, None when that has been seen."""

    def __init__(self, number: int, process: Process, spool: Spool, beat_path: str, error_path: str) -> None:
        """`error_path` is where torch's `@record` writes. Raises OSError where the process cannot be watched."""
        self.number = number
        self.process = process
        self.spool = spool
        self.beat_path = beat_path
        self.error_path = error_path
        self.faults = faults.Reports(beat_path)
        self.restarts = Restarts(beat_path)
        self.exit: Optional[Exit] = None
        self.reported = False
        """Whether the exit has been reported."""
        self.held: Optional[processes.Held] = processes.Held(process.pid)
        self._last_beats: Optional[int] = None
        self._last_value = 0

    def ended(self, info: Any, has_run_out: Callable[[], bool]) -> Optional[int]:
        """Take the rank's end from waitid's answer, and return the exit code; None: a signal ended it.

        `has_run_out()`: whether the container's memory was used up.
        """
        by_signal = info.si_code != os.CLD_EXITED
        self.exit = Exit(
            None if by_signal else info.si_status,
            info.si_status if by_signal else None,
            time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            by_signal and info.si_status == signal.SIGKILL and has_run_out(),
        )
        self.process.returncode = -info.si_status if by_signal else info.si_status
        return self.exit.code

    def unwatch(self) -> None:
        """Let go of the process. Idempotent."""
        if self.held is not None:
            self.held.close()
            self.held = None

    def last_beat(self) -> Optional[heartbeat.Beat]:
        """Return the last heartbeat, None if there was none."""
        try:
            return heartbeat.read(self.beat_path)
        except OSError:
            return None  # the script has replaced the file

    def new_beat(self) -> Optional[heartbeat.Beat]:
        """Return the last heartbeat if there was one since the last call."""
        beat = self.last_beat()
        if beat is None or beat.beats == self._last_beats:
            return None
        self._last_beats = beat.beats
        return beat

    def new_values(self) -> Dict[str, Any]:
        """Return the fields of a `beat` about values that were reported since the last call, and the sample."""
        try:
            report = heartbeat.read_told(self.beat_path, self._last_value)
        except OSError:
            return {}  # as in `last_beat`
        fields: Dict[str, Any] = {}
        if report.values:
            self._last_value = report.values[-1][0]
            fields["values"] = [
                [number, step, *map(_as_json, numbers)] for number, step, *numbers in report.values
            ]
        if report.sample is not None:
            fields["sample"], fields["sample_step"] = report.sample, report.sample_step
        return fields

    def order_end(self) -> None:
        """Tell a rank that survives a scheduler's SIGTERM to end at the next one."""
        if heartbeat.NOTICE_VARIABLE in os.environ:
            with contextlib.suppress(OSError), open(self.beat_path + heartbeat.ENDS, "wb"):
                pass

    def ask_checkpoint(self, number: Optional[int]) -> bool:
        """Ask a living rank for a checkpoint: by its heartbeat file, and by a signal if one is given.

        Return False where no process of the rank handles that signal: it is sent to none then.
        """
        if self.exit is not None:
            return True
        with contextlib.suppress(OSError, ValueError):  # the rank has replaced the file
            heartbeat.ask_checkpoint(self.beat_path)
        return number is None or send_to_handlers(self.process.pid, number)

    def rewind(self, position: int) -> None:
        """Have the last heartbeat and all reports returned again, and output from `position` on."""
        self._last_beats, self._last_value = None, 0
        self.faults.rewind()
        self.restarts.rewind()
        self.spool.rewind(position)


def _as_json(value: Optional[float]) -> Union[float, str, None]:
    """Return a number if JSON has it, else its name."""
    return value if value is None or math.isfinite(value) else repr(value)


def without(env: Mapping[str, str], names: Container[str]) -> Dict[str, str]:
    """Return an environment without some variables."""
    return {name: value for name, value in env.items() if name not in names}


def executing(command: List[str], cwd: str) -> Starter:
    """Return what starts a rank by executing the command."""

    def start(env: Dict[str, str], output: int) -> Process:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    return start


class Gang:
    """The ranks of one attempt. `stuck` are pids that SIGKILL did not end."""

    def __init__(
        self,
        attempt: int,
        directory: str,
        keeping: Keeping,
        *,
        spared: Callable[[], Container[int]] = frozenset,
        container: Optional[ContainerMeter] = None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        """`directory` is where output and heartbeats go; it must be on a local disk. Raises OSError.

        `spared` are processes below this one that are not the attempt's. `container` is this process's own.
        `on_death()` is called when a rank has ended other than with exit code 0, and for stuck ones.
        """
        self.ranks: Dict[int, Rank] = {}
        self.by_file: Dict[str, Rank] = {}
        """The ranks by the names of their files in `directory`."""
        self.stuck: List[int] = []
        self.over = False
        """Whether every process below this one has been ended, and nothing more will come."""
        self._spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(processes.SPARE_DESCRIPTORS)]
        """Reserved for the end: ranks or strangers may have used up all others by then."""
        self._attempt = attempt
        self._directory = directory
        self._keeping = keeping
        self._spared = spared
        self._container = container
        self._on_death = on_death
        self._oom_kills = container.oom_kills() if container is not None else 0
        """The count at the start: kills of earlier attempts."""
        self._kill_deadline_s: Optional[float] = None
        self._terminated = Reached()

    def start(
        self,
        starter: Starter,
        env: Dict[str, str],
        ranks: Dict[int, Dict[str, str]],
        unset: Container[str] = (),
    ) -> None:
        """Start all ranks, each with `env` and its own variables, without those in `unset`.

        Raises OSError and ValueError (a NUL in a word), and then leaves no rank running and no file behind.
        """
        try:
            for number, own in ranks.items():
                self._start_rank(number, starter, {**env, **own}, unset)
        except BaseException:
            self.end(KILL_TIMEOUT_S)
            self.remove()
            raise

    def _start_rank(self, number: int, starter: Starter, env: Dict[str, str], unset: Container[str]) -> None:
        name = f"{self._attempt}-{number}"
        beat_path = os.path.join(self._directory, name + ".beat")
        error_path = os.path.join(self._directory, name + ERROR)
        spool = Spool(os.path.join(self._directory, name + ".log"), self._keeping)
        env = {**env, "PREFECT_FT_HEARTBEAT": beat_path, "TORCHELASTIC_ERROR_FILE": error_path}
        try:
            with open(spool.path, "ab") as output:
                process = starter(without(env, unset), output.fileno())
            rank = Rank(number, process, spool, beat_path, error_path)
        except BaseException:
            spool.remove()
            raise
        self.ranks[number] = rank
        for path in (beat_path, rank.faults.path, rank.restarts.path, spool.path):
            self.by_file[os.path.basename(path)] = rank

    def reap(self) -> None:
        """Reap every child that has ended, including orphans of ranks, without blocking."""
        by_pid = {rank.process.pid: rank for rank in self.ranks.values() if rank.exit is None}
        # A pid that has been reaped here is off the list: the next process with it is not a rank.
        with contextlib.suppress(ChildProcessError):
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
                if info is None:
                    return
                rank = by_pid.pop(info.si_pid, None)
                if rank is not None and rank.ended(info, self._has_run_out) != 0:
                    self._on_death()

    def _has_run_out(self) -> bool:
        """Whether the OOM killer has struck in this container since the attempt began."""
        return self._container is not None and self._container.oom_kills() > self._oom_kills

    def terminate(self) -> None:
        """Ask every rank's process group to end (SIGTERM, and SIGCONT so that stopped ones hear it)."""
        living = [rank for rank in self.ranks.values() if rank.exit is None]
        self._terminated.note({rank.process.pid for rank in living}, signal.SIGTERM)
        for rank in living:
            rank.order_end()
            processes.signal_group(rank.process.pid, signal.SIGTERM, signal.SIGCONT)

    def one_terminating(self) -> Optional[processes.Held]:
        """Return a process that was asked to end and still runs, which the caller is to close; None: there is none."""
        return self._terminated.one_living()

    def end(self, wait_s: float) -> bool:
        """SIGKILL every process below this one, whatever started it, and wait for their ends.

        False: some have not ended yet, call again. True: all have, or the others are `stuck`.
        """
        if self._kill_deadline_s is None:
            self._kill_deadline_s = now_s() + KILL_TIMEOUT_S
            self._terminated.forget()
        while self._spare:
            os.close(self._spare.pop())
        left = processes.end_descendants(self.reap, wait_s, self._spared)
        if left and now_s() < self._kill_deadline_s:
            return False
        self.stuck, self.over = left, True
        if left:
            self._on_death()
        return True

    @property
    def all_exited(self) -> bool:
        """Whether no rank is left; processes that ranks started may still run."""
        return all(rank.exit is not None for rank in self.ranks.values())

    def remove(self) -> None:
        """Delete output and heartbeats; for an attempt whose output has been handed on."""
        self.leave_output()
        for rank in self.ranks.values():
            with contextlib.suppress(OSError):
                os.unlink(rank.spool.path)

    def leave_output(self) -> List[str]:
        """Delete heartbeats alone; return the paths of what was printed."""
        for rank in self.ranks.values():
            rank.unwatch()
            rank.spool.close()
            beats = [rank.beat_path + end for end in ("", heartbeat.STACKS, heartbeat.ENDS)]
            for path in (*beats, rank.error_path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            for reports in (rank.faults, rank.restarts):
                with contextlib.suppress(OSError):
                    reports.remove()
        return [rank.spool.path for rank in self.ranks.values()]
