"""Whose end takes the agents along, told from what the kernel and the schedulers say."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import AgentClient, settings

from prefect_ft.backends.base import Worker
from prefect_ft.backends.process import scope
from prefect_ft.backends.process.backend import ProcessBackend

CGROUPS = {
    "a-login": ("0::/user.slice/user-1000.slice/session-3.scope\n", {}, None),
    "a-desktop": ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-term.scope\n", {}, None),
    "none": ("", {}, None),
    "root": ("0::/\n", {}, None),
    "a-service": ("0::/system.slice/prefect-worker.service\n", {}, "the systemd unit prefect-worker.service"),
    "a-service-of-a-user": (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n", {},
        "the systemd unit train.service",
    ),
    "version-1": ("3:cpu:/\n1:name=systemd:/system.slice/w.service\n", {}, "the systemd unit w.service"),
    "slurm": ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", {"SLURM_STEP_ID": "0"}, "the Slurm step"),
    "slurm-version-1": ("4:memory:/slurm/uid_1000/job_7/step_batch\n", {}, "the Slurm step"),
    "pod": ("0::/kubepods.slice/kubepods-burstable.slice/x\n", {}, "the pod"),
    "pod-with-a-namespace-of-its-own": ("0::/\n", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "the pod"),
    "docker": ("0::/docker/0123456789abcdef\n", {}, "the container"),
    "docker-by-systemd": ("0::/system.slice/docker-0123456789abcdef.scope\n", {}, "the container"),
}  # fmt: skip


@pytest.mark.parametrize(("cgroup", "env", "expected"), CGROUPS.values(), ids=CGROUPS)
def test_whose_end_is_everythings_end(cgroup: str, env: dict[str, str], expected: str | None) -> None:
    assert scope.shared_fate(cgroup, env) == expected


@pytest.fixture
def in_a_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process as a service's, and a directory that is first on the path."""
    scope._scope.cache_clear()
    monkeypatch.setattr(scope, "_own_cgroup", lambda: "0::/system.slice/w.service\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    yield tmp_path
    scope._scope.cache_clear()


def systemd_run(directory: Path, text: str) -> None:
    program = directory / "systemd-run"
    program.write_text(f"#!/bin/sh\n{text}")
    program.chmod(0o755)


def test_in_a_unit_agents_get_a_scope_of_their_own(in_a_unit: Path, runtime_dir: Path) -> None:
    systemd_run(
        in_a_unit, f'echo "$@" >> {in_a_unit}/calls\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"'
    )
    backend = ProcessBackend(settings(), runtime_dir, {})
    worker = Worker(number=0, system="s0", epoch=1, decision=0)
    try:
        (address,) = backend.create([worker])
        client = AgentClient(address)
        assert client.attach()["ev"] == "attached"
        client.close()
    finally:
        backend.destroy([worker])
    calls = (in_a_unit / "calls").read_text().splitlines()
    assert [("--scope" in call, "agent.json" in call) for call in calls] == [(True, False), (True, True)]
    assert scope.own_shared_fate() is None


def test_where_systemd_makes_none_the_unit_is_named(in_a_unit: Path) -> None:
    systemd_run(in_a_unit, "exit 1")
    assert (scope.agent_prefix(), scope.own_shared_fate()) == ((), "the systemd unit w.service")
