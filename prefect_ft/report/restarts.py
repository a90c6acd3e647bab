"""The duration of each stage of each restart: the rows of the report's table, and the meaning of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefect_ft.journal.stages import STAGES
from prefect_ft.report.story import Story

STAGE_MEANINGS: Mapping[str, str] = {
    "detect": "until the failure was noticed",
    "reap": "until all remaining processes had ended",
    "decide": "until the decision was on disk",
    "retry": "until Prefect had begun the next attempt; a restart in place does not wait for it",
    "wait": "the restart delay set in the job",
    "start": "until all ranks had started",
    "first_line": "until the first rank printed a line",
    "rendezvous": "until all ranks had joined the rendezvous",
    "first_step": "until the first rank reported a step",
}
"""Each stage begins where the previous one ends; the first one begins at the failure."""


def stages_known(story: Story) -> list[str]:
    """Return the stages known for any restart, in order."""
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
