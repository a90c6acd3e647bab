"""Workers as pods of a Kubernetes cluster, each on its system's node, with its agent as PID 1.

Owns the order of steps in which a gang is created and destroyed. A run's pods are found by their labels; nothing of a
worker is on this machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from prefect_ft.backends.base import (
    NODE_LOST,
    Address,
    AgentSettings,
    Found,
    Worker,
    exchange_side_by_side,
)
from prefect_ft.backends.direct import DirectWay
from prefect_ft.backends.kubernetes.cluster import cluster_of
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.connections import AGENT_TIMEOUT_S, Connections
from prefect_ft.backends.kubernetes.cordon import Cordons
from prefect_ft.backends.kubernetes.evidence import PodEvidence
from prefect_ft.backends.kubernetes.kept import CLUSTER, note_place
from prefect_ft.backends.kubernetes.manifests import Manifests
from prefect_ft.backends.kubernetes.names import PhaseNames
from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.backends.kubernetes.pod_gang import PodGang, cannot_begin
from prefect_ft.backends.kubernetes.pod_state import has_ended, is_leaving, is_running, trouble
from prefect_ft.backends.kubernetes.removal import Removal
from prefect_ft.backends.kubernetes.request import LABELS, code_map, code_name
from prefect_ft.backends.kubernetes.watch import Watch, uid_of
from prefect_ft.backends.payload import payload_archive
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json
from prefect_ft.model import Evidence
from prefect_ft.worker.pod import LEFT_MARK

NOTICE_TIMEOUT_S = 5.0
"""How long a node may take to notice that a pod's first process has ended; it checks once a second."""

POLL_S = 0.2

MAX_CONCURRENT = 32
"""Requests that are under way at the same time."""

Json = Mapping[str, Any]
_T = TypeVar("_T")


class KubernetesBackend:
    """`directory` is the run's run-time directory: it records where the run may have pods."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        infrastructure: KubernetesInfrastructure,
        *,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """`files` of this machine are given to each worker, by their paths there. Raises BackendError."""
        assert settings.certificates is not None
        self._run_id, self._directory, self._infrastructure = settings.run_id, directory, infrastructure
        self._names = names = PhaseNames(settings.run_id, settings.phase_index)
        self._cluster = cluster = cluster_of(infrastructure)
        self._cordons = Cordons(infrastructure, settings.run_id, directory) if infrastructure.cordon else None
        news = threading.Condition()
        self._nodes = nodes = Nodes(cluster, infrastructure.system_label, news)
        self._pods = pods = Watch(cluster.source_of_pods(names.selector), news)
        self._gang = PodGang(cluster, pods, nodes, names.pod, infrastructure.start_timeout_s)
        self._manifests = Manifests(settings, infrastructure, names, dict(files or {}), cluster.url)
        self._evidence = PodEvidence(cluster, pods, nodes, names)
        direct = DirectWay(
            settings.certificates.orchestrator(), infrastructure.agent_port, infrastructure.silence_timeout_s
        )
        self._connections = Connections(
            infrastructure, direct, cluster=cluster, nodes=nodes, evidence=self._evidence, names=names
        )
        self._removal = Removal(
            cluster, pods, nodes, names, lambda system: self._connections.silence_of(system) is not None
        )

    # -- creating ---------------------------------------------------------------------------------

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent.
        """
        if not workers:
            return []
        note_place(self._directory / CLUSTER, self._infrastructure)
        payload, archive = payload_archive()
        code = code_name(self._run_id, payload)
        try:
            self._prepare(workers, code_map(code, self._run_id, archive))
            begun = _in_parallel(lambda worker: self._begin(worker, code), workers)
            running = self._gang.await_all(dict(zip(workers, map(uid_of, begun), strict=True)))
            return _in_parallel(lambda worker: self._await_agent(worker, running[worker]), workers)
        except BackendError:
            self.destroy(workers)
            raise

    def _prepare(self, workers: Sequence[Worker], code: Json) -> None:
        """Upload the agent's code, and uncordon the systems that the run has cordoned and uses again."""
        try:
            self._cluster.create(dict(code))
            if self._cordons is not None:
                for system in self._cordons.lift(worker.system for worker in workers):
                    self._nodes.await_open(system)
        except BackendError as exc:
            raise BackendError(str(exc), on_any_system=True) from exc

    def _begin(self, worker: Worker, code: str) -> Json:
        """Create a worker's pod, unless a live one exists; return it. Raises BackendError."""
        try:
            pod = self._running_pod(worker)
            if pod is None:
                self._removal.remove(worker)  # what an earlier orchestrator may have left under this name
                for each in self._manifests.of(worker, code):
                    pod = self._cluster.create(each)
        except BackendError as exc:
            raise cannot_begin(worker, trouble(str(exc), on_any_system=True)) from exc
        if pod is None:
            raise BackendError("a pod with this name already exists", system=worker.system)
        self._pods.note(pod)
        return pod

    def _running_pod(self, worker: Worker) -> Json | None:
        pod = self._cluster.pod(self._names.pod(worker))
        return pod if pod is not None and is_running(pod) and not is_leaving(pod) else None

    def _await_agent(self, worker: Worker, pod: Json) -> Address:
        """Wait until the agent in a running pod listens; raises BackendError with the reason why not."""
        began = time.monotonic()
        try:
            while not self._connections.listens(worker, pod, time.monotonic() - began):
                ended = self._evidence.of_end(worker)
                if ended is not None or time.monotonic() > began + AGENT_TIMEOUT_S:
                    raise BackendError(self._why_not(worker, ended.text if ended else "it does not listen"))
                time.sleep(POLL_S)
        except BackendError as exc:
            raise cannot_begin(worker, trouble(str(exc))) from exc
        return self._connections.address(worker, pod)

    def _why_not(self, worker: Worker, why: str) -> str:
        words = self._cluster.log(self._names.pod(worker)).strip()
        return f"its agent does not begin: {why}" + (f": {words}" if words else "")

    # -- destroying -------------------------------------------------------------------------------

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files.

        Includes workers of earlier orchestrators, and those whose agents have died. Processes on a node that the
        cluster has lost end when it is back; they count as no worker from now on.
        """
        if workers:
            _in_parallel(self._removal.remove_or_report, list(dict.fromkeys(workers)))

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy and create concurrently: no rank starts in new workers before both are done."""
        return exchange_side_by_side(self, old, new)

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Return the phase's workers, also those of earlier orchestrators, by their pods' labels.

        In the order of epoch and decision. Records the cluster for the clean-up: an earlier orchestrator on another
        machine may have left objects there, also where no pod is left.
        """
        note_place(self._directory / CLUSTER, self._infrastructure)
        found = [
            Found(
                worker=worker, address=self._connections.address(worker, pod), result=self._left(worker, pod)
            )
            for pod in self._cluster.pods(self._names.selector)
            if not is_leaving(pod) and (worker := LABELS.worker(pod["metadata"]["labels"])) is not None
        ]
        return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))

    def _left(self, worker: Worker, pod: Json) -> Mapping[str, Any] | None:
        """Return the result of an agent that has left by itself: the last line that it printed."""
        if not has_ended(pod):
            return None
        lines = [
            line for line in self._cluster.log(self._names.pod(worker)).splitlines() if LEFT_MARK in line
        ]
        with suppress(IndexError, ValueError):
            return dict(parse_json(lines[-1].partition(LEFT_MARK)[2]))
        return None

    def answers(self, system: str) -> bool:
        """Whether a system's node is ready and answers us; False where the cluster does not answer."""
        try:
            return self._connections.silence_of(system) is None and self._nodes.answers(system)
        except BackendError:
            return False

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what the cluster knows about what just ended in a worker.

        `is_gone`: the agent itself ended. Then its node has some time to notice.
        """
        if is_gone and (lost := self._loss_of(worker.system)) is not None:
            return Evidence(rule=NODE_LOST, text=lost)
        try:
            return self._evidence.of_end(worker, within_s=NOTICE_TIMEOUT_S if is_gone else 0)
        except BackendError as exc:
            return Evidence(rule="cluster-away", text=str(exc))

    def _loss_of(self, system: str) -> str | None:
        """Return how a system's node is known to be lost; None: it is not."""
        if self._nodes.is_cut(system):
            return f"the cluster has lost contact with the node of {system}"
        return self._connections.silence_of(system)

    def close(self) -> None:
        """Stop watching the cluster. Idempotent, and the last call."""
        self._nodes.close()
        self._pods.close()


def _in_parallel(call: Callable[[Worker], _T], workers: Sequence[Worker]) -> list[_T]:
    """Call for all workers in parallel; raises the first exception once all calls are done."""
    with ThreadPoolExecutor(min(len(workers), MAX_CONCURRENT)) as pool:
        return list(pool.map(call, workers))
