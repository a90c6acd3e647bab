"""Several agents spoken to as one: who is gone is named, who hangs is given up, who took over is obeyed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import DEADLINE_S, KEY, PYTHON, RUN, Gate, checkpoints, script, settings, wait_until_ended

from benchmarks import crew
from benchmarks.crew import Crew, StopWantedError
from prefect_ft.backends.base import Address, Backend, RouteUnavailableError, Worker
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.errors import AgentError, BackendError, LeaseLostError
from prefect_ft.supervisor import reaching
from prefect_ft.supervisor.asking import Adoption
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.enact import GangChange, first_gang
from prefect_ft.supervisor.events import Event, Lost, Stopped
from prefect_ft.supervisor.gang import Gang
from prefect_ft.supervisor.link import Link
from prefect_ft.supervisor.roster import Roster, WorkerGoneError
from prefect_ft.supervisor.stopping import StopRequest

WAIT = script("import os, signal; os.write(1, b'up\\n'); signal.pause()")
NOTHING = GangChange(destroy=(), create=())


@dataclass
class Heard:
    """A gang, and everything that its listener was told."""

    backend: Backend
    stop: StopRequest
    epoch: int = 1
    events: list[tuple[int, Any]] = field(default_factory=list)
    decisions: int = 0
    crew: Crew = field(init=False)

    def __post_init__(self) -> None:
        self.crew = Crew(
            self.backend,
            run_id=RUN,
            phase_index=0,
            key=KEY,
            epoch=self.epoch,
            stop=self.stop,
            calls=Calls(),
            listener=lambda worker, event: self.events.append((worker, event)),
            mask=lambda message: message,
            check=lambda: None,
        )

    @property
    def gang(self) -> Gang:
        return self.crew.gang

    @property
    def roster(self) -> Roster:
        return self.crew.roster

    def adopt(self) -> None:
        """Attach to the workers that are there."""
        found = self.backend.find()
        for each in found:
            self.crew._driver.found(each.worker, each.address)
            self.roster.adopt(each.worker, each.address.host)
        self.crew._await(Adoption(self.roster.numbers, time.monotonic(), DEADLINE_S))

    def create(self, workers: int) -> None:
        self.crew.change(first_gang(workers), [f"s{worker}" for worker in range(workers)], 0)

    def change(self, change: GangChange, *placement: str) -> None:
        self.decisions += 1
        self.crew.change(change, placement, self.decisions)

    def token(self, attempt: int) -> tuple[int, int, int]:
        return self.epoch, 0, attempt

    def start(self, command: list[str], attempt: int = 1, **fields: Any) -> None:
        """Start one rank in each worker."""
        orders = {
            number: {
                "command": command,
                "cwd": "/",
                "env": {},
                "ranks": {number: {"RANK": str(number)}},
                "note": {},
                **fields,
            }
            for number in self.roster.numbers
        }
        self.crew.start(orders, self.token(attempt))

    def wait(self, kind: str, count: int = 1) -> list[tuple[int, Any]]:
        """Serve until so many events of a kind have come."""
        self.crew.serve(lambda: len(self.of(kind)) >= count, DEADLINE_S)
        assert len(self.of(kind)) >= count
        return self.of(kind)

    def of(self, kind: str) -> list[tuple[int, Any]]:
        return [(worker, event) for worker, event in self.events if kind_of(event) == kind]

    def pid(self, worker: int) -> int:
        """The pid of a worker's agent."""
        return next(event.pid for number, event in reversed(self.of("attached")) if number == worker)

    def kill_agent(self, worker: int) -> None:
        os.kill(self.pid(worker), signal.SIGKILL)


def kind_of(event: Event | Lost) -> str:
    """What an event is called."""
    return "lost" if isinstance(event, Lost) else event.name


Make = Callable[..., Heard]


@pytest.fixture
def make(runtime_dir: Path, nobody_left: None) -> Iterator[Make]:
    """Make a gang on a process backend; `backend` to put a second one on the same workers."""
    made: list[Heard] = []
    directory = runtime_dir / "run"
    directory.mkdir()
    with StopRequest() as stop:

        def make(backend: Backend | None = None, epoch: int = 1, **changes: Any) -> Heard:
            made.append(Heard(backend or ProcessBackend(settings(**changes), directory, {}), stop, epoch))
            return made[-1]

        yield make
        for heard in made:
            heard.crew.close()


def gone(call: Callable[[], object]) -> tuple[int, str]:
    """The worker that is said to be gone, and why."""
    with pytest.raises(WorkerGoneError) as caught:
        call()
    return caught.value.worker, caught.value.why


# -- attempts ---------------------------------------------------------------------------------------


def test_an_attempt_on_two_workers(make: Make) -> None:
    heard = make()
    heard.create(2)
    heard.start(
        script("import os; print('rank', os.environ['RANK']); raise SystemExit(int(os.environ['RANK']))")
    )
    heard.wait("exited", 2)
    deaths = heard.crew.stop(heard.token(1), 0).deaths
    output = {(worker, event.rank, event.text) for worker, event in heard.of("output")}
    exits = {(worker, event.rank, event.code) for worker, event in heard.of("exited")}
    assert heard.roster.numbers == (0, 1)
    assert output == {(0, 0, "rank 0\n"), (1, 1, "rank 1\n")}
    assert exits == {(0, 0, 0), (1, 1, 1)}
    assert len(deaths) == 1


def test_the_next_rendezvous_has_a_port_of_its_own(make: Make) -> None:
    heard = make()
    heard.create(1)
    masters = [heard.gang.master]
    for attempt in (1, 2):
        heard.start(["true"], attempt)
        heard.crew.stop(heard.token(attempt), 0)
        masters.append(heard.gang.master)
    assert len(set(masters)) == 3
    assert {host for host, _ in masters} == {"127.0.0.1"}


def test_a_command_that_cannot_be_started_is_told_and_not_raised(make: Make) -> None:
    heard = make()
    heard.create(2)
    heard.start(["/no/such/command"])
    assert [event.errno for _, event in heard.of("start_failed")] == [2, 2]
    assert heard.crew.stop(heard.token(1), 0).deaths == []


def test_an_order_that_is_too_long_to_send_is_an_error_with_its_reason(make: Make) -> None:
    heard = make()
    heard.create(1)
    with pytest.raises(AgentError, match="the order 'start' cannot be sent: a frame of"):
        heard.start(["true"], env={"LONG": "x" * (17 << 20)})


def test_after_stop_everything_that_was_printed_has_been_heard(make: Make, tmp_path: Path) -> None:
    gate, lines = Gate(tmp_path / "done"), 400_000
    code = f"""
import os
for first in range(0, {lines}, 4000):
    os.write(1, b"".join(b"%07d\\n" % number for number in range(first, first + 4000)))
open({str(gate.path)!r}, "w").write("done")
"""
    heard = make()
    heard.create(1)
    heard.start(script(code))
    gate.wait()
    heard.crew.stop(heard.token(1), 0)
    text = "".join(event.text for _, event in heard.of("output"))
    assert text == "".join(f"{number:07}\n" for number in range(lines))


@pytest.mark.parametrize(("last", "expected"), [(0, [3]), (1, [])], ids=["all-finished", "one-failed"])
def test_only_an_attempt_that_finished_everywhere_settles_what_it_saved(
    make: Make, tmp_path: Path, last: int, expected: list[int]
) -> None:
    """Worker 0 looks at what all have written; that its own ranks have finished is not enough."""
    (tmp_path / "ck").mkdir()
    heard = make(checkpoints=checkpoints(tmp_path / "ck", settle_s=3600.0))
    heard.create(2)
    code = f"""
import os
if os.environ["RANK"] == "0": open("ck/step-3.bin", "w").write("x")
else: raise SystemExit({last})
"""
    heard.start(script(code), cwd=str(tmp_path))
    heard.wait("exited", 2)
    heard.crew.stop(heard.token(1), 0, complete=last == 0)
    assert [item.step for _, event in heard.of("checkpoints") for item in event.new] == expected


def test_choosing_asks_worker_0(make: Make, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"step-{step}.bin").write_text("x")
    heard = make(checkpoints=checkpoints(tmp_path, settle_s=0.0))
    heard.create(2)
    chosen = heard.crew.choose(heard.token(1), limit=None, avoid=[3], deaths=[])
    assert (chosen.step, chosen.path) == (2, str(tmp_path / "step-2.bin"))


def test_who_ends_by_itself_is_not_ordered_to(make: Make) -> None:
    heard = make()
    heard.create(1)
    for attempt in (1, 2):
        heard.start(script("raise SystemExit(1)"), attempt, env={"WORLD_SIZE": "1"})
        heard.wait("exited", attempt)
        assert len(heard.crew.stop(heard.token(attempt), 0).deaths) == 1
    heard.start(script(""), 3)  # an answer to an order that was given all the same would have come by now
    assert [event.token[2] for _, event in heard.of("stopped")] == [1, 2]
    heard.crew.stop(heard.token(3), 0)
    heard.crew.stop(heard.token(3), 0)
    assert [event.token[2] for _, event in heard.of("stopped")] == [1, 2, 3, 3]


FORKS_WHEN_TOLD = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(1, b"up\\n")
signal.sigwait([signal.SIGUSR1])
if os.fork():
    os.write(1, b"again\\n")
signal.pause()
"""


def test_where_ranks_are_is_asked_anew_each_time(make: Make) -> None:
    heard = make(sample_period_s=0.05)
    heard.create(1)
    heard.start(script(FORKS_WHEN_TOLD))
    heard.wait("output")
    heard.wait("sample")  # who takes none cannot be asked
    first = heard.crew.diagnose(heard.token(1), DEADLINE_S)
    os.kill(heard.of("started")[0][1].pids[0], signal.SIGUSR1)
    heard.wait("output", 2)
    second = heard.crew.diagnose(heard.token(1), DEADLINE_S)
    assert [len(told[0].processes) for told in (first, second)] == [1, 2]


def test_a_rank_may_have_failed_before_anybody_hears_that_it_was_started(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = make()
    heard.create(1)
    held: list[Event] = []
    take = Link.receive

    def receive(link: Link) -> list[Event]:
        """Hear all of an attempt at once, as who is busy with something else does."""
        held.extend(take(link))
        return [held.pop(0) for _ in range(len(held))] if held and isinstance(held[-1], Stopped) else []

    monkeypatch.setattr(Link, "receive", receive)
    monkeypatch.setattr(crew, "ANSWER_TIMEOUT_S", DEADLINE_S)
    for attempt in (1, 2):
        heard.start(script("raise SystemExit(1)"), attempt, env={"WORLD_SIZE": "1"})
        assert len(heard.crew.stop(heard.token(attempt), 0).deaths) == 1
    assert [kind_of(event) for _, event in heard.events][-3:] == ["started", "exited", "stopped"]


# -- workers come and go ----------------------------------------------------------------------------


def test_a_worker_is_replaced_by_a_new_one(make: Make) -> None:
    heard = make()
    heard.create(2)
    before = [heard.pid(worker) for worker in (0, 1)]
    heard.change(GangChange(destroy=(1,), create=(1,)), "s0", "s2")
    after = [heard.pid(worker) for worker in (0, 1)]
    assert (after[0], after[1] != before[1]) == (before[0], True)
    assert [event.system for _, event in heard.of("attached")][-1] == "s2"


def test_a_worker_that_is_created_once_more_is_another_one(make: Make) -> None:
    """`nobody_left` looks for the first one."""
    heard = make()
    heard.create(1)
    first = heard.pid(0)
    heard.create(1)
    wait_until_ended(first)
    assert heard.pid(0) != first


def test_a_gang_shrinks(make: Make) -> None:
    heard = make()
    heard.create(3)
    heard.change(GangChange(destroy=(0, 1, 2), create=(0, 1)), "s0", "s2")
    assert heard.roster.numbers == (0, 1)


def test_an_agent_that_dies_is_heard_of_and_named(make: Make) -> None:
    heard = make()
    heard.create(3)
    heard.start(WAIT)
    heard.wait("output", 3)
    heard.kill_agent(1)
    assert heard.wait("lost") == [(1, Lost(system_answers=True, evidence=None))]
    heard.crew.stop(heard.token(1), 0)
    assert gone(lambda: heard.change(NOTHING, "s0", "s1", "s2")) == (1, "its agent is gone")
    heard.change(GangChange(destroy=(0, 1, 2), create=(0, 1, 2)), "s0", "s1", "s2")
    heard.start(["true"], attempt=2)
    heard.wait("exited", 2 + 3)
    heard.crew.stop(heard.token(2), 0)


def test_who_dies_while_the_others_start_is_named(make: Make) -> None:
    heard = make()
    heard.create(3)
    heard.kill_agent(2)
    wait_until_ended(heard.pid(2))
    worker, why = gone(lambda: heard.start(["true"]))
    assert (worker, why.startswith("its agent is gone")) == (2, True)
    heard.crew.stop(heard.token(1), 0)


def test_who_dies_while_all_come_up_is_named(make: Make, runtime_dir: Path) -> None:
    """Two agents come up slowly, the third one dies: the slow ones are not to blame."""
    heard = make()
    heard.create(1)
    (payload,) = runtime_dir.glob("payload-*")
    shared = payload.resolve()
    payload.unlink()
    shutil.copytree(shared, payload)
    with (payload / "prefect_ft" / "worker" / "agent.py").open("a") as source:
        source.write("""
_main = main
def main(argv):
    import time
    if json.load(open(argv[0]))["worker"] == 2: os._exit(1)
    time.sleep(0.2)
    return _main(argv)
""")
    change = GangChange(destroy=(0,), create=(0, 1, 2))
    worker, why = gone(lambda: heard.change(change, "s0", "s1", "s2"))
    assert (worker, why.startswith("its agent is gone")) == (2, True)


def test_without_worker_0_there_is_no_master(make: Make) -> None:
    heard = make()
    heard.create(1)
    heard.kill_agent(0)
    heard.wait("lost")
    assert gone(lambda: heard.gang.master) == (0, "its agent is gone")
    assert gone(lambda: heard.crew.choose(heard.token(1), limit=None, avoid=[], deaths=[])) == (
        0,
        "its agent is gone",
    )


def test_a_backend_that_cannot_is_a_worker_that_is_gone(make: Make) -> None:
    class Broken:
        def exchange(self, old: object, new: object) -> list[Any]:
            raise BackendError("no room", system="s1", on_any_system=True)

        def destroy(self, workers: object) -> None:
            pass

        def find(self) -> list[Any]:
            return []

    heard = make(Broken())
    with pytest.raises(WorkerGoneError, match="no room") as caught:
        heard.create(2)
    assert (caught.value.worker, caught.value.system, caught.value.on_any_system) == (0, "s1", True)
    with pytest.raises(WorkerGoneError, match="no room") as caught:
        heard.change(GangChange(destroy=(1,), create=()), "s0")
    assert caught.value.worker == 1


def test_an_agent_that_does_not_answer_is_given_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = make()
    heard.create(2)
    heard.start(WAIT)
    heard.wait("output", 2)
    os.kill(heard.pid(1), signal.SIGSTOP)
    with monkeypatch.context() as hurry:
        hurry.setattr(crew, "ANSWER_TIMEOUT_S", 2.0)
        heard.crew.stop(heard.token(1), 0)
    port = heard.gang.master[1]
    assert [worker for worker, event in heard.of("stopped")] == [0]
    assert port == heard.of("stopped")[0][1].port
    assert gone(lambda: heard.change(NOTHING, "s0", "s1")) == (1, "its agent does not answer")
    heard.change(GangChange(destroy=(1,), create=(1,)), "s0", "s1")


# -- the user's wish --------------------------------------------------------------------------------


def test_a_wish_to_stop_ends_every_wait_but_that_for_the_stop(make: Make, tmp_path: Path) -> None:
    heard = make(checkpoints=checkpoints(tmp_path))
    heard.create(1)
    heard.start(WAIT)
    heard.stop.ask("SIGINT")
    with pytest.raises(StopWantedError):
        heard.crew.serve(lambda: False)
    with pytest.raises(StopWantedError):
        heard.crew.choose(heard.token(2), limit=None, avoid=[], deaths=[])
    heard.crew.stop(heard.token(1), 10)
    assert heard.of("exited")[0][1].signal == signal.SIGTERM


def test_a_wish_to_stop_wakes_a_wait_that_hears_nothing(make: Make) -> None:
    heard = make()
    asker = subprocess.Popen([PYTHON, "-c", f"import os; os.kill({os.getpid()}, 15)"])
    with pytest.raises(StopWantedError):
        heard.crew.serve(lambda: False)
    assert (asker.wait(), heard.stop.wanted) == (0, "SIGTERM")


def test_serving_ends_after_its_time(make: Make) -> None:
    heard = make()
    began = time.monotonic()
    heard.crew.serve(lambda: False, 0.05)
    assert time.monotonic() - began >= 0.05


# -- fencing ----------------------------------------------------------------------------------------


def test_who_is_superseded_leaves_the_workers_alone(make: Make) -> None:
    old = make()
    old.create(2)
    old.start(WAIT)
    old.wait("output", 2)
    new = make(old.backend, epoch=2)
    new.adopt()
    with pytest.raises(LeaseLostError, match="an orchestrator of epoch 2 has taken over worker"):
        old.crew.serve(lambda: False, DEADLINE_S)
    with pytest.raises(LeaseLostError):
        old.change(GangChange(destroy=(0, 1), create=(0, 1)), "s0", "s1")
    old.crew.close()
    assert [event.running for _, event in new.of("attached")] in ([(0,), (1,)], [(1,), (0,)])
    new.crew.stop(new.token(1), 0)
    assert len(new.of("stopped")) == 2


def test_who_comes_with_an_old_epoch_is_refused(make: Make) -> None:
    new = make(epoch=2)
    new.create(1)
    old = make(new.backend, epoch=1)
    with pytest.raises(LeaseLostError, match="worker 0 obeys an orchestrator of epoch 2"):
        old.adopt()
    new.crew.stop(new.token(1), 0)


# -- connections that break ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OnALine(Address):
    """Where an agent of this machine listens, as long as the line to it is not down."""

    line: Line

    def connect(self, timeout_s: float) -> socket.socket:
        if self.line.is_down():
            raise RouteUnavailableError("the line is down")
        return Address.connect(self, timeout_s)


class Line(ProcessBackend):
    """A process backend whose agents are spoken with by a line that can be cut."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_down: Callable[[], bool] = lambda: False

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        made = super().exchange(old, new)
        return [OnALine(socket_path=each.socket_path, host=each.host, line=self) for each in made]


@pytest.fixture
def line(make: Make, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(reaching, "RETRY_S", 0.01)
    return Line(settings(), runtime_dir / "run", {})


def break_off(heard: Heard, *workers: int) -> None:
    """End connections under both sides, which are not told otherwise."""
    for worker in workers:
        link = heard.crew._driver._links[heard.crew.roster._members[worker]._link]
        link._connection.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_breaks_ends_nothing(make: Make, line: Line, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / f"gate{rank}") for rank in range(2)]
    heard = make(line)
    heard.create(2)
    gate = f"open({str(tmp_path)!r} + '/gate' + os.environ['RANK']).read()"
    heard.start(script(f"import os; os.write(1, b'one\\n'); {gate}; os.write(1, b'two\\n')"))
    heard.wait("output", 2)
    break_off(heard, 0, 1)
    heard.wait("attached", 4)
    for each in gates:
        each.open()
    heard.wait("exited", 2)
    heard.crew.stop(heard.token(1), 0)
    said = {(worker, event.offset, event.text) for worker, event in heard.of("output")}
    assert said == {(worker, *piece) for worker in (0, 1) for piece in ((0, "one\n"), (4, "two\n"))}
    assert (len(heard.of("output")), heard.of("lost")) == (4, [])


def test_what_happened_while_nobody_could_hear_it_is_heard(make: Make, line: Line, tmp_path: Path) -> None:
    down, gate = threading.Event(), Gate(tmp_path / "gate")
    line.is_down = down.is_set
    heard = make(line)
    heard.create(1)
    heard.start(
        script(f"import os; os.write(1, b'up\\n'); open({str(gate.path)!r}).read(); raise SystemExit(3)")
    )
    heard.wait("output")
    rank = heard.of("started")[0][1].pids[0]
    down.set()
    break_off(heard, 0)
    heard.crew.serve(lambda: heard.roster.is_being_reached(0), DEADLINE_S)
    gate.open()
    wait_until_ended(rank)
    down.clear()
    (exited,) = heard.wait("exited")
    assert (exited[1].code, exited[1].token, heard.of("lost")) == (3, (1, 0, 1), [])
    assert heard.crew.stop(heard.token(1), 0) != []


def times(count: int) -> Callable[[], bool]:
    """A line that is down for so many attempts to use it."""
    left = [None] * count
    return lambda: bool(left and not left.pop())


def test_an_order_waits_for_a_connection_that_broke_and_is_given_once(make: Make, line: Line) -> None:
    heard = make(line)
    heard.create(2)
    line.is_down = times(3)
    break_off(heard, 1)
    heard.start(script("import os; print(os.getppid())"))
    heard.wait("exited", 2)
    assert len(heard.of("started")) == 2
    line.is_down = times(3)
    break_off(heard, 0, 1)
    heard.crew.stop(heard.token(1), 0)
    assert sorted(worker for worker, _ in heard.of("stopped")) == [0, 1]
    assert heard.of("lost") == []


@pytest.mark.parametrize("breaks", ["and is made again before", "before", "while it is waited for"])
def test_who_was_about_to_end_by_itself_is_ordered_to_if_that_cannot_be_heard(
    make: Make, line: Line, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    heard = make(line)
    heard.create(1)
    lost: list[Event] = []
    take = Link.receive

    def receive(link: Link) -> list[Event]:
        """Hear all but the first end, which gets lost with the connection."""
        events = take(link)
        ends = [event for event in events if isinstance(event, Stopped) and not lost]
        lost.extend(ends)
        return [event for event in events if event not in ends]

    monkeypatch.setattr(Link, "receive", receive)
    heard.start(script("raise SystemExit(1)"), env={"WORLD_SIZE": "1"})
    heard.wait("exited")
    line.is_down = times(2)
    if "before" in breaks:
        heard.crew.serve(lambda: bool(lost), DEADLINE_S)
        break_off(heard, 0)
        heard.wait("attached", 2 if "again" in breaks else 1)
    else:
        threading.Timer(0.05, lambda: break_off(heard, 0)).start()
    assert len(heard.crew.stop(heard.token(1), 0).deaths) == 1
    assert heard.of("lost") == []


def test_who_has_taken_over_meanwhile_is_obeyed(make: Make, line: Line) -> None:
    down = threading.Event()
    line.is_down = down.is_set
    heard = make(line)
    heard.create(1)
    down.set()
    break_off(heard, 0)
    heard.crew.serve(lambda: heard.roster.is_being_reached(0), DEADLINE_S)
    other = make(heard.backend, epoch=2)
    down.clear()
    line.is_down = lambda: not other.roster.reached
    other.adopt()
    with pytest.raises(LeaseLostError, match="worker 0 obeys an orchestrator of epoch 2"):
        heard.crew.serve(lambda: False, DEADLINE_S)
    assert other.of("superseded") == []


def test_an_agent_that_died_while_it_could_not_be_reached_is_gone(make: Make, line: Line) -> None:
    down = threading.Event()
    line.is_down = down.is_set
    heard = make(line)
    heard.create(1)
    pid = heard.pid(0)
    down.set()
    break_off(heard, 0)
    heard.crew.serve(lambda: heard.roster.is_being_reached(0), DEADLINE_S)
    os.kill(pid, signal.SIGKILL)
    wait_until_ended(pid)
    down.clear()
    assert heard.wait("lost") == [(0, Lost(system_answers=True, evidence=None))]
    assert gone(lambda: heard.gang.master) == (0, "its agent is gone")


def test_who_cannot_be_reached_again_is_given_up(
    make: Make, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "AWAY_TIMEOUT_S", 0.05)
    heard = make(line)
    heard.create(1)
    line.is_down = lambda: True
    break_off(heard, 0)
    assert heard.wait("lost")[0][0] == 0


def test_letting_go_waits_for_nobody_who_is_being_reached(make: Make, line: Line) -> None:
    """A connection that comes too late is closed: a socket that is left open is an error here."""
    heard = make(line)
    heard.create(1)
    down = threading.Event()
    down.set()
    line.is_down = down.is_set
    break_off(heard, 0)
    heard.crew.serve(lambda: heard.roster.is_being_reached(0), DEADLINE_S)
    (thread,) = [each for each in threading.enumerate() if each.name == "prefect-ft-reaching"]
    heard.crew.hang_up()
    down.clear()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
