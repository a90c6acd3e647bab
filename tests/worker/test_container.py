"""What the kernel counts of a container is read from control groups of both versions."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from agent_fixtures import StartAgent

from prefect_ft.worker.container import ContainerMeter

VERSION_1 = {
    "cpu/cpu.stat": "nr_periods 73\nnr_throttled 71\nthrottled_time 6456129123\nnr_bursts 0\nburst_time 0\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}
VERSION_2 = {
    "cpu.stat": "usage_usec 733473\nuser_usec 5\nnr_periods 73\nnr_throttled 71\nthrottled_usec 6456129\n",
    "memory.events": "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\noom_group_kill 0\n",
}
ROOT_OF_2 = {"cpu.stat": "usage_usec 733473\nuser_usec 5\nsystem_usec 6\n"}
"""The root's, which has no quota: it is there in a container that sees the machine's control groups."""


@pytest.mark.parametrize(
    ("files", "told"),
    [
        pytest.param(VERSION_1, {"throttled_s": 6.456, "oom_kills": 2}, id="version-1"),
        pytest.param(VERSION_2, {"throttled_s": 6.456, "oom_kills": 2}, id="version-2"),
        pytest.param(
            {"cpu.stat": VERSION_2["cpu.stat"]},
            {"throttled_s": 6.456, "oom_kills": None},
            id="one-of-the-two",
        ),
        pytest.param(ROOT_OF_2, None, id="no-container"),
        pytest.param({}, None, id="no-control-groups"),
    ],
)
def test_what_is_counted(files: dict[str, str], told: dict[str, float] | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    meter = ContainerMeter(str(tmp_path))
    assert meter.read() == told
    assert meter.oom_kills() == ((told or {}).get("oom_kills") or 0)


def test_counts_are_read_anew(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("throttled_usec 1000000\n")
    meter = ContainerMeter(str(tmp_path))
    assert meter.read() == {"throttled_s": 1.0, "oom_kills": None}
    (tmp_path / "cpu.stat").write_text("throttled_usec 2000000\n")
    assert meter.read() == {"throttled_s": 2.0, "oom_kills": None}


@pytest.mark.parametrize(
    ("by", "kills", "has_run_out"),
    [
        pytest.param(signal.SIGKILL, 3, True, id="for-memory"),
        pytest.param(signal.SIGKILL, 2, False, id="by-somebody"),
        pytest.param(signal.SIGTERM, 3, False, id="otherwise, and something else for memory"),
    ],
)
def test_a_rank_that_was_killed_for_memory(
    by: int, kills: int, has_run_out: bool, start_agent: StartAgent, tmp_path: Path
) -> None:
    """What was killed before this attempt says nothing of it."""
    counted = tmp_path / "memory.events"
    counted.write_text("oom_kill 2\n")
    its_own = f"def own_container(): return ContainerMeter({str(tmp_path)!r})"
    client = start_agent(faults={"container.py": its_own}).attached()
    pid = client.start(["sleep", "1000"])["pids"]["0"]
    counted.write_text(f"oom_kill {kills}\n")
    os.kill(pid, by)
    assert client.expect("exited", signal=by)["oom"] is has_run_out
