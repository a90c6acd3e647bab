"""Systems that a scheduler lends for a time: the run is handed over to the next allocation, and resumed there."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.backends.kind import SUCCESSOR_OF, Place, Tenure, TenureEnd, kind_of
from prefect_ft.backends.process.kind import ProcessKind
from prefect_ft.cli import main
from prefect_ft.config import JobConfig
from prefect_ft.errors import NotStartedError
from prefect_ft.journal.attempts import timeline_of
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import AttemptLine, DecisionLine, HandOverLine, IncidentLine, Line, TenureLine
from prefect_ft.model import Kind
from prefect_ft.orchestrate.entering import Entered, enter
from prefect_ft.orchestrate.executing import execute
from prefect_ft.orchestrate.live import Live
from prefect_ft.orchestrate.run import held
from prefect_ft.run import latest_run
from prefect_ft.supervisor import HandedOverError, HandOver

SAVES_WHEN_ASKED = """
import os, time
from prefect_ft import heartbeat
resumed = os.environ["PREFECT_FT_RESUME_FROM"]
step = int(os.path.basename(resumed).removeprefix("step-").removesuffix(".json")) if resumed else 0
print(f"starts from {step} because of {os.environ['PREFECT_FT_RESTART_REASON']}", flush=True)
if step:
    raise SystemExit
step = 7
open("begun", "w").close()
while True:
    heartbeat.beat(step=step)
    if heartbeat.should_checkpoint():
        open("ck/.new", "w").write("{}")
        os.rename("ck/.new", f"ck/step-{step}.json")
    time.sleep(0.01)
"""


class Scheduler:
    """Lends the systems of the process backend; the first allocation ends by `first_end_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_end_s: Callable[[], float | None]) -> None:
        self.given: list[str] = []
        self.released: list[str] = []
        self.queued: list[str] = []
        self.ends = TenureEnd(kind="handed_over", reason="TIMEOUT")
        self.contains_us = False
        self._first_end_s = first_end_s
        for name in ("tenure", "renewed", "end_of_tenure", "succeed", "release"):
            monkeypatch.setattr(ProcessKind, name, getattr(self, name))

    def tenure(self, _: Any, place: Place, is_stopped: Callable[[], bool]) -> Tenure | None:
        assert place.run_root.is_dir()
        if is_stopped():
            return None
        name = f"allocation-{len(self.given) + 1}"
        self.given.append(name)
        ends_s = self._first_end_s() if len(self.given) == 1 else None
        systems = ("s0", "s1") if len(self.given) == 1 else ("s1", "s2")
        return Tenure(name=name, systems=systems, ends_s=ends_s, contains_us=self.contains_us)

    def renewed(self, _: Any, __: Place, tenure: Tenure) -> Tenure:
        return replace(tenure, ends_s=self._first_end_s()) if tenure.name == "allocation-1" else tenure

    def end_of_tenure(self, _: Any, __: Place, ___: str) -> TenureEnd:
        return self.ends

    def succeed(self, _: Any, __: Place, tenure: Tenure) -> str:
        self.queued.append(tenure.name)
        return f"what follows {tenure.name}"

    def release(self, _: Any, __: Place, tenure: Tenure) -> None:
        self.released.append(tenure.name)


def job_in(directory: Path, code: str, **fields: Any) -> JobConfig:
    (directory / "train.py").write_text(code)
    phase = {
        "name": "train",
        "command": [sys.executable, "train.py"],
        "checkpoints": {"path": "ck", "settle_s": 0, "on_demand": {"grace_s": 30}},
    }
    known = {
        "name": "j",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": {"type": "process", "systems": ["s0", "s1", "s2"], "workers": 1},
        "autorestart": {"max_num_restarts": 3},
        "phases": [phase],
    }
    return JobConfig.model_validate({**known, **fields}).at(directory)


def ends_when_begun(directory: Path) -> Callable[[], float | None]:
    """The end of an allocation that comes near once its ranks train."""
    return lambda: time.time() if (directory / "begun").exists() else time.time() + 0.05 + 30


def run(job: JobConfig, entered: Entered | None = None) -> str:
    entered = entered or enter(job, "resume")
    with held(entered.holding, entered.job) as (_, stop):
        return execute(entered, stop, Live()).status


def lines_of(job: JobConfig) -> list[Line]:
    latest = latest_run(Path(job.model_dir))
    assert latest is not None
    directory = latest.directory_of(0)
    assert directory is not None
    return read_lines(directory / "journal.jsonl")


def of(lines: list[Line], kind: type[Any]) -> list[Any]:
    return [line for line in lines if isinstance(line, kind)]


def test_a_run_saves_at_the_end_of_its_allocation_and_goes_on_in_the_next(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(monkeypatch, ends_when_begun(tmp_path))
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    assert run(job) == "completed"
    lines = lines_of(job)
    assert (
        [line.name for line in of(lines, TenureLine)] == scheduler.given == ["allocation-1", "allocation-2"]
    )
    assert (scheduler.released, scheduler.queued) == (["allocation-1"], scheduler.given)
    [left] = of(lines, HandOverLine)
    assert (left.attempt, left.is_clean, left.step) == (1, True, 7)
    moved, completed = (line.incident for line in of(lines, IncidentLine))
    assert (moved.kind, moved.attempt, moved.systems, moved.step) == ("handed_over", 1, ("s1", "s2"), 7)
    assert completed.kind == "completed"
    decision = of(lines, DecisionLine)[0].decision
    assert (decision.rule, decision.action, decision.resume_step) == ("handed-over", "rebuild", 7)
    assert decision.counters.failures_without_progress == 0
    assert [line.placement for line in of(lines, AttemptLine)] == [("s0",), ("s1",)]
    since_t, until_t = left.t, of(lines, TenureLine)[1].t
    timeline = timeline_of(lines, lines[-1].t)
    assert [(span.start, span.end) for span in timeline.spans if span.part == "queue"] == [(since_t, until_t)]
    said = next(tmp_path.glob("model/*_restartable/run.log")).read_text()
    assert "starts from 7 because of handed-over" in said


def test_what_is_inside_of_the_allocation_leaves_the_run_to_who_begins_in_the_next(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(monkeypatch, ends_when_begun(tmp_path))
    scheduler.contains_us = True
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    with pytest.raises(HandedOverError, match="allocation-1 ends at"):
        run(job)
    latest = latest_run(Path(job.model_dir))
    assert latest is not None
    assert latest.status == "running"
    assert run(job) == "completed"
    assert [line.placement for line in of(lines_of(job), AttemptLine)] == [("s0",), ("s1",)]
    assert scheduler.released == ["allocation-1"], "what may have been asked for to be added is released"


class Growing(Scheduler):
    """One whose first allocation gets more systems when `comes` says so, or at the latest when its phase ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, comes: Callable[[], bool]) -> None:
        super().__init__(monkeypatch, lambda: None)
        self.joined: list[str] = []
        self.lasts = True
        self._comes = comes
        for name in ("growing", "join"):
            monkeypatch.setattr(ProcessKind, name, getattr(self, name))

    @contextmanager
    def growing(
        self,
        _: Any,
        __: Place,
        tenure: Tenure,
        workers: Callable[[], int | None],
        grown: Callable[[str], None],
    ) -> Iterator[None]:
        if tenure.name != "allocation-1":
            yield
            return
        left, told = threading.Event(), partial(grown, "job 23 adds s2")
        thread = threading.Thread(
            target=when, args=(lambda: left.is_set() or self._comes(), told), daemon=True
        )
        thread.start()
        assert workers() is None
        yield
        left.set()
        thread.join()

    def join(self, _: Any, __: Place, tenure: Tenure) -> bool:
        self.joined.append(tenure.name)
        return self.lasts


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_that_grows_keeps_what_it_has(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Also where this process is in the allocation: it continues, and does not leave the run to the next job."""
    scheduler = Growing(monkeypatch, (tmp_path / "begun").exists)
    scheduler.contains_us = inside
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    assert run(job) == "completed"
    assert (scheduler.joined, scheduler.released) == (["allocation-1"], [])
    moved, completed = (line.incident for line in of(lines_of(job), IncidentLine))
    assert (moved.kind, moved.evidence.text) == (
        "handed_over",
        "from allocation-1 to allocation-2: job 23 adds s2",
    )
    assert completed.kind == "completed"


def test_a_run_that_grows_as_its_allocation_ends_gives_it_back(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Growing(monkeypatch, (tmp_path / "begun").exists)
    scheduler.lasts = False
    assert run(job_in(tmp_path, SAVES_WHEN_ASKED)) == "completed"
    assert (scheduler.joined, scheduler.released) == (["allocation-1"], ["allocation-1"])


def test_a_phase_that_completes_as_its_run_grows_is_followed_by_the_next_one(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Growing(monkeypatch, lambda: False)
    phase = {"command": [sys.executable, "train.py"], "checkpoints": {"path": "ck", "settle_s": 0}}
    job = job_in(tmp_path, "", phases=[{**phase, "name": name} for name in ("first", "second")])
    assert run(job) == "completed"
    assert (scheduler.joined, scheduler.released) == ([], [])
    assert not of(lines_of(job), HandOverLine)


def test_a_sigterm_of_the_allocation_ends_growth(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an allocation of the user's own that is its end, whatever else was under way."""
    scheduler = Growing(monkeypatch, (tmp_path / "begun").exists)
    scheduler.contains_us = True
    job = job_in(
        tmp_path, SAVES_WHEN_ASKED.replace('open("ck/.new"', f'os.kill({os.getpid()}, 15); open("ck/.new"')
    )
    with pytest.raises(HandedOverError):
        run(job)
    assert (scheduler.joined, scheduler.released) == ([], ["allocation-1"])


@pytest.mark.parametrize(
    ("end", "kinds", "status"),
    [
        pytest.param("preempted", ["preempted", "handed_over", "completed"], "completed", id="preempted"),
        pytest.param("handed_over", ["handed_over", "completed"], "completed", id="time-limit"),
        pytest.param("cancelled", ["cancelled"], "cancelled", id="cancelled"),
    ],
)
def test_an_allocation_that_ended_by_itself_is_judged_by_how_it_ended(
    tmp_path: Path,
    runtime_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Kind,
    kinds: list[str],
    status: str,
) -> None:
    (tmp_path / "ck").mkdir()
    code = SAVES_WHEN_ASKED.replace("step = 7", "step = 7; open('ck/step-7.json', 'w').write('{}')")
    scheduler = Scheduler(monkeypatch, lambda: None)
    scheduler.contains_us, scheduler.ends = True, TenureEnd(kind=end, reason="so it ended")
    job = job_in(tmp_path, code)
    entered = enter(job, "refuse")
    with held(entered.holding, entered.job) as (_, stop):
        takes_away = partial(stop.hand_over, "gone", HandOver.OVER)
        threading.Thread(target=when, args=(partial(is_recorded, job), takes_away), daemon=True).start()
        with pytest.raises(HandedOverError):
            execute(entered, stop, Live())
    assert run(job) == status
    assert [line.incident.kind for line in of(lines_of(job), IncidentLine)] == kinds


def test_an_allocation_that_others_end_is_left_with_a_checkpoint(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known that it ends, and only later how: a preemption is one, and no failure."""
    scheduler = Scheduler(monkeypatch, lambda: None)
    scheduler.ends = TenureEnd(kind="preempted", reason="allocation-1 ended: PREEMPTED")
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    entered = enter(job, "refuse")
    with held(entered.holding, entered.job) as (_, stop):
        takes_away = partial(stop.hand_over, "its nodes were told to go", HandOver.BEGUN)
        threading.Thread(target=when, args=((tmp_path / "begun").exists, takes_away), daemon=True).start()
        assert execute(entered, stop, Live()).status == "completed"
    lines = lines_of(job)
    (left,) = of(lines, HandOverLine)
    assert (left.is_clean, left.step) == (False, 7)
    assert [line.incident.kind for line in of(lines, IncidentLine)] == [
        "preempted",
        "handed_over",
        "completed",
    ]
    assert [line.resume_step for line in of(lines, AttemptLine)] == [None, 7]
    assert {line.decision.counters.failures_without_progress for line in of(lines, DecisionLine)} == {0}


@pytest.mark.parametrize("ending", [HandOver.BEGUN, HandOver.OVER])
def test_a_run_whose_allocation_was_cancelled_asks_for_no_other(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, ending: HandOver
) -> None:
    scheduler = Scheduler(monkeypatch, lambda: None)
    scheduler.ends = TenureEnd(kind="cancelled", reason="allocation-1 ended: CANCELLED")
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    entered = enter(job, "refuse")
    with held(entered.holding, entered.job) as (_, stop):
        takes_away = partial(stop.hand_over, "gone", ending)
        threading.Thread(target=when, args=((tmp_path / "begun").exists, takes_away), daemon=True).start()
        assert execute(entered, stop, Live()).status == "cancelled"
    assert scheduler.given == ["allocation-1"]


def is_recorded(job: JobConfig) -> bool:
    """Whether an attempt has begun in the journal: ranks run a moment before."""
    has_begun = Path(job.model_dir).with_name("begun").exists()
    return has_begun and bool(of(lines_of(job), AttemptLine))


def when(condition: Callable[[], bool], call: Callable[[], None]) -> None:
    while not condition():
        time.sleep(0.01)
    call()


def test_sigterm_in_the_allocation_hands_over_after_a_checkpoint(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(monkeypatch, lambda: None)
    scheduler.contains_us = True
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    told = partial(os.kill, os.getpid(), signal.SIGTERM)
    threading.Thread(target=when, args=((tmp_path / "begun").exists, told), daemon=True).start()
    with pytest.raises(HandedOverError, match="SIGTERM: the allocation ends"):
        run(job)
    [left] = of(lines_of(job), HandOverLine)
    assert (left.is_clean, left.step) == (True, 7)


@pytest.mark.parametrize("status", ["running", "completed"])
def test_a_successor_resumes_its_run_and_begins_no_other(
    tmp_path: Path,
    runtime_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str,
) -> None:
    job = job_in(tmp_path, "print('trained', flush=True)")
    (tmp_path / "job.yaml").write_text(json.dumps(json.loads(job.model_dump_json(exclude_defaults=True))))
    entered = enter(job, "refuse")
    with held(entered.holding, entered.job):
        entered.holding.run.describe(status=status)
    monkeypatch.setenv(SUCCESSOR_OF, entered.holding.run.run_id)
    assert main(["run", str(tmp_path / "job.yaml")]) == 0
    latest = latest_run(Path(job.model_dir))
    assert latest is not None
    assert (latest.run_id, latest.status) == (entered.holding.run.run_id, "completed")
    assert ("no run is begun here" in capsys.readouterr().err) == (status == "completed")


def test_a_run_that_is_cancelled_while_it_waits_for_systems_has_not_started(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scheduler(monkeypatch, lambda: None)
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    nameless = kind_of(job.infrastructure).config.model_construct(type="process", systems=(), workers=1)
    entered = enter(job, "refuse")
    entered = entered._replace(job=entered.job.model_copy(update={"infrastructure": nameless}))
    with held(entered.holding, job) as (_, stop):
        stop.ask("cancel")
        with pytest.raises(NotStartedError, match="before the run had systems"):
            execute(entered, stop, Live())
    latest = latest_run(Path(job.model_dir))
    assert latest is not None
    assert latest.status == "cancelled"


def test_the_report_at_the_end_of_a_run_tells_each_phase_once(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Scheduler(monkeypatch, ends_when_begun(tmp_path))
    job = job_in(tmp_path, SAVES_WHEN_ASKED)
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_defaults=True))
    assert main(["run", str(tmp_path / "job.yaml"), "--json"]) == 0
    [phase] = json.loads(capsys.readouterr().out)["phases"]
    assert (phase["status"], len(phase["attempts"])) == ("completed", 2)
