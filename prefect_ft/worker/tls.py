"""TLS between agents and their orchestrator: each side shows a certificate that the run's authority has signed.

Makes such sockets behave as plain ones do in an event loop. Both sides use it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
from typing import Any, NamedTuple, Optional

RECORD = 1 << 14
"""Bytes of the longest TLS record."""

PROBES = 4
"""How many probes go unanswered before a connection counts as silent, at most one a second."""


class Identity(NamedTuple):
    """What one side of a connection shows and what it asks of the other.

    `own` is its certificate with its key, `trusts` the certificate that the other's must be signed by, both as PEM.
    `names` is whether the agents' certificates name their workers: those of earlier versions' runs do not.
    """

    own: str
    trusts: str
    names: bool = True


class TlsSocket(ssl.SSLSocket):
    """Raises BlockingIOError where a plain socket would, and holds back nothing that `select` cannot see.

    The first `recv` makes the handshake. A handshake that waits for room to send is not distinguished from one that
    waits for data: it is a few hundred bytes on a fresh connection, and a peer that does not take them is not admitted.
    """

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            data = super().recv(buflen, flags)
            while waiting := self.pending():
                data += super().recv(waiting)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as exc:
            raise BlockingIOError from exc
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        """Send at most one record, so that the rest need not be sent again unchanged."""
        try:
            with memoryview(data) as whole, whole[:RECORD] as piece:
                return super().send(piece, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as exc:
            raise BlockingIOError from exc


def agents_context(identity: Identity) -> ssl.SSLContext:
    """Return the context by which an agent admits its orchestrator, but no peer with an agent's certificate."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.num_tickets = 0  # no session is ever resumed
    return context


def orchestrators_context(identity: Identity) -> ssl.SSLContext:
    """Return the context by which an orchestrator connects to agents, which must show their worker's certificate."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, identity)
    context.check_hostname = identity.names
    return context


def _context(protocol: int, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = TlsSocket
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.trusts)
    # A context takes keys from files only; this file is private, and deleted at once.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(identity.own.encode("ascii"))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def end_when_silent(connection: socket.socket, timeout_s: float) -> None:
    """Have the kernel end a connection whose other side has been silent for `timeout_s`."""
    every_s = max(1, int(timeout_s / PROBES))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * timeout_s))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def listening(port: int) -> Optional[socket.socket]:
    """Listen at all addresses; None, and a line on standard error, where the port is taken."""
    has_both = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port), family=socket.AF_INET6 if has_both else socket.AF_INET, dualstack_ipv6=has_both
        )
    except OSError as exc:
        why = os.strerror(exc.errno) if exc.errno else str(exc)
        sys.stderr.write(f"prefect-ft: cannot listen at port {port}: {why}\n")
        return None


class TlsEntrance:
    """Wraps an accepted connection in TLS, without waiting for the handshake."""

    def __init__(self, identity: Identity, silence_timeout_s: float) -> None:
        self._context = agents_context(identity)
        self._silence_timeout_s = silence_timeout_s

    def __call__(self, connection: socket.socket) -> Optional[socket.socket]:
        """Return the connection to use; None: the peer has already closed it."""
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            end_when_silent(connection, self._silence_timeout_s)
            return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return None
