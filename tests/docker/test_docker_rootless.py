"""A rootless engine: the user to whom it belongs runs jobs on it, and nobody else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from deaths import assert_right, born, hold, journals, live, of_type, starts_of, write_job
from engine import DEADLINE_S, IMAGE
from rootless import UID, Rootless, rootless, why_not

from prefect_ft.backends.docker.engine import Client, connect
from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.orchestrate.preflight import check_engines
from tests.conftest import need

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Rootless]:
    need("rootless", why_not() is None, why_not() or "")
    with rootless() as made:
        yield made


@pytest.fixture
def api(engine: Rootless, api: None) -> Iterator[Client]:
    """The engine; nothing of a run may be left on it, nor any other process of its user."""
    before = processes()
    with closing(connect(engine.url)) as client:
        yield client
        assert client.containers(all=True) == []
    deadline = time.monotonic() + DEADLINE_S
    while left := processes() - before:  # what the engine had beside a container ends a little later
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes() -> set[int]:
    """Return the user's processes, those in containers too: of them the user is root."""
    return {each.pid for each in psutil.process_iter(["uids"]) if each.info["uids"].real == UID}


@pytest.fixture
def job(engine: Rootless, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the job into a directory of the user's, and say where its runs keep what they need."""
    directory = Path(tempfile.mkdtemp(dir=engine.home))
    runtime = Path(tempfile.mkdtemp(dir=engine.directory, prefix=""))  # short, for its sockets' paths
    engine.give(runtime)
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))
    pool = (
        f"{{type: docker, image: {IMAGE!r}, engine: '{engine.url}', systems: [s0, s1], workers: 2, "
        f"volumes: ['{directory}:{directory}']}}"
    )
    path = write_job(directory, pool)
    engine.give(directory)
    return path


def said(job: Path) -> str:
    return (job.parent / "orchestrator.log").read_text()[-3000:]


def wait_until(happened: Callable[[], object], orchestrator: subprocess.Popen[bytes], job: Path) -> None:
    while not happened():
        assert orchestrator.poll() is None, said(job)
        signal.sigtimedwait([], 0.02)


def test_ranks_fail_and_the_orchestrator_is_killed(job: Path, api: Client, engine: Rootless) -> None:
    """A rank fails and is restarted in its container; the next orchestrator adopts what lives."""
    assert live(job, "in_training/flow", engine.command) == -signal.SIGKILL, said(job)
    assert len(api.containers(filters={"label": "prefect-ft.run"})) == 2
    assert live(job, "", engine.command) == 0, said(job)
    assert_right(job)
    assert [attempt for phase, attempt, rank in starts_of(job) if (phase, rank) == ("one", 0)] == [1, 2]
    made = of_type(journals(job.parent / "model")["one"], "attempt")
    assert [attempt["start_counts"] for attempt in made] == [[[1, 1], [1, 1]], [[1, 2], [1, 2]]]


def test_a_container_that_is_removed_is_made_anew(job: Path, api: Client, engine: Rootless) -> None:
    hold(job)
    orchestrator = born(job, "", engine.command)
    try:
        wait_until(lambda: list((job.parent / "one").glob("step-*.json")), orchestrator, job)
        (found,) = api.containers(filters={"label": ["prefect-ft.worker=1", "prefect-ft.phase=0"]})
        api.remove_container(found["Id"], force=True)
        assert orchestrator.wait(90) == 0
    finally:
        orchestrator.kill()
        orchestrator.wait()
    assert_right(job, losses=1)
    assert os.stat(job.parent / "one" / "step-30.json").st_uid == UID


def test_cancel_leaves_nothing(job: Path, api: Client, engine: Rootless) -> None:
    job.with_name("train.py").write_text("import time\nprint('trains', flush=True)\ntime.sleep(600)\n")
    orchestrator = born(job, "", engine.command)
    try:
        wait_until(lambda: b"trains" in b"".join(outputs(job)), orchestrator, job)
        words = [sys.executable, "-m", "prefect_ft.cli", "cancel", str(job.parent / "model")]
        done = subprocess.run(engine.command(words), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert orchestrator.wait(90) != 0
    finally:
        orchestrator.kill()
        orchestrator.wait()


def outputs(job: Path) -> Iterator[bytes]:
    return (path.read_bytes() for path in (job.parent / "model").glob("*/run.log"))


def refusal(url: str, **fields: object) -> tuple[str | None, str]:
    document = {
        "name": "test",
        "model_dir": "model",
        "infrastructure": {"type": "docker", "image": IMAGE, "engine": url, **fields},
        "phases": [{"name": "train", "command": ["true"]}],
    }
    with pytest.raises(ConfigError) as caught:
        check_engines(JobConfig.model_validate(document))
    return caught.value.field, caught.value.message


def test_another_user_is_refused_before_anything_starts(engine: Rootless) -> None:
    assert refusal(engine.url) == (
        "infrastructure.engine",
        (
            f"the engine at {engine.url} is a rootless one of user {UID}, and cannot mount files of user 0: run this "
            f"as user {UID}, or name another engine"
        ),
    )


REFUSED = [
    pytest.param(
        "user: '1000'",
        (
            "infrastructure.user: its containers run as user 1000: on a rootless engine root in a container is "
            'who runs this: write user: "0"'
        ),
        id="another-user-in-the-container",
    ),
    pytest.param("user: '99999'", "unable to setup user", id="a-user-beyond-the-subordinate-ids"),
    pytest.param("resources: {memory: 1g}", "without control groups", id="limits"),
]


@pytest.mark.parametrize(("field", "message"), REFUSED)
def test_what_cannot_be_had_is_refused(
    job: Path, api: Client, engine: Rootless, field: str, message: str
) -> None:
    if "control groups" in message and api.info()["CgroupDriver"] != "none":
        pytest.skip("needs rootless control groups of version 1: this engine sets limits")
    job.write_text(job.read_text().replace("{type: docker,", f"{{type: docker, {field},"))
    words = [sys.executable, "-m", "prefect_ft.cli", "run", str(job)]
    done = subprocess.run(engine.command(words), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
