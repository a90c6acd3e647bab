"""An `srun` for nodes that are addresses of this machine: it shows what the number of nodes costs.

`on_path(DIRECTORY)` makes a directory with an `srun` to put in front of PATH. All tasks are started at once, each with
its own SLURMD_NODENAME, by a process that stands for all slurmds: it outlives srun, as they do. DIRECTORY/pid has its
number.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PID = "pid"
END_S = 60.0


def on_path(directory: Path) -> str:
    """Make the srun; return the directory to put on PATH."""
    (directory / "bin").mkdir(parents=True)
    srun = directory / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nexec {shlex.join((sys.executable, "-S", __file__, str(directory)))} "$@"\n')
    srun.chmod(0o755)
    return str(srun.parent)


def end(directory: Path) -> None:
    """End all tasks; return once they have gone."""
    with suppress(OSError, ValueError):
        held = os.pidfd_open(int((directory / PID).read_text()))
        try:
            for _ in range(2):  # a node server that is told twice leaves at once
                signal.pidfd_send_signal(held, signal.SIGTERM)
                time.sleep(1.0)
        finally:
            os.close(held)
    deadline = time.monotonic() + END_S
    while is_up(directory) and time.monotonic() < deadline:
        time.sleep(0.05)


def is_up(directory: Path) -> bool:
    """Whether a task lives."""
    return (directory / PID).exists()


def _serve(directory: Path, nodes: list[str], output: str, command: list[str]) -> None:
    """Start a task on each node, and stay until all have ended."""
    tasks = []

    def pass_on(number: int, _: object) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    (directory / PID).write_text(str(os.getpid()))
    for number, node in enumerate(nodes):
        with open(output.replace("%t", str(number)), "ab") as log:
            env = {**os.environ, "SLURMD_NODENAME": node, "SLURM_PROCID": str(number)}
            tasks.append(
                subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )
    for task in tasks:
        task.wait()
    (directory / PID).unlink()


def main(directory: Path, words: list[str]) -> None:
    """Be srun: hand the tasks over, and wait for an end that only a signal brings."""
    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    command = words[next(at for at, word in enumerate(words) if not word.startswith("--")) :]
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _serve(directory, options["nodelist"].split(","), options["output"], command)
        os._exit(0)
    os.wait()
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
