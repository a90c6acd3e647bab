"""Checks of a cluster before a run begins: its nodes, and a dry run of the first worker's pod."""

from __future__ import annotations

from prefect_ft.backends.base import Worker
from prefect_ft.backends.kubernetes.cluster import cluster_of
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.request import LABELS, object_name, pod
from prefect_ft.errors import BackendError, ConfigError

_PROBE = "check"
"""The id in place of a run's, which does not exist yet."""


def check_cluster(infrastructure: KubernetesInfrastructure, field: str) -> None:
    """Raise ConfigError for the first reason why no worker could be created.

    `field` is the infrastructure's own. Nothing is created, and no image is pulled: nodes do that later.
    """
    try:
        cluster = cluster_of(infrastructure)
        label = infrastructure.system_label
        nodes = {node["metadata"]["labels"][label] for node in cluster.nodes(label)}
    except BackendError as exc:
        raise ConfigError(str(exc), field=f"{field}.kubeconfig") from exc
    for index, system in enumerate(infrastructure.systems):
        if system.name not in nodes:
            message = f"no node of {cluster.url} has the label {label}={system.name}"
            some = ", ".join(sorted(nodes)[:5]) or "no node has that label: give another system_label"
            raise ConfigError(f"{message}; there are {some}", field=f"{field}.systems[{index}]")
    first = infrastructure.systems[0]
    worker = Worker(number=0, system=first.name, epoch=0, decision=0)
    name = object_name(_PROBE, 0, worker)
    try:
        cluster.create(
            pod(infrastructure, first, name, LABELS.of(_PROBE, 0, worker), code=name, files={}), dry_run=True
        )
    except BackendError as exc:
        raise ConfigError(f"no worker can be created: {exc}", field=field) from exc
