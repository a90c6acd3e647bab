"""Workers as processes on the nodes of an allocation, started and ended by the node servers there.

Creating and destroying workers needs no call to Slurm.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_ft.backends.base import Address, AgentSettings, Found, Worker, place_of
from prefect_ft.backends.direct import DirectWay, NoAnswerError
from prefect_ft.backends.home import agent_config
from prefect_ft.backends.slurm.allocations import Allocations, parts_of
from prefect_ft.backends.slurm.commands import Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.links import in_parallel, links_to
from prefect_ft.backends.slurm.losses import Losses
from prefect_ft.backends.slurm.nodes import END_TIMEOUT_S, NodeLink
from prefect_ft.backends.slurm.peers import Peers
from prefect_ft.errors import BackendError, TenureEndedError
from prefect_ft.model import Evidence

LAST_WORDS_S = 3.0
"""How much of a node's remaining time an agent may take to end its ranks."""

NOTICE_S = 30.0
"""How long ranks may run after the scheduler's SIGTERM: Slurm's default KillWait."""


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
        way = DirectWay(settings.certificates.orchestrator(), 0, infrastructure.silence_timeout_s)
        allocations = Allocations(run_root)
        name = allocations.current
        tenure = None if name is None else allocations.named(name)
        self._links: Mapping[str, NodeLink] = (
            {}
            if tenure is None
            else links_to(tenure, allocations, way, run_id=settings.run_id, key=settings.key)
        )
        self._peers = Peers(self._links)
        first = None if tenure is None else allocations.named(parts_of(tenure.name)[0])
        self._losses = Losses(first, allocations, self._links, self._peers, slurm or Slurm())

    # -- creating and destroying --------------------------------------------------------------------

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent.
        """
        try:
            return in_parallel(self._create, workers)
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
        if (ended := self._losses.allocation_end(system)) is not None:
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
            "api": self._peers.addresses(worker.system),
        }
        settings = self._settings
        return agent_config(Path("/"), settings, worker, network=network, notice_s=NOTICE_S - LAST_WORDS_S)

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files.

        On a node that does not answer they end by themselves, after the partition timeout.
        """
        by_system: dict[str, list[str]] = {}
        for worker in dict.fromkeys(workers):
            by_system.setdefault(worker.system, []).append(self._place(worker))
        in_parallel(lambda each: self._end(*each), list(by_system.items()))

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
        lists = in_parallel(self._list, list(self._links.items()))
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

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what is known about what just ended in a worker.

        `is_gone`: the agent itself ended.
        """
        return self._losses.evidence(worker.system) if is_gone else None

    def close(self) -> None:
        """Close the connections; workers keep running. Idempotent, and the last call."""
        for link in self._links.values():
            link.close()

    def _place(self, worker: Worker) -> str:
        return place_of(self._settings.phase_index, worker)
