"""How long the stages of each restart took: a pure function of a phase's journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_ft.journal.records import AttemptLine, CameUpLine, DecisionLine, IncidentLine, Line
from prefect_ft.model import RESTARTS

STAGES = ("detect", "reap", "decide", "retry", "wait", "start", "first_line", "rendezvous", "first_step")
"""In their order: until the failure was noticed; until every process had ended; until the decision was on disk;
until it began to be carried out (except in place, Prefect has to enter the task again first); the backoff; until all
ranks had been started; until the first of them printed something; until they had met; until one reported a step."""

_LAST = STAGES[-1]
"""With it training has resumed: what comes up later, such as a first line, is no stage of the restart."""

Stages = dict[str, float]


@dataclass(slots=True)
class _Failure:
    """The incident that ended the last attempt, and the last decision since."""

    incident: IncidentLine
    decision: DecisionLine | None = None


def stages_by_attempt(lines: Sequence[Line]) -> Mapping[int, Stages]:
    """Return the known durations, in seconds, of each stage of the restart before an attempt.

    Attempts without a restart before them are left out. Raises JournalError.
    """
    found: dict[int, Stages] = {}
    started_t: dict[int, float] = {}
    failure: _Failure | None = None
    incidents = {line.n: line for line in lines if isinstance(line, IncidentLine)}
    for line in lines:
        match line:
            case DecisionLine() if line.decision.action in RESTARTS and line.n in incidents:
                failure = failure or _Failure(incidents[line.n])
                failure.decision = line
            case AttemptLine():
                started_t[line.attempt] = line.t
                if failure is not None and failure.decision is not None:
                    found[line.attempt] = _until_started(failure.incident, failure.decision, line)
                failure = None
            case CameUpLine() if line.attempt in found and _LAST not in found[line.attempt]:
                since_t = started_t[line.attempt]
                found[line.attempt][line.what.replace("-", "_")] = _between(since_t, line.at_t)
                started_t[line.attempt] = max(since_t, line.at_t)
            case _:
                pass
    return found


def _until_started(incident: IncidentLine, decision: DecisionLine, attempt: AttemptLine) -> Stages:
    reaped_t = incident.reaped_t or incident.t
    begun_t = attempt.begun_t or decision.t
    delay_s = decision.decision.delay_s
    return {
        "detect": _between(incident.ended_t, incident.t),
        "reap": _between(incident.t, reaped_t),
        "decide": _between(reaped_t, decision.t),
        "retry": _between(decision.t, begun_t),
        "wait": delay_s,
        "start": _between(begun_t + delay_s, attempt.t),
    }


def _between(since_t: float, until_t: float) -> float:
    return round(max(0.0, until_t - since_t), 6)
