"""The objects that are sent to a cluster, whole: what a worker is there, and what it may do."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from typing import Any

import pytest

from prefect_ft.backends.base import Worker
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.request import (
    BEGIN,
    code_map,
    code_name,
    home_in_pod,
    merge_patch,
    object_name,
    pod,
    secret,
)
from prefect_ft.backends.payload import payload_archive

WORKER = Worker(number=1, system="n1", epoch=3, decision=2)
LABELS = {
    "prefect-ft/run": "run-1",
    "prefect-ft/phase": "0",
    "prefect-ft/worker": "1",
    "prefect-ft/system": "n1",
    "prefect-ft/token": "3.2",
}


def built(
    *, system: dict[str, Any] | None = None, files: dict[str, bytes] | None = None, **fields: Any
) -> Any:
    infrastructure = KubernetesInfrastructure.model_validate(
        {"type": "kubernetes", "image": "torch:2", "systems": [{"name": "n1", **(system or {})}], **fields}
    )
    return pod(infrastructure, infrastructure.systems[0], "w", LABELS, code="c", files=files or {})


CONFIG_ENTRY = {
    "name": "PREFECT_FT_AGENT",
    "valueFrom": {"secretKeyRef": {"name": "w", "key": "agent.json"}},
}
CONTAINER = {
    "name": "worker",
    "image": "torch:2",
    "imagePullPolicy": "IfNotPresent",
    "command": [
        *("python3", "-I", "-S", "-W", "ignore", "-c", BEGIN),
        *("/prefect-ft-code/payload.tar.gz", "/prefect-ft/payload"),
    ],
    "env": [CONFIG_ENTRY],
    "ports": [{"name": "agent", "containerPort": 17733}],
    "securityContext": {"allowPrivilegeEscalation": False},
    "volumeMounts": [
        {"name": "prefect-ft", "mountPath": "/prefect-ft"},
        {"name": "prefect-ft-code", "mountPath": "/prefect-ft-code", "readOnly": True},
    ],
}
STAYS = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
]
SPEC = {
    "restartPolicy": "Never",
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
                        ]
                    }
                ]
            }
        }
    },
    "terminationGracePeriodSeconds": 30,
    "tolerations": STAYS,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "volumes": [
        {"name": "prefect-ft", "emptyDir": {}},
        {"name": "prefect-ft-code", "configMap": {"name": "c"}},
    ],
    "containers": [CONTAINER],
}
PLAIN = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "labels": LABELS}, "spec": SPEC}


def spec(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, "spec": {**SPEC, **fields}}


def container(**fields: Any) -> dict[str, Any]:
    return spec(containers=[{**CONTAINER, **fields}])


def with_volume(volume: dict[str, Any], mount: dict[str, Any]) -> dict[str, Any]:
    mounts = [*CONTAINER["volumeMounts"], mount]  # type: ignore[misc]
    volumes = [*SPEC["volumes"], volume]  # type: ignore[misc]
    return spec(volumes=volumes, containers=[{**CONTAINER, "volumeMounts": mounts}])


ANYWHERE = {"system_label": "example.com/rack", "namespace": "training"}
ELSEWHERE = merge_patch(
    SPEC["affinity"],
    {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "example.com/rack", "operator": "In", "values": ["n1"]}]}
                ]
            }
        }
    },
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, PLAIN, id="plain"),
        pytest.param(ANYWHERE, spec(affinity=ELSEWHERE), id="the-label-by-which-nodes-are-systems"),
        pytest.param(
            {"env": {"A": "all", "B": "b"}, "system": {"env": {"A": "own"}}},
            container(env=[{"name": "A", "value": "own"}, {"name": "B", "value": "b"}, CONFIG_ENTRY]),
            id="the-systems-environment-wins",
        ),
        pytest.param(
            {"env": {"A": "all", "B": "b"}, "system": {"env": {"A": None, "C": None}}},
            container(env=[{"name": "B", "value": "b"}, CONFIG_ENTRY]),
            id="what-a-system-unsets",
        ),
        pytest.param({"pull": "always"}, container(imagePullPolicy="Always"), id="pull-always"),
        pytest.param({"pull": "never"}, container(imagePullPolicy="Never"), id="pull-never"),
        pytest.param(
            {"python": "/opt/bin/python"},
            container(command=["/opt/bin/python", *CONTAINER["command"][1:]]),
            id="interpreter",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": 8}}},
            container(resources={"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "8"}}),
            id="resources",
        ),
        pytest.param(
            {"shm_size": "8g"},
            with_volume(
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(8 << 30)}},
                {"name": "shm", "mountPath": "/dev/shm"},
            ),
            id="shared-memory",
        ),
        pytest.param(
            {"volumes": [{"path": "/ck", "claim": "training", "sub_path": "a"}]},
            with_volume(
                {"name": "volume-0", "persistentVolumeClaim": {"claimName": "training"}},
                {"name": "volume-0", "mountPath": "/ck", "subPath": "a"},
            ),
            id="claim",
        ),
        pytest.param(
            {"volumes": [{"path": "/d", "host_path": "/data", "read_only": True}]},
            with_volume(
                {"name": "volume-0", "hostPath": {"path": "/data"}},
                {"name": "volume-0", "mountPath": "/d", "readOnly": True},
            ),
            id="directory-of-the-node",
        ),
        pytest.param(
            {"volumes": [{"path": "/d", "config_map": "c"}]},
            with_volume(
                {"name": "volume-0", "configMap": {"name": "c"}}, {"name": "volume-0", "mountPath": "/d"}
            ),
            id="config-map",
        ),
        pytest.param(
            {"volumes": [{"path": "/d", "secret": "s"}]},
            with_volume(
                {"name": "volume-0", "secret": {"secretName": "s"}}, {"name": "volume-0", "mountPath": "/d"}
            ),
            id="secret",
        ),
        pytest.param(
            {
                "tolerations": [
                    {"key": "gpu"},
                    {"key": "t", "operator": "Equal", "value": "v", "toleration_s": 5},
                ]
            },
            spec(
                tolerations=[
                    {"key": "gpu", "operator": "Exists"},
                    {"key": "t", "operator": "Equal", "value": "v", "tolerationSeconds": 5},
                    *STAYS,
                ]
            ),
            id="tolerations",
        ),
        pytest.param(
            {
                "tolerations": [
                    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "toleration_s": 60}
                ]
            },
            spec(
                tolerations=[
                    {
                        "key": "node.kubernetes.io/unreachable",
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": 60,
                    },
                    STAYS[0],
                ]
            ),
            id="a-toleration-of-lost-nodes-of-the-users-own",
        ),
        pytest.param(
            {"tolerations": [{}]}, spec(tolerations=[{"operator": "Exists"}]), id="every-taint-is-tolerated"
        ),
        pytest.param(
            {"termination_grace_s": 120},
            spec(terminationGracePeriodSeconds=120),
            id="time-to-save-before-a-drain",
        ),
        pytest.param(
            {"service_account": "trainer"},
            spec(serviceAccountName="trainer", automountServiceAccountToken=True),
            id="account",
        ),
        pytest.param(
            {"pull_secrets": ["registry"], "priority_class": "high"},
            spec(imagePullSecrets=[{"name": "registry"}], priorityClassName="high"),
            id="pull-secret-and-priority",
        ),
        pytest.param(
            {"labels": {"team": "nlp"}, "annotations": {"note": "any text"}},
            {
                **PLAIN,
                "metadata": {
                    "name": "w",
                    "labels": {"team": "nlp", **LABELS},
                    "annotations": {"note": "any text"},
                },
            },
            id="labels-and-annotations",
        ),
        pytest.param(
            {"pod": {"spec": {"hostNetwork": True, "enableServiceLinks": None}}},
            {
                **PLAIN,
                "spec": {**{k: v for k, v in SPEC.items() if k != "enableServiceLinks"}, "hostNetwork": True},
            },
            id="more-of-the-pod",
        ),
        pytest.param(
            {"container": {"securityContext": {"runAsUser": 7}, "imagePullPolicy": None}},
            spec(
                containers=[
                    {
                        **{name: value for name, value in CONTAINER.items() if name != "imagePullPolicy"},
                        "securityContext": {"allowPrivilegeEscalation": False, "runAsUser": 7},
                    }
                ]
            ),
            id="more-of-the-container",
        ),
        pytest.param(
            {"files": {"/m/params.yaml": b"a: 1"}},
            with_volume(
                {
                    "name": "prefect-ft-given",
                    "secret": {"secretName": "w", "items": [{"key": "file-0", "path": "file-0"}]},
                },
                {
                    "name": "prefect-ft-given",
                    "mountPath": "/m/params.yaml",
                    "subPath": "file-0",
                    "readOnly": True,
                },
            ),
            id="files-of-this-machine",
        ),
    ],
)
def test_pods(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert built(**fields) == expected


def test_a_secret_holds_what_an_agent_is_told_and_the_files_that_it_is_given() -> None:
    made = secret("w", LABELS, '{"key": "k"}', {"/m/params.yaml": b"a: 1"})
    assert made == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": "w", "labels": LABELS},
        "data": {
            "agent.json": base64.b64encode(b'{"key": "k"}').decode(),
            "file-0": base64.b64encode(b"a: 1").decode(),
        },
    }


def test_the_agents_code_fits_into_a_config_map() -> None:
    """One may have 1 MiB, as it is sent."""
    name, archive = payload_archive()
    made = code_map(code_name("run-1", name), "run-1", archive)
    assert made["metadata"] == {"name": f"prefect-ft-run-1-{name}", "labels": {"prefect-ft/run": "run-1"}}
    assert len(json.dumps(made)) < 1 << 20
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(made["binaryData"]["payload.tar.gz"]))) as files:
        assert "prefect_ft/worker/pod.py" in files.getnames()


def test_the_same_code_is_packed_the_same() -> None:
    assert payload_archive() == payload_archive()


def test_names_and_places() -> None:
    assert object_name("20261121-Ab", 0, WORKER) == "prefect-ft-20261121-ab-0-1-3-2"
    assert str(home_in_pod(0, WORKER)) == "/prefect-ft/0-1-3-2"


@pytest.mark.parametrize(
    ("whole", "patch", "expected"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="mappings-are-merged"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null-takes-away"),
        pytest.param({"a": [1]}, {"a": [2]}, {"a": [2]}, id="lists-are-replaced"),
        pytest.param(
            {"a": 1}, {"a": {"b": 1, "c": None}}, {"a": {"b": 1}}, id="a-mapping-takes-a-values-place"
        ),
        pytest.param({}, {"a": {"b": None}}, {"a": {}}, id="nothing-to-take-away"),
    ],
)
def test_merge_patches(whole: Any, patch: Any, expected: Any) -> None:
    before = json.dumps(whole)
    assert merge_patch(whole, patch) == expected
    assert json.dumps(whole) == before
