"""The retry handler, asked by Prefect itself: for tasks of a user's own, and for phases."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.futures import wait
from prefect.states import Failed
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner

from prefect_ft.config import AutoRestart, Checkpoints, JobConfig
from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.journal.lines import Journal, MemoryJournal, read_lines
from prefect_ft.journal.records import AttemptLine, DecisionLine
from prefect_ft.model import Policy
from prefect_ft.prefect_edge.tasks import restart_handler, run_phase

pytestmark = pytest.mark.usefixtures("prefect_server")

POLICY = Policy(systems=("here",), workers=1, max_num_restarts=2)

Job = Callable[..., JobConfig]


class Failing:
    """Raises these errors, one at each call, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def in_a_flow(work: Callable[[], Any], handler: Any, runs: int = 1, **options: Any) -> list[Any]:
    """Run a task of a user's own so many times, in one flow; return its final states."""

    @task(retries=50, retry_condition_fn=handler, **options)
    def mine() -> Any:
        return work()

    @flow
    def user_flow() -> list[Any]:
        return [mine(return_state=True) for _ in range(runs)]

    states = user_flow(return_state=True)
    return list(states.result(raise_on_failure=False))


def rules(journal: MemoryJournal) -> list[str]:
    decisions = [entry.decision for entry in journal.history()]
    return [f"{decision.rule}: {decision.action}" for decision in decisions if decision is not None]


# -- tasks of a user's own --------------------------------------------------------------------------


def test_it_is_a_plain_function_because_prefect_asks_nothing_else() -> None:
    assert inspect.isfunction(restart_handler(POLICY))


def test_a_task_is_restarted_and_every_decision_is_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    work = Failing(ConnectionError("reset"), ConnectionError("reset again"))
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal))
    assert (state.is_completed(), work.calls) == (True, 3)
    assert rules(journal) == ["transient: restart_in_place", "transient: rebuild"]
    assert [line.type for line in read_lines(journal.path)] == ["incident", "decision"] * 2
    evidence = journal.history()[0].incident.evidence
    assert evidence is not None
    assert evidence.text == "ConnectionError: reset"


def test_what_a_restart_cannot_help_is_not_restarted() -> None:
    journal, work = MemoryJournal(), Failing(AssertionError("1 == 2"))
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal))
    assert (state.is_failed(), work.calls) == (True, 1)
    assert rules(journal) == ["non-recoverable: fail"]


def test_the_budget_ends_it_and_not_the_number_of_retries() -> None:
    journal, work = MemoryJournal(), Failing(*[ConnectionError("reset")] * 9)
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal))
    assert (state.is_failed(), work.calls) == (True, 3)
    assert rules(journal) == ["transient: restart_in_place", "transient: rebuild", "max-restarts: fail"]


def test_without_a_journal_each_run_of_the_task_has_its_own_budget() -> None:
    work = Failing(*[ConnectionError("reset")] * 4)
    states = in_a_flow(work, restart_handler(AutoRestart(max_num_restarts=2)), runs=3)
    assert [state.is_completed() for state in states] == [False, True, True]
    assert work.calls == 3 + 2 + 1


def test_a_journal_that_goes_on_remembers_what_was_used_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for errors, calls in ((1, 2), (9, 2)):
        journal = Journal(path)
        work = Failing(*[ConnectionError("reset")] * errors)
        in_a_flow(work, restart_handler(POLICY, journal=journal))
        journal.close()
        assert work.calls == calls
    assert rules(Journal(path))[-1] == "max-restarts: fail"


def test_progress_that_the_task_tells_begins_the_budget_anew() -> None:
    """Six failures with a budget of two: the step rises after the second and the fourth."""
    journal, work = MemoryJournal(), Failing(*[ConnectionError("reset")] * 6)
    told = iter([None, 10, 20, 20, 30, 30])
    handler = restart_handler(POLICY, journal=journal, progress=lambda: next(told))
    (state,) = in_a_flow(work, handler)
    assert (state.is_completed(), work.calls) == (True, 7)
    assert [entry.incident.step for entry in journal.history()] == [None, 10, 20, 20, 30, 30]


def test_without_progress_that_is_told_the_budget_ends() -> None:
    journal, work = MemoryJournal(), Failing(*[ConnectionError("reset")] * 6)
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal, progress=lambda: 10))
    assert (state.is_failed(), work.calls) == (True, 3)


@pytest.mark.parametrize("as_section", [False, True], ids=["path", "section"])
def test_progress_is_read_from_checkpoints(as_section: bool, tmp_path: Path) -> None:
    """The task saves at each of its calls, and a temporary file is no checkpoint."""
    calls: list[int] = []

    def work() -> int:
        calls.append(len(calls))
        (tmp_path / f"step-{10 * len(calls)}.json").write_text("{}")
        (tmp_path / f".step-{1000 * len(calls)}.json.tmp").write_text("{}")
        if len(calls) < 6:
            raise ConnectionError("reset")
        return len(calls)

    journal = MemoryJournal()
    source = Checkpoints(path=str(tmp_path), settle_s=3600) if as_section else tmp_path
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal, checkpoints=source))
    assert (state.is_completed(), len(calls)) == (True, 6)
    assert [entry.incident.step for entry in journal.history()] == [10, 20, 30, 40, 50]


def test_progress_is_read_from_a_url_and_not_known_where_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "step-10.json").write_text("{}")
    for url, step in ((f"file://{tmp_path}", 10), ("nosuch://bucket/ck", None)):
        journal, work = MemoryJournal(), Failing(ConnectionError("reset"))
        (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal, checkpoints=url))
        assert state.is_completed()
        assert [entry.incident.step for entry in journal.history()] == [step]


def test_a_directory_without_checkpoints_is_no_progress(tmp_path: Path) -> None:
    journal, work = MemoryJournal(), Failing(*[ConnectionError("reset")] * 6)
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal, checkpoints=tmp_path / "none"))
    assert (state.is_failed(), work.calls) == (True, 3)
    assert {entry.incident.step for entry in journal.history()} == {None}


def test_a_source_of_steps_that_fails_keeps_nothing_from_its_restart() -> None:
    def broken() -> int:
        raise OSError("no such bucket")

    journal, work = MemoryJournal(), Failing(ConnectionError("reset"))
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal, progress=broken))
    assert (state.is_completed(), work.calls) == (True, 2)
    assert journal.history()[0].incident.step is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"progress": lambda: 1, "checkpoints": "ck"},
            "cannot be combined with progress; pass one of the two",
            id="two-sources",
        ),
    ],
)
def test_sources_of_steps_that_cannot_be_used(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        restart_handler(POLICY, **given)


def test_a_class_that_the_user_restarts_on_is_not_confirmed_but_restarted() -> None:
    policy = AutoRestart(max_num_restarts=9, restart_on=("user_code",))
    work = Failing(*[ValueError("bad")] * 4)
    (state,) = in_a_flow(work, restart_handler(policy))
    assert (state.is_completed(), work.calls) == (True, 5)


@pytest.mark.parametrize(
    ("restart_delay_s", "delay_s"),
    [
        pytest.param(0.02, 0.04, id="the-policys-backoff"),
        pytest.param(0, 0.01, id="else-the-tasks-own-delay"),
    ],
)
def test_how_long_a_task_waits(restart_delay_s: float, delay_s: float) -> None:
    handler = restart_handler(AutoRestart(max_num_restarts=2, restart_delay_s=restart_delay_s))
    waited = []

    def noting(task: Any, task_run: Any, state: Any) -> bool:
        again = handler(task, task_run, state)
        waited.append(task.retry_delay_seconds)
        return again

    in_a_flow(Failing(*[ConnectionError("reset")] * 2), noting, retry_delay_seconds=0.01)
    assert waited[-1] == delay_s


def test_a_task_that_returns_a_failure_is_judged_by_its_message() -> None:
    journal = MemoryJournal()
    in_a_flow(lambda: Failed(message="Killed"), restart_handler(POLICY, journal=journal))
    assert rules(journal)[-1] == "max-restarts: fail"


def test_a_message_that_is_no_text_does_not_stop_it() -> None:
    journal, work = MemoryJournal(), Failing(ConnectionError("\udcff"))
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal))
    assert (state.is_completed(), rules(journal)) == (True, ["transient: restart_in_place"])


def test_without_a_record_nothing_is_restarted_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, work = Journal(tmp_path / "journal.jsonl"), Failing(ConnectionError("reset"))
    journal.close()
    (state,) = in_a_flow(work, restart_handler(POLICY, journal=journal))
    assert (state.is_failed(), work.calls) == (True, 1)
    assert isinstance(state.result(raise_on_failure=False), ConnectionError)
    assert "the journal cannot be written: Bad file descriptor" in caplog.text


# -- phases -----------------------------------------------------------------------------------------


def run(job: JobConfig, phase: int | str = 0) -> Any:
    @flow
    def user_flow() -> Any:
        return run_phase(job, phase)

    return user_flow()


def journal_of(job: JobConfig) -> list[Any]:
    (path,) = Path(job.model_dir).glob("*_restartable/journal.jsonl")
    return read_lines(path)


def no_incident(*_: Any, **__: Any) -> None:
    raise JournalError("no room")


def divide(*_: Any, **__: Any) -> Any:
    return 1 / 0


@pytest.mark.parametrize(
    ("broken", "how", "error"),
    [
        pytest.param(
            "prefect_ft.journal.lines.Journal.append_incident", no_incident, JournalError, id="the-journal"
        ),
        pytest.param("prefect_ft.journal.judge.decide", divide, ZeroDivisionError, id="the-decision"),
        pytest.param(
            "prefect_ft.supervisor.incidents.judge", divide, ZeroDivisionError, id="the-classification"
        ),
        pytest.param("prefect_ft.supervisor.beginning.Launch", divide, ZeroDivisionError, id="the-start"),
    ],
)
def test_what_breaks_on_the_way_to_a_decision_reaches_the_caller_and_restarts_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch, broken: str, how: Any, error: type[Exception]
) -> None:
    monkeypatch.setattr(broken, how)
    config = job("raise ConnectionError('reset')")
    with pytest.raises(error):
        run(config)
    lines = journal_of(config)
    assert [line for line in lines if isinstance(line, DecisionLine)] == []
    assert len([line for line in lines if isinstance(line, AttemptLine)]) <= 1
    assert (lines[-1].type, lines[-1].status) == ("end", "failed")


def test_a_watcher_that_breaks_does_not_break_the_run(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    from prefect_ft.observe import observed_by

    with observed_by(divide):
        summary = run(job("if not restarts: raise ConnectionError('reset')"))
    assert (summary.status, summary.restarts) == ("completed", {"restart_in_place": 1})
    assert "Decided could not be shown" in caplog.text


# -- task runners -----------------------------------------------------------------------------------


def test_tasks_that_fail_at_the_same_time_share_one_budget(tmp_path: Path) -> None:
    """`.map` has each in a thread of its own; the disk is slow, so that they come to it at the same time."""

    def slow_disk() -> None:
        threading.Event().wait(0.02)

    journal = Journal(tmp_path / "journal.jsonl", slow_disk)
    together = threading.Barrier(8)
    attempts: list[int] = []

    @task(retries=50, retry_condition_fn=restart_handler(POLICY, journal=journal))
    def mine(number: int) -> None:
        attempts.append(number)
        if attempts.count(number) == 1:
            together.wait()
        raise ConnectionError("reset")

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=8))
    def user_flow() -> None:
        wait(mine.map(range(8)))

    user_flow()
    journal.close()
    decisions = [line.decision.action for line in read_lines(journal.path) if isinstance(line, DecisionLine)]
    assert (len(attempts), len(decisions)) == (8 + POLICY.max_num_restarts, 8 + POLICY.max_num_restarts)
    assert decisions.count("fail") == 8
    assert [line.n for line in read_lines(journal.path)] == [n for n in range(1, 11) for _ in range(2)]


@pytest.fixture
def processes() -> Iterator[None]:
    """End what multiprocessing keeps for the next pool."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # there is no public way


def test_a_journal_is_not_sent_to_another_process(tmp_path: Path, processes: None) -> None:
    handler = restart_handler(POLICY, journal=Journal(tmp_path / "journal.jsonl"))

    @task(retries=50, retry_condition_fn=handler)
    def mine() -> None:
        raise ConnectionError("reset")

    @flow(task_runner=ProcessPoolTaskRunner(max_workers=1))
    def user_flow() -> None:
        mine.submit().wait()

    with pytest.raises(
        TypeError, match=r"a journal cannot be pickled: .* leave `journal` out of restart_handler"
    ):
        user_flow()
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


@pytest.mark.long
def test_a_task_run_in_another_process_has_its_own_budget(tmp_path: Path, processes: None) -> None:
    """Also where runs before it, in this process, have left a history."""
    handler = restart_handler(POLICY)
    in_a_flow(Failing(ConnectionError("reset")), handler)
    ran = tmp_path / "ran"

    @task(retries=50, retry_condition_fn=handler)
    def mine() -> None:
        with ran.open("a") as file:
            file.write("x")
        raise ConnectionError("reset")

    @flow(task_runner=ProcessPoolTaskRunner(max_workers=1))
    def user_flow() -> None:
        mine.submit().wait()

    user_flow()
    assert ran.read_text() == "x" * (1 + (POLICY.max_num_restarts or 0))
