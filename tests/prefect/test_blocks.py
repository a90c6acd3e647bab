"""Saved infrastructure: what is saved loads, shows no secret, and serves jobs, flows and itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest

import prefect_ft
from prefect_ft import DockerTraining, JobConfig, KubernetesTraining, ProcessTraining, train_flow
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.backends.process.config import ProcessInfrastructure
from prefect_ft.blocks import infrastructure_of_block
from prefect_ft.cli import main
from prefect_ft.config import load_job
from prefect_ft.errors import BackendError, ConfigError, RunFailedError
from prefect_ft.supervisor.driver import Driver

SECRET = "hf_s3cr3t-value"
SAVED = json.loads(Path(__file__).with_name("blocks_v1.json").read_text())
"""Blocks as the first version saved them. This file is never written anew."""

MakeJob = Callable[..., JobConfig]


@pytest.fixture(scope="module")
def gpu_box(prefect_server: None) -> DockerTraining:
    block = DockerTraining(
        image="train:1", systems=["s0", {"name": "s1", "engine": "unix:///b.sock"}], workers=2,
        shm_size="8g", secret_env={"HF_TOKEN": SECRET},
    )  # fmt: skip
    block.save("gpu-box", overwrite=True)
    return block


# -- saving -------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(gpu_box: DockerTraining) -> None:
    assert DockerTraining.load("gpu-box").infrastructure() == DockerInfrastructure(
        type="docker", image="train:1", systems=("s0", {"name": "s1", "engine": "unix:///b.sock"}), workers=2,
        shm_size=8 << 30, secret_env={"HF_TOKEN": SECRET},
    )  # fmt: skip


def test_pods_are_saved_and_loaded(prefect_server: None) -> None:
    said: dict[str, Any] = {"image": "train:1", "systems": ["n0", "n1"], "namespace": "training"}
    said |= {"pod": {"spec": {"hostNetwork": True}}, "secret_env": {"HF_TOKEN": SECRET}}
    KubernetesTraining(**said).save("pods", overwrite=True)
    loaded = KubernetesTraining.load("pods").infrastructure()
    assert loaded == KubernetesInfrastructure.model_validate({"type": "kubernetes", **said})


def test_what_was_not_said_stays_unsaid(prefect_server: None) -> None:
    """A pool that nobody named holds no locks: see the process backend."""
    ProcessTraining().save("bare", overwrite=True)
    assert ProcessTraining.load("bare").infrastructure().model_fields_set == {"type"}


def test_the_api_shows_no_secret(gpu_box: DockerTraining) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        document = client.read_block_document_by_name("gpu-box", "docker-training", include_secrets=False)
    assert list(document.data["secret_env"]) == ["HF_TOKEN"]
    assert SECRET not in json.dumps(document.data)
    assert SECRET not in repr(gpu_box) + str(gpu_box) + gpu_box.model_dump_json()


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="shm_sise"):
        DockerTraining(image="i", shm_sise="1g")


@pytest.mark.parametrize("saved", SAVED, ids=lambda saved: saved["name"])
def test_blocks_of_the_first_version_load_for_ever(saved: dict[str, Any]) -> None:
    """As Prefect does it: the data that is stored, into the class as it is today."""
    kind: Any = {"docker-training": DockerTraining, "process-training": ProcessTraining}[saved["slug"]]
    block = kind.model_validate(saved["data"])
    assert block.get_block_type_slug() == saved["slug"]
    infrastructure: Any = {"docker": DockerInfrastructure, "process": ProcessInfrastructure}[saved["type"]]
    assert block.infrastructure() == infrastructure.model_validate(saved["means"])
    assert {name: getattr(block, name) for name in saved["alone"]} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in saved["alone"].items()
    }


@pytest.mark.parametrize("saved", SAVED, ids=lambda saved: saved["name"])
def test_no_field_is_renamed_or_newly_required(saved: dict[str, Any]) -> None:
    """A field that has got another name would silently be its default."""
    kind: Any = {"docker-training": DockerTraining, "process-training": ProcessTraining}[saved["slug"]]
    schema = kind.model_json_schema()
    assert set(schema["properties"]) >= set(saved["fields"])
    assert set(schema.get("required", ())) <= set(saved["required"])


def test_the_command_line_of_prefect_registers_them(prefect_server: None) -> None:
    import os

    from prefect.settings import PREFECT_API_URL

    env = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    command = [sys.executable, "-m", "prefect", "block", "register", "-m", "prefect_ft"]
    done = preloaded.completed(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Docker Training" in done.stdout
    assert "Kubernetes Training" in done.stdout
    assert "Process Training" in done.stdout


def test_prefect_finds_the_collection() -> None:
    project = (Path(prefect_ft.__file__).parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points."prefect.collections"]\nprefect_ft = "prefect_ft.blocks"' in project


# -- in jobs ------------------------------------------------------------------------------------------


def test_a_job_file_names_a_block(gpu_box: DockerTraining, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: j\nmodel_dir: m\ninfrastructure: {block: docker-training/gpu-box, workers: 1}\n"
        "phases: [{name: p, mode: eval, command: [c]}]\n"
    )
    found = load_job(path, blocks=infrastructure_of_block).infrastructure
    assert found == DockerInfrastructure.model_validate({**dict(gpu_box.infrastructure()), "workers": 1})


def test_validate_prints_the_block_without_its_secret(
    gpu_box: DockerTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: j\nmodel_dir: m\ninfrastructure: {block: docker-training/gpu-box}\n"
        "phases: [{name: p, mode: eval, command: [c]}]\n"
    )
    assert main(["validate", str(path), "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)["infrastructure"]["image"] == "train:1"
    assert json.loads(told)["infrastructure"]["secret_env"] == {"HF_TOKEN": "**********"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("docker-training/none", "no block 'docker-training/none' can be loaded", id="not-saved"),
        pytest.param("gpu-box", "must be process-training/NAME or docker-training/NAME or", id="no-type"),
        pytest.param("secret/x", "must be process-training/NAME or docker-training/NAME or", id="other-type"),
    ],
)
def test_what_cannot_be_looked_up(prefect_server: None, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        infrastructure_of_block(name)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda block: block, id="itself"),
        pytest.param(
            lambda _: {"$ref": {"block_document_slug": "process-training/two"}},
            id="as-a-deployment-refers-to-it",
        ),
    ],
)
def test_a_block_is_a_parameter_of_train_flow(
    job: MakeJob, tmp_path: Path, given: Callable[[ProcessTraining], Any]
) -> None:
    block = ProcessTraining(systems=["a", "b"], workers=2, secret_env={"HF_TOKEN": SECRET})
    block.save("two", overwrite=True)
    code = f"assert (len(os.environ['HF_TOKEN']), os.environ['WORLD_SIZE']) == ({len(SECRET)}, '2')"
    train_flow(job(code), infrastructure=given(block))
    (params,) = tmp_path.glob("model/*/params.yaml")
    assert "HF_TOKEN: '**********'" in params.read_text()


# -- by itself ----------------------------------------------------------------------------------------

COUNTS = (
    "import os; print('run', os.environ['MA_SCHEDULE_CNT'], os.environ['MA_PROC_START_CNT'], flush=True)\n"
)


@pytest.fixture
def block(prefect_server: None, tmp_path: Path) -> Iterator[Callable[[str], ProcessTraining]]:
    made: list[ProcessTraining] = []

    def make(code: str) -> ProcessTraining:
        command = [sys.executable, "-S", "-c", COUNTS + code]
        made.append(ProcessTraining(command=command, model_dir=str(tmp_path / "alone"), nproc_per_worker=2))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_a_command_runs_again_where_it_was_and_on_new_workers(
    block: Callable[[str], ProcessTraining],
) -> None:
    training = block("")
    run = training.trigger()
    run.wait_for_completion()
    training.re_execute().wait_for_completion()
    training.rebuild().wait_for_completion()
    assert sorted(run.log.read_text().splitlines()) == [
        "[a1 w0 r0] run 1 1", "[a1 w0 r1] run 1 1",
        "[a2 w0 r0] run 1 2", "[a2 w0 r1] run 1 2",
        "[a3 w0 r0] run 2 1", "[a3 w0 r1] run 2 1",
    ]  # fmt: skip
    assert (run.fetch_result().attempt, run.fetch_result().succeeded) == (3, True)


def test_a_command_that_runs_is_ended_before_it_runs_again(
    block: Callable[[str], ProcessTraining], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    wait = f"import time; open({str(pids)!r} + f'/{{os.getpid()}}', 'x'); time.sleep(600)"
    training = block(wait)
    training.start()
    started = await_files(pids, 2)
    training.re_execute()
    again = await_files(pids, 4) - started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    training.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in again)


def test_what_has_been_stopped_keeps_no_pipe(block: Callable[[str], ProcessTraining]) -> None:
    training = block("pass")
    before = pipes()
    training.start().wait_for_completion()
    assert pipes() > before
    training.stop()
    assert pipes() == before


def test_what_has_been_stopped_lets_go_of_its_backend(
    block: Callable[[str], ProcessTraining], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of pods has threads that follow the cluster."""
    closed: list[ProcessBackend] = []

    def close(backend: ProcessBackend) -> None:
        closed.append(backend)

    monkeypatch.setattr(ProcessBackend, "close", close)
    training = block("pass")
    training.start().wait_for_completion()
    assert closed == []
    training.stop()
    assert len(closed) == 1


def pipes() -> set[Path]:
    return {found for each in Path("/proc/self/fd").iterdir() if (found := each.resolve()).match("pipe:*")}


def await_files(directory: Path, count: int) -> set[str]:
    import signal

    while len(found := {path.name for path in directory.iterdir()}) < count:
        signal.sigtimedwait([], 0.01)
    return found


def test_a_failure_says_what_it_was(block: Callable[[str], ProcessTraining]) -> None:
    run = block("raise ConnectionError('reset by peer')").start()
    with pytest.raises(
        RunFailedError, match="worker 0: network, exit code 1: ConnectionError: reset by peer"
    ):
        run.wait_for_completion()
    assert run.fetch_result().incident.failure_class == "network"


def test_a_rank_that_fails_at_once_has_run(
    block: Callable[[str], ProcessTraining], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start and its end are heard together; the run has begun, and says how it ended."""
    wait = Driver._wait

    def late(self: Driver, deadline_s: float | None) -> None:
        time.sleep(0.4)
        wait(self, deadline_s)

    monkeypatch.setattr(Driver, "_wait", late)
    run = block("raise ConnectionError('reset by peer')").start()
    with pytest.raises(RunFailedError, match="ConnectionError: reset by peer"):
        run.wait_for_completion()


def test_a_run_is_cancelled_from_elsewhere(block: Callable[[str], ProcessTraining], tmp_path: Path) -> None:
    run = block("import time; time.sleep(600)").start()
    with pytest.raises(TimeoutError, match=r"still runs after 0\.2 s"):
        run.wait_for_completion(timeout_s=0.2)
    import threading

    cancel = threading.Thread(target=lambda: main(["cancel", str(tmp_path / "alone")]), daemon=True)
    cancel.start()
    with pytest.raises(RunFailedError, match="cancelled"):
        run.wait_for_completion(timeout_s=60)
    run.stop()
    cancel.join(30)
    assert not cancel.is_alive()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        pytest.param(lambda block: block.re_execute(), "no command has been started", id="again-before"),
        pytest.param(lambda block: block.rebuild(), "no command has been started", id="anew-before"),
        pytest.param(lambda block: block.start().fetch_result(), "has not ended", id="result-before-the-end"),
        pytest.param(lambda block: (block.start(), block.start()), "started already", id="twice"),
    ],
)
def test_what_comes_too_early_is_refused(
    block: Callable[[str], ProcessTraining], use: Callable[[ProcessTraining], Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        use(block("import time; time.sleep(600)"))


def test_a_block_without_a_command_has_to_be_given_one() -> None:
    with pytest.raises(ConfigError, match="there is no command"):
        ProcessTraining().start()


def test_a_worker_that_has_gone_is_told(block: Callable[[str], ProcessTraining]) -> None:
    import os
    import signal

    import psutil

    training = block("import time; time.sleep(600)")
    run = training.start()
    (agent,) = [each for each in psutil.Process().children() if "agent.json" in " ".join(each.cmdline())]
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    with pytest.raises(RunFailedError, match="worker 0: in place failed"):
        run.wait_for_completion()
    with pytest.raises(BackendError, match="worker 0: its agent is gone"):
        training.re_execute()
    training.rebuild()
    assert not run.is_over
