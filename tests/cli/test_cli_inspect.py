"""`validate` and `replay`: what a job is with its defaults, what its policy would decide, and otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from prefect_ft.cli import main
from prefect_ft.clock import PhaseClock
from prefect_ft.config import JobConfig
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import PhaseLine
from prefect_ft.model import Incident

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
    """Run the command line where job.yaml lies; return exit code, standard output and standard error."""
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
    spare = ("--set", "infrastructure.systems=[s0, s1]")
    code, out, err = run("validate", "job.yaml", *spare, *(["--json"] if read is json.loads else []))
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
        "n", "rule", "action", "isolate", "recreate", "placement", "delay_s", "resume_step", "skip_steps", "at_fault",
        "counters", "reason",
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
            [CRASH], "none", "error: job.yaml: phases: no phase 'none'; the job has train, check", id="phase"
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
    own = (
        "signatures: [{id: our-licence, class: config, pattern: 'tile .* is off', example: tile A is off}]\n"
    )
    incident = {"t": 1, "kind": "exit", "exit_code": 1, "step": 100, "log": ["tile A is off"]}
    name = incidents(incident)
    rules = []
    for text in (JOB, JOB + own):
        (tmp_path / "job.yaml").write_text(text)
        code, out, err = run("replay", "job.yaml", name, "--json")
        assert (code, err) == (0, "")
        rules.append(json.loads(out)["rule"])
    assert rules == ["transient", "confirm-once"]


# -- journals ---------------------------------------------------------------------------------------

CRASHED = Incident(t=1, kind="exit", failure_class="crash", step=100)


@pytest.fixture
def journal(run: Run, tmp_path: Path) -> str:
    """The journal of the phase `check`: three crashes, restarted as job.yaml says."""
    policy = JobConfig.model_validate(yaml.safe_load(JOB)).policy(1)
    written = Journal(tmp_path / "journal.jsonl")
    names = {"run": "r", "job": "test", "phase": "check", "isolated": ()}
    written.append(PhaseLine(**names), t=0, utc="2026-01-02T03:04:05Z")
    for _ in range(3):
        judge(written, policy, CRASHED, PhaseClock())
    written.close()
    return "journal.jsonl"


def change_job(before: str, after: str) -> None:
    """Change the job file that lies where the commands run."""
    assert before in JOB
    Path("job.yaml").write_text(JOB.replace(before, after))


STRICTER = ("autorestart: {max_num_restarts: 3}", "autorestart: {max_num_restarts: 1}")


def test_replay_takes_a_journal_and_its_phase(run: Run, journal: str) -> None:
    change_job(*STRICTER)
    code, out, err = run("replay", "job.yaml", journal)
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["1", "transient", "restart_in_place"],
        ["2", "max-restarts", "fail"],
    ]
    assert (code, err) == (
        0,
        "incident 2 ends the phase: the journal's 1 later incident is ignored\n",
    )


def test_diff_of_the_same_policy_is_none(run: Run, journal: str) -> None:
    assert run("replay", "job.yaml", journal, "--diff") == (0, "0 of 3 decisions differ\n", "")
    assert run("replay", "job.yaml", journal, "--diff", "--json") == (0, "", "")


def test_diff_shows_what_differs_and_nothing_else(run: Run, journal: str) -> None:
    change_job(*STRICTER)
    code, out, err = run("replay", "job.yaml", journal, "--diff")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["2", "rule", "transient", "->", "max-restarts"],
        ["action", "rebuild", "->", "fail"],
        ["recreate", "0", "->", "none"],
        ["3", "rule", "transient", "->", "max-restarts"],
        ["action", "rebuild", "->", "fail"],
        ["recreate", "0", "->", "none"],
        ["2", "of", "3", "decisions", "differ"],
    ]


def test_diff_as_json_is_one_incident_a_line(run: Run, journal: str) -> None:
    change_job(*STRICTER)
    code, out, err = run("replay", "job.yaml", journal, "--diff", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    fields = ["rule", "action", "recreate"]
    assert [(line["n"], line["differs"]) for line in lines] == [(2, fields), (3, fields)]
    assert [list(line) for line in lines] == [["n", "recorded", "now", "differs"]] * 2
    assert (lines[0]["recorded"]["action"], lines[0]["now"]["action"]) == ("rebuild", "fail")


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        pytest.param(
            ("name: check", "name: eval"),
            [],
            "job.yaml: phases: no phase 'check', which the journal names; the job has train, eval; "
            "choose one with --phase\n",
            id="a-phase-that-the-job-has-not",
        ),
        pytest.param(("name: check", "name: eval"), ["--phase", "eval"], None, id="but-one-is-chosen"),
        pytest.param(
            ("name: check", "name: check"),
            ["--phase", "none"],
            "job.yaml: phases: no phase 'none'; the job has train, check\n",
            id="a-choice-that-is-none",
        ),
    ],
)
def test_the_phase_of_a_journal(
    run: Run, journal: str, change: tuple[str, str], words: list[str], message: str | None
) -> None:
    change_job(*change)
    code, out, err = run("replay", "job.yaml", journal, "--diff", *words)
    if message is None:
        assert (code, out, err) == (0, "0 of 3 decisions differ\n", "")
    else:
        assert (code, out, err) == (2, "", f"error: {message}")


def test_diff_needs_decisions(run: Run, incidents: Callable[..., str]) -> None:
    code, out, err = run("replay", "job.yaml", incidents(CRASH), "--diff")
    message = "records no decisions to compare with; pass the journal.jsonl of a phase"
    assert (code, out, err) == (2, "", f"error: incidents.jsonl: {message}\n")


def test_diff_loads_no_prefect_and_starts_no_process(journal: str) -> None:
    program = f"""
import sys
started = []
sys.addaudithook(lambda event, _: started.append(event) if event in (
    "subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"
) else None)
from prefect_ft.cli import main
assert main(["replay", "job.yaml", {journal!r}, "--diff"]) == 0
print(started, [name for name in ("prefect", "docker") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout == "0 of 3 decisions differ\n[] []\n"
