"""The attempts in one worker, one at a time: started, reported on, ended for certain.

Owns when the rendezvous is open and what is known of an attempt; `forwarder` reports on its ranks, `termination` ends
them. Knows nothing of connections, keys or fencing; what it reports goes to whatever is attached.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, List, Optional

from prefect_ft.worker import processes, rank_environment
from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.container import ContainerMeter
from prefect_ft.worker.current import Current
from prefect_ft.worker.detectors import Detectors
from prefect_ft.worker.diagnosis import Diagnosis
from prefect_ft.worker.forwarder import Forwarder
from prefect_ft.worker.gang import Gang, Rank, executing, without
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.protocol import RefusedError, Token
from prefect_ft.worker.rendezvous import Rendezvous
from prefect_ft.worker.reporter import Reporter
from prefect_ft.worker.sampling import Sampling
from prefect_ft.worker.spool import Keeping
from prefect_ft.worker.termination import Termination
from prefect_ft.worker.warm import Forked, WarmStart

MAX_FAULTS = 1000
"""How many found faults of an attempt are kept for the next orchestrator that attaches."""


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
        detect: Optional[Dict[str, Any]],
    ) -> None:
        """`io_directory` must exist; `checkpoints` looks at what the ranks save, in one worker of all.

        `container` is the one whose first process this is. `rendezvous` says what serves it; None: never this agent.
        `warm` says which modules ranks find already imported; None: none. `detect` (by, every_s) says how device
        faults are detected; None: not at all.
        """
        self._directory, self._keeping = io_directory, keeping
        self._loop, self._reporter = loop, reporter
        self._sampling, self._container = sampling, container
        self._on_idle = on_idle
        self._current = Current()
        self._rendezvous = Rendezvous(
            loop, rendezvous, on_met=lambda: self._came_up("rendezvous"), on_change=self._send_standing
        )
        self._termination = Termination(
            self._current, loop, checkpoints, on_killed=self._killed, on_stopped=self._stopped
        )
        self._forwarder = Forwarder(
            io_directory,
            self._current,
            stays=keeping.stays,
            loop=loop,
            reporter=reporter,
            on_first_line=lambda: self._came_up("first-line"),
            on_caught_up=lambda: self._termination.settle("output"),
        )
        self._warm = WarmStart(io_directory, warm, loop, lambda **fields: reporter.send("warm", **fields))
        self._detectors = (
            Detectors(
                detect["by"], detect["every_s"], loop, on_fault=self._detected, on_begun=self._detecting
            )
            if detect
            else None
        )
        self._faults: List[Dict[str, Any]] = []
        """What was found in this attempt, for the next orchestrator that attaches."""
        self._detects: Optional[Dict[str, Any]] = None
        """What detects faults in this attempt, once that is known."""
        self._note: Optional[Dict[str, Any]] = None
        """The orchestrator's note of the last start, returned when it attaches again."""
        self._is_unasked = False
        """Whether the attempt was ended without an order."""
        self._left_output: List[str] = []
        """The output files of the previous attempt, where output stays."""
        self._has_all_ranks = False
        """Whether this worker has all ranks of the attempt."""
        self._diagnosis: Optional[Diagnosis] = None

    @property
    def is_idle(self) -> bool:
        """Whether no rank is running, and nothing that has outlived its rank has grace left."""
        return self._termination.is_idle

    def last_step(self) -> Optional[int]:
        """Return the highest step in the last heartbeats of this worker's ranks; `None`: there is none.

        May be called in any thread.
        """
        beats = [rank.last_beat() for rank in self._current.ranks]
        return max((beat.step for beat in beats if beat is not None and beat.step is not None), default=None)

    def describe(self) -> Dict[str, Any]:
        """Return the fields of `attached` that tell how the attempt stands."""
        ranks = self._current.ranks
        return {
            **self._rendezvous.describe(),
            **self._rendezvous.standing._asdict(),
            "running": [rank.number for rank in ranks if rank.exit is None],
            "over": self._current.is_over,
            "exits": {rank.number: rank.exit._asdict() for rank in ranks if rank.exit is not None},
            "note": self._note,
            "deaths": self._termination.deaths,
        }

    # -- starting ---------------------------------------------------------------------------------

    def start(self, token: Token, message: Dict[str, Any]) -> None:
        """Start an attempt's ranks; raises RefusedError while another attempt is not over."""
        if not self._current.is_over:
            raise RefusedError("an attempt is running: stop it first")
        self._discard()
        self._reporter.token, self._note = token, message["note"]
        ranks = {int(number): own for number, own in message["ranks"].items()}
        unset = frozenset(message.get("unset", ()))
        env = without(rank_environment.of_ranks(message["env"]), unset)
        command, cwd = rank_environment.with_python(message["command"], env), message["cwd"]
        try:
            self._rendezvous.open(without(message["env"], unset))
            gang = self._gang(token, message.get("secrets", ()))
            starter = self._warm.starter(command, cwd, env, len(ranks), executing(command, cwd))
            gang.start(starter, env, ranks, unset)
        except (OSError, ValueError) as exc:
            self._rendezvous.close()
            self._reporter.send("start_failed", **rank_environment.failure(exc, command[0]))
            return
        self._has_all_ranks = message["env"].get("WORLD_SIZE") == str(len(ranks))
        self._started(gang)
        self._warm.started(command, cwd, env, len(ranks))
        self._sampling.begin(list(gang.ranks.values()))
        self._faults, self._detects = [], None
        if self._detectors is not None:
            self._detectors.begin(env.get("CUDA_VISIBLE_DEVICES"))

    def _gang(self, token: Token, secrets: Any) -> Gang:
        return Gang(
            token[2],
            self._directory,
            self._keeping._replace(secrets=secrets),
            spared=lambda: self._warm.spared,
            container=self._container,
            on_death=self._termination.writer_died,
        )

    def _started(self, gang: Gang) -> None:
        """Watch ranks that have just been started, and report that."""
        self._current.gang, self._is_unasked = gang, False
        for rank in gang.ranks.values():
            self._watch(rank)
        self._forwarder.begin()
        self._reporter.send(
            "started",
            pids={rank.number: rank.process.pid for rank in gang.ranks.values()},
            stays={rank.number: rank.spool.path for rank in gang.ranks.values() if self._keeping.stays},
            warm=any(isinstance(rank.process, Forked) for rank in gang.ranks.values()),
        )

    def _discard(self) -> None:
        """Forget the last attempt; where output stays, its output is kept and that of the attempt before is removed."""
        self._sampling.end()
        self._termination.forget()
        self._forwarder.forget()
        for rank in self._current.ranks:
            self._unwatch(rank)
        while self._left_output:
            with contextlib.suppress(OSError):
                os.unlink(self._left_output.pop())
        gang, self._current.gang = self._current.gang, None
        if gang is not None and self._keeping.stays:
            self._left_output = gang.leave_output()
        elif gang is not None:
            gang.remove()

    def _watch(self, rank: Rank) -> None:
        self._loop.watch(rank.held, lambda _: self._rank_ended(rank))

    def _unwatch(self, rank: Rank) -> None:
        if rank.held is not None:
            self._loop.forget(rank.held)
            rank.unwatch()

    # -- reporting --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the periodic work: reap orphans, bound files."""
        if self._current.gang is not None:
            self._collect()
            self._forwarder.hand_on()
        else:
            processes.reap()  # orphans that fall to PID 1

    def report_to_newcomer(self, have: Dict[str, int]) -> None:
        """Hand on the last beats, and each rank's output from the offset on at which the reader stopped."""
        self._forwarder.rewind(have)
        self._warm.report_to_newcomer()
        self._send_detected()
        self._forwarder.hand_on()
        self._sampling.send_all()

    def hand_on(self) -> None:
        """Hand on beats and output as fast as the reader takes them; the files keep the rest."""
        self._forwarder.hand_on()

    def excerpts(self) -> Dict[int, Dict[str, Any]]:
        """Return an excerpt of all that each rank printed, for a reader that comes after this agent has gone."""
        return self._forwarder.excerpts()

    def _detecting(self, **fields: Any) -> None:
        self._detects = fields
        self._reporter.send("detecting", **fields)

    def _detected(self, **fields: Any) -> None:
        self._faults.append(fields)
        del self._faults[:-MAX_FAULTS]
        self._reporter.send("detected", **fields)

    def _send_detected(self) -> None:
        if self._detects is not None:
            self._reporter.send("detecting", **self._detects)
        for fault in self._faults:
            self._reporter.send("detected", **fault)

    def _send_standing(self) -> None:
        self._reporter.send("call", **self._rendezvous.standing._asdict())

    def _came_up(self, what: str) -> None:
        self._reporter.send("came_up", what=what, t_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def _rank_ended(self, rank: Rank) -> None:
        self._unwatch(rank)  # a tracer may hold the exit code back; the next tick gets it
        self._collect()

    def _collect(self) -> None:
        """Reap, report the ranks that have ended, and continue a stop that waited for them."""
        gang = self._current.gang
        assert gang is not None
        gang.reap()
        if self._ends_by_itself(gang):
            self._is_unasked = True
            self.stop(0, complete=False)
        elif gang.all_exited and not gang.over and self._termination.is_due:
            self._termination.hurry()
        self._report_ends()
        if self.is_idle:
            self._on_idle()

    def _report_ends(self) -> None:
        """Report the ranks that have ended since the last call."""
        for rank in self._current.ranks:
            if rank.exit is not None and not rank.reported:
                rank.reported = True
                self._unwatch(rank)
                self._forwarder.send_reports(rank)  # what explains an end comes before it
                if rank.exit.code != 0 and not self._current.is_over:  # else the stop killed it
                    self._forwarder.hand_on_last(rank)
                self._reporter.send("exited", rank=rank.number, ends=self._is_unasked, **rank.exit._asdict())

    def _ends_by_itself(self, gang: Gang) -> bool:
        """Whether all ranks have ended, and the attached orchestrator has not heard yet that any failed."""
        if not self._has_all_ranks or self._reporter.peer is None or self._rendezvous.standing.excused:
            return False
        if not gang.all_exited or gang.over or self._termination.is_due:
            return False
        failed = [rank for rank in self._current.ranks if rank.exit is not None and rank.exit.code != 0]
        return bool(failed) and not any(rank.reported for rank in failed)

    def watch(self, period_s: float) -> None:
        """Take samples more often."""
        self._sampling.watch(period_s)

    def diagnose(self, timeout_s: float) -> None:
        """Find out where the ranks are; `diagnosis` follows."""
        self._end_diagnosis()
        self._diagnosis = Diagnosis(
            self._current.ranks,
            timeout_s,
            self._loop,
            lambda found: self._reporter.send("diagnosis", ranks=found),
        )

    def _end_diagnosis(self) -> None:
        if self._diagnosis is not None:
            self._diagnosis.close()
            self._diagnosis = None

    def ask_checkpoint(self, number: Optional[int]) -> None:
        """Ask all ranks for a checkpoint, also by the signal `number`, if any."""
        deaf = [rank.number for rank in self._current.ranks if not rank.ask_checkpoint(number)]
        if deaf:
            self._reporter.send("unhandled", signal=number, ranks=deaf)

    # -- ending -----------------------------------------------------------------------------------

    def stop(self, grace_s: float, complete: bool) -> None:
        """End the attempt, after `grace_s` of SIGTERM where that is above 0; `stopped` follows. Idempotent.

        `complete`: every rank of every worker has ended by itself, so no writer is left.
        """
        self._end_diagnosis()
        if self._detectors is not None:
            self._detectors.end()  # a device can only be reset while it is unused
        self._termination.stop(grace_s, complete)

    def _killed(self, just_now: bool) -> None:
        """Report what the ranks left: nothing of the attempt runs any more."""
        self._forwarder.end(with_excerpts=not self._termination.is_complete)
        self._rendezvous.close()
        if just_now:
            self._collect()  # while the last look is under way
        self._forwarder.hand_on()
        self._sampling.end()  # last: it is not urgent
        self._warm.ended()

    def _stopped(self, fields: Dict[str, Any]) -> None:
        self._reporter.send("stopped", **fields, **self._rendezvous.describe())

    def on_looked(self, number: int, skipped: Dict[str, str]) -> None:
        """Note that the answer to this question has been reported, and what could not be verified."""
        self._termination.on_looked(number, skipped)

    def reader_gone(self) -> None:
        """Stop waiting for answers: no orchestrator is attached. A stop that was ordered is still carried out."""
        self._sampling.reader_gone()
        self._end_diagnosis()
        self._termination.reader_gone()
        self._forwarder.forget()

    def close(self) -> None:
        """End the ranks and whatever they started, and wait for it. Idempotent."""
        self._warm.close()
        if self._detectors is not None:
            self._detectors.end()
        self._termination.close()
