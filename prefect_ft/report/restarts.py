"""How long each stage of each restart took: the rows of the report's table, and what its columns mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefect_ft.journal.stages import STAGES
from prefect_ft.report.story import Story

STAGE_MEANINGS: Mapping[str, str] = {
    "detect": "until the failure was noticed",
    "reap": "until all that still ran had ended",
    "decide": "until the decision was on disk",
    "retry": "until Prefect had begun the next attempt, for which a restart in place does not wait",
    "wait": "the delay that the job asks for",
    "start": "until all ranks had been started",
    "first_line": "until the first of them printed something",
    "rendezvous": "until they had met",
}
"""Each begins where the one before it ends; the first one at the failure."""


def stages_known(story: Story) -> list[str]:
    """Return the stages that are known of any restart, in their order."""
    known = {stage for _, _, stages in _restarts(story) for stage in stages}
    return [stage for stage in STAGES if stage in known]


def restart_rows(story: Story) -> list[tuple[str, ...]]:
    """Return a row for each restart: phase, attempt, and the milliseconds of each known stage."""
    columns = stages_known(story)
    return [
        (phase, str(attempt), *(_milliseconds(stages.get(stage)) for stage in columns))
        for phase, attempt, stages in _restarts(story)
    ]


def _restarts(story: Story) -> Iterator[tuple[str, int, Mapping[str, float]]]:
    for phase in story.phases:
        for attempt in phase.summary.attempts:
            if attempt.stages_s:
                yield phase.name, attempt.number, attempt.stages_s


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f}"
