"""The node server: starts, ends and lists agents on a node that a scheduler has lent to a run.

One process for each node and allocation, started once, so that the scheduler need not be asked for another step.
It listens with TLS at a free port and writes that to a file that the orchestrator sees. It knows places (directories of
agents) and processes, no ranks and no decisions. Single-threaded and event-driven, as an agent is.
docs/agent-protocol.md has its orders.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from prefect_ft.heartbeat import NOTICE_VARIABLE
from prefect_ft.worker import PACKAGE_DIRECTORY, frames, strays, tls
from prefect_ft.worker.agent import LEFT
from prefect_ft.worker.door import Door
from prefect_ft.worker.gang import KILL_TIMEOUT_S
from prefect_ft.worker.keys import fits
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.peer import Peer
from prefect_ft.worker.processes import Held, started

KEY_NAME = "node"
"""The name by which the key of a run's node servers is derived; no worker's directory has it."""

LEAVE_TIMEOUT_S = KILL_TIMEOUT_S + 5.0
"""How long an agent may take to end its ranks and itself before it is killed."""

RELEASED = "released"
"""The file in an allocation's directory that says that the run no longer needs it."""

LOOK_S = 2.0
"""How often to look for that file."""

LAST_WORDS_BYTES = 4000
"""How much of a dead agent's output its orchestrator gets."""

MAX_BASE_BYTES = 70
"""The longest path of the agents' directories: a socket's path has 107 bytes, and the place needs the rest."""

OF_A_TASK = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|TASK_PID|GTIDS|STEP|STEPID|SRUN_|STEP_.*|CPU_BIND.*|LAUNCH_.*|"
    r"NTASKS_PER_NODE|TASKS_PER_NODE|UMASK|DISTRIBUTION|MPI_TYPE|PMIX.*)|PMI[X2]?_.*|SLURM_SRUN_.*|SLURMD_.*"
)
"""Variables of the step's one task on this node: frameworks would take them for those of a rank."""

_PLACE = re.compile(r"[0-9]+-[0-9]+-[0-9]+-[0-9]+")


class RequestError(Exception):
    """An order that cannot be carried out; the text says why."""


class Place:
    """One agent that was started here, living or not."""

    def __init__(
        self, home: str, config: Mapping[str, Any], port: int, agent: "subprocess.Popen[bytes]"
    ) -> None:
        self.home, self.config, self.port, self.agent = home, config, port, agent
        self.held: Optional[Held] = Held(agent.pid)
        """Held while it lives."""
        self.on_ended: List[Callable[[str], None]] = []
        """Callbacks for when everything in the place has ended, called with the agent's last words."""

    def describe(self) -> Dict[str, Any]:
        """Return its entry in a list of places."""
        left = _read_json(os.path.join(self.home, LEFT)) if self.held is None else None
        return {
            "place": os.path.basename(self.home),
            "system": self.config.get("system"),
            "port": self.port,
            "is_alive": self.held is not None,
            "left": left,
        }


class NodeServer:
    """The server's state. `config` is that of all node servers of a run, `name` the node's."""

    def __init__(
        self, config: Mapping[str, Any], report: str, name: str, base: str, listener: socket.socket
    ) -> None:
        """`report` is the file that says where it listens, `base` the parent of its agents' directories."""
        self._config, self._report, self._name, self._base = config, report, name, base
        self._places: Dict[str, Place] = {}
        self._peers: Set[Peer] = set()
        self._epoch = 0
        self._done = False
        self._signal: Optional[int] = None
        self._is_going = False
        self._loop = Loop()
        self._hear_signals()
        self._door = Door(self._loop, self._ordered, self._gone, lambda: None)
        own = tls.Identity(config["identity"]["own"], config["identity"]["trusts"])
        self._door.open(listener, tls.TlsEntrance(own, config["silence_timeout_s"]))
        address = {
            "node": name,
            "host": socket.gethostname(),
            "port": listener.getsockname()[1],
            "pid": os.getpid(),
            "started": started(os.getpid()),
        }
        _write(report, json.dumps(address))

    def run(self) -> None:
        """Serve until asked to leave, or until no orchestrator has come for `orphan_timeout_s` and no agent lives."""
        self._orphaned()
        self._look()
        try:
            while not self._done:
                self._loop.step()
        finally:
            self._close()

    def _close(self) -> None:
        for place in list(self._places.values()):
            if place.held is not None:
                place.held.send(signal.SIGKILL)
        strays.end_strays(self._base)
        shutil.rmtree(self._base, ignore_errors=True)
        for peer in self._peers:
            peer.flush(1.0)
        with contextlib.suppress(OSError):
            os.unlink(self._report)

    # -- signals ----------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        """Handle SIGTERM and SIGINT as go, the second time at once; ignore other signals of schedulers."""
        self._hear, self._ring = socket.socketpair()
        self._hear.setblocking(False)
        self._ring.setblocking(False)
        signal.set_wakeup_fd(self._ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._loop.watch(self._hear, self._woken)

    def _look(self) -> None:
        """Go once the run has given the allocation back: in a job of the user's own nothing else ends this process."""
        if os.path.exists(os.path.join(os.path.dirname(self._report), RELEASED)):
            self._go()
        else:
            self._loop.after("look", LOOK_S, self._look)

    def _on_signal(self, number: int, _: Any) -> None:
        self._signal = number

    def _woken(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._hear.recv(64)
        number, self._signal = self._signal, None
        # Schedulers send SIGTERM more than once: a repeated one is not a second notice.
        if number is not None and not (self._is_going and number == signal.SIGTERM):
            self._go()

    def _go(self) -> None:
        """Pass the notice on to the agents, and leave when they have gone; leave at once at a second notice."""
        living = [place for place in self._places.values() if place.held is not None]
        if self._is_going or not living:
            self._done = True
            return
        self._is_going = True
        notice_s = max(float(place.config.get("notice_s") or 0.0) for place in living)
        self._loop.after("gone", notice_s + LEAVE_TIMEOUT_S, self._leave)
        for place in living:
            assert place.held is not None
            place.held.send(signal.SIGTERM, signal.SIGCONT)

    def _leave(self) -> None:
        self._done = True

    # -- orders -----------------------------------------------------------------------------------

    def _ordered(self, peer: Peer, message: Dict[str, Any]) -> None:
        try:
            if peer in self._peers:
                self._obey(peer, message)
            else:
                self._attach(peer, message)
        except RequestError as exc:
            peer.send({"ev": "failed", "id": message.get("id"), "why": str(exc)})
            self._door.dismiss(peer)

    def _attach(self, peer: Peer, message: Dict[str, Any]) -> None:
        if message.get("op") != "attach":
            raise RequestError("attach first")
        if message.get("version") != frames.VERSION:
            raise RequestError(f"this node server speaks protocol version {frames.VERSION}")
        if message.get("run") != self._config["run"]:
            raise RequestError("this node server belongs to another run")
        key = message.get("key")
        if not isinstance(key, str) or not fits(key, self._config["verifiers"]):
            raise RequestError("wrong key")
        self._door.admit(peer)
        self._peers.add(peer)
        self._loop.drop("orphan")
        peer.send({"ev": "attached", "version": frames.VERSION, "node": self._name, "pid": os.getpid()})

    def _obey(self, peer: Peer, message: Dict[str, Any]) -> None:
        op, number = message.get("op"), message.get("id")
        if op == "start":
            peer.send({"ev": "done", "id": number, **self._start(message)})
        elif op == "end":
            self._end(_names(message), lambda said: peer.send({"ev": "done", "id": number, "said": said}))
        elif op == "list":
            places = [place.describe() for place in self._places.values()]
            peer.send({"ev": "done", "id": number, "places": places, "is_going": self._is_going})
        elif op == "leave":
            peer.send({"ev": "done", "id": number})
            self._go()
        else:
            raise RequestError(f"unknown order {op!r}")

    def _gone(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self._orphaned()

    def _orphaned(self) -> None:
        """Start waiting for an orchestrator, unless agents live: they have one, or a time limit of their own."""
        if not self._peers and all(place.held is None for place in self._places.values()):
            self._loop.after("orphan", self._config["orphan_timeout_s"], self._leave)

    # -- agents -----------------------------------------------------------------------------------

    def _start(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Start the agent of a place; a living one stays as it is."""
        name, config, env = message.get("place"), message.get("config"), message.get("env", {})
        if not isinstance(name, str) or not _PLACE.fullmatch(name):
            raise RequestError(f"{name!r} is not the name of a place")
        if (
            not isinstance(config, dict)
            or not isinstance(config.get("network"), dict)
            or not isinstance(env, dict)
        ):
            raise RequestError("an agent needs a configuration with a network")
        if self._is_going:
            raise RequestError("this node is being ended")
        epoch = config.get("epoch")
        if not isinstance(epoch, int) or epoch < self._epoch:
            raise RequestError(f"fenced: an orchestrator of epoch {self._epoch} has taken over")
        self._epoch = epoch
        known = self._places.get(name)
        if known is not None:
            if known.held is not None and not known.on_ended:
                return {"port": known.port, "pid": known.agent.pid}
            raise RequestError(f"{name} exists already, without its agent: end it first")
        try:
            place = self._started(name, config, env)
        except (OSError, TypeError, ValueError) as exc:
            raise RequestError(f"its agent cannot be started: {exc}") from exc
        self._places[name] = place
        assert place.held is not None
        self._loop.drop("orphan")
        self._loop.watch(place.held, lambda _: self._agent_ended(place))
        return {"port": place.port, "pid": place.agent.pid}

    def _started(self, name: str, config: Dict[str, Any], env: Mapping[str, Any]) -> Place:
        home = os.path.join(self._base, name)
        shutil.rmtree(home, ignore_errors=True)
        os.makedirs(os.path.join(home, "tmp"), mode=0o700)
        listener = tls.listening(0)
        if listener is None:
            raise OSError("no port is free")
        with listener:
            port = listener.getsockname()[1]
            whole = {
                **config,
                "directory": home,
                "socket": os.path.join(home, "agent.sock"),
                "orchestrator_uid": os.getuid(),
                "network": {**config["network"], "port": port, "fd": listener.fileno()},
            }
            path = os.path.join(home, "agent.json")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                json.dump(whole, file)
            with open(os.path.join(home, "agent.log"), "ab") as log:
                agent = subprocess.Popen(
                    [sys.executable, "-I", "-S", PACKAGE_DIRECTORY, path],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**agent_environment(os.environ, env), "TMPDIR": os.path.join(home, "tmp")},
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,
                )
        return Place(home, config, port, agent)

    def _agent_ended(self, place: Place) -> None:
        assert place.held is not None
        self._loop.forget(place.held)
        place.held.close()
        place.held = None
        place.agent.wait()
        if place.on_ended:
            self._clean(place)
        if self._is_going and all(each.held is None for each in self._places.values()):
            self._done = True
        self._orphaned()

    def _end(self, names: List[str], then: Callable[[Dict[str, str]], None]) -> None:
        """End agents and everything in their places, remove these, and call `then` once all are gone."""
        said: Dict[str, str] = {}
        found = [(name, self._places[name]) for name in names if name in self._places]
        left = {name for name, _ in found}

        def ended(name: str, words: str) -> None:
            if words:
                said[name] = words
            left.discard(name)
            if not left:
                then(said)

        for name, place in found:
            place.on_ended.append(lambda words, name=name: ended(name, words))  # type: ignore[misc]
            if place.held is None:
                self._clean(place)
            elif len(place.on_ended) == 1:
                # It ends whatever runs below it, then itself; SIGCONT lets a stopped one hear it.
                place.held.send(signal.SIGINT, signal.SIGCONT)
                self._loop.after(f"end {name}", LEAVE_TIMEOUT_S, lambda place=place: _kill(place))  # type: ignore[misc]
        if not found:
            then(said)

    def _clean(self, place: Place) -> None:
        """End what outlived an agent that did not exit cleanly, and remove its place."""
        name = os.path.basename(place.home)
        self._loop.drop(f"end {name}")
        words = ""
        if os.path.exists(os.path.join(place.home, "agent.sock")):  # an agent that exits cleanly removes it
            strays.end_strays(place.home)
            words = _last_words(os.path.join(place.home, "agent.log"))
        shutil.rmtree(place.home, ignore_errors=True)
        self._places.pop(name, None)
        waiting, place.on_ended = place.on_ended, []
        for call in waiting:
            call(words)


def agent_environment(own: Mapping[str, str], given: Mapping[str, Any]) -> Dict[str, str]:
    """Return the environment of an agent: this node's, without a step's task variables, changed by the given ones.

    Null unsets a variable. A scheduler that sends SIGTERM to a node server sends it to agents and ranks as well.
    """
    kept = {name: value for name, value in own.items() if not OF_A_TASK.fullmatch(name)}
    whole = {**kept, NOTICE_VARIABLE: "1", **given}
    return {name: str(value) for name, value in whole.items() if value is not None}


def base_of(run: str, tenure: str, node: str, tmp: str) -> str:
    """Return the directory of a node server's agents: on a disk of the node, short enough for paths of sockets."""
    digest = hashlib.sha256("\0".join((run, tenure, node)).encode()).hexdigest()[:16]
    name = f"prefect-ft-{os.getuid()}/node-{digest}"
    base = os.path.join(tmp, name)
    return base if len(os.fsencode(base)) <= MAX_BASE_BYTES else os.path.join("/tmp", name)  # noqa: S108  (checked below)


def _made(base: str) -> str:
    """Make a directory for this user alone, removing what an earlier server left there; raises OSError."""
    strays.end_strays(base)
    shutil.rmtree(base, ignore_errors=True)
    parent = os.path.dirname(base)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    status = os.lstat(parent)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"{parent} belongs to another user, or others can write to it")
    os.mkdir(base, 0o700)
    return base


def _names(message: Dict[str, Any]) -> List[str]:
    names = message.get("places")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError("an end needs places")
    return list(dict.fromkeys(names))


def _kill(place: Place) -> None:
    if place.held is not None:
        place.held.send(signal.SIGKILL)


def _last_words(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()[-LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
    return ""


def _read_json(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write(path: str, text: str) -> None:
    """Write a file whole or not at all; raises OSError."""
    new = f"{path}.{os.getpid()}"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)


def main(argv: List[str]) -> int:
    """Serve; `argv` is the configuration of all node servers of a run, and the directory of the allocation."""
    path, directory = argv
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    base = _made(base_of(config["run"], os.path.basename(directory), name, tempfile.gettempdir()))
    listener = tls.listening(0)
    if listener is None:
        return 1
    sys.stderr.write(
        f"prefect-ft: node server of {name}, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n"
    )
    NodeServer(config, os.path.join(directory, f"{name}.json"), name, base, listener).run()
    return 0
