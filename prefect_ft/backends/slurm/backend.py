"""Workers as processes on the nodes of an allocation, started and ended by the node servers there.

Creating and destroying workers needs no call to Slurm. Losses are explained by the node servers first, and by Slurm
only where none of them answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prefect_ft.backends.base import (
    NODE_LOST,
    PART_ENDED,
    TENURE_ENDED,
    Address,
    AgentSettings,
    Found,
    Worker,
    place_of,
)
from prefect_ft.backends.direct import DirectWay, NoAnswerError
from prefect_ft.backends.home import agent_config
from prefect_ft.backends.slurm.allocations import Allocation, Allocations, node_name, parts_of
from prefect_ft.backends.slurm.commands import Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.nodes import END_TIMEOUT_S, NodeLink
from prefect_ft.errors import BackendError, TenureEndedError
from prefect_ft.model import Evidence

MAX_CONCURRENT = 64
"""How many node servers are called in parallel: ending workers takes as long as their agents do."""

PEERS = 8
"""How many other node servers an agent asks whether it is cut off, and the orchestrator whether all shut down."""

FRESH_S = 5.0
"""How old Slurm's answer may be where it has to explain a loss."""

LAST_WORDS_S = 3.0
"""How much of a node's remaining time an agent may take to end its ranks."""

NOTICE_S = 30.0
"""How long ranks may run after the scheduler's SIGTERM: Slurm's default KillWait."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOnNode(Address):
    """The address of an agent on a node."""

    open: Callable[[], socket.socket]

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError."""
        del timeout_s
        return self.open()


class SlurmBackend:
    """`run_root` is the run's directory, on a file system that all nodes see."""

    def __init__(
        self,
        settings: AgentSettings,
        infrastructure: SlurmInfrastructure,
        run_root: Path,
        *,
        system_env: Mapping[str, Mapping[str, str | None]],
        slurm: Slurm | None = None,
    ) -> None:
        assert settings.certificates is not None
        self._settings, self._infrastructure, self._system_env = settings, infrastructure, system_env
        self._allocations = Allocations(run_root)
        self._slurm = slurm or Slurm()
        self._way = DirectWay(settings.certificates.orchestrator(), 0, infrastructure.silence_timeout_s)
        self._links: dict[str, NodeLink] = {}
        self._allocation: Allocation | None = None
        """The allocation whose end ends the tenure; further ones have its other nodes."""
        self._addresses: dict[str, str] = {}
        self._follow()

    def _follow(self) -> None:
        """Find the node servers of the present allocation."""
        name = self._allocations.current
        tenure = None if name is None else self._allocations.named(name)
        if name is not None and tenure is not None:
            self._allocation = self._allocations.named(parts_of(name)[0])
            self._links = links_to(
                tenure,
                self._allocations,
                self._way,
                run_id=self._settings.run_id,
                key=self._settings.key,
            )

    # -- creating and destroying --------------------------------------------------------------------

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent.
        """
        try:
            return _in_parallel(self._create, workers)
        except BackendError:
            self.destroy(workers)
            raise

    def _create(self, worker: Worker) -> Address:
        link = self._links.get(worker.system)
        if link is None:
            raise self._missing(worker.system, "it has no node server")
        env = dict(self._system_env.get(worker.system, {}))
        fields: dict[str, Any] = {
            "place": self._place(worker),
            "config": self._agent_config(worker),
            "env": env,
        }
        try:
            answer = self._start(link, fields)
        except NoAnswerError as exc:
            raise self._missing(worker.system, str(exc)) from exc
        except OSError:
            # It is there: too busy for a handshake, or it hung up. An agent that has started is kept.
            try:
                answer = self._start(link, fields)
            except OSError as exc:
                raise self._missing(worker.system, str(exc)) from exc
        return self._address(worker, int(answer["port"]))

    @staticmethod
    def _start(link: NodeLink, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return link.ask("start", **fields)
        except BackendError:  # an earlier orchestrator may have left a worker there
            link.ask("end", END_TIMEOUT_S, places=[fields["place"]])
            return link.ask("start", **fields)

    def _missing(self, system: str, why: str) -> BackendError:
        """Return the error for a node server that does not answer: the node is lost, or the whole allocation."""
        if (ended := self._allocation_end(system)) is not None:
            return TenureEndedError(ended)
        return BackendError(f"node {system} does not answer: {why}", system=system)

    def _agent_config(self, worker: Worker) -> dict[str, Any]:
        given, certificates = self._infrastructure, self._settings.certificates
        assert certificates is not None
        shown = certificates.worker(self._place(worker))
        network = {
            "identity": {"own": shown.own, "trusts": shown.trusts},
            "silence_timeout_s": given.silence_timeout_s,
            "partition_timeout_s": given.partition_timeout_s,
            "api": self._peers_of(worker.system),
        }
        settings = self._settings
        return agent_config(Path("/"), settings, worker, network=network, notice_s=NOTICE_S - LAST_WORDS_S)

    def _peers_of(self, system: str) -> list[tuple[str, int]]:
        """Return the numeric addresses of some other node servers: agents resolve no names."""
        return [
            (address, link.port)
            for link in self._successors_of(system)
            if (address := self._resolved(link.host)) is not None
        ]

    def _successors_of(self, system: str) -> list[NodeLink]:
        """Return the links to the nodes after one, as on a ring, so that not all ask the same ones."""
        names = list(self._links)
        begin = names.index(system) + 1 if system in self._links else 0
        others = [name for name in (*names[begin:], *names[:begin]) if name != system]
        return [self._links[name] for name in others[:PEERS]]

    def _resolved(self, host: str) -> str | None:
        """Resolve a host's address, once for all callers."""
        if host not in self._addresses:
            with suppress(OSError):
                self._addresses[host] = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        return self._addresses.get(host)

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files.

        On a node that does not answer they end by themselves, after the partition timeout.
        """
        by_system: dict[str, list[str]] = {}
        for worker in dict.fromkeys(workers):
            by_system.setdefault(worker.system, []).append(self._place(worker))
        _in_parallel(lambda each: self._end(*each), list(by_system.items()))

    def _end(self, system: str, places: list[str]) -> None:
        link = self._links.get(system)
        if link is None:
            return
        try:
            link.ask("end", END_TIMEOUT_S, places=places)
        except (OSError, BackendError):
            return

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy, then create: old workers may hold the devices that the new ones need."""
        self.destroy(old)
        return self.create(new)

    # -- finding ------------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Return the phase's workers, also those of earlier orchestrators, as the node servers list them.

        In the order of epoch and decision.
        """
        lists = _in_parallel(self._list, list(self._links.items()))
        found = [each for listed in lists for each in listed]
        return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))

    def _list(self, node: tuple[str, NodeLink]) -> list[Found]:
        system, link = node
        try:
            places = link.ask("list")["places"]
        except (OSError, BackendError):
            return []
        found = []
        for listed_worker in places:
            phase, number, epoch, decision = map(int, listed_worker["place"].split("-"))
            if phase != self._settings.phase_index or not (
                listed_worker["is_alive"] or listed_worker["left"]
            ):
                continue
            worker = Worker(number=number, system=system, epoch=epoch, decision=decision)
            result = None if listed_worker["is_alive"] else listed_worker["left"]
            found.append(
                Found(worker=worker, address=self._address(worker, int(listed_worker["port"])), result=result)
            )
        return found

    def _address(self, worker: Worker, port: int) -> Address:
        link = self._links[worker.system]
        return AddressOnNode(
            socket_path=Path("/"), host=link.host, open=lambda: link.connect(self._place(worker), port)
        )

    def answers(self, system: str) -> bool:
        """Whether the node server of a system answers and is not shutting down."""
        link = self._links.get(system)
        return link is not None and link.answers()

    # -- what is known of ends ----------------------------------------------------------------------

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what is known about what just ended in a worker.

        `is_gone`: the agent itself ended.
        """
        if not is_gone:
            return None
        if (ended := self._allocation_end(worker.system)) is not None:
            return Evidence(rule=TENURE_ENDED, text=ended)
        if (ended := self._further_job_end(worker.system)) is not None:
            return Evidence(rule=PART_ENDED, text=ended)
        if not self.answers(worker.system):
            return Evidence(rule=NODE_LOST, text=f"nothing answers on the node {worker.system}")
        return None

    def _allocation_end(self, system: str) -> str | None:
        """Describe how the whole allocation has ended; None: it has not, as far as is known.

        `system` is where the loss was seen: that node server is asked, and a few others.
        """
        allocation = self._allocation
        if allocation is None:
            return "the run has no allocation"
        if self._allocations.has_ended(allocation.name):
            return f"{allocation.name} has ended"
        asked = [link for link in (self._links.get(system), *self._successors_of(system)) if link is not None]
        going = _in_parallel(_is_going, [link for link in asked if link.system in allocation.nodes])
        if any(going):
            return f"{allocation.name} is being ended: its nodes were told to go"
        try:
            job_state = self._slurm.state(allocation.job, within_s=FRESH_S)
        except LookupError:
            return f"{allocation.name} has ended: Slurm does not know it any more"
        if job_state is None or not (job_state.has_ended or job_state.is_pending):
            return None
        return f"{allocation.name} has ended: {job_state.state}"

    def _further_job_end(self, system: str) -> str | None:
        """Describe how the further job that added a system has ended; None: there is no such job, or it runs."""
        for part in parts_of(self._allocations.current or "")[1:]:
            found = self._allocations.named(part)
            if found is not None and system in found.nodes:
                link = self._links.get(system)
                is_ended = self._allocations.has_ended(part) or (link is not None and _is_going(link))
                return f"job {found.job}, which has added {system}, is ended" if is_ended else None
        return None

    def close(self) -> None:
        """Close the connections; workers keep running. Idempotent, and the last call."""
        for link in self._links.values():
            link.close()

    def _place(self, worker: Worker) -> str:
        return place_of(self._settings.phase_index, worker)


def links_to(
    allocation: Allocation, allocations: Allocations, way: DirectWay, *, run_id: str, key: str
) -> dict[str, NodeLink]:
    """Return links to the node servers of an allocation that have started, by node."""
    return {
        node: NodeLink(
            way, node, allocation.hosts.get(node, node), port, run_id=run_id, key=key, name=node_name(run_id)
        )
        for node, port in allocations.ports(allocation).items()
    }


def answering(links: Mapping[str, NodeLink]) -> set[str]:
    """Return the nodes whose servers answer and are not shutting down; all are asked in parallel."""
    answers = _in_parallel(lambda link: link.answers(), list(links.values()))
    return {node for node, answers_now in zip(links, answers, strict=True) if answers_now}


def is_going(links: Mapping[str, NodeLink]) -> list[bool]:
    """Return for each node server whether it is shutting down; all are asked in parallel."""
    return _in_parallel(_is_going, list(links.values()))


def _is_going(link: NodeLink) -> bool:
    return link.is_going() is True


def _in_parallel(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Call for all items in parallel; raises the first exception once all calls are done."""
    if not items:
        return []
    with ThreadPoolExecutor(min(len(items), MAX_CONCURRENT)) as pool:
        return list(pool.map(call, items))
