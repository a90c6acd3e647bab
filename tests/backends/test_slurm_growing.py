"""When a run asks for further nodes, when it takes them, and when it does without."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from prefect_ft.backends.kind import Tenure
from prefect_ft.backends.slurm.allocations import Allocations, job_of, parts_of
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.growing import Growth, further, growing
from prefect_ft.clock import epoch_now
from prefect_ft.errors import BackendError
from prefect_ft.observe import Fact, Notice, observed_by, tell
from prefect_ft.worker.holder import ALLOCATION, ENDED

SETTLE_S, START_S = 15.0, 300.0


class Played:
    """A run in job 17 that is to have two workers; job 18 follows it."""

    def __init__(
        self,
        place: Path,
        *,
        name: str = "slurm-17",
        left_s: float | None = None,
        systems: tuple[str, ...] = ("n0",),
    ) -> None:
        self.allocations, self.now_s = Allocations(place), 1000.0
        self.asked: list[int] = []
        self.cancelled: list[str] = []
        self.over: set[str] = set()
        self.silent: set[str] = set()
        self.begin("slurm-17", "n0", "n1")
        if not self.allocations.submitted:
            self.allocations.note("17", "18")
        self.allocations.choose(name)
        self.tenure = Tenure(
            name=name, systems=systems, ends_s=None if left_s is None else epoch_now() + left_s
        )
        self.growth = Growth(
            self.tenure, 2, allocations=self.allocations, is_over=lambda job, _: job in self.over,
            answering=lambda each: [node for node in each.nodes if node not in self.silent],
            submit=self.submit, cancel=self.cancel, start_timeout_s=START_S, settle_s=SETTLE_S,
            now_s=lambda: self.now_s,
        )  # fmt: skip

    def begin(self, name: str, *nodes: str, answers: bool = True) -> None:
        place = self.allocations.directory / name
        place.mkdir(parents=True, exist_ok=True)
        told = {
            "job": job_of(name),
            "nodes": nodes,
            "hosts": {node: f"h-{node}" for node in nodes},
            "ends_s": 5.0,
        }
        (place / ALLOCATION).write_text(json.dumps(told))
        for node in nodes if answers else ():
            (place / f"{node}.json").write_text('{"port": 7}')

    def submit(self, count: int) -> str:
        self.asked.append(count)
        self.allocations.begin_submission(more_for="17")
        job = str(22 + len(self.asked))
        self.allocations.note(job)
        return job

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def look(self, workers: int = 1) -> str | None:
        return self.growth.look(workers)


def test_a_whole_run_asks_for_nothing(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert played.look(2) is None
    assert not played.asked


def test_a_run_that_lacks_a_node_asks_once_and_takes_it_when_the_loss_is_settled(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert [played.look(), played.look()] == [None, None]
    assert played.asked == [1]
    played.begin("slurm-23", "n4")
    assert played.look() is None, "ranks of the lost node may still write"
    played.now_s += SETTLE_S
    assert played.look() == "job 23 adds n4"
    assert list(played.growth.notices) == ["job 23 asks for 1 more node"]


def test_nodes_that_have_not_begun_are_waited_for_and_left_out_at_last(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look(0)
    played.begin("slurm-23", "n4", "n5", answers=False)
    (played.allocations.directory / "slurm-23" / "n5.json").write_text('{"port": 7}')
    played.look(0)
    played.silent.add("n4")
    played.now_s += START_S
    assert played.look(0) is None
    played.now_s += 1.0
    assert played.look(0) == "job 23 adds n5"


def test_a_further_job_whose_nodes_do_not_answer_is_released(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    played.begin("slurm-23", "n4")
    played.silent.add("n4")
    played.look()
    played.now_s += START_S
    assert played.look() is None
    assert not played.growth.is_given_up
    played.now_s += 1.0
    assert played.look() is None
    assert played.growth.is_given_up
    assert played.allocations.has_ended("slurm-23")


def test_a_second_loss_is_to_be_settled_too(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.begin("slurm-23", "n4")
    played.look()
    played.now_s += SETTLE_S
    assert played.look(0) is None
    played.now_s += SETTLE_S
    assert played.look(0) == "job 23 adds n4"


def test_each_further_job_has_its_own_time_to_begin(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    played.begin("slurm-23", "n4", answers=False)
    played.look()
    played.look(2)
    played.now_s += START_S + 1.0
    played.look()
    played.begin("slurm-24", "n5", answers=False)
    played.look()
    assert not played.growth.is_given_up


def test_a_further_job_that_comes_too_late_is_released(tmp_path: Path) -> None:
    played = Played(tmp_path, left_s=1000.0)
    played.look()
    played.begin("slurm-23", "n4")
    late = Played(tmp_path, left_s=599.0)
    assert late.look() is None
    assert late.allocations.has_ended("slurm-23")


def test_a_tenure_without_a_node_of_its_further_job_asks_for_no_other(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    played.begin("slurm-23", "n4")
    played.allocations.join("slurm-17")
    later = Played(tmp_path, name="slurm-17+23")
    assert later.look() is None
    assert later.growth.is_given_up
    assert not later.asked


@pytest.mark.parametrize("has_begun", [False, True], ids=["in-the-queue", "before-its-use"])
def test_what_ends_by_itself_is_not_asked_for_again(tmp_path: Path, has_begun: bool) -> None:
    played = Played(tmp_path)
    played.look()
    if has_begun:
        played.begin("slurm-23", "n4")
        (played.allocations.directory / "slurm-23" / ENDED).touch()
    played.over.add("23")
    assert played.look() is None
    assert played.growth.is_given_up
    assert played.asked == [1]
    assert Played(tmp_path).look() is None, "another orchestrator asks neither"
    assert "no more are asked for" in played.growth.notices[-1]


@pytest.mark.parametrize("has_begun", [False, True], ids=["in-the-queue", "before-its-use"])
def test_a_run_that_has_its_nodes_by_other_ways_does_without(tmp_path: Path, has_begun: bool) -> None:
    played = Played(tmp_path)
    played.look()
    if has_begun:
        played.begin("slurm-23", "n4")
    played.look(2)
    assert played.cancelled == ([] if has_begun else ["23"])
    assert played.allocations.has_ended("slurm-23") is has_begun
    played.look()
    assert played.asked == [1, 1], "a later loss is another one"


def test_a_node_that_came_and_is_lost_is_asked_for_again(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    played.begin("slurm-23", "n4")
    played.allocations.join("slurm-17")
    later = Played(tmp_path, name="slurm-17+23", systems=("n0", "n4"))
    assert later.look() is None
    assert later.asked == [1]


@pytest.mark.parametrize(("left_s", "asked"), [(599.0, []), (700.0, [1]), (None, [1])])
def test_shortly_before_the_end_nothing_is_asked_for(
    tmp_path: Path, left_s: float | None, asked: list[int]
) -> None:
    played = Played(tmp_path, left_s=left_s)
    played.look()
    assert played.asked == asked


# -- what is known of it by files -----------------------------------------------------------------------


def test_a_tenure_of_two_jobs_has_the_nodes_of_both_and_ends_with_the_first(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    played.begin("slurm-23", "n4")
    known = played.allocations
    known.join("slurm-17")
    assert known.current == "slurm-17+23"
    assert (job_of("slurm-17+23"), parts_of("slurm-17.2+23")) == ("17", ("slurm-17.2", "slurm-23"))
    found = known.named("slurm-17+23")
    assert found is not None
    assert (found.nodes, found.job, found.ends_s) == (("n0", "n1", "n4"), "17", 5.0)
    assert found.hosts["n4"] == "h-n4"
    assert set(known.ports(found)) == {"n0", "n1", "n4"}
    (known.directory / "slurm-23" / ENDED).touch()
    assert not known.has_ended("slurm-17+23")
    known.join("slurm-17+23")
    assert known.current == "slurm-17"
    assert known.further == {"23": None}
    known.release("slurm-17+23")
    assert known.has_ended("slurm-17")


def test_a_further_job_follows_nothing_and_waits_beside_what_does(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    known = played.allocations
    assert (known.submitted, known.successive) == (["17", "18", "23"], ["17", "18"])
    assert known.waiting == ["18", "23"]
    played.begin("slurm-23", "n4")
    assert known.waiting == ["18"]


def test_a_further_job_is_known_as_one_whose_submission_outlived_its_orchestrator(tmp_path: Path) -> None:
    known = Played(tmp_path).allocations
    known.begin_submission(more_for="17")
    known.note("17", "18", "23")
    assert known.further == {"23": "17"}
    known.begin_submission()
    known.note("24")
    assert known.successive == ["17", "18", "24"]


def test_a_file_of_jobs_from_before_is_read(tmp_path: Path) -> None:
    known = Allocations(tmp_path)
    known.directory.mkdir()
    (known.directory / "jobs.json").write_text('{"submitted": ["17", "18"]}')
    assert (known.further, known.successive) == ({}, ["17", "18"])


def test_a_further_job_of_which_all_nodes_are_isolated_is_released(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()
    played.begin("slurm-23", "n4")
    played.allocations.avoid("n4", is_lost=False)
    played.allocations.join("slurm-17+23")
    assert played.allocations.current == "slurm-17"
    assert played.allocations.has_ended("slurm-23")


# -- what is asked for ----------------------------------------------------------------------------------


def slurm(**fields: object) -> SlurmInfrastructure:
    return SlurmInfrastructure.model_validate({"type": "slurm", "nodes": 8, "spares": 2, **fields})


def test_a_further_job_ends_with_the_allocation() -> None:
    asked = further(slurm(time="2-0"), 1, epoch_now() + 601.0, env={})
    assert (asked.nodes, asked.spares, asked.time) == (1, 0, "11")
    assert further(slurm(time="2-0"), 1, None, env={}).time == "2-0"


def test_a_further_job_may_have_other_nodes_than_the_allocation() -> None:
    given = slurm(sbatch={"nodelist": "n[0-9]", "mem": "0"})
    assert further(given, 1, None, env={}).sbatch == {"mem": "0"}


def test_what_no_field_says_is_as_in_the_allocation_around() -> None:
    env = {
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_ACCOUNT": "team",
        "SLURM_JOB_QOS": "",
        "SLURM_JOB_ID": "17",
    }
    asked = further(slurm(account="mine"), 1, None, env=env)
    assert (asked.partition, asked.account, asked.qos) == ("gpu", "mine", None)


def test_growth_needs_a_size() -> None:
    with pytest.raises(ValueError, match="needs nodes"):
        SlurmInfrastructure.model_validate({"type": "slurm", "grows": True})


# -- the thread -----------------------------------------------------------------------------------------


def test_what_is_said_is_told_on_the_runs_own_thread_with_whatever_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.backends.slurm.growing.LOOK_S", 0.001)
    played, come, told, counts = Played(tmp_path), threading.Event(), [], iter([None, 2])
    played.begin("slurm-23", "n4")

    def workers() -> int | None:
        played.now_s += SETTLE_S
        return next(counts, 1)

    def heard(fact: Fact) -> None:
        told.append((fact, threading.current_thread()))

    with observed_by(heard), growing(played.growth, workers, lambda _: come.set()):
        assert come.wait(10.0)
        tell(Notice(text="something else"))
        here = threading.current_thread()
        expected = ["something else", "job 23 asks for 1 more node"]
        assert told == [(Notice(text=text), here) for text in expected]


def test_what_slurm_does_not_take_is_tried_some_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.backends.slurm.growing.LOOK_S", 0.001)
    played, tried, told = Played(tmp_path), [], []

    def refused(count: int) -> str:
        tried.append(count)
        raise BackendError("sbatch: no", on_any_system=True)

    played.growth._submit = refused
    with (
        observed_by(told.append),
        growing(played.growth, lambda: 1, lambda _: pytest.fail("nothing has come")),
    ):
        deadline = time.monotonic() + 10.0
        while not played.growth.notices and time.monotonic() < deadline:
            time.sleep(0.001)
    assert tried == [1, 1, 1]
    assert Notice(text="no more nodes are asked for: sbatch: no") in told


def test_a_further_job_that_waits_is_cancelled_once_too_much_was_refused(tmp_path: Path) -> None:
    played, told = Played(tmp_path), []
    played.look()

    def refused(job: str, age_s: float) -> bool:
        raise BackendError("squeue: no", on_any_system=True)

    played.growth._is_over = refused
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefect_ft.backends.slurm.growing.LOOK_S", 0.001)
        with (
            observed_by(told.append),
            growing(played.growth, lambda: 1, lambda _: pytest.fail("nothing has come")),
        ):
            deadline = time.monotonic() + 10.0
            while not played.cancelled and time.monotonic() < deadline:
                time.sleep(0.001)
    assert played.cancelled == ["23"]
    assert Notice(text="no more nodes are asked for: squeue: no") in told
    assert played.growth._pending_job() is None


def test_what_cannot_be_cancelled_either_is_left(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.look()

    def refused(job: str) -> None:
        raise BackendError("scancel: no", on_any_system=True)

    played.growth._cancel = refused
    played.growth.abandon("squeue: no")
    assert played.growth.is_given_up
