"""Which other node servers are asked about a node: a few, whatever the number of nodes."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

from prefect_ft.backends.slurm.nodes import NodeLink

PEERS = 8
"""How many other node servers an agent asks whether it is cut off, and the orchestrator whether all shut down."""


class Peers:
    """The node servers of a tenure as a ring, so that not all ask the same ones."""

    def __init__(self, links: Mapping[str, NodeLink]) -> None:
        self._links = links
        self._addresses: dict[str, str] = {}

    def addresses(self, system: str) -> list[tuple[str, int]]:
        """Return the numeric addresses of some other node servers: agents resolve no names."""
        return [
            (address, link.port)
            for link in self.after(system)
            if (address := self._resolved(link.host)) is not None
        ]

    def after(self, system: str) -> list[NodeLink]:
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
