"""The flow process dies by SIGKILL, at every moment: who comes back brings the run to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest
from deaths import assert_right, live, starts_of, write_job
from mortal import MOMENTS

UNDISTURBED = [("one", 1), ("one", 2), ("two", 1)]
"""The attempts of a run whose orchestrator lives: each is started once by both ranks."""

HELD_ELSEWHERE = ("before_decision", "after_action")
"""Moments that tests/supervisor/test_rejoin.py holds in milliseconds: the journal cut at each of its bytes."""

IN_SHORT = ("in_training", "in_action")
"""Moments of the ordinary run; tests/supervisor/test_simulation.py ends orchestrators at every event."""

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(each, marks=() if each in IN_SHORT else pytest.mark.long)
        for each in MOMENTS
        if each not in HELD_ELSEWHERE
    ],
)
def test_the_flow_process_is_killed(tmp_path: Path, moment: str) -> None:
    job = write_job(tmp_path)
    assert live(job, f"{moment}/flow") == -9
    assert live(job) == 0
    assert_right(job)
    starts = sorted(starts_of(job))
    if moment == "in_action":  # one of the two had been told already: it starts again with the other
        assert set(starts) == {(*attempt, rank) for attempt in UNDISTURBED for rank in (0, 1)}
    else:
        assert starts == sorted((*attempt, rank) for attempt in UNDISTURBED for rank in (0, 1))
