"""A failure that comes back at its step, from different checkpoints: its steps are skipped, and the run completes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import RunFailedError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine, IncidentLine
from prefect_ft.model import Decision, Incident

Make = Callable[..., JobConfig]

CODE = """
from prefect_ft.heartbeat import beat, skips
start, trained = 0, []
if resume:
    start = int(resume.split("step-")[1].split(".")[0])
    trained = json.loads(zipfile.ZipFile(resume).read("weights"))
for step in range(start + 1, 41):
    beat(step=step)
    if not skips(step):
        if step == 33:
            while not os.path.exists("ck/step-30.npz"):  # rank 0's, which may be slower
                time.sleep(0.01)
            raise FloatingPointError("loss is nan")
        trained.append(step)
    if step % 10 == 0 and rank == 0:
        with zipfile.ZipFile(f"ck/.tmp-{step}", "w") as file:
            file.writestr("weights", json.dumps(trained))
        os.replace(f"ck/.tmp-{step}", f"ck/step-{step}.npz")
with open(f"trained-{rank}", "w") as file:
    json.dump(trained, file)
"""


PRINTED = CODE.replace(
    "    beat(step=step)\n",
    "    if step % 2 == 0 and rank == 0: print(f'iter {step}: loss 2.5, time 300.00ms')\n",
)
"""The same without heartbeats: rank 0 prints every second step, as nanoGPT prints them."""


WATCHED = """
from prefect_ft.heartbeat import beat, skips
start, trained = 0, []
if resume:
    start = int(resume.split("step-")[1].split(".")[0])
    trained = json.loads(zipfile.ZipFile(resume).read("weights"))
def save(step):
    with zipfile.ZipFile(f"ck/.tmp-{step}", "w") as file:
        file.writestr("weights", json.dumps(trained))
    os.replace(f"ck/.tmp-{step}", f"ck/step-{step}.npz")
for step in range(start + 1, 61):
    skipped = skips(step)
    bad = step == 43 and not skipped
    if not skipped:
        trained.append(step)
    beat(step=step, loss=(BAD if bad else 2.0 + step % 3 / 10), sample=f"shard-{step}")
    if step % 10 == 0:
        save(step)
    if bad:
        save(step + 1)  # the script does not see it, and goes on
        time.sleep(60)
with open("trained", "w") as file:
    json.dump(trained, file)
"""
"""A script that would train on: its values alone say that something is wrong."""


def told(job: JobConfig) -> tuple[list[Incident], list[Decision]]:
    lines = read_lines(next(Path(job.model_dir).glob("*_restartable/journal.jsonl")))
    incidents = [line.incident for line in lines if isinstance(line, IncidentLine)]
    return incidents, [line.decision for line in lines if isinstance(line, DecisionLine)]


def test_bad_numbers_that_come_back_are_skipped(job: Make, tmp_path: Path) -> None:
    config = job(CODE, autorestart={"max_num_restarts": 3, "skip_steps": 5})
    assert train_flow(config)[0]["status"] == "completed"
    incidents, decisions = told(config)
    assert [(each.reached, each.reached_every) for each in incidents[:2]] == [(33, 1)] * 2
    assert [(each.rule, each.resume_step, each.skip_steps) for each in decisions] == [
        ("numeric", 20, ()),
        ("skip-steps", 20, ((30, 34),)),
        ("completed", None, ()),
    ]
    expected = [step for step in range(1, 41) if not 30 <= step <= 34]
    assert [json.loads((tmp_path / f"trained-{rank}").read_text()) for rank in (0, 1)] == [expected] * 2


@pytest.mark.parametrize("pattern", [None, r"^iter (\d+): loss"])
def test_steps_that_ranks_only_print_do_as_well(job: Make, tmp_path: Path, pattern: str | None) -> None:
    autorestart = {"max_num_restarts": 3, "skip_steps": 5}
    phase = {
        "progress_pattern": pattern,
        "nproc_per_worker": 1,
    }  # ranks that do not wait for each other differ
    config = job(PRINTED, phase=phase, autorestart=autorestart)
    assert train_flow(config)[0]["status"] == "completed"
    incidents, decisions = told(config)
    assert [(each.reached, each.reached_every) for each in incidents[:2]] == [(32, 2)] * 2
    assert [(each.rule, each.skip_steps) for each in decisions[:2]] == [
        ("numeric", ()),
        ("skip-steps", ((30, 34),)),
    ]
    expected = [step for step in range(1, 41) if not 30 <= step <= 34]
    assert json.loads((tmp_path / "trained-0").read_text()) == expected


@pytest.mark.parametrize("bad", ["float('nan')", "90.0"], ids=["nan", "a-jump"])
def test_a_value_out_of_the_usual_is_skipped_where_it_comes_back(job: Make, tmp_path: Path, bad: str) -> None:
    config = job(
        "import time\n" + WATCHED.replace("BAD", bad),
        phase={"nproc_per_worker": 1, "checkpoints": {"path": "ck", "settle_s": 0}},
        autorestart={"max_num_restarts": 3, "skip_steps": 5},
        numeric={"watch": "act", "window": 16, "min_values": 8},
        sample_period_s=0.2,
    )
    assert train_flow(config)[0]["status"] == "completed"
    incidents, decisions = told(config)
    assert [(each.failure_class, each.reached, each.sample) for each in incidents[:2]] == [
        ("numeric", 43, "shard-43")
    ] * 2
    assert [each.step for each in incidents[:2]] == [40, 40], "that of step 44 was saved too late"
    assert [(each.rule, each.resume_step, each.skip_steps) for each in decisions] == [
        ("numeric", 30, ()),
        ("skip-steps", 30, ((40, 44),)),
        ("completed", None, ()),
    ]
    expected = [step for step in range(1, 61) if not 40 <= step <= 44]
    assert json.loads((tmp_path / "trained").read_text()) == expected


def test_they_end_the_phase_where_nothing_may_be_skipped(job: Make) -> None:
    config = job(CODE)
    with pytest.raises(RunFailedError, match="fails at step 33 from wherever it starts"):
        train_flow(config)
    assert [each.rule for each in told(config)[1]] == ["numeric", "numeric"]
