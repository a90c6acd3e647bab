"""Samples say what the ranks' processes do, cost next to nothing, and wait for whoever comes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import MakeWorker
from agents import AgentClient, Gate, script, wait_until_ended
from torches import cuda, torch

from prefect_ft.worker import sampling
from prefect_ft.worker.devices import DeviceMeter, usage
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.meters import ForestMeter, TreeMeter
from prefect_ft.worker.reporter import Reporter
from prefect_ft.worker.sampling import Sampling

__all__ = ["cuda", "torch"]

PERIOD_S = 0.02


@pytest.fixture
def client(make_worker: MakeWorker) -> AgentClient:
    """Attached to an agent that samples often."""
    return make_worker(sample_period_s=PERIOD_S).attached()


def until(client: AgentClient, holds: Callable[[dict[str, Any]], bool], rank: str = "0") -> dict[str, Any]:
    """Wait for a sample of a rank of which something holds."""
    while True:
        told = client.expect("sample")["ranks"][rank]
        if holds(told):
            return told


def test_a_rank_that_reads_is_told_from_one_that_does_not(client: AgentClient, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    client.start(
        script(f"print('up'); open({str(gate.path)!r}).read(); print('on'); import signal; signal.pause()")
    )
    client.expect_printed("up")
    quiet = until(client, lambda told: told["output"] == 3)
    still = [client.expect("sample")["ranks"]["0"] for _ in range(3)][-1]
    assert (still["io"], still["output"]) == (quiet["io"], quiet["output"])
    gate.open()
    moved = until(client, lambda told: told["output"] == 6)
    assert moved["io"] > still["io"]


def test_a_childs_work_is_its_ranks(client: AgentClient) -> None:
    client.start(["sh", "-c", "sh -c 'while :; do :; done' & wait"])
    assert until(client, lambda told: told["cpu_s"] > 0.1)["state"] == "S"


def test_an_orphans_work_is_that_of_the_rank_whose_session_it_is_in(client: AgentClient) -> None:
    client.start(["sh", "-c", "(sh -c 'while :; do :; done' &) ; sleep 1000"])
    until(client, lambda told: told["cpu_s"] > 0.1)


def test_a_stopped_rank_is_told_by_its_state(client: AgentClient) -> None:
    pid = client.start(["sleep", "1000"])["pids"]["0"]
    os.kill(pid, signal.SIGSTOP)
    until(client, lambda told: told["state"] == "T")


def test_heartbeats_are_in_the_samples(client: AgentClient) -> None:
    beat = "from prefect_ft.heartbeat import beat; beat(7, 'validate'); import signal; signal.pause()"
    client.start(script(beat))
    told = until(client, lambda told: told["beats"] == 1)
    assert (told["step"], told["stage"]) == (7, "validate")
    assert -30 < told["beat_s"] < 30


def test_a_rank_that_has_exited_is_over_and_the_last_one_ends_the_samples(client: AgentClient) -> None:
    pids = client.start(["sh", "-c", 'test "$RANK" = 1 || exec sleep 1000'], ranks=2)["pids"]
    until(client, lambda told: told["over"], "1")
    os.kill(pids["0"], signal.SIGKILL)
    until(client, lambda told: told["over"])
    assert client.says_nothing(5 * PERIOD_S)


def test_who_comes_is_told_what_was_sampled_while_nobody_was_there(make_worker: MakeWorker) -> None:
    agent = make_worker(sample_period_s=PERIOD_S)
    client = agent.attached()
    client.start(["sleep", "1000"])
    first = client.expect("sample")
    client.close()
    after = agent.attached()
    told = [after.expect("sample") for _ in range(2)]
    while told[-1]["past"]:
        told.append(after.expect("sample"))
    times = [each["watched_s"] for each in told]
    assert times == sorted(times)
    assert times[0] <= first["watched_s"] < times[-1]
    assert [each["past"] for each in told[:-1]] == [True] * (len(told) - 1)


def test_samples_come_more_often_when_that_is_wanted(make_worker: MakeWorker) -> None:
    client = make_worker(sample_period_s=3600).attached()
    client.start(["sleep", "1000"])
    client.say("watch", token=client.token(1), period_s=PERIOD_S)
    client.expect("sample", past=True)
    client.expect("sample", past=False)


def test_devices_are_asked_by_the_users_command(make_worker: MakeWorker) -> None:
    command = (sys.executable, "-c", 'print(\'{"0": 87, "1": 2.5}\')')
    client = make_worker(sample_period_s=PERIOD_S, device_command=command).attached()
    client.start(["sleep", "1000"])
    while client.expect("sample")["devices"] != {"0": 87.0, "1": 2.5}:
        pass


@pytest.mark.parametrize("told", [[], {"0": "87"}, {"0": True}, {"0": float("nan")}, 3])
def test_what_is_no_object_of_numbers_says_nothing_of_devices(told: object) -> None:
    with pytest.raises(ValueError, match="no object from device to percent"):
        usage(told)


@pytest.mark.parametrize("words", [["false"], ["/no/such/command"], ["echo", "idle"]])
def test_a_command_that_fails_says_nothing_and_hurts_nobody(words: list[str]) -> None:
    meter = DeviceMeter(words)
    meter.latest = {"0": 1.0}
    meter.ask()
    deadline = time.monotonic() + 30
    while meter.latest is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Heard:
    """A peer that only listens."""

    congested = False

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.samples.append(json.loads(json.dumps(message)))


def clocked(monkeypatch: pytest.MonkeyPatch, *steps_s: float) -> list[float]:
    """Sample with a clock that goes on by these steps; how long was watched at each sample."""
    times = itertools.accumulate(steps_s, initial=100.0)
    reporter, heard = Reporter(), Heard()
    reporter.peer = heard  # type: ignore[assignment]
    sampler = Sampling(10.0, lambda: DeviceMeter(None), None, Loop(), reporter)
    now = next(times)
    monkeypatch.setattr(sampling.time, "monotonic", lambda: now)
    sampler.begin([])
    for now in times:  # noqa: B007  (the clock reads it)
        sampler._sample()
    sampler.end()
    return [each["watched_s"] for each in heard.samples[1:]]


@pytest.mark.parametrize(
    ("steps_s", "watched_s"),
    [
        pytest.param((10, 10, 10), [10, 20, 30], id="in-time"),
        pytest.param((10, 13, 10), [10, 23, 33], id="late"),
        pytest.param((10, 3600, 10), [10, 30, 40], id="stood-still"),
    ],
)
def test_what_was_not_watched_does_not_count(
    steps_s: tuple[float, ...], watched_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert clocked(monkeypatch, *steps_s) == watched_s


def test_what_is_kept_is_bounded_and_reaches_back_to_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, heard = Reporter(), Heard()
    sampler = Sampling(10.0, lambda: DeviceMeter(None), None, Loop(), reporter)
    now = 0.0
    monkeypatch.setattr(sampling.time, "monotonic", lambda: now)
    sampler.begin([])
    for number in range(1, 3000):
        now = 10.0 * number
        sampler._sample()
    reporter.peer = heard  # type: ignore[assignment]
    sampler.send_all()
    sampler.end()
    times = [each["watched_s"] for each in heard.samples]
    assert len(times) <= sampling.KEPT
    assert times == sorted(times)
    assert (times[0] < 30, times[-1]) == (True, 29990.0)


def test_a_process_that_is_gone_is_no_error() -> None:
    tree = TreeMeter(2**22)
    tree.follow([2**22 + 1])
    assert tree.read() is None
    tree.close()


def test_of_many_processes_the_first_are_followed(tmp_path: Path) -> None:
    others = [subprocess.Popen(["sleep", "1000"]) for _ in range(4)]
    tree, before = TreeMeter(os.getpid()), len(os.listdir("/proc/self/fd"))
    try:
        tree.follow([other.pid for other in others], most=3)
        assert len(os.listdir("/proc/self/fd")) == before + 3 * 3
        assert tree.read() is not None
    finally:
        tree.close()
        for other in others:
            other.kill()
            other.wait()


def test_descriptors_are_closed(tmp_path: Path) -> None:
    ranks = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    before = len(os.listdir("/proc/self/fd"))
    forest = ForestMeter({number: rank.pid for number, rank in enumerate(ranks)})
    assert set(forest.read()) == {0, 1, 2}
    for rank in ranks:
        rank.kill()
        wait_until_ended(rank.pid)
        rank.wait()
    forest.read()
    forest.close()
    assert len(os.listdir("/proc/self/fd")) == before


NVML = """
typedef struct { unsigned gpu, memory; } rates;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(0x7f0000000000 + index);
    return index == 3 ? 15 : 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, rates *told) {
    told->gpu = 10 * ((unsigned long)handle - 0x7f0000000000);
    told->memory = 99;
    return 0;
}
"""
READ = """
import time
from prefect_ft.worker.devices import DeviceMeter
meter = DeviceMeter(None)
meter.ask()
while meter.latest is None: time.sleep(0.001)
print(meter.latest)
"""


@pytest.mark.parametrize(
    ("visible", "used"),
    [
        pytest.param(None, {"0": 0.0, "1": 10.0, "2": 20.0}, id="all-that-answer"),
        pytest.param("2,1", {"2": 20.0, "1": 10.0}, id="those-that-ranks-see"),
        pytest.param("GPU-8932f937", {"0": 0.0, "1": 10.0, "2": 20.0}, id="ids-that-it-does-not-tell"),
    ],
)
def test_nvidias_library_is_asked_where_there_is_one(
    visible: str | None, used: dict[str, float], tmp_path: Path
) -> None:
    """Against a library of its form, with more devices than one machine of the tests' has."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    told = subprocess.run([sys.executable, "-c", READ], env=env, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(used)


BUSY = """
import json, subprocess, sys, time
from prefect_ft.worker.devices import DeviceMeter
load = "import torch; a = torch.ones(8192, 8192, device='cuda')\nwhile True: (a @ a).sum().item()"
busy = subprocess.Popen([sys.argv[1], "-c", load])
meter = DeviceMeter(None)
while not meter.latest or not meter.latest["0"]:
    assert busy.poll() is None
    meter.ask()
    time.sleep(0.05)
busy.kill()
print(json.dumps(meter.latest))
"""


def test_a_device_that_computes_is_seen_computing(cuda: str) -> None:
    told = subprocess.run([sys.executable, "-c", BUSY, cuda], capture_output=True, text=True, check=True)
    assert 0 < json.loads(told.stdout)["0"] <= 100
