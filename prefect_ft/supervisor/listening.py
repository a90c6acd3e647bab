"""Dispatches agents' events: output, checkpoints, reports of faults, and the running attempt.

Decides nothing and orders nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from prefect_ft.amounts import count
from prefect_ft.backends.base import PART_ENDED, TENURE_ENDED
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import FIRST_STEP, CameUpLine, CheckpointLine, WarmLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.observe import CheckpointVerified, Notice, StepReached, tell
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.events import (
    Beat,
    CameUp,
    Checkpoints,
    Detected,
    Detecting,
    Diagnosis,
    Dropped,
    Event,
    Excerpt,
    Exited,
    Fault,
    InProcess,
    Leaving,
    Lost,
    Output,
    Sampled,
    Started,
    Unhandled,
    Unrecognised,
    Warm,
)
from prefect_ft.supervisor.hangs import Hangs
from prefect_ft.supervisor.incidents import kind_of_loss
from prefect_ft.supervisor.parts import Parts
from prefect_ft.supervisor.reports import Reports
from prefect_ft.supervisor.runlog import RunLog
from prefect_ft.supervisor.saves import Saves
from prefect_ft.supervisor.stopping import HandOver
from prefect_ft.supervisor.unresumed import Unresumed
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.supervisor.values import Values
from prefect_ft.worker.protocol import Token


class Listener:
    """`attempt` takes what is reported; None between attempts."""

    def __init__(
        self,
        phase: str,
        *,
        log: RunLog,
        saves: Saves,
        unsaved: Unsaved,
        unresumed: Unresumed,
        reports: Reports,
        hangs: Hangs,
        values: Values,
        journal: MemoryJournal,
        clock: PhaseClock,
        system_of: Callable[[int], str],
        evidence: Callable[[int], Evidence | None],
        tenure_ends: Callable[[str, HandOver], None],
        parts: Parts | None = None,
    ) -> None:
        """`system_of` returns the system of an existing worker, `evidence` what is known about how one ends.

        `tenure_ends` is called, with the reason, where workers are about to end with the systems that were lent.
        `parts` combines checkpoints of which each worker saves a part; None: one agent sees all.
        """
        self.attempt: Attempt | None = None
        self._phase = phase
        self._log, self._saves, self._reports = log, saves, reports
        self._parts = parts
        self._unsaved, self._unresumed = unsaved, unresumed
        self._hangs, self._values = hangs, values
        self._journal, self._clock = journal, clock
        self._system_of = system_of
        self._evidence, self._tenure_ends = evidence, tenure_ends
        self._reported_once: set[str] = set()
        """Messages that were published and are not repeated."""
        self._up = {(line.attempt, line.what) for line in journal.lines if isinstance(line, CameUpLine)}
        """How far each attempt has been seen to come up."""

    def hear(self, worker: int, event: Event | Lost) -> None:
        """Take one event of an agent, in whatever state the attempt is."""
        attempt = self.attempt
        if attempt is not None and _names_others(attempt, worker, event):
            self._complain(f"worker {worker} reports ranks that are not its own; that is ignored")
            return
        if not isinstance(event, Lost):
            self._take(worker, event)
        if attempt is not None:
            step = attempt.last_step
            attempt.take(worker, event)
            if attempt.last_step != step and isinstance(event, Beat):
                self._step_reached(attempt, worker, event)
            self._hangs.hear(worker, event)
            self._values.hear(attempt, worker, event)

    def _take(self, worker: int, event: Event) -> None:
        """Take events that concern more than the attempt."""
        match event:
            case Output() | Dropped() | Excerpt() | Started():
                self._printed(worker, event)
            case Fault() | Detected() | Leaving() | InProcess():
                self._reported(worker, event)
            case Detecting():
                self._detecting(worker, event)
            case Unrecognised():
                has_saved = self._saves.has_ever_saved
                self._unsaved.unrecognised(event.names, self._number(event), has_saved=has_saved)
            case Unhandled():
                self._unsaved.unhandled(event.signal, event.ranks, self._number(event))
            case Checkpoints():
                self._found(worker, event)
            case Warm():
                self._warm(worker, event)
            case CameUp():
                self._came_up(worker, event)
            case _:
                pass

    def _number(self, event: Event) -> int:
        return self.attempt.number if self.attempt is not None else event.token[2]

    def _printed(self, worker: int, event: Output | Dropped | Excerpt | Started) -> None:
        attempt = event.token[2]
        match event:
            case Output():
                self._log.write(attempt, worker, event.rank, event.text, event.offset)
                source = f"attempt {attempt} rank {event.rank}"
                self._reports.look_at(event.text, self._system_of(worker), source, event.offset)
            case Excerpt():
                self._log.write_excerpt(attempt, worker, event)
            case Started():
                for rank, path in event.stays.items():
                    note = f"output stays with the worker, of this attempt and the next: {path}"
                    self._log.note(attempt, worker, rank, note)
            case Dropped():
                lost = count(event.bytes, "byte")
                tell(Notice(text=f"{lost} of rank {event.rank}'s output came too fast to keep"))

    def _reported(self, worker: int, event: Fault | Detected | Leaving | InProcess) -> None:
        match event:
            case Fault():
                self._fault(worker, event)
            case Detected():
                self._detected(worker, event)
            case Leaving():
                self._leaving(worker, event)
            case InProcess():
                source = f"attempt {event.token[2]} rank {event.rank} restart {event.n}"
                self._reports.hear_restart(event.report, worker, source)

    def _fault(self, worker: int, event: Fault) -> None:
        report = {**event.report, "system": self._system_of(worker)}
        source = f"attempt {event.token[2]} rank {event.rank} report {event.n}"
        self._reports.hear(report, f"rank {event.rank}", source)

    def _detected(self, worker: int, event: Detected) -> None:
        system = self._system_of(worker)
        source = f"attempt {event.token[2]} worker {worker} detected at {event.t_ns}"
        self._reports.hear({**event.report, "system": system}, f"the detectors on {system}", source)

    def _detecting(self, worker: int, event: Detecting) -> None:
        """Report which detectors find faults, and why others do not; once, for the first system with them."""
        by = ", ".join(event.by) or "nothing"
        why_not = "".join(f"; not by {name}: {why}" for name, why in sorted(event.why_not.items()))
        text = f"faults of devices are detected by {by}{why_not}"
        if text not in self._reported_once:
            self._reported_once.add(text)
            tell(Notice(text=f"{self._system_of(worker)}: {text}"))

    def _leaving(self, worker: int, event: Leaving) -> None:
        """Treat it as an announced end of its worker, or of all workers: ranks can still save."""
        attempt = event.token[2]
        evidence = self._evidence(worker) or Evidence(rule="told-to-go", text="its agent got SIGTERM")
        if evidence.rule in (TENURE_ENDED, PART_ENDED):
            self._tenure_ends(
                evidence.text, HandOver.BEGUN if evidence.rule == TENURE_ENDED else HandOver.PART
            )
            return
        kind = kind_of_loss(evidence, system_answers=True)
        report = Incident(t=0, kind=kind, attempt=attempt, worker=worker, evidence=evidence)
        self._reports.hear_leaving(report, f"attempt {attempt} worker {worker} leaving")
        tell(
            Notice(text=f"{self._phase}: worker {worker} ends within {event.within_s:.0f} s: {evidence.text}")
        )

    def _warm(self, worker: int, event: Warm) -> None:
        """Record what a worker keeps ready; report why ranks start cold or import a module, each reason once."""
        line = WarmLine(
            worker=worker,
            modules=event.modules,
            parked=event.parked,
            memory_kb=event.memory_kb,
            left_out=event.left_out,
            why_cold=event.why_cold,
        )
        self._journal.append(line, t=self._clock.now())
        texts = [] if event.why_cold is None else [f"worker {worker} starts cold: {event.why_cold}"]
        texts += [f"not preloaded: {module}: {why}" for module, why in event.left_out.items()]
        for text in texts:
            self._complain(text)

    def _complain(self, text: str) -> None:
        """Report it, once."""
        if text not in self._reported_once:
            self._reported_once.add(text)
            tell(Notice(text=f"{self._phase}: {text}"))

    def _came_up(self, worker: int, event: CameUp) -> None:
        """Record when ranks first printed, and when they had met, by the first worker that reports it."""
        self._note_up(event.token[2], worker, event.what, event.t_ns)

    def _note_up(self, attempt: int, worker: int, what: str, t_ns: int) -> None:
        if (attempt, what) not in self._up:
            self._up.add((attempt, what))
            line = CameUpLine(attempt=attempt, worker=worker, what=what, at_t=round(self._clock.at(t_ns), 6))
            self._journal.append(line, t=self._clock.now())

    def _found(self, worker: int, event: Checkpoints) -> None:
        if self._parts is None:
            self.saved(event)
            return
        self._parts.take(self._system_of(worker), event)
        news = self._parts.news(event.token)
        if news.new or news.gone:
            self.saved(news)

    def agree(self, token: Token) -> None:
        """Drop checkpoints that are incomplete now that all agents have reported their parts."""
        assert self._parts is not None
        news = self._parts.news(token)
        gone = tuple(sorted({*self._saves.steps} - {*self._parts.whole}))
        self.saved(Checkpoints(token=token, new=news.new, last=news.last, gone=gone))

    def saved(self, event: Checkpoints) -> None:
        """Take verified checkpoints and those that are no longer good; record the new ones."""
        for item in self._saves.report(event):
            if item.mtime is None:
                continue  # never of an agent
            attempt = self._number(event)
            line = CheckpointLine(
                attempt=attempt,
                step=item.step,
                path=item.path,
                written_t=round(self._clock.at_wall(item.mtime), 6),
                mtime=item.mtime,
                counted=item.counted,
                size=item.size,
                device=item.device,
                inode=item.inode,
            )
            self._journal.append(line, t=self._clock.now())
            self._unresumed.saved(line)
            tell(
                CheckpointVerified(
                    phase=self._phase,
                    attempt=attempt,
                    step=item.step,
                    path=item.path,
                    counted=item.counted,
                )
            )

    def _step_reached(self, attempt: Attempt, worker: int, event: Beat) -> None:
        assert attempt.last_step is not None
        self._note_up(attempt.number, worker, FIRST_STEP, event.t_ns)
        self._unresumed.told(attempt)
        step, stage = attempt.last_step, event.stage
        tell(StepReached(phase=self._phase, attempt=attempt.number, step=step, stage=stage))


def _names_others(attempt: Attempt, worker: int, event: Event | Lost) -> bool:
    """Whether an agent reports ranks that belong to another worker, or to none."""
    match event:
        case Output() | Dropped() | Excerpt() | Exited() | Beat() | Fault() | InProcess():
            named = [event.rank]
        case Sampled() | Diagnosis() | Unhandled():
            named = [*event.ranks]
        case _:
            return False
    return event.token[2] == attempt.number and not all(attempt.has(worker, rank) for rank in named)
