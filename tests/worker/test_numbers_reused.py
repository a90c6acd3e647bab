"""No signal reaches a process that has got the number of one that died: every one that is signalled is held."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from reused import ROOT, run_with_chosen_numbers

WARM = """
from prefect_ft.worker import processes
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.warm import WarmStart

loop = Loop()
warm = WarmStart(os.getcwd(), {'modules': ['json'], 'memory_mb': 1024}, loop, lambda **fields: None)
command = [sys.executable, '-c', 'pass']
env = dict(os.environ)

def die_unseen(held):
    'Have a process die and be collected, as the tick does, before anything else is heard of it.'
    handle = os.pidfd_open(held.pid)
    os.kill(held.pid, signal.SIGKILL)
    select.select([handle], [], [])
    os.close(handle)
    processes.reap()

warm.started(command, os.getcwd(), env, 1)
while not warm._parked:
    loop.step()
"""


def test_the_number_of_a_parked_rank_that_died_is_not_killed(tmp_path: Path) -> None:
    told = run_with_chosen_numbers(
        WARM
        + """
parked = warm._parked[0]
die_unseen(parked)
other = stranger(parked.pid)
warm.close()
print(json.dumps({'killed': was_killed(other)}))
""",
        tmp_path,
    )
    assert told == {"killed": False}


def test_the_number_of_a_zygote_that_died_is_not_killed(tmp_path: Path) -> None:
    told = run_with_chosen_numbers(
        WARM
        + """
die_unseen(warm._zygote)
other = stranger(warm._zygote.pid)
warm.close()
print(json.dumps({'killed': was_killed(other)}))
""",
        tmp_path,
    )
    assert told == {"killed": False}


def test_a_process_with_the_number_of_a_parked_rank_is_not_spared_as_one(tmp_path: Path) -> None:
    told = run_with_chosen_numbers(
        WARM
        + """
parked, zygote = warm._parked[0], warm._zygote
spared = sorted({parked.pid, zygote.pid} & set(warm.spared))
die_unseen(parked)
ranks = stranger(parked.pid)
left = [ranks.pid in warm.spared, zygote.pid in warm.spared]
was_killed(ranks)
print(json.dumps({'spared': len(spared), 'left': left}))
warm.close()
""",
        tmp_path,
    )
    assert told == {"spared": 2, "left": [False, True]}


def test_a_stranger_with_the_number_of_what_a_rank_forked_is_not_asked_for_its_stacks(tmp_path: Path) -> None:
    told = run_with_chosen_numbers(
        """
from prefect_ft import heartbeat
from prefect_ft.worker import diagnosis, processes
from prefect_ft.worker.loop import Loop

class Rank:
    number, exit, beat_path = 0, None, os.path.join(os.getcwd(), 'beat')

forks = '''
import os, signal, sys
signal.signal(%d, lambda *_: None)
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
os.wait()
while True:
    signal.pause()
''' % heartbeat.STACKS_SIGNAL
rank = Rank()
rank.process = subprocess.Popen([sys.executable, '-c', forks], stdout=subprocess.PIPE, text=True)
forked = int(rank.process.stdout.readline())
loop, found = Loop(), []
look = diagnosis.Diagnosis([rank], 5.0, loop, found.append)
os.kill(forked, signal.SIGKILL)  # the rank has been asked and does not answer; what it forked comes next
while processes.descendants(rank.process.pid):
    time.sleep(0.001)
tick, first = 1 / os.sysconf('SC_CLK_TCK'), time.clock_gettime(time.CLOCK_BOOTTIME)
while time.clock_gettime(time.CLOCK_BOOTTIME) < first + 2 * tick:  # by which the kernel tells the two apart
    time.sleep(tick)
hears = '''
import signal
signal.signal(%d, lambda *_: print('asked', flush=True))
print('up', flush=True)
while True:
    signal.pause()
''' % heartbeat.STACKS_SIGNAL
other = started_as(forked, sys.executable, '-c', hears)
assert other.stdout.readline() == b'up\\n'
while not found:
    loop.step()
rank.process.kill()
other.kill()
print(json.dumps({'heard': other.stdout.read().decode(), 'looked at': forked in map(int, found[0][0]['stacks'])}))
""",
        tmp_path,
    )
    assert told == {"heard": "", "looked at": False}


def test_a_stranger_with_the_number_of_a_rank_is_not_killed_by_the_ranks_killer(tmp_path: Path) -> None:
    told = run_with_chosen_numbers(
        """
import mmap
from prefect_ft.inprocess import killer

page = os.memfd_create('deadline')
os.ftruncate(page, mmap.PAGESIZE)
memoryview(mmap.mmap(page, mmap.PAGESIZE)).cast('q')[0] = 1  # long since
words = [sys.executable, '-c', killer._START, killer._ROOT, str(page)]
rank = subprocess.Popen(['true'], stdout=subprocess.DEVNULL)  # the rank ends before its killer looks for it
rank.wait()
other = stranger(rank.pid)
begun = subprocess.run([*words, str(rank.pid)], pass_fds=[page])
print(json.dumps({'killed': was_killed(other)}))
""",
        tmp_path,
    )
    assert told == {"killed": False}


OWNERS = {
    "prefect_ft/worker/processes.py": {"os.killpg", "signal.pidfd_send_signal"},
    "prefect_ft/prefect_edge/embedded/__main__.py": {"os.kill"},  # itself
    "prefect_ft/compat/nvrx/inject_fault.py": {"os.kill"},  # itself
    "prefect_ft/backends/docker/transport.py": {"Popen.kill"},  # its own child, which nothing else collects
}
"""The modules that send signals, and how."""


def _sent(path: Path) -> set[str]:
    """How a module signals processes."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = [(ast.unparse(call.value), call.attr) for call in calls if isinstance(call, ast.Attribute)]
    plain = {f"{owner}.{name}" for owner, name in names}
    sent = plain & {"os.kill", "os.killpg", "signal.pidfd_send_signal"}
    by_popen = {
        f"Popen.{name}"
        for owner, name in names
        if name in ("kill", "send_signal", "terminate") and "process" in owner
    }
    return sent | by_popen


def test_signals_are_sent_by_what_holds_the_process() -> None:
    found = {
        str(path.relative_to(ROOT)): sent
        for path in sorted((ROOT / "prefect_ft").rglob("*.py"))
        if (sent := _sent(path))
    }
    assert found == OWNERS


@pytest.mark.parametrize("line", ["os.kill(1, 9)", "self._process.terminate()", "process.send_signal(9)"])
def test_a_signal_to_a_number_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    assert _sent(tmp_path / "module.py")
