"""Engines by TCP with TLS and by SSH: nothing is mounted, and a run is what it is on this machine's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deaths import journals, of_type
from engine import IMAGE
from eventual import eventually
from ports import free_port

from prefect_ft import JobConfig, train_flow
from prefect_ft.backends.docker.engine import connect
from tests.conftest import need

SCRIPT = """
import os, time, prefect_ft
attempt, worker = int(os.environ["PREFECT_FT_ATTEMPT"]), int(os.environ["PREFECT_FT_WORKER"])
print("on", os.environ["PREFECT_FT_SYSTEM"], os.environ["MA_SCHEDULE_CNT"], os.environ["MA_PROC_START_CNT"])
print(open(os.environ["PREFECT_FT_PARAMS"]).read())
if attempt == 1: raise ConnectionError("reset")
if attempt == 2: time.sleep(60 if worker else 0); raise ConnectionError("reset again")
"""


@pytest.fixture(scope="module")
def sshd(docker_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real sshd on loopback, whose user is this one; the URL of the engine by it."""
    need("sshd", shutil.which("sshd") is not None and os.getuid() == 0, "Debian's openssh-server, as root")
    home = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)], check=True)
    shutil.copy(home / "user.pub", home / "authorized")
    port = free_port()
    (home / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {home}/host\nAuthorizedKeysFile {home}/authorized\n"
        "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
    )
    (home / "ssh_config").write_text(
        f"IdentityFile {home}/user\nIdentitiesOnly yes\nUserKnownHostsFile {home}/known\n"
        "StrictHostKeyChecking accept-new\n"
    )
    (home / "bin").mkdir()
    own = home / "bin" / "ssh"  # ssh reads its settings from the user's real home, whatever HOME says
    own.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {home}/ssh_config "$@"\n')
    own.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    command = [str(shutil.which("sshd")), "-D", "-e", "-f", str(home / "sshd_config")]
    with (home / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as server:
        os.environ["PATH"] = f"{home / 'bin'}:{os.environ['PATH']}"
        while not listens(port):
            assert server.poll() is None, (home / "log").read_text()
        yield f"ssh://127.0.0.1:{port}{docker_engine.removeprefix('unix://')}"
        os.environ["PATH"] = os.environ["PATH"].partition(":")[2]
        server.kill()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def job(directory: Path, engine: str, here: str) -> JobConfig:
    document: dict[str, Any] = {
        "name": "far",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": {
            "type": "docker", "image": IMAGE, "workers": 2,
            "systems": [{"name": "far", "engine": engine}, {"name": "near", "engine": here}],
        },
        "autorestart": {"max_num_restarts": 3},
        "phases": [
            {
                "name": "train", "mode": "eval", "command": ["python", "-S", "-u", "-c", SCRIPT],
                "params": {"learning_rate": 0.5},
            }
        ],
    }  # fmt: skip
    return JobConfig.model_validate(document).at(directory)


def assert_restarted(directory: Path) -> None:
    """In place, then with new containers: on both systems, and with what was copied there."""
    lines = journals(directory / "model")["train"]
    assert [line["action"] for line in of_type(lines, "decision")] == [
        "restart_in_place",
        "rebuild",
        "complete",
    ]
    counts = [attempt["start_counts"] for attempt in of_type(lines, "attempt")]
    assert counts == [[[1, 1], [1, 1]], [[1, 2], [1, 2]], [[2, 1], [2, 1]]]
    (log,) = directory.glob("model/*/run.log")
    said = log.read_text().splitlines()
    assert {"[a3 w0 r0] on far 2 1", "[a3 w1 r1] on near 2 1", "[a3 w0 r0] learning_rate: 0.5"} <= set(said)


def nothing_left(engine: str) -> bool:
    with closing(connect(engine)) as client:
        return eventually(lambda: client.containers(all=True, filters={"label": "prefect-ft.run"}), []) == []


Far = Callable[[], str]


def test_a_gang_on_an_engine_by_tls_and_on_one_here(
    docker_engine: str, docker_engine_tls: str, tmp_path: Path
) -> None:
    train_flow(job(tmp_path, docker_engine_tls, docker_engine))
    assert_restarted(tmp_path)
    assert nothing_left(docker_engine)


@pytest.mark.long
def test_a_gang_on_an_engine_by_ssh_and_on_one_here(docker_engine: str, sshd: str, tmp_path: Path) -> None:
    train_flow(job(tmp_path, sshd, docker_engine))
    assert_restarted(tmp_path)
    assert nothing_left(docker_engine)


def test_who_may_not_log_in_is_told_what_ssh_says(sshd: str) -> None:
    from prefect_ft.errors import BackendError

    with pytest.raises(
        BackendError, match=r"no Docker engine answers at ssh://nobody@.* \(ssh: .*Permission denied"
    ):
        connect(sshd.replace("ssh://", "ssh://nobody@"))
