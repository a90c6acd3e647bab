"""The client of a Kubernetes API: how it is reached, requests to it, and their answers in plain JSON.

Owns the client library and its errors, which leave here as BackendError. Answers are parsed here: the library's
models of them differ between versions.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect_ft.backends.kubernetes.answers import list_in, object_in
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json

try:
    from kubernetes import client
    from kubernetes import config as settings
    from kubernetes.stream import stream
    from urllib3.exceptions import HTTPError
    from urllib3.util.retry import Retry
except ImportError as exc:  # pragma: no cover  (the extra is there wherever tests run)
    raise BackendError(
        "infrastructure of type kubernetes needs `pip install 'prefect-ft[kubernetes]'`"
    ) from exc

TIMEOUT_S = (5.0, 60.0)
"""How long the API may take to accept a connection, and to answer."""

KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A broken route to the API is noticed after 20 s, also by a connection that only reads."""

RETRIES = Retry(3, connect=0, read=1)
"""An idle connection may have been closed, and a throttled client is told when to retry.

A refused connection is not retried: callers retry in their own time.
"""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

CONNECTION_ERRORS: tuple[type[Exception], ...] = (HTTPError, OSError)
"""What the client raises where a connection fails."""

Json = dict[str, Any]


class RefusedError(BackendError):
    """The API understood a request and refused it; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class Api:
    """The API of one cluster; `core` has the library's methods for its requests. Thread-safe."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        """Raises BackendError where no configuration is found; sends nothing yet."""
        try:
            self._configuration = _configuration(kubeconfig, context)
        except (settings.ConfigException, OSError) as exc:
            why = f"nothing tells how to reach the cluster ({_one_line(exc)})"
            raise BackendError(f"{why}: set KUBECONFIG, or write `kubeconfig`") from exc
        self.url = str(self._configuration.host)
        api_client = client.ApiClient(self._configuration)
        self.core = client.CoreV1Api(api_client)
        weakref.finalize(self, api_client.rest_client.pool_manager.clear)  # closes the connections

    def request(
        self, call: Callable[..., Any], *given: Any, but: int | None = None, **named: Any
    ) -> bytes | None:
        """Return the answer to a request; None where it is refused with the status `but`."""
        try:
            with self.translated_errors():
                return bytes(self.open(call, *given, **named).data)
        except RefusedError as exc:
            if exc.status != but:
                raise
            return None

    def open(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Send a request and return the library's response, unread."""
        with self.translated_errors():
            return call(*given, **named, _preload_content=False, _request_timeout=TIMEOUT_S)

    def fetch(
        self, call: Callable[..., Any], *given: Any, but: int | None = None, **named: Any
    ) -> Json | None:
        """Return the object in the answer to a request; None where it is refused with the status `but`."""
        answer = self.request(call, *given, but=but, **named)
        return None if answer is None else self.parsed(answer)

    def parsed(self, answer: bytes) -> Json:
        """Return the object in an answer; raises BackendError for an invalid one."""
        with self._naming_cluster():
            return object_in(answer)

    def listed(self, call: Callable[..., Any], *given: Any, **named: Any) -> tuple[list[Json], str]:
        """Return the objects of a list, and its version."""
        answer = self.request(call, *given, **named) or b"{}"
        with self._naming_cluster():
            return list_in(answer)

    def command_stream(
        self, namespace: str, pod: str, container: str, words: Sequence[str], *, stdin: bool
    ) -> Any:
        """Start a command in a pod; return the library's web socket of its input and output."""
        own = client.CoreV1Api(client.ApiClient(self._configuration))  # `stream` changes its client meanwhile
        return stream(
            own.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            command=[*words],
            container=container,
            stdin=stdin,
            stdout=True,
            stderr=False,
            tty=False,
            binary=True,
            _preload_content=False,
        )

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn errors of the client library into BackendError."""
        try:
            yield
        except client.ApiException as exc:
            raise RefusedError(f"the cluster at {self.url} refused: {_why(exc)}", exc.status) from exc
        except CONNECTION_ERRORS as exc:
            raise BackendError(f"the cluster at {self.url} does not answer: {_one_line(exc)}") from exc
        except ValueError as exc:
            raise BackendError(f"the client of the cluster refused: {_one_line(exc)}") from exc

    @contextmanager
    def _naming_cluster(self) -> Iterator[None]:
        """Name the cluster in the error for an invalid answer."""
        try:
            yield
        except BackendError as exc:
            raise BackendError(f"the cluster at {self.url}: {exc}") from exc


def _configuration(kubeconfig: str | None, context: str | None) -> Any:
    """Load the configuration: from the given file, the usual ones, or a pod's service account."""
    found = client.Configuration()
    found.socket_options = KEEPALIVE
    found.retries = RETRIES
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if named is None and SERVICE_ACCOUNT.exists() and not Path("~/.kube/config").expanduser().exists():
        settings.load_incluster_config(client_configuration=found)
    else:
        settings.load_kube_config(named, context=context, client_configuration=found, persist_config=False)
    return found


def _why(exc: Any) -> str:
    """Return why the API refused, in its own words where it gave some."""
    with suppress(TypeError, ValueError, KeyError):
        return _one_line(parse_json(exc.body)["message"])
    return _one_line(exc.reason or exc)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
