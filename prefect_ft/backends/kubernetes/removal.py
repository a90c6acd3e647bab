"""Removes pods: those of a phase's workers, or all that a run has left in clusters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from prefect_ft.backends.base import Worker
from prefect_ft.backends.kubernetes.cluster import Cluster
from prefect_ft.backends.kubernetes.kept import CLUSTER
from prefect_ft.backends.kubernetes.names import PhaseNames
from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.backends.kubernetes.pod_state import has_begun, has_ended, is_leaving
from prefect_ft.backends.kubernetes.request import LABELS
from prefect_ft.backends.kubernetes.watch import View, Watch, uid_of
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json

REMOVAL_GRACE_S = 1
"""How long a pod's processes may take to end; the API's least that waits for them."""

REMOVAL_TIMEOUT_S = 60.0
"""How long a ready node may take to remove a pod before it is forgotten."""

SILENT_TIMEOUT_S = 3.0
"""The same for a node that did not answer us: the cluster may still reach it, or not have noticed."""

_log = logging.getLogger(__name__)


class Removal:
    """Removes the pods of one phase; `is_silent` returns whether a system did not answer."""

    def __init__(
        self,
        cluster: Cluster,
        pods: Watch,
        nodes: Nodes,
        names: PhaseNames,
        is_silent: Callable[[str], bool],
    ) -> None:
        self._cluster, self._pods, self._nodes, self._names = cluster, pods, nodes, names
        self._is_silent = is_silent

    def remove(self, worker: Worker) -> None:
        """Remove a worker's pod and wait until nothing of it runs, unless its node is lost. Idempotent."""
        name = self._names.pod(worker)
        if (pod := self._cluster.delete_pod(name, REMOVAL_GRACE_S)) is not None:
            self._pods.note(pod)
            if not self._has_gone(worker, uid_of(pod)):
                _log.warning("pod %s is forgotten; what runs in it ends when its node is back", name)
            self._cluster.delete_pod(name, 0)  # nodes clean up once a minute, and would keep it until then
        self._cluster.delete_secret(name)

    def remove_or_report(self, worker: Worker) -> None:
        """Remove a worker's pod; log a failure."""
        try:
            self.remove(worker)
        except BackendError as exc:
            _log.warning("pod %s is left to `prefect-ft clean`: %s", self._names.pod(worker), exc)

    def _has_gone(self, worker: Worker, uid: str) -> bool:
        """Wait until nothing of a pod runs any more; False: its node does not report so."""

        def look(view: View) -> bool | None:
            pod = view.find(self._names.pod(worker), uid)
            if pod is None or has_ended(pod):
                return True
            if is_leaving(pod) and not has_begun(pod):
                return True  # and never will; its node may take a minute to report its end
            return False if self._nodes.is_cut(worker.system) else None

        timeout_s = SILENT_TIMEOUT_S if self._is_silent(worker.system) else REMOVAL_TIMEOUT_S
        return bool(self._pods.until(look, timeout_s))


def remove_pods(directory: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Remove the objects of the run of this run-time directory from clusters; report unreachable clusters."""
    for place in read_json(directory / CLUSTER).get("places", ()):
        try:
            cluster, mine = Cluster(**place), f"{LABELS.run}={directory.name}"
            names = [pod["metadata"]["name"] for pod in cluster.pods(mine)]
            for name in names:
                cluster.delete_pod(name, REMOVAL_GRACE_S)
            cluster.delete_files(mine)
        except BackendError as exc:
            say(f"pods of run {directory.name} may be left: {exc}")
