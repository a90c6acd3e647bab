"""A run of a later version in the hands of this one: fields, values and formats that this one does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from releases import laid_out, lines_of

from prefect_ft.cli import main
from prefect_ft.config.recorded import read_recorded
from prefect_ft.errors import ConfigError, NewerFormatError, SystemHeldError
from prefect_ft.journal.lines import Journal, history_of, read_lines
from prefect_ft.observe import Notice, observed_by
from prefect_ft.orchestrate.phase import PhaseExecution
from prefect_ft.orchestrate.plan import _earlier_pauses
from prefect_ft.orchestrate.run import end_unwatched, held, job_of, resume_run, run_to_its_end, warn_of_unread
from prefect_ft.run import Run, latest_run, new_run, vacancy
from prefect_ft.run.owner import Owner, this_process
from prefect_ft.run.systems import Service, hold
from prefect_ft.supervisor import Supervisor

Edit = Callable[[dict[str, Any]], None]
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model directory of a run whose orchestrator, agents and ranks were killed."""
    return laid_out("921e233", "killed", tmp_path)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command line in this process; return the exit code and what went to standard error."""

    def run(*words: object) -> tuple[int, str]:
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err

    return run


def run_of(model: Path) -> Run:
    run = latest_run(model)
    assert run is not None
    return run


def edited(path: Path, edit: Edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def with_job(model: Path, edit: Edit) -> Run:
    run = run_of(model)
    edited(run.job_path, edit)
    return run


def with_run(model: Path, **fields: Any) -> Run:
    run = run_of(model)
    run.describe(**fields)
    return run


def all_bytes(model: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(model.parent.rglob("*")) if path.is_file()}


# -- fields and values of the job ---------------------------------------------------------------------


def in_every_section(job: dict[str, Any]) -> None:
    for section in (job, job["infrastructure"], job["infrastructure"]["systems"][1], job["phases"][0]):
        section["knob"] = {"deep": [1]}
    job["phases"][0]["checkpoints"]["knob"] = 1


def beyond_bounds(job: dict[str, Any]) -> None:
    job["sample_period_s"] = 1e9
    job["autorestart"]["max_num_restarts"] = 10**12
    job["phases"][0]["checkpoints"]["settle_s"] = -1.0


def with_an_unknown_class(job: dict[str, Any]) -> None:
    job["autorestart"]["restart_on"].append("gravity")


def test_unknown_fields_of_a_recorded_job_are_passed_over_and_named(model: Path) -> None:
    run = with_job(model, in_every_section)
    job = job_of(run)
    assert (job.name, job.phases[0].command[-1]) == ("recorded", "killed")


def test_a_run_with_an_unknown_field_in_its_job_can_be_cancelled(model: Path, say: Say) -> None:
    run = with_job(model, in_every_section)
    code, err = say("cancel", model)
    assert (code, run.status) == (0, "cancelled"), err
    assert lines_of(model)[-1]["status"] == "cancelled"


def test_values_beyond_a_bound_of_this_version_are_taken_as_the_bound(model: Path) -> None:
    job = job_of(with_job(model, beyond_bounds))
    assert (job.sample_period_s, job.phases[0].checkpoints.settle_s) == (3600, 0)
    assert job.autorestart is not None
    assert job.autorestart.max_num_restarts == 128


@pytest.mark.parametrize("edit", [in_every_section, beyond_bounds, with_an_unknown_class])
def test_a_run_is_cancelled_whatever_its_policy_says(model: Path, say: Say, edit: Edit) -> None:
    run = with_job(model, edit)
    code, err = say("cancel", model)
    assert (code, run.status) == (0, "cancelled"), err


def without_a_namespace(job: dict[str, Any]) -> None:
    job["infrastructure"] = {"type": "submarine", "systems": []}


def with_secrets_that_are_gone(job: dict[str, Any]) -> None:
    job["infrastructure"]["secret_env"]["OTHER"] = "*" * 10


@pytest.mark.parametrize(
    ("edit", "field"),
    [(with_an_unknown_class, "autorestart.restart_on[9]"), (without_a_namespace, "infrastructure.type")],
)
def test_a_run_is_not_resumed_with_another_policy_than_its_own(model: Path, edit: Edit, field: str) -> None:
    run = with_job(model, edit)
    run.describe(version="9.8.7")
    with pytest.raises(ConfigError) as refused:
        job_of(run)
    assert str(refused.value).startswith(
        f"{run.job_path}: is damaged, or written by another version: {field}: "
    )
    assert str(refused.value).endswith(
        "Install the version that wrote it: pip install 'prefect-ft==9.8.7', or end the run: prefect-ft cancel"
    )


def test_a_command_that_no_longer_fits_its_launcher_keeps_no_run_from_its_end(model: Path) -> None:
    """It was put into the place of the unreadable again and again."""
    run = with_job(model, lambda job: job["phases"][0].update(rewrite_launcher=True))
    assert read_recorded(run.job(), only_to_end=True).job.phases[0].command
    with pytest.raises(ConfigError, match="is not a launcher"):
        job_of(run)


def test_a_run_whose_workers_cannot_be_found_is_not_called_cancelled(model: Path, say: Say) -> None:
    run = with_job(model, without_a_namespace)
    before = all_bytes(model)
    code, err = say("cancel", model)
    assert (code, run.status, all_bytes(model)) == (2, "running", before), err
    assert "infrastructure" in err


def test_a_job_file_that_a_person_writes_is_held_to_the_letter(model: Path, say: Say) -> None:
    path = model.parent / "job.yaml"
    path.write_text(path.read_text() + "knob: 1\n")
    code, err = say("validate", path)
    assert code == 2
    assert "knob: unknown key" in err


def test_what_is_passed_over_is_named(model: Path) -> None:
    run = with_job(model, in_every_section)
    with_job(model, beyond_bounds)
    told: list[str] = []
    with observed_by(lambda fact: told.append(fact.text) if isinstance(fact, Notice) else None):
        warn_of_unread(run)
    said = [text.removeprefix(f"warning: {run.job_path}: ") for text in told]
    assert sorted(said) == sorted(
        [
            *(
                f"{field}: unknown to this version; it has no effect"
                for field in (
                    "knob",
                    "infrastructure.knob",
                    "infrastructure.systems[1].knob",
                    "phases[0].knob",
                    "phases[0].checkpoints.knob",
                )
            ),
            "sample_period_s: 1000000000.0 is beyond a bound of this version, which takes 3600",
            "autorestart.max_num_restarts: 1000000000000 is beyond a bound of this version, which takes 128",
            "phases[0].checkpoints.settle_s: -1.0 is beyond a bound of this version, which takes 0",
        ]
    )


# -- formats ------------------------------------------------------------------------------------------


def with_a_newer_run(model: Path) -> None:
    run_of(model).describe(formats={"run": 2, "job": 1, "journal": 1}, version="9.8.7")


def with_a_newer_job(model: Path) -> None:
    run_of(model).describe(formats={"run": 1, "job": 7, "journal": 1}, version="9.8.7")


def with_another_file(model: Path) -> None:
    run_of(model).describe(formats={"run": 1, "job": 1, "journal": 1, "ledger": 1}, version="9.8.7")


def with_a_newer_journal(model: Path) -> None:
    (path,) = model.glob("*/journal.jsonl")
    line = {"type": "comeback", "t": 9.0, "utc": "2026-11-23T09:00:00Z", "epoch": 2, "by_hand": False}
    with path.open("a") as journal:
        journal.write(json.dumps({**line, "format": 2, "version": "9.8.7"}) + "\n")


NEWER = [with_a_newer_run, with_a_newer_job, with_another_file, with_a_newer_journal]


@pytest.mark.parametrize("command", ["status", "cancel", "resume"])
@pytest.mark.parametrize("newer", NEWER)
def test_a_newer_format_is_refused_with_the_version_that_it_needs(
    model: Path, say: Say, newer: Callable[[Path], None], command: str
) -> None:
    newer(model)
    before = all_bytes(model)
    code, err = say(command, model)
    assert code == 2
    assert err.startswith(f"error: {model}")
    assert err.endswith("Install the version that wrote it: pip install 'prefect-ft==9.8.7'\n")
    assert all_bytes(model) == before


def no_attempt(supervisor: Supervisor) -> None:
    raise AssertionError("an attempt was begun")


def test_no_line_is_added_to_a_journal_of_a_newer_format(model: Path) -> None:
    with_a_newer_journal(model)
    before = all_bytes(model)
    with pytest.raises(NewerFormatError):
        Journal(next(model.glob("*/journal.jsonl")))
    with pytest.raises(NewerFormatError):
        end_unwatched(vacancy(model).resume(), "a test")
    with pytest.raises(NewerFormatError):
        resume_run(vacancy(model))
    holding = vacancy(model).resume()
    with held(holding, job_of(holding.run)) as (_, stop), pytest.raises(NewerFormatError):
        run_to_its_end(
            holding, stop, lambda: PhaseExecution(job_of(holding.run), 0, holding, stop).execute(no_attempt)
        )
    kept = all_bytes(model)
    lease = {str(path) for path in model.rglob("*") if ".prefect-ft" in path.parts}
    assert {path for path, data in before.items() if kept[path] != data} <= lease
    assert run_of(model).status == "running"


@pytest.mark.parametrize("newer", NEWER)
def test_runs_of_a_newer_format_are_listed_and_not_cleaned_away(
    model: Path, say: Say, newer: Callable[[Path], None]
) -> None:
    newer(model)
    before = all_bytes(model)
    assert say("list", model) == (0, "")
    assert say("clean") == (0, "")
    assert all_bytes(model) == before


def test_a_journal_of_a_newer_format_teaches_later_runs_nothing(model: Path) -> None:
    with_a_newer_journal(model)
    with pytest.raises(NewerFormatError):
        read_lines(next(model.glob("*/journal.jsonl")))
    assert list(_earlier_pauses(model, "pretrain", model)) == []


def test_fields_inside_a_journals_objects_are_passed_over_too(tmp_path: Path) -> None:
    model = laid_out("921e233", "several-attempts", tmp_path)
    (path,) = model.glob("*/journal.jsonl")
    known = history_of(read_lines(path))
    lines = lines_of(model)
    for line in lines:
        line["knob"] = 1
        for inner in ("evidence", "counters"):
            if inner in line:
                line[inner]["knob"] = 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert history_of(read_lines(path)) == known


def test_what_is_written_says_its_format(tmp_path: Path) -> None:
    told = new_run(tmp_path / "model", "j").record()
    assert (told["formats"], told["version"]) == ({"run": 1, "job": 1, "journal": 1}, version("prefect-ft"))


def test_a_run_that_is_taken_up_names_the_version_that_did_and_keeps_what_it_does_not_know(
    model: Path,
) -> None:
    run = with_run(model, later={"field": 1})
    vacancy(model).resume().lease.release()
    told = run.record()
    assert (told["formats"], told["version"]) == ({"run": 1, "job": 1, "journal": 1}, version("prefect-ft"))
    assert told["later"] == {"field": 1}


def test_a_holder_is_known_although_it_says_more_of_itself() -> None:
    owner = this_process()
    assert Owner.from_json({**owner.to_json(), "later": 1}) == owner
    assert Owner.from_json({"pid": owner.pid}) is None


def test_a_system_is_the_runs_although_its_file_says_more(runtime_dir: Path) -> None:
    service = Service("run-1", "job", "model")
    held = hold(runtime_dir, ["s0"], service)
    path = runtime_dir / "systems" / "s0"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    hold(runtime_dir, ["s0"], service).release()
    with pytest.raises(SystemHeldError, match="run-1"):
        hold(runtime_dir, ["s0"], Service("run-2", "job", "model"))
    held.release()
