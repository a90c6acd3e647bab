"""The agent: one small server in each worker that starts, watches and ends the worker's ranks.

It owns the worker's processes and the connection to the orchestrator, and it decides nothing: it carries
out orders and reports. Single-threaded, event-driven, idle between events but for one tick a period.
Training goes on while nobody is attached; who attaches is told what it missed.

Orders (`op`): `attach`, `choose`, `start`, `stop`, `leave`. Events (`ev`): `attached`, `chosen`,
`started`, `start_failed`, `exited`, `output`, `dropped`, `beat`, `checkpoints`, `stopped`, `refused`.
Each order after `attach` carries a fencing token; docs/agent-protocol.md has the fields.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from prefect_ft.worker import frames, inotify
from prefect_ft.worker.checkpoint_watch import Answer, CheckpointWatch
from prefect_ft.worker.gang import Gang, Rank, Token
from prefect_ft.worker.peer import Peer
from prefect_ft.worker.processes import become_subreaper

COALESCE_S = 0.05
"""How long changes of output are gathered before they are read: bounds the cost of a chatty rank."""

FLUSH_S = 5.0
"""How long the end of an attempt waits for a reader who does not keep up with the output."""

LOOK_DELAY_S = 0.25
"""How long after a change in the checkpoint directory it is looked at."""


class Refused(Exception):
    """An order that must not be carried out; the text goes back to who gave it."""


def now_s() -> float:
    """Give the time since boot in seconds; it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Agent:
    """The server's state. `config` is the content of agent.json: see docs/agent-protocol.md."""

    def __init__(self, config: Dict[str, Any], listener: socket.socket) -> None:
        self._config = config
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._peer: Optional[Peer] = None
        self._epoch = 0
        self._token: Token = (0, -1, 0)
        self._gang: Optional[Gang] = None
        self._done = False
        self._timers: Dict[str, Tuple[float, Callable[[], None]]] = {}
        self._io_directory = os.path.join(config["directory"], "io")
        self._changes = inotify.Inotify()
        self._checkpoints = CheckpointWatch(config["checkpoints"]) if config["checkpoints"] else None
        self._checkpoint_watch: Optional[int] = None
        self._announced: List[Tuple[int, str, float]] = []
        self._port = _reserve_port()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to leave, or until nobody has come for `orphan_timeout_s`."""
        os.makedirs(self._io_directory, mode=0o700, exist_ok=True)
        self._lock_directory()
        self._hear_signals()
        self._changes.watch(self._io_directory, inotify.MODIFY)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())
        self._selector.register(self._changes, selectors.EVENT_READ, lambda _: self._files_changed())
        if self._checkpoints is not None:
            self._selector.register(self._checkpoints, selectors.EVENT_READ, lambda _: self._looked())
        self._orphaned()
        self._tick()
        while not self._done:
            for key, events in self._selector.select(self._until_next_timer()):
                key.data(events)
            self._run_timers()
        self._close()

    def _lock_directory(self) -> None:
        """Hold a lock on the worker's directory: cleaners of temporary files (systemd-tmpfiles) pass it over."""
        self._directory_fd = os.open(self._config["directory"], os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._directory_fd, fcntl.LOCK_SH)

    def _hear_signals(self) -> None:
        """SIGTERM means leave; without a wake-up the selector would sleep on through it."""
        hear, ring = socket.socketpair()
        hear.setblocking(False)
        ring.setblocking(False)
        signal.set_wakeup_fd(ring.fileno())
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(hear, selectors.EVENT_READ, lambda _: hear.recv(64))
        self._ring = ring

    def leave(self) -> None:
        """End the ranks and then the agent itself. Idempotent."""
        self._done = True

    def _close(self) -> None:
        if self._gang is not None and not self._gang.over:
            self._gang.end()
        if self._peer is not None:
            self._peer.flush(timeout_s=1.0)
        with contextlib.suppress(OSError):
            os.unlink(self._config["socket"])

    def _after(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Call once, `delay_s` from now; a timer of that name that is already set stays."""
        self._timers.setdefault(name, (now_s() + delay_s, call))

    def _until_next_timer(self) -> Optional[float]:
        return max(0.0, min(due for due, _ in self._timers.values()) - now_s()) if self._timers else None

    def _run_timers(self) -> None:
        now = now_s()
        for name in [name for name, (due, _) in self._timers.items() if due <= now]:
            self._timers.pop(name)[1]()

    # -- what happens in the worker ---------------------------------------------------------------

    def _tick(self) -> None:
        self._after("tick", self._config["sample_period_s"], self._tick)
        if self._gang is not None:
            self._gang.reap()
            self._tell_ended()
            self._tell_io()
            for rank in self._gang.ranks.values():
                rank.spool.bound()
        self._look_for_checkpoints()

    def _files_changed(self) -> None:
        """Put looking off a little: a rank that prints a lot must not wake the agent at every line."""
        self._selector.unregister(self._changes)
        self._after("changes", COALESCE_S, self._read_changes)

    def _read_changes(self) -> None:
        self._selector.register(self._changes, selectors.EVENT_READ, lambda _: self._files_changed())
        for change in self._changes.read():
            if self._checkpoints is None or change.watch != self._checkpoint_watch:
                continue
            if change.mask & inotify.MOVED_TO:
                self._checkpoints.renamed(change.name)
            self._after("look", LOOK_DELAY_S, self._look_for_checkpoints)
        self._tell_io()

    def _rank_ended(self) -> None:
        if self._gang is not None:
            self._gang.reap()
            self._tell_ended()

    def _tell_ended(self) -> None:
        """Report the ranks that have ended since the last call, and go on with a stop that waited for them."""
        assert self._gang is not None
        for rank in self._gang.ranks.values():
            if rank.exit is not None and rank.pidfd is not None:
                self._selector.unregister(rank.pidfd)
                rank.close()
                self._send("exited", rank=rank.number, **rank.exit._asdict())
        if self._gang.all_exited and "kill" in self._timers:
            del self._timers["kill"]
            self._kill()
        if self._gang.all_exited:
            self._orphaned()

    def _tell_io(self, final: bool = False) -> None:
        if self._gang is None or self._peer is None:
            return
        for rank in self._gang.ranks.values():
            self._tell_beat(rank)
            self._tell_output(rank, final)

    def _tell_beat(self, rank: Rank) -> None:
        beat = rank.new_beat()
        if beat is not None:
            self._send("beat", rank=rank.number, **beat._asdict())

    def _tell_output(self, rank: Rank, final: bool) -> None:
        if rank.spool.dropped:
            self._send("dropped", rank=rank.number, bytes=rank.spool.dropped)
            rank.spool.dropped = 0
        pieces = rank.spool.pieces(final)
        while self._peer is not None and self._has_room(self._peer, final):
            piece = next(pieces, None)
            if piece is None:
                return
            text = piece[1].decode("utf-8", "surrogateescape")
            self._send("output", rank=rank.number, offset=piece[0], text=text)

    @staticmethod
    def _has_room(peer: Peer, wait: bool) -> bool:
        """Whether more output may be sent; the files keep the rest. With `wait`, give a slow reader time."""
        if peer.congested and wait:
            peer.flush(FLUSH_S)
        return not peer.congested

    # -- checkpoints ------------------------------------------------------------------------------

    def _look_for_checkpoints(self) -> None:
        if self._checkpoints is None:
            return
        if self._checkpoint_watch is None:
            mask = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE
            with contextlib.suppress(OSError):  # not there yet: the script makes it, the next tick sees it
                self._checkpoint_watch = self._changes.watch(self._checkpoints.directory, mask)
        self._checkpoints.look("seen")

    def _looked(self) -> None:
        assert self._checkpoints is not None
        for answer in self._checkpoints.answers():
            self._tell_checkpoints(answer)
            if answer.purpose == "chosen":
                chosen = answer.chosen
                self._send(
                    "chosen",
                    step=chosen.step if chosen else None,
                    path=chosen.path if chosen else None,
                    why_not=answer.why_not,
                )
            elif answer.purpose == "stopped":
                self._tell_stopped()

    def _tell_checkpoints(self, answer: Answer) -> None:
        """Report what is verified now and was not the last time; a comeback is told all of it."""
        found = [(item.step, item.path, item.mtime) for item in answer.found]
        if self._peer is None or found == self._announced:
            return
        new = [{"step": step, "path": path} for step, path, mtime in found if (step, path, mtime) not in self._announced]
        self._announced = found
        self._send("checkpoints", new=new, last=found[-1][0] if found else None)

    # -- orders -----------------------------------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not _same_user(connection):
            connection.close()
            return
        peer = Peer(connection, self._selector, self._order, self._gone)
        peer.start()

    def _order(self, peer: Peer, message: Dict[str, Any]) -> None:
        op = message.get("op")
        try:
            if op == "attach":
                self._attach(peer, message)
            elif peer is not self._peer:
                raise Refused("attach first")
            else:
                self._fenced(op, message)
        except Refused as exc:
            peer.send({"ev": "refused", "op": op, "why": str(exc), "token": self._token, "epoch": self._epoch})

    def _attach(self, peer: Peer, message: Dict[str, Any]) -> None:
        if message.get("version") != frames.VERSION:
            raise Refused(f"this agent speaks protocol version {frames.VERSION}")
        if message.get("run") != self._config["run"]:
            raise Refused("this agent belongs to another run")
        if not hmac.compare_digest(str(message.get("key")).encode(), self._config["key"].encode()):
            raise Refused("wrong key")
        if message["epoch"] < self._epoch:
            raise Refused(f"fenced: an orchestrator of epoch {self._epoch} has taken over")
        if self._peer is not None and self._peer is not peer:
            self._peer.close()
        self._epoch, self._peer = message["epoch"], peer
        self._announced = []
        self._timers.pop("orphan", None)
        self._tell_attached(message.get("have", {}))
        self._look_for_checkpoints()

    def _tell_attached(self, have: Dict[str, int]) -> None:
        gang = self._gang
        ranks = gang.ranks.values() if gang is not None else ()
        self._send(
            "attached",
            version=frames.VERSION,
            worker=self._config["worker"],
            system=self._config["system"],
            pid=os.getpid(),
            port=self._port_number,
            running=[rank.number for rank in ranks if rank.exit is None],
            over=gang is None or gang.over,
            exits={rank.number: rank.exit._asdict() for rank in ranks if rank.exit is not None},
        )
        for rank in ranks:
            rank.last_beat = None
            rank.spool.rewind(have.get(str(rank.number), 0))
        self._tell_io()

    def _fenced(self, op: Any, message: Dict[str, Any]) -> None:
        """Carry out an order if its token is not below what was seen; a start must be above it."""
        token: Token = tuple(message["token"])
        if token < self._token or (op == "start" and token == self._token):
            raise Refused(f"fenced: token {list(token)} is not above {list(self._token)}")
        orders: Dict[Any, Callable[[Dict[str, Any]], None]] = {
            "choose": self._choose,
            "start": self._start,
            "stop": self._stop,
            "leave": lambda _: self.leave(),
        }
        if op not in orders:
            raise Refused(f"no such order: {op}")
        if op == "start":
            self._token = token
        orders[op](message)

    def _choose(self, message: Dict[str, Any]) -> None:
        if self._checkpoints is None:
            raise Refused("this worker has no checkpoints to choose from")
        self._checkpoints.writers_died(*message["deaths"])
        self._checkpoints.choose("chosen", message["limit"], message["avoid"])

    def _start(self, message: Dict[str, Any]) -> None:
        if self._gang is not None:
            if not self._gang.over:
                raise Refused("an attempt is running: stop it first")
            self._gang.remove()
        gang = Gang(self._token, self._io_directory, self._config["spool_bytes"])
        self._port.close()
        ranks = {int(number): env for number, env in message["ranks"].items()}
        self._timers.pop("orphan", None)
        try:
            gang.start(message["command"], message["cwd"], _environment(message["env"]), ranks)
        except OSError as exc:
            self._gang = None
            self._send("start_failed", errno=exc.errno, error=exc.strerror, what=exc.filename)
            return
        self._gang = gang
        for rank in gang.ranks.values():
            assert rank.pidfd is not None
            self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda _: self._rank_ended())
        self._send("started", pids={rank.number: rank.process.pid for rank in gang.ranks.values()})

    def _stop(self, message: Dict[str, Any]) -> None:
        """End the attempt, after `grace_s` of SIGTERM where that is above 0; `stopped` follows."""
        gang = self._gang
        if gang is None or gang.over or gang.all_exited or message["grace_s"] <= 0:
            self._timers.pop("kill", None)
            self._kill()
            return
        gang.terminate()
        self._after("kill", message["grace_s"], self._kill)

    def _kill(self) -> None:
        if self._gang is not None and not self._gang.over:
            self._gang.end()
            self._tell_ended()
        self._port = _reserve_port()
        if self._checkpoints is not None:
            self._checkpoints.writers_died(time.time())
            self._checkpoints.look("stopped")
        else:
            self._tell_stopped()

    def _tell_stopped(self) -> None:
        self._tell_io(final=True)
        stuck = self._gang.stuck if self._gang is not None else []
        self._send("stopped", stuck=stuck, port=self._port_number, time=time.time())

    # -- the orchestrator -------------------------------------------------------------------------

    @property
    def _port_number(self) -> int:
        """A TCP port that nobody else has, kept until the next start."""
        return int(self._port.getsockname()[1])

    def _send(self, event: str, **fields: Any) -> None:
        """Report to who is attached; to nobody otherwise, the next one is told at its attach."""
        if self._peer is not None:
            self._peer.send({"ev": event, "token": self._token, **fields})

    def _gone(self, peer: Peer) -> None:
        if peer is self._peer:
            self._peer = None
            self._orphaned()

    def _orphaned(self) -> None:
        """Start waiting for somebody, unless ranks are running: training does not depend on a watcher."""
        if self._peer is None and (self._gang is None or self._gang.all_exited):
            self._after("orphan", self._config["orphan_timeout_s"], self.leave)


def _reserve_port() -> socket.socket:
    port = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    port.bind(("", 0))
    return port


def _same_user(connection: socket.socket) -> bool:
    """Whether the other side runs as this user, or as root."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (os.getuid(), 0)


def _environment(given: Dict[str, str]) -> Dict[str, str]:
    """Give the ranks' common environment: the worker's own, completed by `given` and the way to this package."""
    env = {"PYTHONUNBUFFERED": "1", **os.environ, **given}
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env["PYTHONPATH"] = os.pathsep.join(part for part in (package, env.get("PYTHONPATH")) if part)
    return env


def main(argv: List[str]) -> int:
    """Serve on the inherited socket `--fd N`, or on the configuration's own path; `argv[0]` is agent.json."""
    with open(argv[0], encoding="utf-8") as file:
        config = json.load(file)
    if argv[1:2] == ["--fd"]:
        listener = socket.socket(fileno=int(argv[2]))
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(config["socket"])
        listener.bind(config["socket"])
        listener.listen()
    become_subreaper()
    Agent(config, listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
