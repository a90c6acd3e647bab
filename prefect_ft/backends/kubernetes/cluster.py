"""A Kubernetes cluster's API: reached as its own tools reach it, and spoken with in plain JSON.

Owns the client library and its errors, which leave here as BackendError. Responses are taken as they come:
the library's models of them differ from one version to the next.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from prefect_ft.backends.kubernetes.answers import change_in, list_in, object_in
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.request import CONTAINER
from prefect_ft.backends.kubernetes.watch import ExpiredError, Source
from prefect_ft.backends.kubernetes.websocket_frames import ProcessFrames
from prefect_ft.backends.pump import Pump
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json

try:
    from kubernetes import client as api
    from kubernetes import config as settings
    from kubernetes.stream import stream
    from urllib3.exceptions import HTTPError
    from urllib3.util.retry import Retry
except ImportError as exc:  # pragma: no cover  (the extra is there wherever tests run)
    raise BackendError(
        "infrastructure of type kubernetes needs `pip install 'prefect-ft[kubernetes]'`"
    ) from exc

TIMEOUT_S = (5.0, 60.0)
"""How long the API may take to open its door, and to answer."""

NODES_LOOK_S = 2.0
"""How often a connection asks whether its node is heard of."""

WATCH_S = 240
"""After how long the API is to end a stream of changes, which is then taken up, at whichever of its servers."""

KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A way to the API that is cut is noticed after 20 s, also by who only listens."""

RETRIES = Retry(3, connect=0, read=1)
"""A connection that has lain idle may be over, and who is asked too often says when to ask again.

Where nobody answers it is not asked at once again: whoever wants to know does so in his own time.
"""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

_PIECE = 1 << 16

Json = dict[str, Any]
_T = TypeVar("_T")


class RefusedError(BackendError):
    """The API understood, and did not do it; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class Cluster:
    """One namespace of one cluster. Its methods may be called in several threads at once."""

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str) -> None:
        """Raises BackendError where nothing tells how to reach it; nothing is sent yet."""
        self._namespace = namespace
        try:
            self._configuration = _configuration(kubeconfig, context)
        except (settings.ConfigException, OSError) as exc:
            why = f"nothing tells how to reach the cluster ({_one_line(exc)})"
            raise BackendError(f"{why}: set KUBECONFIG, or write `kubeconfig`") from exc
        self.url = str(self._configuration.host)
        client = api.ApiClient(self._configuration)
        self._core = api.CoreV1Api(client)
        weakref.finalize(self, client.rest_client.pool_manager.clear)  # hangs up

    def create(self, whole: Json, *, dry_run: bool = False) -> Json | None:
        """Create an object, or only have it judged; return what it is. None: one is there already, and stays."""
        how = {"dry_run": "All"} if dry_run else {}
        kinds = {
            "Pod": self._core.create_namespaced_pod,
            "Secret": self._core.create_namespaced_secret,
            "ConfigMap": self._core.create_namespaced_config_map,
        }
        made = self._request(kinds[whole["kind"]], self._namespace, whole, but=409, **how)
        return None if made is None else self._object(made)

    def pod(self, name: str) -> Json | None:
        """Return what is known of a pod; None: there is none."""
        answer = self._request(self._core.read_namespaced_pod, name, self._namespace, but=404)
        return None if answer is None else self._object(answer)

    def pods(self, selector: str) -> list[Json]:
        return self._list(self._core.list_namespaced_pod, self._namespace, label_selector=selector)

    def delete_pod(self, name: str, grace_s: int) -> Json | None:
        """Have a pod deleted; 0: it is forgotten at once, whatever its node says. Idempotent.

        Gives it as it is now; None: there is none any more.
        """
        delete = self._core.delete_namespaced_pod
        answer = self._request(delete, name, self._namespace, but=404, grace_period_seconds=grace_s)
        # What is forgotten at once is answered with a Status, which is no object.
        return None if answer is None or _kind_in(answer) != "Pod" else self._object(answer)

    def delete_secret(self, name: str) -> None:
        """Delete one. Idempotent."""
        self._request(self._core.delete_namespaced_secret, name, self._namespace, but=404)

    def delete_files(self, selector: str) -> None:
        """Delete the secrets and config maps with these labels. Idempotent."""
        for delete in (
            self._core.delete_collection_namespaced_secret,
            self._core.delete_collection_namespaced_config_map,
        ):
            self._request(delete, self._namespace, label_selector=selector)

    def log(self, name: str) -> str:
        """Return what a pod's first process has said; nothing where nothing can be had of it any more."""
        try:
            said = self._request(
                self._core.read_namespaced_pod_log, name, self._namespace, container=CONTAINER
            )
        except BackendError:
            return ""
        return (said or b"").decode(errors="replace")

    def nodes(self, label: str) -> list[Json]:
        """Return the nodes that have this label, or this label's value as in `label=value`."""
        return self._list(self._core.list_node, label_selector=label)

    def node(self, name: str) -> Json | None:
        """Return what is known of a node; None: there is none."""
        answer = self._request(self._core.read_node, name, but=404)
        return None if answer is None else self._object(answer)

    def patch_node(self, name: str, patch: Json) -> bool:
        """Change a node; False: it was changed by somebody else since the version that the patch names."""
        return self._request(self._core.patch_node, name, patch, but=409) is not None

    def events(self, uid: str) -> list[Json]:
        """Return what the cluster has noted of an object, the oldest first; nothing where it does not tell."""
        with suppress(BackendError):
            said = self._list(
                self._core.list_namespaced_event, self._namespace, field_selector=f"involvedObject.uid={uid}"
            )
            return sorted(said, key=lambda each: each["metadata"].get("creationTimestamp") or "")
        return []

    def source_of_pods(self, selector: str) -> Source:
        """Return what a watch of the pods with these labels follows."""
        return _Listing(self, self._core.list_namespaced_pod, (self._namespace,), selector)

    def source_of_nodes(self, label: str) -> Source:
        """Return what a watch of the nodes with this label follows."""
        return _Listing(self, self._core.list_node, (), label)

    def changes(self, call: Callable[..., Any], *names: str, **named: Any) -> _Changes:
        """Return what changes from now on in what a list tells; raises ExpiredError."""
        more = {"watch": True, "allow_watch_bookmarks": True, "timeout_seconds": WATCH_S}
        try:
            with self._translated_errors():
                answer = call(*names, **named, **more, _preload_content=False, _request_timeout=TIMEOUT_S)
        except RefusedError as exc:
            if exc.status == HTTPStatus.GONE:
                raise ExpiredError from exc
            raise
        return _Changes(answer)

    def _list(self, call: Callable[..., Any], *names: str, **named: Any) -> list[Json]:
        return self.listed(call, *names, **named)[0]

    def listed(self, call: Callable[..., Any], *names: str, **named: Any) -> tuple[list[Json], str]:
        """Return what a list tells, and its version."""
        answer = self._request(call, *names, **named) or b"{}"
        with self._naming_cluster():
            return list_in(answer)

    def _object(self, answer: bytes) -> Json:
        with self._naming_cluster():
            return object_in(answer)

    @contextmanager
    def _naming_cluster(self) -> Iterator[None]:
        """Name the source of an answer that cannot be understood."""
        try:
            yield
        except BackendError as exc:
            raise BackendError(f"the cluster at {self.url}: {exc}") from exc

    def _request(
        self, call: Callable[..., Any], *given: Any, but: int | None = None, **named: Any
    ) -> bytes | None:
        """Return the whole answer to a request; None where it is refused with the status `but`."""
        try:
            with self._translated_errors():
                return bytes(call(*given, **named, _preload_content=False, _request_timeout=TIMEOUT_S).data)
        except RefusedError as exc:
            if exc.status != but:
                raise
            return None

    def execute(self, name: str, words: Sequence[str], timeout_s: float) -> bool:
        """Run a command in a pod; return whether it succeeded, and in time."""
        frames, received = ProcessFrames(), bytearray()
        with self._translated_errors():
            opened = _with_timeout(lambda: self._stream(name, words, stdin=False), timeout_s)
        with closing(opened.sock.sock) as connection, suppress(TimeoutError, ConnectionError):
            connection.settimeout(timeout_s)
            while not frames.has_ended and (data := connection.recv(_PIECE)):
                received += data
                frames.unwrapped(received)
        return bool(parse_json(frames.status or b"{}").get("status") == "Success")

    def open(
        self, name: str, words: Sequence[str], timeout_s: float, *, is_cut: Callable[[], bool]
    ) -> socket.socket:
        """Run a command in a pod and return a socket that is its input and output; raises OSError.

        `is_cut` is asked again and again whether the pod's node is lost: the API itself does not tell.
        """
        try:
            with self._translated_errors():
                opened = _with_timeout(lambda: self._stream(name, words, stdin=True), timeout_s)
        except BackendError as exc:
            raise ConnectionError(str(exc)) from exc
        return Pump.start(opened.sock.sock, ProcessFrames(), is_cut=is_cut, look_s=NODES_LOOK_S)

    def _stream(self, name: str, words: Sequence[str], *, stdin: bool) -> Any:
        core = api.CoreV1Api(
            api.ApiClient(self._configuration)
        )  # `stream` changes its client while it connects
        return stream(
            core.connect_get_namespaced_pod_exec,
            name,
            self._namespace,
            command=list(words),
            container=CONTAINER,
            stdin=stdin,
            stdout=True,
            stderr=False,
            tty=False,
            binary=True,
            _preload_content=False,
        )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise BackendError for what goes wrong."""
        try:
            yield
        except api.ApiException as exc:
            raise RefusedError(f"the cluster at {self.url} refused: {_why(exc)}", exc.status) from exc
        except (HTTPError, OSError) as exc:
            raise BackendError(f"the cluster at {self.url} does not answer: {_one_line(exc)}") from exc
        except ValueError as exc:
            raise BackendError(f"the client of the cluster refused: {_one_line(exc)}") from exc


class _Listing:
    """A list of one cluster, and what changes in it."""

    def __init__(
        self, cluster: Cluster, call: Callable[..., Any], names: tuple[str, ...], selector: str
    ) -> None:
        self._cluster, self._call, self._names, self._selector = cluster, call, names, selector

    def listed(self) -> tuple[Sequence[Json], str]:
        return self._cluster.listed(self._call, *self._names, label_selector=self._selector)

    def changes(self, version: str) -> _Changes:
        return self._cluster.changes(
            self._call, *self._names, label_selector=self._selector, resource_version=version
        )


class _Changes:
    """The lines of an answer that goes on, each a change."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        with suppress(AttributeError):  # what it tells from now on may be long in coming
            self._answer.connection.sock.settimeout(WATCH_S + TIMEOUT_S[1])

    def __iter__(self) -> Iterator[Json]:
        waiting = b""
        # However it breaks off: the caller reports what is missing.
        with suppress(HTTPError, OSError, ValueError):
            for piece in self._answer.stream(_PIECE):
                *lines, waiting = (waiting + piece).split(b"\n")
                for line in filter(None, lines):
                    yield _change_in(line)

    def hang_up(self) -> None:
        with suppress(OSError, AttributeError):  # it has ended already
            self._answer.connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError, HTTPError):
            self._answer.close()


def cluster_of(infrastructure: KubernetesInfrastructure) -> Cluster:
    """Return the cluster and namespace that an infrastructure names."""
    return Cluster(infrastructure.kubeconfig, infrastructure.context, infrastructure.namespace)


def _configuration(kubeconfig: str | None, context: str | None) -> Any:
    """Find out how the cluster is reached: a file that is named, the usual ones, or a pod's service account."""
    found = api.Configuration()
    found.socket_options = KEEPALIVE
    found.retries = RETRIES
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if named is None and SERVICE_ACCOUNT.exists() and not Path("~/.kube/config").expanduser().exists():
        settings.load_incluster_config(client_configuration=found)
    else:
        settings.load_kube_config(named, context=context, client_configuration=found, persist_config=False)
    return found


def _change_in(line: bytes) -> Json:
    try:
        return change_in(line)
    except BackendError as exc:  # then what there is has to be listed anew
        raise ExpiredError from exc


def _kind_in(answer: bytes) -> object:
    with suppress(ValueError):
        value = parse_json(answer)
        return value.get("kind") if isinstance(value, dict) else None
    return None


def _why(exc: Any) -> str:
    """Say why the API refused, in its own words where it gave some."""
    with suppress(TypeError, ValueError, KeyError):
        return _one_line(parse_json(exc.body)["message"])
    return _one_line(exc.reason or exc)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _with_timeout(call: Callable[[], _T], timeout_s: float) -> _T:
    """Make a call that has no time-out of its own; raises TimeoutError. What comes later is closed."""
    answer: Future[_T] = Future()
    threading.Thread(target=_resolve, args=(answer, call), daemon=True).start()
    try:
        return answer.result(timeout_s)
    except NotInTimeError as exc:
        answer.add_done_callback(_close)
        raise TimeoutError(f"nothing for {timeout_s:g} s") from exc


def _close(late: Future[Any]) -> None:
    if late.exception() is None:
        late.result().close()


def _resolve(answer: Future[_T], call: Callable[[], _T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as exc:
        answer.set_exception(exc)
