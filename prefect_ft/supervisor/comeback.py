"""Determines the state of a phase for an orchestrator that comes back, from the journal and the agents.

Pure. Where they differ the higher token wins: agents may know of a start that was not recorded any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prefect_ft.journal.records import (
    AttemptLine,
    CheckpointLine,
    ComebackLine,
    DecisionLine,
    IncidentLine,
    Line,
)
from prefect_ft.supervisor.attempt import START, Start
from prefect_ft.supervisor.events import AgentStanding, Call, Event, Excerpt, Exited, Left
from prefect_ft.supervisor.incidents import NOT_STARTED
from prefect_ft.worker.forms import FormError


@dataclass(frozen=True, slots=True)
class Standing:
    """What to resume.

    `attempt` is the number of the last known attempt, 0 for none. `watched` is its placement if it is
    still to be watched, running or over by itself; None: carry out the last decision.
    `missing` are its workers that no longer know it. `note` is its line for a journal that lacks it.
    `start` is what it resumed from.
    """

    attempt: int
    watched: tuple[str, ...] | None = None
    missing: tuple[int, ...] = ()
    note: AttemptLine | None = None
    start: Start = START


def standing(
    lines: Sequence[Line], agents: Mapping[int, AgentStanding], phase_index: int, ranks_per_worker: int
) -> Standing:
    """Return the state of a phase; `agents` are the agents' own reports, `attached` or what they left behind."""
    attempts = [line for line in lines if isinstance(line, AttemptLine)]
    journalled = attempts[-1].attempt if attempts else 0
    started = max((_attempt_of(agent, phase_index) for agent in agents.values()), default=0)
    if started > journalled:
        if 0 not in agents or _attempt_of(agents[0], phase_index) != started:
            return Standing(journalled)  # not all have carried it out
        try:
            note = AttemptLine.noted(agents[0].note or {})
        except FormError:
            return Standing(journalled)  # what was started is unknown
        found = _watched(note, agents, phase_index, ranks_per_worker)
        if sum(isinstance(line, DecisionLine) for line in lines) > (note.decisions or 0):
            return Standing(journalled)  # it took too long, and another decision was made
        # A start that some agents missed is no attempt: it is ordered again, under the same number.
        return Standing(journalled) if found.missing else replace(found, note=note)
    if attempts and not _has_ended(lines):
        return _watched(attempts[-1], agents, phase_index, ranks_per_worker)
    return Standing(journalled)


def has_run(lines: Sequence[Line]) -> bool:
    """Whether all ranks of the phase have been running in some attempt."""
    begun = {line.attempt for line in lines if isinstance(line, AttemptLine)}
    ended = [line.incident for line in lines if isinstance(line, IncidentLine)]
    failed = {each.attempt for each in ended if each.evidence and each.evidence.rule == NOT_STARTED}
    return bool(begun - failed)


def _watched(
    line: AttemptLine, agents: Mapping[int, AgentStanding], phase_index: int, ranks_per_worker: int
) -> Standing:
    number, placement = line.attempt, line.placement
    missing = (
        worker
        for worker in range(len(placement))
        if not _has_started(agents.get(worker), number, phase_index, worker, ranks_per_worker)
    )
    return Standing(number, placement, tuple(missing), start=Start(line.resume_step, line.resume_path))


def _attempt_of(agent: AgentStanding, phase_index: int) -> int:
    _, phase, attempt = agent.token
    return attempt if phase == phase_index else 0


def _has_started(
    agent: AgentStanding | None, attempt: int, phase_index: int, worker: int, ranks: int
) -> bool:
    """Whether a worker started all its ranks in this attempt."""
    if agent is None or _attempt_of(agent, phase_index) != attempt:
        return False
    known = {*agent.running, *agent.exits}
    return known == set(range(worker * ranks, (worker + 1) * ranks))


def _has_ended(lines: Sequence[Line]) -> bool:
    """Whether the journal has the end of the last attempt, with the decision about it."""
    last = max(index for index, line in enumerate(lines) if isinstance(line, AttemptLine))
    decisions = {line.n: line.decision.action for line in lines if isinstance(line, DecisionLine)}
    incidents = [line for line in lines[last:] if isinstance(line, IncidentLine)]
    return any(decisions.get(line.n) != "continue" for line in incidents)


def is_open(lines: Sequence[Line]) -> bool:
    """Whether an attempt has begun and not ended, according to the journal."""
    return any(isinstance(line, AttemptLine) for line in lines) and not _has_ended(lines)


def comebacks_without_progress(lines: Sequence[Line]) -> int:
    """Count how often an orchestrator came back by itself since a checkpoint higher than all before."""
    count, highest = 0, 0
    for line in lines:
        if isinstance(line, ComebackLine):
            count = 0 if line.by_hand else count + 1
        elif isinstance(line, CheckpointLine) and line.step > highest:
            count, highest = 0, line.step
    return count


def unheard(agent: AgentStanding) -> list[Event]:
    """Return, as events, what an agent could not deliver: output that is not sent again, exits."""
    token = agent.token
    events: list[Event] = [Call(token=token, inside=agent.inside, excused=agent.excused)]
    if isinstance(agent, Left) and agent.excerpts is not None:
        events += [Excerpt(token=token, rank=rank, **vars(each)) for rank, each in agent.excerpts.items()]
    ends = sorted(agent.exits.items(), key=lambda each: each[1].t_ns)
    return events + [Exited(token=token, rank=rank, ends=False, **vars(end)) for rank, end in ends]
