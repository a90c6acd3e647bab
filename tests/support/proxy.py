"""A TCP proxy on loopback before a server: it passes all on, holds it back for a while, or refuses."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Begins to listen at once; `port` is its own."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._passes = threading.Event()
        self._passes.set()
        self._refuses = False
        self._delay_s = 0.0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Let nothing through until `release`."""
        self._passes.clear()

    def refuse(self) -> None:
        """Break all connections, and every new one, until `release`."""
        self._refuses = True
        for each in list(self._open):
            _break(each)

    def delay(self, seconds: float) -> None:
        """Let every piece that a client sends wait."""
        self._delay_s = seconds

    def release(self) -> None:
        self._refuses = False
        self._delay_s = 0.0
        self._passes.set()

    def close(self) -> None:
        self.release()
        self._listener.close()
        self.refuse()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    _break(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_asked: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_asked:
                    threading.Event().wait(self._delay_s)
                self._passes.wait()
                target.sendall(data)
        for each in (source, target):
            _break(each)
            self._open.discard(each)


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()
