"""A job whose orchestrator dies, and what must hold when it has come back and the job has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import preloaded
from agents import processes_of

from prefect_ft.journal.lines import read_lines
from prefect_ft.run import latest_run, phase_directories

Json = dict[str, Any]

SCRIPT = """
import json, os, time
from pathlib import Path
from typing import Any
from prefect_ft import heartbeat

STEPS = 30
phase, rank = os.environ["PREFECT_FT_PHASE"], int(os.environ["RANK"])
resume = os.environ["PREFECT_FT_RESUME_FROM"]
state = json.loads(Path(resume).read_text()) if resume else {"step": 0, "sum": 0}
directory = Path(os.environ["CHECKPOINTS"])
held_at = 12 if (phase, os.environ["PREFECT_FT_ATTEMPT"]) == ("one", "1") and Path("hold").exists() else None
with (directory.parent / "starts").open("a") as starts:
    starts.write(f"{phase} {os.environ['PREFECT_FT_ATTEMPT']} {rank} {os.getpid()}\\n")
while state["step"] < STEPS:
    state = {"step": state["step"] + 1, "sum": state["sum"] + state["step"] + 1}
    heartbeat.beat(step=state["step"])
    while state["step"] == held_at:
        time.sleep(0.02)
    if rank == 0 and state["step"] % 10 == 0:
        scratch = directory / ".scratch"
        scratch.write_text(json.dumps(state))
        scratch.rename(directory / f"step-{state['step']}.json")
    if (phase, rank, state["step"]) == ("one", 1, 28) and not Path("has-failed").exists():
        Path("has-failed").touch()
        raise ConnectionError("reset")
    time.sleep(0.02)
print("the end", phase, rank)
"""


Command = Callable[[list[str]], list[str]]
"""What makes of a program's words those that are run."""

HERE = "{type: process, systems: [s0, s1], workers: 2}"


def write_job(directory: Path, infrastructure: str = HERE, **fields: str) -> Path:
    """Write the job: two phases of two workers; in the first one a rank fails once, after a checkpoint."""
    (directory / "train.py").write_text(SCRIPT)
    phases = []
    for name in ("one", "two"):
        (directory / name).mkdir()
        phases.append(
            f"  - {{name: {name}, command: [python, -S, train.py], checkpoints: {{path: {name}, settle_s: 0.1}}, "
            f"target_step: 30, cwd: {directory}, env: {{CHECKPOINTS: {directory / name}}}}}\n"
        )
    path = directory / "job.yaml"
    path.write_text(
        "name: mortal\nmodel_dir: model\nsample_period_s: 0.5\norphan_timeout_s: 60\n"
        f"infrastructure: {infrastructure}\n"
        "autorestart: {max_num_restarts: 5, restart_delay_s: 0.6}\n"
        + "".join(f"{name}: {value}\n" for name, value in fields.items())
        + "phases:\n"
        + "".join(phases)
    )
    return path


def born(
    job: Path, death: str = "", command: Command = list, *, as_command: bool = False, **env: str
) -> subprocess.Popen[bytes]:
    """Start an orchestrator that goes on with the job's run, or begins one; `command` makes it another user's.

    `as_command`: `prefect-ft run`, not a flow; Prefect is loaded beside the run, as it is there.
    """
    words = [sys.executable, str(Path(__file__).with_name("mortal.py")), str(job)]
    words += ["as-command"] if as_command else []
    with (job.parent / "orchestrator.log").open("ab") as log:
        begin = subprocess.Popen if as_command else preloaded.started
        return begin(
            command(words), env={**os.environ, **env, "DEATH": death}, cwd=job.parent, stdout=log, stderr=log
        )


def hold(job: Path) -> None:
    """Let no rank of the first attempt get past step 12: it waits there for what is done to the run."""
    (job.parent / "hold").touch()


def live(job: Path, death: str = "", command: Command = list) -> int:
    """Let an orchestrator live until it ends or dies; return its exit code, -9 for a violent end."""
    return born(job, death, command).wait(timeout=90)


def journals(model_dir: Path) -> dict[str, list[Json]]:
    """Return the journal of each phase, as it is on disk; one that was done again appears by its last directory."""
    paths = [directory / "journal.jsonl" for directory in phase_directories(str(model_dir))]
    found = [[line.write() for line in read_lines(path)] for path in paths]
    assert len({lines[0]["phase"] for lines in found}) == len(found), "a phase was begun twice"
    return {lines[0]["phase"]: lines for lines in found}


def of_type(lines: list[Json], kind: str) -> list[Json]:
    return [line for line in lines if line["type"] == kind]


def assert_right(job: Path, losses: int = 0, transient: int = 1) -> None:
    """Hold the outcome against an undisturbed run's.

    `losses`: how often workers that were killed had to be made anew; `transient`: how often the failure of
    the rank was decided about, 0 where nobody lived to see it.
    """
    model_dir = job.parent / "model"
    run = latest_run(model_dir)
    assert run is not None
    log = (job.parent / "orchestrator.log").read_text()[-3000:]
    assert run.status == "completed", log
    for name in ("one", "two"):
        assert json.loads((job.parent / name / "step-30.json").read_text()) == {"step": 30, "sum": 465}
    told = journals(model_dir)
    rules = Counter(line["rule"] for lines in told.values() for line in of_type(lines, "decision"))
    assert rules["completed"] == 2, rules
    assert rules["transient"] == transient, rules
    assert sum(rules.values()) == 2 + transient + losses, rules
    assert_nothing_twice(job, told)
    assert processes_of(job.parent) == {}
    assert processes_of(Path(os.environ["PREFECT_FT_RUNTIME_DIR"]) / run.run_id) == {}


def assert_nothing_twice(job: Path, told: dict[str, list[Json]]) -> None:
    """Every attempt that the journal knows was started once by each rank, and no other was completed."""
    starts = [line.split() for line in (job.parent / "starts").read_text().splitlines()]
    for phase, lines in told.items():
        last = of_type(lines, "attempt")[-1]
        attempts = [line["attempt"] for line in of_type(lines, "attempt")]
        assert attempts == sorted(set(attempts)), attempts
        numbers = [line["n"] for line in of_type(lines, "decision")]
        assert numbers == [line["n"] for line in of_type(lines, "incident")]
        assert numbers == list(range(1, len(numbers) + 1))
        log = b"".join(path.read_bytes() for path in (job.parent / "model").glob("*/run.log"))
        for rank in range(len(last["placement"])):
            assert log.count(f"[a{attempts[-1]} w{rank} r{rank}] the end {phase} {rank}\n".encode()) == 1, log
    assert {phase for phase, *_ in starts} == set(told)


def starts_of(job: Path) -> list[tuple[str, int, int]]:
    """Return phase, attempt and rank of every start of a rank, in their order."""
    lines = (job.parent / "starts").read_text().splitlines()
    return [(phase, int(attempt), int(rank)) for phase, attempt, rank, _ in map(str.split, lines)]
