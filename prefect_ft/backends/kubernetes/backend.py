"""Workers as pods of a Kubernetes cluster, each on its system's node, with its agent as PID 1.

An agent is reached at its pod's address, or through the cluster's API, where a process beside it in the pod
relays its socket. What belongs to a run is known by its labels; nothing of a worker is on this machine.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prefect_ft.backends.base import (
    NODE_LOST,
    Address,
    AgentSettings,
    Found,
    RouteUnavailableError,
    Worker,
    exchange_side_by_side,
    place_of,
)
from prefect_ft.backends.direct import DirectWay, NoAnswerError, addresses_of
from prefect_ft.backends.home import SOCKET, agent_config
from prefect_ft.backends.kubernetes.cluster import Cluster, cluster_of
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.cordon import Cordons
from prefect_ft.backends.kubernetes.kept import CLUSTER
from prefect_ft.backends.kubernetes.nodes import Nodes
from prefect_ft.backends.kubernetes.pod_ends import end_of
from prefect_ft.backends.kubernetes.pod_gang import PodGang, cannot_begin
from prefect_ft.backends.kubernetes.pod_state import has_begun, has_ended, is_leaving, is_running, trouble
from prefect_ft.backends.kubernetes.reach import Guard, Reach
from prefect_ft.backends.kubernetes.request import (
    LABELS,
    PAYLOAD,
    code_map,
    code_name,
    home_in_pod,
    object_name,
    pod,
    secret,
)
from prefect_ft.backends.kubernetes.watch import View, Watch, uid_of
from prefect_ft.backends.payload import payload_archive
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json, read_json, write_json
from prefect_ft.model import Evidence
from prefect_ft.worker.pod import LEFT_MARK

AGENT_TIMEOUT_S = 60.0
"""How long an agent may take until it listens, once its container runs."""

REMOVAL_GRACE_S = 1
"""How long a pod's processes may take to end; the API's least that waits for them."""

LAST_WORDS_S = 3.0
"""How long an agent may take of a pod's last time to end its ranks."""

REMOVAL_TIMEOUT_S = 60.0
"""How long a node that is heard of may take to remove a pod before it is forgotten."""

SILENT_TIMEOUT_S = 3.0
"""The same for a node that did not answer us: the cluster may hear of it, or not have noticed."""

NOTICE_TIMEOUT_S = 5.0
"""How long a node may take to notice that a pod's first process has ended; it looks once a second."""

BREATH_S = 0.2

MOST_AT_ONCE = 32
"""Requests that are under way at the same time."""

Json = Mapping[str, Any]
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressInPod(Address):
    """Where an agent listens in a pod; `open` connects to it by the way that is known to lead there."""

    open: Callable[[float], socket.socket]

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError."""
        return self.open(timeout_s)


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
        assert settings.certificates is not None
        self._settings = settings
        self._directory = directory
        self._infrastructure = infrastructure
        self._systems = {system.name: system for system in infrastructure.systems}
        self._files = dict(files or {})
        self._cordons = Cordons(infrastructure, settings.run_id, directory) if infrastructure.cordon else None
        self._cluster = cluster_of(infrastructure)
        news = threading.Condition()
        self._nodes = Nodes(self._cluster, infrastructure.system_label, news)
        self._pods = Watch(self._cluster.source_of_pods(self._selector), news)
        self._gang = PodGang(
            self._cluster, self._pods, self._nodes, self._name, infrastructure.start_timeout_s
        )
        self._reach = Reach(infrastructure.reach)
        self._direct = DirectWay(
            settings.certificates.orchestrator(), infrastructure.agent_port, infrastructure.silence_timeout_s
        )
        self._guard = Guard(self._nodes.is_cut)
        self._silent: dict[str, str] = {}
        """Systems at which nothing answered, and how that was seen; the cluster may find out later."""

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
            self._prepare(workers, code_map(code, self._settings.run_id, archive))
            pods = _each(lambda worker: self._begin(worker, code), workers)
            told = self._gang.await_all(dict(zip(workers, map(uid_of, pods), strict=True)))
            return _each(lambda worker: self._await_agent(worker, told[worker]), workers)
        except BackendError:
            self.destroy(workers)
            raise

    def _prepare(self, workers: Sequence[Worker], code: Json) -> None:
        """Have the agent's code there, and uncordon the systems that the run has cordoned and uses again."""
        try:
            self._cluster.create(dict(code))
            if self._cordons is not None:
                for system in self._cordons.lift(worker.system for worker in workers):
                    self._nodes.await_open(system)
        except BackendError as exc:
            raise BackendError(str(exc), on_any_system=True) from exc

    def _begin(self, worker: Worker, code: str) -> Json:
        """Have a worker's pod made, if it is not there; return it. Raises BackendError."""
        try:
            told = self._living(worker)
            if told is None:
                self._remove(worker)  # what another life of the orchestrator may have left under this name
                for each in self._objects(worker, code):
                    told = self._cluster.create(each)
        except BackendError as exc:
            raise cannot_begin(worker, trouble(str(exc), on_any_system=True)) from exc
        if told is None:
            raise BackendError("a pod with this name already exists", system=worker.system)
        self._pods.note(told)
        return told

    def _objects(self, worker: Worker, code: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a worker's secret and its pod."""
        name = self._name(worker)
        own = LABELS.of(self._settings.run_id, self._settings.phase_index, worker)
        told = agent_config(
            self._home(worker),
            self._settings,
            worker,
            network=self._network(worker),
            notice_s=self._notice_s(),
        )
        config = json.dumps(told)
        files = {target: path.read_bytes() for target, path in self._files.items()}
        system = self._systems[worker.system]
        return (
            secret(name, own, config, files),
            pod(self._infrastructure, system, name, own, code=code, files=files),
        )

    def _notice_s(self) -> float:
        """Return how long ranks may run on and save after an eviction: so much less that they can be ended too."""
        return max(1.0, self._infrastructure.termination_grace_s - LAST_WORDS_S)

    def _network(self, worker: Worker) -> dict[str, Any]:
        """Return the network part of an agent's configuration: how it listens, and which others it watches."""
        given, certificates = self._infrastructure, self._settings.certificates
        assert certificates is not None
        shown = certificates.worker(self._place(worker))
        return {
            "port": given.agent_port,
            "identity": {"own": shown.own, "trusts": shown.trusts},
            "silence_timeout_s": given.silence_timeout_s,
            "partition_timeout_s": given.partition_timeout_s,
            "api": addresses_of(self._cluster.url),
        }

    def _await_agent(self, worker: Worker, told: Json) -> Address:
        """Wait until an agent listens whose pod runs; raises BackendError with the reason why not."""
        host, began = _host(told), time.monotonic()
        try:
            while not self._reach.listens(
                lambda: self._connect(worker, host), lambda: self._is_there(worker), time.monotonic() - began
            ):
                ended = self._end(worker)
                if ended is not None or time.monotonic() > began + AGENT_TIMEOUT_S:
                    raise BackendError(self._why_not(worker, ended.text if ended else "it does not listen"))
                time.sleep(BREATH_S)
        except BackendError as exc:
            raise cannot_begin(worker, trouble(str(exc))) from exc
        return self._address(worker, told)

    def _is_there(self, worker: Worker) -> bool:
        """Ask in a pod whether its agent listens; before its code is unpacked, the answer is no."""
        words = [*self._relay(worker, AGENT_TIMEOUT_S), "wait"]
        return self._cluster.execute(self._name(worker), words, AGENT_TIMEOUT_S)

    def _why_not(self, worker: Worker, why: str) -> str:
        words = self._cluster.log(self._name(worker)).strip()
        return f"its agent does not begin: {why}" + (f": {words}" if words else "")

    def _living(self, worker: Worker) -> Json | None:
        told = self._cluster.pod(self._name(worker))
        return told if told is not None and is_running(told) and not is_leaving(told) else None

    def _address(self, worker: Worker, told: Mapping[str, Any]) -> Address:
        host = _host(told)
        return AddressInPod(
            socket_path=Path(self._socket(worker)),
            host=host,
            open=lambda timeout_s: self._open(worker, host, timeout_s),
        )

    def _open(self, worker: Worker, host: str, timeout_s: float) -> socket.socket:
        if self._nodes.is_cut(worker.system):
            raise ConnectionError(f"the cluster has lost contact with the node of {worker.system}")
        try:
            connection = self._reach.connect(
                lambda: self._guard.watch(self._connect(worker, host), worker.system),
                lambda: self._open_by_api(worker, timeout_s),
            )
        except NoAnswerError as exc:
            if self._may_be_there(worker):  # else it is no node that is silent
                self._silent[worker.system] = str(exc)
            raise
        self._silent.pop(worker.system, None)
        return connection

    def _connect(self, worker: Worker, host: str) -> socket.socket:
        return self._direct.connect(host, self._place(worker))

    def _open_by_api(self, worker: Worker, timeout_s: float) -> socket.socket:
        words, system = self._relay(worker, timeout_s), worker.system
        try:
            return self._cluster.open(
                self._name(worker), words, timeout_s, is_cut=lambda: self._nodes.is_cut(system)
            )
        except OSError as exc:
            if self._may_be_there(worker) and not self._nodes.is_cut(system):
                raise RouteUnavailableError(str(exc)) from exc
            raise

    def _may_be_there(self, worker: Worker) -> bool:
        """Whether nothing is known of the end of a worker's pod, perhaps because nothing can be known now."""
        try:
            return self._end(worker) is None
        except BackendError:
            return True

    def _relay(self, worker: Worker, timeout_s: float) -> list[str]:
        """Return the command that relays an agent's socket, in its pod."""
        relay = PAYLOAD / "prefect_ft" / "worker" / "relay.py"
        return [self._infrastructure.python, "-I", "-S", str(relay), self._socket(worker), f"{timeout_s:g}"]

    # -- destroying -------------------------------------------------------------------------------

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove what they kept.

        Also those that another life of the orchestrator created, or whose agents have died. What is on a
        node that the cluster has lost ends when that is back, and is no worker any more at once.
        """
        if not workers:
            return
        _each(self._remove_or_tell, list(dict.fromkeys(workers)))

    def _remove_or_tell(self, worker: Worker) -> None:
        try:
            self._remove(worker)
        except BackendError as exc:
            _log.warning("pod %s is left to `prefect-ft clean`: %s", self._name(worker), exc)

    def _remove(self, worker: Worker) -> None:
        """Remove a worker's pod and wait until nothing of it runs, unless its node is lost. Idempotent."""
        name = self._name(worker)
        if (told := self._cluster.delete_pod(name, REMOVAL_GRACE_S)) is not None:
            self._pods.note(told)
            if not self._has_gone(worker, uid_of(told)):
                _log.warning("pod %s is forgotten; what runs in it ends when its node is back", name)
            self._cluster.delete_pod(name, 0)  # nodes tidy up once a minute, and would keep it until then
        self._cluster.delete_secret(name)

    def _has_gone(self, worker: Worker, uid: str) -> bool:
        """Wait until nothing of a pod runs any more; False: its node does not say so."""

        def look(view: View) -> bool | None:
            told = view.find(self._name(worker), uid)
            if told is None or has_ended(told):
                return True
            if is_leaving(told) and not has_begun(told):
                return True  # and will not begin; its node may take a minute to say that it is gone
            return False if self._nodes.is_cut(worker.system) else None

        is_silent = worker.system in self._silent
        return bool(self._pods.until(look, SILENT_TIMEOUT_S if is_silent else REMOVAL_TIMEOUT_S))

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy and create side by side: no rank starts in what is new before both are done."""
        return exchange_side_by_side(self, old, new)

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Return the phase's workers, those of all lives of the orchestrator, by their pods' labels.

        In the order of epoch and decision.
        """
        found = [
            Found(worker=worker, address=self._address(worker, told), result=self._left(worker, told))
            for told in self._cluster.pods(self._selector)
            if not is_leaving(told) and (worker := LABELS.worker(told["metadata"]["labels"])) is not None
        ]
        return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))

    def _left(self, worker: Worker, told: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what an agent left behind that has left by itself: the last thing that it said."""
        if not has_ended(told):
            return None
        said = [line for line in self._cluster.log(self._name(worker)).splitlines() if LEFT_MARK in line]
        with suppress(IndexError, ValueError):
            return dict(parse_json(said[-1].partition(LEFT_MARK)[2]))
        return None

    def answers(self, system: str) -> bool:
        """Whether a system's node is heard of; where the cluster does not answer itself, nothing is known to be."""
        try:
            return system not in self._silent and self._nodes.answers(system)
        except BackendError:
            return False

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what the cluster knows of how something in a worker came to its end just now.

        `is_gone`: it was the agent itself. Then its node has some time to notice.
        """
        if is_gone and (lost := self._loss_of(worker.system)) is not None:
            return Evidence(rule=NODE_LOST, text=lost)
        try:
            return self._end(worker, within_s=NOTICE_TIMEOUT_S if is_gone else 0)
        except BackendError as exc:
            return Evidence(rule="cluster-away", text=str(exc))

    def _loss_of(self, system: str) -> str | None:
        """Say how a system's node is known to be lost; None: it is not."""
        if self._nodes.is_cut(system):
            return f"the cluster has lost contact with the node of {system}"
        return self._silent.get(system)

    def _end(self, worker: Worker, *, within_s: float = 0) -> Evidence | None:
        """Return what tells of the end of a worker's pod, and may do so only later; raises BackendError."""
        name, is_closed = self._name(worker), self._nodes.is_closed(worker.system)

        def told_of(view: View) -> Evidence | None:
            return end_of(view.last(name), is_there=name in view.objects, is_node_closed=is_closed)

        ended = told_of(self._pods.now()) or self._pods.until(told_of, within_s)
        if ended is None or ended.rule != "pod-removed":
            return ended
        told = self._pods.now().last(name)
        events = self._cluster.events(uid_of(told)) if told is not None else ()
        return end_of(told, is_there=False, is_node_closed=is_closed, events=events)

    def close(self) -> None:
        """Follow the cluster no more. Idempotent, and the last call."""
        self._nodes.close()
        self._pods.close()

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

    def _place(self, worker: Worker) -> str:
        return place_of(self._settings.phase_index, worker)

    def _socket(self, worker: Worker) -> str:
        return str(self._home(worker) / SOCKET)

    @property
    def _selector(self) -> str:
        """The labels of the phase's pods."""
        return f"{LABELS.run}={self._settings.run_id},{LABELS.phase}={self._settings.phase_index}"

    def _name(self, worker: Worker) -> str:
        return object_name(self._settings.run_id, self._settings.phase_index, worker)


def _each(call: Callable[[Worker], _T], workers: Sequence[Worker]) -> list[_T]:
    """Do the same for all workers side by side; raises what the first raised, once all are done."""
    with ThreadPoolExecutor(min(len(workers), MOST_AT_ONCE)) as pool:
        return list(pool.map(call, workers))


def _host(told: Json) -> str:
    return str(told["status"].get("podIP", ""))


def remove_pods(directory: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Remove all that the run of this run-time directory has in clusters; an unreachable cluster is reported."""
    for place in read_json(directory / CLUSTER).get("places", ()):
        try:
            cluster, mine = Cluster(**place), f"{LABELS.run}={directory.name}"
            names = [told["metadata"]["name"] for told in cluster.pods(mine)]
            for name in names:
                cluster.delete_pod(name, REMOVAL_GRACE_S)
            cluster.delete_files(mine)
        except BackendError as exc:
            say(f"pods of run {directory.name} may be left: {exc}")
