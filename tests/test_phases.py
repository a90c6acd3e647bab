"""A phase that is begun, left and resumed, without Prefect: what a later life finds and does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import processes_of
from without_prefect import to_the_end

from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.cli import main
from prefect_ft.clock import utc_now
from prefect_ft.config import JobConfig, resolved
from prefect_ft.errors import ComebackError, ConfigError, LeaseLostError
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import ComebackLine, DecisionLine
from prefect_ft.observe import Fact, Notice, observed_by
from prefect_ft.orchestrate.earlier import summary_of
from prefect_ft.orchestrate.phase import PhaseExecution
from prefect_ft.orchestrate.run import begin_run, conclude, end_unwatched, held, job_of
from prefect_ft.run import Holding, lease, vacancy
from prefect_ft.run.quarantine import Quarantined, add, read, release
from prefect_ft.supervisor import AttemptFailedError, StopRequest, Supervisor


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Agents that a life of the orchestrator left are this process's to collect all the same."""
    started = []
    start = ProcessBackend._start_agent

    def collected(self: ProcessBackend, *arguments: Any) -> Any:
        started.append(start(self, *arguments))
        return started[-1]

    monkeypatch.setattr(ProcessBackend, "_start_agent", collected)
    yield
    for child in started:
        child.wait(timeout=30)


def job_in(directory: Path, *commands: str, keep_copies: bool = False, **fields: Any) -> JobConfig:
    saves = {"path": "ck", "keep_copies": keep_copies}
    phases = [
        {"name": f"p{index}", "command": ["sh", "-c", command], "checkpoints": saves}
        for index, command in enumerate(commands)
    ]
    known = {
        "name": "j",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": {"type": "process", "systems": ["s0", "s1", "s2"], "workers": 1},
        "autorestart": {"max_num_restarts": 3},
    }
    return JobConfig.model_validate({**known, "phases": phases, **fields}).at(directory)


def and_die(supervisor: Supervisor, after_s: float = 0.0) -> None:
    """Start an attempt, and end as somebody does who is ended from outside."""
    supervisor.start()
    time.sleep(after_s)
    raise SystemExit


@contextmanager
def begun(job: JobConfig) -> Iterator[tuple[Holding, StopRequest]]:
    with held(begin_run(job, vacancy(Path(job.model_dir))), job) as holding_and_stop:
        yield holding_and_stop


@contextmanager
def gone_on_with(job: JobConfig) -> Iterator[tuple[Holding, StopRequest]]:
    with held(vacancy(Path(job.model_dir)).resume(), job) as holding_and_stop:
        yield holding_and_stop


def leave(job: JobConfig, index: int = 0) -> Holding:
    """Begin a run and leave it in the middle of a phase."""
    with begun(job) as (holding, stop), pytest.raises(SystemExit):
        PhaseExecution(job, index, holding, stop).execute(and_die)
    return holding


def types(holding: Holding) -> list[str]:
    directory = holding.run.directory_of(0)
    assert directory is not None
    return [line.type for line in read_lines(directory / "journal.jsonl")]


def test_torchruns_workers_are_run_without_it(tmp_path: Path) -> None:
    place = "'seen-{RANK}-{ROLE_RANK}'.format(**os.environ)"
    code = f"import os, sys; print(sys.executable, sys.argv, file=open({place}, 'w'))"
    (tmp_path / "look.py").write_text(code)
    command = ["torchrun", "--standalone", "--nproc-per-node=2", "look.py", "-x"]
    phase = {"name": "p", "mode": "eval", "command": command, "rewrite_launcher": True}
    with begun(job_in(tmp_path, phases=[phase])) as (holding, stop):
        assert PhaseExecution(job_of(holding.run), 0, holding, stop).execute(to_the_end).status == "completed"
        conclude(holding, "completed")
    seen = {path.name: path.read_text() for path in tmp_path.glob("seen-*")}
    assert seen == dict.fromkeys(("seen-0-0", "seen-1-1"), f"{sys.executable} ['look.py', '-x']\n")


def test_who_is_ended_from_outside_leaves_training_alone(tmp_path: Path, runtime_dir: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = job_in(tmp_path, f"echo $$ >> pids; read x < {gate}")
    first = leave(job)
    assert types(first) == ["phase", "attempt"]
    with gone_on_with(job) as (holding, stop):
        phase = PhaseExecution(job, 0, holding, stop)
        gate.write_text("go\n")
        assert phase.execute(to_the_end).status == "completed"
        conclude(holding, "completed")
    assert types(first) == ["phase", "attempt", "comeback", "incident", "decision", "end"]
    assert len((tmp_path / "pids").read_text().splitlines()) == 1
    assert list(runtime_dir.glob("2*")) == []


def test_comebacks_without_progress_have_a_limit(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000", max_orchestrator_restarts=0)
    leave(job)
    with gone_on_with(job) as (holding, stop):
        summary = PhaseExecution(job, 0, holding, stop).execute(to_the_end)
    why = "the orchestrator died 1 time without progress; max_orchestrator_restarts is 0"
    assert (summary.status, summary.reason) == ("failed", why)


def test_a_comeback_by_hand_has_none(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000", max_orchestrator_restarts=0)
    leave(job)
    with gone_on_with(job) as (holding, stop):
        stop.ask("enough")
        assert PhaseExecution(job, 0, holding, stop).execute(to_the_end, by_hand=True).status == "cancelled"


def test_a_run_that_nobody_watches_is_ended_with_all_that_runs_in_it(
    tmp_path: Path, runtime_dir: Path
) -> None:
    job = job_in(tmp_path, "sleep 1000")
    first = leave(job)
    runtime = Path(first.run.record()["runtime"])
    assert processes_of(runtime)
    end_unwatched(vacancy(Path(job.model_dir)).resume(), "a test")
    assert (first.run.status, processes_of(runtime), runtime.exists()) == ("cancelled", {}, False)
    assert types(first) == ["phase", "attempt", "comeback", "incident", "decision", "end"]
    summary = summary_of(first.run, 0)
    assert summary is not None
    assert summary.status == "cancelled"


def test_a_wish_to_cancel_outlives_whoever_heard_it(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000")
    leave(job).run.want_cancelled("somebody")
    with gone_on_with(job) as (holding, stop):
        assert PhaseExecution(job, 0, holding, stop).execute(to_the_end).status == "cancelled"


def test_a_lease_that_is_lost_ends_the_orchestrator_and_nothing_else(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000")

    def and_be_superseded(supervisor: Supervisor) -> None:
        supervisor.start()
        stop.abandon(LeaseLostError("taken over"))
        supervisor.attempt()

    with begun(job) as (holding, stop), pytest.raises(LeaseLostError):
        PhaseExecution(job, 0, holding, stop).execute(and_be_superseded)
    assert types(holding) == ["phase", "attempt"]
    assert processes_of(Path(holding.run.record()["runtime"]))
    end_unwatched(vacancy(Path(job.model_dir)).resume(), "a test")


def test_systems_that_a_phase_isolated_stay_so_in_later_ones(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    fails = f"test $PREFECT_FT_SYSTEM != s0 || {{ echo '{line}'; exit 1; }}"
    job = job_in(tmp_path, fails, "echo $PREFECT_FT_SYSTEM > second")
    with begun(job) as (holding, stop):
        first = PhaseExecution(job, 0, holding, stop).execute(to_the_end)
        assert (first.status, first.isolated_systems) == ("completed", ("s0",))
        PhaseExecution(job, 1, holding, stop).execute(to_the_end)
        assert holding.run.record()["isolated"] == ["s0"]
        conclude(holding, "completed")
    assert (tmp_path / "second").read_text() == "s1\n"


def test_a_run_keeps_the_job_that_it_began_with(tmp_path: Path) -> None:
    job = job_in(tmp_path, "true", env={"A": "1"}, lease_s=3)
    with begun(job) as (holding, _):
        assert job_of(holding.run) == job


@pytest.mark.parametrize(
    ("infrastructure", "told"),
    [
        ({"type": "process"}, ["workers run inside the pod: stopping it as a whole will kill them"]),
        ({"type": "docker", "image": "image"}, []),
    ],
    ids=["processes", "containers"],
)
def test_whoever_ends_all_processes_is_named_where_workers_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, infrastructure: dict[str, str], told: list[str]
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("prefect_ft.orchestrate.run.check_engines", lambda _: None)  # no container is made
    facts: list[Fact] = []
    with observed_by(facts.append), begun(job_in(tmp_path, "true", infrastructure=infrastructure)):
        pass
    assert [fact.text for fact in facts if isinstance(fact, Notice)] == told


QUIET_S = 0.5
"""For how long a journal gets no line before its orchestrator goes."""


def test_a_comeback_is_told(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000")
    with begun(job) as (holding, stop), pytest.raises(SystemExit):
        PhaseExecution(job, 0, holding, stop).execute(lambda supervisor: and_die(supervisor, QUIET_S))
    facts: list[Fact] = []
    with gone_on_with(job) as (holding, stop), observed_by(facts.append):
        stop.ask("enough")
        PhaseExecution(job, 0, holding, stop).execute(to_the_end)
    told = [fact.text for fact in facts if isinstance(fact, Notice)]
    assert len(told) == 1
    assert re.fullmatch(r"p0: back after \d+\.\d s: attempt 1 goes on, 1 worker found", told[0])
    directory = holding.run.directory_of(0)
    assert directory is not None
    (line,) = (each for each in read_lines(directory / "journal.jsonl") if isinstance(each, ComebackLine))
    assert line.silent_s is not None
    assert line.unwatched_s is not None
    assert line.silent_s - line.unwatched_s > QUIET_S / 2, (
        "the journal was silent while somebody watched, too"
    )


def test_a_comeback_from_another_machine_tells_only_what_its_journal_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path, "sleep 1000")
    leave(job)
    monkeypatch.setattr(lease, "boot_id", lambda: "another")
    facts: list[Fact] = []
    with gone_on_with(job) as (holding, stop), observed_by(facts.append):
        stop.ask("enough")
        PhaseExecution(job, 0, holding, stop).execute(to_the_end)
    (told,) = (fact.text for fact in facts if isinstance(fact, Notice))
    assert re.fullmatch(
        r"p0: back after \d+\.\d s without a line in the journal: attempt 1 goes on, 1 worker found", told
    )


# -- what goes wrong on the way back ------------------------------------------------------------------


def test_a_comeback_that_cannot_begin_leaves_everything_alone(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000")
    first = leave(job)
    directory = first.run.directory_of(0)
    assert directory is not None
    journal = (directory / "journal.jsonl").read_bytes()
    (directory / "run.log").rename(directory / "old.log")
    (directory / "run.log").mkdir()
    with gone_on_with(job) as (holding, stop), pytest.raises(ComebackError, match="Is a directory"):
        PhaseExecution(job, 0, holding, stop)
    assert (directory / "journal.jsonl").read_bytes() == journal
    assert first.run.status == "running"
    assert processes_of(Path(first.run.record()["runtime"]))
    (directory / "run.log").rmdir()
    end_unwatched(vacancy(Path(job.model_dir)).resume(), "a test")


def test_workers_whose_directory_was_removed_are_ended_before_others_begin(tmp_path: Path) -> None:
    job = job_in(tmp_path, "echo $$ >> pids; sleep 1000")
    first = leave(job)
    runtime = Path(first.run.record()["runtime"])
    old = set(processes_of(runtime))
    shutil.rmtree(runtime)
    with gone_on_with(job) as (holding, stop):
        phase = PhaseExecution(job, 0, holding, stop)
        assert not old & set(processes_of(runtime))
        stop.ask("enough")
        phase.execute(to_the_end)
        conclude(holding, "cancelled")
    assert processes_of(runtime) == {}


def test_a_run_that_ends_takes_along_who_was_cut_off_from_it(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000")
    first = leave(job)
    runtime = Path(first.run.record()["runtime"])
    assert processes_of(runtime)
    shutil.rmtree(runtime)
    with gone_on_with(job) as (holding, _):
        conclude(holding, "failed")
    assert processes_of(runtime) == {}


def test_the_number_of_ranks_is_what_it_was_when_the_phase_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = [
        {
            "name": "p0",
            "command": ["sleep", "1000"],
            "checkpoints": {"path": "ck"},
            "nproc_per_worker": "auto",
        }
    ]
    job = job_in(tmp_path, phases=phases)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    first = leave(job)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with gone_on_with(job) as (holding, stop):
        phase = PhaseExecution(job, 0, holding, stop)
        stop.ask("enough")
        assert (phase.plan.ranks_per_worker, phase.execute(to_the_end).status) == (2, "cancelled")
    assert types(first)[-3:] == ["incident", "decision", "end"]


def test_a_cancel_stays_one_where_the_workers_are_gone(tmp_path: Path) -> None:
    """The decision to restart is made, and nobody is there to restart."""
    job = job_in(tmp_path, "exit 1", autorestart={"max_num_restarts": 1})

    def fail_once_and_die(supervisor: Supervisor) -> None:
        with pytest.raises(AttemptFailedError) as failed:
            supervisor.attempt()
        error = failed.value
        judge(supervisor.journal, supervisor.plan.policy, error.incident, supervisor.clock, **error.facts)
        raise SystemExit

    with begun(job) as (holding, stop), pytest.raises(SystemExit):
        PhaseExecution(job, 0, holding, stop).execute(fail_once_and_die)
    for pid in processes_of(Path(holding.run.record()["runtime"])):
        os.kill(pid, signal.SIGKILL)
    holding.run.want_cancelled("somebody")
    with gone_on_with(job) as (holding, stop):
        assert PhaseExecution(job, 0, holding, stop).execute(to_the_end).status == "cancelled"


def test_a_late_holder_does_not_end_the_run_of_its_successor(tmp_path: Path) -> None:
    job = job_in(tmp_path, "sleep 1000")
    first = leave(job)
    with gone_on_with(job) as (holding, stop):
        with pytest.raises(LeaseLostError):
            conclude(first, "failed")
        assert holding.run.status == "running"
        stop.ask("enough")
        PhaseExecution(job, 0, holding, stop).execute(to_the_end)


def test_systems_that_a_failed_phase_isolated_stay_so_when_it_is_done_again(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    job = job_in(
        tmp_path, f"echo $PREFECT_FT_SYSTEM >> systems; test -e mended || {{ echo '{line}'; exit 1; }}"
    )
    with begun(job) as (holding, stop):
        failed = PhaseExecution(job, 0, holding, stop).execute(to_the_end)
        assert (failed.status, failed.isolated_systems) == ("failed", ("s0", "s1", "s2"))
    job = job_in(tmp_path, "true")
    with gone_on_with(job) as (holding, stop):
        assert PhaseExecution(job, 0, holding, stop).plan.policy.isolated == ("s0", "s1", "s2")


def test_a_policy_agrees_with_the_journal_of_its_own_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that fails, a crash, and an earlier phase that had isolated a system."""
    line = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    fails_on = f"test $PREFECT_FT_SYSTEM != {{}} || {{{{ echo '{line}'; exit 1; }}}}"
    crashes_once = "test $PREFECT_FT_ATTEMPT != 2 || kill -SEGV $$"
    job = job_in(tmp_path, fails_on.format("s0"), f"{fails_on.format('s1')}; {crashes_once}")
    with begun(job) as (holding, stop):
        for index in (0, 1):
            assert PhaseExecution(job, index, holding, stop).execute(to_the_end).status == "completed"
        conclude(holding, "completed")
    (tmp_path / "job.json").write_text(json.dumps(resolved(job)))
    directories = [holding.run.directory_of(index) for index in (0, 1)]
    second = read_lines(directories[1] / "journal.jsonl")
    assert second[0].isolated == ("s0",)
    assert [line.decision.rule for line in second if isinstance(line, DecisionLine)] == [
        "node-lost",
        "transient",
        "completed",
    ]
    for directory, count in zip(directories, (2, 3), strict=True):
        assert main(["replay", str(tmp_path / "job.json"), str(directory / "journal.jsonl"), "--diff"]) == 0
        assert capsys.readouterr().out == f"0 of {count} decisions differ\n"


# -- the quarantine -----------------------------------------------------------------------------------

GONE = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
FAILS_ON_S0 = f"test $PREFECT_FT_SYSTEM != s0 || {{ echo '{GONE}'; exit 1; }}"


def quarantined_in(directory: Path) -> list[tuple[str, str | None, str | None]]:
    return [(each.system, each.phase, each.rule) for each in read(directory / "quarantine.jsonl")]


def run_whole(job: JobConfig) -> Holding:
    with begun(job) as (holding, stop):
        for index in range(len(job.phases)):
            assert PhaseExecution(job, index, holding, stop).execute(to_the_end).status == "completed"
        conclude(holding, "completed")
    return holding


def test_what_a_run_isolates_is_out_of_use_for_the_next(tmp_path: Path) -> None:
    both = f"echo $PREFECT_FT_SYSTEM >> systems; {FAILS_ON_S0}"
    job = job_in(tmp_path, both, both, quarantine="quarantine.jsonl")
    first = run_whole(job)
    assert (tmp_path / "systems").read_text().split() == ["s0", "s1", "s1"]
    (entry,) = read(tmp_path / "quarantine.jsonl")
    assert (entry.system, entry.run, entry.job, entry.phase) == ("s0", first.run.run_id, "j", "p0")
    assert (entry.rule, entry.until, GONE in (entry.reason or "")) == ("node-lost", None, True)
    second = run_whole(job)
    assert (tmp_path / "systems").read_text().split() == ["s0", "s1", "s1", "s1", "s1"]
    assert second.run.record()["quarantined"] == ["s0"]
    directory = second.run.directory_of(0)
    assert directory is not None
    assert read_lines(directory / "journal.jsonl")[0].isolated == ("s0",)


def test_an_isolation_that_a_comeback_finds_is_quarantined_then(tmp_path: Path) -> None:
    """The orchestrator dies between the decision on disk and anything else."""
    job = job_in(tmp_path, FAILS_ON_S0, quarantine="quarantine.jsonl")

    def judge_and_die(supervisor: Supervisor) -> None:
        with pytest.raises(AttemptFailedError) as failed:
            supervisor.attempt()
        error = failed.value
        judge(supervisor.journal, supervisor.plan.policy, error.incident, supervisor.clock, **error.facts)
        raise SystemExit

    with begun(job) as (holding, stop), pytest.raises(SystemExit):
        PhaseExecution(job, 0, holding, stop).execute(judge_and_die)
    assert quarantined_in(tmp_path) == []
    with gone_on_with(job) as (holding, stop):
        assert PhaseExecution(job, 0, holding, stop).execute(to_the_end).status == "completed"
    assert quarantined_in(tmp_path) == [("s0", "p0", "node-lost")]


def test_a_system_that_a_phase_uses_again_is_quarantined_no_more(tmp_path: Path) -> None:
    restarts = {"max_num_restarts": 3, "isolation_ttl_s": 0.05}
    job = job_in(tmp_path, FAILS_ON_S0, quarantine="quarantine.jsonl", autorestart=restarts)
    with begun(job) as (holding, stop):
        phase = PhaseExecution(job, 0, holding, stop)
        assert phase.execute(to_the_end).isolated_systems == ("s0",)
    assert quarantined_in(tmp_path) == []


def test_a_release_while_a_run_lasts_is_for_the_next_run(tmp_path: Path) -> None:
    add(tmp_path / "quarantine.jsonl", [Quarantined(system="s0", since=utc_now())])
    job = job_in(tmp_path, "sleep 1000", quarantine="quarantine.jsonl")
    leave(job)
    assert release(tmp_path / "quarantine.jsonl", "s0")
    with gone_on_with(job) as (holding, stop):
        phase = PhaseExecution(job, 0, holding, stop)
        assert phase.plan.policy.isolated == ("s0",)
        stop.ask("enough")
        phase.execute(to_the_end)
        conclude(holding, "cancelled")
    with begun(job) as (holding, _):
        assert holding.run.record()["quarantined"] == []


def test_a_quarantine_that_breaks_while_a_run_lasts_costs_nothing_else(tmp_path: Path) -> None:
    job = job_in(tmp_path, f"echo '{{' > quarantine.jsonl; {FAILS_ON_S0}", quarantine="quarantine.jsonl")
    facts: list[Fact] = []
    with observed_by(facts.append):
        run_whole(job)
    (notice,) = [fact.text for fact in facts if isinstance(fact, Notice) and "quarantine" in fact.text]
    assert notice.startswith("not put into the quarantine, out of use in this run alone: s0: ")
    assert (tmp_path / "quarantine.jsonl").read_text() == "{\n"


@pytest.mark.parametrize(
    ("text", "fields", "says"),
    [
        pytest.param("{", {}, r"quarantine.jsonl:1: is not JSON; put the quarantine back", id="damaged"),
        pytest.param(
            "s0 s1 s2",
            {},
            r"quarantine.jsonl: phase p0 needs 1 system, but 0 of its 3 are usable; in quarantine: s0, s1, s2\. "
            r"Add systems, or run `prefect-ft pool release SYSTEM --file .*quarantine.jsonl` once one is",
            id="too-few",
        ),
    ],
)
def test_a_quarantine_with_which_no_run_can_begin(
    tmp_path: Path, text: str, fields: dict[str, Any], says: str
) -> None:
    path = tmp_path / "quarantine.jsonl"
    if text == "{":
        path.write_text(text)
    else:
        add(path, [Quarantined(system=name, since=utc_now()) for name in text.split()])
    job = job_in(tmp_path, "true", quarantine="quarantine.jsonl", **fields)
    with pytest.raises(ConfigError, match=says):
        begin_run(job, vacancy(Path(job.model_dir)))
    assert not list((tmp_path / "model" / ".prefect-ft").glob("2*"))


# -- checkpoints of earlier runs --------------------------------------------------------------------------

SAVES = """
mkdir -p ck
printf '%s\n' "$PREFECT_FT_RESUME_FROM" >> resumed
echo '{}' > ck/.new && mv ck/.new ck/step-$((PREFECT_FT_ATTEMPT + 2)).json
"""


def resumed(directory: Path) -> list[str]:
    return [Path(line).name for line in (directory / "resumed").read_text().split("\n")[:-1]]


def with_an_old_one(directory: Path) -> None:
    (directory / "ck").mkdir()
    (directory / "ck" / "step-900.json").write_text("{}")


def and_die_when_it_has_saved(supervisor: Supervisor) -> None:
    supervisor.start()
    supervisor._driver.run(lambda: supervisor._lifecycle._context.saves.newest is not None)
    raise SystemExit


def test_a_comeback_knows_which_checkpoints_are_the_runs_own(tmp_path: Path) -> None:
    with_an_old_one(tmp_path)
    job = job_in(tmp_path, f"{SAVES}[ $PREFECT_FT_ATTEMPT = 2 ] || sleep 1000", resume="never")
    with begun(job) as (first, stop), pytest.raises(SystemExit):
        PhaseExecution(job, 0, first, stop).execute(and_die_when_it_has_saved)
    for pid in processes_of(Path(first.run.record()["runtime"])):
        os.kill(pid, signal.SIGKILL)
    with gone_on_with(job) as (holding, stop):
        assert PhaseExecution(job_of(holding.run), 0, holding, stop).execute(to_the_end).status == "completed"
        conclude(holding, "completed")
    assert resumed(tmp_path) == ["", "step-3.json"]
    assert (tmp_path / "ck" / "step-900.json").read_text() == "{}"


def test_a_phase_that_is_done_again_goes_on_with_what_the_run_saved(tmp_path: Path) -> None:
    with_an_old_one(tmp_path)
    job = job_in(tmp_path, f"{SAVES}exit 1", resume="never", autorestart=None)
    for _ in range(2):
        with begun(job) if not (tmp_path / "model").exists() else gone_on_with(job) as (holding, stop):
            phase = PhaseExecution(job, 0, holding, stop)
            assert phase.execute(to_the_end).status == "failed"
            conclude(holding, "failed")
    assert resumed(tmp_path) == ["", "step-3.json"]


def test_a_phase_that_fails_before_it_saves_goes_on_with_what_an_earlier_one_saved(tmp_path: Path) -> None:
    fails_once = "echo $PREFECT_FT_RESUME_FROM >> resumed; [ $PREFECT_FT_ATTEMPT = 2 ] || kill -KILL $$"
    job = job_in(tmp_path, SAVES, fails_once)
    facts: list[Fact] = []
    with observed_by(facts.append):
        run_whole(job)
    assert resumed(tmp_path) == ["", "step-3.json", "step-3.json"]
    texts = [each.text for each in facts if isinstance(each, Notice)]
    assert "p1: goes on from step 3, which was saved earlier in the run" in texts


def test_a_phase_that_counts_its_steps_anew_goes_on_with_its_own(tmp_path: Path) -> None:
    first = SAVES.replace("$((PREFECT_FT_ATTEMPT + 2))", "1000")
    second = f"{SAVES}[ $PREFECT_FT_ATTEMPT = 5 ] || kill -KILL $$"
    run_whole(job_in(tmp_path, first, second))
    own = [f"step-{step}.json" for step in (3, 4, 5, 6)]
    assert resumed(tmp_path) == ["", "step-1000.json", *own]


CUT = """
import os, pathlib, pickle, signal
file = pathlib.Path("ck/latest.pkl")
if file.exists():
    pickle.loads(file.read_bytes())
file.parent.mkdir(exist_ok=True)
file.write_bytes(pickle.dumps(list(range(999)))[:-99])
if os.environ["PREFECT_FT_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""It loads the one file that it writes over and over, whatever it is given, and is killed in its first save."""


def test_a_file_that_is_cut_in_the_first_save_gives_way(tmp_path: Path) -> None:
    """Nothing has been verified then: the restart is from scratch."""
    (tmp_path / "cut.py").write_text(CUT)
    run_whole(job_in(tmp_path, f"{sys.executable} cut.py", keep_copies=True))
    assert sorted(path.name for path in (tmp_path / "ck").glob("l*")) == ["latest.pkl", "latest.pkl.old"]


def test_a_first_save_that_may_be_whole_stays_at_a_restart_from_scratch(tmp_path: Path) -> None:
    saves_once = "[ -e ck/latest.msgpack ] || { mkdir -p ck; echo whole > ck/latest.msgpack; kill -KILL $$; }"
    run_whole(job_in(tmp_path, saves_once, keep_copies=True))
    assert [path.name for path in (tmp_path / "ck").glob("latest*")] == ["latest.msgpack"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param("PytorchStreamReader failed reading zip archive: invalid header", id="cannot-be-loaded"),
        pytest.param("Loss is nan, stopping training", id="gives-bad-numbers"),
    ],
)
def test_a_phase_that_fails_of_what_an_earlier_one_saved_goes_back(tmp_path: Path, error: str) -> None:
    """To one that was saved before, and at last to none."""
    saves = f"{SAVES}[ $PREFECT_FT_ATTEMPT = 2 ] || kill -KILL $$"
    fails = f"echo 'RuntimeError: {error}'; exit 1"
    loads = f"echo $PREFECT_FT_RESUME_FROM >> resumed; [ -z $PREFECT_FT_RESUME_FROM ] || {{ {fails}; }}"
    run_whole(job_in(tmp_path, saves, loads))
    assert resumed(tmp_path) == ["", "step-3.json", "step-4.json", "step-3.json", ""]


@pytest.mark.parametrize("earlier", [3, 1000])
def test_a_phase_of_whose_own_saves_none_can_be_loaded_goes_on_with_what_it_began_with(
    tmp_path: Path, earlier: int
) -> None:
    """Also where it counts its steps anew."""
    first = SAVES.replace("$((PREFECT_FT_ATTEMPT + 2))", str(earlier))
    unreadable = "echo 'RuntimeError: PytorchStreamReader failed reading zip archive: invalid header'; exit 1"
    fails = f'case "$PREFECT_FT_ATTEMPT" in 1) kill -KILL $$;; 2) {unreadable};; esac'
    second = f"{SAVES.replace('+ 2', '+ 9').replace('echo', '[ $PREFECT_FT_ATTEMPT != 1 ] || echo')}{fails}"
    run_whole(job_in(tmp_path, first, second))
    began = f"step-{earlier}.json"
    assert resumed(tmp_path) == ["", began, "step-10.json", began]


def test_a_phase_goes_on_with_none_of_its_own_saves_that_gave_bad_numbers(tmp_path: Path) -> None:
    """Its steps are below that of the earlier phase, which gave bad numbers too."""
    saves = "for step in 4 5; do echo '{}' > ck/.new; mv ck/.new ck/step-$step.json; done"
    fails = "echo 'RuntimeError: Loss is nan, stopping training'; exit 1"
    second = f"""echo "$PREFECT_FT_RESUME_FROM" >> resumed
[ -n "$PREFECT_FT_RESUME_FROM" ] || exit 0
[ $PREFECT_FT_ATTEMPT != 1 ] || {saves}
{fails}"""
    run_whole(job_in(tmp_path, SAVES.replace("$((PREFECT_FT_ATTEMPT + 2))", "1000"), second))
    assert resumed(tmp_path) == ["", "step-1000.json", "step-4.json", ""]


SAVES_TWICE = """
import pathlib, time, zipfile
for version in (1, 2):
    with zipfile.ZipFile("ck/.new", "w") as file:
        file.writestr("version", str(version))
    pathlib.Path("ck/.new").rename("ck/last.pt")
    while not pathlib.Path(f"ck/.prefect-ft-copies/{version}c@last.pt").exists():
        time.sleep(0.01)
"""

CANNOT_LOAD = """
import os, zipfile
given = os.environ["PREFECT_FT_RESUME_FROM"]
with open("resumed", "a") as told:
    told.write(f"{zipfile.ZipFile(given).read('version').decode() if given else 0}\\n")
if given:
    raise RuntimeError("PytorchStreamReader failed reading zip archive: invalid header")
"""


def test_no_copy_that_cannot_be_loaded_is_taken_twice(tmp_path: Path) -> None:
    """A copy that was put back is no save of the phase itself."""
    (tmp_path / "ck").mkdir()  # so that it is watched from the start
    for name, script in (("saves.py", SAVES_TWICE), ("loads.py", CANNOT_LOAD)):
        (tmp_path / name).write_text(script)
    run_whole(job_in(tmp_path, f"{sys.executable} saves.py", f"{sys.executable} loads.py", keep_copies=True))
    assert resumed(tmp_path) == ["2", "1", "0"]


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_what_lies_there_before_a_phase_that_does_not_resume_stays(tmp_path: Path, resume: str) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "latest.npz").write_text("no archive")
    fails_once = "[ $PREFECT_FT_ATTEMPT = 2 ] || kill -KILL $$"
    run_whole(job_in(tmp_path, fails_once, keep_copies=True, resume=resume))
    stays = "latest.npz" if resume == "never" else "latest.npz.old"
    assert [path.name for path in (tmp_path / "ck").iterdir()] == [stays]


def test_a_new_run_in_an_old_directory_begins_from_scratch_where_it_is_told_to(tmp_path: Path) -> None:
    for resume, expected in (("auto", ""), ("auto", "step-3.json"), ("never", "")):
        with begun(job_in(tmp_path, SAVES, resume=resume)) as (holding, stop):
            PhaseExecution(job_of(holding.run), 0, holding, stop).execute(to_the_end)
            conclude(holding, "completed")
        assert resumed(tmp_path)[-1] == expected
