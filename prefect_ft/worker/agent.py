"""The agent: one small server in each worker that starts, watches and ends the worker's ranks.

It owns the worker and decides nothing: it carries out the orders of the orchestrator that is attached and
reports. Single-threaded but for the looks at checkpoints, event-driven, idle between events but for one
tick a period. Training goes on without an orchestrator; one that attaches gets what it missed.
`protocol` has the orders and events, docs/agent-protocol.md what they mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from prefect_ft.heartbeat import NOTICE_VARIABLE
from prefect_ft.worker import PACKAGE_DIRECTORY, frames, protocol
from prefect_ft.worker.announcing import Announcements
from prefect_ft.worker.checkpoint_watch import Answer, CheckpointWatch, criteria_of
from prefect_ft.worker.container import own_container
from prefect_ft.worker.devices import DeviceMeter
from prefect_ft.worker.door import Door, for_users
from prefect_ft.worker.execution import Execution
from prefect_ft.worker.keys import fits
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.partition import Partition
from prefect_ft.worker.peer import Peer
from prefect_ft.worker.processes import become_subreaper, started
from prefect_ft.worker.protocol import RefusedError, Token
from prefect_ft.worker.reporter import Reporter
from prefect_ft.worker.sampling import Sampling
from prefect_ft.worker.spool import Keeping

LEFT = "left.json"
"""The file in its directory in which an agent that leaves by itself records how the attempt stood."""

PID = "agent.pid"
"""Its pid and when it started (clock ticks since boot), in its directory."""

MAX_EPOCH_STEP = 10_000
"""The most by which an orchestrator's epoch may exceed the last one; a larger step is refused as invalid."""

LAST_WORDS_S = 1.0
"""How long an agent that leaves waits for its last reports to be read."""


class Agent:
    """The server's state. `config` is the content of agent.json: see docs/agent-protocol.md."""

    def __init__(self, config: Dict[str, Any], listener: socket.socket) -> None:
        self._config = config
        self._epoch: int = config["epoch"]
        self._done = False
        self._stop_requested = False
        self._leaves_at: Optional[float] = None
        """When it leaves after a signal that came while ranks ran; None: no signal came."""
        io_directory = os.path.join(config["directory"], "io")
        os.makedirs(io_directory, mode=0o700, exist_ok=True)
        _write(os.path.join(config["directory"], PID), "%d %d" % (os.getpid(), started(os.getpid()) or 0))
        self._locks = [_locked(directory) for directory in (config["directory"], PACKAGE_DIRECTORY)]
        if config["system_lock"]:
            self._locks.append(_locked(os.path.dirname(config["system_lock"])))
            self._locks.append(_shared_lock(config["system_lock"]))
        self._loop = Loop()
        self._hear_signals()
        self._reporter = Reporter()
        self._checkpoints = CheckpointWatch(config["checkpoints"]) if config["checkpoints"] else None
        self._announcements = Announcements()
        self._choosing: Optional[int] = None
        """The number of the question for whose `chosen` the attached orchestrator waits."""
        container = own_container()
        self._execution = Execution(
            io_directory,
            Keeping(config["spool_bytes"], stays=config["output"] == "workers", signs=config["signs"]),
            loop=self._loop,
            reporter=self._reporter,
            checkpoints=self._checkpoints,
            sampling=Sampling(
                config["sample_period_s"],
                lambda: DeviceMeter(config["device_command"]),
                container,
                self._loop,
                self._reporter,
            ),
            container=container,
            on_idle=self._orphaned,
            rendezvous=config["rendezvous"],
            warm=config["warm"],
            detect=config.get("detect"),
        )
        self._door = Door(self._loop, self._ordered, self._gone, self._execution.hand_on)
        self._door.open(listener, for_users(os.getuid(), 0, config["orchestrator_uid"]))
        if self._checkpoints is not None:
            self._checkpoints.follow(self._execution.last_step)
        self._partition = self._open_to_the_network(**config["network"]) if config["network"] else None

    def _open_to_the_network(
        self,
        *,
        port: int,
        identity: Dict[str, str],
        silence_timeout_s: float,
        partition_timeout_s: float,
        api: List[Tuple[str, int]],
        fd: Optional[int] = None,
    ) -> Partition:
        from prefect_ft.worker import tls  # noqa: PLC0415  (most agents are reached by files, and need none)

        listener = tls.listening(port) if fd is None else socket.socket(fileno=fd)
        if listener is not None:
            own = tls.Identity(identity["own"], identity["trusts"])
            self._door.open(listener, tls.TlsEntrance(own, silence_timeout_s))
        return Partition(
            self._loop,
            partition_timeout_s,
            api,
            port if fd is None else None,
            is_attached=lambda: self._reporter.peer is not None,
            is_idle=lambda: self._execution.is_idle,
            on_cut=self._cut_off,
        )

    def _cut_off(self, silent_s: float) -> None:
        """End the ranks: an orchestrator on the other side of the partition may have started them elsewhere."""
        sys.stderr.write(f"prefect-ft: ended its ranks: no orchestrator for {silent_s:g} s\n")
        self._execution.stop(0, complete=False)

    def run(self) -> None:
        """Serve until asked to leave, or until no orchestrator has attached for `orphan_timeout_s`."""
        if self._checkpoints is not None:
            self._loop.watch(self._checkpoints, lambda _: self._report_looks())
        self._orphaned()
        self._tick()
        try:
            while not self._done:
                self._loop.step()
        finally:
            self._close()

    def leave(self) -> None:
        """End the ranks and then the agent itself. Idempotent."""
        self._done = True

    def _close(self) -> None:
        self._execution.close()
        if self._reporter.peer is not None:
            self._reporter.peer.flush(LAST_WORDS_S)
        if self._done:  # after an error the socket stays: it shows that the agent died
            with contextlib.suppress(OSError):
                os.unlink(self._config["socket"])

    def _hear_signals(self) -> None:
        """Handle SIGTERM as go and SIGINT as leave; the wake-up descriptor interrupts the selector's wait.

        SIGHUP, and the signals by which a scheduler announces a job's end to all its processes, get a handler that does
        nothing: ranks would inherit an ignored signal. Signals that are ignored already, by `nohup` or in a shell's
        background, stay ignored, for the agent and the ranks.
        """
        self._hear, self._ring = socket.socketpair()
        self._hear.setblocking(False)
        self._ring.setblocking(False)
        signal.set_wakeup_fd(self._ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm())
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, lambda *_: self.leave())
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        self._loop.watch(self._hear, self._woken)

    def _on_sigterm(self) -> None:
        self._stop_requested = True

    def _woken(self, _: int) -> None:
        self._hear.recv(64)  # the signal's handler has noted it
        if self._stop_requested:
            self._stop_requested = False
            self._go()

    # -- going ------------------------------------------------------------------------------------

    def _go(self) -> None:
        """Leave; with ranks running, leave after the notice: an attached orchestrator has them save and ends them.

        If no orchestrator is attached, the agent asks them to save. A second signal ends it at once.
        """
        notice_s = self._config["notice_s"]
        if self._leaves_at is not None and NOTICE_VARIABLE in os.environ:
            return  # the scheduler's own signal, besides that of this agent's parent
        if not notice_s or self._execution.is_idle or self._leaves_at is not None:
            self.leave()
            return
        self._leaves_at = time.monotonic() + notice_s
        self._loop.after("go", notice_s, self.leave)
        self._save_alone()
        self._send_leaving()

    def _save_alone(self) -> None:
        """Ask the ranks to save before the worker goes, where no orchestrator is attached to do so."""
        if self._leaves_at is not None and self._reporter.peer is None:
            self._execution.ask_checkpoint(None)

    def _send_leaving(self) -> None:
        if self._leaves_at is not None:
            self._reporter.send("leaving", within_s=max(0.0, self._leaves_at - time.monotonic()))

    def _tick(self) -> None:
        self._loop.after("tick", self._config["sample_period_s"], self._tick)
        self._execution.tick()
        self._look_again()

    # -- checkpoints ------------------------------------------------------------------------------

    def _look_again(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.look_again()

    def _report_looks(self) -> None:
        assert self._checkpoints is not None
        for answer in self._checkpoints.answers():
            if self._reporter.peer is not None:
                for name, fields in self._announcements.of(answer):
                    self._reporter.send(name, **fields)
            if answer.number is None:
                continue
            if answer.number == self._choosing:
                self._send_chosen(answer)
            self._execution.on_looked(answer.number, answer.why_not)

    def _send_chosen(self, answer: Answer) -> None:
        chosen = answer.chosen
        step, path = (chosen.step, chosen.path) if chosen else (None, None)
        self._reporter.send("chosen", step=step, path=path, why_not=answer.why_not)

    # -- orders -----------------------------------------------------------------------------------

    def _ordered(self, peer: Peer, message: Dict[str, Any]) -> None:
        try:
            op = protocol.checked(message)
            if op == "attach":
                self._attach(peer, message)
            elif peer is not self._reporter.peer:
                raise RefusedError("attach first")
            else:
                self._obey(op, message)
        except RefusedError as exc:
            answer = {"op": message.get("op"), "why": str(exc), "epoch": self._epoch}
            peer.send({"ev": "refused", "token": self._reporter.token, **answer, **self._versions()})
            self._door.dismiss(peer)

    def _versions(self) -> Dict[str, Any]:
        """Return the version of the protocol, and the release of prefect-ft that started this agent."""
        return {"version": frames.VERSION, "release": self._config.get("release")}

    def _attach(self, peer: Peer, message: Dict[str, Any]) -> None:
        if message["version"] != frames.VERSION:
            raise RefusedError(f"this agent speaks protocol version {frames.VERSION}")
        if message["run"] != self._config["run"]:
            raise RefusedError("this agent belongs to another run")
        if not fits(message["key"], self._config["verifiers"]):
            raise RefusedError("wrong key")
        if message["epoch"] < self._epoch:
            raise RefusedError(f"fenced: an orchestrator of epoch {self._epoch} has taken over")
        if message["epoch"] > self._epoch + MAX_EPOCH_STEP:
            raise RefusedError(f"epoch {message['epoch']} is too far above {self._epoch}, the last one")
        self._take_over(peer, message["epoch"])
        self._loop.drop("orphan")
        self._reporter.send(
            "attached",
            **self._versions(),
            worker=self._config["worker"],
            system=self._config["system"],
            pid=os.getpid(),
            **self._execution.describe(),
        )
        self._execution.report_to_newcomer(message["have"])
        self._send_leaving()
        self._announcements.forget()
        self._look_again()

    def _take_over(self, peer: Peer, epoch: int) -> None:
        """Attach `peer`; a connection displaced by a higher epoch gets `superseded`."""
        before = self._reporter.peer
        if before is not None and before is not peer:
            if epoch > self._epoch:
                self._reporter.send("superseded", epoch=epoch)
            before.close()
        self._execution.reader_gone()
        self._choosing = None
        self._door.admit(peer)
        self._epoch, self._reporter.peer = epoch, peer

    def _obey(self, op: str, message: Dict[str, Any]) -> None:
        """Carry out an order if its token is not below what was seen; a start's must be above."""
        token: Token = tuple(message["token"])
        seen = self._reporter.token
        if token[0] != self._epoch:
            raise RefusedError(f"fenced: token {list(token)} is not of epoch {self._epoch}")
        if token < seen or (op == "start" and token == seen):
            raise RefusedError(f"fenced: token {list(token)} is not above {list(seen)}")
        if op == "choose":
            self._choose(message)
        elif op == "start":
            self._start(token, message)
        elif op == "checkpoint":
            self._execution.ask_checkpoint(message["signal"])
        elif op == "watch":
            self._execution.watch(message["period_s"])
        elif op == "diagnose":
            self._execution.diagnose(message["timeout_s"])
        elif op == "stop":
            self._execution.stop(message["grace_s"], complete=message["complete"])
        else:
            self.leave()

    def _start(self, token: Token, message: Dict[str, Any]) -> None:
        self._execution.start(token, message)
        if self._checkpoints is not None:
            self._checkpoints.begin()
        if self._partition is not None:
            self._partition.begin(message.get("peers", []))

    def _choose(self, message: Dict[str, Any]) -> None:
        if self._checkpoints is None:
            raise RefusedError("this worker has no checkpoints to choose from")
        self._announcements.know(message.get("verified", []))
        self._checkpoints.writers_died(*message["deaths"])
        self._choosing = self._checkpoints.choose(criteria_of(message))

    # -- the orchestrator's absence ---------------------------------------------------------------

    def _gone(self, peer: Peer) -> None:
        if peer is self._reporter.peer:
            self._reporter.peer = None
            self._execution.reader_gone()
            self._save_alone()
            self._orphaned()

    def _orphaned(self) -> None:
        """Start waiting for an orchestrator, unless ranks are running: training goes on without one."""
        if self._reporter.peer is not None or not self._execution.is_idle:
            return
        if self._leaves_at is not None:
            self.leave()
        else:
            self._loop.after("orphan", self._config["orphan_timeout_s"], self._leave_alone)

    def _leave_alone(self) -> None:
        """Leave because no orchestrator came, and record how the attempt stood for one that comes later."""
        result = {
            "token": self._reporter.token,
            "utc": time.time(),
            **self._execution.describe(),
            "excerpts": self._execution.excerpts(),
        }
        _write(os.path.join(self._config["directory"], LEFT), json.dumps(result))
        self.leave()


def _locked(directory: str) -> int:
    """Hold a shared lock on a directory: cleaners of temporary files (systemd-tmpfiles) skip it."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # some file systems have no locks, and then no cleaner either
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return fd


def _shared_lock(path: str) -> int:
    """Hold the system for the run, as this agent's parent does; raises OSError if another run was faster."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return fd


def _write(path: str, text: str) -> None:
    """Write a file atomically; on a full disk, only the file's content is lost."""
    with contextlib.suppress(OSError):
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)


def _listening(path: str) -> socket.socket:
    """Listen at a path; the socket appears there once it takes connections, and replaces what was there."""
    new = path + ".new"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    listener.bind(new)
    listener.listen()
    os.replace(new, path)
    return listener


def main(argv: List[str]) -> int:
    """Serve on the inherited socket `--fd N`, or on the configuration's own path; `argv[0]` is agent.json."""
    with open(argv[0], encoding="utf-8") as file:
        config = json.load(file)
    is_inherited = argv[1:2] == ["--fd"]
    serve(config, socket.socket(fileno=int(argv[2])) if is_inherited else None)
    return 0


def serve(config: Dict[str, Any], listener: Optional[socket.socket] = None) -> None:
    """Run the agent until it leaves; without `listener` it listens at the configuration's own path."""
    become_subreaper()
    Agent(config, listener or _listening(config["socket"])).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
