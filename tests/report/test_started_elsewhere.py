"""Report and ledger name the step that was really used."""

from __future__ import annotations

from past_runs import Telling

from prefect_ft.model import Policy
from prefect_ft.prefect_edge.reporting.pages import ledger
from prefect_ft.report.story import PhaseJournal, story_of
from prefect_ft.report.words import done


def test_an_attempt_that_could_not_start_where_it_was_decided() -> None:
    run = Telling(Policy(systems=("node-a",), workers=1, max_num_restarts=3))
    reached = run.attempt(0.0, saved_every=100, until=900.0)
    decided = run.end_attempt(900.0, step=200, reached=reached, worker=0, failure_class="crash")
    run.append(
        "attempt", 905.0, attempt=2, resume_step=100, placement=["node-a"], passed_over={},
        decided_step=decided.resume_step, started_from=100, why="step-200.pt is no longer there",
    )  # fmt: skip
    story = story_of([PhaseJournal(lines=run.lines, now_t=None)])
    (event,) = story.events
    assert done(event).endswith(" from step 100 (step-200.pt is no longer there).")
    (row,) = ledger(story)
    assert (row["resume step"], row["not from the decided step"]) == (100, "step-200.pt is no longer there")
