"""A whole request of ModelArts' is a job: what has a counterpart is used, and each other field is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_ft.config import Document, JobConfig, job_document, job_in, resolved, validate
from prefect_ft.config.yaml_text import Place
from prefect_ft.errors import ConfigError

RETRY = "fault-tolerance/job-retry-num"
REQUEST: dict[str, Any] = {
    "kind": "job",
    "metadata": {
        "name": "resnet",
        "description": "a test",
        "workspace_id": "0",
        "annotations": {RETRY: "8", "tensorboard/enable": "true", "job_template": "Template RL"},
    },
    "algorithm": {
        "code_dir": "obs://bucket/code/",
        "boot_file": "obs://bucket/code/src/train.py",
        "engine": {"engine_name": "PyTorch", "engine_version": "2.1"},
        "parameters": [{"name": "lr", "value": "0.1"}, {"name": "epochs", "value": 3}],
        "inputs": [
            {"name": "data_url", "remote": {"obs": {"obs_url": "/bucket/data/"}}, "local_dir": "/data"},
            {"name": "more_url", "remote": {"obs": {"obs_url": "/bucket/more/"}}},
        ],
        "outputs": [{"name": "train_url", "remote": {"obs": {"obs_url": "/bucket/out/"}}}],
        "environments": {"LOG_LEVEL": "debug"},
    },
    "spec": {
        "resource": {"flavor_id": "modelarts.vm.npu.4snt9b", "node_count": 2, "pool_id": "pool1"},
        "log_export_path": {"obs_url": "/bucket/log/"},
    },
    "endpoints": {"ssh": {"key_pair_names": ["key"]}},
}
WITHOUT_HEAL = (
    "a faulty device takes its system out of use, unless infrastructure.heal is a command that resets it"
)
NOT_FETCHED = "is not fetched from OBS"
NOTHING = "has no effect: there is no counterpart"


def written(folder: Path, request: dict[str, Any]) -> Path:
    file = folder / "request.json"
    file.write_text(json.dumps(request, indent=2))
    return file


def read(
    folder: Path, request: dict[str, Any], command: str | None = None
) -> tuple[JobConfig, tuple[str, ...]]:
    file = written(folder, request)
    document = job_document(file, command=command)
    return job_in(document, file), document.warnings


def changed(section: str, **fields: Any) -> dict[str, Any]:
    return {**REQUEST, section: {**REQUEST[section], **fields}}


def algorithm(**fields: Any) -> dict[str, Any]:
    """Return a request with one algorithm, and a node."""
    return {"metadata": {"name": "j", "annotations": {}}, "algorithm": fields}


def error_of(folder: Path, request: dict[str, Any], command: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, request, command)
    return str(caught.value).replace(f"{folder}/", "")


def test_what_a_request_asks_for(tmp_path: Path) -> None:
    job, _ = read(tmp_path, REQUEST)
    output = str(tmp_path / "runs/resnet/outputs/train_url")
    (phase,) = job.phases
    assert (job.name, job.model_dir) == ("resnet", str(tmp_path / "runs/resnet"))
    assert phase.command == (
        "python",
        "src/train.py",
        "--lr=0.1",
        "--epochs=3",
        "--data_url=/data",
        f"--train_url={output}",
    )
    assert phase.checkpoints is not None
    assert phase.checkpoints.path == output
    assert job.env == {"LOG_LEVEL": "debug"}
    assert [system.name for system in job.infrastructure.systems] == ["node-0", "node-1"]
    assert job.infrastructure.workers == 2
    assert (job.policy(0).max_num_restarts, job.policy(0).rebuild_only) == (8, True)


def test_what_of_it_is_not_used_is_said_field_by_field(tmp_path: Path) -> None:
    _, warnings = read(tmp_path, REQUEST)
    output = tmp_path / "runs/resnet/outputs/train_url"
    assert warnings == (
        f"metadata.annotations.tensorboard/enable: {NOTHING}",
        f"metadata.annotations.job_template: {NOTHING}",
        f"endpoints: {NOTHING}",
        f"metadata.description: {NOTHING}",
        f"metadata.workspace_id: {NOTHING}",
        f"spec.log_export_path: {NOTHING}",
        "spec.resource.flavor_id: only says whose fault codes are known; name systems in infrastructure",
        f"spec.resource.pool_id: {NOTHING}",
        "spec.resource.node_count: is 2 workers on this machine; name systems in infrastructure",
        f"algorithm.engine: {NOTHING}",
        f"algorithm.outputs[0]: is not written to OBS; the script is handed {output}",
        "algorithm.inputs[0]: is not fetched from OBS; the script is handed /data",
        f"algorithm.inputs[1]: {NOT_FETCHED}; write local_dir, where it is, for the script to be handed more_url",
        "algorithm.code_dir: is not fetched from OBS; what it holds is looked for where the command runs",
    )


@pytest.mark.parametrize(
    "name", ["job_template", "jupyter-lab/enable", "tensorboard/enable", "mindstudio-insight/enable"]
)
def test_annotations_about_something_else_are_named(name: str, tmp_path: Path) -> None:
    _, warnings = read(tmp_path, {"metadata": {"annotations": {name: "true"}}}, "python train.py")
    assert warnings == (f"metadata.annotations.{name}: {NOTHING}",)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(REQUEST, "ascend", id="npu"),
        pytest.param(
            changed("spec", resource={"flavor_id": "modelarts.bm.gpu.8v100NV32"}), "nvidia", id="gpu"
        ),
        pytest.param({**algorithm(command="c"), "metadata": REQUEST["metadata"]}, "ascend", id="unsaid"),
    ],
)
def test_auto_restart_includes_in_place_recovery(
    request_: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    job, _ = read(tmp_path, request_)
    assert (job.faults.logs, job.faults.preset, job.faults.detect) == (True, expected, "auto")


def test_that_devices_elsewhere_are_not_healed_is_said(tmp_path: Path) -> None:
    pool = {"type": "docker", "image": "i", "systems": ["s0", "s1"]}
    _, warnings = read(tmp_path, {**REQUEST, "infrastructure": pool})
    assert f"metadata.annotations.{RETRY}: {WITHOUT_HEAL}" in warnings


def test_faults_and_healing_that_are_written_are_kept(tmp_path: Path) -> None:
    pool = {"systems": ["s0", "s1", "s2"], "heal": ["./reset.sh"]}
    job, warnings = read(tmp_path, {**REQUEST, "faults": {"file": "f"}, "infrastructure": pool})
    assert (job.faults.logs, job.faults.file) == (False, str(tmp_path / "f"))
    assert (job.infrastructure.workers, job.infrastructure.heal) == (2, ("./reset.sh",))
    assert not [each for each in warnings if RETRY in each or "node_count" in each]


def test_without_auto_restart_no_faults_are_looked_for(tmp_path: Path) -> None:
    job, _ = read(tmp_path, changed("metadata", annotations={}))
    assert (job.faults.logs, job.faults.preset, job.autorestart) == (False, None, None)


@pytest.mark.parametrize(
    ("fields", "command", "expected"),
    [
        pytest.param({"boot_file": "train.py"}, None, ("python", "train.py"), id="a-file-beside"),
        pytest.param(
            {"code_dir": "/bucket/code", "boot_file": "/bucket/code/a/t.py"}, None, ("python", "a/t.py"), id="below"
        ),
        pytest.param(
            {"code_dir": "/bucket/code/", "boot_file": "/other/t.py"}, None, ("python", "t.py"), id="elsewhere"
        ),
        pytest.param({"command": "cd x && ./run"}, None, ("sh", "-c", "cd x && ./run"), id="of-a-shell"),
        pytest.param(
            {"command": "./run", "parameters": [{"name": "lr", "value": 0.5}]},
            None,
            ("sh", "-c", './run "$@"', "sh", "--lr=0.5"),
            id="of-a-shell-with-arguments",
        ),
        pytest.param(
            {"boot_file": "t.py", "parameters": [{"name": "amp", "value": True}]},
            "python mine.py",
            ("python", "mine.py", "--amp=true"),
            id="of-the-command-line",
        ),
    ],
)  # fmt: skip
def test_what_starts_the_training(
    fields: dict[str, Any], command: str | None, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, algorithm(**fields), command)[0].phases[0].command == expected


def test_inputs_and_outputs_in_the_environment(tmp_path: Path) -> None:
    request = algorithm(
        boot_file="t.py",
        inputs=[{"name": "data_url", "local_dir": "/data", "access_method": "env"}],
        outputs=[{"name": "train_url", "local_dir": "/out", "access_method": "env"}],
    )
    job, _ = read(tmp_path, {**request, "env": {"data_url": "/mine"}})
    assert job.env == {"data_url": "/mine", "train_url": "/out"}
    assert job.phases[0].command == ("python", "t.py")
    assert job.phases[0].checkpoints is not None
    assert job.phases[0].checkpoints.path == "/out"


def test_what_stands_beside_a_request_wins(tmp_path: Path) -> None:
    beside = {
        "name": "mine",
        "model_dir": "m",
        "command": ["c"],
        "checkpoints": {"path": "k"},
        "infrastructure": {"systems": ["a", "b", "c"], "workers": 3},
        "nproc_per_worker": 4,
    }
    job, warnings = read(tmp_path, {**REQUEST, **beside})
    (phase,) = job.phases
    assert (job.name, job.model_dir, job.infrastructure.workers) == ("mine", str(tmp_path / "m"), 3)
    assert (phase.command[0], phase.nproc_per_worker) == ("c", 4)
    assert phase.checkpoints is not None
    assert phase.checkpoints.path == str(tmp_path / "k")
    assert {
        "metadata.name: has no effect beside name",
        "algorithm.boot_file: has no effect beside command",
        "spec.resource.node_count: has no effect beside infrastructure.workers",
    } <= set(warnings)


def test_a_request_that_does_not_say_where_it_saves(tmp_path: Path) -> None:
    job, warnings = read(tmp_path, {"metadata": {"annotations": {RETRY: "3"}}}, "python train.py")
    assert job.phases[0].checkpoints is not None
    assert job.phases[0].checkpoints.path == str(tmp_path / "runs/request/checkpoints")
    assert warnings[-1] == (
        "checkpoints: missing, and there are no outputs; checkpoints are looked for in runs/request/checkpoints"
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(
            {"metadata": {"annotations": {}}},
            'command: missing; write command: ["python", "train.py"]',
            id="no-command",
        ),
        pytest.param(
            {**REQUEST, "phases": []},
            "algorithm: cannot be combined with phases; keep one of the two",
            id="phases",
        ),
        pytest.param(
            {**REQUEST, "tasks": [{}]},
            "tasks: is not supported; describe each task in a job of its own",
            id="tasks",
        ),
        pytest.param(
            {"algorithm": 3}, "algorithm: must be a mapping of keys to values, got 3", id="algorithm"
        ),
        pytest.param({"spec": 3}, "spec: must be a mapping of keys to values, got 3", id="spec"),
        pytest.param(
            changed("spec", resource={"node_count": 0}),
            "spec.resource.node_count: must be a whole number from 1, got 0",
            id="no-node",
        ),
        pytest.param(
            changed("spec", resource={"node_count": 5000}),
            "spec.resource.node_count: must be at most 4096, the number of systems, got 5000; name more systems",
            id="too-many-nodes",
        ),
        pytest.param(
            algorithm(boot_file=3),
            "algorithm.boot_file: must be text, got 3",
            id="a-boot-file-that-is-a-number",
        ),
        pytest.param(
            algorithm(boot_file="t", parameters=3),
            "algorithm.parameters: must be a list, like [{name: …}], got 3",
            id="parameters-that-are-none",
        ),
        pytest.param(
            algorithm(boot_file="t", parameters=[{"value": 1}]),
            "algorithm.parameters[0].name: must be text, got nothing",
            id="a-parameter-without-name",
        ),
        pytest.param(
            algorithm(boot_file="t", parameters=[{"name": "a", "value": [1]}]),
            "algorithm.parameters[0].value: must be text or a number, got a list",
            id="a-parameter-that-is-a-list",
        ),
        pytest.param(
            changed("metadata", nam="x"), "metadata.nam: unknown key; did you mean 'name'?", id="a-typo"
        ),
        pytest.param(
            changed("metadata", name="two words"),
            "metadata.name: must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, got 'two words'",
            id="a-name-that-cannot-be-used",
        ),
        pytest.param(
            changed("algorithm", environments={"A": {}}),
            "algorithm.environments.A: must be text, got a mapping",
            id="an-environment-that-is-none",
        ),
    ],
)
def test_requests_that_cannot_be_used(request_: dict[str, Any], expected: str, tmp_path: Path) -> None:
    said = error_of(tmp_path, request_)
    assert said.removeprefix("request.json:").lstrip("0123456789: ") == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
ITEMS = VALUES | st.lists(
    st.fixed_dictionaries({"name": st.just("n") | VALUES}, optional={"value": VALUES, "local_dir": VALUES}),
    max_size=2,
)
ALGORITHMS = st.fixed_dictionaries(
    {},
    optional={
        "boot_file": st.just("t.py") | VALUES,
        "command": VALUES,
        "code_dir": VALUES,
        "parameters": ITEMS,
        "inputs": ITEMS,
        "outputs": ITEMS,
        "environments": VALUES,
    },
)
REQUESTS = st.fixed_dictionaries(
    {"metadata": VALUES | st.just(REQUEST["metadata"])},
    optional={
        "name": VALUES,
        "model_dir": VALUES,
        "command": VALUES,
        "algorithm": VALUES | ALGORITHMS,
        "spec": VALUES
        | st.fixed_dictionaries({"resource": st.fixed_dictionaries({"node_count": st.just(2) | VALUES}) | VALUES}),
        "infrastructure": VALUES,
        "env": VALUES,
        "tasks": VALUES,
        "endpoints": VALUES,
    },
)  # fmt: skip


def assert_one_line(error: ConfigError) -> None:
    assert len(str(error).splitlines()) == 1


@settings(max_examples=200, deadline=None, database=None)
@given(REQUESTS)
def test_whatever_is_written_there_is_a_job_or_one_line(value: dict[str, Any]) -> None:
    try:
        job = validate(Document(value, {(): Place("job.yaml", 1)}))
    except ConfigError as error:
        assert_one_line(error)
    else:
        assert JobConfig.model_validate(resolved(job)) == job
