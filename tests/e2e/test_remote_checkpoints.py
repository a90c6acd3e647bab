"""Checkpoints in an object store: ranks write them there, the orchestrator looks, and attempts resume from a URL."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from object_store import Store, object_store

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError, RunFailedError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import AttemptLine, CheckpointLine, DecisionLine

__all__ = ["object_store"]

Make = Callable[..., JobConfig]
Seen = Callable[..., list[dict[str, str]]]

CODE = """
import fsspec
from prefect_ft.heartbeat import beat
def put(url, data):
    with fsspec.open(url, "wb") as file:
        file.write(data)
def save_there(step, rest=b"}"):
    if rank == 0:
        put(f"{URL}/step-{step}.json", b'{"weights": [1]' + rest)
if resume:
    with fsspec.open(resume, "rb") as file:
        print("loaded", file.read(), flush=True)
"""


@pytest.fixture
def at_a_url(job: Make, object_store: Store) -> Make:
    """Return a job whose ranks may write to the store."""

    def make(code: str, *, checkpoints: dict[str, Any] | None = None, **fields: Any) -> JobConfig:
        made = job(
            f"URL = {object_store.url!r}\n{CODE}{code}",
            phase={"checkpoints": {"path": object_store.url, "settle_s": 0.5, **(checkpoints or {})}},
            **fields,
        )
        first, *rest = made.phases
        command = tuple(word for word in first.command if word != "-S")
        return made.model_copy(update={"phases": (first.model_copy(update={"command": command}), *rest)})

    return make


def journal(job: JobConfig) -> list[Any]:
    return list(read_lines(next(Path(job.model_dir).glob("*_restartable/journal.jsonl"))))


def test_an_attempt_resumes_from_the_newest_whole_one(
    at_a_url: Make, seen: Seen, object_store: Store
) -> None:
    config = at_a_url(
        """
if not restarts:
    save_there(10); save_there(20); save_there(30, b"")
    if rank == 0: die()
    wait()
"""
    )
    assert train_flow(config)[0]["status"] == "completed"
    path = f"{object_store.url}/step-20.json"
    assert [env["PREFECT_FT_RESUME_FROM"] for env in seen()] == ["", "", path, path]
    lines = journal(config)
    saved = {line.step: line.path for line in lines if isinstance(line, CheckpointLine)}
    assert saved == {step: f"{object_store.url}/step-{step}.json" for step in (10, 20)}
    (second,) = [line for line in lines if isinstance(line, AttemptLine) and line.attempt == 2]
    assert list(second.passed_over or ()) == ["step-30.json"]
    (log,) = Path(config.model_dir).glob("*_restartable/run.log")
    assert "loaded b'{\"weights\": [1]}'" in log.read_text()


def test_it_is_progress(at_a_url: Make) -> None:
    """Each attempt saves one more and dies: as many restarts as it likes, with one without progress allowed."""
    config = at_a_url(
        """
step = 10 * (restarts + 1)
if step < 50:
    save_there(step)
    if rank == 0: die()
    wait()
""",
        autorestart={"max_num_restarts": 1},
    )
    assert train_flow(config)[0]["status"] == "completed"
    decided = [line.decision for line in journal(config) if isinstance(line, DecisionLine)]
    assert [each.resume_step for each in decided] == [10, 20, 30, 40, None]
    assert {each.counters.failures_without_progress for each in decided[:-1]} == {1}


def test_it_is_seen_while_the_ranks_run(at_a_url: Make) -> None:
    config = at_a_url(
        """
save_there(10)
import glob
while not any("checkpoint" in open(path).read() for path in glob.glob("model/*_restartable/journal.jsonl")):
    time.sleep(0.01)
""",
        sample_period_s=0.2,
    )
    assert train_flow(config)[0]["status"] == "completed"
    lines = journal(config)
    (saved,) = [line for line in lines if isinstance(line, CheckpointLine)]
    assert saved.attempt == 1


def test_one_file_that_is_overwritten_has_the_step_that_was_reported(
    at_a_url: Make, object_store: Store
) -> None:
    config = at_a_url(
        """
if not restarts:
    for step in (1, 2, 3):
        beat(step=step)
    # It is written after the step of both has been sampled: what is read before the store is listed counts.
    open(f"told-{rank}", "x").close()
    while not all(os.path.exists(f"told-{other}") for other in (0, 1)):
        time.sleep(0.01)
    time.sleep(1)
    if rank == 0: put(f"{URL}/last.json", b'{"step": 3}')
    time.sleep(1)
    if rank == 0: die()
    wait()
""",
        checkpoints={"pattern": "last.json"},
        sample_period_s=0.2,
    )
    assert train_flow(config)[0]["status"] == "completed"
    (saved,) = [line for line in journal(config) if isinstance(line, CheckpointLine)]
    assert (saved.step, saved.path, saved.counted) == (3, f"{object_store.url}/last.json", False)


def test_what_an_earlier_run_left_is_left_alone_from_scratch(
    at_a_url: Make, seen: Seen, object_store: Store
) -> None:
    object_store.put("step-7.json", b"{}")
    assert train_flow(at_a_url("").from_scratch())[0]["status"] == "completed"
    assert {env["PREFECT_FT_RESUME_FROM"] for env in seen()} == {""}


def test_a_store_that_is_away_for_a_while_is_waited_for(
    at_a_url: Make, seen: Seen, object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to know what there is would be to begin from scratch."""
    from prefect_ft.supervisor import bucket, remote

    monkeypatch.setattr(remote, "RETRY_S", 0.1)
    looks: list[int] = []
    real = bucket.Bucket._look

    def failing(self: bucket.Bucket) -> Any:
        looks.append(threading.get_ident())
        if 3 < len(looks) < 12:
            raise bucket.AwayError("cannot be listed: ConnectionError")
        return real(self)

    monkeypatch.setattr(bucket.Bucket, "_look", failing)
    config = at_a_url(
        """
if not restarts:
    save_there(10)
    if rank == 0: time.sleep(1); die()
    wait()
""",
        sample_period_s=0.2,
    )
    assert train_flow(config)[0]["status"] == "completed"
    assert len(looks) > 11
    path = f"{object_store.url}/step-10.json"
    assert [env["PREFECT_FT_RESUME_FROM"] for env in seen()][2:] == [path, path]


def test_one_that_stays_away_fails_the_run_and_says_what_to_do(
    at_a_url: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect_ft.supervisor import bucket, remote

    monkeypatch.setattr(remote, "RETRY_S", 0.05)
    monkeypatch.setattr(remote, "CHOOSE_TIMEOUT_S", 0.5)
    real, looks = bucket.Bucket._look, []

    def failing(self: bucket.Bucket) -> Any:
        looks.append(1)
        if len(looks) > 1:
            raise bucket.AwayError("cannot be listed: ConnectionError")
        return real(self)

    monkeypatch.setattr(bucket.Bucket, "_look", failing)
    with pytest.raises((RunFailedError, Exception), match="resume the run once the store can be reached"):
        train_flow(at_a_url(""))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nosuch://bucket/ck", "nosuch://bucket/ck .*nosuch"),
        ("s3://bucket/ck", "s3://bucket/ck cannot be listed"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_anything_starts(
    job: Make, path: str, message: str, object_store: Store
) -> None:
    object_store.stop()
    with pytest.raises(ConfigError, match=message):
        train_flow(job(phase={"command": [sys.executable, "-c", ""], "checkpoints": {"path": path}}))


def test_a_file_at_a_url_cannot_be_put_back(job: Make) -> None:
    with pytest.raises(ValueError, match="needs a directory, where a file can be put back"):
        job(phase={"checkpoints": {"path": "s3://bucket/ck", "keep_copies": True}})
