"""An orchestrator is killed and comes back, time after time: it finds the same gang, and nothing adds up.

`PREFECT_FT_COMEBACKS` is how often in the long tests; `-s` shows what was measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import pytest
from agents import processes_of
from comebacks import Life, Measure, servers_of, wait_until_no_server, write_job

from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import AttemptLine, ComebackLine
from prefect_ft.run import latest_run, phase_directories

MANY = int(os.environ.get("PREFECT_FT_COMEBACKS", "300"))

AGENTS_GROWTH_KB = 4096
"""Of two agents together, over all comebacks: what their allocators keep."""

MODEL_KB = 4
"""What each comeback adds to the model directory at most, its lines in journal and log among it."""


def come_back(site: Path, kind: str, times: int) -> list[Measure]:
    """Kill an orchestrator so often, let the run end, and return what was measured in each life but the first."""
    job, measures = write_job(site), []
    life = Life(job, kind)
    try:
        life.has_come()
        for _ in range(times):
            life.kill()
            life = Life(job, kind)
            life.has_come()
            measures.append(life.measure())
        (site / "finish").touch()
        assert life.end() == 0, (site / "orchestrator.log").read_text()[-3000:]
    finally:
        life.process.kill()
        life.end()
    return measures


def adds_up(values: list[int]) -> bool:
    """Whether something more is there with each comeback: all that come later have more than all before."""
    half = len(values) // 2
    return min(values[half:]) > max(values[:half])


def assert_nothing_adds_up(measures: list[Measure]) -> None:
    def of(pick: Callable[[Measure], int]) -> list[int]:
        return [pick(each) for each in measures]

    assert len({each.processes for each in measures}) == 1  # the same agents and ranks in all lives
    assert not adds_up(of(lambda each: each.own_files))
    assert not adds_up(of(lambda each: each.own_threads))
    assert not adds_up(of(lambda each: each.agents_files))
    assert not adds_up(of(lambda each: each.runtime_files))
    assert not adds_up(of(lambda each: each.servers))
    tenth = max(1, len(measures) // 10)
    sizes = of(lambda each: each.agents_kb)
    assert median(sizes[-tenth:]) - median(sizes[:tenth]) < AGENTS_GROWTH_KB
    own = of(lambda each: each.own_kb)
    assert median(own[-tenth:]) < 1.25 * median(own[:tenth])
    more = measures[-1].model_files - measures[0].model_files
    assert more == len(measures) - 1  # each comeback's epoch, a file of some hundred bytes
    assert measures[-1].model_kb - measures[0].model_kb < MODEL_KB * len(measures)


def assert_nothing_left(site: Path, times: int) -> None:
    wait_until_no_server(site)
    run = latest_run(site / "model")
    assert run is not None
    assert run.status == "completed"
    runtime = Path(os.environ["PREFECT_FT_RUNTIME_DIR"])
    assert processes_of(site) == processes_of(runtime) == {}
    assert not (runtime / run.run_id).exists()
    (directory,) = phase_directories(str(site / "model"))
    lines = read_lines(directory / "journal.jsonl")
    comebacks = [line for line in lines if isinstance(line, ComebackLine)]
    assert len(comebacks) == times
    assert all(len(line.adopted) == 2 for line in comebacks)
    assert [line.attempt for line in lines if isinstance(line, AttemptLine)] == [1]


def show(measures: list[Measure]) -> None:
    for number in sorted({0, len(measures) // 2, len(measures) - 1}):
        told = asdict(measures[number])
        line = {"comeback": number + 1, **told, "processes": len(told["processes"])}
        sys.stdout.write(f"{line}\n")


def test_ten_comebacks_leave_nothing_behind(tmp_path: Path) -> None:
    measures = come_back(tmp_path, "bare", 10)
    show(measures)
    assert_nothing_adds_up(measures)
    assert_nothing_left(tmp_path, 10)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["bare", "flow"])
def test_many_comebacks_leave_nothing_behind(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flow`: as `prefect-ft resume` does it, with a temporary server of each life's own."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
    measures = come_back(tmp_path, kind, MANY)
    show(measures)
    assert_nothing_adds_up(measures)
    assert_nothing_left(tmp_path, MANY)
    assert servers_of(tmp_path) == []
