"""Containers in a job file: what is taken, what is refused with its field, and where paths lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_ft.backends.docker.config import DockerInfrastructure, DockerSystem
from prefect_ft.config import JobConfig, load_job, resolved
from prefect_ft.errors import ConfigError

HEAD = "name: j\nmodel_dir: m\ninfrastructure:\n  type: docker\n"
TAIL = "phases: [{name: p, mode: eval, command: [c]}]\n"


def loaded(tmp_path: Path, text: str, tail: str = TAIL) -> JobConfig:
    path = tmp_path / "job.yaml"
    path.write_text(HEAD + "".join(f"  {line}\n" for line in text.splitlines()) + tail)
    return load_job(path)


def infrastructure(tmp_path: Path, text: str) -> DockerInfrastructure:
    found = loaded(tmp_path, "image: i\n" + text).infrastructure
    assert found.type == "docker"
    return found


def test_the_least_that_has_to_be_said(tmp_path: Path) -> None:
    assert infrastructure(tmp_path, "") == DockerInfrastructure(type="docker", image="i")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        pytest.param("shm_size: 8g", "shm_size", 8 << 30, id="gigabytes"),
        pytest.param("shm_size: 512MB", "shm_size", 512 << 20, id="as-others-write-it"),
        pytest.param("shm_size: 1000", "shm_size", 1000, id="bytes"),
        pytest.param("ulimits: {nofile: 1024}", "ulimits", {"nofile": "1024"}, id="limit"),
        pytest.param("engine: tcp://box:2376", "engine", "tcp://box:2376", id="tls"),
        pytest.param("engine: ssh://me@box:22/run/d.sock", "engine", "ssh://me@box:22/run/d.sock", id="ssh"),
        pytest.param("volumes: ['data:/data']", "volumes", ("data:/data",), id="a-volume-by-name"),
        pytest.param(
            "systems: [a, {name: b, engine: 'unix:///b.sock'}]",
            "systems",
            (DockerSystem(name="a"), DockerSystem(name="b", engine="unix:///b.sock")),
            id="engines",
        ),
    ],
)
def test_values(tmp_path: Path, text: str, field: str, value: Any) -> None:
    assert getattr(infrastructure(tmp_path, text), field) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", 'infrastructure.image: missing; write image: "my-training:latest"', id="no-image"),
        pytest.param(
            "image: 'my image'",
            "infrastructure.image: must be the name of an image, like my-training:latest, got 'my image'",
            id="no-name-of-an-image",
        ),
        pytest.param(
            "image: i\nshm_sise: 1g",
            "infrastructure.shm_sise: unknown key; did you mean 'shm_size'?",
            id="unknown-key",
        ),
        pytest.param(
            "image: i\nsystems: [{name: a, engin: x}]",
            "infrastructure.systems[0].engin: unknown key; did you mean 'engine'?",
            id="unknown-key-of-a-system",
        ),
        pytest.param(
            "image: i\nshm_size: big",
            "infrastructure.shm_size: must be bytes or a number with k, m or g, like 8g, got 'big'",
            id="no-size",
        ),
        pytest.param(
            "image: i\nengine: ssh://-oProxyCommand=x",
            "infrastructure.engine: must be an engine's address, like unix:///var/run/docker.sock, "
            "tcp://HOST:2376 or ssh://USER@HOST, got 'ssh://-oProxyCommand=x'",
            id="no-address-of-an-engine",
        ),
        pytest.param(
            "image: i\nvolumes: [data]",
            "infrastructure.volumes[0]: must be HOST:CONTAINER or HOST:CONTAINER:ro, like ./data:/data:ro, got 'data'",
            id="no-volume",
        ),
        pytest.param(
            "image: i\ndevices: [davinci0]",
            "infrastructure.devices[0]: must be a device file, like /dev/davinci0 or /dev/a:/dev/b:rw, "
            "got 'davinci0'",
            id="no-device",
        ),
        pytest.param(
            "image: i\nulimits: {nofile: many}",
            "infrastructure.ulimits.nofile: must be a number or SOFT:HARD, like 1024:65536, got 'many'",
            id="no-limit",
        ),
        pytest.param(
            "image: i\ncreate: {Cmd: [sh]}",
            "infrastructure.create.Cmd: must not be set here: image says what runs, and the agent runs it",
            id="another-command",
        ),
        pytest.param(
            "image: i\ncreate: {HostConfig: {RestartPolicy: {Name: always}}}",
            "infrastructure.create.HostConfig.RestartPolicy: must not be set: autorestart says what is brought back",
            id="another-restarter",
        ),
        pytest.param(
            "image: i\nresources: {memory: 0}",
            "infrastructure.resources.memory: must be at least 1, got 0",
            id="no-memory",
        ),
        pytest.param(
            "image: i\nworkers: 2",
            "infrastructure.workers: must be at most 1, the number of systems, got 2; name more systems",
            id="too-few-systems",
        ),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert f"{caught.value.field}: {caught.value.message}" == message


def test_paths_start_at_the_job_file(tmp_path: Path) -> None:
    job = loaded(tmp_path, "image: i\nvolumes: ['./a:/a:ro', '/b:/b', 'c:/c', '~/d:/d']")
    assert job.infrastructure.type == "docker"
    home = Path("~").expanduser()
    assert job.infrastructure.volumes == (f"{tmp_path}/a:/a:ro", "/b:/b", "c:/c", f"{home}/d:/d")
    assert job.at("/elsewhere") == job


def test_the_working_directory_is_the_images_unless_the_phase_says_so(tmp_path: Path) -> None:
    tail = "phases: [{name: p, mode: eval, command: [c]}, {name: q, mode: eval, command: [c], cwd: /app}]\n"
    job = loaded(tmp_path, "image: i", tail)
    assert [phase.cwd for phase in job.phases] == [None, "/app"]
    assert job.cwd == str(tmp_path)


def test_a_job_is_the_same_after_it_was_kept(tmp_path: Path) -> None:
    job = loaded(
        tmp_path, "image: i\nshm_size: 1g\nsystems: [a, {name: b, devices: [/dev/x]}]\ncreate: {A: [1]}"
    )
    assert JobConfig.model_validate(resolved(job)) == job


@pytest.mark.parametrize(
    ("path", "is_inside"),
    [("/data", True), ("/data/x", True), ("/database", False), ("/", False)],
)
def test_what_is_in_a_volume(tmp_path: Path, path: str, is_inside: bool) -> None:
    assert infrastructure(tmp_path, "volumes: ['d:/data:ro']").mounts(path) is is_inside


def test_more_ranks_than_containers_may_have_processes(tmp_path: Path) -> None:
    tail = "phases: [{name: p, mode: eval, command: [c], nproc_per_worker: 9}]\n"
    text = "image: i\nresources: {{pids: {}}}"
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text.format(10), tail)
    message = "must be at most 8, which resources.pids leaves beside the agent, got 9; raise that limit, or write fewer"
    assert str(caught.value) == f"{tmp_path}/job.yaml:7: phases[0].nproc_per_worker: {message}"
    loaded(tmp_path, text.format(11), tail)
