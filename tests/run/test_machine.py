"""Which machine is certainly another one: never the same one after a restart, under a new name, or in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_ft.cli import main
from prefect_ft.config import load_job
from prefect_ft.errors import RunElsewhereError
from prefect_ft.orchestrate.run import begin_run
from prefect_ft.run import RUNS, Run, new_run, vacancy
from prefect_ft.run.identity import PROCESSES_ON
from prefect_ft.run.lease import Claims
from prefect_ft.run.machine import Machine, this_machine
from prefect_ft.run.ownership import take_as_moved

needs_id = pytest.mark.skipif(not this_machine().id, reason="needs a machine with /etc/machine-id")

HERE = Machine(id="1", boot="a", host="alpha")


@pytest.mark.parametrize(
    ("other", "is_another"),
    [
        pytest.param(HERE, False, id="itself"),
        pytest.param(Machine("1", "b", "alpha"), False, id="started-again"),
        pytest.param(Machine("1", "b", "beta"), False, id="started-again-under-another-name"),
        pytest.param(Machine("1", "a", "beta"), False, id="renamed"),
        pytest.param(Machine("2", "b", "alpha"), False, id="started-again-without-its-state"),
        pytest.param(Machine("2", "a", "c0ffee"), False, id="a-container-of-its-own"),
        pytest.param(Machine("", "b", "c0ffee"), False, id="a-container-that-came-from-elsewhere"),
        pytest.param(Machine("2", "b", "beta"), True, id="another"),
    ],
)
def test_what_is_another_machine(other: Machine, is_another: bool) -> None:
    assert HERE.is_another(other) is is_another
    assert other.is_another(HERE) is is_another


def test_a_name_that_any_machine_has_tells_nothing() -> None:
    assert Machine("1", "a", "localhost").is_another(Machine("2", "b", "localhost"))


def test_a_machine_is_read_as_it_was_written() -> None:
    here = this_machine()
    assert Machine.from_json(here.to_json()) == here
    assert Machine.from_json({"id": "1", "boot": "a"}) is None
    assert Machine.from_json(None) is None
    assert not here.is_another(this_machine())


# -- a run whose processes are elsewhere --------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was begun on another machine, with processes there."""
    there = Machine(id="1" * 32, boot="another boot", host="alpha")
    return new_run(tmp_path / "model", "j", processes_on=there.to_json())


@needs_id
def test_a_run_with_processes_of_another_machine_is_not_taken_up(run: Run) -> None:
    with pytest.raises(
        RunElsewhereError, match=r"may still train there: resume or cancel it on alpha\. .* --moved"
    ):
        vacancy(run.model_dir).resume()
    assert Claims(run.model_dir / RUNS).highest() is None
    take_as_moved(run)
    vacancy(run.model_dir).resume()
    assert run.record()[PROCESSES_ON] == this_machine().to_json()


@needs_id
def test_a_run_that_has_ended_has_no_processes_anywhere(run: Run) -> None:
    run.describe(status="failed")
    vacancy(run.model_dir).resume()


def test_a_run_without_processes_is_taken_up_anywhere(tmp_path: Path) -> None:
    run = new_run(tmp_path / "model", "j")
    vacancy(run.model_dir).resume()
    assert PROCESSES_ON not in run.record()


@needs_id
def test_a_cancellation_that_is_refused_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(
        f"name: j\nmodel_dir: {tmp_path}/model\nphases: [{{name: one, mode: eval, command: [sleep, '60']}}]\n"
    )
    job = load_job(tmp_path / "job.yaml")
    begun = begin_run(job, vacancy(tmp_path / "model"))
    begun.lease.release()
    begun.systems.release()
    assert begun.run.record()[PROCESSES_ON] == this_machine().to_json()
    begun.run.describe(processes_on=Machine("1" * 32, "another boot", "alpha").to_json())
    assert main(["cancel", str(tmp_path / "model")]) == 2
    assert "resume or cancel it on alpha" in capsys.readouterr().err
    assert begun.run.cancel_wanted() is None
