"""What is known of the attempt that runs: a fold over the agents' events. Decides nothing."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from prefect_ft.backends.base import TAKEN_AWAY
from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import Catalogue, LogFindings, LogScanner, Resumption, judge
from prefect_ft.decide.step_lines import StepLines
from prefect_ft.model import Evidence, FailureClass, Incident, Kind, Stage, Verdict
from prefect_ft.supervisor.events import Beat, Call, Event, Excerpt, Exited, Lost, Output, StartFailed

COMMAND_NOT_STARTED = 127
"""The exit code that a shell gives for a command that is not there."""

MOST_APART = 10
"""Steps between two that are reported, above which the last one does not say where a rank failed."""

NOT_STARTED = "start-failed"
"""The rule of evidence that a command could not be started."""

OUT_OF_THE_USUAL = "value-out-of-the-usual"
"""The rule of evidence that an attempt was ended because of a loss or a gradient norm."""

GIVEN_UP = "in-process-given-up"
"""The signature of ranks that end because a wrapped call cannot go on: not why it cannot."""

_TOO_MANY: Mapping[int | None, str] = {
    errno.EAGAIN: "processes (ulimit -u, pids.max, resources.pids)",
    errno.ENOMEM: "memory",
    errno.EMFILE: "open files (ulimit -n)",
    errno.ENFILE: "open files (sysctl fs.file-max)",
}
"""The limits that ranks run into of which there are more than a system starts."""

_PASSING: Mapping[int | None, FailureClass] = {
    errno.ETXTBSY: "unknown",
    **dict.fromkeys((errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE), "storage"),
}
"""What may keep a command from starting now and not the next time; anything else is its configuration."""


@dataclass(slots=True)
class RankState:
    """One rank, as its agent reported it. `ended_ns` is CLOCK_BOOTTIME on the agent's machine."""

    worker: int
    exit_code: int | None = None
    signal: int | None = None
    ran_out: bool = False
    """Whether it was killed because its container's memory was used up."""
    ended_ns: int | None = None
    was_stopped: bool = False
    """Whether it ended because the attempt was being ended: how it ended then says nothing about it."""
    step: int | None = None
    every: int | None = None
    """The distance between the steps that it reports."""
    stage: Stage | None = None
    stage_step: int | None = None
    output: LogScanner = field(default_factory=LogScanner)
    """What its output has said so far; line numbers count from its beginning."""
    heard: int = 0
    """Up to which offset that is."""
    sample: str | None = None
    """What it said last that a step is made of."""
    printed: StepLines = field(default_factory=StepLines)
    """The steps in its output, as long as it reports none."""

    def hear(self, offset: int, text: str) -> None:
        """Take output, so far as it is news."""
        data = text.encode("utf-8", "replace")  # as long as it was: a byte that was no UTF-8 is one again
        news = data[max(0, self.heard - offset) :]
        self.output.feed(news)
        if self.step is None:
            self.printed.feed(news.decode("utf-8", "replace"))
        self.heard = max(self.heard, offset + len(data))

    @property
    def failed(self) -> bool:
        return not self.was_stopped and (self.signal is not None or bool(self.exit_code))

    @property
    def succeeded(self) -> bool:
        return not self.was_stopped and self.exit_code == 0


_Reached = tuple[int, int | None]
"""A step, and the distance between those that are reported."""


def _reported(ranks: Sequence[RankState]) -> list[_Reached]:
    return [(state.step, state.every) for state in ranks if state.step is not None]


def _printed(ranks: Sequence[RankState]) -> list[_Reached]:
    found = [state.printed for state in ranks]
    return [(steps.step, steps.every) for steps in found if steps.step is not None]


class Start(NamedTuple):
    """What an attempt resumes from; `None`: from scratch, or unknown."""

    step: int | None = None
    path: str | None = None


START = Start()
"""From scratch, or unknown."""


class Attempt:
    """One attempt, from its start until all its ranks are gone."""

    def __init__(
        self,
        number: int,
        ranks: Mapping[int, int],
        catalogue: Catalogue | None = None,
        *,
        start: Start = START,
        progress_pattern: str | None = None,
        has_run_before: bool = False,
    ) -> None:
        """`ranks` maps each rank to its worker; `catalogue` is the package's own if not given.

        `start` is what it resumes from. `progress_pattern` tells steps in output. `has_run_before`: ranks of
        the phase have been started before, so that its systems can do that.
        """
        self._has_run_before = has_run_before
        self.number = number
        self._resume_path = start.path
        self.ranks = {
            rank: RankState(
                worker,
                output=LogScanner(f"rank{rank}", catalogue),
                printed=StepLines(progress_pattern, start=start.step),
            )
            for rank, worker in ranks.items()
        }
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.lost: dict[int, Lost] = {}
        """Workers whose agent went away."""
        self.start_error: StartFailed | None = None
        self.report: Incident | None = None
        """What was reported of a device or system, if that ends it: a fault, a loss, a preemption."""
        self.healing_s: float | None = None
        """How long it took to try to mend a device after it; None: that was not tried."""
        self.suspension: Incident | None = None
        """The verdict that its ranks hang, if that ends it."""
        self.odd: Incident | None = None
        """What is out of the usual in the values that ranks report, if that ends it."""
        self._odd_workers: set[int] = set()
        self.hung_since_t: float | None = None
        """Since when they do, as far as that is known."""
        self.ending = False
        """Set once the ranks are being ended; who ends from then on has not failed."""
        self._ends: list[int] = []
        """The ranks that have failed, in the order of the reports."""
        self._inside: frozenset[int] = frozenset()
        """The ranks of a wrapped call, which goes on without those of them that are lost."""
        self._excused: frozenset[int] = frozenset()
        """Lost ranks that such a call continues without."""

    def has(self, worker: int, rank: int) -> bool:
        """Return whether a rank is one of a worker's."""
        return rank in self.ranks and self.ranks[rank].worker == worker

    def take(self, worker: int, event: Event | Lost) -> None:
        """Learn from one event of a worker's agent."""
        match event:
            case Exited():
                self._exited(event)
            case Output():
                self.ranks[event.rank].hear(event.offset, event.text)
            case Excerpt():
                self._excerpt(event)
            case Beat():
                self._beat(event)
            case StartFailed():
                self.start_error = event
            case Call() if worker == 0:  # whose agent is where the ranks of all workers meet
                self._inside, self._excused = frozenset(event.inside), frozenset(event.excused)
            case Lost():
                self.lost[worker] = event
            case _:
                pass

    @property
    def over(self) -> bool:
        """Whether the attempt has ended: something failed, or every rank is done."""
        return self._is_done or self._ended_otherwise

    @property
    def _is_done(self) -> bool:
        return all(state.ended_ns is not None for state in self.ranks.values())

    @property
    def _failures(self) -> list[int]:
        """The ranks whose failure ends the attempt: not those that the others do without."""
        spared = self._excused if self._is_done else self._excused | self._inside
        return [rank for rank in self._ends if rank not in spared]

    @property
    def _ended_otherwise(self) -> bool:
        reports = self.report or self.suspension or self.odd
        return bool(self._failures or self.lost or self.start_error or reports)

    @property
    def is_complete(self) -> bool:
        """Whether every rank has come to its own good end, but those that the others did without."""
        return self._is_done and not any(
            state.was_stopped or (state.failed and rank not in self._excused)
            for rank, state in self.ranks.items()
        )

    @property
    def is_running(self) -> bool:
        """Whether ranks run, and none of them has failed or got lost."""
        left = any(state.ended_ns is None for state in self.ranks.values())
        return left and not (self._failures or self.lost or self.start_error)

    def found_odd(self, found: Incident) -> None:
        """Take note of values out of the usual: the first ends it, others say which workers have them too."""
        if self.ending or self.is_complete:
            return
        self.odd = self.odd or found
        if found.worker is not None:
            self._odd_workers.add(found.worker)

    def _exited(self, event: Exited) -> None:
        state = self.ranks[event.rank]
        if state.ended_ns is not None:
            return  # told again to a new connection
        state.exit_code, state.signal, state.ended_ns = event.code, event.signal, event.t_ns
        state.ran_out = event.oom
        state.was_stopped = self.ending
        if state.failed:
            self._ends.append(event.rank)

    def _excerpt(self, event: Excerpt) -> None:
        """Hear what was chosen of output that was not handed on, so far as it is news."""
        state = self.ranks[event.rank]
        if event.bytes <= state.heard:
            return
        for part in event.parts:
            if part.offset > state.heard:
                state.output.pass_over(part.line)
            state.hear(part.offset, part.text)
        if event.bytes > state.heard:
            state.output.pass_over(event.lines + 1)
            state.heard = event.bytes

    def _beat(self, event: Beat) -> None:
        state = self.ranks[event.rank]
        state.step, state.stage, state.stage_step = event.step, event.stage, event.stage_step
        state.every = event.every
        state.sample = event.sample
        if event.step is not None:
            self.first_step = event.step if self.first_step is None else self.first_step
            self.last_step = max(event.step, self.last_step or 0)

    # -- what it comes to -------------------------------------------------------------------------

    def has_run_out(self, worker: int) -> bool:
        """Whether a rank of a worker was killed because its container's memory was used up."""
        return any(state.ran_out and state.failed for state in self.ranks.values() if state.worker == worker)

    def incident(self, t: float, *, cancelled_by: str | None = None) -> Incident:
        """Return what ended this attempt, as it is to be judged at `t`; `cancelled_by` is who stopped it."""
        incident = self._end(t, cancelled_by)
        is_told = incident.reached is not None or incident.kind == "cancelled"
        return incident if is_told else self._with_reached(incident, None)

    def _with_reached(self, incident: Incident, failed: RankState | None) -> Incident:
        """Return an incident with the last step that the failed rank reported, else the highest that any did.

        It is unknown if none did, or if they are reported too rarely to say where it failed.
        """
        of_failed, of_all = [] if failed is None else [failed], list(self.ranks.values())
        steps = _reported(of_failed) or _reported(of_all) or _printed(of_failed) or _printed(of_all)
        step, every = max(steps, key=lambda each: (each[0], each[1] is not None), default=(0, None))
        if every is None or every > MOST_APART:
            return incident
        return replace(incident, reached=step, reached_every=every)

    def _end(self, t: float, cancelled_by: str | None) -> Incident:
        incident = Incident(t=t, kind="exit", attempt=self.number)
        if cancelled_by is not None:
            evidence = Evidence(rule="stop-request", text=cancelled_by)
            return replace(incident, kind="cancelled", evidence=evidence)
        reported = self.report or self.suspension
        if reported is not None:  # whatever else failed, failed of it
            reported = replace(reported, t=t, attempt=self.number)
            return reported if self.report is not None else self._suspended(reported)
        if self.start_error is not None:
            return self._not_started(incident, self.start_error)
        if self._failures:
            failure = self._failure(incident)
            missed = self._missed(failure)
            return failure if missed is None else self._loss(incident, missed)
        if self.odd is not None:
            return replace(self.odd, t=t, attempt=self.number, reported=tuple(sorted(self._odd_workers)))
        return self._lost_or_completed(incident)

    def _lost_or_completed(self, incident: Incident) -> Incident:
        if not self.lost:
            return replace(incident, kind="completed", exit_code=0)
        return self._loss(incident, next(iter(self.lost)))

    def _missed(self, failure: Incident) -> int | None:
        """Return the lost worker of which a rank elsewhere failed, if what that printed is what a lost peer brings."""
        if failure.failure_class not in ("network", "collective_timeout") or failure.blame in (
            "node",
            "device",
        ):
            return None
        return next((worker for worker in self.lost if worker != failure.worker), None)

    def _loss(self, incident: Incident, worker: int) -> Incident:
        loss = self.lost[worker]
        kind = kind_of_loss(loss.evidence, system_answers=loss.system_answers)
        return replace(incident, kind=kind, worker=worker, evidence=loss.evidence)

    def _not_started(self, incident: Incident, event: StartFailed) -> Incident:
        """Return the incident of a command that could not be started; no system is to blame for its limits.

        More ranks than fit do not fit the next time either, unless they have fitted before.
        """
        number, text = event.errno, f"{event.what}: {event.error}"
        failure_class = _PASSING.get(number, "config")
        if number in _TOO_MANY:
            failure_class = "unknown" if self._has_run_before else "config"
            text += f"; {self._too_many(_TOO_MANY[number])}"
        return replace(
            incident,
            failure_class=failure_class,
            exit_code=COMMAND_NOT_STARTED,
            evidence=Evidence(rule=NOT_STARTED, text=_readable(text)),
        )

    def _too_many(self, limit: str) -> str:
        ranks = max(Counter(state.worker for state in self.ranks.values()).values())
        return f"write nproc_per_worker below {ranks}, or raise the limit of {limit}"

    def _suspended(self, incident: Incident) -> Incident:
        """Return a suspension, or the hardware's fault that a rank's output tells of: then it hangs of that."""
        verdict = judge([self._findings(state) for state in self.ranks.values()], exit_code=1, signal=None)
        rank = self._rank_of(verdict.evidence)
        if verdict.failure_class != "hardware" or rank is None:
            return incident
        fault = replace(incident, kind="exit", worker=self.ranks[rank].worker, evidence=None)
        return with_verdict(fault, verdict)

    def ended_ns(self) -> int | None:
        """When it ended by itself (its first failure, else its last rank's end), by CLOCK_BOOTTIME."""
        if self._failures:
            return self.ranks[self._failures[0]].ended_ns
        ends = [state.ended_ns for state in self.ranks.values() if not state.was_stopped]
        known = [end for end in ends if end is not None]
        return max(known) if len(known) == len(self.ranks) else None

    def _failure(self, incident: Incident) -> Incident:
        first = self.ranks[self._failures[0]]
        logs = [self._findings(state) for rank, state in self.ranks.items() if rank not in self._excused]
        verdict = judge(logs, exit_code=first.exit_code, signal=first.signal)
        root = self._root(verdict)
        seen = root if root.failed else first
        return replace(
            self._with_reached(with_verdict(incident, verdict), root),
            worker=root.worker,
            exit_code=seen.exit_code,
            signal=seen.signal,
            stage=self._stage(root, verdict),
            stage_step=root.stage_step,
            sample=root.sample,
            reported=self._reporters(verdict.failure_class),
        )

    def _findings(self, state: RankState) -> LogFindings:
        """Return what a rank's output says, with the checkpoint that it may have been reading."""
        return replace(state.output.findings(), resumption=self._resumption(state))

    def _resumption(self, state: RankState) -> Resumption | None:
        """Return what a rank was given to load, if it may not have come further than that."""
        is_before_first_step = state.step is None and state.stage is None
        if self._resume_path is None or not (is_before_first_step or state.stage == "load"):
            return None
        return Resumption(self._resume_path, is_loading=state.stage == "load")

    def _stage(self, root: RankState, verdict: Verdict) -> Stage | None:
        """Return the stage of the rank with the cause; one that could not read its checkpoint was loading it."""
        if verdict.failure_class == "checkpoint" and self._resumption(root) is not None:
            return "load"
        return root.stage

    def _reporters(self, failure_class: FailureClass) -> tuple[int, ...] | None:
        """Return the workers whose ranks reported that a collective took too long, or that numbers went bad.

        The others kept silent.
        """
        if failure_class not in ("collective_timeout", "numeric"):
            return None
        reporters = {
            state.worker
            for state in self.ranks.values()
            for finding in state.output.findings().findings
            if finding.signature.failure_class == failure_class
        }
        return tuple(sorted(reporters))

    def _root(self, verdict: Verdict) -> RankState:
        """Return the rank whose output holds the cause, else the one that failed first.

        The cause may still be ending by itself when its peers have noticed and the attempt is ended.
        """
        rank = self._rank_of(verdict.evidence)
        is_given_up = verdict.evidence is not None and verdict.evidence.rule == GIVEN_UP
        if rank is None or is_given_up or self.ranks[rank].succeeded:
            return self.ranks[self._failures[0]]
        return self.ranks[rank]

    def _rank_of(self, evidence: Evidence | None) -> int | None:
        if evidence is None or not evidence.file:
            return None
        return int(evidence.file.removeprefix("rank"))


def has_run(incident: Incident) -> bool:
    """Whether an attempt ended by the exit of a rank, which had been started."""
    is_not_started = incident.evidence is not None and incident.evidence.rule == NOT_STARTED
    return incident.kind == "exit" and not is_not_started


def kind_of_loss(evidence: Evidence | None, *, system_answers: bool) -> Kind:
    """Return what it is that a worker's agent is gone, or about to go."""
    if evidence is not None and evidence.rule in TAKEN_AWAY:
        return "preempted"
    return "in_place_failed" if system_answers else "system_lost"


def _readable(text: str) -> str:
    """Put question marks for what was no UTF-8: neither Prefect nor a terminal takes lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")
