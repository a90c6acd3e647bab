"""What becomes of memory that was used up, of an engine that dies, of one container among several."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from engine import IMAGE, Engine, engine, tls_of

from prefect_ft import JobConfig, train_flow
from prefect_ft.backends.docker.engine import connect
from prefect_ft.journal.lines import Line
from prefect_ft.observe import AttemptStarted, Fact, observed_by

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os, sys, time
from prefect_ft import heartbeat
attempt, worker = int(os.environ["PREFECT_FT_ATTEMPT"]), int(os.environ["PREFECT_FT_WORKER"])
print("on", os.environ["PREFECT_FT_SYSTEM"], os.environ["MA_SCHEDULE_CNT"], os.environ["MA_PROC_START_CNT"])
"""

MakeJob = Callable[..., JobConfig]


@pytest.fixture
def job(docker_engine: str, tmp_path: Path) -> MakeJob:
    def make(code: str, *, autorestart: dict[str, Any] | None = None, **fields: Any) -> JobConfig:
        pool = {"type": "docker", "image": IMAGE, "engine": docker_engine, "systems": ["s0"]}
        phase = {
            "name": "train", "mode": "eval", "command": ["python", "-S", "-u", "-c", SCRIPT + code],
        }  # fmt: skip
        document = {
            "name": "facts",
            "model_dir": "model",
            "stop_grace_s": 0,
            "infrastructure": {**pool, **fields},
            "autorestart": {"max_num_restarts": 3, **(autorestart or {})},
            "phases": [phase],
        }
        return JobConfig.model_validate(document).at(tmp_path)

    return make


def told(tmp_path: Path, kind: str) -> list[Line]:
    return of_type(journals(tmp_path / "model")["train"], kind)


def test_memory_that_was_used_up_is_the_hosts(prefect_server: None, job: MakeJob, tmp_path: Path) -> None:
    use = "x = b'x' * (256 << 20) if attempt == 1 else None"
    limits = {"resources": {"memory": "64m"}, "create": {"HostConfig": {"MemorySwap": 64 << 20}}}
    train_flow(job(use, **limits))
    first = told(tmp_path, "incident")[0]
    assert (first["kind"], first["signal"], first["class"]) == ("exit", 9, "oom_host")
    assert first["evidence"]["rule"] == "container-oom"
    assert told(tmp_path, "decision")[0]["action"] == "restart_in_place"


def test_a_rank_that_is_killed_has_not_run_out_of_memory(
    prefect_server: None, job: MakeJob, tmp_path: Path
) -> None:
    train_flow(job("os.kill(os.getpid(), 9) if attempt == 1 else None"))
    assert told(tmp_path, "incident")[0]["class"] == "unknown"


@pytest.mark.parametrize("way", ["socket", pytest.param("tls", marks=pytest.mark.long)])
def test_an_engine_that_dies_with_its_containers_is_a_lost_system(
    prefect_server: None, job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with engine(tls_at="127.0.0.1" if way == "tls" else None) as second:
        second.make_image()
        url = second.url
        if way == "tls":
            url, certificates = tls_of(second.url)
            monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
        systems = [{"name": "s1", "engine": url}, "spare"]
        wait = "time.sleep(60) if attempt == 1 else None"

        def crash(fact: Fact) -> None:
            if isinstance(fact, AttemptStarted) and fact.attempt == 1:
                die(second)

        with observed_by(crash):
            train_flow(job(wait, systems=systems))
    first = told(tmp_path, "incident")[0]
    assert (first["kind"], first["worker"]) == ("system_lost", 0)
    assert first["evidence"]["text"].startswith(f"no Docker engine answers at {url}")
    decision = told(tmp_path, "decision")[0]
    assert (decision["rule"], decision["isolate"], decision["placement"]) == (
        "node-lost",
        ["s1"],
        {"0": "spare"},
    )


def die(engine: Engine) -> None:
    """End an engine and then what ran on it, as a machine does."""
    with closing(connect(engine.url)) as client:
        pids = [client.inspect_container(each["Id"])["State"]["Pid"] for each in client.containers()]
    engine.kill()
    for pid in pids:
        os.kill(pid, 9)


def test_one_container_of_several_is_replaced(prefect_server: None, job: MakeJob, tmp_path: Path) -> None:
    fault = """
from prefect_ft import report_fault
if attempt == 1:
    if worker == 1: report_fault("npu0", "A1", "critical")
    time.sleep(60)
"""
    train_flow(
        job(
            fault,
            systems=["s0", "s1", "s2"],
            workers=2,
            autorestart={"max_worker_replacements": 1},
        )
    )
    decision = told(tmp_path, "decision")[0]
    assert (decision["action"], decision["recreate"], decision["isolate"]) == ("replace_workers", [1], ["s1"])
    attempts = told(tmp_path, "attempt")
    assert [attempt["placement"] for attempt in attempts] == [["s0", "s1"], ["s0", "s2"]]
    assert [attempt["start_counts"] for attempt in attempts] == [[[1, 1], [1, 1]], [[1, 2], [2, 1]]]
