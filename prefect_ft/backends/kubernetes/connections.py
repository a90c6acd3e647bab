"""Connections to the agents in a phase's pods: at the pods' own addresses, or through the cluster's API.

Through the API a process beside the agent in the pod relays the agent's socket.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_ft.backends.base import Address, RouteUnavailableError, Worker
from prefect_ft.backends.direct import DirectWay, NoAnswerError
from prefect_ft.backends.kubernetes.cluster import Cluster
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.evidence import PodEvidence
from prefect_ft.backends.kubernetes.names import PhaseNames
from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.backends.kubernetes.reach import Guard, Reach
from prefect_ft.backends.kubernetes.request import PAYLOAD

AGENT_TIMEOUT_S = 60.0
"""How long an agent may take until it listens, once its container runs."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressInPod(Address):
    """The address of an agent in a pod; `open` connects to it by the route in use."""

    open: Callable[[float], socket.socket]

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError."""
        return self.open(timeout_s)


class Connections:
    """Connects to agents; remembers at which systems nothing answered."""

    def __init__(
        self,
        infrastructure: KubernetesInfrastructure,
        direct: DirectWay,
        *,
        cluster: Cluster,
        nodes: Nodes,
        evidence: PodEvidence,
        names: PhaseNames,
    ) -> None:
        self._python, self._direct, self._cluster = infrastructure.python, direct, cluster
        self._nodes, self._evidence, self._names = nodes, evidence, names
        self._reach = Reach(infrastructure.reach)
        self._guard = Guard(nodes.is_cut)
        self._silent: dict[str, str] = {}
        """Systems at which nothing answered, and the error; the cluster may notice later."""

    def address(self, worker: Worker, pod: Json) -> Address:
        """Return the address of the agent in a worker's pod."""
        host = _host(pod)
        return AddressInPod(
            socket_path=Path(self._names.socket(worker)),
            host=host,
            open=lambda timeout_s: self._open(worker, host, timeout_s),
        )

    def listens(self, worker: Worker, pod: Json, waited_s: float) -> bool:
        """Whether a starting agent accepts connections by now; `waited_s` is how long it has been waited for."""
        host = _host(pod)
        return self._reach.listens(
            lambda: self._connect(worker, host), lambda: self._listens_in_pod(worker), waited_s
        )

    def silence_of(self, system: str) -> str | None:
        """Return the error with which nothing answered on a system the last time; None: something did."""
        return self._silent.get(system)

    def _listens_in_pod(self, worker: Worker) -> bool:
        """Ask in a pod whether its agent listens; before its code is unpacked, the answer is no."""
        words = [*self._relay(worker, AGENT_TIMEOUT_S), "wait"]
        return self._cluster.execute(self._names.pod(worker), words, AGENT_TIMEOUT_S)

    def _open(self, worker: Worker, host: str, timeout_s: float) -> socket.socket:
        if self._nodes.is_cut(worker.system):
            raise ConnectionError(f"the cluster has lost contact with the node of {worker.system}")
        try:
            connection = self._reach.connect(
                lambda: self._guard.watch(self._connect(worker, host), worker.system),
                lambda: self._open_by_api(worker, timeout_s),
            )
        except NoAnswerError as exc:
            if self._evidence.may_run(worker):  # else the pod is gone, and the node is not silent
                self._silent[worker.system] = str(exc)
            raise
        self._silent.pop(worker.system, None)
        return connection

    def _connect(self, worker: Worker, host: str) -> socket.socket:
        return self._direct.connect(host, self._names.place(worker))

    def _open_by_api(self, worker: Worker, timeout_s: float) -> socket.socket:
        words, system = self._relay(worker, timeout_s), worker.system
        try:
            return self._cluster.open(
                self._names.pod(worker), words, timeout_s, is_cut=lambda: self._nodes.is_cut(system)
            )
        except OSError as exc:
            if self._evidence.may_run(worker) and not self._nodes.is_cut(system):
                raise RouteUnavailableError(str(exc)) from exc
            raise

    def _relay(self, worker: Worker, timeout_s: float) -> list[str]:
        """Return the command that relays an agent's socket, in its pod."""
        relay = PAYLOAD / "prefect_ft" / "worker" / "relay.py"
        return [self._python, "-I", "-S", str(relay), self._names.socket(worker), f"{timeout_s:g}"]


def _host(pod: Json) -> str:
    return str(pod["status"].get("podIP", ""))
