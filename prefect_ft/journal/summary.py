"""Summarises what a phase cost and to what time was lost: a pure fold over its journal.

`time_s` splits the time as `timeline` does, so that the parts add up to `total`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from prefect_ft.journal.attempts import PARTS, AttemptSummary, Timeline, timeline_of
from prefect_ft.journal.lines import end_of, head_of
from prefect_ft.journal.records import (
    NONE_COUNTS,
    CheckpointLine,
    HangLine,
    HangOverLine,
    Line,
    StragglerLine,
    WarmLine,
    WarningLine,
)
from prefect_ft.journal.stages import stages_by_attempt
from prefect_ft.model import RESTARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class HangSummary:
    """One verdict that ranks hang. `response` is the configured one: `restart`, `report` or `shadow`.

    `went_on`: whether they resumed by themselves, `None` where that could not be observed. `diagnosis` names the
    file beside the journal.
    """

    t: float
    attempt: int
    response: str
    blamed_rank: int | None
    evidence: str
    where: str | None
    diagnosis: str | None
    went_on: bool | None
    after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSummary:
    """A worker's last report on the next restart: ranks that are kept ready, and their memory.

    `why_cold` says why ranks start cold although a warm start is configured.
    """

    worker: int
    parked: int
    modules: int
    memory_mb: int
    why_cold: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """The contents of summary.json.

    `false_alarm_ratio` is the share of verdicts after which the run resumed by itself, among those where that could
    be observed; `None`: there are none. `counted`, which is not in the file: `final_step` is the number of a version.
    """

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
    hangs: tuple[HangSummary, ...] = ()
    false_alarm_ratio: float | None = None
    stragglers: tuple[int, ...] = ()
    warm: tuple[WarmSummary, ...] = ()
    warnings: tuple[str, ...] = ()
    counted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the document, `class` under its own name."""
        document = asdict(self)
        del document["counted"]
        for attempt in document["attempts"]:
            attempt["class"] = attempt.pop("failure_class")
        return document


def summarise(lines: Sequence[Line], now_t: float | None = None) -> PhaseSummary:
    """Summarise a phase; `now_t` is the present time, if it still runs. Raises JournalError."""
    head, end = head_of(lines), end_of(reversed(lines))
    last_t = reached_t(lines, now_t)
    timeline = timeline_of(lines, last_t)
    spent_s = _spent_s(timeline)
    decisions = [each.decision for each in timeline.judged]
    stages = stages_by_attempt(lines)
    final_step, counted = _final_step(lines, timeline.attempts)
    return PhaseSummary(
        phase=head.phase if head is not None else "",
        run=head.run if head is not None else "",
        job=head.job if head is not None else "",
        status=end.status if end is not None else "running",
        reason=end.reason if end is not None else "",
        restarts=dict(Counter(each.action for each in decisions if each.action in RESTARTS)),
        attempts=tuple(replace(each, stages_s=stages.get(each.number, {})) for each in timeline.attempts),
        time_s={"total": round(last_t, 3), **{part: round(spent_s[part], 3) for part in PARTS}},
        effective_ratio=round(spent_s["productive"] / last_t, 4) if last_t else None,
        isolated_systems=tuple(dict.fromkeys(name for each in decisions for name in each.isolate)),
        hangs=(hangs := tuple(_hangs(lines))),
        false_alarm_ratio=_false_alarms(hangs),
        stragglers=tuple(dict.fromkeys(line.rank for line in lines if isinstance(line, StragglerLine))),
        final_step=final_step,
        counted=counted,
        warm=_warm(lines),
        warnings=_warnings(lines),
    )


def reached_t(lines: Sequence[Line], now_t: float | None) -> float:
    """Return the time of a phase's last line, or `now_t` where that is later."""
    return max([float(line.t) for line in lines] + ([now_t] if now_t is not None else []), default=0.0)


def _spent_s(timeline: Timeline) -> dict[str, float]:
    spent_s = dict.fromkeys(PARTS, 0.0)
    for span in timeline.spans:
        spent_s[span.part] += span.end - span.start
    return spent_s


def _warnings(lines: Sequence[Line]) -> tuple[str, ...]:
    """Return the first text of each kind, of what has not been mended since."""
    texts: dict[str, str] = {}
    for line in lines:
        if isinstance(line, WarningLine):
            texts.setdefault(line.what, line.text)
        elif isinstance(line, CheckpointLine):
            for what in NONE_COUNTS:
                texts.pop(what, None)
    return tuple(texts.values())


def _warm(lines: Sequence[Line]) -> tuple[WarmSummary, ...]:
    last = {line.worker: line for line in lines if isinstance(line, WarmLine)}
    return tuple(
        WarmSummary(
            worker=worker,
            parked=line.parked,
            modules=line.modules,
            memory_mb=line.memory_kb >> 10,
            why_cold=line.why_cold,
        )
        for worker, line in sorted(last.items())
    )


# -- hangs ------------------------------------------------------------------------------------------


def _hangs(lines: Sequence[Line]) -> Iterator[HangSummary]:
    over = {line.n: line for line in lines if isinstance(line, HangOverLine)}
    for line in lines:
        if isinstance(line, HangLine):
            end = over.get(line.n)
            yield HangSummary(
                t=line.t,
                attempt=line.attempt,
                response=line.response,
                blamed_rank=line.blamed,
                evidence="; ".join(dict.fromkeys(sign.text for sign in line.evidence)),
                where=line.where,
                diagnosis=line.diagnosis,
                went_on=end.went_on if end is not None else None,
                after_s=end.after_s if end is not None else None,
            )


def _false_alarms(hangs: Sequence[HangSummary]) -> float | None:
    known = [hang.went_on for hang in hangs if hang.went_on is not None]
    return round(sum(known) / len(known), 4) if known else None


def _final_step(lines: Sequence[Line], attempts: Sequence[AttemptSummary]) -> tuple[int | None, bool]:
    """Return the step that a phase came to, and whether it is only the number of a checkpoint's version."""
    reported = attempts[-1].last_step if attempts else None
    if reported is not None:
        return reported, False
    verified = [(line.step, bool(line.counted)) for line in lines if isinstance(line, CheckpointLine)]
    return max(verified, default=(None, False))
