"""Finds out how a worker's pod has ended, from a watch of the phase's pods and from the cluster's events."""

from __future__ import annotations

from prefect_ft.backends.base import Worker
from prefect_ft.backends.kubernetes.cluster import Cluster
from prefect_ft.backends.kubernetes.names import PhaseNames
from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.backends.kubernetes.pod_ends import end_of
from prefect_ft.backends.kubernetes.watch import View, Watch, uid_of
from prefect_ft.errors import BackendError
from prefect_ft.model import Evidence


class PodEvidence:
    """The evidence about the pods of one phase."""

    def __init__(self, cluster: Cluster, pods: Watch, nodes: Nodes, names: PhaseNames) -> None:
        self._cluster, self._pods, self._nodes, self._names = cluster, pods, nodes, names

    def of_end(self, worker: Worker, *, within_s: float = 0) -> Evidence | None:
        """Return the evidence of the end of a worker's pod, which may come within that time.

        None: there is none. Raises BackendError where the cluster does not answer.
        """
        name, is_closed = self._names.pod(worker), self._nodes.is_closed(worker.system)

        def evidence_in(view: View) -> Evidence | None:
            return end_of(view.last(name), is_there=name in view.objects, is_node_closed=is_closed)

        ended = evidence_in(self._pods.now()) or self._pods.until(evidence_in, within_s)
        if ended is None or ended.rule != "pod-removed":
            return ended
        pod = self._pods.now().last(name)
        events = self._cluster.events(uid_of(pod)) if pod is not None else ()
        return end_of(pod, is_there=False, is_node_closed=is_closed, events=events)

    def may_run(self, worker: Worker) -> bool:
        """Whether a worker's pod is not known to have ended; True where the cluster does not answer."""
        try:
            return self.of_end(worker) is None
        except BackendError:
            return True
