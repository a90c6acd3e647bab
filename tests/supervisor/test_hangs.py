"""What a supervisor makes of samples: verdicts once, samples more often while one is near, stragglers told once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from heard import heard
from watched import write_job

from prefect_ft.clock import PhaseClock
from prefect_ft.decide.hang import ContainerSample, Hang, Limits, LogPattern, RankSample, Sample
from prefect_ft.decide.hang.facts import Sign
from prefect_ft.journal.lines import MemoryJournal, read_lines
from prefect_ft.journal.records import DecisionLine, HangLine, HangOverLine, PaceLine, StragglerLine
from prefect_ft.model import Evidence, Incident, Stage
from prefect_ft.observe import Fact, Notice, observed_by
from prefect_ft.records import written
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.hangs import Hangs, SuspensionPlan, incident_of, sample_of, with_blame

TOKEN = [1, 0, 1]


@dataclass
class Watched:
    """An attempt of two ranks, one on each of two workers, sampled every 10 s."""

    response: str = "report"
    limits: Limits = field(default_factory=lambda: Limits(hang_s=100.0))
    periods: list[float] = field(default_factory=list)
    journal: MemoryJournal = field(default_factory=MemoryJournal)

    def __post_init__(self) -> None:
        plan = SuspensionPlan(
            limits=self.limits, response=self.response, grace_s=0, sample_period_s=10.0  # type: ignore[arg-type]
        )  # fmt: skip
        self.hangs = Hangs(plan, self.journal, PhaseClock(), self.periods.append)
        self.hangs.begin(Attempt(1, {0: 0, 1: 1}))
        self.now_s = 0.0

    def sample(self, times: int, step: int = 0, step_of_1: int | None = None) -> None:
        """Go on, `step` steps a sample; rank 1 may be at another one."""
        for _ in range(times):
            self.now_s += 10.0
            for rank in (0, 1):
                told: dict[str, Any] = {
                    "over": False, "state": "S", "cpu_s": 0.0, "wait_s": 0.0, "io": 0, "output": 0, "beats": 1,
                    "beat_s": None, "step": int(step * self.now_s / 10), "stage": "train",
                }  # fmt: skip
                if rank and step_of_1 is not None:
                    told["step"] = step_of_1
                ranks = {str(rank): told}
                self.hangs.hear(rank, heard("sample", token=TOKEN, watched_s=self.now_s, ranks=ranks))

    def prints(self, text: str) -> None:
        self.hangs.hear(0, heard("output", token=TOKEN, text=text))

    def kinds(self) -> list[str]:
        return [line.type for line in self.journal.lines]


@contextmanager
def notices() -> Iterator[list[str]]:
    said: list[str] = []

    def take(fact: Fact) -> None:
        if isinstance(fact, Notice):
            said.append(fact.text)

    with observed_by(take):
        yield said


def test_a_verdict_that_was_recorded_does_not_come_again_until_the_ranks_got_on() -> None:
    watched = Watched()
    watched.sample(20)
    assert watched.hangs.found is not None
    watched.hangs.record(watched.hangs.found, "nowhere", None)
    watched.sample(20)
    assert watched.hangs.found is None
    watched.sample(2, step=1)
    assert [line.went_on for line in watched.journal.lines if isinstance(line, HangOverLine)] == [True]
    watched.sample(20)
    assert watched.hangs.found is not None


def test_an_attempt_that_ends_in_a_verdict_did_not_get_on() -> None:
    watched = Watched(response="shadow")
    watched.sample(20)
    assert watched.hangs.found is not None
    watched.hangs.record(watched.hangs.found, None, None)
    watched.hangs.end()
    assert watched.kinds() == ["hang", "hang-over"]
    assert watched.journal.lines[-1].went_on is False


def test_who_comes_back_does_not_say_again_what_was_said() -> None:
    watched = Watched()
    watched.sample(20)
    assert watched.hangs.found is not None
    watched.hangs.record(watched.hangs.found, None, None)
    after = Watched(journal=watched.journal)
    after.sample(20)
    assert after.hangs.found is None
    after.sample(2, step=1)
    assert after.kinds() == ["hang", "hang-over"]


def test_samples_come_more_often_while_a_verdict_may_be_near() -> None:
    watched = Watched()
    watched.sample(3, step=1)
    assert watched.periods == []
    watched.sample(7)
    assert watched.periods == [2.5]
    watched.sample(2, step=1)
    assert watched.periods == [2.5, 10.0]


def test_a_straggler_is_told_once_and_does_not_hang() -> None:
    watched = Watched()
    with notices() as said:
        for _ in range(30):
            watched.sample(1, step_of_1=int(watched.now_s + 10), step=30)
    assert said == ["rank 1 makes 33% of the others' steps for 100 s: it is at 120, they are at 390"]
    (line,) = [line for line in watched.journal.lines if isinstance(line, StragglerLine)]
    expected = {
        "attempt": 1,
        "rank": 1,
        "worker": 1,
        "step": 120,
        "others_step": 390,
        "pace": 0.333,
        "lasted_s": 100.0,
    }
    assert expected.items() <= written(line).items()
    assert watched.hangs.found is None


HANG = Hang(
    scope="one-worker",
    ranks=(0, 1),
    signs=tuple(Sign(kind="io", text=f"no I/O, {n}", lasted_s=100 + n / 3, rank=n) for n in range(20)),
    limit_s=100.0,
    blamed=1,
    worker=1,
    beside=("its container is throttled",),
)


def test_a_verdict_is_recorded_with_its_first_evidence_and_where_the_ranks_are() -> None:
    watched = Watched()
    watched.hangs.record(HANG, "in all_reduce", "hang-1.json")
    (line,) = watched.journal.lines
    assert isinstance(line, HangLine)
    fields = written(line)
    assert fields.pop("evidence") == [
        {"kind": "io", "rank": n, "text": f"no I/O, {n}", "lasted_s": round(100 + n / 3, 1)}
        for n in range(16)
    ]
    expected = {
        "n": 1, "attempt": 1, "response": "report", "scope": "one-worker", "ranks": [0, 1], "blamed": 1, "worker": 1,
        "limit_s": 100.0, "where": "in all_reduce", "diagnosis": "hang-1.json",
    }  # fmt: skip
    assert expected.items() <= json.loads(json.dumps(fields)).items()


@pytest.mark.parametrize(("blamed", "rank", "stage"), [(1, 1, "validate"), (None, 0, "train")])
def test_what_is_judged_of_a_verdict_is_about_the_rank_to_blame_or_the_first(
    blamed: int | None, rank: int, stage: Stage
) -> None:
    attempt = Attempt(3, {0: 0, 1: 1})
    for each, name in ((0, "train"), (1, "validate")):
        attempt.take(each, heard("beat", rank=each, beats=1, step=4, stage=name, stage_step=7 + each))
    hang = replace(HANG, signs=HANG.signs[:2], blamed=blamed)
    found = incident_of(hang, attempt, 5.0, "in all_reduce")
    said = f"ranks 0 and 1 hang; rank {rank}: no I/O, {rank}; its container is throttled"
    assert found == Incident(
        t=5.0,
        kind="suspended",
        attempt=3,
        worker=1,
        stage=stage,
        stage_step=7 + rank,
        evidence=Evidence(rule="one-worker", text=f"{said}; in all_reduce", file=f"rank{rank}"),
    )
    assert incident_of(hang, attempt, 5.0, None).evidence == Evidence(
        rule="one-worker", text=said, file=f"rank{rank}"
    )


def test_the_rank_that_stacks_blame_is_on_its_worker() -> None:
    attempt = Attempt(3, {0: 0, 1: 0, 2: 1})
    assert with_blame(HANG, 2, attempt) == replace(HANG, blamed=2, worker=1)
    assert with_blame(HANG, None, attempt) is HANG


def test_a_sample_has_all_that_its_agent_knows() -> None:
    known = {
        "over": True, "state": "D", "cpu_s": 1.5, "wait_s": 0.25, "io": 7, "output": 8, "beats": 9, "beat_s": 3.5,
        "step": 4, "stage": "load",
    }  # fmt: skip
    unknown = {**known, "over": False, "state": None, "cpu_s": None, "wait_s": None, "io": None}
    container = {"throttled_s": 0.5, "oom_kills": 2}
    event = heard(
        "sample",
        watched_s=12.0,
        past=True,
        devices={"0": 40.0},
        container=container,
        ranks={"0": known, "3": unknown},
    )
    fields = {name: value for name, value in known.items() if name != "over"}
    assert sample_of(event) == Sample(
        watched_s=12.0,
        ranks={
            0: RankSample(**fields, is_over=True),
            3: RankSample(**{**fields, "state": "X", "cpu_s": 0.0, "wait_s": None, "io": None}),
        },
        devices={"0": 40.0},
        container=ContainerSample(throttled_s=0.5, oom_kills=2),
        is_past=True,
    )
    assert sample_of(heard("sample", watched_s=12.0)) == Sample(watched_s=12.0, ranks={})


def test_lines_that_must_come_again_are_found_in_the_output() -> None:
    pattern = LogPattern(pattern="loss", every_s=60.0, start="epoch", stop="done")
    watched = Watched(limits=Limits(hang_s=100.0, logs=(pattern,)))
    watched.sample(1)
    watched.prints("loss before its time\n")
    assert not watched.hangs._watch.awaits(0)  # type: ignore[union-attr]
    watched.prints("epoch 1\nloss 0.3\n")
    assert watched.hangs._watch.awaits(0)  # type: ignore[union-attr]
    watched.prints("done\n")
    assert not watched.hangs._watch.awaits(0)  # type: ignore[union-attr]


def test_pauses_are_kept_when_the_attempt_ends() -> None:
    watched = Watched()
    watched.sample(3, step=1)
    watched.hangs.end()
    (line,) = [line for line in watched.journal.lines if isinstance(line, PaceLine)]
    assert set(line.pauses) == {"first_step", "train"}
    again = Watched(journal=watched.journal).hangs._pace.pauses
    assert {stage: tuple(some) for stage, some in again.items()} == line.pauses


HANGS = """
import os, sys, time
from prefect_ft.heartbeat import beat
if os.environ["PREFECT_FT_RESTART_COUNT"] != "0": sys.exit()
for step in range(4): beat(step=step); time.sleep(0.05)
time.sleep(1000)
"""


def test_a_hang_that_began_while_nobody_watched_is_found_by_who_comes_back(tmp_path: Path) -> None:
    site = write_job(
        tmp_path,
        HANGS,
        autorestart={"max_num_restarts": 1},
        suspension={"restart": True, "hang_detect_time_s": 2, "grace_s": 0},
        sample_period_s=0.2,
    )
    job = site.job.read_text().replace('"name": "one"', '"name": "one", "checkpoints": {"path": "ck"}')
    site.job.write_text(job)
    (tmp_path / "ck").mkdir()
    try:
        site.watch()
        site.orphan()
        site.watch_to_the_end()
    finally:
        site.close()
    (journal,) = site.model_dir.glob("*_restartable/journal.jsonl")
    lines = read_lines(journal)
    rules = [line.decision.rule for line in lines if isinstance(line, DecisionLine)]
    assert rules == ["suspended", "completed"]
    assert [line.type for line in lines if line.type in ("comeback", "hang")] == ["comeback", "hang"]
