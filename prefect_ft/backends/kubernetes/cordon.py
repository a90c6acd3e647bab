"""Cordons the nodes of isolated systems, where the job says so: no other pods are scheduled there either.

A node is cordoned with a label that names the run and an annotation with the reason, and only nodes with the run's
label are uncordoned: one that a person has cordoned stays so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect_ft.backends.isolation import following
from prefect_ft.backends.kubernetes.cluster import Cluster, cluster_of
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.kept import CORDONS, note_place
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json
from prefect_ft.journal.records import Line
from prefect_ft.model import Decision
from prefect_ft.plaintext import as_line

BY = "prefect-ft/cordoned-by"
"""The label: the run that has cordoned a node."""

BECAUSE = "prefect-ft/cordoned-because"

TRIES = 3
"""How often to retry after a conflicting change of a node."""

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)


class Cordons:
    """The cordons of one run. `directory` is its run-time directory: it records where nodes may be cordoned."""

    def __init__(self, infrastructure: KubernetesInfrastructure, run_id: str, directory: Path) -> None:
        """Raises BackendError."""
        self._infrastructure, self._run_id, self._directory = infrastructure, run_id, directory
        self._cluster = cluster_of(infrastructure)

    @contextmanager
    def keeping(self, lines: Callable[[], Sequence[Line]], *, ends_with_the_run: bool) -> Iterator[None]:
        """Cordon while entered what a phase isolates, and first what it isolated earlier and has not used since.

        `lines` returns its journal's lines so far. Never blocks on the cluster. `ends_with_the_run`: cordons are
        lifted then.
        """
        if ends_with_the_run:
            note_place(self._directory / CORDONS, self._infrastructure)
        with following(lines, self._cordon):
            yield

    def lift(self, systems: Iterable[str]) -> set[str]:
        """Uncordon systems that this run has cordoned and uses again; return them. Raises BackendError."""
        wanted, lifted = {*systems}, set()
        for node in self._cluster.nodes(f"{BY}={self._run_id}"):
            system = node["metadata"]["labels"].get(self._infrastructure.system_label)
            if system in wanted:
                _uncordon(self._cluster, node)
                lifted.add(system)
        return lifted

    def _cordon(self, system: str, decision: Decision) -> None:
        label, why = self._infrastructure.system_label, f"{decision.rule}: {decision.reason}"
        try:
            for node in self._cluster.nodes(f"{label}={system}"):
                self._cordon_node(node["metadata"]["name"], why)
        except BackendError as exc:
            _log.warning("the node of %s is not cordoned: %s", system, exc)

    def _cordon_node(self, name: str, why: str) -> None:
        """Cordon a node unless it is already; retry where it was changed meanwhile."""
        for _ in range(TRIES):
            node = self._cluster.node(name)
            if node is None or node["spec"].get("unschedulable"):
                return
            metadata = {
                "labels": {BY: self._run_id},
                "annotations": {BECAUSE: why},
                "resourceVersion": node["metadata"]["resourceVersion"],
            }
            if self._cluster.patch_node(name, {"metadata": metadata, "spec": {"unschedulable": True}}):
                _log.warning("node %s is cordoned: %s", name, as_line(why))
                return


def lift_all(directory: Path) -> None:
    """Uncordon all nodes that the run of this run-time directory has cordoned; report unreachable clusters."""
    for place in read_json(directory / CORDONS).get("places", ()):
        try:
            cluster = Cluster(**place)
            for node in cluster.nodes(f"{BY}={directory.name}"):
                _uncordon(cluster, node)
        except BackendError as exc:
            _log.warning("nodes with the label %s=%s may still be cordoned: %s", BY, directory.name, exc)


def _uncordon(cluster: Cluster, node: Json) -> None:
    metadata = {"labels": {BY: None}, "annotations": {BECAUSE: None}}
    cluster.patch_node(node["metadata"]["name"], {"metadata": metadata, "spec": {"unschedulable": None}})
