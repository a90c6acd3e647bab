"""Waits until all pods of a gang run, or until one of them is known to fail: all or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prefect_ft.backends.base import Worker
from prefect_ft.backends.kubernetes.cluster import Cluster
from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.backends.kubernetes.pod_ends import end_of
from prefect_ft.backends.kubernetes.pod_state import (
    Trouble,
    has_ended,
    is_leaving,
    is_running,
    stuck,
    trouble,
    waits_for,
)
from prefect_ft.backends.kubernetes.watch import View, Watch
from prefect_ft.errors import BackendError

Json = Mapping[str, Any]


class PodGang:
    """The pods of one phase; `name_of` returns the name of a worker's pod. Removes none."""

    def __init__(
        self, cluster: Cluster, pods: Watch, nodes: Nodes, name_of: Callable[[Worker], str], timeout_s: float
    ) -> None:
        self._cluster, self._pods, self._nodes = cluster, pods, nodes
        self._name_of, self._timeout_s = name_of, timeout_s

    def await_all(self, uids: Mapping[Worker, str]) -> dict[Worker, Json]:
        """Wait until all of these run; raises BackendError as soon as one cannot, or at the time limit."""
        closed = {worker.system for worker in uids if self._nodes.is_closed(worker.system)}
        running: dict[Worker, Json] = {}

        def look(view: View) -> bool | None:
            for worker in uids.keys() - running.keys():
                pod = self._awaited_pod(view, worker, uids[worker], is_closed=worker.system in closed)
                if is_running(pod):
                    running[worker] = pod
            return True if len(running) == len(uids) else None

        if not self._pods.until(look, self._timeout_s):
            waiting = next(worker for worker in uids if worker not in running)
            late = f"{len(uids) - len(running)} of {len(uids)} pods do not run after {self._timeout_s:g} s"
            raise self._late(waiting, uids[waiting], late)
        return running

    def _awaited_pod(self, view: View, worker: Worker, uid: str, *, is_closed: bool) -> Json:
        """Return a pod that may still run, or runs; raises BackendError where it never will."""
        pod = view.find(self._name_of(worker), uid)
        if pod is None or is_leaving(pod) or has_ended(pod):
            ended = end_of(pod or view.gone.get(uid), is_there=pod is not None, is_node_closed=is_closed)
            raise cannot_begin(worker, trouble(ended.text if ended else "its pod has ended"))
        if (never := stuck(pod, is_node_closed=is_closed)) is not None:
            raise cannot_begin(worker, never)
        if not is_running(pod) and self._nodes.is_cut(worker.system):
            raise cannot_begin(worker, Trouble("the cluster does not hear of its node", on_any_system=False))
        return pod

    def _late(self, worker: Worker, uid: str, late: str) -> BackendError:
        """Return the error for the first worker that is missing at the time limit, with what its pod waits for."""
        try:
            pod = self._pods.now().find(self._name_of(worker), uid)
        except BackendError as exc:
            return cannot_begin(worker, Trouble(f"{late}: {exc}", on_any_system=True))
        why = waits_for(pod or {"status": {}}, self._cluster.events(uid))
        return cannot_begin(worker, why._replace(text=f"{late}: {why.text}"))


def cannot_begin(worker: Worker, why: Trouble) -> BackendError:
    """Return the error for a worker that cannot be created."""
    text = f"worker {worker.number} on {worker.system}: {why.text}"
    return BackendError(text, system=worker.system, on_any_system=why.on_any_system)
