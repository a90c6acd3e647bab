"""Direct connections to agents on other machines: TCP, with TLS by the run's certificates."""

from __future__ import annotations

import errno
import socket
import ssl
from urllib.parse import urlsplit

from prefect_ft.worker import descriptors
from prefect_ft.worker.tls import Identity, end_when_silent, orchestrators_context

CONNECT_TIMEOUT_S = 3.0
"""The longest time to reach an agent; a lost packet is sent again after one second."""

HANDSHAKE_TIMEOUT_S = 10.0
"""How long a reached agent may take for the TLS handshake."""

_NO_ANSWER = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


class NoAnswerError(ConnectionError):
    """Nothing answers at an address; a refused connection is another error."""


class DirectWay:
    """Connects to the agents of one run."""

    def __init__(self, identity: Identity, port: int, silence_timeout_s: float) -> None:
        """`identity` is the orchestrator's; agents listen at `port`.

        A connection with a peer that is silent for `silence_timeout_s` is closed.
        """
        self._context: ssl.SSLContext = orchestrators_context(identity)
        self._port = port
        self._silence_timeout_s = silence_timeout_s
        self._connect_timeout_s = min(CONNECT_TIMEOUT_S, max(1.0, silence_timeout_s / 3))

    def connect(
        self, host: str, worker: str, *, port: int | None = None, within_s: float | None = None
    ) -> socket.socket:
        """Open a connection to the agent of a worker, named as in its certificate; `port` is its own, if it has one.

        `within_s`: how long the machine may take to accept it; None: the default. Raises OSError, NoAnswerError where
        nothing answers.
        """
        timeout_s = self._connect_timeout_s if within_s is None else min(within_s, self._connect_timeout_s)
        connection = _tcp_connection(host, self._port if port is None else port, timeout_s)
        try:
            end_when_silent(connection, self._silence_timeout_s)
            connection.settimeout(HANDSHAKE_TIMEOUT_S)
            return self._context.wrap_socket(connection, server_hostname=worker)
        except TimeoutError as exc:
            raise ConnectionError(f"the agent at {host} does not shake hands") from exc
        finally:
            connection.close()  # the TLS socket has taken the descriptor over


def _tcp_connection(host: str, port: int, timeout_s: float) -> socket.socket:
    try:
        return descriptors.moved(socket.create_connection((host, port), timeout_s))
    except TimeoutError as exc:
        raise NoAnswerError(f"nothing answers at {host}, port {port}, for {timeout_s:g} s") from exc
    except OSError as exc:
        if exc.errno in _NO_ANSWER:
            raise NoAnswerError(f"nothing answers at {host}, port {port}: {exc.strerror}") from exc
        raise


def addresses_of(url: str) -> list[tuple[str, int]]:
    """Look up the addresses of a URL's server; empty where its name does not resolve."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80}.get(parts.scheme, 443)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({(str(address[0]), port) for *_, address in found})
