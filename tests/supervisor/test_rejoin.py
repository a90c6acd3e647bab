"""A supervisor comes back to living agents: what has been done is not done again, whatever the journal lost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import KEY, RUN, Gate, checkpoints, script, settings
from attempts import begun, set_out
from plans import beside

from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.clock import PhaseClock
from prefect_ft.config import Faults
from prefect_ft.journal.judge import judge_pending
from prefect_ft.journal.lines import Journal, read_lines
from prefect_ft.journal.records import AttemptLine, CheckpointLine
from prefect_ft.model import Policy
from prefect_ft.supervisor import AttemptFailedError, PhasePlan, RunLog, StopRequest, Supervisor
from prefect_ft.supervisor.launch import SavesPlan
from prefect_ft.supervisor.member import Send
from prefect_ft.supervisor.moving import Move

SCRIPT = """
import os, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["PREFECT_FT_ATTEMPT"])
with open("starts", "a") as starts:
    starts.write(f"{attempt} {rank}\\n")
os.write(1, b"up\\n")
"""


@dataclass
class Phase:
    """A phase whose supervisors come and go; only the agents stay."""

    directory: Path
    runtime: Path
    command: list[str]
    stop: StopRequest
    orphan_timeout_s: float = 3600.0
    meeting: dict[str, Any] | None = None
    saves: SavesPlan | None = None
    looks: dict[str, Any] = field(default_factory=dict)
    """How agents look at checkpoints; empty: at a directory that all workers share."""
    epoch: int = 0
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lives: list[Supervisor] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Agents of earlier lives, which are this process's to collect all the same."""

    @property
    def journal(self) -> Path:
        return self.directory / "journal.jsonl"

    def live(self) -> Supervisor:
        """Begin a life; the one before it is as good as dead: it is never called again."""
        self.epoch += 1
        plan = PhasePlan(
            run_id=RUN, phase="train", phase_index=0, phases=1, command=tuple(self.command),
            cwd=str(self.directory), inherited=frozenset(os.environ), env={}, system_env={}, ranks_per_worker=1,
            has_checkpoints=True, hang_detect_time_s=1800, stop_grace_s=0,
            **beside(self.directory, ("s0", "s1"), Faults(same_s=0), **self.commands),
            policy=Policy(systems=("s0", "s1"), workers=2, max_num_restarts=9), saves=self.saves,
        )  # fmt: skip
        backend = ProcessBackend(
            settings(
                checkpoints=None
                if self.saves is not None and self.saves.look
                else {**checkpoints(self.directory / "ck"), **self.looks},
                orphan_timeout_s=self.orphan_timeout_s,
                rendezvous=self.meeting,
            ),
            self.runtime,
            {},
        )
        log = RunLog(self.directory / "run.log", self.directory / "places")
        journal = Journal(self.journal)
        supervisor = Supervisor(
            plan, backend, key=KEY, epoch=self.epoch, journal=journal, clock=PhaseClock(journal.last_t),
            log=log, stop=self.stop, check=lambda: None,
        )  # fmt: skip
        self.lives.append(supervisor)
        return supervisor

    def come_back(self) -> Supervisor:
        supervisor = self.live()
        judge_pending(supervisor.journal, supervisor.plan.policy, supervisor.clock)
        supervisor.rejoin(by_hand=False)
        return supervisor

    def starts(self, attempt: int) -> list[str]:
        """Return the ranks that began in an attempt; of one that was ended early not all come so far."""
        lines = (self.directory / "starts").read_text().splitlines()
        return sorted(line.split()[1] for line in lines if line.split()[0] == str(attempt))

    def hang_up(self, supervisor: Supervisor) -> None:
        """Let go of what a life holds, as its end does."""
        supervisor.hang_up()
        supervisor.journal.close()
        supervisor._lifecycle._context.listener._log.close()
        self.children += supervisor._backend._agents.values()


Make = Callable[..., Phase]


@pytest.fixture
def make(runtime_dir: Path, tmp_path: Path, nobody_left: None) -> Iterator[Make]:
    (tmp_path / "ck").mkdir()
    (runtime_dir / "run").mkdir()
    with StopRequest() as stop:
        made: list[Phase] = []

        def make(code: str, **fields: Any) -> Phase:
            made.append(Phase(tmp_path, runtime_dir / "run", script(SCRIPT + code), stop, **fields))
            return made[-1]

        yield make
        for phase in made:
            phase.lives[-1].close()
            for child in phase.children:
                child.wait(timeout=30)


def decide(supervisor: Supervisor) -> None:
    """Run an attempt that fails, and decide about it, as the retry handler does."""
    with pytest.raises(AttemptFailedError) as failed:
        supervisor.attempt()
    from prefect_ft.journal.judge import judge

    error = failed.value
    judge(
        supervisor.journal, supervisor.plan.policy, error.incident, supervisor.clock, **error.facts
    )  # fmt: skip


EVERYWHERE = pytest.param(
    1, id="everywhere", marks=pytest.mark.long
)  # each cut is a comeback with real agents


@pytest.mark.parametrize("every", [pytest.param(23, id="here-and-there"), EVERYWHERE])
def test_a_journal_cut_anywhere_makes_nothing_happen_twice(make: Make, tmp_path: Path, every: int) -> None:
    """Attempt 2 runs; whoever comes back with any beginning of the journal goes on with attempt 2."""
    gate = Gate(tmp_path / "gate")
    phase = make(
        f"if attempt == 1: sys.exit('ConnectionError: reset') if rank else signal.pause()\n"
        f"open({str(gate.path)!r}).read() if rank == 0 else None\n"
    )
    first = phase.live()
    decide(first)
    attempt = begun(first)
    assert attempt.number == 2
    whole = phase.journal.read_bytes()
    phase.hang_up(first)
    ends = [place for place, byte in enumerate(whole, start=1) if byte == ord("\n")]
    for length in sorted({*range(0, len(whole), every), *ends, *(end - 1 for end in ends)}):
        phase.journal.write_bytes(whole[:length])
        back = phase.come_back()
        assert (back._lifecycle._context.attempt.number, back._lifecycle._context.attempt.lost) == (2, {}), (
            length
        )
        assert read_lines(phase.journal)[-1].type in ("attempt", "comeback", "checkpoint", "came-up")
        if length < len(whole):
            phase.hang_up(back)
    assert phase.starts(2) == ["0", "1"]
    gate.open()
    back.attempt()
    assert [entry.decision.action for entry in back.journal.history()][-1] == "complete"


def test_what_ended_while_nobody_watched_is_judged_with_its_output(make: Make, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    phase = make(
        f"open({str(gate.path)!r}).read() if rank else signal.pause()\n"
        "if attempt == 1: sys.exit('OSError: [Errno 28] No space left on device')\nsignal.pause()"
    )
    first = phase.live()
    set_out(first)
    phase.hang_up(first)
    gate.open()
    back = phase.come_back()
    decide(back)
    incident = back.journal.history()[0].incident
    assert (incident.worker, incident.exit_code, incident.kind) == (1, 1, "exit")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert sorted(line for line in lines if "r1]" in line) == [
        "[a1 w1 r1] OSError: [Errno 28] No space left on device",
        "[a1 w1 r1] up",
    ]


def test_a_gang_that_ended_and_left_has_left_its_result(make: Make, tmp_path: Path) -> None:
    phase = make("print('done')", orphan_timeout_s=3.0)
    first = phase.live()
    set_out(first)
    phase.hang_up(first)
    homes = sorted(phase.runtime.glob("0-*"))
    while not all((home / "left.json").exists() and not (home / "agent.sock").exists() for home in homes):
        time.sleep(0.002)
    back = phase.come_back()
    comeback = read_lines(phase.journal)[-1]
    assert (comeback.type, comeback.adopted, comeback.left) == ("comeback", (), (0, 1))
    back.attempt()
    assert [entry.decision.action for entry in back.journal.history()] == ["complete"]
    assert "[a1 w1 r1] done" in (tmp_path / "run.log").read_text()
    assert phase.starts(1) == ["0", "1"]


def test_what_a_decision_had_created_already_is_not_created_again(make: Make) -> None:
    phase = make(
        "if attempt == 1 and rank == 0: os.kill(os.getppid(), 9)\nsignal.pause() if attempt == 1 else None"
    )
    first = phase.live()
    decide(first)
    decision = first.journal.history()[-1].decision
    assert decision.action == "rebuild"
    first._lifecycle.begin(time.monotonic())
    first._driver.run(lambda: first._lifecycle.state == "choosing")
    pids = {home: (home / "agent.pid").read_text() for home in phase.runtime.glob("0-*")}
    assert len(pids) == 2
    phase.hang_up(first)
    back = phase.come_back()
    back.attempt()
    assert {home: (home / "agent.pid").read_text() for home in phase.runtime.glob("0-*")} == pids
    assert phase.starts(2) == ["0", "1"]


def test_a_start_that_only_one_of_two_heard_of_is_given_again_to_both(make: Make) -> None:
    phase = make("if attempt == 1: sys.exit('ConnectionError: reset') if rank else signal.pause()")
    first = phase.live()
    decide(first)
    send, sent = first._driver._send, []

    def dies(order: Send) -> None:
        if order.op == "start" and sent:
            raise KeyboardInterrupt
        sent.append(order) if order.op == "start" else None
        send(order)

    first._driver._send = dies
    with pytest.raises(KeyboardInterrupt):
        set_out(first)
    phase.hang_up(first)
    back = phase.come_back()
    back.attempt()
    assert [line.attempt for line in read_lines(phase.journal) if isinstance(line, AttemptLine)] == [1, 2]
    assert [entry.decision.action for entry in back.journal.history()] == ["restart_in_place", "complete"]


def test_checkpoints_that_the_journal_has_are_not_told_again_and_are_no_progress(
    make: Make, tmp_path: Path
) -> None:
    phase = make("signal.pause()")
    (tmp_path / "ck" / "step-5.json").write_text("{}")
    first = phase.live()
    set_out(first)
    first._driver.run(lambda: any(isinstance(line, CheckpointLine) for line in first.journal.lines), 30)
    phase.hang_up(first)
    back = phase.come_back()
    back._driver.run(lambda: False, 0.3)
    told = [line.step for line in read_lines(phase.journal) if isinstance(line, CheckpointLine)]
    assert told == [5]


def test_a_fault_that_was_reported_is_not_forgotten_and_not_taken_for_a_crash(
    make: Make, tmp_path: Path
) -> None:
    """Its orchestrator died after it had ended the ranks because of it, and before it decided."""
    phase = make(
        "from prefect_ft import report_fault\nif rank: report_fault(0, 'E1', 'critical')\nsignal.pause()"
    )
    first = phase.live()
    set_out(first)
    first._driver.run(lambda: first._lifecycle.is_resting)
    phase.hang_up(first)
    back = phase.come_back()
    decide(back)
    (entry,) = back.journal.history()
    assert (entry.incident.kind, entry.incident.code, entry.incident.system) == ("device_fault", "E1", "s1")
    assert entry.decision.rule == "fault-critical"
    phase.hang_up(back)
    third = phase.come_back()
    assert not third._reports
    assert [line.type for line in read_lines(phase.journal)].count("report") == 1


def test_what_is_left_of_workers_in_the_next_tenure_is_ended_before_it_begins(make: Make) -> None:
    """Their systems did not answer as the earlier tenure was left, and are in the next one too."""
    phase = make("signal.pause()")
    first = phase.live()
    set_out(first)
    phase.hang_up(first)
    back = phase.live()
    assert len(back._backend.find()) == 2
    back.move(Move(before="slurm-17", name="slurm-17+23", systems=("s0", "s1")), by_hand=False)
    assert not back._backend.find()


def test_systems_on_which_an_attempt_runs_are_not_checked_again(make: Make, tmp_path: Path) -> None:
    """Not by a later life either, which has not seen their check."""
    commands = {"check": ("sh", "-c", "echo $PREFECT_FT_SYSTEM >> checked")}
    phase = make(
        "if attempt == 1 and rank == 0: sys.exit('ConnectionError: reset')\nsignal.pause()", commands=commands
    )
    first = phase.live()
    set_out(first)
    phase.hang_up(first)
    assert sorted((tmp_path / "checked").read_text().split()) == ["s0", "s1"]
    back = phase.come_back()
    decide(back)
    (decision,) = (entry.decision for entry in back.journal.history())
    assert decision.action == "restart_in_place"
    set_out(back)
    assert sorted((tmp_path / "checked").read_text().split()) == ["s0", "s1"]


WRAPPED = """
from prefect_ft.inprocess import CallWrapper, Wrapper

def train(call: CallWrapper):
    if call.iteration == 0:
        call.store().barrier("in", 2)
        while not rank:
            signal.pause()  # a signal may come that does not end the iteration
        os._exit(5)
    open("{reached}", "w").write("again")
    open("{gate}").read()

Wrapper()(train)()
"""
MEETING = {"by": "ranks", "command": ["true"], "cwd": "/", "env": {}}


@pytest.mark.parametrize("ends", ["while-it-runs", "unwatched", "alone"])
def test_a_rank_that_was_lost_while_nobody_watched_is_done_without_all_the_same(
    make: Make, tmp_path: Path, ends: str
) -> None:
    """The call goes on, or has ended, or the agents have left when somebody comes."""
    reached, gate = Gate(tmp_path / "reached"), Gate(tmp_path / "gate")
    code = WRAPPED.format(reached=reached.path, gate=gate.path)
    phase = make(code, orphan_timeout_s=3.0 if ends == "alone" else 3600.0, meeting=MEETING)
    first = phase.live()
    set_out(first)
    phase.hang_up(first)
    reached.wait()
    if ends != "while-it-runs":
        gate.open()
    if ends == "alone":
        for child in phase.children:
            child.wait(timeout=30)
    second = phase.come_back()
    if ends == "while-it-runs":
        gate.open()
    second.attempt()
    assert second.journal.history()[-1].decision.action == "complete"
    assert phase.starts(1) == ["0", "1"]
    assert phase.starts(2) == []


SAVES_PARTS = """
resume = os.environ["PREFECT_FT_RESUME_FROM"]
print("resume", resume, flush=True)
if attempt == 1:
    directory = f"ck-s{rank}"
    os.makedirs(directory, exist_ok=True)
    for step in (5, 10):
        with open(f"{directory}/.tmp", "w") as file:
            file.write("{}")
        os.replace(f"{directory}/.tmp", f"{directory}/step-{step}.json")
    open(GATE).read() if rank else signal.pause()
    sys.exit("ConnectionError: reset")
"""


def test_a_later_life_puts_parts_on_several_disks_together_again(make: Make, tmp_path: Path) -> None:
    """It resumes from step 5, as one part of step 10 is gone when it comes back."""
    gate = Gate(tmp_path / "gate")
    phase = make(
        f"GATE = {str(gate.path)!r}\n" + SAVES_PARTS,
        saves=SavesPlan(directory=str(tmp_path / "ck-{system}"), is_local=True),
        looks={"path": str(tmp_path / "ck-{system}"), "local": True},
    )
    for system in ("s0", "s1"):  # agents here look where something changes, and at nothing by the clock
        (tmp_path / f"ck-{system}").mkdir()
    first = phase.live()
    set_out(first)

    def told(supervisor: Supervisor) -> list[int]:
        return [line.step for line in supervisor.journal.lines if isinstance(line, CheckpointLine)]

    first._driver.run(lambda: told(first) == [5, 10], 30)
    assert told(first) == [5, 10]
    phase.hang_up(first)
    (tmp_path / "ck-s1" / "step-10.json").unlink()
    back = phase.come_back()
    gate.open()
    decide(back)
    back.attempt()
    assert told(back) == [5, 10]
    said = (tmp_path / "run.log").read_text()
    for worker in (0, 1):
        assert f"resume {tmp_path}/ck-s{worker}/step-5.json" in said
    assert "step-10" not in said.split("resume", 2)[2]


def test_a_later_life_looks_at_a_url_again(make: Make, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    url = f"file://{tmp_path}/ck-s0"
    look = {"path": url, "layout": "auto", "pattern": None, "settle_s": 0.5}
    phase = make(
        f"GATE = {str(gate.path)!r}\n" + SAVES_PARTS,
        saves=SavesPlan(directory=url, look=look, look_every_s=0.1),
    )
    first = phase.live()
    set_out(first)
    phase.hang_up(first)
    back = phase.come_back()

    def told() -> list[int]:
        return [line.step for line in back.journal.lines if isinstance(line, CheckpointLine)]

    back._driver.run(lambda: told() == [5, 10], 30)
    assert told() == [5, 10]
    gate.open()
    decide(back)
    back.attempt()
    assert f"resume {url}/step-10.json" in (tmp_path / "run.log").read_text()
