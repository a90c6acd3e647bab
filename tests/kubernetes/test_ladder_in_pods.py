"""Every action of the ladder on pods, and what happens to pods: who is made anew, where, and by which rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from eventual import eventually
from kube import LABEL, Target
from without_prefect import run_of_one_phase

from prefect_ft import JobConfig

pytestmark = pytest.mark.timeout(200)

SCRIPT = """
import os, signal, socket, sys, time
from prefect_ft import heartbeat, report_fault

env = os.environ
attempt, worker = int(env["PREFECT_FT_ATTEMPT"]), int(env["PREFECT_FT_WORKER"])
counts = env["MA_SCHEDULE_CNT"] + "." + env["MA_PROC_START_CNT"]
resume = os.path.basename(env["PREFECT_FT_RESUME_FROM"]) or "-"
print("told", env["PREFECT_FT_SYSTEM"], counts, env["PREFECT_FT_RESTART_REASON"] or "-", resume)

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

POOL = ["s0", "s1", "s2"]
FULL = ["s0", "s1"]
FIRST = {"w0 told s0 1.1 - -", "w1 told s1 1.1 - -"}

Told = set[str]
"""What the workers of an attempt were told: system, how often made and begun, rule, checkpoint."""


def job(directory: Path, target: Target, code: str, systems: list[str], **fields: Any) -> JobConfig:
    phase = {"name": "train", "mode": "eval", "command": ["python", "-S", "-u", "-c", SCRIPT + code]}
    document = {
        "name": "pods",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": {
            **target.infrastructure(workers=2, systems=systems),
            **fields.pop("infrastructure", {}),
        },
        "autorestart": {"max_num_restarts": 3, **fields.pop("autorestart", {})},
        "phases": [{**phase, **fields.pop("phase", {})}],
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
        POOL,
        {},
        ["transient: restart_in_place", "completed: complete"],
        [FIRST, {"w0 told s0 1.2 transient -", "w1 told s1 1.2 transient -"}],
        id="in-place",
    ),
    pytest.param(
        "if attempt == 1: meet(), fault() if worker else wait()",
        POOL,
        {"max_worker_replacements": 1},
        ["fault-critical: replace_workers", "completed: complete"],
        [FIRST, {"w0 told s0 1.2 fault-critical -", "w1 told s2 2.1 fault-critical -"}],
        id="replacement",
    ),
    pytest.param(
        "if attempt == 1: meet(), crash() if worker else wait()",
        POOL,
        {"rebuild_only": True},
        ["transient: rebuild", "completed: complete"],
        [FIRST, {"w0 told s0 2.1 transient -", "w1 told s1 2.1 transient -"}],
        id="rebuild",
        marks=pytest.mark.long,
    ),
    pytest.param(
        "if attempt == 1: meet(), fault() if worker else wait()",
        POOL,
        {},
        ["fault-critical: isolate_and_rebuild", "completed: complete"],
        [FIRST, {"w0 told s0 2.1 fault-critical -", "w1 told s2 2.1 fault-critical -"}],
        id="isolation-with-spare",
    ),
    pytest.param(
        "if attempt == 1: meet(), fault() if worker else wait()\nif attempt == 2: crash()",
        FULL,
        {"isolation_ttl_s": 0.01, "rebuild_only": True},
        ["fault-critical: isolate_and_rebuild", "transient: rebuild", "completed: complete"],
        [
            FIRST,
            {"w0 told s0 2.1 fault-critical -"},
            {"w0 told s0 3.1 transient -", "w1 told s1 2.1 transient -"},
        ],
        id="shrink-and-growing-back",
        marks=pytest.mark.long,
    ),
    pytest.param(
        "meet(), fault() if worker else wait()",
        FULL,
        {"min_num_systems": 2},
        ["min-systems: fail"],
        [FIRST],
        id="too-few-systems",
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize(("code", "systems", "policy", "decisions", "attempts"), CASES)
def test_who_is_made_anew(
    target: Target,
    tmp_path: Path,
    code: str,
    systems: list[str],
    policy: dict[str, Any],
    decisions: list[str],
    attempts: list[Told],
) -> None:
    run_of_one_phase(job(tmp_path, target, code, systems, autorestart=policy))
    assert decided(tmp_path) == decisions
    assert told(tmp_path) == attempts


# -- what happens to pods ---------------------------------------------------------------------------

UNTIL_IT_IS_OVER = "if attempt == 1: wait()"


@contextmanager
def once_it_is_up(directory: Path, target: Target, act: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread once both workers run, and wait for its end."""

    def run() -> None:
        target.until(lambda: told(directory) == [FIRST])
        act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def evidence(directory: Path, *, ended: bool = True) -> list[tuple[str, str]]:
    """Kind and rule of each incident, but the last one of a run that has ended."""
    lines = of_type(journals(directory / "model")["train"], "incident")
    lines = lines[:-1] if ended else lines
    return [(line["kind"], line["evidence"]["rule"]) for line in lines]


def test_a_pod_that_somebody_deletes_is_made_anew(target: Target, tmp_path: Path) -> None:
    def delete() -> None:
        target.core.delete_namespaced_pod(target.pod_of(1), target.namespace)

    with once_it_is_up(tmp_path, target, delete):
        run_of_one_phase(job(tmp_path, target, UNTIL_IT_IS_OVER, POOL))
    assert evidence(tmp_path) == [("in_place_failed", "pod-removed")]
    assert decided(tmp_path) == ["in-place-failed: rebuild", "completed: complete"]
    assert told(tmp_path)[1] == {"w0 told s0 2.1 in-place-failed -", "w1 told s1 2.1 in-place-failed -"}


def test_what_the_scheduler_takes_away_for_something_more_urgent_is_preempted(
    target: Target, tmp_path: Path
) -> None:
    """No restart is used up; what took the place ends before the gang is made anew."""
    if target.own is None:
        pytest.skip("needs a cluster of the tests' own: room of no other is taken")
    pods, namespace = target.core, target.namespace
    urgent = {
        "metadata": {"name": "urgent"},
        "spec": {
            "priorityClassName": "prefect-ft-test-urgent",
            "nodeSelector": {LABEL: "s1"},
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "urgent", "image": target.infrastructure()["image"], "imagePullPolicy": "Never",
                "command": ["sleep", "1000"], "resources": {"requests": {"memory": most_of(target, "s1")}},
            }],
        },
    }  # fmt: skip

    def preempt() -> None:
        pods.create_namespaced_pod(namespace, urgent)
        target.until(lambda: bool(evidence(tmp_path, ended=False)))
        pods.delete_namespaced_pod("urgent", namespace, grace_period_seconds=0)

    asks = {"resources": {"requests": {"memory": most_of(target, "s1")}}}
    with urgent_class(target), once_it_is_up(tmp_path, target, preempt):
        summary = run_of_one_phase(job(tmp_path, target, UNTIL_IT_IS_OVER, FULL, infrastructure=asks))
    assert evidence(tmp_path)[0] == ("preempted", "pod-preempted")
    assert (decided(tmp_path)[0], decided(tmp_path)[-1]) == ("preempted: rebuild", "completed: complete")
    assert summary.status == "completed"


def most_of(target: Target, system: str) -> str:
    """More than half of the memory that a system's node has for pods."""
    told = target.core.read_node(target.nodes[system]).status.allocatable["memory"]
    return f"{int(told.removesuffix('Ki')) * 6 // 10}Ki"


@contextmanager
def urgent_class(target: Target) -> Iterator[None]:
    from kubernetes import client

    scheduling = client.SchedulingV1Api(target.core.api_client)
    name = "prefect-ft-test-urgent"
    scheduling.create_priority_class({"metadata": {"name": name}, "value": 1000})
    try:
        yield
    finally:
        scheduling.delete_priority_class(name)


def test_a_rank_that_used_up_its_pods_memory_has_run_out_of_it(target: Target, tmp_path: Path) -> None:
    if target.own is None:
        pytest.skip(
            "needs a cluster of the tests' own: those of cgroups 2 and 1.28 on end the whole container"
        )
    code = "if attempt == 1: x = b'x' * (512 << 20) if worker else wait()"
    limits = {"resources": {"limits": {"memory": "128Mi"}}}
    run_of_one_phase(job(tmp_path, target, code, FULL, infrastructure=limits))
    first = of_type(journals(tmp_path / "model")["train"], "incident")[0]
    assert (first["kind"], first["class"], first["signal"], first["worker"]) == ("exit", "oom_host", 9, 1)
    assert first["evidence"]["rule"] == "container-oom"
    assert told(tmp_path)[1] == {"w0 told s0 1.2 transient -", "w1 told s1 1.2 transient -"}


SAVE = """
def save(step):
    with open("/ck/.new", "w") as file: file.write('{"step": 7}')
    os.rename("/ck/.new", f"/ck/step-{step}.json")

while attempt == 1:
    time.sleep(0.01)
    if heartbeat.should_checkpoint():
        save(7) if worker == 0 else None
        wait()
"""


def test_a_node_that_is_drained_is_left_with_all_that_was_done(target: Target, tmp_path: Path) -> None:
    if target.own is None:
        pytest.skip("needs a cluster of the tests' own: no other is drained")
    (tmp_path / "ck").mkdir()
    saves = {"checkpoints": {"path": "/ck", "settle_s": 0, "on_demand": {"grace_s": 20}}}
    volume = {"path": "/ck", "host_path": str(tmp_path / "ck")}  # of all nodes: they are this machine
    try:
        with once_it_is_up(tmp_path, target, lambda: target.drain("s1", 1)):
            run_of_one_phase(
                job(
                    tmp_path,
                    target,
                    SAVE,
                    POOL,
                    infrastructure={"volumes": [volume]},
                    phase={"mode": "train", **saves},
                )
            )
    finally:
        target.uncordon("s1")
    assert evidence(tmp_path) == [("preempted", "pod-drained"), ("rebuild_failed", "worker-gone")]
    assert decided(tmp_path) == [
        "preempted: rebuild",
        "rebuild-failed: isolate_and_rebuild",
        "completed: complete",
    ]
    assert told(tmp_path)[1] == {
        "w0 told s0 3.1 rebuild-failed step-7.json",
        "w1 told s2 3.1 rebuild-failed step-7.json",
    }


@pytest.mark.parametrize("program", ["kubelet", pytest.param("containerd", marks=pytest.mark.long)])
def test_a_node_without_what_runs_its_pods_is_lost(target: Target, tmp_path: Path, program: str) -> None:
    """Its ranks may train on: as soon as the cluster tells that the node is not ready, it is done without."""
    if target.own is None:
        pytest.skip("needs a cluster of the tests' own: the programs of no other are killed")
    over = threading.Event()

    def kill() -> None:
        with target.without(program, "s1"):
            over.wait(120)

    with once_it_is_up(tmp_path, target, kill):
        try:
            run_of_one_phase(job(tmp_path, target, UNTIL_IT_IS_OVER, POOL))
        finally:
            over.set()
    assert evidence(tmp_path) == [("system_lost", "node-lost")]
    assert decided(tmp_path) == ["node-lost: isolate_and_rebuild", "completed: complete"]
    assert told(tmp_path)[1] == {"w0 told s0 2.1 node-lost -", "w1 told s2 2.1 node-lost -"}


@pytest.mark.long
def test_what_is_isolated_is_cordoned_until_it_is_used_again(target: Target, tmp_path: Path) -> None:
    """And to the run's end at most; what a person has cordoned stays so."""
    code = """
if attempt == 1: meet(), fault() if worker else wait()
if attempt == 2: time.sleep(4), crash()
if attempt == 3: meet(), fault() if worker else wait()
"""
    seen: dict[str, Any] = {}

    def look() -> None:
        target.until(lambda: target.cordoned().keys() == {"s1", "s2"})
        seen.update(target.cordoned())

    target.cordon("s2")
    try:
        with once_it_is_up(tmp_path, target, look):
            policy = {"isolation_ttl_s": 0.01, "rebuild_only": True}
            run_of_one_phase(
                job(tmp_path, target, code, FULL, autorestart=policy, infrastructure={"cordon": True})
            )
        assert eventually(target.cordoned, {"s2": None}) == {"s2": None}
    finally:
        target.uncordon("s2")
    assert decided(tmp_path)[0] == "fault-critical: isolate_and_rebuild"
    assert seen == {"s1": f"fault-critical: {reason(tmp_path)}", "s2": None}
    assert len(told(tmp_path)) == 4


def reason(directory: Path) -> str:
    lines = of_type(journals(directory / "model")["train"], "decision")
    return str(lines[0]["reason"])
