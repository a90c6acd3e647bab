"""What runs in the virtual machine of `nfs_machine.py`: a server of NFS and two clients of it, and tests on them.

`python nfs_guest.py OPTIONS COMMAND…`: a command runs on the first, its words get the mount for {0}.
The clients are namespaces with networks, names and processes of their own, so that the kernel keeps apart what it knows
for each of them.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

EXPORT, MOUNTS = Path("/srv/export"), Path("/srv/client")
LEASE_S = 5.0
DEADLINE_S = 240.0
"""More than attributes are remembered for by default (60 s)."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def call(*words: str) -> None:
    subprocess.run(words, check=True)


def serve() -> None:
    """Export a directory of a disk."""
    EXPORT.mkdir(parents=True)
    MOUNTS.mkdir()
    call("mount", "-t", "ext4", "/dev/vda", str(EXPORT))
    EXPORT.chmod(0o777)
    call("mount", "-t", "tmpfs", "run", "/run")
    call("mount", "-t", "tmpfs", "state", "/var/lib/nfs")
    for name in ("etab", "rmtab", "xtab"):
        Path("/var/lib/nfs", name).touch()
    for name in ("v4recovery", "sm", "sm.bak"):
        Path("/var/lib/nfs", name).mkdir()
    call("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
    Path("/etc/exports").write_text(f"{EXPORT} *(rw,sync,no_root_squash,no_subtree_check,fsid=0,insecure)\n")
    call("ip", "link", "set", "lo", "up")
    call("rpcbind", "-w")
    call("exportfs", "-a")
    call("rpc.mountd")
    call("rpc.nfsd", "--grace-time", "10", "--lease-time", "10", "8")


class Client:
    """A client of the server: a machine of its own, as far as the kernel is concerned."""

    def __init__(self, number: int, options: str) -> None:
        self.number, self._space = number, f"c{number}"
        here, there = f"10.9.{number}.1", f"10.9.{number}.2"
        call("ip", "netns", "add", self._space)
        call("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", self._space)
        call("ip", "addr", "add", f"{here}/24", "dev", f"v{number}")
        call("ip", "link", "set", f"v{number}", "up")
        call("ip", "-n", self._space, "addr", "add", f"{there}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            call("ip", "-n", self._space, "link", "set", name, "up")
        source = f"{here}:{EXPORT}" if "vers=3" in options else f"{here}:/"
        mount = f"mount -t nfs -o {options} {source} {MOUNTS}"
        script = f"hostname {self._space}; rpcbind -w; rpc.statd; {mount} && exec sleep infinity"
        self._first = subprocess.Popen(
            ["ip", "netns", "exec", self._space, "unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc",
             "sh", "-c", f"mount -t tmpfs run /run; {script}"]
        )  # fmt: skip
        deadline_s = time.monotonic() + DEADLINE_S
        while subprocess.run([*self._enter(), "mountpoint", "-q", str(MOUNTS)], check=False).returncode:
            assert time.monotonic() < deadline_s
            assert self._first.poll() is None
            time.sleep(0.2)

    def _enter(self) -> list[str]:
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        if not children:
            return ["false"]
        return [
            "nsenter",
            f"--target={children[0]}",
            "--net",
            "--uts",
            "--mount",
            "--pid",
            f"--wd={os.getcwd()}",
            "--",
        ]

    def popen(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._enter(), *words], stdout=subprocess.PIPE, text=True)

    def run(self, words: Sequence[str]) -> int:
        return subprocess.run([*self._enter(), *words], check=False).returncode

    def options(self) -> str:
        told = subprocess.run(
            [*self._enter(), "cat", "/proc/mounts"], capture_output=True, text=True, check=True
        )
        return next(line.split()[3] for line in told.stdout.splitlines() if f" {MOUNTS} " in line)

    def link(self, state: str) -> None:
        call("ip", "link", "set", f"v{self.number}", state)


class Holder:
    """A process on a client that wants to hold a model directory."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._process = client.popen(
            sys.executable, str(Path(__file__).with_name("leasing.py")), str(MOUNTS / "model"), str(LEASE_S)
        )

    def says(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), "says nothing"
        return self._process.stdout.readline().strip()

    def send(self, number: signal.Signals) -> None:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(children[0]), number)

    def end(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait()


def measured(holder: Holder) -> tuple[str, float]:
    began_s = time.monotonic()
    return holder.says(), round(time.monotonic() - began_s, 1)


def two_clients(first: Client, second: Client) -> dict[str, object]:
    """Have holders on both: refused, stopped, taken over from, cut off, taken over from again."""
    told: dict[str, object] = {"options": first.options(), "lease_s": LEASE_S}
    one = Holder(first)
    told["first"] = one.says()
    told["second while the first lives"] = [measured(Holder(second)) for _ in range(2)]
    one.send(signal.SIGSTOP)
    two = Holder(second)
    told["second while the first is stopped"] = measured(two)
    one.send(signal.SIGCONT)
    told["first that goes on"] = measured(one)
    second.link("down")
    three = Holder(first)
    told["first while the second is cut off"] = measured(three)
    second.link("up")
    told["second that is back"] = measured(two)
    three.end()
    return told


def main(options: str, *command: str) -> int:
    serve()
    clients = [Client(number, options) for number in (1, 2)]
    if command:
        say(f"options {clients[0].options()}")
        return clients[0].run([word.replace("{0}", str(MOUNTS)) for word in command])
    say(json.dumps(two_clients(*clients)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
