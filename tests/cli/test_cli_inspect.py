"""`validate` and `replay`: what a job is with its defaults, and what its policy would decide."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from prefect_ft.cli import main
from prefect_ft.config import JobConfig

JOB = """
name: test
model_dir: model
autorestart: {max_num_restarts: 1}
phases:
  - {name: train, command: [python, train.py], checkpoints: {path: ck}}
  - {name: check, mode: eval, command: [python, eval.py], autorestart: {max_num_restarts: 3}}
"""
CRASH = {"t": 1, "kind": "exit", "class": "crash", "step": 100}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line where job.yaml lies; give exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def incidents(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: object) -> str:
        (tmp_path / "incidents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return "incidents.jsonl"

    return write


@pytest.mark.parametrize("read", [yaml.safe_load, json.loads], ids=["yaml", "json"])
def test_validate_prints_a_job_that_is_the_job_itself(
    run: Run, tmp_path: Path, read: Callable[[str], object]
) -> None:
    code, out, err = run("validate", "job.yaml", *(["--json"] if read is json.loads else []))
    assert (code, err) == (0, "")
    job = JobConfig.model_validate(read(out))
    assert (job.model_dir, job.phases[1].mode) == (str(tmp_path / "model"), "eval")


def test_validate_takes_values_over_the_files(run: Run) -> None:
    code, out, _ = run("validate", "job.yaml", "--json", "--set", "autorestart.max_num_restarts=7")
    assert (code, json.loads(out)["autorestart"]["max_num_restarts"]) == (0, 7)


def test_validate_warns_on_standard_error(run: Run) -> None:
    code, out, err = run("validate", "job.yaml", "--json", "--set", "phases.1.target_step=5")
    assert (code, json.loads(out)["name"]) == (0, "test")
    assert err.startswith("warning: job.yaml: phases[1].target_step: has no effect")


@pytest.mark.parametrize("command", [["validate"], ["replay", "incidents.jsonl"]], ids=["validate", "replay"])
def test_a_job_that_is_wrong_is_an_error_of_one_line(run: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("name: test", "name: test\nnmae: x"))
    code, out, err = run(command[0], "job.yaml", *command[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: job.yaml:3: nmae: unknown key")


def test_replay_prints_one_line_for_each_incident(run: Run, incidents: Callable[..., str]) -> None:
    code, out, err = run("replay", "job.yaml", incidents(CRASH, {**CRASH, "t": 2}))
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["1", "transient", "restart_in_place"],
        ["2", "max-restarts", "fail"],
    ]


def test_replay_as_json_is_one_decision_a_line(run: Run, incidents: Callable[..., str]) -> None:
    code, out, err = run("replay", "job.yaml", incidents(CRASH), "--json")
    assert (code, err) == (0, "")
    decision = json.loads(out)
    assert list(decision) == [
        "n", "rule", "action", "isolate", "recreate", "placement", "delay_s", "resume_step", "counters", "reason",
    ]  # fmt: skip
    assert (decision["rule"], decision["placement"], decision["resume_step"]) == (
        "transient", {"0": "localhost"}, 100,
    )  # fmt: skip


def test_replay_asks_the_phase_that_is_named(run: Run, incidents: Callable[..., str]) -> None:
    code, out, _ = run(
        "replay", "job.yaml", incidents(CRASH, {**CRASH, "t": 2}), "--phase", "check", "--json"
    )
    assert code == 0
    assert [json.loads(line)["resume_step"] for line in out.splitlines()] == [None, None]


@pytest.mark.parametrize(
    ("lines", "phase", "message"),
    [
        pytest.param(
            [CRASH], "none", "error: job.yaml: phases: no phase 'none'; there are: train, check", id="phase"
        ),
        pytest.param(
            [CRASH, {**CRASH, "t": 0}], "train", "error: incidents.jsonl:2: t: ", id="a-line-that-is-wrong"
        ),
        pytest.param(
            [CRASH, {"t": 2, "kind": "completed"}, CRASH | {"t": 3}],
            "train",
            "error: incidents.jsonl:3: kind: nothing may follow",
            id="a-line-after-the-end",
        ),
        pytest.param(
            [{**CRASH, "t": 10**400}], "train", "error: incidents.jsonl:1: t: ", id="beyond-all-time"
        ),
    ],
)
def test_replay_says_what_is_wrong_and_decides_nothing(
    run: Run, incidents: Callable[..., str], lines: list[object], phase: str, message: str
) -> None:
    code, out, err = run("replay", "job.yaml", incidents(*lines), "--phase", phase)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)


def test_replay_of_a_file_that_is_not_there(run: Run) -> None:
    code, out, err = run("replay", "job.yaml", "nowhere.jsonl")
    assert (code, out, err) == (2, "", "error: nowhere.jsonl: cannot be read: No such file or directory\n")


def test_replay_knows_the_jobs_own_signatures(
    run: Run, incidents: Callable[..., str], tmp_path: Path
) -> None:
    own = "signatures: [{id: our-licence, class: config, pattern: 'licence .* expired', example: licence A expired}]\n"
    incident = {"t": 1, "kind": "exit", "exit_code": 1, "step": 100, "log": ["licence A expired"]}
    name = incidents(incident)
    rules = []
    for text in (JOB, JOB + own):
        (tmp_path / "job.yaml").write_text(text)
        code, out, err = run("replay", "job.yaml", name, "--json")
        assert (code, err) == (0, "")
        rules.append(json.loads(out)["rule"])
    assert rules == ["transient", "confirm-once"]
