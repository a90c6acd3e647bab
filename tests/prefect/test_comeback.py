"""A flow run that is run again: it goes on with its own run, as it was, and never with another one twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import Abort

from prefect_ft import JobConfig, flows
from prefect_ft.errors import UnfinishedRunError
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import EndLine, PhaseLine
from prefect_ft.orchestrate.run import begin_run, conclude
from prefect_ft.run import Holding, vacancy
from prefect_ft.run.machine import Machine, this_machine

Job = Callable[..., JobConfig]
FLOW_RUN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def as_flow_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Be a process of this flow run."""
    return lambda name: monkeypatch.setattr(flows, "_flow_run_id", lambda: name)


def begun_by(job: JobConfig, flow_run_id: str | None = FLOW_RUN) -> Holding:
    """A run that was begun by a flow run whose process has died."""
    holding = begin_run(job, vacancy(Path(job.model_dir)), flow_run_id=flow_run_id)
    holding.lease.release()
    return holding


def run(job: Any, **parameters: Any) -> Any:
    """Run the flow's function; what it ends with is the flow run's state."""
    return flows.train_flow.fn(job, **parameters)


def test_a_run_that_somebody_else_completed_is_not_begun_again(
    job: Job, tmp_path: Path, as_flow_run: Callable[[str], None]
) -> None:
    mine = job("open('ran', 'a').write('x')")
    first = begun_by(mine)
    taken_up = vacancy(Path(mine.model_dir)).resume()
    taken_up.run.belongs_to("another")
    conclude(taken_up, "completed")
    taken_up.lease.release()
    as_flow_run(FLOW_RUN)
    assert run(mine).data == []
    assert not (tmp_path / "ran").exists()
    assert first.run.record()["flow_run_ids"] == [FLOW_RUN, "another"]


def test_a_run_of_another_flow_run_is_not_taken_up_unasked(
    job: Job, as_flow_run: Callable[[str], None]
) -> None:
    begun_by(job("pass"))
    as_flow_run("another")
    with pytest.raises(UnfinishedRunError):
        run(job("pass"))


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_phase_that_has_ended_is_not_run_again_by_a_comeback(
    job: Job, tmp_path: Path, as_flow_run: Callable[[str], None], status: str
) -> None:
    """Killed between the phase's end and the run's."""
    mine = job("open('ran', 'a').write('x')")
    holding = begun_by(mine)
    directory = holding.run.add_phase("phase-0", 0, {})
    journal = Journal(directory / "journal.jsonl")
    journal.append(PhaseLine(run=holding.run.run_id, job="j", phase="phase-0"), t=0)
    journal.append(EndLine(status=status, reason="so it was"), t=1)
    journal.close()
    as_flow_run(FLOW_RUN)
    state = run(mine)
    assert (state.name, state.message.split(": ")[-1]) == (status.capitalize(), "so it was.")
    assert not (tmp_path / "ran").exists()
    assert (holding.run.status, len(holding.run.record()["phases"])) == (status, 1)


def test_a_job_file_that_is_gone_by_now_keeps_nobody_from_coming_back(
    job: Job, tmp_path: Path, as_flow_run: Callable[[str], None]
) -> None:
    mine = job("open('ran', 'a').write('x')")
    holding = begun_by(mine)
    as_flow_run(FLOW_RUN)
    (summary,) = run(tmp_path / "deleted.yaml").data
    assert (summary["status"], holding.run.status) == ("completed", "completed")
    assert (tmp_path / "ran").read_text() == "x"


@pytest.mark.skipif(not this_machine().id, reason="needs a machine with /etc/machine-id")
def test_a_run_with_processes_of_another_machine_is_left_to_a_process_there(
    job: Job, tmp_path: Path, as_flow_run: Callable[[str], None]
) -> None:
    """Prefect is told of no end: the flow run is started again, until it is on that machine."""
    mine = job("open('ran', 'a').write('x')")
    holding = begun_by(mine)
    holding.run.describe(processes_on=Machine("1" * 32, "another boot", "alpha").to_json())
    as_flow_run(FLOW_RUN)
    with pytest.raises(Abort, match="may still train there"):
        run(mine)
    assert (holding.run.status, (tmp_path / "ran").exists()) == ("running", False)
