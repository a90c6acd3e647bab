"""Who may act on a model directory: one at a time, whoever dies, stops, comes late or meets a bad disk."""

from __future__ import annotations

import errno
import os
import select
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefect_ft.clock import BootClock
from prefect_ft.errors import LeaseLostError, RunHeldError
from prefect_ft.run import lease as module
from prefect_ft.run import new_run, vacancy
from prefect_ft.run.holding import holder_of
from prefect_ft.run.lease import Claim, Claims, Lease, take, wait_until_free
from prefect_ft.run.owner import Owner, this_process

TIME_S = 10.0
RUN = "run-1"


class SimulatedClock(BootClock):
    """Time that passes when it is told to, or when somebody waits; then `meanwhile` happens as well."""

    def __init__(self) -> None:
        self.at_s = 1000.0
        self.meanwhile: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        self.meanwhile()


def owner(number: int, boot: str = "boot") -> Owner:
    return Owner("host", boot, "pids", number, 1)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    (tmp_path / RUN).mkdir()
    return Claims(tmp_path)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pids of processes that have ended; those of other boots cannot be seen."""
    ended: set[int] = set()
    monkeypatch.setattr(Owner, "is_gone", lambda self: None if self.boot != "boot" else self.pid in ended)
    return ended


def held_by(claims: Claims, clock: BootClock, number: int, boot: str = "boot") -> Lease:
    """Take the next epoch as another process."""
    claim = Claim(claims.highest_epoch() + 1, RUN, owner(number, boot), clock.now())
    assert claims.take(claim)
    return Lease(claims, claim, TIME_S, clock)


# -- who is refused, who takes over -----------------------------------------------------------------


def test_the_first_one_takes_the_first_epoch(claims: Claims, clock: SimulatedClock) -> None:
    assert wait_until_free(claims, TIME_S, clock) is None
    first = take(claims, None, RUN, TIME_S, clock)
    first.renew()
    assert (first.epoch, first.claim.owner) == (1, this_process())


def test_while_the_holder_lives_everybody_else_is_refused_at_once(
    claims: Claims, clock: SimulatedClock, dead: set[int]
) -> None:
    holder = held_by(claims, clock, 7)
    for _ in range(3):
        with pytest.raises(RunHeldError, match="run run-1 is held by process 7 on host; nothing was touched"):
            wait_until_free(claims, TIME_S, clock)
        clock.at_s += TIME_S / 2
        holder.renew()
    assert clock.at_s == 1000 + 1.5 * TIME_S


def test_a_dead_holder_is_succeeded_at_once(claims: Claims, clock: SimulatedClock, dead: set[int]) -> None:
    held_by(claims, clock, 7).renew()
    dead.add(7)
    assert wait_until_free(claims, TIME_S, clock) == claims.highest()
    assert clock.at_s == 1000


def test_a_holder_that_lets_go_is_succeeded_at_once(
    claims: Claims, clock: SimulatedClock, dead: set[int]
) -> None:
    held_by(claims, clock, 7, boot="other").release()
    assert wait_until_free(claims, TIME_S, clock) == claims.highest()
    assert clock.at_s == 1000


def test_a_stopped_holder_is_succeeded_after_its_time(
    claims: Claims, clock: SimulatedClock, dead: set[int]
) -> None:
    held_by(claims, clock, 7).renew()
    clock.at_s += TIME_S
    assert wait_until_free(claims, TIME_S, clock) == claims.highest()


def test_a_holder_on_another_machine_is_watched_for_its_own_time_by_our_clock(
    claims: Claims, clock: SimulatedClock, dead: set[int]
) -> None:
    there = SimulatedClock()
    there.at_s = 5.0  # that machine has just been started
    held_by(claims, there, 7, boot="other").renew()
    wait_until_free(claims, 1.0, clock)
    assert TIME_S <= clock.at_s - 1000 <= 1.2 * TIME_S


def test_a_sign_of_life_from_another_machine_is_enough_to_refuse(
    claims: Claims, clock: SimulatedClock, dead: set[int]
) -> None:
    holder = held_by(claims, clock, 7, boot="other")
    holder.renew()
    clock.meanwhile = holder.renew
    with pytest.raises(RunHeldError):
        wait_until_free(claims, TIME_S, clock)
    assert clock.at_s < 1000 + TIME_S


def test_since_when_a_lease_was_free_is_known_on_the_machine_of_its_holder(
    claims: Claims, clock: SimulatedClock, dead: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "boot_id", lambda: "boot")
    assert take(claims, None, RUN, TIME_S, clock).free_since_s is None
    for number, boot, renewed_s, expected in [
        (1, "boot", 3.0, 1003.0),
        (2, "boot", None, 1103.0),
        (3, "another", 3.0, None),
    ]:
        holder = held_by(claims, clock, number, boot)
        if renewed_s is not None:
            clock.at_s += renewed_s
            holder.renew()
        clock.at_s += 100.0
        dead.add(number)
        found = wait_until_free(claims, TIME_S, clock)
        assert take(claims, found, RUN, TIME_S, clock).free_since_s == expected
    assert take(claims, claims.highest(), "run-2", TIME_S, clock).free_since_s is None


def test_of_two_that_find_it_free_one_is_too_late(claims: Claims, clock: SimulatedClock) -> None:
    take(claims, None, RUN, TIME_S, clock)
    with pytest.raises(RunHeldError, match="held by process"):
        take(claims, None, RUN, TIME_S, clock)
    assert claims.highest_epoch() == 1


def test_a_late_holder_finds_itself_out_and_writes_nothing(
    claims: Claims, clock: SimulatedClock, dead: set[int]
) -> None:
    late = held_by(claims, clock, 7)
    late.renew()
    held_by(claims, clock, 8).renew()
    before = claims.pulse(RUN)
    for act in (late.check, late.renew):
        with pytest.raises(LeaseLostError, match="epoch 2 has taken over from this one, of epoch 1"):
            act()
    late.release()
    assert claims.pulse(RUN) == before


def test_a_torn_claim_is_one_of_nobody_known(claims: Claims, clock: SimulatedClock) -> None:
    held_by(claims, clock, 7)
    (claims.root / "epochs" / "000002").write_text('{"epoch"')
    assert wait_until_free(claims, TIME_S, clock) == Claim(2, "", None, 0.0)
    assert clock.at_s >= 1000 + TIME_S


# -- the file system --------------------------------------------------------------------------------


def test_an_answer_that_got_lost_is_no_failure(
    claims: Claims, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a request whose answer got lost, and then says that the file exists: it is ours."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError

    monkeypatch.setattr(os, "link", twice)
    assert take(claims, None, RUN, TIME_S, clock).epoch == 1


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links(
    claims: Claims, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", refused)
    assert take(claims, None, RUN, TIME_S, clock).epoch == 1
    with pytest.raises(RunHeldError):
        take(claims, None, RUN, TIME_S, clock)


def test_nothing_but_epochs_is_left_in_the_directory(claims: Claims, clock: SimulatedClock) -> None:
    take(claims, None, RUN, TIME_S, clock)
    with pytest.raises(RunHeldError):
        take(claims, None, RUN, TIME_S, clock)
    assert os.listdir(claims.root / "epochs") == ["000001"]


# -- real processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [40, pytest.param(400, marks=pytest.mark.long)])
def test_of_two_orchestrators_that_start_at_once_exactly_one_acts(tmp_path: Path, times: int) -> None:
    """On a directory that is new, and on one whose run was left."""
    for turn in range(times):
        model_dir = tmp_path / str(turn % 20)
        start, end = os.pipe(), os.pipe()
        children = [_contender(model_dir, f"{turn}-{number}", start, end) for number in (0, 1)]
        for descriptor in start:
            os.close(descriptor)  # both are waiting for this
        refused = _first_to_end(children)
        for descriptor in end:
            os.close(descriptor)
        codes = [_exit_code(pid) for pid in (refused, *{*children} - {refused})]
        assert codes == [3, 0], turn
        assert len(list(model_dir.glob(f"acted-{turn}-*"))) == 1
        assert Claims(model_dir / ".prefect-ft").highest_epoch() == turn // 20 + 1


def _first_to_end(pids: list[int]) -> int:
    handles = {os.pidfd_open(pid): pid for pid in pids}
    ready, _, _ = select.select(handles, [], [], 30)
    first = handles[ready[0]]
    for handle in handles:
        os.close(handle)
    return first


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _contender(model_dir: Path, name: str, start: tuple[int, int], end: tuple[int, int]) -> int:
    """Fork a process that waits for the start, tries to get hold of the directory, and acts if it does.

    Who acts lives until the end, and then dies without letting go.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(start[1])
        os.close(end[1])
        os.read(start[0], 1)
        free = vacancy(model_dir, TIME_S)
        held = free.resume() if free.previous is not None else free.begin(name, "j")
        (model_dir / f"acted-{name}").touch()
        held.lease.renew()
        select.select([end[0]], [], [], 20)
        os._exit(0)
    except RunHeldError:
        os._exit(3)
    finally:
        os._exit(4)


def test_a_process_is_named_for_good(tmp_path: Path) -> None:
    me = this_process()
    assert me.is_gone() is False
    assert Owner(me.host, me.boot, me.pid_space, me.pid, me.started - 1).is_gone() is True
    assert Owner(me.host, "another boot", me.pid_space, me.pid, me.started).is_gone() is None
    assert Owner.from_json(me.to_json()) == me
    assert Owner.from_json({"pid": 1}) is None


def test_a_zombie_is_gone(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    me = this_process()
    assert Owner(me.host, me.boot, me.pid_space, pid, me.started).is_gone() is True
    os.waitpid(pid, 0)


def test_who_holds_a_run_can_be_seen(tmp_path: Path) -> None:
    run = new_run(tmp_path, "old")
    assert holder_of(run) is None
    held = vacancy(tmp_path, TIME_S).begin("r2", "j")
    assert holder_of(held.run) == str(this_process())
    assert holder_of(run) is None
    held.lease.release()
    assert holder_of(held.run) is None


# -- anything in any order --------------------------------------------------------------------------


@dataclass
class Actor:
    """An orchestrator somewhere; `found` is what it saw when it last looked and found nobody."""

    number: int
    boot: str
    lease: Lease | None = None
    found: list[Claim | None] = field(default_factory=list)
    renewed_s: float = 0.0
    is_stopped: bool = False
    has_let_go: bool = False

    @property
    def owner(self) -> Owner:
        return owner(self.number, self.boot)


ACTORS = strategies.integers(0, 3)


class Leases(RuleBasedStateMachine):
    """Four orchestrators, two on each of two machines, on a disk that fails before or after it obeys."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        (self.directory / RUN).mkdir()
        self.clock = SimulatedClock()
        self.actors = [Actor(number, f"boot-{number % 2}") for number in range(4)]
        self.dead: set[int] = set()
        self.fault: str | None = None
        self.current: Actor = self.actors[0]
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(Owner, "is_gone", lambda named: self._is_gone(named))  # noqa: PLW0108  (a bound method would not be one of Owner)
        self.patches.setattr(module, "this_process", lambda: self.current.owner)
        for name in ("link", "listdir", "fsync"):
            self.patches.setattr(os, name, self._faulty(getattr(os, name)))

    def teardown(self) -> None:
        self.patches.undo()
        shutil.rmtree(self.directory)

    def _is_gone(self, named: Owner) -> bool | None:
        return None if named.boot != self.current.boot else named.pid in self.dead

    def _faulty(self, call: Callable[..., object]) -> Callable[..., object]:
        def faulty(*arguments: object) -> object:
            fault, self.fault = self.fault, None
            if fault == "before":
                raise OSError(errno.EIO, "the disk is gone")
            result = call(*arguments)
            if fault == "after":
                raise OSError(errno.EIO, "the answer is gone")
            return result

        return faulty

    def acting(self, number: int) -> Actor:
        self.current = self.actors[number]
        return self.current

    @property
    def claims(self) -> Claims:
        return Claims(self.directory)

    @rule(number=ACTORS)
    def look(self, number: int) -> None:
        actor = self.acting(number)
        if number in self.dead or actor.is_stopped:
            return
        holder = self._holder()
        began_s = self.clock.now()
        self.clock.meanwhile = self._all_renew
        try:
            actor.found = [wait_until_free(self.claims, TIME_S, self.clock)]
        except (RunHeldError, OSError):
            return
        finally:
            self.clock.meanwhile = lambda: None
        if holder is not None and holder is not actor and holder.lease is not None:
            silent_s = self.clock.now() - max(holder.renewed_s, holder.lease.claim.at_s)
            assert holder.has_let_go or holder.number in self.dead or silent_s >= TIME_S * 0.99, began_s

    @rule(number=ACTORS)
    @precondition(lambda self: any(actor.found for actor in self.actors))
    def take(self, number: int) -> None:
        actor = self.acting(number)
        if number in self.dead or actor.is_stopped or not actor.found:
            return
        found = actor.found.pop()
        try:
            actor.lease = take(self.claims, found, RUN, TIME_S, self.clock)
        except (RunHeldError, OSError):
            return
        actor.has_let_go = False

    @rule(number=ACTORS)
    def renew(self, number: int) -> None:
        self._renew(self.acting(number))

    @rule(number=ACTORS)
    def let_go(self, number: int) -> None:
        actor = self.acting(number)
        if actor.lease is not None and number not in self.dead and not actor.is_stopped:
            actor.lease.release()
            actor.has_let_go = True  # and acts no more, whether it could be written or not
            actor.lease = None

    @rule(number=ACTORS, stopped=strategies.booleans())
    def stop_or_go_on(self, number: int, stopped: bool) -> None:
        self.actors[number].is_stopped = stopped

    @rule(number=ACTORS)
    def die(self, number: int) -> None:
        self.dead.add(number)

    @rule(seconds=strategies.floats(0, 2 * TIME_S))
    def pass_time(self, seconds: float) -> None:
        self.clock.at_s += seconds

    @rule(fault=strategies.sampled_from(["before", "after"]))
    def break_disk(self, fault: str) -> None:
        self.fault = fault

    @invariant()
    def at_most_one_may_act(self) -> None:
        fault, self.fault = self.fault, None
        able = [actor.number for actor in self.actors if actor.lease is not None and self._may_act(actor)]
        self.fault = fault
        assert len(able) <= 1, able

    @invariant()
    def no_epoch_has_two_holders(self) -> None:
        epochs = [actor.lease.epoch for actor in self.actors if actor.lease is not None]
        assert len(set(epochs)) == len(epochs), epochs

    def _may_act(self, actor: Actor) -> bool:
        assert actor.lease is not None
        try:
            actor.lease.check()
        except LeaseLostError:
            return False
        return True

    def _holder(self) -> Actor | None:
        fault, self.fault = self.fault, None
        highest = self.claims.highest_epoch()
        self.fault = fault
        return next((a for a in self.actors if a.lease is not None and a.lease.epoch == highest), None)

    def _all_renew(self) -> None:
        looking = self.current
        for actor in self.actors:
            if actor is not looking:
                self.current = actor
                self._renew(actor)
        self.current = looking

    def _renew(self, actor: Actor) -> None:
        if actor.lease is None or actor.number in self.dead or actor.is_stopped:
            return
        try:
            actor.lease.renew()
        except (LeaseLostError, OSError):
            return
        actor.renewed_s = self.clock.now()


TestLeases = Leases.TestCase
TestLeases.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
