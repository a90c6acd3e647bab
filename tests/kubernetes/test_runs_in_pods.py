"""Whole runs in pods: what crashes starts again in place, and a node that is cut off is done without."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from kube import Target
from without_prefect import run_of_one_phase

from prefect_ft import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.orchestrate.preflight import check_engines

pytestmark = pytest.mark.timeout(400)

CRASH = """
import os, prefect_ft
attempt = int(os.environ["PREFECT_FT_ATTEMPT"])
print("on", os.environ["PREFECT_FT_SYSTEM"], os.environ["MA_SCHEDULE_CNT"], os.environ["MA_PROC_START_CNT"])
print(open(os.environ["PREFECT_FT_PARAMS"]).read())
if attempt == 1: raise ConnectionError("reset")
"""

WAIT = """
import os, time
print("up", os.environ["PREFECT_FT_SYSTEM"])
if os.environ["PREFECT_FT_ATTEMPT"] == "1": time.sleep(600)
"""


def job(directory: Path, target: Target, script: str, **fields: Any) -> JobConfig:
    document = {
        "name": "pods",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": target.infrastructure(workers=2, **fields),
        "autorestart": {"max_num_restarts": 3},
        "phases": [
            {
                "name": "train",
                "mode": "eval",
                "command": ["python", "-S", "-u", "-c", script],
                "params": {"learning_rate": 0.5},
            }
        ],
    }
    return JobConfig.model_validate(document).at(directory)


def said(directory: Path) -> list[str]:
    return [line for log in directory.glob("model/*/run.log") for line in log.read_text().splitlines()]


def test_what_crashes_starts_again_in_its_pod(target: Target, tmp_path: Path) -> None:
    assert run_of_one_phase(job(tmp_path, target, CRASH)).status == "completed"
    lines = journals(tmp_path / "model")["train"]
    assert [line["action"] for line in of_type(lines, "decision")] == ["restart_in_place", "complete"]
    counts = [attempt["start_counts"] for attempt in of_type(lines, "attempt")]
    assert counts == [[[1, 1], [1, 1]], [[1, 2], [1, 2]]]
    expected = {"[a2 w0 r0] on s0 1 2", "[a2 w1 r1] on s1 1 2", "[a2 w0 r0] learning_rate: 0.5"}
    assert expected <= set(said(tmp_path))


@pytest.mark.long  # test_links_to_pods.py cuts one too
def test_a_node_that_is_cut_off_is_done_without(target: Target, tmp_path: Path) -> None:
    if target.own is None:
        pytest.skip("needs a cluster of the tests' own: the one that was given is not cut")

    def cut_once_it_is_up() -> None:
        target.until(lambda: {"[a1 w0 r0] up s0", "[a1 w1 r1] up s1"} <= set(said(tmp_path)))
        target.cut("s1")

    cutter = threading.Thread(target=cut_once_it_is_up)
    cutter.start()
    try:
        summary = run_of_one_phase(job(tmp_path, target, WAIT, systems=["s0", "s1", "s2"]))
    finally:
        cutter.join()
        target.join("s1")
    assert summary.status == "completed"
    lines = journals(tmp_path / "model")["train"]
    (incident, _) = of_type(lines, "incident")
    found = incident["kind"], incident["worker"], incident["evidence"]["rule"]
    assert found == ("system_lost", 1, "node-lost")
    decision = of_type(lines, "decision")[0]
    assert (decision["isolate"], decision["placement"]) == (["s1"], {"0": "s0", "1": "s2"})
    assert {"[a2 w0 r0] up s0", "[a2 w1 r1] up s2"} <= set(said(tmp_path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"systems": ["s0", "s9"]},
            r"infrastructure\.systems\[1\]: no node of .* has the label prefect-ft-test/system=s9; there are s0",
            id="no-such-node",
        ),
        pytest.param(
            {"namespace": "nowhere"},
            r'infrastructure: no worker can be created: .* refused: namespaces "nowhere" not found',
            id="no-such-namespace",
        ),
        pytest.param(
            {"context": "other"},
            r"infrastructure\.kubeconfig: nothing tells how to reach the cluster",
            id="no-context",
        ),
        pytest.param(
            {"pod": {"spec": {"priority": 7}}},
            "infrastructure: no worker can be created: .*priority",
            id="not-allowed",
        ),
        pytest.param(
            {"pod": {"spec": {"hostNetwok": True}}},
            "infrastructure: no worker can be created: .*hostNetwok",
            id="not-known",
        ),
    ],
)
def test_what_the_cluster_would_not_take_is_told_before_a_run(
    target: Target, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_engines(job(tmp_path, target, CRASH, **fields))


def test_who_answers_nowhere_is_told_before_a_run(target: Target, tmp_path: Path) -> None:
    away = tmp_path / "config"
    away.write_text(Path(target.kubeconfig).read_text().replace("10.99.0.1:6443", "127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"infrastructure\.kubeconfig: the cluster at .* does not answer"):
        check_engines(job(tmp_path, target, CRASH, kubeconfig=str(away)))
