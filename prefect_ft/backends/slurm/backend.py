"""Workers as processes on the nodes of an allocation: started and ended by the node servers there.

Nothing is asked of Slurm to create or destroy a worker. What is known of a loss is asked of the node servers first, and
of Slurm only where none says anything.
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

MOST_AT_ONCE = 64
"""How many node servers are spoken with side by side: an end takes as long as its agents do."""

PEERS = 8
"""How many other node servers an agent asks whether it is cut off, and the orchestrator whether all were told to go."""

FRESH_S = 5.0
"""How old what Slurm said may be where a loss is to be explained."""

LAST_WORDS_S = 3.0
"""How long an agent may take of a node's last time to end its ranks."""

NOTICE_S = 30.0
"""How long ranks may go on that a scheduler has told to go: Slurm's default KillWait."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOnNode(Address):
    """Where an agent listens on a node."""

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
        """The one with which all ends; other nodes of the tenure are in further ones."""
        self._numbers: dict[str, str] = {}
        self._follow()

    def _follow(self) -> None:
        """Know the node servers of the present allocation."""
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

        A worker that is there already, with its agent alive, stays as it is.
        """
        try:
            return _each(self._create, workers)
        except BackendError:
            self.destroy(workers)
            raise

    def _create(self, worker: Worker) -> Address:
        link = self._links.get(worker.system)
        if link is None:
            raise self._missing(worker.system, "it has no node server")
        env = dict(self._system_env.get(worker.system, {}))
        fields: dict[str, Any] = {"place": self._place(worker), "config": self._told(worker), "env": env}
        try:
            told = self._started(link, fields)
        except NoAnswerError as exc:
            raise self._missing(worker.system, str(exc)) from exc
        except OSError:
            # It is there: too busy for a handshake, or it hung up. An agent that has begun stays as it is.
            try:
                told = self._started(link, fields)
            except OSError as exc:
                raise self._missing(worker.system, str(exc)) from exc
        return self._address(worker, int(told["port"]))

    @staticmethod
    def _started(link: NodeLink, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return link.ask("start", **fields)
        except BackendError:  # what another life may have left there
            link.ask("end", END_TIMEOUT_S, places=[fields["place"]])
            return link.ask("start", **fields)

    def _missing(self, system: str, why: str) -> BackendError:
        """Return what is wrong where a node server does not answer: the node is lost, or all of them."""
        if (ended := self._ended(system)) is not None:
            return TenureEndedError(ended)
        return BackendError(f"node {system} does not answer: {why}", system=system)

    def _told(self, worker: Worker) -> dict[str, Any]:
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
        """Return the addresses of some other node servers, as numbers: agents look up no names."""
        return [
            (address, link.port)
            for link in self._after(system)
            if (address := self._number_of(link.host)) is not None
        ]

    def _after(self, system: str) -> list[NodeLink]:
        """Return the links to the nodes that follow one, as on a ring: not all ask the same ones."""
        names = list(self._links)
        begin = names.index(system) + 1 if system in self._links else 0
        others = [name for name in (*names[begin:], *names[:begin]) if name != system]
        return [self._links[name] for name in others[:PEERS]]

    def _number_of(self, host: str) -> str | None:
        """Look up an address, once for all that ask for it."""
        if host not in self._numbers:
            with suppress(OSError):
                self._numbers[host] = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        return self._numbers.get(host)

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove what they kept.

        On a node that does not answer they end by themselves, once they hear of nobody.
        """
        by_system: dict[str, list[str]] = {}
        for worker in dict.fromkeys(workers):
            by_system.setdefault(worker.system, []).append(self._place(worker))
        _each(lambda each: self._end(*each), list(by_system.items()))

    def _end(self, system: str, places: list[str]) -> None:
        link = self._links.get(system)
        if link is None:
            return
        try:
            link.ask("end", END_TIMEOUT_S, places=places)
        except (OSError, BackendError):
            return

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy and create, one after the other: what is old may have the devices that the new ones need."""
        self.destroy(old)
        return self.create(new)

    # -- finding ------------------------------------------------------------------------------------

    def find(self) -> list[Found]:
        """Return the phase's workers, those of all lives of the orchestrator, by what the node servers list.

        In the order of epoch and decision.
        """
        lists = _each(self._list, list(self._links.items()))
        found = [each for listed in lists for each in listed]
        return sorted(found, key=lambda each: (each.worker.epoch, each.worker.decision, each.worker.number))

    def _list(self, node: tuple[str, NodeLink]) -> list[Found]:
        system, link = node
        try:
            places = link.ask("list")["places"]
        except (OSError, BackendError):
            return []
        found = []
        for told in places:
            phase, number, epoch, decision = map(int, told["place"].split("-"))
            if phase != self._settings.phase_index or not (told["is_alive"] or told["left"]):
                continue
            worker = Worker(number=number, system=system, epoch=epoch, decision=decision)
            result = None if told["is_alive"] else told["left"]
            found.append(
                Found(worker=worker, address=self._address(worker, int(told["port"])), result=result)
            )
        return found

    def _address(self, worker: Worker, port: int) -> Address:
        link = self._links[worker.system]
        return AddressOnNode(
            socket_path=Path("/"), host=link.host, open=lambda: link.connect(self._place(worker), port)
        )

    def answers(self, system: str) -> bool:
        """Whether the node server of a system answers, and has not been told to go."""
        link = self._links.get(system)
        return link is not None and link.answers()

    # -- what is known of ends ----------------------------------------------------------------------

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what is known of how something in a worker came to its end just now.

        `is_gone`: it was the agent itself.
        """
        if not is_gone:
            return None
        if (ended := self._ended(worker.system)) is not None:
            return Evidence(rule=TENURE_ENDED, text=ended)
        if (ended := self._further_ended(worker.system)) is not None:
            return Evidence(rule=PART_ENDED, text=ended)
        if not self.answers(worker.system):
            return Evidence(rule=NODE_LOST, text=f"nothing answers on the node {worker.system}")
        return None

    def _ended(self, system: str) -> str | None:
        """Return how the whole allocation has ended, in words; None: it has not, or nobody says so.

        `system` is where something was missed: that node is asked, and some others, whatever their number.
        """
        allocation = self._allocation
        if allocation is None:
            return "the run has no allocation"
        if self._allocations.has_ended(allocation.name):
            return f"{allocation.name} has ended"
        asked = [link for link in (self._links.get(system), *self._after(system)) if link is not None]
        going = _each(_is_going, [link for link in asked if link.system in allocation.nodes])
        if any(going):
            return f"{allocation.name} is being ended: its nodes were told to go"
        try:
            told = self._slurm.state(allocation.job, within_s=FRESH_S)
        except LookupError:
            return f"{allocation.name} has ended: Slurm does not know it any more"
        if told is None or not (told.has_ended or told.is_pending):
            return None
        return f"{allocation.name} has ended: {told.state}"

    def _further_ended(self, system: str) -> str | None:
        """Return how the further job of a system is ended, in words; None: it is of none, or that goes on."""
        for part in parts_of(self._allocations.current or "")[1:]:
            found = self._allocations.named(part)
            if found is not None and system in found.nodes:
                link = self._links.get(system)
                is_ended = self._allocations.has_ended(part) or (link is not None and _is_going(link))
                return f"job {found.job}, which has added {system}, is ended" if is_ended else None
        return None

    def close(self) -> None:
        """Hang up; workers stay as they are. Idempotent, and the last call."""
        for link in self._links.values():
            link.close()

    def _place(self, worker: Worker) -> str:
        return place_of(self._settings.phase_index, worker)


def links_to(
    allocation: Allocation, allocations: Allocations, way: DirectWay, *, run_id: str, key: str
) -> dict[str, NodeLink]:
    """Return the links to the node servers of an allocation that have begun, by node."""
    return {
        node: NodeLink(
            way, node, allocation.hosts.get(node, node), port, run_id=run_id, key=key, name=node_name(run_id)
        )
        for node, port in allocations.ports(allocation).items()
    }


def answering(links: Mapping[str, NodeLink]) -> set[str]:
    """Return the nodes whose servers answer and were not told to go; all are asked side by side."""
    answers = _each(lambda link: link.answers(), list(links.values()))
    return {node for node, answers_now in zip(links, answers, strict=True) if answers_now}


def is_going(links: Mapping[str, NodeLink]) -> list[bool]:
    """Return of each node server whether it says that it was told to go; all are asked side by side."""
    return _each(_is_going, list(links.values()))


def _is_going(link: NodeLink) -> bool:
    return link.is_going() is True


def _each(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Do the same for all side by side; raises what the first raised, once all are done."""
    if not items:
        return []
    with ThreadPoolExecutor(min(len(items), MOST_AT_ONCE)) as pool:
        return list(pool.map(call, items))
