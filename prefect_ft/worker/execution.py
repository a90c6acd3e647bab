"""The attempts in one worker, one at a time: started, reported on, ended for certain.

Owns the ranks, their output on its way to the reader, and when the place where they meet is open.
Knows nothing of connections, keys or fencing; what it reports goes to whoever is attached.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from prefect_ft.worker import PACKAGE_DIRECTORY, inotify, processes
from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.container import ContainerMeter
from prefect_ft.worker.diagnosis import Diagnosis
from prefect_ft.worker.gang import Gang, Rank, executing, without
from prefect_ft.worker.last_look import LastLook
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.protocol import RefusedError, Token
from prefect_ft.worker.rendezvous import Rendezvous
from prefect_ft.worker.reporter import Reporter
from prefect_ft.worker.sampling import Sampling
from prefect_ft.worker.spool import Keeping
from prefect_ft.worker.warm import Forked, WarmStart

COALESCE_S = 0.05
"""How long changes of output are gathered before they are read: bounds the cost of a chatty rank."""

MAX_TURNS = 8
"""Pieces of each rank that are handed on before others are heard again: a reader may be as fast as a rank."""

UNWATCHED_S = 0.5
"""How often output is looked for where changes of files cannot be watched."""

KILL_SLICE_S = 0.5
"""How long the agent hears nothing else while it waits for killed processes to end."""

KILL_PAUSE_S = 0.1
"""How long it hears others before it waits for them again."""

DEATH_GRAIN_HZ = 100
"""Times of death are rounded up to this: ranks that die together are one death to remember."""


class Execution:
    """`on_idle()` is called when the last rank of an attempt has ended."""

    def __init__(
        self,
        io_directory: str,
        keeping: Keeping,
        *,
        loop: Loop,
        reporter: Reporter,
        checkpoints: Optional[CheckpointWatch],
        sampling: Sampling,
        container: Optional[ContainerMeter],
        on_idle: Callable[[], None],
        rendezvous: Optional[Dict[str, Any]],
        warm: Optional[Dict[str, Any]],
    ) -> None:
        """`io_directory` must be there; `checkpoints` looks at what the ranks save, in one worker of all.

        `container` is that which this process is the first one of. `rendezvous` says who serves it; None: never this
        agent. `warm` says what ranks are to find imported already; None: nothing.
        """
        self._directory = io_directory
        self._keeping = keeping
        self._loop = loop
        self._reporter = reporter
        self._checkpoints = checkpoints
        self._sampling = sampling
        self._container = container
        self._on_idle = on_idle
        self._gang: Optional[Gang] = None
        self._rendezvous = Rendezvous(
            loop,
            rendezvous,
            on_met=lambda: self._came_up("rendezvous"),
            on_change=self._tell_standing,
        )
        self._has_printed = False
        """Whether a rank of this attempt has."""
        self._is_behind = False
        """Whether output waits to be handed on that was there before."""
        self._warm = WarmStart(io_directory, warm, loop, lambda **fields: reporter.send("warm", **fields))
        self._note: Optional[Dict[str, Any]] = None
        """What the orchestrator wants to be told again of the last start."""
        self._deaths: Set[float] = set()
        """When ranks of this attempt died, not having come to their own end; seconds since the epoch."""
        self._complete = False
        """Whether the attempt is known to have come to its own end in all workers."""
        self._is_unasked = False
        """Whether the attempt was ended without an order."""
        self._awaited: Set[str] = set()
        """What `stopped` waits for: the end of the `output`, the last `look`."""
        self._untold: List[Rank] = []
        """The ranks of whose output an excerpt has yet to be told."""
        self._left_output: List[str] = []
        """What the attempt before printed, where output stays."""
        self._last_look = LastLook(checkpoints, loop, lambda: self._settle("look")) if checkpoints else None
        self._has_all_ranks = False
        """Whether this worker's ranks are all that there are."""
        self._diagnosis: Optional[Diagnosis] = None
        self._changes = _changes_of(io_directory)
        if self._changes is not None:
            loop.watch(self._changes, lambda _: self._files_changed())

    @property
    def is_idle(self) -> bool:
        """Whether no rank is running."""
        return self._gang is None or self._gang.over or self._gang.all_exited

    def last_step(self) -> Optional[int]:
        """Return the highest step that this worker's ranks have told last; `None`: they have told none.

        May be called in any thread.
        """
        gang = self._gang
        beats = [rank.last_beat() for rank in list(gang.ranks.values())] if gang is not None else []
        return max((beat.step for beat in beats if beat is not None and beat.step is not None), default=None)

    def describe(self) -> Dict[str, Any]:
        """Return the fields of `attached` that tell how the attempt stands."""
        ranks = self._ranks()
        return {
            **self._rendezvous.describe(),
            **self._rendezvous.standing._asdict(),
            "running": [rank.number for rank in ranks if rank.exit is None],
            "over": self._gang is None or self._gang.over,
            "exits": {rank.number: rank.exit._asdict() for rank in ranks if rank.exit is not None},
            "note": self._note,
            "deaths": sorted(self._deaths),
        }

    def _ranks(self) -> List[Rank]:
        return list(self._gang.ranks.values()) if self._gang is not None else []

    # -- starting ---------------------------------------------------------------------------------

    def start(self, token: Token, message: Dict[str, Any]) -> None:
        """Start an attempt's ranks; raises RefusedError while another attempt is not over."""
        if self._gang is not None and not self._gang.over:
            raise RefusedError("an attempt is running: stop it first")
        self._discard()
        self._reporter.token, self._note = token, message["note"]
        ranks = {int(number): own for number, own in message["ranks"].items()}
        unset = frozenset(message.get("unset", ()))
        env = without(_environment(message["env"]), unset)
        command, cwd = _with_python(message["command"], env), message["cwd"]
        try:
            self._rendezvous.open(without(message["env"], unset))
            gang = Gang(
                token[2],
                self._directory,
                self._keeping._replace(secrets=message.get("secrets", ())),
                spared=lambda: self._warm.spared,
                container=self._container,
                on_death=self._writer_died,
            )
            starter = self._warm.starter(command, cwd, env, len(ranks), executing(command, cwd))
            gang.start(starter, env, ranks, unset)
        except (OSError, ValueError) as exc:
            self._rendezvous.close()
            self._reporter.send("start_failed", **_failure(exc, command[0]))
            return
        self._gang, self._has_printed, self._is_unasked = gang, False, False
        self._has_all_ranks = message["env"].get("WORLD_SIZE") == str(len(ranks))
        for rank in gang.ranks.values():
            self._watch(rank)
        if self._changes is None:
            self._files_changed()
        elif self._loop.is_set("changes"):  # the first line is to be seen when it comes
            self._loop.drop("changes")
            self._read_changes()
        self._reporter.send(
            "started",
            pids={rank.number: rank.process.pid for rank in gang.ranks.values()},
            stays={rank.number: rank.spool.path for rank in gang.ranks.values() if self._keeping.stays},
            warm=any(isinstance(rank.process, Forked) for rank in gang.ranks.values()),
        )
        self._warm.started(command, cwd, env, len(ranks))
        self._sampling.begin(list(gang.ranks.values()))

    def _discard(self) -> None:
        """Forget the last attempt; where output stays, that of the last one does and that before goes."""
        self._sampling.end()
        self._awaited.clear()
        self._untold.clear()
        self._deaths.clear()
        for rank in self._ranks():
            self._unwatch(rank)
        while self._left_output:
            with contextlib.suppress(OSError):
                os.unlink(self._left_output.pop())
        if self._gang is not None and self._keeping.stays:
            self._left_output = self._gang.leave_output()
        elif self._gang is not None:
            self._gang.remove()
        self._gang = None

    def _watch(self, rank: Rank) -> None:
        self._loop.watch(rank.held, lambda _: self._rank_ended(rank))

    def _unwatch(self, rank: Rank) -> None:
        if rank.held is not None:
            self._loop.forget(rank.held)
            rank.unwatch()

    # -- reporting --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due once in a while, whatever happens: orphans are reaped, files bounded."""
        if self._gang is not None:
            self._collect()
            self.hand_on()
        else:
            processes.reap()  # orphans that fall to PID 1

    def report_to_newcomer(self, have: Dict[str, int]) -> None:
        """Hand on the last beats, and each rank's output from the offset on up to which the reader has it."""
        for rank in self._ranks():
            rank.rewind(have.get(str(rank.number), 0))
        self._warm.report_to_newcomer()
        self.hand_on()
        self._sampling.tell_all()

    def hand_on(self) -> None:
        """Hand on beats and output as far as the reader keeps up; the files keep the rest."""
        if self._hand_on(self._ranks()) and self._tell_excerpts():
            self._settle("output")

    def _hand_on(self, ranks: Iterable[Rank]) -> bool:
        """Hand on what these ranks have; False: something is left."""
        waiting = ranks = list(ranks)
        if not self._has_printed and any(rank.spool.has_begun for rank in ranks):
            self._has_printed = True
            self._came_up("first-line")
        for rank in ranks:
            self._tell_beat(rank)
            self._tell_reports(rank)
        for _ in range(MAX_TURNS):  # in turns: one rank that prints a lot holds up no other
            if not waiting or not (self._keeping.stays or self._reporter.has_room):
                break
            waiting = [rank for rank in waiting if self._go_on(rank)]
        else:
            self._loop.after("more", 0.0, self.hand_on)
        for rank in ranks:
            rank.spool.bound()
        self._is_behind = bool(waiting)
        return not waiting

    def _tell_beat(self, rank: Rank) -> None:
        beat = rank.new_beat() if self._reporter.has_room else None
        if beat is not None:
            self._reporter.send("beat", rank=rank.number, **beat._asdict())

    def _tell_reports(self, rank: Rank) -> None:
        for event, told in (("in_process", rank.restarts), ("fault", rank.faults)):
            for number, report in told.new() if self._reporter.has_room else ():
                self._reporter.send(event, rank=rank.number, n=number, report=report)

    def _tell_standing(self) -> None:
        self._reporter.send("call", **self._rendezvous.standing._asdict())

    def _go_on(self, rank: Rank) -> bool:
        """Take one piece of a rank's output; False: there is none."""
        final = self._gang is not None and self._gang.over
        return rank.spool.sift(final) if self._keeping.stays else self._tell_output(rank, final)

    def _tell_output(self, rank: Rank, final: bool) -> bool:
        """Hand on one piece of a rank's output; False: there is none."""
        if rank.spool.dropped:
            self._reporter.send("dropped", rank=rank.number, bytes=rank.spool.dropped)
            self._reporter.send("excerpt", rank=rank.number, **rank.spool.excerpt())
            rank.spool.dropped = 0
        piece = rank.spool.next_piece(final)
        if piece is None:
            return False
        text = piece.data.decode("utf-8", "surrogateescape")
        self._reporter.send("output", rank=rank.number, offset=piece.offset, text=text)
        return True

    def _tell_excerpts(self) -> bool:
        """Tell what the ranks' output may say of why they ended; False: something is left."""
        while self._untold and self._reporter.has_room:
            rank = self._untold.pop()
            self._reporter.send("excerpt", rank=rank.number, **rank.spool.excerpt())
        return not self._untold

    def excerpts(self) -> Dict[int, Dict[str, Any]]:
        """Return an excerpt of all that each rank printed, for who comes when this agent has gone."""
        return {rank.number: rank.spool.excerpt_of_all() for rank in self._ranks()}

    def _came_up(self, what: str) -> None:
        self._reporter.send("came_up", what=what, t_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def _files_changed(self) -> None:
        """Put looking off a little: a rank that prints a lot must not wake the agent at every line."""
        if self._changes is None:
            self._loop.after("changes", UNWATCHED_S, self._look_for_changes)
        elif not self._has_printed:
            self._read_changes()  # when the first line comes is told, so it is not put off
        else:
            self._loop.forget(self._changes)
            self._loop.after("changes", COALESCE_S, self._read_changes)

    def _look_for_changes(self) -> None:
        self.hand_on()
        if not self.is_idle:
            self._files_changed()

    def _read_changes(self) -> None:
        assert self._changes is not None
        changes = self._changes.read()
        self._loop.watch(self._changes, lambda _: self._files_changed())
        if any(change.mask & inotify.Q_OVERFLOW for change in changes):
            self.hand_on()
        elif self._gang is not None:
            by_file = self._gang.by_file
            changed = {by_file[change.name] for change in changes if change.name in by_file}
            self._hand_on(self._ranks() if self._is_behind else changed)  # all in turns, if others wait too

    def _rank_ended(self, rank: Rank) -> None:
        self._unwatch(rank)  # a tracer may hold the exit code back; the tick gets it then
        self._collect()

    def _collect(self) -> None:
        """Reap, report the ranks that have ended, and go on with a stop that waited for them."""
        assert self._gang is not None
        self._gang.reap()
        if self._ends_by_itself():
            self._is_unasked = True
            self.stop(0, complete=False)
        elif self._gang.all_exited and not self._gang.over and self._loop.is_set("kill"):
            self._loop.drop("kill")
            self._kill()
        self._tell_ends()
        if self.is_idle:
            self._on_idle()

    def _tell_ends(self) -> None:
        """Tell of the ranks that have ended since the last call."""
        for rank in self._ranks():
            if rank.exit is not None and not rank.reported:
                rank.reported = True
                self._unwatch(rank)
                self._tell_reports(rank)  # what explains an end comes before it
                self._reporter.send("exited", rank=rank.number, ends=self._is_unasked, **rank.exit._asdict())

    def _ends_by_itself(self) -> bool:
        """Whether all ranks have ended, and who is attached has yet to hear that any failed: then all is decided."""
        assert self._gang is not None
        if not self._has_all_ranks or self._reporter.peer is None or self._rendezvous.standing.excused:
            return False
        if not self._gang.all_exited or self._gang.over or self._loop.is_set("kill"):
            return False
        failed = [rank for rank in self._ranks() if rank.exit is not None and rank.exit.code != 0]
        return bool(failed) and not any(rank.reported for rank in failed)

    def watch(self, period_s: float) -> None:
        """Take samples more often."""
        self._sampling.watch(period_s)

    def diagnose(self, timeout_s: float) -> None:
        """Find out where the ranks are; `diagnosis` follows."""
        self._end_diagnosis()
        self._diagnosis = Diagnosis(
            self._ranks(), timeout_s, self._loop, lambda found: self._reporter.send("diagnosis", ranks=found)
        )

    def _end_diagnosis(self) -> None:
        if self._diagnosis is not None:
            self._diagnosis.close()
            self._diagnosis = None

    def ask_checkpoint(self, number: Optional[int]) -> None:
        """Ask all ranks for a checkpoint; `number` is the signal that says so besides, if any."""
        for rank in self._ranks():
            rank.ask_checkpoint(number)

    # -- ending -----------------------------------------------------------------------------------

    def stop(self, grace_s: float, complete: bool) -> None:
        """End the attempt, after `grace_s` of SIGTERM where that is above 0; `stopped` follows. Idempotent.

        `complete`: every rank of every worker has ended by itself, so nobody is writing any more.
        """
        self._complete = complete
        self._end_diagnosis()
        self._loop.drop("kill")
        if self._gang is not None and grace_s > 0 and not self.is_idle:
            self._gang.terminate()
            self._loop.after("kill", grace_s, self._kill)
        else:
            self._kill()

    def _kill(self) -> None:
        living = None if self._gang is None or self._gang.over else self._gang
        if living is not None and not living.end(KILL_SLICE_S):
            self._loop.after("kill", KILL_PAUSE_S, self._kill)
            return
        self._await_last_news()
        self._rendezvous.close()
        if living is not None:
            self._collect()  # while the last look is under way
        self.hand_on()
        self._sampling.end()  # not before: nobody waits for it
        self._warm.ended()

    def _writer_died(self) -> None:
        death = math.ceil(time.time() * DEATH_GRAIN_HZ) / DEATH_GRAIN_HZ
        self._deaths.add(death)
        if self._checkpoints is not None:
            self._checkpoints.writers_died(death)

    def _await_last_news(self) -> None:
        """Let `stopped` come after all output and, if that comes in time, a look at what was saved."""
        self._awaited = {"output"}
        self._untold = self._ranks() if self._keeping.stays and not self._complete else []
        if self._last_look is not None:
            self._awaited.add("look")
            self._last_look.begin(complete=self._complete)

    def looked(self, number: int, passed_over: Dict[str, str]) -> None:
        """Take note that the answer to this question has been reported, and of what could not be verified."""
        if self._last_look is not None:
            self._last_look.looked(number, passed_over)

    def _settle(self, what: str) -> None:
        """Take one thing off what `stopped` waits for."""
        if what not in self._awaited:
            return
        self._awaited.discard(what)
        if self._awaited:
            return
        stuck = self._gang.stuck if self._gang is not None else []
        deaths = sorted(self._deaths)
        self._reporter.send(
            "stopped",
            stuck=stuck,
            deaths=deaths,
            passed_over=self._last_look.passed_over if self._last_look is not None else None,
            **self._rendezvous.describe(),
        )

    def reader_gone(self) -> None:
        """Nobody waits for answers any more; a stop that was ordered is carried out all the same."""
        self._sampling.nobody_listens()
        self._end_diagnosis()
        self._awaited.clear()
        self._untold.clear()

    def close(self) -> None:
        """End the ranks and whatever they started, and wait for it. Idempotent."""
        self._warm.close()
        while self._gang is not None and not self._gang.end(KILL_SLICE_S):
            pass


def _changes_of(directory: str) -> Optional[inotify.Inotify]:
    """Watch a directory's files; None where the user's limits allow no more of that."""
    try:
        changes = inotify.Inotify()
    except OSError:
        return None
    try:
        changes.watch(directory, inotify.MODIFY)
    except OSError:
        changes.close()
        return None
    return changes


def _environment(given: Dict[str, str]) -> Dict[str, str]:
    """Return the ranks' common environment: the worker's own, `given`, and the way to this package."""
    env = {"PYTHONUNBUFFERED": "1", **os.environ, **given}
    path = (PACKAGE_DIRECTORY, env.get("PYTHONPATH"))
    env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    return env


def _with_python(command: List[str], env: Dict[str, str]) -> List[str]:
    """Have `python` be this interpreter where the worker has none of that name: many images say python3."""
    places = env.get("PATH", os.defpath).split(os.pathsep)
    if command[0] != "python" or any(os.access(os.path.join(place, "python"), os.X_OK) for place in places):
        return command
    return [sys.executable, *command[1:]]


def _failure(error: Exception, command: str) -> Dict[str, Any]:
    """Return the fields that tell why nothing could be started; `what` is the path that is at fault."""
    if isinstance(error, OSError):
        what = os.fsdecode(error.filename) if error.filename else command
        return {"errno": error.errno, "error": error.strerror or str(error), "what": what}
    return {"errno": None, "error": str(error), "what": command}
