"""What all tests share: one Prefect server for the session, a run-time directory of each test's own."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("ours", deadline=None)  # a machine that others load makes no property wrong
settings.load_profile("ours")

CLUSTER = "tests/kubernetes/"
"""Where tests are that need a Kubernetes cluster; the backends' contract has some besides."""

MANY_AGENTS = (
    *(
        "tests/supervisor/",
        "tests/worker/",
        "tests/inprocess/",
        "tests/e2e/",
        "tests/prefect/",
        "tests/comeback/",
    ),
    *("tests/cli/", "tests/docs/", "tests/test_phases", "tests/test_tenures", "tests/report/"),
)
"""Where most tests start agents: there the workers' code lies in each run-time directory from the beginning."""

COLLECTED = pytest.StashKey[frozenset[str]]()
"""The names of all tests that were found, those that are not run among them."""

_cluster = ExitStack()
"""The cluster, while there is one."""

SET_BY_THE_COMMAND_LINE = (
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS",
)
"""What `main` sets in its process's environment for good."""

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # started in a shell's background; what we start is not
        signal.signal(_number, _handler)

os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """What a test leaves in the environment is some later test's trouble."""
    before = dict(os.environ)
    yield
    left = {name for name, value in {**before, **os.environ}.items() if before.get(name) != value}
    left |= before.keys() - os.environ.keys()
    assert left <= {"PYTEST_CURRENT_TEST", *SET_BY_THE_COMMAND_LINE}


@pytest.fixture(scope="session")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker side of the package, compiled: all tests' workers run the same."""
    from prefect_ft.backends.payload import payload_directory

    return payload_directory(tmp_path_factory.mktemp("payload"))


_runtime_dirs = itertools.count()


@pytest.fixture(autouse=True)
def runtime_dir(
    environment_stays: None,
    payload: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Sockets and output below a short path of the test's own, and no trace in the user's home."""
    name = f"{os.getpid():x}-{next(_runtime_dirs)}"  # `mktemp` would list those of all tests before
    directory = tmp_path_factory.getbasetemp() / "rt" / name
    directory.mkdir(mode=0o700, parents=True)
    if request.node.nodeid.startswith(MANY_AGENTS):
        (directory / payload.name).symlink_to(payload)
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))
    return directory


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of Prefect with a database, to copy from; all processes that run tests share it."""
    import databases

    own = tmp_path_factory.getbasetemp()
    return databases.prepared(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def prefect_server(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prefect's own test harness: a real server on a database of its own."""
    from unittest.mock import patch

    import databases
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    directory = tmp_path_factory.mktemp("prefect")
    databases.copied(prefect_home, directory, "prefect-test.db")
    with (
        patch("prefect.testing.utilities.mkdtemp", lambda: str(directory)),
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have all tests that need a cluster, an engine or a site run in one process: to start one takes seconds."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileAndNeed(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next(
                (need for need, is_needed in NEEDS.items() if is_needed(nodeid)),
                str(super()._split_scope(nodeid)),
            )

    return ByFileAndNeed(config, log)


LONG_ONES = (
    *("tests/slurm/", "tests/backends/test_contract", "tests/docker/", "tests/backends/test_docker_"),
    *("tests/deployment/", "tests/docs/test_docs_of_a_run", "tests/comeback/", "tests/cli/", "tests/e2e/"),
    *("tests/releases/", "tests/test_tenures", "tests/prefect/", "tests/inprocess/", "tests/supervisor/"),
    *(
        "tests/worker/test_agent",
        "tests/worker/test_store",
        "tests/worker/test_warm",
        "tests/worker/test_node",
    ),
    *("tests/run/", "tests/test_phases", "tests/backends/test_kinds", "tests/compat/"),
)
"""Those whose tests take long, the longest first: else one process ends with them when the others are done."""


def _place(nodeid: str) -> tuple[bool, int]:
    at = (number for number, prefix in enumerate(LONG_ONES) if nodeid.startswith(prefix))
    return not _needs_cluster(nodeid), next(at, len(LONG_ONES))


def _needs_cluster(nodeid: str) -> bool:
    return nodeid.startswith(CLUSTER) or "[kubernetes" in nodeid


ENGINES = ("tests/docker/", "tests/backends/test_docker_", "tests/backends/test_hangs_in_containers")
CONTRACT = "tests/backends/test_contract.py"
NEEDS: dict[str, Callable[[str], bool]] = {
    "kubernetes": _needs_cluster,
    "slurm": lambda nodeid: nodeid.startswith("tests/slurm/") or (CONTRACT in nodeid and "[slurm" in nodeid),
    "docker": lambda nodeid: nodeid.startswith(ENGINES) or (CONTRACT in nodeid and "[docker" in nodeid),
    "site": lambda nodeid: nodeid.startswith("tests/deployment/"),
}
"""What tests share that is started for them, and by their names which need it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have what needs the cluster come first, then what waits for processes; give clusters and engines time."""
    config.stash[COLLECTED] = frozenset(item.nodeid for item in items)
    items.sort(key=lambda item: _place(item.nodeid))
    for item in items:
        started = {"docker_engine", "kubernetes_cluster", "slurm_cluster"}
        if started & {*getattr(item, "fixturenames", ())} and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the cluster with the last test that needs it: the others can use what it takes."""
    if nextitem is None or not _needs_cluster(nextitem.nodeid):
        _cluster.close()


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[str]:
    """The URL of a Docker engine that has the image `engine.IMAGE`."""
    import engine

    why_not = engine.why_not()
    need("docker", why_not is None, why_not or "")
    with engine.engine_for_tests() as url:
        yield url


@pytest.fixture
def docker_engine_tls(docker_engine: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the same engine by TCP, with its certificates where clients look for them."""
    import engine

    try:
        url, certificates = engine.tls_of(docker_engine)
    except OSError:
        pytest.skip("needs an engine of the tests' own: the one that was given has no TLS")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    return url


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[Any]:
    """A `kube.Target`: a Kubernetes cluster and a namespace in it."""
    import kube

    why_not = kube.why_not()
    need("kubernetes", why_not is None, why_not or "")
    with _cluster:
        yield _cluster.enter_context(kube.cluster_for_tests())


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Any]:
    """A `slurm.Slurm` of four nodes, with accounting."""
    import slurm

    why_not = slurm.why_not(accounting=True)
    need("slurm", why_not is None, why_not or "")
    with slurm.slurm(accounting=True) as cluster:
        yield cluster


@pytest.fixture
def slurm_nodes(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The same cluster, to which Slurm's commands go; without jobs before and after."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    yield slurm_cluster
    slurm_cluster.clean()


def need(name: str, present: bool, why: str) -> None:
    """Skip the test where the machine lacks something; a failure where PREFECT_FT_REQUIRE names it."""
    if present:
        return
    if name in os.environ.get("PREFECT_FT_REQUIRE", "").split(","):
        pytest.fail(f"{name} is required here: {why}")
    pytest.skip(f"needs {name}: {why}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    import subprocess

    directory = tmp_path / "small"
    directory.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "prefect-ft-test", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    need("mount", mount.returncode == 0, mount.stderr.strip())
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)
