"""Whatever a rank starts and however it hides, a walk finds it and SIGKILL ends it; nobody else is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agents import Gate, wait_until_ended

from prefect_ft.worker import processes

ROOT = Path(processes.__file__).parents[2]

# A subreaper of its own: what it ends must not be the test run's children.
REAPER = f"""
import json, os, resource, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from prefect_ft.worker import processes
processes.become_subreaper()
def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError:
        pass
def start(*words):
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
def wait_for(mark):
    while not os.path.exists(mark): time.sleep(0.001)
"""


def run(code: str, cwd: Path) -> dict:
    """Run a subreaper and return what it prints as JSON."""
    result = subprocess.run(
        [sys.executable, "-c", REAPER + code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stderr == ""
    return json.loads(result.stdout)


HIDING = {
    "child": "sleep 1000 & echo $! > pid",
    "own-session": "setsid --fork sh -c 'echo $$ > pid; exec sleep 1000' & wait",
    "double-fork": "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &) &",
    "ignores-sigterm": "trap '' TERM HUP INT; sleep 1000 & echo $! > pid; wait",
    "stopped": "sleep 1000 & echo $! > pid; kill -STOP $!",
    "stopped-itself": "echo $$ > pid; kill -STOP $$",
    "three-deep": "sh -c 'sh -c \"echo \\$\\$ > pid; sleep 1000\" & wait' & wait",
    "closed-everything": "sh -c 'echo $$ > pid; exec sleep 1000 0>&- 1>&- 2>&-' &",
    "empty-environment": "env -i sh -c 'echo $$ > pid; exec sleep 1000' &",
}


@pytest.mark.parametrize("how", HIDING.values(), ids=HIDING)
def test_no_descendant_survives(how: str, tmp_path: Path) -> None:
    told = run(
        f"""
start("sh", "-c", {how!r})
wait_for("pid")
while not (pid := open("pid").read().strip()): pass
left = processes.end_descendants(reap, 20)
below = processes.descendants(os.getpid())
print(json.dumps({{"left": left, "alive": os.path.exists("/proc/" + pid), "below": below}}))
""",
        tmp_path,
    )
    assert told == {"left": [], "alive": False, "below": []}


def test_processes_that_start_others_as_fast_as_they_can_are_ended(tmp_path: Path) -> None:
    told = run(
        """
start("sh", "-c", "while :; do setsid sleep 1000 & : > up; done")
wait_for("up")
print(json.dumps({"left": processes.end_descendants(reap, 20)}))
""",
        tmp_path,
    )
    assert told == {"left": []}


def test_the_kill_needs_next_to_no_descriptors(tmp_path: Path) -> None:
    told = run(
        """
for _ in range(30): start("sleep", "1000")
here = len(os.listdir("/proc/self/fd"))
limit = here - 1 + processes.SPARE_DESCRIPTORS  # listing takes one itself
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
print(json.dumps({"left": processes.end_descendants(reap, 20)}))
""",
        tmp_path,
    )
    assert told == {"left": []}


def test_who_cannot_be_ended_is_named_after_the_time(tmp_path: Path) -> None:
    """A zombie whose end nobody collects stands for a process that SIGKILL does not end."""
    told = run(
        """
zombie = start("true")
spent = time.process_time()
left = processes.end_descendants(lambda: None, 0.2)
cpu_s = time.process_time() - spent
print(json.dumps({"left": left, "zombie": zombie.pid, "cpu_s": cpu_s}))
""",
        tmp_path,
    )
    assert told["left"] == [told["zombie"]]
    assert told["cpu_s"] < 0.15


def test_both_ways_to_find_children_find_the_same(tmp_path: Path) -> None:
    """Parents come before their children; a kernel that does not list children is read by a scan."""
    gate = Gate(tmp_path / "up")
    tree = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & sh -c 'sleep 1000 & echo $! > up; wait' & wait"],
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        deepest = int(gate.wait())
        found = processes.descendants(tree.pid)
        by_scan = processes._children_by_scan()
        assert (len(found), found[-1]) == (3, deepest)
        assert sorted(by_scan(tree.pid)) == sorted(found[:2])
        assert processes.parent(deepest) in found[:2]
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        tree.wait()
        wait_until_ended(deepest)


def test_a_pid_that_is_somebody_elses_by_now_is_spared() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        processes.kill_and_wait([process.pid], lambda pid: False, timeout_s=1.0)
        assert process.poll() is None
        processes.kill_and_wait([process.pid], lambda pid: pid == process.pid, timeout_s=20.0)
        assert process.wait(timeout=20) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_has_no_parent_and_no_children() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.parent(process.pid) is None
    assert processes.descendants(process.pid) == []
    processes.kill_and_wait([process.pid], lambda pid: True, timeout_s=1.0)
