"""A phase with real agents and ranks, and a test in the place of Prefect: attempt after attempt until it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import KEY, RUN, checkpoints, script, settings
from plans import beside

from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal
from prefect_ft.journal.records import AttemptLine
from prefect_ft.model import RESTARTS, Policy
from prefect_ft.supervisor import AttemptFailedError, PhasePlan, RunLog, StopRequest, Supervisor
from prefect_ft.supervisor.attempt import Attempt

LONG_S = 3600.0
"""A settle time that does not pass in a test."""

SCRIPT = """
import os, signal, sys, time, zipfile
rank, restarts = int(os.environ["RANK"]), int(os.environ["PREFECT_FT_RESTART_COUNT"])
resume = os.path.basename(os.environ["PREFECT_FT_RESUME_FROM"])
print("resume", resume)

def save(step):
    with zipfile.ZipFile(f"ck/.tmp-{step}", "w") as file:
        file.writestr("weights", "x" * 100)
    os.replace(f"ck/.tmp-{step}", f"ck/step-{step}.npz")
"""


@dataclass
class Phase:
    """A phase's supervisor, and the decisions about it in the place of Prefect."""

    supervisor: Supervisor
    journal: Journal
    log: Path
    decided: list[str] = field(default_factory=list)

    def attempt(self) -> str:
        """Run one attempt; return rule and action of what was decided about its end."""
        self.fail()
        last = self.journal.history()[-1].decision
        assert last is not None
        return f"{last.rule}: {last.action}"

    def fail(self) -> None:
        """Run one attempt and have its end judged, and nothing more."""
        try:
            self.supervisor.attempt()
        except AttemptFailedError as error:
            if error.decision is None:
                policy, clock = self.supervisor.plan.policy, self.supervisor.clock
                judge(self.journal, policy, error.incident, clock, **error.facts)

    def attempts(self) -> list[int]:
        """The attempts that have begun."""
        return [line.attempt for line in self.journal.lines if isinstance(line, AttemptLine)]

    def run(self) -> list[str]:
        """Run attempts until nothing is restarted any more."""
        while not self.decided or self.decided[-1].split(": ")[1] in RESTARTS:
            self.decided.append(self.attempt())
        return self.decided

    def resumed_from(self) -> list[str]:
        """What rank 0 was told in each attempt."""
        lines = self.log.read_text().splitlines()
        return [line.split("resume ")[1] for line in lines if "r0] resume" in line]


def set_out(supervisor: Supervisor) -> None:
    """Begin an attempt, and return once it runs, or has ended already."""
    lifecycle = supervisor._lifecycle
    lifecycle.begin(time.monotonic())
    supervisor._driver.run(lambda: lifecycle.is_running or lifecycle.is_resting)


def begun(supervisor: Supervisor) -> Attempt:
    """Begin an attempt that does not end by itself, and return what is known of it once it runs."""
    set_out(supervisor)
    attempt = supervisor._lifecycle._context.attempt
    assert attempt is not None
    return attempt


Make = Callable[..., Phase]


@pytest.fixture
def make(runtime_dir: Path, tmp_path: Path, stop: StopRequest, nobody_left: None) -> Iterator[Make]:
    """Make a phase whose ranks run SCRIPT and then `code`, one in each worker."""
    made: list[Phase] = []
    (tmp_path / "ck").mkdir()
    (runtime_dir / "run").mkdir()

    def make(
        code: str,
        *,
        workers: int = 1,
        output: str = "forward",
        checking: dict[str, Any] | None = None,
        plan_fields: dict[str, Any] | None = None,
        **policy: Any,
    ) -> Phase:
        systems = tuple(f"s{number}" for number in range(workers))
        journal, clock = Journal(tmp_path / "journal.jsonl"), PhaseClock()
        log = RunLog(tmp_path / "run.log", tmp_path / "places")
        plan = PhasePlan(
            run_id=RUN, phase="train", phase_index=0, phases=1, command=tuple(script(SCRIPT + code)),
            cwd=str(tmp_path), inherited=frozenset(os.environ), env={}, system_env={},
            has_checkpoints=True, hang_detect_time_s=1800, stop_grace_s=0,
            **{"ranks_per_worker": 1, **beside(tmp_path, policy.get("systems", systems)), **(plan_fields or {})},
            policy=Policy(**{"systems": systems, "workers": workers, "max_num_restarts": 9, **policy}),
        )  # fmt: skip
        meeting = {"by": "ranks", "command": ["true"], "cwd": "/", "env": {}}
        told = settings(
            checkpoints=checkpoints(tmp_path / "ck", **(checking or {})), output=output, rendezvous=meeting
        )
        backend = ProcessBackend(told, runtime_dir / "run", {})
        supervisor = Supervisor(
            plan,
            backend,
            key=KEY,
            epoch=1,
            journal=journal,
            clock=clock,
            log=log,
            stop=stop,
            check=lambda: None,
        )
        made.append(Phase(supervisor, journal, tmp_path / "run.log"))
        return made[-1]

    yield make
    for phase in made:
        phase.supervisor.close()
