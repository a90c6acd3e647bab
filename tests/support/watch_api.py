"""A cluster's API as far as watches need it: lists and streams of pods over HTTP, with the faults that occur."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

GONE = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}


class WatchApi:
    """One kind of object. Each change has a version; what was before `forget` is not told any more."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """`list`, or `watch VERSION`, in their order."""
        self.gone_as_event = False
        """Whether a version that is too old is told within the stream, as it may be, or by the status."""
        self.is_away = False
        self.is_silent = False
        """Whether it takes a watch and says nothing at all, until streams are ended."""
        self.hangs_up = False
        """Whether it does so instead of an answer while it is away."""
        self.page: bytes | None = None
        """What a proxy says in its place, with the status 200."""
        self._version = 10
        self._objects: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._oldest = 0
        self._streams = 0
        """How many streams were ended by force: each looks whether it began before."""
        self._news = threading.Condition()

    # -- what happens -----------------------------------------------------------------------------

    def put(self, name: str, uid: str, **status: Any) -> None:
        """Have an object there, or have it changed."""
        with self._news:
            kind = "MODIFIED" if name in self._objects else "ADDED"
            told = {"metadata": {"name": name, "uid": uid}, "status": status}
            self._objects[name] = told
            self._tell(kind, told)

    def remove(self, name: str, *, untold: bool = False) -> None:
        """Have an object gone; `untold`: no stream says so."""
        with self._news:
            told = self._objects.pop(name)
            if not untold:
                self._tell("DELETED", told)

    def bookmark(self) -> None:
        """Tell only how far it is."""
        with self._news:
            self._tell("BOOKMARK", {"metadata": {}})

    def end_streams(self) -> None:
        """End all streams, as a server does that restarts, or whose time is over."""
        with self._news:
            self._streams += 1
            self._news.notify_all()

    def forget(self) -> None:
        """Tell no more what has been before now."""
        with self._news:
            self._version += 5
            self._oldest = self._version

    def await_asked(self, *wanted: str) -> None:
        """Wait until these requests have come, in this order, after whatever came before."""
        with self._news:
            assert self._news.wait_for(lambda: tuple(self.asked[-len(wanted) :]) == wanted, 10), self.asked

    def _tell(self, kind: str, told: dict[str, Any]) -> None:
        self._version += 1
        told["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, {"type": kind, "object": json.loads(json.dumps(told))}))
        self._news.notify_all()

    # -- what is answered -------------------------------------------------------------------------

    def noted(self, request: str) -> int | None:
        """Note a request; return how many streams were ended before it, None if it is not answered at all."""
        with self._news:
            self.asked.append(request)
            self._news.notify_all()
            return None if self.is_away else self._streams

    def listed(self) -> dict[str, Any]:
        with self._news:
            version = {"resourceVersion": str(self._version)}
            return {"kind": "PodList", "metadata": version, "items": list(self._objects.values())}

    def is_too_old(self, version: int) -> bool:
        return version < self._oldest

    def await_end(self, streams: int) -> None:
        """Wait until streams are ended by force."""
        with self._news:
            self._news.wait_for(lambda: self._streams != streams)

    def changes(self, version: int, streams: int) -> Iterator[dict[str, Any]]:
        """Return what happens after a version, until somebody ends it."""
        while True:
            with self._news:
                while self._streams == streams and self._version <= version:
                    self._news.wait()
                ended = self._streams != streams
                told = [each for number, each in self._history if number > version]
                version = max(version, self._version)
            yield from told
            if ended:
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, api: WatchApi) -> None:
        self.api = api
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        api = self.server.api
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        assert query["labelSelector"] == "team=a"
        if "watch" not in query:
            self._away() if api.noted("list") is None else self._answer(200, api.listed())
            return
        assert query["allowWatchBookmarks"].lower() == "true"  # clients differ
        version = int(query["resourceVersion"])
        streams = api.noted(f"watch {version}")
        if streams is not None and api.is_silent:
            api.await_end(streams)
            self.close_connection = True
        elif streams is None:
            self._away()
        elif api.is_too_old(version) and not api.gone_as_event:
            self._answer(410, GONE)
        else:
            self._stream(version, streams)

    def _stream(self, version: int, streams: int) -> None:
        api = self.server.api
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if api.is_too_old(version):
            self._piece({"type": "ERROR", "object": GONE})
        else:
            for change in api.changes(version, streams):
                self._piece(change)
        self.wfile.write(b"0\r\n\r\n")

    def _piece(self, change: dict[str, Any]) -> None:
        line = json.dumps(change).encode() + b"\n"
        half = len(line) // 2  # changes do not come in pieces of their own
        for part in (line[:half], line[half:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def _answer(self, status: int, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode() if self.server.api.page is None else self.server.api.page
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _away(self) -> None:
        self.close_connection = self.server.api.hangs_up
        if not self.close_connection:
            self._answer(503, {"kind": "Status", "message": "the store is away"})

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def watch_api(directory: Path) -> Iterator[tuple[WatchApi, str]]:
    """Serve one; return it, and the kubeconfig that leads to it."""
    api = WatchApi()
    server = _Server(api)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    kubeconfig = directory / "kubeconfig"
    url = f"http://127.0.0.1:{server.server_port}"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    try:
        yield api, str(kubeconfig)
    finally:
        api.end_streams()
        server.shutdown()
        server.server_close()
        thread.join()
