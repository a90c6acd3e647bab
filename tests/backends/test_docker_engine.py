"""What an engine or an image lacks is said before anything starts, one plain line each."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from engine import IMAGE, Engine, make_certificates

from prefect_ft.backends.docker import engine
from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.config import JobConfig
from prefect_ft.errors import BackendError, ConfigError
from prefect_ft.orchestrate.preflight import check_engines


def job(engine_url: str | None, **fields: Any) -> JobConfig:
    document = {
        "name": "test",
        "model_dir": "model",
        "infrastructure": {"type": "docker", "image": IMAGE, "engine": engine_url, **fields},
        "phases": [{"name": "train", "command": ["true"]}],
    }
    return JobConfig.model_validate(document)


def refusal(engine_url: str | None, **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(ConfigError) as caught:
        check_engines(job(engine_url, **fields))
    return caught.value.field, caught.value.message


def test_an_engine_that_has_the_image_will_do(docker_engine: str) -> None:
    check_engines(job(docker_engine))
    with closing(engine.connect(docker_engine)) as client:
        assert client.containers(all=True, filters={"label": "prefect-ft.probe"}) == []


def test_an_engine_that_could_run_nothing_just_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = engine.Interpreter("python3", 0, 0)
    answers = iter([None, None, found])
    monkeypatch.setattr(engine, "connect", lambda _: nullcontext())
    monkeypatch.setattr(engine, "image_id", lambda *_: "sha256:of-this-test")
    monkeypatch.setattr(engine, "closing", lambda client: client)
    monkeypatch.setattr(engine, "_probe_interpreter", lambda *_: next(answers))
    infrastructure = DockerInfrastructure(type="docker", image=IMAGE)
    with pytest.raises(BackendError, match=f"image {IMAGE} has no Python"):
        engine.interpreter(None, "unix:///e.sock", infrastructure)
    assert engine.interpreter(None, "unix:///e.sock", infrastructure) == found


def test_no_engine(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/docker.sock"
    assert refusal(url) == (
        "infrastructure.engine",
        f"no Docker engine answers at {url} (No such file or directory): start it, or give another one's `engine`",
    )


def test_the_first_engine_that_is_away_is_named(docker_engine: str, tmp_path: Path) -> None:
    systems = ["s0", {"name": "s1", "engine": f"unix://{tmp_path}/docker.sock"}]
    field, _ = refusal(docker_engine, systems=systems)
    assert field == "infrastructure.systems[1].engine"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param(
            "http://gpu-box", "DOCKER_HOST is http://gpu-box: write unix://PATH, tcp://HOST:PORT or ssh://USER@HOST",
            id="no-such-way",
        ),
        pytest.param(
            "tcp://gpu-box:2376",
            "tcp://gpu-box:2376 needs TLS, and {0} has no ca.pem: set DOCKER_CERT_PATH to a directory with "
            "ca.pem, cert.pem, key.pem",
            id="no-certificates",
        ),
    ],
)  # fmt: skip
def test_what_an_engine_elsewhere_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, message: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", url)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    assert refusal(None) == ("infrastructure.engine", message.format(tmp_path))


def test_an_engine_that_was_signed_by_somebody_else_is_not_believed(
    docker_engine_tls: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "other")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "other"))
    _, message = refusal(docker_engine_tls)
    assert "CERTIFICATE_VERIFY_FAILED" in message


def as_nobody(call: Callable[[], object]) -> str:
    """Return what a call says as a user without rights."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            call()
        except BackendError as exc:
            said = str(exc)
        finally:
            os.write(write_end, said.encode())
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as reader:
        return reader.read()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights")
def test_no_permission(docker_engine: str) -> None:
    path = docker_engine.removeprefix("unix://")
    said = as_nobody(lambda: engine.connect(docker_engine))
    assert said == f"no permission for {path}: add this user to the group that owns it, or run as who may"


@pytest.fixture
def old_engine(runtime_dir: Path) -> Iterator[str]:
    """What an engine of long ago says of itself; there is no real one to be had."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"ApiVersion": "1.40", "Version": "19.03.15"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

        def address_string(self) -> str:
            return "unix"

    path = str(runtime_dir / "old.sock")
    with socketserver.UnixStreamServer(path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"unix://{path}"
        server.shutdown()
        thread.join()


def test_an_engine_that_is_too_old(old_engine: str) -> None:
    assert refusal(old_engine) == (
        "infrastructure.engine",
        f"the engine at {old_engine} speaks API 1.40: 1.41 is needed, Docker 20.10 or newer",
    )


def test_an_image_that_is_not_there(docker_engine: str) -> None:
    field, message = refusal(docker_engine, image="no-such/image:1", pull="never")
    assert (field, message) == (
        "infrastructure.image",
        f"image no-such/image:1 is not on the engine at {docker_engine}, and `pull: never` forbids to get it",
    )


def test_an_image_that_nobody_gives(docker_engine: str) -> None:
    """No registry answers at that address."""
    field, message = refusal(docker_engine, image="127.0.0.1:9/no-such/image:1")
    assert field == "infrastructure.image"
    assert message.startswith(
        f"image 127.0.0.1:9/no-such/image:1 is not on the engine at {docker_engine}, and cannot be pulled: "
    )


@pytest.fixture
def image_of(docker_engine: str) -> Iterator[Callable[..., str]]:
    """Make images from the tests' own by some changes."""
    made = []

    def make(*changes: str) -> str:
        with closing(Engine(Path(docker_engine.removeprefix("unix://")).parent).client()) as client:
            name = f"prefect-ft/changed:{len(made)}"
            container = client.create_container_from_config({"Image": IMAGE, "Cmd": ["true"]}, None)["Id"]
            client.commit(container, *name.split(":"), changes="\n".join(changes))
            client.remove_container(container)
        made.append(name)
        return name

    yield make
    with closing(engine.connect(docker_engine)) as client:
        for name in made:
            client.remove_image(name, force=True)


def test_an_image_without_python(docker_engine: str, image_of: Callable[..., str]) -> None:
    image = image_of("ENV PATH=/nowhere")
    assert refusal(docker_engine, image=image) == (
        "infrastructure.image",
        (
            f"image {image} has no Python 3.9 or newer on its PATH as python3 or python: "
            "the agent in the container needs one"
        ),
    )


def test_a_user_that_the_image_does_not_know(docker_engine: str) -> None:
    field, message = refusal(docker_engine, user="somebody-else")
    assert field == "infrastructure.image"
    assert "unable to find user somebody-else" in message
