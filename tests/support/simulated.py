"""A phase in a simulation: agents, connections, infrastructure, disk and clock are simulated, all else is real.

Everything that happens follows from a seed: what fails, when, in which order what was said arrives, at which moment
the orchestrator dies. A seed that fails fails again.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from agents import KEY, RUN
from plans import beside

from prefect_ft.backends.base import TENURE_ENDED, Address, Found, Worker
from prefect_ft.clock import PhaseClock
from prefect_ft.config import OnDemand
from prefect_ft.decide.hang import Limits
from prefect_ft.errors import BackendError, JournalError, LeaseLostError, TenureEndedError
from prefect_ft.journal.judge import judge, judge_pending
from prefect_ft.journal.lines import Journal, history_of, read_lines
from prefect_ft.journal.records import EndLine, Line, TenureLine
from prefect_ft.model import RESTARTS, Decision, Evidence, Policy
from prefect_ft.observe import Fact, observed_by
from prefect_ft.supervisor import (
    AttemptFailedError,
    HandedOverError,
    HandOver,
    PhasePlan,
    RunLog,
    StopRequest,
    Supervisor,
    SuspensionPlan,
    upkeep,
)
from prefect_ft.supervisor.command import Outcome
from prefect_ft.supervisor.events import read_event
from prefect_ft.supervisor.member import Broke, Connect, Connected, HangUp, Heard, Send, Unreachable
from prefect_ft.supervisor.moving import Move, left_behind, tenures, was_left_in_order
from prefect_ft.supervisor.roster import Exchange, Exchanged, ExchangeFailed
from prefect_ft.worker import protocol

TOO_LONG_S = 200_000.0
"""What waits longer than this waits for ever."""

ORPHAN_S = 300.0
PERIOD_S = 10.0
STOP_GRACE_S = 5.0
HANG_GRACE_S = 2.0
HANG_S = 120.0
SAVING_S = 15.0
"""How long an agent waits for somebody, between samples, ranks are given to end when stopped and when they hang, until
they hang, for a checkpoint that was asked for."""


class KilledError(BaseException):
    """The orchestrator dies here."""


class ViolationError(AssertionError):
    """Something has happened that must not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """How likely each trouble is, where it may come; times in seconds."""

    death: float = 0.0
    """Of the orchestrator, at each step."""
    zombie: float = 0.0
    """That another orchestrator takes over while this one stands still, at each step."""
    breaks: float = 0.0
    """Of a connection, at each message."""
    twice: float = 0.0
    """That an event is said twice."""
    late: float = 0.0
    """That a message takes very long."""
    agent: float = 0.0
    """That an agent dies, at each order that it gets."""
    rank: float = 0.5
    """That a rank fails, in each attempt."""
    no_room: float = 0.0
    """That the infrastructure cannot exchange workers."""
    system: float = 0.0
    """That a system is lost, in each attempt."""
    cancel: float = 0.0
    """That the run is cancelled some time."""
    disk: float = 0.0
    """That a line does not fit on the disk."""
    hang: float = 0.0
    """That a rank hangs, in each attempt, instead of ending."""
    fault: float = 0.0
    """That a rank reports a fault of a device, in each attempt."""
    tenure: float = 0.0
    """That a scheduler lends the systems for a time, and takes them away: after a word, or without one."""
    unfit: float = 0.0
    """That a system does not pass its check, and that a device is not healed."""


class World:
    """The clock, and what is going to happen."""

    def __init__(self, seed: int, troubles: Troubles) -> None:
        self.random = Random(seed)
        self.troubles = troubles
        self.now_s = 1000.0
        self.saved: dict[int, float] = {}
        """The checkpoints on disk, by step, with the time of their writing."""
        self.agents: dict[Worker, Agent] = {}
        self.lost: set[str] = set()
        """Systems that are not there any more."""
        self.epoch = 0
        self.tenure = 1
        """The allocation that the run has now, or had last."""
        self.tenure_is_over = False
        self.is_cancelled = False
        self.ended: dict[tuple[int, ...], dict[int, int | None]] = {}
        """By the token of their start, the exit codes of ranks."""
        self.story: list[tuple[float, str]] = []
        """What orchestrators ordered and agents heard, with the times."""
        self.states: set[str] = set()
        """The states that lifecycles have been in."""
        self.made: set[tuple[int, int, int]] = set()
        """Number, epoch and decision of each worker that there has been."""
        self.graces: set[float] = set()
        """How long ranks were given to end, in seconds."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def chance(self, probability: float) -> bool:
        return bool(probability) and self.random.random() < probability

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._count), call))

    def step(self, until_s: float | None) -> bool:
        """Let the next thing happen, or time pass until `until_s`; False: nothing will happen any more."""
        if not self._queue or (until_s is not None and self._queue[0][0] > until_s):
            if until_s is None:
                return False
            self.now_s = max(self.now_s, until_s)
            return True
        at_s, _, call = heapq.heappop(self._queue)
        self.now_s = max(self.now_s, at_s)
        if self.now_s > TOO_LONG_S:
            raise ViolationError("it waits for ever")
        call()
        return True

    def latency_s(self) -> float:
        if self.chance(self.troubles.late):
            return self.random.uniform(1.0, 60.0)
        return self.random.choice((0.0, 0.001, 0.01, 0.1))


class SimulatedClock(PhaseClock):
    """A phase's clock in a simulation."""

    def __init__(self, world: World, start_s: float) -> None:
        self._world, self._zero_s = world, world.now_s - start_s

    def now(self) -> float:
        return self._world.now_s - self._zero_s

    def at(self, boottime_ns: int) -> float:
        return boottime_ns / 1e9 - self._zero_s

    def epoch(self) -> float:
        return self._world.now_s


class SimulatedCommand:
    """A command of the user's that checks or heals, in the place of a process."""

    def __init__(self, world: World, *, on_end: Callable[[Outcome], None]) -> None:
        self.outcome: Outcome | None = None
        is_bad = world.chance(world.troubles.unfit)

        def end() -> None:
            problem = "exit code 1: broken" if is_bad else "exit code 0"
            self.outcome = Outcome(exit_code=int(is_bad), output=b"", problem=problem)
            on_end(self.outcome)

        world.after(world.random.choice((0.0, 1.0, 20.0)), end)

    def end(self) -> None:
        pass


# -- connections --------------------------------------------------------------------------------------


class Wire:
    """One connection: what is said on it arrives in its order, until it breaks."""

    def __init__(self, world: World, agent: Agent, to_orchestrator: Callable[[Any], None]) -> None:
        self._world, self._agent, self._to_orchestrator = world, agent, to_orchestrator
        self.is_open = True
        self._free_s = [0.0, 0.0]
        agent.accepted.append(self)

    def to_agent(self, message: dict[str, Any]) -> None:
        text = json.dumps(message)
        self._carry(0, lambda: self._agent.ordered(self, json.loads(text)))

    def from_agent(self, message: dict[str, Any]) -> None:
        text = json.dumps(message)
        for _ in range(2 if self._world.chance(self._world.troubles.twice) else 1):
            self._carry(1, lambda: self._to_orchestrator(json.loads(text)))

    def _carry(self, way: int, arrive: Callable[[], None]) -> None:
        world = self._world
        if self.is_open and world.chance(world.troubles.breaks):
            self.breaks()
        if self.is_open:
            self._free_s[way] = max(self._free_s[way], world.now_s + world.latency_s())
            world.after(self._free_s[way] - world.now_s, lambda: arrive() if self.is_open else None)

    def breaks(self) -> None:
        """End it; each side notices in its time, and what is under way is lost."""
        if self.is_open:
            self.is_open = False
            self._world.after(self._world.latency_s(), lambda: self._to_orchestrator(None))
            self._world.after(self._world.latency_s(), lambda: self._agent.reader_gone(self))

    def hang_up(self) -> None:
        """End it from the orchestrator's side."""
        if self.is_open:
            self.is_open = False
            self._world.after(self._world.latency_s(), lambda: self._agent.reader_gone(self))


# -- agents -------------------------------------------------------------------------------------------


@dataclass
class Rank:
    """A rank as its agent knows it."""

    number: int
    code: int | None = None
    signal: int | None = None
    t_ns: int | None = None
    hangs: bool = False

    @property
    def is_running(self) -> bool:
        return self.t_ns is None


class Agent:
    """What the real agent promises (docs/agent-protocol.md), without processes."""

    def __init__(self, world: World, worker: Worker) -> None:
        self.world, self.worker = world, worker
        self.is_alive = True
        self.left: dict[str, Any] | None = None
        self.epoch = 0
        self.token: list[int] = list(protocol.NO_TOKEN)
        self.ranks: dict[int, Rank] = {}
        self.wire: Wire | None = None
        """The connection of the orchestrator that it obeys."""
        self.accepted: list[Wire] = []
        self._note: dict[str, Any] | None = None
        self._deaths: list[float] = []
        self._port = 1000
        self._announced: set[int] = set()
        self._period_s = PERIOD_S

    # -- said -------------------------------------------------------------------------------------

    def sample(self, token: list[int]) -> None:
        """Tell of the ranks what they do, every now and then while they run."""
        if (
            self.token != token
            or not self.is_alive
            or not any(each.is_running for each in self.ranks.values())
        ):
            return
        ranks = {str(number): self._sampled(rank) for number, rank in self.ranks.items()}
        self.say("sample", watched_s=self.world.now_s, past=False, devices=None, container=None, ranks=ranks)
        self.world.after(self._period_s, lambda: self.sample(token))

    def _sampled(self, rank: Rank) -> dict[str, Any]:
        busy = 0.0 if rank.hangs else self.world.now_s
        return {
            "over": not rank.is_running, "state": "S" if rank.is_running else None, "cpu_s": busy, "wait_s": 0.0,
            "io": int(busy), "output": 0, "beats": 1 + int(busy), "beat_s": None, "step": int(busy), "stage": "train",
        }  # fmt: skip

    def say(self, event: str, **fields: Any) -> None:
        if self.wire is not None and self.is_alive:
            self.wire.from_agent({"ev": event, "token": self.token, **fields})

    def standing(self) -> dict[str, Any]:
        return {
            "port": self._port, "store": True, "in_process_port": None, "inside": [], "excused": [],
            "running": [rank.number for rank in self.ranks.values() if rank.is_running],
            "over": not any(rank.is_running for rank in self.ranks.values()),
            "exits": {
                str(rank.number): {"code": rank.code, "signal": rank.signal, "t_ns": rank.t_ns, "oom": False}
                for rank in self.ranks.values()
                if not rank.is_running
            },
            "note": self._note, "deaths": self._deaths,
        }  # fmt: skip

    def tell_saved(self) -> None:
        """Report what is verified and was not reported on this connection; worker 0's agent does."""
        new = sorted(self.world.saved.keys() - self._announced)
        if self.worker.number == 0 and new and self.wire is not None:
            self._announced |= {*new}
            self.say("checkpoints", new=[described(self.world, step) for step in new], gone=[], last=new[-1])

    # -- orders -----------------------------------------------------------------------------------

    def ordered(self, wire: Wire, message: dict[str, Any]) -> None:
        if not self.is_alive:
            return
        op = protocol.checked(message)  # raises for what is no order
        self.world.story.append((self.world.now_s, f"{op} to worker {self.worker.number}"))
        if op == "attach":
            self._attach(wire, message)
        elif wire is not self.wire:
            self._refuse(wire, op, "attach first")
        else:
            self._obey(op, message)
        if self.world.chance(self.world.troubles.agent):
            self.dies()

    def _refuse(self, wire: Wire, op: str, why: str) -> None:
        fields = {"op": op, "why": why, "epoch": self.epoch, "version": 1, "release": None}
        wire.from_agent({"ev": "refused", "token": self.token, **fields})

    def _attach(self, wire: Wire, message: dict[str, Any]) -> None:
        if message["epoch"] < self.epoch:
            self._refuse(wire, "attach", "fenced")
            return
        before, self.wire = self.wire, None
        if before is not None and before is not wire and message["epoch"] > self.epoch:
            before.from_agent({"ev": "superseded", "token": self.token, "epoch": message["epoch"]})
        self.wire, self.epoch, self._announced = wire, message["epoch"], set()
        who = {"version": 1, "release": None, "worker": self.worker.number, "system": self.worker.system}
        self.say("attached", **who, pid=1, **self.standing())
        self.tell_saved()

    def _obey(self, op: str, message: dict[str, Any]) -> None:
        token = message["token"]
        if token[0] != self.epoch or token < self.token or (op == "start" and token == self.token):
            assert self.wire is not None
            if token[0] == self.world.epoch:
                raise ViolationError(f"{op} {token} after {self.token} to worker {self.worker.number}")
            self._refuse(self.wire, op, "fenced")
        elif op == "start":
            self._start(token, message)
        elif op == "choose":
            self._choose(message)
        elif op == "stop":
            self._stop(message["grace_s"])
        elif op == "watch":
            self._period_s = message["period_s"]
        elif op == "diagnose":
            self._diagnose(message["timeout_s"])
        elif op == "checkpoint":
            self._saves_now()

    def _diagnose(self, timeout_s: float) -> None:
        process = {"pid": 1, "name": "p", "state": "S", "threads": 1, "waits_in": "futex", "kernel_stack": ""}
        ranks = {str(number): {"stacks": {}, "processes": [process]} for number in self.ranks}
        if self.world.chance(0.7):
            delay_s = self.world.random.uniform(0, timeout_s)
            self.world.after(delay_s, lambda: self.say("diagnosis", ranks=ranks))

    def _saves_now(self) -> None:
        """Have the ranks save because they were asked; some do not come so far."""
        world, token = self.world, self.token

        def save() -> None:
            if self.token == token and self.is_alive and any(each.is_running for each in self.ranks.values()):
                world.saved[max(world.saved, default=0) + 1] = world.now_s
                self.tell_saved()

        if self.worker.number == 0 and world.chance(0.7):
            world.after(world.random.uniform(0, 2 * SAVING_S), save)

    def _choose(self, message: dict[str, Any]) -> None:
        for item in message.get("verified", ()):
            self._announced.add(item["step"])
        limit = message["limit"]
        steps = [
            step
            for step in self.world.saved
            if step not in message["avoid"] and (limit is None or step <= limit)
        ]
        self.tell_saved()
        step = max(steps, default=None)
        path = None if step is None else f"ck/step-{step}"
        self.world.after(self.world.latency_s(), lambda: self.say("chosen", step=step, path=path, why_not={}))

    def _start(self, token: list[int], message: dict[str, Any]) -> None:
        if any(rank.is_running for rank in self.ranks.values()):
            raise ViolationError(f"worker {self.worker.number} is to start {token} while {self.token} runs")
        resume = message["env"]["PREFECT_FT_RESUME_FROM"]
        if resume and int(resume.rsplit("-")[-1]) not in self.world.saved:
            raise ViolationError(f"{token} is to resume from {resume}, which is not there")
        for other in self.world.agents.values():
            is_elsewhere = other.worker.system in self.world.lost or other is self
            runs = [rank for rank in other.ranks.values() if rank.is_running]
            if runs and not is_elsewhere and other.token[1:] != token[1:]:
                raise ViolationError(
                    f"{token} starts while worker {other.worker.number} still runs {other.token}"
                )
        self.token, self._note = token, message["note"]
        self._deaths, self._period_s = [], PERIOD_S
        self.ranks = {int(number): Rank(int(number)) for number in message["ranks"]}
        self.world.ended.setdefault(tuple(token), {})
        pids = {number: 100 + number for number in self.ranks}
        self.say("started", pids=pids, stays={}, warm=False)
        self._port += 1
        has_all = message["env"]["WORLD_SIZE"] == str(len(self.ranks))
        step = int(resume.rsplit("-")[-1]) if resume else 0
        Training(self, token, step, has_all=has_all).begin()
        self.sample(token)

    # -- ends -------------------------------------------------------------------------------------

    def rank_ends(self, number: int, code: int | None, signal: int | None, *, ends: bool = False) -> None:
        rank = self.ranks[number]
        if not rank.is_running:
            return
        rank.code, rank.signal, rank.t_ns = code, signal, int(self.world.now_s * 1e9)
        self.world.ended[tuple(self.token)][number] = code
        if code != 0:
            self._deaths.append(round(self.world.now_s, 2))
        self.say("exited", rank=number, code=code, signal=signal, t_ns=rank.t_ns, oom=False, ends=ends)
        if ends:
            self._kill()

    def _stop(self, grace_s: float) -> None:
        token = self.token
        self.world.graces.add(grace_s)
        delay_s = self.world.random.uniform(0, grace_s) if grace_s else 0.0
        self.world.after(delay_s, lambda: self._kill() if self.token == token else None)

    def _kill(self) -> None:
        for rank in self.ranks.values():
            self.rank_ends(rank.number, None, 9)
        self.tell_saved()
        passed_over = {} if self.worker.number == 0 else None
        meeting = {"port": self._port, "store": True, "in_process_port": None}
        self.say("stopped", stuck=[], deaths=self._deaths, passed_over=passed_over, **meeting)

    def dies(self) -> None:
        """End, with all ranks, by SIGKILL."""
        if self.is_alive:
            self.is_alive = False
            for rank in self.ranks.values():
                if rank.is_running:
                    rank.signal, rank.t_ns = 9, int(self.world.now_s * 1e9)
                    self.world.ended[tuple(self.token)][rank.number] = None
            for wire in self.accepted:
                wire.breaks()

    def reader_gone(self, wire: Wire) -> None:
        if wire is not self.wire:
            return
        self.wire = None
        self.world.after(ORPHAN_S, self._leaves_alone)

    def _leaves_alone(self) -> None:
        is_idle = not any(rank.is_running for rank in self.ranks.values())
        if self.wire is None and self.is_alive and is_idle:
            self.is_alive = False
            self.left = {"token": self.token, **self.standing(), "excerpts": {}}
        elif self.wire is None and self.is_alive:
            self.world.after(ORPHAN_S, self._leaves_alone)


class Training:
    """What the ranks of one worker do in one attempt: steps, checkpoints, an end."""

    def __init__(self, agent: Agent, token: list[int], step: int, *, has_all: bool) -> None:
        self._agent, self._world, self._token = agent, agent.world, token
        self._step, self._has_all = step, has_all

    def begin(self) -> None:
        world = self._world
        for rank in self._agent.ranks:
            fails = world.chance(world.troubles.rank / 2)
            delay_s = world.random.choice((0.0, 0.01, 1.0, 5.0, 30.0)) if fails else 40.0
            how = world.random.choice(((1, None), (None, 9), (None, 6))) if fails else (0, None)
            if world.chance(world.troubles.hang / 2):
                self._hangs(self._agent.ranks[rank])
            else:
                world.after(delay_s, self._end_of(rank, *how))
            if world.chance(world.troubles.fault / 2):
                world.after(world.random.uniform(0, 30), self._fault_of(rank))
        if world.chance(world.troubles.system / 4):
            world.after(world.random.uniform(0, 40), self._system_is_lost)
        if self._agent.worker.number == 0:
            for count in (1, 2):
                world.after(count * world.random.choice((0.5, 10.0)), self._saves)

    @property
    def _runs(self) -> bool:
        return self._agent.is_alive and self._agent.token == self._token

    def _end_of(self, rank: int, code: int | None, signal: int | None) -> Callable[[], None]:
        def end() -> None:
            if self._runs and self._agent.ranks[rank].is_running:
                self._agent.say(
                    "output", rank=rank, offset=0, text="RuntimeError: broken\n" if code else "x\n"
                )
                self._agent.rank_ends(rank, code, signal, ends=self._has_all and code != 0)

        return end

    def _hangs(self, rank: Rank) -> None:
        """Do nothing for so long that it counts as a hang, and then go on, if anybody lets it."""
        rank.hangs = True
        lasts_s = self._world.random.choice((1.5, 4.0)) * HANG_S

        def goes_on() -> None:
            rank.hangs = False

        self._world.after(lasts_s, goes_on)
        self._world.after(lasts_s + 50.0, self._end_of(rank.number, 0, None))

    def _fault_of(self, rank: int) -> Callable[[], None]:
        severity = self._world.random.choice(("minor", "major", "critical"))
        report = {"device": str(rank), "code": "E1", "severity": severity, "message": "broken"}

        def report_it() -> None:
            if self._runs and self._agent.ranks[rank].is_running:
                self._agent.say("fault", rank=rank, n=1, report=report)

        return report_it

    def _saves(self) -> None:
        if self._runs and any(rank.is_running for rank in self._agent.ranks.values()):
            self._step += 10
            self._world.saved[self._step] = self._world.now_s
            self._world.after(self._world.latency_s(), self._agent.tell_saved)

    def _system_is_lost(self) -> None:
        if self._runs:
            self._world.lost.add(self._agent.worker.system)
            for agent in self._world.agents.values():
                if agent.worker.system in self._world.lost:
                    agent.dies()


def described(world: World, step: int) -> dict[str, Any]:
    """A checkpoint as agents tell of it."""
    mark = {"size": 1, "mtime": world.saved[step], "device": 1, "inode": step, "counted": False}
    return {"step": step, "path": f"ck/step-{step}", **mark}


# -- infrastructure -----------------------------------------------------------------------------------


class Infrastructure:
    """A backend of simulated workers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        world = self._world
        if world.tenure_is_over:
            raise TenureEndedError("the allocation has ended")
        self.destroy(old)
        if gone := [worker for worker in new if worker.system in world.lost]:
            raise BackendError("the system is not there", system=gone[0].system)
        if new and world.chance(world.troubles.no_room):
            raise BackendError("no room", system=new[0].system)
        for worker in new:
            name = (worker.number, worker.epoch, worker.decision)
            if name in world.made and worker not in world.agents:
                raise ViolationError(f"worker {name} is made a second time")
            world.made.add(name)
            world.agents.setdefault(worker, Agent(world, worker))
        return [address() for _ in new]

    def destroy(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            if (agent := self._world.agents.pop(worker, None)) is not None:
                agent.dies()

    def find(self) -> list[Found]:
        agents = sorted(self._world.agents.items(), key=lambda each: (each[0].epoch, each[0].decision))
        return [Found(worker=worker, address=address(), result=agent.left) for worker, agent in agents]

    def answers(self, system: str) -> bool:
        return system not in self._world.lost and not self._world.tenure_is_over

    def evidence(self, _worker: Worker, *, is_gone: bool) -> Evidence | None:
        if is_gone and self._world.tenure_is_over:
            return Evidence(rule=TENURE_ENDED, text="the allocation has ended")
        return None

    def close(self) -> None:
        pass


def address() -> Address:
    return Address(socket_path=Path("/nowhere"), host="127.0.0.1")


# -- the driver ---------------------------------------------------------------------------------------


class SimulatedDriver:
    """Stands in the place of sockets, threads and the clock; the interface is `Driver`'s."""

    def __init__(self, machine: Any, backend: Infrastructure, **given: Any) -> None:
        self._machine, self._backend = machine, backend
        self._world = backend._world
        self._stop, self._check = given["stop"], given["check"]
        self.step: Callable[[], None] = lambda: None
        """Called between any two things that are done; may raise KilledError."""
        self._wires: dict[int, Wire] = {}
        self._dropped: set[int] = set()
        self._facts: list[Any] = []

    def now_s(self) -> float:
        return self._world.now_s

    def found(self, worker: Worker, address: Address) -> None:
        pass

    def run(self, until: Callable[[], bool], timeout_s: float | None = None) -> None:
        deadline_s = None if timeout_s is None else self.now_s() + timeout_s
        self._tell()
        while not until():
            if deadline_s is not None and self.now_s() >= deadline_s:
                return
            if self._stop.lost is not None:
                raise self._stop.lost
            times = [each for each in (deadline_s, self._machine.due_s) if each is not None]
            if not self._world.step(min(times, default=None)):
                raise ViolationError(f"nothing will happen any more in state {self._machine.state}")
            self._tell()

    def _tell(self) -> None:
        while True:
            self.step()
            facts, self._facts = self._facts, []
            orders = self._machine.handle(facts, self.now_s())
            self._machine.validate_state()
            self._world.states.add(self._machine.state)
            if orders:
                self.may_act()
            for order in orders:
                self.step()
                self._carry_out(order)
            if not self._facts and not orders:
                return

    def may_act(self) -> None:
        if self._machine.fence is not None:
            raise self._machine.fence
        self._check()

    def _carry_out(self, order: Any) -> None:
        match order:
            case Connect():
                self._connect(order)
            case Send():
                if order.link in self._wires:
                    self._wires[order.link].to_agent({"op": order.op, **order.fields})
            case HangUp():
                self._dropped.add(order.link)
                if (wire := self._wires.pop(order.link, None)) is not None:
                    wire.hang_up()
            case Exchange():
                self._exchange(order)

    def _connect(self, order: Connect) -> None:
        def connect() -> None:
            number, agent = order.worker.number, self._world.agents.get(order.worker)
            if order.link in self._dropped:
                return
            if agent is None or not agent.is_alive:
                self._facts.append(Unreachable(number, order.link, "nobody is there"))
                return
            self._wires[order.link] = Wire(self._world, agent, self._heard(number, order.link))
            self._facts.append(Connected(number, order.link))

        if order.again:
            self._world.after(self._world.latency_s(), connect)
        else:
            connect()

    def _heard(self, number: int, link: int) -> Callable[[Any], None]:
        def hear(message: Any) -> None:
            if link not in self._wires:
                return
            if message is None:
                del self._wires[link]
                self._facts.append(Broke(number, link))
            elif (event := read_event(message)) is not None:
                self._facts.append(Heard(number, link, event))

        return hear

    def _exchange(self, order: Exchange) -> None:
        self.may_act()
        try:
            addresses = self._backend.exchange(order.old, order.new)
        except BackendError as exc:
            self._facts.append(ExchangeFailed(exc))
            return
        self.step()  # the workers are there, and nobody has been told
        self._facts.append(Exchanged(tuple(each.host for each in addresses)))

    def close(self) -> None:
        self.hang_up()
        with suppress(LeaseLostError):
            self.may_act()
            self._backend.destroy([found.worker for found in self._backend.find()])

    def hang_up(self) -> None:
        for wire in self._wires.values():
            wire.hang_up()
        self._wires.clear()
        self._machine.let_go()


# -- orchestrators ------------------------------------------------------------------------------------


@dataclass
class Course:
    """One phase from its beginning to its end, through as many orchestrators as that takes."""

    seed: int
    troubles: Troubles
    directory: Path
    world: World = field(init=False)
    policy: Policy = field(init=False)
    lives: int = 0
    takeovers: int = 0
    facts: list[Fact] = field(default_factory=list)
    """What observers are told."""
    lines: list[Line] = field(default_factory=list)
    """The journal, when all was over."""

    def __post_init__(self) -> None:
        self.world = World(self.seed, self.troubles)
        random = self.world.random
        workers = random.choice((1, 1, 2, 3))
        systems = tuple(f"s{number}" for number in range(workers + random.choice((0, 1))))
        self._ranks_per_worker = random.choice((1, 2))
        self.policy = Policy(
            systems=systems,
            workers=workers,
            max_num_restarts=random.choice((0, 2, 5)),
            restart_delay_s=random.choice((0.0, 0.0, 10.0)),
            suspension_restart=True,
        )
        words = ("true",)
        self._commands = {"check": words, "heal": words} if self.troubles.unfit else {}
        if self.troubles.unfit and random.random() < 0.3:
            del self._commands["heal"]
        self.response = (
            random.choice(("restart", "restart", "report", "shadow")) if self.troubles.hang else "restart"
        )
        self.policy = replace(
            self.policy, suspension_restart=self.response == "restart"
        )  # both are one field
        self._limits = {
            "on_demand": OnDemand(grace_s=SAVING_S) if random.random() < 0.5 else None,
            "suspension": SuspensionPlan(
                limits=Limits(hang_s=HANG_S),
                response=self.response,
                grace_s=HANG_GRACE_S,
                sample_period_s=PERIOD_S,
            ),
        }
        if self.world.chance(self.troubles.cancel):
            self.world.after(random.uniform(0, 60), self._cancel)
        self._stops: list[StopRequest] = []
        self._pool = systems
        if self.troubles.tenure:
            self._lend()

    @property
    def story(self) -> list[tuple[float, str]]:
        """What orchestrators ordered, with the times."""
        return self.world.story

    @property
    def states(self) -> set[str]:
        """The states that lifecycles have been in when they waited."""
        return self.world.states

    @property
    def journal(self) -> Path:
        return self.directory / "journal.jsonl"

    def _lend(self) -> None:
        """Let the allocation that begins end some time, which the orchestrator may be told before."""
        world, random = self.world, self.world.random
        if not world.chance(self.troubles.tenure):
            return
        ends_s = random.uniform(1, 60)
        notice = random.choice((HandOver.DUE, HandOver.BEGUN))
        if random.random() < 0.6:
            world.after(max(0.0, ends_s - random.uniform(0, 30)), lambda: self._give_notice(notice))
        tenure = world.tenure
        world.after(ends_s, lambda: self._take_away(tenure))

    def _give_notice(self, ending: HandOver) -> None:
        for stop in self._stops[-1:]:
            stop.hand_over("the allocation ends", ending)

    def _take_away(self, tenure: int) -> None:
        """End an allocation, unless the run has left it, with all that runs in it."""
        world = self.world
        if world.tenure != tenure or world.tenure_is_over:
            return
        world.tenure_is_over = True
        for agent in list(world.agents.values()):
            agent.dies()
        world.agents.clear()
        if world.chance(0.5):
            self._give_notice(HandOver.OVER)

    def _next_tenure(self) -> None:
        world, random = self.world, self.world.random
        world.tenure, world.tenure_is_over = world.tenure + 1, False
        for agent in list(world.agents.values()):
            agent.dies()
        world.agents.clear()
        if random.random() < 0.7:
            count = max(1, len(self.policy.systems) + random.choice((-1, 0, 0, 1)))
            self._pool = tuple(random.sample([f"s{number}" for number in range(6)], count))
        world.lost -= {*self._pool}
        world.now_s += random.choice((1.0, 3600.0))
        self._lend()

    def _cancel(self) -> None:
        self.world.is_cancelled = True
        for stop in self._stops[-1:]:
            stop.ask("cancel", self.world.chance(0.5))

    def run(self) -> Decision | None:
        """Return the last decision; None where the journal could not be written."""

        def command(*_: Any, on_end: Callable[[Outcome], None], **__: Any) -> SimulatedCommand:
            return SimulatedCommand(self.world, on_end=on_end)

        with patch.object(upkeep, "Command", command), observed_by(self.facts.append):
            return self._run()

    def _run(self) -> Decision | None:
        while True:
            epoch = self.world.epoch + 1
            try:
                return self.live()
            except KilledError:
                self._comes_back()
            except HandedOverError:
                self._comes_back()
                self._next_tenure()
            except JournalError:
                return None
            except LeaseLostError as exc:
                if self.world.epoch == epoch:
                    raise ViolationError("the only orchestrator was fenced off") from exc
                if self._has_ended:
                    return history_of(read_lines(self.journal))[-1].decision
                self._comes_back()

    @property
    def _has_ended(self) -> bool:
        return any(isinstance(line, EndLine) for line in read_lines(self.journal))

    def _comes_back(self) -> None:
        """Let time pass until somebody starts the orchestrator again."""
        self.lives += 1
        if self.lives > 200:
            raise ViolationError("orchestrators die and nothing comes of it")
        self.world.now_s += self.world.random.choice((0.0, 1.0, 30.0, 400.0))
        self._tear()

    def _tear(self) -> None:
        """Lose the end of the last line, as a machine's death may."""
        if self.journal.exists() and self.world.chance(0.3):
            data = self.journal.read_bytes().rstrip(b"\0")
            last = data.rstrip(b"\n").rfind(b"\n") + 1
            if b'"decision"' not in data[last:]:  # those are synchronised before anything is done
                self.journal.write_bytes(data[: self.world.random.randint(last, len(data))])

    def live(self) -> Decision | None:
        """Live one orchestrator's life; raises KilledError at its death."""
        world = self.world
        if world.tenure_is_over:
            self._next_tenure()
        world.epoch += 1
        epoch = world.epoch
        with self.opened(epoch) as (supervisor, journal):
            return self._lead(supervisor, journal, is_new=epoch == 1 or not journal.lines)

    def opened(self, epoch: int) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def opened() -> Iterator[tuple[Supervisor, Journal]]:
            world = self.world

            def check() -> None:
                if world.epoch != epoch:
                    raise LeaseLostError("another orchestrator has taken over")

            stop = StopRequest()
            self._stops.append(stop)
            if world.is_cancelled:
                stop.ask("cancel")
            journal = _Journal(self.journal, check)
            journal.step = lambda: self._step(epoch)
            journal.has_room = lambda: not world.chance(self.troubles.disk)
            if self.troubles.tenure and not any(isinstance(line, TenureLine) for line in journal.lines):
                workers = min(self.policy.workers, len(self._pool))
                self.policy = replace(
                    self.policy, systems=self._pool, workers=workers
                )  # as the job is placed
            log = RunLog(self.directory / "run.log", self.directory / "places")
            plan = PhasePlan(
                run_id=RUN, phase="train", phase_index=0, phases=1, command=("train",), cwd="/",
                inherited=frozenset(), env={}, system_env={}, ranks_per_worker=self._ranks_per_worker,
                has_checkpoints=True, hang_detect_time_s=1800, stop_grace_s=STOP_GRACE_S,
                **{**beside(self.directory, (*self.policy.systems, *self._pool), **self._commands), **self._limits},
                policy=self.policy,
            )  # fmt: skip
            supervisor = Supervisor(
                plan, Infrastructure(world), key=KEY, epoch=epoch, journal=journal,
                clock=SimulatedClock(world, journal.last_t), log=log, stop=stop, check=check,
                driven_by=SimulatedDriver,
            )  # fmt: skip
            supervisor._driver.step = lambda: self._step(epoch)
            try:
                yield supervisor, journal
            except BaseException:
                for wire in supervisor._driver._wires.values():
                    wire.breaks()
                raise
            finally:
                self._stops.remove(stop)
                stop.close()
                supervisor._calls.close()
                supervisor._reports.close()
                journal.close()
                log.close()

        return opened()

    def _step(self, epoch: int) -> None:
        """Between any two things that an orchestrator does."""
        world = self.world
        if world.epoch != epoch:
            return  # its time is over, which it has yet to notice
        if world.chance(self.troubles.death):
            raise KilledError
        if world.chance(self.troubles.zombie):
            self.takeovers += 1
            with suppress(KilledError, JournalError, LeaseLostError):
                self.live()

    def _lead(self, supervisor: Supervisor, journal: Journal, *, is_new: bool) -> Decision | None:
        """As the phase does that Prefect runs."""
        policy, clock = self.policy, supervisor.clock
        pending = None if is_new else judge_pending(journal, policy, clock)
        if pending is None or pending.action in (*RESTARTS, "continue"):
            moved = self._move(supervisor, journal)
            if moved is None and (not is_new or self.world.epoch > 1):
                supervisor.rejoin(by_hand=False)
            if moved is None or moved.action in RESTARTS:
                self._attempts(supervisor, journal)
        last = journal.history()[-1].decision
        supervisor.close()
        journal.append(EndLine(status="over", reason="over"), t=clock.now())
        return last

    def _move(self, supervisor: Supervisor, journal: Journal) -> Decision | None:
        """Go on in the present allocation, if the phase was in another one."""
        if not self.troubles.tenure or (self.world.is_cancelled and self.world.chance(0.5)):
            return None
        name = f"tenure-{self.world.tenure}"
        before = left_behind(journal.lines, name)
        had = tenures(journal.lines)
        if not had or had[-1].name != name:
            journal.append(TenureLine(name=name, systems=self._pool), t=supervisor.clock.now())
        if before is None:
            return None
        kind = "handed_over"
        if not was_left_in_order(journal.lines):
            kind = self.world.random.choice(("handed_over", "preempted", "rebuild_failed", "system_lost"))
        lost = had[-1].systems[:1] if kind == "system_lost" else ()
        move = Move(before=before, name=name, systems=self._pool, kind=kind, reason="it ended", lost=lost)
        return supervisor.move(move, by_hand=False)

    def _attempts(self, supervisor: Supervisor, journal: Journal) -> None:
        while True:
            try:
                supervisor.attempt()
            except AttemptFailedError as error:
                decision = error.decision
                if decision is None:
                    if error.incident.kind in ("completed", "cancelled"):
                        raise ViolationError("this is nothing to be decided about") from error
                    decision = judge(journal, self.policy, error.incident, supervisor.clock, **error.facts)
                if decision != journal.history()[-1].decision:
                    raise ViolationError("what is carried out is not in the journal") from error
            else:
                last = journal.history()[-1].decision
                assert last is not None
                assert last.completes, "an attempt came to its end without completing"
                return
            if decision.action not in RESTARTS:
                return


class _Journal(Journal):
    """A journal on whose disk there may be no room, and between whose lines its writer may die."""

    step: Callable[[], None] = staticmethod(lambda: None)
    has_room: Callable[[], bool] = staticmethod(lambda: True)

    def sync(self) -> None:
        """Nothing of it is on a disk that could lose it."""

    def _write(self, line: Any) -> None:
        self.step()
        if not self.has_room():
            raise JournalError(f"{self.path}: the journal cannot be written: no room")
        super()._write(line)
        self.step()
