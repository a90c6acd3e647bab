"""The holder of a Slurm allocation: starts a node server on each node, once, and waits until it is released.

It is the batch script of an allocation that a run has submitted, or a process beside an orchestrator that is in one. It
decides nothing: a run orders what it wants from the node servers. It reports in a directory that the orchestrator
sees: `allocation.json`, one file for each node server, `ended` at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from typing import Any, Dict, List, Optional, Sequence, Set

from prefect_ft.worker import PACKAGE_DIRECTORY
from prefect_ft.worker.node import RELEASED
from prefect_ft.worker.processes import Held

ALLOCATION = "allocation.json"
ENDED = "ended"
CONFIG = "node.json"
"""The configuration of all node servers of a run, in the directory above."""

MOST_STEPS = 3
"""How often to start the node servers, where nodes fail to start the step."""

LOOK_S = 0.25
COMMAND_TIMEOUT_S = 20.0
GONE_S = 5.0
"""How long without any node server before the allocation is released."""


def asked(words: Sequence[str]) -> Optional[str]:
    """Return the output of a Slurm command; None where it fails, or takes too long."""
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def tenure_name(job: str, restarts: int) -> str:
    """Return the name of an allocation after so many restarts."""
    return "slurm-%s" % job if restarts == 0 else "slurm-%s.%d" % (job, restarts)


def described(job: str) -> Dict[str, Any]:
    """Return what is known of this allocation: its nodes in order, their addresses, its end, its name."""
    job_state = asked(("scontrol", "show", "job", "-o", job)) or ""
    node_list = os.environ.get("SLURM_JOB_NODELIST") or _field(job_state, "NodeList") or ""
    nodes = (asked(("scontrol", "show", "hostnames", node_list)) or "").split() or [node_list]
    addresses = asked(("sinfo", "-h", "-N", "-n", node_list, "-o", "%N|%o")) or ""
    hosts = dict(line.strip().split("|", 1) for line in addresses.splitlines() if "|" in line)
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or _field(job_state, "Restarts") or 0)
    return {
        "job": job,
        "name": tenure_name(job, restarts),
        "nodes": nodes,
        "hosts": {node: hosts.get(node, node) for node in nodes},
        "ends_s": _ends_s(job_state),
        "began_s": time.time(),
    }


UNLIMITED = ("UNLIMITED", "365-00:00:00")
"""Time limits of a job without one: 22.05 has been seen to show it as a year."""


def _ends_s(job_state: str) -> Optional[float]:
    """Return when a job ends; None: it has no time limit."""
    return None if _field(job_state, "TimeLimit") in UNLIMITED else _time(_field(job_state, "EndTime"))


def _field(text: str, name: str) -> Optional[str]:
    found = re.search(r"(?:^|\s)%s=(\S+)" % name, text)
    return None if found is None or found.group(1) in ("(null)", "Unknown") else found.group(1)


def _time(text: Optional[str]) -> Optional[float]:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


class Holder:
    """Holds one allocation. `place` is the directory of the run's allocations."""

    def __init__(self, place: str, job: str) -> None:
        self._place = place
        self._allocation = described(job)
        self._directory = os.path.join(place, self._allocation["name"])
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        self._srun: Optional["subprocess.Popen[bytes]"] = None
        self._begun = 0
        """How many steps have been started."""
        self._stop_requested = False

    def run(self) -> int:
        """Hold the allocation until the run releases it, or nothing of it is left."""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm())
        self._start()
        self._write_allocation()
        try:
            return self._hold()
        finally:
            _write(os.path.join(self._directory, ENDED), "%f\n" % time.time())

    def _on_sigterm(self) -> None:
        self._stop_requested = True

    def _write_allocation(self) -> None:
        _write(os.path.join(self._directory, ALLOCATION), json.dumps(self._allocation))

    def _start(self) -> None:
        """Start a node server on each node, in one step: losing a task with its node does not end the others."""
        self._begun += 1
        nodes = self._allocation["nodes"]
        for name in _names_in(self._directory) & {"%s.json" % node for node in nodes}:
            with contextlib.suppress(OSError):  # of a killed one
                os.unlink(os.path.join(self._directory, name))
        log = os.path.join(self._directory, "node-%t.log")
        words = [
            "srun",
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--mpi=none",
            "--unbuffered",
        ]
        words += ["--nodes=%d" % len(nodes), "--ntasks=%d" % len(nodes), "--ntasks-per-node=1"]
        words += [
            "--nodelist=%s" % ",".join(nodes),
            "--output=%s" % log,
            "--error=%s" % log,
            "--open-mode=append",
        ]
        words += [
            sys.executable,
            "-I",
            "-S",
            PACKAGE_DIRECTORY,
            "node",
            os.path.join(self._place, CONFIG),
            self._directory,
        ]
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_STEP", "SRUN_"))
        }
        for name in (
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_CPU_BIND",
            "SLURM_DISTRIBUTION",
        ):
            kept.pop(name, None)
        with open(os.path.join(self._directory, "srun.log"), "ab") as said:
            self._srun = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=kept, start_new_session=True
            )

    def _hold(self) -> int:
        """Wait; the step outlives its srun once all node servers are there."""
        has_begun, alone_since = False, None  # type: bool, Optional[float]
        while not self._stop_requested and not os.path.exists(os.path.join(self._directory, RELEASED)):
            nodes = {"%s.json" % node for node in self._allocation["nodes"]}
            there = len(nodes & _names_in(self._directory))
            has_begun = has_begun or there > 0
            if there == len(nodes):
                self._detach_srun()
            srun_ended = self._srun is not None and self._srun.poll() is not None
            if srun_ended and there < len(nodes) and self._start_without():
                has_begun, alone_since = False, None
            elif there or not (has_begun or srun_ended):
                alone_since = None
            elif alone_since is None:
                alone_since = time.monotonic()
            elif time.monotonic() > alone_since + GONE_S:
                return 0 if has_begun else 1
            time.sleep(LOOK_S)
        return 0

    def _start_without(self) -> bool:
        """Start the step again without the nodes on which srun failed to start it, which has ended it on all others.

        Return whether there was such a node, and others are left.
        """
        if self._begun >= MOST_STEPS:
            return False
        try:
            with open(os.path.join(self._directory, "srun.log"), encoding="utf-8", errors="replace") as file:
                failed = not_launched(file.read())
        except OSError:
            return False
        nodes = [node for node in self._allocation["nodes"] if node not in failed]
        if len(nodes) in (0, len(self._allocation["nodes"])):
            return False
        sys.stderr.write("prefect-ft: begins again without %s\n" % ", ".join(sorted(failed)))
        self._allocation = {**self._allocation, "nodes": nodes}
        self._start()
        self._write_allocation()
        return True

    def _detach_srun(self) -> None:
        """End srun, after the process that would end the step when srun dies: the step then continues alone."""
        if self._srun is None:
            return
        for child in _children(self._srun.pid):
            with contextlib.suppress(OSError):
                held = Held(child)  # not reaped yet: its parent is still there
                held.send(signal.SIGKILL)
                held.close()
        self._srun.kill()
        self._srun.wait()
        self._srun = None


def not_launched(said: str) -> Set[str]:
    """Return the nodes on which a step could not be started, according to srun."""
    return set(re.findall(r"Task launch for StepId=\S+ failed on node (\S+?):", said))


def _names_in(directory: str) -> Set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()


def _children(pid: int) -> List[int]:
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    new = "%s.%d" % (path, os.getpid())
    with contextlib.suppress(OSError):  # a full disk, or a run whose directory was removed
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)


def main(argv: List[str]) -> int:
    """Hold the allocation that this process is in; `argv` is the directory of the run's allocations."""
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        sys.stderr.write("prefect-ft: no allocation of Slurm here: SLURM_JOB_ID is not set\n")
        return 2
    return Holder(argv[0], job).run()
