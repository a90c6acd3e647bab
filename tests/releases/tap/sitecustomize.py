"""On the path of an orchestrator: keeps, byte for byte, what it and its agents say to each other.

PREFECT_FT_TAP names a directory; each connection to an agent gets NUMBER.orders and NUMBER.events there.
"""

import itertools
import os
import socket
from typing import Any

_numbers = itertools.count()


class _Tapped(socket.socket):
    """A socket that keeps what passes, once it is connected to an agent's."""

    _path = ""

    def connect(self, address: Any) -> None:
        super().connect(address)
        if isinstance(address, str) and address.endswith("/agent.sock"):
            self._path = os.path.join(os.environ["PREFECT_FT_TAP"], str(next(_numbers)))

    def sendall(self, data: Any, *flags: int) -> None:
        self._keep("orders", data)
        super().sendall(data, *flags)

    def recv(self, size: int, *flags: int) -> bytes:
        data = super().recv(size, *flags)
        self._keep("events", data)
        return data

    def _keep(self, direction: str, data: bytes) -> None:
        if self._path:
            with open(f"{self._path}.{direction}", "ab") as file:
                file.write(data)


if "PREFECT_FT_TAP" in os.environ:
    socket.socket = _Tapped  # type: ignore[misc]
