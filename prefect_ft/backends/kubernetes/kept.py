"""The files in which a run records where it has objects in clusters. Light: loaded for every clean-up."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.files import read_json, write_json

CLUSTER = "cluster.json"
"""The file that lists in which namespaces of which clusters the run may have pods."""

CORDONS = "cordons.json"
"""The file that lists where the run may have cordoned nodes that are uncordoned at its end."""


def note_place(path: Path, infrastructure: KubernetesInfrastructure) -> None:
    """Add an infrastructure's cluster and namespace to one of these files. Idempotent."""
    place = {
        "kubeconfig": infrastructure.kubeconfig,
        "context": infrastructure.context,
        "namespace": infrastructure.namespace,
    }
    noted = read_json(path).get("places", [])
    if place not in noted:
        write_json(path, {"places": [*noted, place]})
