"""Queues reports of faults, from ranks, their output and monitors, and of restarts within the ranks.

Each is recorded on arrival, the same fault only once. What follows a report is up to the supervisor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from prefect_ft.clock import PhaseClock
from prefect_ft.errors import ConfigError
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import IncidentLine, Line, ReportLine
from prefect_ft.model import Evidence, Incident
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor import fault_records, fault_sources
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.event_parts import Restarted
from prefect_ft.supervisor.fault_sources import FaultSources, SourcePlan

_Key = tuple[str, str | None, tuple[str, ...], str | None, str | None, str | None]


class Reports:
    """A queue. Its reports are in the journal: an orchestrator that comes back finds them again."""

    def __init__(
        self, plan: SourcePlan, systems: Sequence[str], journal: MemoryJournal, clock: PhaseClock
    ) -> None:
        """Reports that name none of `systems` concern other runs and are ignored."""
        self._plan, self._systems = plan, systems
        self._journal, self._clock = journal, clock
        self._sources: FaultSources | None = None
        self._waiting: deque[Incident] = deque()
        self._heard_t: dict[_Key, float] = {}
        self._sources_heard: set[str | None] = set()
        self._not_understood: set[str] = set()

    def open(self, calls: Calls) -> None:
        """Start to read monitors; their lines arrive through `calls`. Idempotent."""
        if self._sources is None:
            self._sources = FaultSources(self._plan, calls, self._on_line)

    def close(self) -> None:
        """Stop reading monitors. Idempotent."""
        if self._sources is not None:
            self._sources.close()

    def recall(self) -> None:
        """Load from the journal the reports that were not acted on."""
        for line in self._journal.lines:
            if isinstance(line, ReportLine):
                self._heard_t[_key(line.report)] = line.t
                self._sources_heard.add(line.source)
        self._waiting.extend(pending(self._journal.lines))

    # -- in ---------------------------------------------------------------------------------------

    def look_at(self, output: str, system: str, rank: str, offset: int) -> None:
        """Take reports from the output of a rank on a system, if the job asks for that.

        `rank` names it in its attempt; `offset` is where `output` begins, in bytes.
        """
        faults = self._plan.faults
        for place, record in fault_records.in_output(output, faults) if faults.logs else ():
            at = offset + len(output[:place].encode("utf-8", "surrogateescape"))
            self.hear({**record, "system": system}, f"the output on {system}", f"{rank} at {at}")

    def hear(self, record: Mapping[str, Any], where: str, source: str | None = None) -> None:
        """Take one report; `where` names its origin. An invalid one is reported once.

        `source` identifies it where agents repeat it to an orchestrator that comes back.
        """
        if source is not None and source in self._sources_heard:
            return
        try:
            report = fault_records.report_of(record, self._plan.faults, self._systems)
        except ConfigError as exc:
            self._complain(where, str(exc))
        else:
            if report is not None and self._is_new(report):
                self._take(report, source)

    def hear_restart(self, record: Restarted, worker: int, source: str) -> None:
        """Take the report of a restart within the processes of a worker; `source` as in `hear`."""
        if source in self._sources_heard:
            return
        rank = "a rank" if record.rank is None else f"rank {record.rank}"
        where = f"iteration {record.iteration} after {record.took_ms:.1f} ms"
        text = f"{where}: {rank}, {record.kind}: {record.text}"
        evidence = Evidence(rule="in-process", text=text)
        self._take(Incident(t=0, kind="in_process", worker=worker, evidence=evidence), source)

    def hear_leaving(self, report: Incident, source: str) -> None:
        """Take the report of a worker whose agent was asked to leave; `source` as in `hear`."""
        if source not in self._sources_heard:
            self._take(report, source)

    def _on_line(self, line: fault_sources.Line) -> None:
        try:
            record = fault_records.parsed(line.text)
        except ConfigError as exc:
            self._complain(line.where, f"{line.text[:200]}: {exc}")
        else:
            self.hear(record, line.where)

    def _take(self, report: Incident, source: str | None) -> None:
        now = self._clock.now()
        self._heard_t[_key(report)] = now
        self._sources_heard.add(source)
        self._journal.append(ReportLine(source=source, report=report), t=now)
        self._waiting.append(report)

    def _is_new(self, report: Incident) -> bool:
        last_t = self._heard_t.get(_key(report))
        return last_t is None or self._clock.now() - last_t >= self._plan.faults.same_s

    def _complain(self, where: str, what: str) -> None:
        text = f"{where}: not understood as a report of a fault: {what}"
        if text not in self._not_understood:
            self._not_understood.add(text)
            tell(Notice(text=text))

    # -- out --------------------------------------------------------------------------------------

    def put_back(self, report: Incident) -> None:
        """Queue a report again, with more known about it; may be called in another thread."""
        self._waiting.append(report)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def pop(self) -> Incident:
        """Take the oldest report out."""
        return self._waiting.popleft()


def pending(lines: Sequence[Line]) -> list[Incident]:
    """Return the reports of a journal that no incident has followed; raises JournalError."""
    waiting: dict[_Key, Incident] = {}
    for line in lines:
        if isinstance(line, ReportLine):
            waiting[_key(line.report)] = line.report
        elif isinstance(line, IncidentLine):
            waiting.pop(_key(line.incident), None)
    return list(waiting.values())


def _key(report: Incident) -> _Key:
    """Return the identity of what is reported; restarts within ranks are the same only with the same text."""
    words = report.evidence.text if report.kind == "in_process" and report.evidence else None
    return report.kind, report.system, report.systems, report.device, report.code, words
