"""How a run comes to its allocation where something is in the way; Slurm's answers are played, as they were printed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from prefect_ft.backends.kind import Place, Tenure
from prefect_ft.backends.slurm.allocations import Allocations
from prefect_ft.backends.slurm.checks import check_partition, check_room
from prefect_ft.backends.slurm.commands import CommandResult, Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.holdings import clear
from prefect_ft.backends.slurm.lending import Lending
from prefect_ft.backends.slurm.queue import Queue
from prefect_ft.backends.slurm.waiting import may_begin
from prefect_ft.errors import BackendError, ConfigError, TenureCancelledError
from prefect_ft.worker.holder import ALLOCATION

QUEUE = "".join(f"{job}|PENDING|Priority||N/A|1:00:00\n" for job in (17, 18, 19))


class Played:
    """A Slurm that answers by the first word of a command, and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, CommandResult]) -> None:
        self._answers = answers
        self.asked: list[str] = []
        self.words: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str], timeout_s: float) -> CommandResult:
        self.words.append(words)
        self.asked.append(words[0] if words[2:3] != ("-t",) else "queue")
        if words[:4] == ("squeue", "-h", "-t", "all"):
            return CommandResult(True, QUEUE, "")
        return self._answers.get(words[0], CommandResult(False, "", f"no answer in {timeout_s:g} s"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root = tmp_path / "root"
    (root / "slurm").mkdir(parents=True)
    (tmp_path / "rt").mkdir()
    return Place(
        run_id="r", key="k" * 64, job="job", model_dir=tmp_path, run_root=root, directory=tmp_path / "rt"
    )


def lending(place: Place, played: Played) -> Lending:
    given = SlurmInfrastructure.model_validate({"type": "slurm", "nodes": 2})
    slurm = Slurm(run=played)
    return Lending(given, place, slurm, Queue(slurm.queue, None))


def test_a_job_of_an_orchestrator_that_died_before_it_noted_it_is_found(place: Place) -> None:
    played = Played({"squeue": CommandResult(True, "18\n17\n17\n", "")})
    found = lending(place, played)
    found._allocations.begin_submission()
    assert found._waiting() == "17"
    assert (found._allocations.submitted, found._allocations.is_submitting) == (["17", "18"], False)


def test_no_second_job_is_submitted_while_nobody_knows_of_the_first(place: Place) -> None:
    played = Played({})
    found = lending(place, played)
    found._allocations.begin_submission()
    with pytest.raises(BackendError, match="may have been submitted"):
        found.tenure(lambda: False)
    assert "sbatch" not in played.asked
    assert found._allocations.is_submitting


def test_a_submission_is_recorded_before_slurm_hears_of_it(place: Place) -> None:
    """An orchestrator may be killed while `sbatch` runs: the next one must look for the job."""
    recorded: list[bool] = []

    class Noted(Played):
        def __call__(self, words: Sequence[str], timeout_s: float) -> CommandResult:
            if words[0] == "sbatch":
                recorded.append(Allocations(place.run_root).is_submitting)
            return super().__call__(words, timeout_s)

    found = lending(place, Noted({"sbatch": CommandResult(True, "19\n", "")}))
    assert found.tenure(lambda: bool(recorded)) is None
    assert recorded == [True]


def test_a_submission_that_slurm_has_answered_is_over(place: Place) -> None:
    played = Played({"sbatch": CommandResult(True, "19\n", "")})
    found = lending(place, played)
    asked = 0

    def is_stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    assert found.tenure(is_stopped) is None
    assert (found._allocations.submitted, found._allocations.is_submitting) == (["19"], False)
    assert "squeue" not in played.asked


def test_what_a_run_has_isolated_is_in_none_of_its_later_allocations(place: Place) -> None:
    played = Played({"sbatch": CommandResult(True, "19\n", "")})
    found = lending(place, played)
    found._allocations.avoid("n1", is_lost=True)
    found._allocations.avoid("n2", is_lost=False)
    assert found.tenure(lambda: "sbatch" in played.asked) is None
    (submitted,) = (words for words in played.words if words[0] == "sbatch")
    assert "--exclude=n1,n2" in submitted


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        pytest.param(CommandResult(True, "8:00:00\n", ""), "8:00:00", id="hours"),
        pytest.param(CommandResult(True, "2-00:00:00\n", ""), "2-00:00:00", id="days"),
        pytest.param(CommandResult(True, "UNLIMITED\n", ""), None, id="none"),
        pytest.param(CommandResult(True, "", ""), None, id="gone"),
        pytest.param(CommandResult(False, "", "no answer in 20 s"), None, id="unknown"),
    ],
)
def test_the_time_limit_of_a_users_job_is_that_of_its_successor(
    said: CommandResult, limit: str | None
) -> None:
    assert Slurm(run=Played({"squeue": said})).time_limit("17") == limit


class Ended(Played):
    """A Slurm whose first jobs end in a state before their nodes begin, and whose later ones wait."""

    def __init__(self, state: str, by: str, ends: int) -> None:
        super().__init__({})
        self._state, self._by, self._ends = state, by, ends
        self.submitted = 0

    def __call__(self, words: Sequence[str], timeout_s: float) -> CommandResult:
        if words[0] == "sbatch":
            self.submitted += 1
            return CommandResult(True, f"{self.submitted}\n", "")
        if words[0] == "sacct":
            return CommandResult(True, f"{words[words.index('-j') + 1]}|{self._by}|None assigned\n", "")
        has_ended = self.submitted <= self._ends
        state = self._state if has_ended else "PENDING"
        if words[0] == "squeue":
            return CommandResult(True, f"{self.submitted}|{state}|None||N/A|1:00:00\n", "")
        return CommandResult(True, f"JobId={words[-1]} JobState={state} Reason=None\n", "")


@pytest.mark.parametrize(
    ("state", "by", "ends", "error", "submitted"),
    [
        pytest.param(
            "CANCELLED", f"CANCELLED by {os.getuid()}", 9, TenureCancelledError, 1, id="by-the-user"
        ),
        pytest.param("CANCELLED", "CANCELLED", 9, TenureCancelledError, 1, id="by-nobody-knows-whom"),
        pytest.param("CANCELLED", "CANCELLED by 4711", 1, None, 2, id="could-not-be-launched"),
        pytest.param("CANCELLED", "CANCELLED by 4711", 9, TenureCancelledError, 4, id="again-and-again"),
        pytest.param("NODE_FAIL", "NODE_FAIL", 1, None, 2, id="a-node-failed"),
        pytest.param("PREEMPTED", "PREEMPTED", 2, None, 3, id="preempted"),
        pytest.param("FAILED", "FAILED", 1, BackendError, 1, id="its-own-fault"),
        pytest.param("DEADLINE", "DEADLINE", 1, BackendError, 1, id="too-late"),
    ],
)
def test_a_job_that_ends_before_it_begins(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    by: str,
    ends: int,
    error: type[Exception] | None,
    submitted: int,
) -> None:
    monkeypatch.setattr("prefect_ft.backends.slurm.waiting.ASK_S", (0.0, 0.0))
    monkeypatch.setattr("prefect_ft.backends.slurm.waiting.LOOK_S", (0.0, 0.0))
    played = Ended(state, by, ends)
    found, deadline = lending(place, played), time.monotonic() + 30

    def is_stopped() -> bool:
        return played.submitted > ends or time.monotonic() > deadline

    if error is None:
        assert found.tenure(is_stopped) is None
    else:
        with pytest.raises(error, match=f"(never started|ended before its nodes began): {state}"):
            found.tenure(is_stopped)
    assert played.submitted == submitted


@pytest.mark.parametrize(
    ("answering", "waited_s", "begins"),
    [
        pytest.param(3, 0.0, True, id="all"),
        pytest.param(2, 29.0, False, id="a-spare-may-come"),
        pytest.param(2, 31.0, True, id="without-a-spare"),
        pytest.param(1, 31.0, False, id="a-worker-may-come"),
        pytest.param(1, 301.0, True, id="with-what-there-is"),
        pytest.param(0, 301.0, False, id="none"),
    ],
)
@pytest.mark.parametrize("nodes", [2, None])
def test_when_a_run_begins(answering: int, waited_s: float, begins: bool, nodes: int | None) -> None:
    given = SlurmInfrastructure.model_validate({"type": "slurm", "nodes": nodes, "spares": 1})
    assert may_begin(given, answering, 3, waited_s) is begins


# -- further jobs ---------------------------------------------------------------------------------------


def grown(place: Place) -> tuple[Lending, Played]:
    """Return the lending of a run in job 17, followed by 18, for which 23 waits and 24 has begun."""
    played = Played({"scancel": CommandResult(True, "", "")})
    found = lending(place, played)
    known = found._allocations
    known.note("17", "18")
    for job in ("23", "24"):
        known.begin_submission(more_for="17")
        known.note(job)
    for job in ("17", "24"):
        directory = known.directory / f"slurm-{job}"
        directory.mkdir()
        (directory / ALLOCATION).write_text(json.dumps({"job": job, "nodes": [f"n{job}"], "hosts": {}}))
    return found, played


@pytest.mark.parametrize("contains_us", [False, True])
def test_an_allocation_is_released_with_what_was_asked_for_to_be_added(
    place: Place, contains_us: bool
) -> None:
    """In an allocation of the user's own that alone."""
    found, played = grown(place)
    found.release(Tenure(name="slurm-17", systems=("n17",), ends_s=None, contains_us=contains_us))
    known = found._allocations
    assert played.words == [("scancel", "23")]
    assert known.has_ended("slurm-24")
    assert known.has_ended("slurm-17") is not contains_us
    assert known.further == {"23": None, "24": None}


def test_a_later_allocation_does_not_wait_for_the_further_jobs_of_an_earlier_one(place: Place) -> None:
    """They have its name, and Slurm lets no successor begin beside them."""
    found, played = grown(place)
    found._allocations.release("slurm-17")
    asked = iter([False, True])
    assert found.tenure(lambda: next(asked, True)) is None
    assert ("scancel", "23") in played.words
    assert found._allocations.has_ended("slurm-24")


def test_a_tenure_that_has_ended_is_joined_by_nothing(place: Place) -> None:
    found, _ = grown(place)
    tenure = Tenure(name="slurm-17", systems=("n17",), ends_s=None)
    found._allocations.release("slurm-17")
    assert not found.join(tenure)
    assert found._allocations.current is None


def test_a_run_grows_to_its_size_once_a_loss_is_settled(place: Place) -> None:
    """10 s until the node is noticed, 60 until its ranks notice it, 10 to end them."""
    growth = lending(place, Played({})).growth(Tenure(name="slurm-17", systems=("n0",), ends_s=None))
    assert (growth._target, growth._settle_s, growth._start_timeout_s) == (2, 80.0, 300.0)


def test_what_is_cleared_includes_a_job_whose_submission_was_not_noted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played({"squeue": CommandResult(True, "17\n", ""), "scancel": CommandResult(True, "", "")})
    monkeypatch.setattr("prefect_ft.backends.slurm.holdings.Slurm", lambda: Slurm(run=played))
    known = Allocations(place.run_root)
    known.point_from(place.directory, "job-r")
    known.begin_submission()
    clear(place.directory)
    assert ("scancel", "--state=PENDING", "17") in played.words


def test_an_unknown_partition_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"field: there is no partition 'gqu'; there are cpu, gpu"):
        check_partition("cpu,gqu", {"gpu", "cpu"}, "field")
    check_partition("cpu,gpu", {"gpu", "cpu"}, "field")
    check_partition("gqu", None, "field")


@pytest.mark.parametrize(
    ("fields", "count", "why"),
    [
        pytest.param(
            {"nodes": 4}, "3", r"infrastructure\.nodes: the allocation around has 3 nodes", id="nodes"
        ),
        pytest.param(
            {"spares": 3}, "3", r"infrastructure\.spares: the allocation around has 3 nodes", id="spares"
        ),
        pytest.param({"nodes": 3, "spares": 2}, "3", None, id="fewer-spares-will-do"),
        pytest.param({"spares": 2}, "3", None, id="one-is-left"),
        pytest.param({"nodes": 4}, "", None, id="unknown"),
    ],
)
def test_the_allocation_around_must_have_room(fields: dict[str, int], count: str, why: str | None) -> None:
    given = SlurmInfrastructure.model_validate({"type": "slurm", **fields})
    if why is None:
        check_room(given, count, "infrastructure")
        return
    with pytest.raises(ConfigError, match=why):
        check_room(given, count, "infrastructure")
