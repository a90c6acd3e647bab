"""Workers as pods of a Kubernetes cluster, each on its system's node, with its agent as PID 1.

An agent is reached through the cluster's API: a process beside it in the pod relays its socket. What belongs
to a run is known by its labels; nothing of a worker is on this machine.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_ft.backends.base import (
    OUT_OF_MEMORY,
    Address,
    AgentSettings,
    Found,
    Worker,
    exchange_side_by_side,
)
from prefect_ft.backends.cluster import Cluster, Nodes, cluster_of
from prefect_ft.backends.home import CLUSTER, SOCKET, agent_config
from prefect_ft.backends.kubernetes_request import (
    LABELS,
    PAYLOAD,
    code_map,
    code_name,
    home_in_pod,
    object_name,
    pod,
    secret,
)
from prefect_ft.backends.payload import payload_archive
from prefect_ft.config import KubernetesInfrastructure
from prefect_ft.errors import BackendError
from prefect_ft.files import read_json, write_json
from prefect_ft.model import Evidence
from prefect_ft.worker.pod import LEFT_MARK

AGENT_TIMEOUT_S = 60.0
"""How long an agent may take until it listens, once its container runs."""

REMOVAL_GRACE_S = 1
"""How long a pod's processes may take to end; the API's least that waits for them."""

REMOVAL_TIMEOUT_S = 60.0
"""How long a node that is heard of may take to remove a pod before it is forgotten."""

NOTICE_TIMEOUT_S = 5.0
"""How long a node may take to notice that a pod's first process has ended; it looks once a second."""

BREATH_S = 0.2

HOPELESS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)
"""Reasons for which a container that waits will go on waiting."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressInPod(Address):
    """Where an agent listens in a pod; `open` has the relay's words executed there."""

    open: Callable[[Sequence[str], float], socket.socket]
    relay: tuple[str, ...]

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError."""
        return self.open([*self.relay, str(self.socket_path), f"{timeout_s:g}"], timeout_s)


class KubernetesBackend:
    """`directory` is the run's run-time directory: it notes where the run may have pods."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        infrastructure: KubernetesInfrastructure,
        *,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """`files` of this machine are given to each worker, by their paths there. Raises BackendError."""
        self._settings = settings
        self._directory = directory
        self._infrastructure = infrastructure
        self._systems = {system.name: system for system in infrastructure.systems}
        self._files = dict(files or {})
        self._cluster = cluster_of(infrastructure)
        self._nodes = Nodes(self._cluster, infrastructure.system_label)

    # -- creating ---------------------------------------------------------------------------------

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        A worker that is there already, with its agent alive, stays as it is.
        """
        if not workers:
            return []
        self._note_cluster()
        payload, archive = payload_archive()
        code = code_name(self._settings.run_id, payload)
        try:
            self._cluster.create(code_map(code, self._settings.run_id, archive))
            with ThreadPoolExecutor(len(workers)) as pool:
                return list(pool.map(lambda worker: self._create(worker, code), workers))
        except BackendError:
            self.destroy(workers)
            raise

    def _create(self, worker: Worker, code: str) -> Address:
        try:
            if (there := self._living(worker)) is not None:
                return self._address(worker, there)
            self._remove(worker)  # what another life of the orchestrator may have left under this name
            for each in self._objects(worker, code):
                self._cluster.create(each)
            return self._address(worker, self._await_agent(worker))
        except BackendError as exc:
            raise BackendError(str(exc), system=worker.system) from exc

    def _objects(self, worker: Worker, code: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give a worker's secret and its pod."""
        name = self._name(worker)
        own = LABELS.of(self._settings.run_id, self._settings.phase_index, worker)
        config = json.dumps(agent_config(self._home(worker), self._settings, worker))
        files = {target: path.read_bytes() for target, path in self._files.items()}
        system = self._systems[worker.system]
        return (
            secret(name, own, config, files),
            pod(self._infrastructure, system, name, own, code=code, files=files),
        )

    def _await_agent(self, worker: Worker) -> dict[str, Any]:
        """Wait until an agent listens; give its pod, or raise BackendError with the reason why not."""
        told = self._await_pod(worker)
        words = [*self._relay(), self._socket(worker), f"{AGENT_TIMEOUT_S:g}", "wait"]
        deadline = time.monotonic() + AGENT_TIMEOUT_S
        # The agent unpacks the relay before it listens: who comes before that finds none.
        while not self._cluster.execute(self._name(worker), words, AGENT_TIMEOUT_S):
            ended = _evidence_of(self._cluster.pod(self._name(worker)))
            if ended is not None or time.monotonic() > deadline:
                raise BackendError(self._why_not(worker, ended.text if ended else "it does not listen"))
            time.sleep(BREATH_S)
        return told

    def _await_pod(self, worker: Worker) -> dict[str, Any]:
        """Wait until a worker's container runs; give its pod, or raise BackendError with the reason why not."""
        deadline = time.monotonic() + self._infrastructure.start_timeout_s
        while True:
            told = self._cluster.pod(self._name(worker))
            if told is None:
                raise BackendError("somebody has removed its pod")
            if _is_running(told):
                return told
            why = _hopeless(told)
            if why is not None or time.monotonic() > deadline:
                raise BackendError(self._why_not(worker, why or _waits_for(told)))
            time.sleep(BREATH_S)

    def _why_not(self, worker: Worker, why: str) -> str:
        words = self._cluster.log(self._name(worker)).strip()
        return f"its agent does not begin: {why}" + (f": {words}" if words else "")

    def _living(self, worker: Worker) -> dict[str, Any] | None:
        told = self._cluster.pod(self._name(worker))
        return told if told is not None and _is_running(told) and not _is_leaving(told) else None

    def _address(self, worker: Worker, told: Mapping[str, Any]) -> Address:
        name, system = self._name(worker), worker.system
        return AddressInPod(
            socket_path=Path(self._socket(worker)),
            host=told["status"].get("podIP", ""),
            open=lambda words, timeout_s: self._open(name, system, words, timeout_s),
            relay=self._relay(),
        )

    def _open(self, name: str, system: str, words: Sequence[str], timeout_s: float) -> socket.socket:
        if self._nodes.is_cut(system):
            raise ConnectionError(f"the cluster does not hear of the node of {system}")
        return self._cluster.open(name, words, timeout_s, is_cut=lambda: self._nodes.is_cut(system))

    def _relay(self) -> tuple[str, ...]:
        return self._infrastructure.python, "-I", "-S", str(PAYLOAD / "prefect_ft" / "worker" / "relay.py")

    # -- destroying -------------------------------------------------------------------------------

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove what they kept.

        Also those that another life of the orchestrator created, or whose agents have died. What is on a
        node that the cluster has lost ends when that is back, and is no worker any more at once.
        """
        if not workers:
            return
        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(self._remove_or_tell, dict.fromkeys(workers)))

    def _remove_or_tell(self, worker: Worker) -> None:
        try:
            self._remove(worker)
        except BackendError as exc:
            _log.warning("pod %s is left to `prefect-ft clean`: %s", self._name(worker), exc)

    def _remove(self, worker: Worker) -> None:
        remove_pod(self._cluster, self._name(worker), lambda: self._nodes.is_cut(worker.system))
        self._cluster.delete_secret(self._name(worker))

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy and create side by side: no rank starts in what is new before both are done."""
        return exchange_side_by_side(self, old, new)

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Give the phase's workers, those of all lives of the orchestrator, by their pods' labels.

        In the order of epoch and decision.
        """
        wanted = f"{LABELS.run}={self._settings.run_id},{LABELS.phase}={self._settings.phase_index}"
        found = [
            Found(worker=worker, address=self._address(worker, told), result=self._left(worker, told))
            for told in self._cluster.pods(wanted)
            if not _is_leaving(told) and (worker := LABELS.worker(told["metadata"]["labels"])) is not None
        ]
        return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))

    def _left(self, worker: Worker, told: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Give what an agent left behind that has left by itself: the last thing that it said."""
        if not _has_ended(told):
            return None
        said = [line for line in self._cluster.log(self._name(worker)).splitlines() if LEFT_MARK in line]
        with suppress(IndexError, ValueError):
            return dict(json.loads(said[-1].partition(LEFT_MARK)[2]))
        return None

    def answers(self, system: str) -> bool:
        """Whether the cluster hears of a system's node; where it does not answer itself, nothing is known to."""
        try:
            return self._cluster.nodes(self._infrastructure.system_label).get(system, False)
        except BackendError:
            return False

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Give what the cluster knows of how something in a worker came to its end just now.

        `is_gone`: it was the agent itself.
        """
        if is_gone and self._nodes.is_cut(worker.system):
            return Evidence(
                rule="node-lost", text=f"the cluster does not hear of the node of {worker.system}"
            )
        try:
            return _evidence_of(self._settled(worker, is_gone=is_gone))
        except BackendError as exc:
            return Evidence(rule="cluster-away", text=str(exc))

    def _settled(self, worker: Worker, *, is_gone: bool) -> dict[str, Any] | None:
        """Give what is known of a pod; `is_gone`: once its node has noticed that its agent is gone."""
        deadline = time.monotonic() + (NOTICE_TIMEOUT_S if is_gone else 0)
        while True:
            told = self._cluster.pod(self._name(worker))
            if told is None or _evidence_of(told) is not None or time.monotonic() > deadline:
                return told
            time.sleep(BREATH_S)

    # -- names ------------------------------------------------------------------------------------

    def _note_cluster(self) -> None:
        """Write down where this run may have pods, before there is one."""
        given = self._infrastructure
        place = {"kubeconfig": given.kubeconfig, "context": given.context, "namespace": given.namespace}
        noted = read_json(self._directory / CLUSTER).get("places", [])
        if place not in noted:
            write_json(self._directory / CLUSTER, {"places": [*noted, place]})

    def _home(self, worker: Worker) -> Any:
        return home_in_pod(self._settings.phase_index, worker)

    def _socket(self, worker: Worker) -> str:
        return str(self._home(worker) / SOCKET)

    def _name(self, worker: Worker) -> str:
        return object_name(self._settings.run_id, self._settings.phase_index, worker)


def _is_running(told: Mapping[str, Any]) -> bool:
    states = told["status"].get("containerStatuses", [])
    return told["status"].get("phase") == "Running" and any("running" in each["state"] for each in states)


def _has_ended(told: Mapping[str, Any]) -> bool:
    """Whether nothing of a pod runs any more."""
    return told["status"].get("phase") in ("Succeeded", "Failed")


def _is_leaving(told: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in told["metadata"]


def _hopeless(told: Mapping[str, Any]) -> str | None:
    """Say why a pod that does not run yet never will; None: it may."""
    if (ended := _evidence_of(told)) is not None:
        return ended.text
    for each in told["status"].get("containerStatuses", []):
        waiting = each["state"].get("waiting", {})
        if waiting.get("reason") in HOPELESS:
            return f"{waiting['reason']}: {waiting.get('message', 'no more is known')}"
    return None


def _waits_for(told: Mapping[str, Any]) -> str:
    """Say what a pod waits for that has had its time."""
    conditions = told["status"].get("conditions", [])
    unmet = [each["message"] for each in conditions if each["status"] == "False" and "message" in each]
    return "its pod still waits: " + (unmet[0] if unmet else "nothing is known of why")


def _evidence_of(told: Mapping[str, Any] | None) -> Evidence | None:
    """Give what a pod tells of its end; None: it tells of none."""
    if told is None:
        return Evidence(rule="pod-removed", text="somebody has removed its pod")
    status = told["status"]
    if status.get("phase") == "Failed" and "reason" in status:
        text = f"its pod has ended: {status['reason']}: {status.get('message', 'no more is known')}"
        return Evidence(rule="pod-evicted", text=text)
    if _is_leaving(told):
        return Evidence(rule="pod-removed", text="its pod is being removed, by whom is not known")
    for each in status.get("containerStatuses", []):
        ended = each["state"].get("terminated")
        if ended and ended.get("reason") == "OOMKilled":
            text = "the kernel ended a process of its container that had used up the container's memory"
            return Evidence(rule=OUT_OF_MEMORY, text=text)
        if ended:
            return Evidence(rule="pod-ended", text=f"its pod has ended with exit code {ended['exitCode']}")
    return None


def remove_pod(cluster: Cluster, name: str, is_cut: Callable[[], bool]) -> None:
    """Remove a pod and wait until nothing of it runs, unless its node is lost. Idempotent."""
    cluster.delete_pod(name, REMOVAL_GRACE_S)
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while (told := cluster.pod(name)) is not None and not _has_ended(told):
        if is_cut() or time.monotonic() > deadline:
            _log.warning("pod %s is forgotten; what runs in it ends when its node is back", name)
            break
        time.sleep(BREATH_S)
    cluster.delete_pod(name, 0)  # nodes tidy up once a minute, and would keep it until then


def remove_pods(directory: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Remove all that the run of this run-time directory has in clusters; one that is away is told."""
    for place in read_json(directory / CLUSTER).get("places", ()):
        try:
            cluster, mine = Cluster(**place), f"{LABELS.run}={directory.name}"
            names = [told["metadata"]["name"] for told in cluster.pods(mine)]
            for name in names:
                cluster.delete_pod(name, REMOVAL_GRACE_S)
            cluster.delete_files(mine)
        except BackendError as exc:
            say(f"pods of run {directory.name} may be left: {exc}")
