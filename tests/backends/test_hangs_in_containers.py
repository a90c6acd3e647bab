"""Ranks that hang in containers are found, blamed and restarted there as they are in processes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from engine import IMAGE
from hanging import FAULTS, HANG_S, Make, Phase, Workers, assert_found, fault, fewer, make_hanging, stop

from prefect_ft.backends.base import AgentSettings, Backend
from prefect_ft.backends.docker.backend import DockerBackend
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.docker.engine import connect
from prefect_ft.worker import spy

__all__ = ["make_hanging", "stop"]


@pytest.fixture
def workers_of_phase(docker_engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Workers:
    """Containers that have the test's directory where it is here, and what else a test wants of them."""
    given = dict(getattr(request, "param", {}))

    def backend(told: AgentSettings, directory: Path, systems: tuple[str, ...]) -> Backend:
        infrastructure = {
            "type": "docker", "image": IMAGE, "engine": docker_engine, "systems": systems,
            "volumes": [f"{tmp_path}:{tmp_path}", *given.pop("volumes", ())], **given,
        }  # fmt: skip
        return DockerBackend(told, directory, DockerInfrastructure.model_validate(infrastructure))

    return Workers(backend, ("python3", "-S"))


@pytest.mark.parametrize("name", fewer(FAULTS, "stopped"))
def test_a_rank_that_hangs_in_a_container_is_found_blamed_and_restarted(
    name: str, make_hanging: Make
) -> None:
    assert_found(make_hanging(fault(name)), name)


COMPUTES_IN_A_THREAD = """
def compute():
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s: pass
thread = threading.Thread(target=compute); thread.start(); thread.join()
"""


@pytest.mark.long  # with a twentieth of a processor all takes long; what is judged is tried every time as a trace
@pytest.mark.parametrize("workers_of_phase", [{"resources": {"cpus": 0.05}}], indirect=True)
def test_who_is_quiet_because_its_container_is_throttled_is_left_alone(make_hanging: Make) -> None:
    phase = make_hanging(COMPUTES_IN_A_THREAD, workers=1)
    assert phase.run() == ["completed: complete"]
    assert phase.lines("hang") == []


SMALL = {"resources": {"memory": "64m"}, "create": {"HostConfig": {"MemorySwap": 64 << 20}}}
USES_ALL_MEMORY_IN_A_CHILD = "if os.fork() == 0: x = b'x' * (256 << 20)\ntime.sleep(1000)"


@pytest.mark.parametrize("workers_of_phase", [SMALL], indirect=True)
def test_a_process_that_the_kernel_has_killed_is_told_of_who_waits_for_it(make_hanging: Make) -> None:
    phase = make_hanging(USES_ALL_MEMORY_IN_A_CHILD, workers=1)
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    evidence = phase.journal.history()[0].incident.evidence
    assert evidence is not None
    assert "; the kernel has killed a process in the container of worker 0 for its memory" in evidence.text


DOZES = "def doze(): time.sleep(1000)\ndoze()"
SPY = spy.command()
HAS_SPY = {"volumes": [f"{SPY}:/usr/bin/py-spy:ro"]}


@pytest.mark.parametrize(
    ("workers_of_phase", "code", "where"),
    [
        pytest.param({}, "beat(step=1)\n", "rank 0 in doze (", id="heartbeats"),
        pytest.param(
            HAS_SPY,
            "",
            "rank 0 in doze (",
            id="py-spy-in-the-image",
            marks=pytest.mark.skipif(SPY is None, reason="needs py-spy: install prefect-ft[stacks]"),
        ),
        pytest.param(
            {}, "", "rank 0 in hrtimer_nanosleep", id="neither-so-by-the-kernel", marks=pytest.mark.long
        ),
    ],
    indirect=["workers_of_phase"],
)
def test_where_ranks_in_containers_hang(code: str, where: str, make_hanging: Make) -> None:
    phase = make_hanging(code + DOZES, workers=1)
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert hang["where"].startswith(where)
    assert "python3: S (sleeping), 1 threads" in (phase.directory / hang["diagnosis"]).read_text()


LIVES = "train(1)\nbegan()\ntrain(100)"


@pytest.mark.long  # a worker whose agent is stopped is the same, and is tried as a process every time
def test_a_container_that_is_paused_is_left_alone(make_hanging: Make, docker_engine: str) -> None:
    phase = make_hanging(LIVES)
    with ThreadPoolExecutor(1) as other:
        paused = other.submit(_pause, phase, docker_engine)
        assert phase.run() == ["completed: complete"]
        paused.result()
    assert phase.lines("hang") == []


def _pause(phase: Phase, url: str) -> None:
    """Freeze the container of one of two workers for longer than it may be quiet, in the midst of its work."""
    while not (phase.directory / "began-1").exists():
        time.sleep(0.01)
    with closing(connect(url)) as client:
        (found,) = client.containers(filters={"label": "prefect-ft.worker=1"})
        client.pause(found["Id"])
        time.sleep(2 * HANG_S)
        client.unpause(found["Id"])
