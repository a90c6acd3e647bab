"""The whole way, with real agents and ranks: failure, journal, decision, Prefect's retry, next attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_ft import run_phase, train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import RunFailedError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine

Make = Callable[..., JobConfig]
Seen = Callable[..., list[dict[str, str]]]


def decisions(job: JobConfig) -> list[tuple[str, str]]:
    """Rule and action of each decision, over all phases."""
    journals = sorted(Path(job.model_dir).glob("*_restartable*/journal.jsonl"))
    lines = [line for journal in journals for line in read_lines(journal)]
    return [(line.decision.rule, line.decision.action) for line in lines if isinstance(line, DecisionLine)]


def test_a_healthy_phase_completes_in_one_attempt(job: Make, seen: Seen) -> None:
    summary = train_flow(job("save(5)"))[0]
    assert (summary["status"], summary["restarts"], summary["final_step"]) == ("completed", {}, 5)
    assert [env["RANK"] for env in seen()] == ["0", "1"]


def test_a_crash_is_restarted_in_place_from_the_last_good_checkpoint(job: Make, seen: Seen) -> None:
    code = """
save(5)
if restarts == 0 and rank == 1:
    while not os.path.exists("ck/step-5.npz"):
        pass
    die(11)
if restarts == 0:
    wait()
"""
    config = job(code)
    assert train_flow(config)[0]["status"] == "completed"
    assert decisions(config) == [("transient", "restart_in_place"), ("completed", "complete")]
    assert [Path(env["PREFECT_FT_RESUME_FROM"]).name for env in seen()] == [
        "",
        "",
        "step-5.npz",
        "step-5.npz",
    ]


def test_the_environment_tells_the_script_what_happened(job: Make, seen: Seen) -> None:
    train_flow(job("if restarts < 2: die(11)"))
    first, second, third = (env for env in seen() if env["RANK"] == "0")
    names = (
        "PREFECT_FT_ATTEMPT", "PREFECT_FT_RESTART_COUNT", "PREFECT_FT_RESTART_REASON",
        "PREFECT_FT_RESTART_ACTION", "MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "TORCHELASTIC_RESTART_COUNT",
    )  # fmt: skip
    assert [first[name] for name in names] == ["1", "0", "", "", "1", "1", "0"]
    assert [second[name] for name in names] == ["2", "1", "transient", "restart_in_place", "1", "2", "1"]
    assert [third[name] for name in names] == ["3", "2", "transient", "rebuild", "2", "1", "2"]
    assert {first["WORLD_SIZE"], first["LOCAL_WORLD_SIZE"]} == {"2"}
    assert len({env["MASTER_PORT"] for env in (first, second, third)}) == 3


@pytest.mark.parametrize(
    "level", ["job", *(pytest.param(each, marks=pytest.mark.long) for each in ("phase", "system"))]
)
def test_a_script_that_takes_one_rank_for_many_is_told_of_none(
    tmp_path: Path, prefect_server: None, level: str
) -> None:
    """As nanoGPT's train.py decides."""
    ddp = "import os; print('ddp', int(os.environ.get('RANK', -1)) != -1)"
    unset = {where: {"RANK": None} if where == level else {} for where in ("job", "phase", "system")}
    phase = {"name": "p", "mode": "eval", "command": ["python", "-S", "-c", ddp], "env": unset["phase"]}
    systems = [{"name": "s0", "env": unset["system"]}]
    fields = {"name": "t", "model_dir": "model", "infrastructure": {"systems": systems}, "env": unset["job"]}
    made = JobConfig.model_validate({**fields, "phases": [phase]}).at(tmp_path)
    assert train_flow(made)[0]["status"] == "completed"
    assert next(tmp_path.rglob("run.log")).read_text() == "[a1 w0 r0] ddp False\n"
    assert "RANK: null" in next(tmp_path.rglob("params.yaml")).read_text()


def test_a_restart_in_place_keeps_the_worker_and_a_rebuild_replaces_it(job: Make, seen: Seen) -> None:
    train_flow(job("if restarts < 2: die(11)"))
    first, second, third = (env["TMPDIR"] for env in seen() if env["RANK"] == "0")
    assert first == second != third
    assert not Path(third).exists()


def test_the_budget_ends_an_endless_failure(job: Make) -> None:
    config = job("print(restarts); os.abort()", autorestart={"max_num_restarts": 2, "stop_on_repeat": 0})
    with pytest.raises(RunFailedError, match="train: "):
        train_flow(config)
    assert decisions(config)[-1] == ("max-restarts", "fail")
    assert len(decisions(config)) == 3


def test_an_assertion_is_not_restarted(job: Make) -> None:
    config = job("assert rank == 5")
    with pytest.raises(RunFailedError):
        train_flow(config)
    assert decisions(config) == [("non-recoverable", "fail")]


def test_an_exception_of_the_program_gets_one_confirming_restart(job: Make) -> None:
    config = job("raise ValueError(f'shape {restarts}')")
    with pytest.raises(RunFailedError):
        train_flow(config)
    assert decisions(config) == [("confirm-once", "restart_in_place"), ("confirm-once", "fail")]


def test_a_later_phase_does_not_start_after_a_failed_one(job: Make, tmp_path: Path) -> None:
    base = job("assert False")
    config = base.model_copy(
        update={"phases": (base.phases[0], base.phases[0].model_copy(update={"name": "next"}))}
    )
    with pytest.raises(RunFailedError):
        train_flow(config)
    assert not (tmp_path / "seen-next.jsonl").exists()


def test_phases_run_one_after_the_other_each_with_new_workers(job: Make, seen: Seen) -> None:
    base = job("save(5)")
    config = base.model_copy(
        update={"phases": (base.phases[0], base.phases[0].model_copy(update={"name": "next"}))}
    )
    assert [summary["phase"] for summary in train_flow(config)] == ["train", "next"]
    assert seen("next")[0]["MA_SCHEDULE_CNT"] == "1"
    assert seen("next")[0]["TMPDIR"] != seen("train")[0]["TMPDIR"]


def test_ending_well_below_the_target_step_is_not_completion(job: Make) -> None:
    config = job("save(5 + 5 * restarts)", phase={"target_step": 10})
    assert train_flow(config)[0]["status"] == "completed"
    assert decisions(config) == [("transient", "restart_in_place"), ("completed", "complete")]


def test_a_checkpoint_cut_after_it_was_seen_whole_is_passed_over(job: Make, seen: Seen) -> None:
    code = """
if restarts == 0:
    if rank == 0:
        save(5), save(10)
        os.truncate("ck/step-10.npz", 50)
        die()
    wait()
"""
    config = job(code)
    train_flow(config)
    assert Path(seen()[-1]["PREFECT_FT_RESUME_FROM"]).name == "step-5.npz"


def test_an_agent_that_is_killed_is_rebuilt_and_its_ranks_do_not_live_on(job: Make, seen: Seen) -> None:
    code = "if restarts == 0 and rank == 0: os.kill(os.getppid(), 9)\nif restarts == 0: wait()"
    config = job(code)
    assert train_flow(config)[0]["status"] == "completed"
    assert decisions(config) == [("in-place-failed", "rebuild"), ("completed", "complete")]
    assert {env["MA_SCHEDULE_CNT"] for env in seen()[2:]} == {"2"}


def test_a_command_that_cannot_be_started_later_fails_the_phase(job: Make, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nmv program gone\nkill -SEGV $$\n")
    program.chmod(0o755)
    config = job(phase={"command": ["./program"], "nproc_per_worker": 1})
    with pytest.raises(RunFailedError):
        train_flow(config)
    assert decisions(config) == [("transient", "restart_in_place"), ("non-recoverable", "fail")]


def test_run_log_holds_every_line_with_its_attempt_worker_and_rank(job: Make) -> None:
    config = job("print('line', restarts, rank, flush=True)\nif restarts == 0: time.sleep(0.3); die(11)")
    train_flow(config)
    log = next(Path(config.model_dir).glob("*_restartable/run.log")).read_text().splitlines()
    assert {line for line in log if "line" in line} == {
        f"[a{attempt} w0 r{rank}] line {attempt - 1} {rank}" for attempt in (1, 2) for rank in (0, 1)
    }


def test_the_summary_adds_up(job: Make) -> None:
    summary = train_flow(job("save(5)\nif restarts == 0: time.sleep(0.2); die(11)"))[0]
    times = dict(summary["time_s"])
    total = times.pop("total")
    assert sum(times.values()) == pytest.approx(total, abs=0.2)
    assert [attempt["class"] for attempt in summary["attempts"]] == ["crash", None]


def test_a_flow_of_the_users_own_runs_a_phase(job: Make) -> None:
    from prefect import flow

    config = job("save(5)")

    @flow
    def mine() -> str:
        return run_phase(config, "train").status

    assert mine() == "completed"


def test_summary_json_is_what_the_flow_returns(job: Make) -> None:
    config = job("save(5)")
    summary = train_flow(config)[0]
    path = next(Path(config.model_dir).glob("*_restartable/summary.json"))
    assert json.loads(path.read_text()) == json.loads(json.dumps(summary))
