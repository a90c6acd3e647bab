"""Builds the objects of a worker in a cluster: a pod, its secret, the agent's code. Pure: sends nothing.

Names are those of the Kubernetes API, version 1. Everything that the agent needs is set here and nowhere else; the
user's additions under `pod` and `container` are merged in last.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from prefect_ft.backends.base import Worker, place_of
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure, KubernetesSystem
from prefect_ft.backends.kubernetes.fields import PodVolume, Toleration
from prefect_ft.backends.labels import Labels, name_of
from prefect_ft.config import given_in
from prefect_ft.worker.pod import CONFIG_VARIABLE

LABELS = Labels("prefect-ft/")

CONTAINER = "worker"
ARCHIVE = "payload.tar.gz"
CONFIG = "agent.json"

PLACE = PurePosixPath("/prefect-ft")
"""The worker's own directory in its pod, empty at the beginning."""

PAYLOAD = PLACE / "payload"
CODE = PurePosixPath("/prefect-ft-code")
"""Where the agent's code is mounted."""

BEGIN = (
    "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2]); sys.path.insert(0, sys.argv[2]); "
    "from prefect_ft.worker.pod import main; sys.exit(main())"
)
"""The program of the image's Python: it unpacks the agent and becomes it."""

NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints that the cluster puts on lost nodes."""

Object = dict[str, Any]

_PULL = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}


def object_name(run_id: str, phase_index: int, worker: Worker) -> str:
    """Return the unique name of a worker's pod and secret."""
    return name_of(run_id, phase_index, worker).lower()


def code_name(run_id: str, payload: str) -> str:
    """Return the name of the config map that holds the agent's code for a run."""
    return f"prefect-ft-{run_id}-{payload}".lower()


def home_in_pod(phase_index: int, worker: Worker) -> PurePosixPath:
    """Return the agent's directory in its pod."""
    return PLACE / place_of(phase_index, worker)


def code_map(name: str, run_id: str, archive: bytes) -> Object:
    """Build the config map of the agent's code, which all workers of a run share."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {LABELS.run: run_id}},
        "binaryData": {ARCHIVE: _base64(archive)},
    }


def secret(name: str, own: Mapping[str, str], config: str, files: Mapping[str, bytes]) -> Object:
    """Build a worker's secret: its agent's configuration, and `files`, by their paths in the pod."""
    contents = {CONFIG: config.encode(), **{_key(index): each for index, each in enumerate(files.values())}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "labels": dict(own)},
        "data": {key: _base64(content) for key, content in contents.items()},
    }


def pod(
    infrastructure: KubernetesInfrastructure,
    system: KubernetesSystem,
    name: str,
    own: Mapping[str, str],
    *,
    code: str,
    files: Mapping[str, bytes],
) -> Object:
    """Build a worker's pod; `name` is its secret's too, and `code` its config map's."""
    whole = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _without_unset(
            {
                "name": name,
                "labels": {**infrastructure.labels, **own},
                "annotations": dict(infrastructure.annotations),
            }
        ),
        "spec": _spec(infrastructure, system, name, code=code, files=files),
    }
    merged: Object = merge_patch(whole, infrastructure.pod)
    return merged


def _spec(
    infrastructure: KubernetesInfrastructure,
    system: KubernetesSystem,
    name: str,
    *,
    code: str,
    files: Mapping[str, bytes],
) -> Object:
    own_account = infrastructure.service_account
    spec = {
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": _on(infrastructure.system_label, system.name)},
        "terminationGracePeriodSeconds": infrastructure.termination_grace_s,
        "tolerations": [*map(_toleration, infrastructure.tolerations), *_stays(infrastructure.tolerations)],
        "imagePullSecrets": [{"name": each} for each in infrastructure.pull_secrets],
        "serviceAccountName": own_account,
        "automountServiceAccountToken": own_account is not None,
        "enableServiceLinks": False,
        "priorityClassName": infrastructure.priority_class,
        "volumes": [
            {"name": "prefect-ft", "emptyDir": {}},
            {"name": "prefect-ft-code", "configMap": {"name": code}},
            *_shared_memory(infrastructure.shm_size),
            *(_volume(index, each) for index, each in enumerate(infrastructure.volumes)),
            *_given(name, files),
        ],
        "containers": [
            merge_patch(_container(infrastructure, system, name, files), infrastructure.container)
        ],
    }
    return _without_unset(spec)


def _container(
    infrastructure: KubernetesInfrastructure,
    system: KubernetesSystem,
    name: str,
    files: Mapping[str, bytes],
) -> Object:
    env = given_in({**infrastructure.env, **system.env})
    words = [str(CODE / ARCHIVE), str(PAYLOAD)]
    return _without_unset(
        {
            "name": CONTAINER,
            "image": infrastructure.image,
            "imagePullPolicy": _PULL[infrastructure.pull],
            "command": [infrastructure.python, "-I", "-S", "-W", "ignore", "-c", BEGIN, *words],
            "env": [
                *({"name": variable, "value": value} for variable, value in env.items()),
                {"name": CONFIG_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": CONFIG}}},
            ],
            # With the nodes' network a pod waits until its port is free.
            "ports": [{"name": "agent", "containerPort": infrastructure.agent_port}],
            "resources": _without_unset(
                {
                    "requests": dict(infrastructure.resources.requests),
                    "limits": dict(infrastructure.resources.limits),
                }
            ),
            "securityContext": {"allowPrivilegeEscalation": False},
            "volumeMounts": [
                {"name": "prefect-ft", "mountPath": str(PLACE)},
                {"name": "prefect-ft-code", "mountPath": str(CODE), "readOnly": True},
                *([{"name": "shm", "mountPath": "/dev/shm"}] if infrastructure.shm_size else []),  # noqa: S108
                *(_mount(index, each) for index, each in enumerate(infrastructure.volumes)),
                *(_file_mount(index, path) for index, path in enumerate(files)),
            ],
        }
    )


def _given(name: str, files: Mapping[str, bytes]) -> list[Object]:
    """Return the volume of a worker's files, without its agent's configuration."""
    items = [{"key": _key(index), "path": _key(index)} for index in range(len(files))]
    return [{"name": "prefect-ft-given", "secret": {"secretName": name, "items": items}}] if items else []


def _on(label: str, system: str) -> Object:
    """Return the affinity to a system's node: an isolated node never gets another worker."""
    wanted = {"key": label, "operator": "In", "values": [system]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _toleration(given: Toleration) -> Object:
    return _without_unset(
        {
            "key": given.key,
            "operator": given.operator,
            "value": given.value,
            "effect": given.effect,
            "tolerationSeconds": given.toleration_s,
        }
    )


def _stays(given: Sequence[Toleration]) -> list[Object]:
    """Return tolerations that keep the cluster from evicting pods of lost nodes: the run decides when one is lost.

    Without them the cluster evicts after five minutes, even while the agent is connected.
    """
    tolerated = {each.key for each in given}
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute"}
        for key in NODE_TAINTS
        if key not in tolerated and None not in tolerated
    ]


def _shared_memory(size: int | None) -> list[Object]:
    if size is None:
        return []
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}]


def _volume(index: int, given: PodVolume) -> Object:
    sources = {
        "persistentVolumeClaim": given.claim and {"claimName": given.claim},
        "hostPath": given.host_path and {"path": given.host_path},
        "configMap": given.config_map and {"name": given.config_map},
        "secret": given.secret and {"secretName": given.secret},
    }
    return _without_unset({"name": f"volume-{index}", **sources})


def _mount(index: int, given: PodVolume) -> Object:
    mount = {"name": f"volume-{index}", "mountPath": given.path, "subPath": given.sub_path}
    return _without_unset({**mount, "readOnly": given.read_only or None})


def _file_mount(index: int, path: str) -> Object:
    return {"name": "prefect-ft-given", "mountPath": path, "subPath": _key(index), "readOnly": True}


def _key(index: int) -> str:
    return f"file-{index}"


def merge_patch(whole: Any, patch: Any) -> Any:
    """Return `whole` as a JSON merge patch (RFC 7386) changes it."""
    if not isinstance(patch, Mapping):
        return patch
    changed = dict(whole) if isinstance(whole, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = merge_patch(changed.get(name), value)
    return changed


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _without_unset(given: Object) -> Object:
    """Leave out unset fields: the cluster's defaults apply."""
    return {name: value for name, value in given.items() if value is not None and value not in ([], {})}
