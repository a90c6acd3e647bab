"""The queue is asked once for all runs of a user, and no more often than what they want to know is old."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prefect_ft.backends.slurm.queue import Queue, shared_directory
from prefect_ft.backends.slurm.states import JobState, read_squeue

# As Slurm 22.05 printed them.
TOLD = (
    "17|RUNNING|None|n[0-2]|2026-11-24T10:19:37|1:00:00\n"
    "18|PENDING|Dependency||N/A|1:00:00\n"
    "19|PREEMPTED|None|n[2-3]|2026-11-24T09:19:37|UNLIMITED\n"
)


class Slurm:
    """Answers with its `text`, and counts."""

    def __init__(self, text: str | None = TOLD) -> None:
        self.text, self.asked, self.now_s = text, 0, 1000.0

    def ask(self) -> str | None:
        self.asked += 1
        return self.text

    def queue(self, directory: Path | None) -> Queue:
        return Queue(self.ask, directory, lambda: self.now_s)


def state(queue: Queue, job: str, within_s: float) -> str | None:
    told = queue.state(job, within_s=within_s)
    return None if told is None else told.state


def test_what_one_run_was_told_is_enough_for_the_others(tmp_path: Path) -> None:
    slurm = Slurm()
    for _ in range(5):
        assert state(slurm.queue(tmp_path), "17", 60.0) == "RUNNING"
        slurm.now_s += 11.0
    assert slurm.asked == 1
    slurm.now_s += 10.0
    assert state(slurm.queue(tmp_path), "18", 60.0) == "PENDING"
    assert slurm.asked == 2


def test_who_wants_to_know_more_exactly_asks_anew(tmp_path: Path) -> None:
    slurm = Slurm()
    state(slurm.queue(tmp_path), "17", 60.0)
    slurm.now_s += 5.0
    state(slurm.queue(tmp_path), "17", 4.0)
    assert slurm.asked == 2


def test_a_job_that_came_after_the_answer_is_asked_for_before_it_is_called_gone(tmp_path: Path) -> None:
    slurm = Slurm()
    state(slurm.queue(tmp_path), "17", 60.0)
    slurm.now_s += 5.0
    slurm.text = TOLD + "20|PENDING|Priority||N/A|1:00:00\n"
    assert state(slurm.queue(tmp_path), "20", 60.0) == "PENDING"
    slurm.now_s += 1.0
    with pytest.raises(LookupError):
        slurm.queue(tmp_path).state("21", within_s=60.0)
    assert slurm.asked == 3


def test_silence_is_unknown_for_all_and_asked_into_once(tmp_path: Path) -> None:
    slurm = Slurm(None)
    assert [state(slurm.queue(tmp_path), job, 60.0) for job in ("17", "18", "21")] == [None] * 3
    assert slurm.asked == 1


def test_a_clock_that_was_set_back_does_not_keep_an_answer_for_ever(tmp_path: Path) -> None:
    slurm = Slurm()
    state(slurm.queue(tmp_path), "17", 60.0)
    slurm.now_s -= 500.0
    state(slurm.queue(tmp_path), "17", 60.0)
    assert slurm.asked == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"at_s": "x", "text": 3}', '{"at_s": 999.0}'])
def test_a_damaged_file_costs_a_question_or_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / "told.json").write_text(content)
    slurm = Slurm()
    assert state(slurm.queue(tmp_path), "17", 60.0) == (None if "999" in content else "RUNNING")


def test_where_nothing_can_be_shared_each_asks(tmp_path: Path) -> None:
    slurm = Slurm()
    assert [state(slurm.queue(None), "17", 60.0) for _ in range(2)] == ["RUNNING"] * 2
    assert slurm.asked == 2


def test_runs_that_ask_at_once_are_told_by_the_first(tmp_path: Path) -> None:
    """Each has a thread and a descriptor of its own, as processes have."""
    slurm, told = Slurm(), []
    begin = threading.Barrier(8)

    def run() -> None:
        begin.wait()
        told.append(state(slurm.queue(tmp_path), "17", 1.0))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (told, slurm.asked) == (["RUNNING"] * 8, 1)


def test_who_holds_the_lock_for_too_long_is_not_waited_for(tmp_path: Path) -> None:
    code = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2); print('has', flush=True); input()"
    words = [sys.executable, "-S", "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        slurm = Slurm()
        queue = Queue(slurm.ask, tmp_path, lambda: slurm.now_s, lock_s=0.0)
        assert state(queue, "17", 60.0) == "RUNNING"
        other.communicate(b"\n", timeout=30)


@pytest.mark.usefixtures("runtime_dir")
def test_clusters_have_queues_of_their_own() -> None:
    first, same, other = (shared_directory({"SLURM_CONF": name}) for name in ("/a", "/a", "/b"))
    assert first is not None
    assert first == same != other
    assert (first.stat().st_uid, first.stat().st_mode & 0o777) == (os.getuid(), 0o700)


def test_lines_of_the_queue_are_read() -> None:
    found = read_squeue(TOLD + "slurm_load_jobs error: x\n\n")
    assert list(found) == ["17", "18", "19"]
    assert found["18"] == JobState(job="18", state="PENDING", reason="Dependency")
    assert (found["18"].is_pending, found["19"].has_ended, found["19"].ends_s) == (True, True, None)
    assert found["17"].ends_s is not None
