"""Every action of the ladder inside one allocation of a real Slurm: who is made anew, where, and by which rule."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from without_prefect import run_of_one_phase

from prefect_ft import JobConfig
from prefect_ft.backends.clearing import clear_directory
from prefect_ft.orchestrate.entering import Entered
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Live
from prefect_ft.orchestrate.run import held, resume_run
from prefect_ft.run import vacancy
from prefect_ft.run.ownership import recorded_runtime

pytestmark = pytest.mark.timeout(200)

SCRIPT = """
import os, signal, socket, time
from prefect_ft import report_fault

env = os.environ
attempt, worker = int(env["PREFECT_FT_ATTEMPT"]), int(env["PREFECT_FT_WORKER"])
counts = env["MA_SCHEDULE_CNT"] + "." + env["MA_PROC_START_CNT"]
print("told", env["PREFECT_FT_SYSTEM"], counts, env["PREFECT_FT_RESTART_REASON"] or "-", env.get("SLURM_PROCID", "-"))

def meet():
    "Wait until both workers have come so far."
    if worker == 0:
        return socket.create_server(("", int(env["MASTER_PORT"]))).accept()
    while True:
        try:
            return socket.create_connection((env["MASTER_ADDR"], int(env["MASTER_PORT"])))
        except ConnectionRefusedError:
            time.sleep(0.05)

def wait(): time.sleep(600)
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def fault(): report_fault(attempt, "E1", "critical"), wait()
"""

FIRST = {"w0 told n0 1.1 - -", "w1 told n1 1.1 - -"}
Told = set[str]


def job(directory: Path, code: str, *, spares: int = 1, **fields: Any) -> JobConfig:
    command = [sys.executable, "-S", "-u", "-c", SCRIPT + code]
    document = {
        "name": "nodes",
        "model_dir": "model",
        "stop_grace_s": 0,
        "lease_s": 2,
        "infrastructure": {
            "type": "slurm",
            "nodes": 2,
            "spares": spares,
            "python": sys.executable,
            "silence_timeout_s": 3,
            **fields.pop("infrastructure", {}),
        },
        "autorestart": {"max_num_restarts": 3, **fields.pop("autorestart", {})},
        "phases": [{"name": "train", "mode": "eval", "command": command}],
        **fields,
    }
    return JobConfig.model_validate(document).at(directory)


def said(directory: Path) -> list[str]:
    return [line for log in directory.glob("model/*/run.log") for line in log.read_text().splitlines()]


def told(directory: Path) -> list[Told]:
    """By attempt, what its workers were told."""
    lines = [line for line in said(directory) if "r0] told" in line or "r1] told" in line]
    attempts = sorted({int(line.split()[0][2:]) for line in lines})
    return [
        {f"{line.split()[1]} {line.split('] ')[1]}" for line in lines if line.startswith(f"[a{attempt} ")}
        for attempt in attempts
    ]


def decided(directory: Path) -> list[str]:
    lines = of_type(journals(directory / "model")["train"], "decision")
    return [f"{line['rule']}: {line['action']}" for line in lines]


CASES = [
    pytest.param(
        "if attempt == 1: meet(), crash() if worker else wait()",
        1,
        {},
        ["transient: restart_in_place", "completed: complete"],
        [FIRST, {"w0 told n0 1.2 transient -", "w1 told n1 1.2 transient -"}],
        id="in-place",
    ),
    pytest.param(
        "if attempt == 1: meet(), fault() if worker else wait()",
        1,
        {"max_worker_replacements": 1},
        ["fault-critical: replace_workers", "completed: complete"],
        [FIRST, {"w0 told n0 1.2 fault-critical -", "w1 told n2 2.1 fault-critical -"}],
        id="replacement",
    ),
    pytest.param(
        "if attempt == 1: meet(), crash() if worker else wait()",
        1,
        {"rebuild_only": True},
        ["transient: rebuild", "completed: complete"],
        [FIRST, {"w0 told n0 2.1 transient -", "w1 told n1 2.1 transient -"}],
        id="rebuild",
        marks=pytest.mark.long,
    ),
    pytest.param(
        "if attempt == 1: meet(), fault() if worker else wait()",
        1,
        {},
        ["fault-critical: isolate_and_rebuild", "completed: complete"],
        [FIRST, {"w0 told n0 2.1 fault-critical -", "w1 told n2 2.1 fault-critical -"}],
        id="isolation-with-spare",
    ),
    pytest.param(
        "if attempt == 1: meet(), fault() if worker else wait()",
        0,
        {},
        ["fault-critical: isolate_and_rebuild", "completed: complete"],
        [FIRST, {"w0 told n0 2.1 fault-critical -"}],
        id="shrink",
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize(("code", "spares", "policy", "decisions", "attempts"), CASES)
def test_who_is_made_anew(
    slurm_nodes: Any,
    tmp_path: Path,
    code: str,
    spares: int,
    policy: dict[str, Any],
    decisions: list[str],
    attempts: list[Told],
) -> None:
    """Ranks have no variables of a task; with the run its allocation has left the queue."""
    run_of_one_phase(job(tmp_path, code, spares=spares, autorestart=policy))
    assert decided(tmp_path) == decisions
    assert told(tmp_path) == attempts
    assert not has_jobs(slurm_nodes)


def has_jobs(slurm_nodes: Any) -> bool:
    deadline = time.monotonic() + 20
    while slurm_nodes.jobs():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


@contextmanager
def once_it_is_up(directory: Path, act: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread once both workers run, and wait for its end."""

    def run() -> None:
        until(lambda: told(directory) == [FIRST])
        act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def until(check: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param("n1", id="a-node"),
        pytest.param("n0", id="the-node-of-the-batch-script", marks=pytest.mark.long),
    ],
)
def test_a_lost_node_is_replaced_on_a_spare(slurm_nodes: Any, tmp_path: Path, node: str) -> None:
    """Long before Slurm calls it down (SlurmdTimeout is 300 s), and without a question to Slurm for a new step."""
    with once_it_is_up(tmp_path, lambda: slurm_nodes.lose(node)):
        began = time.monotonic()
        run_of_one_phase(job(tmp_path, "if attempt == 1: wait()"))
    assert time.monotonic() - began < 60
    first = of_type(journals(tmp_path / "model")["train"], "incident")[0]
    assert (first["kind"], first["evidence"]["rule"]) == ("system_lost", "node-lost")
    assert decided(tmp_path) == ["node-lost: isolate_and_rebuild", "completed: complete"]
    others = {"n1": {"n0", "n2"}, "n0": {"n1", "n2"}}[node]
    assert {line.split()[2] for line in told(tmp_path)[1]} == others


BEGIN = """
import sys
from pathlib import Path
from prefect_ft import JobConfig
from without_prefect import run_of_one_phase
run_of_one_phase(JobConfig.model_validate_json(Path(sys.argv[1]).read_text()))
"""


def test_another_orchestrator_goes_on_in_the_same_allocation(slurm_nodes: Any, tmp_path: Path) -> None:
    """The first one is killed; its ranks go on, and are not started again."""
    go = tmp_path / "go"
    code = f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
    given = job(tmp_path, code)
    (tmp_path / "job.json").write_text(given.model_dump_json(exclude_unset=True))
    paths = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(
            [sys.executable, "-c", BEGIN, str(tmp_path / "job.json")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: told(tmp_path) == [FIRST] or first.poll() is not None)
        assert first.poll() is None, (tmp_path / "first.log").read_text()
        jobs = slurm_nodes.jobs()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    holding = resume_run(vacancy(tmp_path / "model"))
    try:
        threading.Timer(2.0, go.touch).start()
        with held(holding, given) as (_, stop):
            summary = execute(Entered(given, holding), stop, Live())
    finally:
        clear_directory(recorded_runtime(holding.run))
    assert summary.status == "completed"
    assert told(tmp_path) == [FIRST]
    assert [state for state in jobs.values() if state != "PENDING"] == ["RUNNING"]  # a successor may wait
    assert [line["name"] for line in of_type(journals(tmp_path / "model")["train"], "tenure")] == [
        f"slurm-{name}" for name, state in jobs.items() if state == "RUNNING"
    ]
    assert not has_jobs(slurm_nodes)


def test_a_run_in_a_job_of_the_users_own_leaves_that_job_alone(slurm_nodes: Any, tmp_path: Path) -> None:
    code = "if attempt == 1: meet(), crash() if worker else wait()"
    given = job(tmp_path, code, infrastructure={"nodes": None, "spares": 1})
    (tmp_path / "job.json").write_text(given.model_dump_json(exclude_unset=True))
    paths = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    script = tmp_path / "own.sh"
    script.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={os.pathsep.join(paths)}\ncat > {tmp_path}/begin.py <<'E'\n{BEGIN}\nE\n"
        f"{sys.executable} {tmp_path}/begin.py {tmp_path}/job.json\necho ended $?\nsleep 600\n"
    )
    log = tmp_path / "own.log"
    slurm_nodes.run("sbatch", "--no-kill", "-N3", "-o", str(log), str(script))
    until(lambda: log.exists() and "ended" in log.read_text(), 120)
    assert "ended 0" in log.read_text(), log.read_text()
    assert decided(tmp_path) == ["transient: restart_in_place", "completed: complete"]
    assert told(tmp_path)[0] == FIRST
    until(lambda: list(slurm_nodes.jobs().values()) == ["RUNNING"])  # its successor has left the queue
