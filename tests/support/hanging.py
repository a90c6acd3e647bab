"""A phase whose ranks hang, or only look like it: real agents and ranks, limits scaled down by configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from agents import KEY, RUN, checkpoints, script, settings
from plans import beside

from prefect_ft.backends.process import ProcessBackend
from prefect_ft.clock import PhaseClock
from prefect_ft.decide.hang import Limits
from prefect_ft.journal import Journal
from prefect_ft.judge import judge
from prefect_ft.model import RESTARTS, Policy
from prefect_ft.supervisor import (
    AttemptFailedError,
    PhasePlan,
    RunLog,
    StopRequest,
    Supervisor,
    SuspensionPlan,
)

HANG_S, PERIOD_S = 2.0, 0.2

SCRIPT = """
import os, signal, sys, threading, time
from prefect_ft.heartbeat import beat
rank, restarts = int(os.environ["RANK"]), int(os.environ["PREFECT_FT_RESTART_COUNT"])
if restarts == RESTARTS: sys.exit()

def all_reduce():
    "Wait for a rank that never comes, as a collective does."
    time.sleep(1000)

def began():
    with open(f"began-{rank}", "w") as file:
        file.write(str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))

def train(steps=4):
    for step in range(1, steps + 1):
        beat(step=step, stage="train")
        time.sleep(0.05)
"""


@dataclass
class Phase:
    """A phase's supervisor, and the decisions about it in the place of Prefect."""

    supervisor: Supervisor
    journal: Journal
    directory: Path
    decided: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run attempts until nothing is restarted any more; give rules and actions."""
        while not self.decided or self.decided[-1].split(": ")[1] in RESTARTS:
            try:
                self.supervisor.attempt()
            except AttemptFailedError as error:
                if error.decision is None:
                    policy, clock = self.supervisor.plan.policy, self.supervisor.clock
                    judge(self.journal, policy, error.incident, clock, **error.facts)
            self.decided = [
                f"{entry.decision.rule}: {entry.decision.action}"
                for entry in self.journal.history()
                if entry.decision is not None
            ]
        return self.decided

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return [dict(line) for line in self.journal.lines if line["type"] == kind]

    def found_after_s(self, rank: int) -> float:
        """How long after it began to hang a rank was found."""
        began_ns = int((self.directory / f"began-{rank}").read_text())
        return float(self.lines("hang")[0]["t"]) - self.supervisor.clock.at(began_ns)


Make = Callable[..., Phase]


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    with StopRequest() as request:
        yield request


@pytest.fixture
def make_hanging(runtime_dir: Path, tmp_path: Path, stop: StopRequest, nobody_left: None) -> Iterator[Make]:
    """Make a phase whose ranks run SCRIPT and then `code`, which `hangs` so many times; then they are done at once."""
    made: list[Phase] = []
    (tmp_path / "ck").mkdir()
    (runtime_dir / "run").mkdir()

    def make(
        code: str,
        *,
        workers: int = 2,
        ranks_per_worker: int = 1,
        hangs: int = 1,
        spares: int = 0,
        plan: dict[str, Any] | None = None,
        hang_s: float = HANG_S,
        **limits: Any,
    ) -> Phase:
        systems = tuple(f"s{number}" for number in range(workers + spares))
        fields = beside(tmp_path, systems)
        suspension = SuspensionPlan(
            limits=Limits(hang_s=hang_s, **limits), response="restart", grace_s=0.2, sample_period_s=PERIOD_S
        )
        fields["suspension"] = replace(suspension, **(plan or {}))
        response = fields["suspension"].response
        journal = Journal(tmp_path / "journal.jsonl")
        plan_of_phase = PhasePlan(
            run_id=RUN, phase="train", phase_index=0, phases=1,
            command=tuple(script(f"RESTARTS = {hangs}\n" + SCRIPT + code)),
            cwd=str(tmp_path), inherited=frozenset(os.environ), env={}, system_env={},
            ranks_per_worker=ranks_per_worker, has_checkpoints=True, hang_detect_time_s=1800, stop_grace_s=0,
            **fields,
            policy=Policy(
                systems=systems, workers=workers, max_num_restarts=3, suspension_restart=response == "restart"
            ),
        )  # fmt: skip
        told = settings(checkpoints=checkpoints(tmp_path / "ck"), sample_period_s=PERIOD_S)
        supervisor = Supervisor(
            plan_of_phase,
            ProcessBackend(told, runtime_dir / "run", {}),
            key=KEY,
            epoch=1,
            journal=journal,
            clock=PhaseClock(),
            log=RunLog(tmp_path / "run.log", tmp_path / "places"),
            stop=stop,
            check=lambda: None,
        )
        made.append(Phase(supervisor, journal, tmp_path))
        return made[-1]

    yield make
    for phase in made:
        phase.supervisor.close()
