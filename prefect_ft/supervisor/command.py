"""Runs a user's command beside the training: waits for it in a thread, and kills it at its time limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO

from prefect_ft.worker.processes import signal_group

TAIL_BYTES = 4000
"""How much of a command's output is kept where only its end matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended: its exit code (None: it did not start, or did not end), and a description of the problem.

    `output` is what it printed, on both streams.
    """

    exit_code: int | None
    output: bytes
    problem: str

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0


class Command:
    """One execution, which starts at construction. `outcome` is None while it runs."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        on_end: Callable[[Outcome], None],
    ) -> None:
        """`on_end` is called in another thread, after `outcome` is set."""
        self.outcome: Outcome | None = None
        self._words, self._cwd, self._env = words, cwd, env
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._over, self._over_end = os.pipe2(os.O_CLOEXEC)
        threading.Thread(target=self._run, name=f"prefect-ft-{words[0]}", daemon=True).start()

    def end(self) -> None:
        """Kill it if it still runs; its outcome is reported as usual. Idempotent."""
        with suppress(OSError):
            os.write(self._over_end, b"!")

    def _run(self) -> None:
        try:
            with tempfile.TemporaryFile() as output:
                outcome = self._executed(output)
        except (OSError, ValueError) as exc:
            outcome = Outcome(exit_code=None, output=b"", problem=f"{self._words[0]} does not start: {exc}")
        self.outcome = outcome
        self._on_end(outcome)

    def _executed(self, output: IO[bytes]) -> Outcome:
        process = subprocess.Popen(
            self._words,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with ExitStack() as undo:
            undo.callback(_end, process)
            pidfd = os.pidfd_open(process.pid)
            undo.callback(os.close, pidfd)
            ended, _, _ = select.select([pidfd, self._over], [], [], self._timeout_s)
        output.seek(max(0, output.seek(0, os.SEEK_END) - (1 << 20)))
        printed = output.read()
        if pidfd in ended:
            return Outcome(
                exit_code=process.returncode, output=printed, problem=_description(process, printed)
            )
        why = "was ended" if ended else f"did not end within {self._timeout_s:g} s"
        return Outcome(exit_code=None, output=printed, problem=why)

    def __del__(self) -> None:
        for fd in (self._over, self._over_end):
            with suppress(OSError):
                os.close(fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    signal_group(process.pid, signal.SIGKILL)  # before it is collected: the number is still its own
    process.wait()


def _description(process: subprocess.Popen[bytes], printed: bytes) -> str:
    """Describe how a command ended, with its last line."""
    lines = printed[-TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()
    how = f"exit code {process.returncode}" if process.returncode >= 0 else f"signal {-process.returncode}"
    return f"{how}: {lines[-1]}" if lines else how
