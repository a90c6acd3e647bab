"""Machines of the tests' own: namespaces with a network, a name, a boot and processes of their own.

They share directories as by a file server: what it serves stands still while a machine is cut off, as a hard mount of
NFS does. This machine has an address in their network, and stands for whatever they reach there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agents import DEADLINE_S

from prefect_ft.worker.processes import descendants

NETWORKS = range(1, 200)
"""Numbers for networks: several tests on a machine must not share one."""

PROGRAMS = ("ip", "unshare", "nsenter", "bindfs")

SERVING = ("-f", "-o", "nonempty,attr_timeout=0,entry_timeout=0,negative_timeout=0")
"""In the foreground, and nothing is remembered: each look is a question to the file server."""

_START = """
hostname "$1"
mount --bind "$2/boot" /proc/sys/kernel/random/boot_id
mount --bind "$2/id" /etc/machine-id
mount -t tmpfs -o mode=700 own "$3"
ip link set lo up
exec sleep infinity
"""
"""The first process of a machine: it lives as long as that."""


def why_not() -> str | None:
    """Say what keeps this machine from having others in it; None: nothing that is known."""
    if os.getuid() != 0:
        return "namespaces are made as root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed (apt-get install iproute2 util-linux bindfs)"
    if not Path("/dev/fuse").exists():
        return "the kernel has no FUSE"
    if not Path("/etc/machine-id").exists():
        return "there is no /etc/machine-id to stand before"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.strip() or "namespaces cannot be made" if tried.returncode else None


class Machine:
    """One machine; `own` is a directory that each has for itself, empty at each start, `shared` one of all."""

    def __init__(self, site: Path, name: str, network: int, number: int, shared: Path, own: Path) -> None:
        """`site` is for what is kept of it here."""
        self.name = name
        self._site, self._shared, self._own = site / name, shared, own
        self._space, self._link = f"pft{network}-{number}", f"pftm{network}-{number}"
        self._address = f"10.214.{network}.{number}/24"
        self._bridge = bridge_of(network)
        self._first: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._programs: list[subprocess.Popen[bytes]] = []
        self._site.mkdir()
        (self._site / "id").write_text(f"{uuid.uuid4().hex}\n")

    def plug_in(self) -> None:
        """Make its network."""
        ip("netns", "add", self._space)
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
        ip("link", "set", self._link, "master", self._bridge, "up")
        ip("-n", self._space, "addr", "add", self._address, "dev", "eth0")
        ip("-n", self._space, "link", "set", "eth0", "up")

    def start(self) -> None:
        """Start it: in a new boot, and under the name that it has now."""
        (self._site / "boot").write_text(f"{uuid.uuid4()}\n")
        spaces = (
            "unshare",
            "--uts",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
        )
        words = ("--mount-proc", "sh", "-ec", _START, "sh", self.name, str(self._site), str(self._own))
        with (self._site / "log").open("ab") as log:
            command = ["ip", "netns", "exec", self._space, *spaces, *words]
            self._first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_for(
            lambda: self._call("sh", "-c", f"mountpoint -q {self._own} && ip addr show lo | grep -q UP")
        )
        self._server = self.popen(["bindfs", *SERVING, str(self._shared), str(self._shared)])
        self._wait_for(lambda: self._call("mountpoint", "-q", str(self._shared)))

    def stop(self) -> None:
        """End it at once with all that runs on it, as without power."""
        if self._first is not None:
            self._serve(signal.SIGCONT)  # what waits for files would outlive the machine
            os.kill(self._init(), signal.SIGKILL)
            for program in (self._first, *self._programs):
                program.wait()
            self._first, self._programs = None, []

    def unplug(self) -> None:
        """Remove its network."""
        for what, name in (("link", self._link), ("netns", self._space)):  # with its space a link goes later
            subprocess.run(["ip", what, "del", name], check=False)

    def popen(
        self, words: Sequence[str], *, env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program on it, in the shared directory."""
        with open(log or os.devnull, "ab") as file:
            program = subprocess.Popen(
                [*self._enter(), *words],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._programs.append(program)
        return program

    def kill(self, program: subprocess.Popen[bytes]) -> None:
        """End a program that was started on it by SIGKILL."""
        (inside,) = descendants(program.pid)[:1]
        os.kill(inside, signal.SIGKILL)
        program.wait()

    def cut(self) -> None:
        """Cut it off from network and files; what runs on it goes on, until it wants one of them."""
        ip("link", "set", self._link, "down")
        self._serve(signal.SIGSTOP)

    def join(self) -> None:
        """Have it back."""
        self._serve(signal.SIGCONT)
        ip("link", "set", self._link, "up")

    def _serve(self, number: signal.Signals) -> None:
        assert self._server is not None
        for pid in descendants(self._server.pid):
            os.kill(pid, number)
        if number == signal.SIGCONT:
            self._server.send_signal(number)  # nsenter stops with what it has started

    def _init(self) -> int:
        """Return the machine's first process."""
        assert self._first is not None
        return next(pid for pid in descendants(self._first.pid) if _is_first(pid))

    def _enter(self) -> list[str]:
        own = ("--net", "--uts", "--mount", "--pid", f"--wd={self._shared}")
        return ["nsenter", f"--target={self._init()}", *own, "--"]

    def _call(self, *words: str) -> bool:
        try:
            command = [each for each in self._enter() if not each.startswith("--wd")]
        except StopIteration:
            return False
        return subprocess.run([*command, *words], capture_output=True, check=False).returncode == 0

    def _wait_for(self, holds: object) -> None:
        assert callable(holds)
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline_s, f"{self.name} does not start"
            time.sleep(0.02)


def _is_first(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return len(numbers) > 1 and numbers[-1] == "1"


def bridge_of(network: int) -> str:
    return f"pftm{network}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def network() -> Iterator[int]:
    """Make a network of machines, in which this machine has the address that `address_in` gives."""
    number = next(each for each in NETWORKS if _has_made(each))
    try:
        ip("addr", "add", f"{address_in(number)}/24", "dev", bridge_of(number))
        ip("link", "set", bridge_of(number), "up")
        yield number
    finally:
        ip("link", "del", bridge_of(number))


def _has_made(number: int) -> bool:
    made = subprocess.run(
        ["ip", "link", "add", bridge_of(number), "type", "bridge"], capture_output=True, check=False
    )
    return made.returncode == 0


def address_in(number: int) -> str:
    """Return this machine's address in a network."""
    return f"10.214.{number}.1"


@contextmanager
def machines(site: Path, number: int, shared: Path, own: Path, *names: str) -> Iterator[list[Machine]]:
    """Machines of these names in a network, while entered."""
    with ExitStack() as stack:
        made = []
        for place, name in enumerate(names, 2):
            machine = Machine(site, name, number, place, shared, own)
            stack.callback(machine.unplug)
            machine.plug_in()
            stack.callback(machine.stop)
            machine.start()
            made.append(machine)
        yield made
