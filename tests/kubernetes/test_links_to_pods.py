"""What leads to pods breaks: the API away, a node cut; training goes on, or ends where nobody could stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from kube import Target
from without_prefect import run_of_one_phase

from prefect_ft import JobConfig

pytestmark = pytest.mark.timeout(400)

AWAY_S = 30.0
"""How long the API is away: thrice the time after which this cluster gives up on its nodes."""

SETTLE_S = 15.0
"""How long it is watched that nothing is done about it afterwards."""

STEPS = """
import os, time
def wait(name):
    while not os.path.exists("/shared/" + name): time.sleep(0.05)
attempt = os.environ["PREFECT_FT_ATTEMPT"]
print("up", os.environ["PREFECT_FT_SYSTEM"], os.environ["MA_PROC_START_CNT"])
if attempt == "1":
    wait("crash")
    raise ConnectionError("reset")
wait("end")
"""

TRAINS_ON = """
import os, time
print("up", os.environ["PREFECT_FT_SYSTEM"])
if os.environ["PREFECT_FT_ATTEMPT"] == "1": time.sleep(600)
"""


@pytest.fixture
def own(target: Target) -> Target:
    if target.own is None:
        pytest.skip("needs a cluster of the tests' own: the one that was given is not cut")
    return target


def job(directory: Path, target: Target, script: str, **fields: Any) -> JobConfig:
    (directory / "shared").mkdir()
    volumes = [{"path": "/shared", "host_path": str(directory / "shared")}]
    document = {
        "name": "links",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": target.infrastructure(workers=2, volumes=volumes, **fields),
        "autorestart": {"max_num_restarts": 3},
        "phases": [{"name": "train", "mode": "eval", "command": ["python", "-S", "-u", "-c", script]}],
    }
    return JobConfig.model_validate(document).at(directory)


def said(directory: Path) -> set[str]:
    return {line for log in directory.glob("model/*/run.log") for line in log.read_text().splitlines()}


@contextmanager
def meanwhile(call: Callable[[], None]) -> Iterator[None]:
    """Do something beside a run; what goes wrong with it goes wrong here."""
    errors: list[BaseException] = []

    def safely() -> None:
        try:
            call()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=safely)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors == []


@pytest.mark.long  # a minute and a half
def test_the_api_may_be_away(own: Target, tmp_path: Path) -> None:
    """Nothing is restarted for it; what crashes starts again in its pod, without the API where it is not needed."""
    direct, by_api = tmp_path / "direct", tmp_path / "api"

    def up(attempt: int) -> set[str]:
        return {f"[a{attempt} w{worker} r{worker}] up s{worker} {attempt}" for worker in (0, 1)}

    def course() -> None:
        try:
            own.until(lambda: up(1) <= said(direct) & said(by_api))
            with own.api_away():
                began = time.monotonic()
                (direct / "shared" / "crash").touch()
                own.until(lambda: up(2) <= said(direct))
                time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
            time.sleep(SETTLE_S)
        finally:
            for name in ("crash", "end"):
                for directory in (direct, by_api):
                    (directory / "shared" / name).touch()

    for directory in (direct, by_api):
        directory.mkdir()
    jobs = [job(directory, own, STEPS, reach=directory.name) for directory in (direct, by_api)]
    with meanwhile(course), ThreadPoolExecutor(len(jobs)) as pool:
        summaries = list(pool.map(run_of_one_phase, jobs))
    for directory, summary in zip((direct, by_api), summaries, strict=True):
        lines = journals(directory / "model")["train"]
        assert [line["action"] for line in of_type(lines, "decision")] == ["restart_in_place", "complete"]
        assert [len(of_type(lines, kind)) for kind in ("attempt", "comeback")] == [2, 0]
        assert (summary.status, up(2) <= said(directory)) == ("completed", True)


def test_a_cut_node_is_known_by_its_silence_and_ends_its_ranks_itself(own: Target, tmp_path: Path) -> None:
    def ranks_of(system: str) -> list[int]:
        mark = f"PREFECT_FT_SYSTEM={system}\0".encode()
        run = str(tmp_path).encode()
        pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [pid for pid in pids if mark in (environ := environment(pid)) and run in environ]

    def cut() -> None:
        own.until(lambda: {"[a1 w0 r0] up s0", "[a1 w1 r1] up s1"} <= said(tmp_path))
        assert len(ranks_of("s1")) == 1
        own.cut("s1")

    times = {"silence_timeout_s": 2, "partition_timeout_s": 5}
    settings = job(tmp_path, own, TRAINS_ON, systems=["s0", "s1", "s2"], env={"MARK": str(tmp_path)}, **times)
    try:
        with meanwhile(cut):
            summary = run_of_one_phase(settings)
        own.until(lambda: ranks_of("s1") == [])
    finally:
        own.join("s1")
    lines = journals(tmp_path / "model")["train"]
    (incident, _) = of_type(lines, "incident")
    found = incident["kind"], incident["worker"], incident["evidence"]["rule"]
    assert (summary.status, found) == ("completed", ("system_lost", 1, "node-lost"))
    assert incident["evidence"]["text"].startswith("nothing answers at 10.244.")
    assert of_type(lines, "decision")[0]["placement"] == {"0": "s0", "1": "s2"}
    since, until = incident["fences"][0]
    assert until - since == pytest.approx(2 + 5 + 10, abs=0.1)


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
