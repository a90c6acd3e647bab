"""A phase whose ranks hang, or only look like it: real agents and ranks, limits scaled down by configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from agents import KEY, PYTHON, RUN, checkpoints, settings
from plans import beside
from recorded import recording

from prefect_ft.backends.base import AgentSettings, Backend
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.clock import PhaseClock
from prefect_ft.decide.hang import Limits
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal
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


NOISE_S = 3.0
"""What a machine with other work may add to everything."""

PEERS = {"at-the-exit": "if rank == 0: sys.exit()"}
"""What rank 0 does while rank 1 hangs, where that is not waiting for it."""

FAULTS = {
    "deadlock-in-python": "lock = threading.Lock(); lock.acquire()\ndef deadlock(): lock.acquire()\ndeadlock()",
    "deadlock-in-c-with-the-interpreters-lock": "import ctypes\nc, m = ctypes.PyDLL(None), bytes(64)\n"
    "def native(): c.pthread_mutex_lock(m); c.pthread_mutex_lock(m)\nnative()",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "busy-loop": "def spin():\n    while True: pass\nspin()",
    "busy-loop-that-logs": "def chatter():\n    while True: print('still here'); sum(range(10**6))\nchatter()",
    "sleep": "def doze(): time.sleep(1000)\ndoze()",
    "reads-a-fifo": "os.mkfifo('fifo')\ndef read_sample(): open('fifo').read()\nread_sample()",
    "data-loader": "r, w = os.pipe()\nif os.fork() == 0: time.sleep(1000)\n"
    "def next_batch(): os.read(r, 1)\nnext_batch()",
    "at-the-exit": "import atexit\ndef flush(): time.sleep(1000)\natexit.register(flush)",
    "beats-without-steps": "def retry():\n    while True: beat(step=4); time.sleep(0.01)\nretry()",
    "main-thread-gone": "import ctypes\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "ctypes.CDLL(None).syscall(60, 0)",
}


def fewer(names: Iterable[str], *always: str) -> list[Any]:
    """Return parameters of which all but a few take part in long runs alone: each of them takes seconds."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.long) for name in names]


def fault(name: str) -> str:
    """What two ranks do of which rank 1 hangs."""
    return f"train()\n{PEERS.get(name, 'if rank == 0: all_reduce()')}\nbegan()\n{FAULTS[name]}"


@dataclass
class Phase:
    """A phase's supervisor, and the decisions about it in the place of Prefect."""

    supervisor: Supervisor
    journal: Journal
    directory: Path
    decided: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run attempts until nothing is restarted any more; return rules and actions."""
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
        return [line.write() for line in self.journal.lines if line.type == kind]

    def found_after_s(self, rank: int) -> float:
        """How long after it began to hang a rank was found."""
        began_ns = int((self.directory / f"began-{rank}").read_text())
        return float(self.lines("hang")[0]["t"]) - self.supervisor.clock.at(began_ns)


def assert_found(phase: Phase, name: str) -> None:
    """Rank 1 is found in time by two kinds of evidence, blamed, told where it is, and restarted."""
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["blamed"], hang["worker"]) == (1, 1)
    assert len({sign["kind"] for sign in hang["evidence"]}) >= 2
    assert HANG_S - 2 * PERIOD_S <= phase.found_after_s(1) <= HANG_S + PERIOD_S + NOISE_S
    living = 1 if name == "at-the-exit" else 2
    assert (phase.directory / hang["diagnosis"]).read_text().count("== rank") == living


Make = Callable[..., Phase]


@dataclass(frozen=True)
class Workers:
    """What the workers of a phase are: how a backend is made for systems, and what they have for a Python."""

    backend: Callable[[AgentSettings, Path, tuple[str, ...]], Backend]
    python: tuple[str, ...]


@pytest.fixture
def workers_of_phase() -> Workers:
    """Processes on this machine; a test file that wants others has a fixture of this name."""
    return processes_of(PYTHON, "-S")


def processes_of(*python: str) -> Workers:
    """Return workers that are processes on this machine and run ranks with this interpreter."""
    return Workers(lambda told, directory, _: ProcessBackend(told, directory, {}), python)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    with StopRequest() as request:
        yield request


@pytest.fixture
def make_hanging(
    request: pytest.FixtureRequest,
    runtime_dir: Path,
    tmp_path: Path,
    stop: StopRequest,
    nobody_left: None,
    workers_of_phase: Workers,
) -> Iterator[Make]:
    """Make a phase whose ranks run SCRIPT and then `code`, which `hangs` so many times; then they are done at once."""
    made: list[Phase] = []
    traces = ExitStack()
    name = request.node.callspec.params["name"] if "name" in request.fixturenames else request.node.name
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
        device_command: tuple[str, ...] | None = None,
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
            command=(*workers_of_phase.python, "-u", "-c", f"RESTARTS = {hangs}\n{SCRIPT}{code}"),
            cwd=str(tmp_path), inherited=frozenset(os.environ), env={}, system_env={},
            ranks_per_worker=ranks_per_worker, has_checkpoints=True, hang_detect_time_s=1800, stop_grace_s=0,
            **fields,
            policy=Policy(
                systems=systems, workers=workers, max_num_restarts=3, suspension_restart=response == "restart"
            ),
        )  # fmt: skip
        told = settings(
            checkpoints=checkpoints(tmp_path / "ck"), sample_period_s=PERIOD_S, device_command=device_command
        )
        supervisor = Supervisor(
            plan_of_phase,
            workers_of_phase.backend(told, runtime_dir / "run", systems),
            key=KEY,
            epoch=1,
            journal=journal,
            clock=PhaseClock(),
            log=RunLog(tmp_path / "run.log", tmp_path / "places"),
            stop=stop,
            check=lambda: None,
        )
        traces.enter_context(
            recording(name, supervisor._lifecycle._context.hangs, fields["suspension"].limits)
        )
        made.append(Phase(supervisor, journal, tmp_path))
        return made[-1]

    yield make
    for phase in made:
        phase.supervisor.close()
    traces.close()
