"""What the end of an attempt comes to: which rank or worker is the cause, and what is judged. Pure."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from prefect_ft.backends.base import TAKEN_AWAY
from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import LogFindings, Resumption, judge
from prefect_ft.model import Evidence, FailureClass, Incident, Kind, Stage, Verdict
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.events import StartFailed
from prefect_ft.supervisor.rank_state import RankState, reached

COMMAND_NOT_STARTED = 127
"""The exit code that a shell gives for a command that is not there."""

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


def incident_of(attempt: Attempt, t: float, *, cancelled_by: str | None = None) -> Incident:
    """Return what ended this attempt, as it is to be judged at `t`; `cancelled_by` is who stopped it."""
    incident = _end(attempt, t, cancelled_by)
    is_final = incident.reached is not None or incident.kind == "cancelled"
    return incident if is_final else _with_reached(attempt, incident, None)


def _with_reached(attempt: Attempt, incident: Incident, failed: RankState | None) -> Incident:
    """Return an incident with how far the failed rank had come, else the farthest of all, if that is known."""
    known = reached(failed, list(attempt.ranks.values()))
    if known is None:
        return incident
    step, every = known
    return replace(incident, reached=step, reached_every=every)


def _end(attempt: Attempt, t: float, cancelled_by: str | None) -> Incident:
    incident = Incident(t=t, kind="exit", attempt=attempt.number)
    if cancelled_by is not None:
        evidence = Evidence(rule="stop-request", text=cancelled_by)
        return replace(incident, kind="cancelled", evidence=evidence)
    reported = attempt.report or attempt.suspension
    if reported is not None:  # whatever else failed, failed of it
        reported = replace(reported, t=t, attempt=attempt.number)
        return reported if attempt.report is not None else _suspended(attempt, reported)
    if attempt.start_error is not None:
        return _not_started(attempt, incident, attempt.start_error)
    if (first := attempt.first_failure) is not None:
        failure = _failure(attempt, incident, attempt.ranks[first])
        lost_peer = _lost_peer(attempt, failure)
        return failure if lost_peer is None else _loss(attempt, incident, lost_peer)
    if attempt.odd is not None:
        return replace(attempt.odd, t=t, attempt=attempt.number, reported=tuple(sorted(attempt.odd_workers)))
    return _lost_or_completed(attempt, incident)


def _lost_or_completed(attempt: Attempt, incident: Incident) -> Incident:
    if not attempt.lost:
        return replace(incident, kind="completed", exit_code=0)
    return _loss(attempt, incident, next(iter(attempt.lost)))


def _lost_peer(attempt: Attempt, failure: Incident) -> int | None:
    """Return the lost worker of which a rank elsewhere failed, if what that printed is what a lost peer brings."""
    if failure.failure_class not in ("network", "collective_timeout") or failure.blame in (
        "node",
        "device",
    ):
        return None
    return next((worker for worker in attempt.lost if worker != failure.worker), None)


def _loss(attempt: Attempt, incident: Incident, worker: int) -> Incident:
    loss = attempt.lost[worker]
    kind = kind_of_loss(loss.evidence, system_answers=loss.system_answers)
    return replace(incident, kind=kind, worker=worker, evidence=loss.evidence)


def _not_started(attempt: Attempt, incident: Incident, event: StartFailed) -> Incident:
    """Return the incident of a command that could not be started; no system is to blame for its limits.

    More ranks than fit do not fit the next time either, unless they have fitted before.
    """
    number, text = event.errno, f"{event.what}: {event.error}"
    failure_class = _PASSING.get(number, "config")
    if number in _TOO_MANY:
        failure_class = "unknown" if attempt.has_run_before else "config"
        text += f"; {_too_many(attempt, _TOO_MANY[number])}"
    return replace(
        incident,
        failure_class=failure_class,
        exit_code=COMMAND_NOT_STARTED,
        evidence=Evidence(rule=NOT_STARTED, text=_readable(text)),
    )


def _too_many(attempt: Attempt, limit: str) -> str:
    ranks = max(Counter(state.worker for state in attempt.ranks.values()).values())
    return f"write nproc_per_worker below {ranks}, or raise the limit of {limit}"


def _suspended(attempt: Attempt, incident: Incident) -> Incident:
    """Return a suspension, or the hardware's fault that a rank's output tells of: then it hangs of that."""
    verdict = judge([_findings(attempt, state) for state in attempt.ranks.values()], exit_code=1, signal=None)
    rank = _rank_of(verdict.evidence)
    if verdict.failure_class != "hardware" or rank is None:
        return incident
    fault = replace(incident, kind="exit", worker=attempt.ranks[rank].worker, evidence=None)
    return with_verdict(fault, verdict)


def _failure(attempt: Attempt, incident: Incident, first: RankState) -> Incident:
    """Return the incident of a failure; `first` is the rank that failed first."""
    logs = {rank: _findings(attempt, state) for rank, state in attempt.ranks.items()}
    counting = [log for rank, log in logs.items() if rank not in attempt.excused]
    verdict = judge(counting, exit_code=first.exit_code, signal=first.signal)
    root = _root(attempt, verdict, first)
    seen = root if root.failed else first
    return replace(
        _with_reached(attempt, with_verdict(incident, verdict), root),
        worker=root.worker,
        exit_code=seen.exit_code,
        signal=seen.signal,
        stage=_stage(attempt, root, verdict),
        stage_step=root.stage_step,
        sample=root.sample,
        reported=_reporters(attempt, logs, verdict.failure_class),
    )


def _findings(attempt: Attempt, state: RankState) -> LogFindings:
    """Return what a rank's output says, with the checkpoint that it may have been reading."""
    return replace(state.output.findings(), resumption=_resumption(attempt, state))


def _resumption(attempt: Attempt, state: RankState) -> Resumption | None:
    """Return what a rank was given to load, if it may not have come further than that."""
    is_before_first_step = state.step is None and state.stage is None
    if attempt.resume_path is None or not (is_before_first_step or state.stage == "load"):
        return None
    return Resumption(attempt.resume_path, is_loading=state.stage == "load")


def _stage(attempt: Attempt, root: RankState, verdict: Verdict) -> Stage | None:
    """Return the stage of the rank with the cause; one that could not read its checkpoint was loading it."""
    if verdict.failure_class == "checkpoint" and _resumption(attempt, root) is not None:
        return "load"
    return root.stage


def _reporters(
    attempt: Attempt, logs: Mapping[int, LogFindings], failure_class: FailureClass
) -> tuple[int, ...] | None:
    """Return the workers whose ranks reported that a collective took too long, or that numbers went bad.

    The others kept silent.
    """
    if failure_class not in ("collective_timeout", "numeric"):
        return None
    reporters = {
        attempt.ranks[rank].worker
        for rank, log in logs.items()
        for finding in log.findings
        if finding.signature.failure_class == failure_class
    }
    return tuple(sorted(reporters))


def _root(attempt: Attempt, verdict: Verdict, first: RankState) -> RankState:
    """Return the rank whose output holds the cause, else `first`, the one that failed first.

    The cause may still be ending by itself when its peers have noticed and the attempt is ended.
    """
    rank = _rank_of(verdict.evidence)
    is_given_up = verdict.evidence is not None and verdict.evidence.rule == GIVEN_UP
    if rank is None or is_given_up or attempt.ranks[rank].succeeded:
        return first
    return attempt.ranks[rank]


def _rank_of(evidence: Evidence | None) -> int | None:
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
