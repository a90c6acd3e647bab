"""What a phase cost and what it was lost to: a pure fold over its journal.

Time is split so that the parts add up to `total`: `start` (until the first attempt ran), `productive`
(work that the result rests on), `recompute` (work that was thrown away), and for each restart `detect`
(from the failure until it was noticed), `decide` (until the decision was on disk, killing included),
`wait` (backoff) and `recover` (until the next attempt ran).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from prefect_ft.journal import Line
from prefect_ft.model import RESTARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """One attempt; times are seconds since the phase began. What is not known, or not yet, is `None`."""

    number: int
    start: float
    end: float | None = None
    outcome: str = "running"
    failure_class: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    evidence: str | None = None
    rule: str | None = None
    action: str | None = None
    reason: str | None = None
    blamed: str | None = None
    resume_step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    steps_lost: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """What summary.json holds."""

    phase: str
    run: str
    job: str
    status: str
    reason: str
    restarts: dict[str, int]
    attempts: tuple[AttemptSummary, ...]
    time_s: dict[str, float]
    effective_ratio: float | None
    isolated_systems: tuple[str, ...]
    final_step: int | None

    def to_json(self) -> dict[str, Any]:
        """Give the document, `class` under its own name."""
        document = asdict(self)
        for attempt in document["attempts"]:
            attempt["class"] = attempt.pop("failure_class")
        return document


@dataclass(slots=True)
class _Work:
    """The stretches of work so far, each up to a checkpoint: (step reached, seconds)."""

    kept: list[tuple[int, float]] = field(default_factory=list)
    thrown_s: float = 0.0

    def resume_from(self, step: int | None) -> None:
        """Throw away what lies beyond the checkpoint that the next attempt begins with."""
        limit = -1 if step is None else step
        self.thrown_s += sum(seconds for reached, seconds in self.kept if reached > limit)
        self.kept = [stretch for stretch in self.kept if stretch[0] <= limit]


def summarise(lines: Sequence[Line], now_t: float | None = None) -> PhaseSummary:
    """Sum a phase up; `now_t` is the time that it has reached, if it still runs."""
    head: Line = next((line for line in lines if line["type"] == "phase"), {})
    end: Line = next((line for line in reversed(lines) if line["type"] == "end"), {})
    last_t = max([float(line["t"]) for line in lines] + ([now_t] if now_t is not None else []), default=0.0)
    attempts = _attempts(lines)
    decisions = [line for line in lines if line["type"] == "decision"]
    times = _times(lines, attempts, last_t, completed=end.get("status") == "completed")
    return PhaseSummary(
        phase=head.get("phase", ""),
        run=head.get("run", ""),
        job=head.get("job", ""),
        status=end.get("status", "running"),
        reason=end.get("reason", ""),
        restarts=dict(Counter(line["action"] for line in decisions if line["action"] in RESTARTS)),
        attempts=tuple(attempts),
        time_s=times,
        effective_ratio=round(times["productive"] / times["total"], 4) if times["total"] else None,
        isolated_systems=tuple(system for line in decisions for system in line.get("isolate", ())),
        final_step=_final_step(lines, attempts),
    )


def _attempts(lines: Sequence[Line]) -> list[AttemptSummary]:
    attempts: list[AttemptSummary] = []
    incidents = {line["n"]: line for line in lines if line["type"] == "incident"}
    for line in lines:
        if line["type"] == "attempt":
            if attempts:
                attempts[-1] = _with_loss(attempts[-1], line["resume_step"])
            attempts.append(
                AttemptSummary(number=line["attempt"], start=line["t"], resume_step=line["resume_step"])
            )
        elif line["type"] == "decision" and attempts and line["action"] != "continue":
            incident = incidents.get(line["n"], {})
            if incident.get("attempt") == attempts[-1].number and attempts[-1].end is None:
                attempts[-1] = _ended(attempts[-1], incident, line)
    if attempts and attempts[-1].action in ("fail", "cancel"):
        attempts[-1] = _with_loss(attempts[-1], incidents[max(incidents)].get("step"))
    return attempts


def _ended(attempt: AttemptSummary, incident: Line, decision: Line) -> AttemptSummary:
    return replace(
        attempt,
        end=incident.get("ended_t", incident["t"]),
        outcome=incident["kind"],
        failure_class=incident.get("class"),
        exit_code=incident.get("exit_code"),
        signal=incident.get("signal"),
        evidence=incident.get("evidence", {}).get("text"),
        rule=decision["rule"],
        action=decision["action"],
        reason=decision["reason"],
        blamed=incident.get("system") or (", ".join(decision.get("isolate", ())) or None),
        first_step=incident.get("first_step"),
        last_step=incident.get("last_step"),
    )


def _with_loss(attempt: AttemptSummary, resume_step: int | None) -> AttemptSummary:
    if attempt.last_step is None:
        return attempt
    return replace(attempt, steps_lost=max(0, attempt.last_step - (resume_step or 0)))


def _times(
    lines: Sequence[Line], attempts: Sequence[AttemptSummary], last_t: float, *, completed: bool
) -> dict[str, float]:
    work = _Work()
    for attempt in attempts:
        work.resume_from(attempt.resume_step)
        _add_work(work, attempt, lines, last_t, lasting=completed and attempt is attempts[-1])
    times = {"detect": 0.0, "decide": 0.0, "wait": 0.0, "recover": 0.0}
    for name, seconds in _pauses(lines, last_t):
        times[name] += seconds
    start = attempts[0].start if attempts else last_t
    productive = sum(seconds for _, seconds in work.kept)
    parts = {"productive": productive, **times, "recompute": work.thrown_s, "start": start}
    return {"total": round(last_t, 3), **{name: round(seconds, 3) for name, seconds in parts.items()}}


def _add_work(
    work: _Work, attempt: AttemptSummary, lines: Sequence[Line], last_t: float, *, lasting: bool
) -> None:
    """Add an attempt's stretches; what follows its last checkpoint may not last."""
    end = last_t if attempt.end is None else attempt.end
    at = attempt.start
    reached = attempt.resume_step or 0
    for line in lines:
        if line["type"] == "checkpoint" and line.get("attempt") == attempt.number and line["step"] > reached:
            until = min(max(line["written_t"], at), end)
            reached = line["step"]
            work.kept.append((reached, until - at))
            at = until
    if lasting or attempt.end is None:
        work.kept.append((reached, end - at))
    else:
        work.thrown_s += end - at


def _pauses(lines: Sequence[Line], last_t: float) -> list[tuple[str, float]]:
    """Give the pieces of time in which no attempt ran, each with the part of `time_s` that it belongs to."""
    pieces: list[tuple[str, float]] = []
    since: float | None = None
    """When the time that is not yet accounted for began: the failure, the incident, the decision."""
    for line in lines:
        match line["type"]:
            case "incident" if "ended_t" in line:
                begun = line["ended_t"] if since is None else since
                pieces.append(("detect", line["t"] - begun))
                since = line["t"]
            case "decision" if since is not None:
                pieces.append(("decide", line["t"] - since))
                since = line["t"] + line.get("delay_s", 0)
                pieces.append(("wait", line.get("delay_s", 0)))
            case "attempt" if since is not None:
                pieces.append(("recover", line["t"] - since))
                since = None
            case _:
                pass
    if since is not None and last_t > since:
        pieces.append(("recover", last_t - since))
    return pieces


def _final_step(lines: Sequence[Line], attempts: Sequence[AttemptSummary]) -> int | None:
    reported = attempts[-1].last_step if attempts else None
    verified = [line["step"] for line in lines if line["type"] == "checkpoint"]
    return reported if reported is not None else max(verified, default=None)
