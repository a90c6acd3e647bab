"""An agent dies, all of the machine does, an orchestrator is stopped for too long and then goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from deaths import assert_right, born, hold, journals, live, of_type, starts_of, write_job

pytestmark = pytest.mark.timeout(300)


def test_the_agent_of_worker_0_is_killed(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    hold(job)
    assert live(job, "in_training/agent") == 0
    assert_right(job, losses=1)


def test_all_of_it_is_killed_as_by_the_machines_power(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    hold(job)
    assert live(job, "in_training/power") == -9
    assert live(job) == 0
    assert_right(job, losses=1)
    (comeback,) = of_type(journals(tmp_path / "model")["one"], "comeback")
    assert (comeback["adopted"], comeback["goes_on"], comeback["attempt"]) == ([], True, 1)


@pytest.mark.parametrize("moment", ["in_training", pytest.param("before_action", marks=pytest.mark.long)])
def test_an_orchestrator_that_was_stopped_for_longer_than_its_lease_is_harmless(
    tmp_path: Path, moment: str
) -> None:
    job = write_job(tmp_path, lease_s="1")
    late = born(job, f"{moment}/stop")
    os.waitid(os.P_PID, late.pid, os.WSTOPPED | os.WNOWAIT)
    time.sleep(1.1)  # its lease is over: before that a successor is refused, and one may be quick
    successor = born(job)
    try:
        while not (tmp_path / "starts").exists() or ("two", 1, 1) not in starts_of(job):
            assert successor.poll() is None, (tmp_path / "orchestrator.log").read_text()
            signal.sigtimedwait([], 0.02)
        late.send_signal(signal.SIGCONT)  # in the middle of the successor's second phase
        assert late.wait(60) != 0
        assert successor.wait(60) == 0
    finally:
        late.kill()
        successor.kill()
    assert_right(job)
    undisturbed = sorted(
        (*attempt, rank) for attempt in [("one", 1), ("one", 2), ("two", 1)] for rank in (0, 1)
    )
    assert sorted(starts_of(job)) == undisturbed
    assert (
        "this process leaves the run: an orchestrator of epoch 2 has taken over"
        in (tmp_path / "orchestrator.log").read_text()
    )
