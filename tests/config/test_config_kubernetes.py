"""Pods in a job file: what is taken, what is refused with its field, and where paths lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure, KubernetesSystem
from prefect_ft.backends.kubernetes.fields import PodVolume, Toleration
from prefect_ft.config import JobConfig, load_job
from prefect_ft.errors import ConfigError

HEAD = "name: j\nmodel_dir: m\ninfrastructure:\n  type: kubernetes\n"
TAIL = "phases: [{name: p, mode: eval, command: [c]}]\n"
LEAST = "image: i\nsystems: [n1]\n"


def loaded(tmp_path: Path, text: str) -> JobConfig:
    path = tmp_path / "job.yaml"
    path.write_text(HEAD + "".join(f"  {line}\n" for line in text.splitlines()) + TAIL)
    return load_job(path)


def infrastructure(tmp_path: Path, text: str) -> KubernetesInfrastructure:
    found = loaded(tmp_path, LEAST + text).infrastructure
    assert found.type == "kubernetes"
    return found


def test_the_least_that_has_to_be_said(tmp_path: Path) -> None:
    expected = KubernetesInfrastructure(type="kubernetes", image="i", systems=(KubernetesSystem(name="n1"),))
    assert infrastructure(tmp_path, "") == expected


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        pytest.param("shm_size: 8g", "shm_size", 8 << 30, id="shared-memory"),
        pytest.param(
            "volumes: [{path: /ck, claim: training}]",
            "volumes",
            (PodVolume(path="/ck", claim="training"),),
            id="claim",
        ),
        pytest.param(
            "tolerations: [{key: gpu, toleration_s: 30}]",
            "tolerations",
            (Toleration(key="gpu", toleration_s=30),),
            id="toleration",
        ),
        pytest.param("namespace: training", "namespace", "training", id="namespace"),
        pytest.param("labels: {example.com/team: nlp}", "labels", {"example.com/team": "nlp"}, id="label"),
        pytest.param(
            "pod: {spec: {hostNetwork: true}}", "pod", {"spec": {"hostNetwork": True}}, id="more-of-the-pod"
        ),
    ],
)
def test_values(tmp_path: Path, text: str, field: str, value: Any) -> None:
    assert getattr(infrastructure(tmp_path, text), field) == value


def test_a_kubeconfig_is_found_from_the_job_files_directory(tmp_path: Path) -> None:
    assert infrastructure(tmp_path, "kubeconfig: k/config").kubeconfig == f"{tmp_path}/k/config"
    assert infrastructure(tmp_path, "").kubeconfig is None


OWNED = "must not be set here: a field of its own says it, or it is the agent's"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "systems: [n1]",
            'infrastructure.image: missing; write image: "registry.example.com/my-training:1"',
            id="no-image",
        ),
        pytest.param(
            "image: i",
            'infrastructure.systems: missing; write systems: ["node-0", "node-1"]',
            id="no-systems",
        ),
        pytest.param(
            "image: i\nsystems: [-n]",
            "infrastructure.systems[0].name: must be the value of a label: 1 to 63 of A-Z a-z 0-9 - _ ., got '-n'",
            id="no-value-of-a-label",
        ),
        pytest.param(
            LEAST + "namespase: a",
            "infrastructure.namespase: unknown key; did you mean 'namespace'?",
            id="unknown-key",
        ),
        pytest.param(
            LEAST + "namespace: My_Space",
            "infrastructure.namespace: must be the name of a namespace: 1 to 63 of a-z 0-9 -, got 'My_Space'",
            id="no-namespace",
        ),
        pytest.param(
            LEAST + "volumes: [{path: /d}]",
            "infrastructure.volumes[0]: must have exactly one of claim, host_path, config_map, secret, got none; "
            "like claim: training",
            id="a-volume-of-nothing",
        ),
        pytest.param(
            LEAST + "volumes: [{path: /d, claim: a, secret: b}]",
            "infrastructure.volumes[0]: must have exactly one of claim, host_path, config_map, secret, got claim "
            "and secret; like claim: training",
            id="a-volume-of-two-things",
        ),
        pytest.param(
            LEAST + "volumes: [{path: data, claim: a}]",
            "infrastructure.volumes[0].path: must be a path of the pod that begins with /, like /data, got 'data'",
            id="no-path-of-the-pod",
        ),
        pytest.param(
            LEAST + "resources: {limits: {memory: 64 GB}}",
            "infrastructure.resources.limits.memory: must be a quantity, like 4, 500m or 64Gi, got '64 GB'",
            id="no-quantity",
        ),
        pytest.param(
            LEAST + "tolerations: [{key: gpu, operator: Equal}]",
            "infrastructure.tolerations[0].operator: needs key and value with operator Equal; write both, or "
            "operator: Exists",
            id="equal-to-what",
        ),
        pytest.param(
            LEAST + "tolerations: [{key: gpu, value: yes-please}]",
            "infrastructure.tolerations[0].value: is ignored with operator Exists; write operator: Equal",
            id="a-value-for-nothing",
        ),
        pytest.param(
            LEAST + "labels: {prefect-ft/run: mine}",
            "infrastructure.labels.prefect-ft/run: must not be set here: it marks the owner of a pod",
            id="a-label-of-ours",
        ),
        pytest.param(
            LEAST + "pod: {spec: {restartPolicy: Always}}",
            f"infrastructure.pod.spec.restartPolicy: {OWNED}",
            id="another-restarter",
        ),
        pytest.param(
            LEAST + "container: {command: [sh]}",
            f"infrastructure.container.command: {OWNED}",
            id="another-command",
        ),
        pytest.param(
            LEAST + "start_timeout_s: 0",
            "infrastructure.start_timeout_s: must be above 0, got 0",
            id="no-time-to-start",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert str(refused.value).partition(": ")[2] == message


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/ck", True), ("/ck/run/1", True), ("/checkpoints", False), ("/", False)],
)
def test_paths_of_pods(tmp_path: Path, path: str, expected: bool) -> None:
    assert infrastructure(tmp_path, "volumes: [{path: /ck, claim: c}]").mounts(path) is expected
