"""Connections of strangers to an agent's ports, and how often an agent's loop has turned meanwhile."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


class Turns:
    """Counts the steps of an agent's loop; `fault` is code for its `loop.py`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(8))
        self.fault = f"""
import mmap, os
_file = os.open({str(path)!r}, os.O_RDWR)
_count = memoryview(mmap.mmap(_file, 8)).cast("q")
os.close(_file)
_step = Loop.step
def _counted(self):
    _count[0] += 1
    _step(self)
Loop.step = _counted
"""

    def __call__(self) -> int:
        return int(struct.unpack("q", self._path.read_bytes())[0])


class Crowd:
    """Strangers that connect and say nothing, until they are let go."""

    def __init__(self, count: int, *ports: int, source: str = "127.0.0.1") -> None:
        self._stack = ExitStack()
        self.connections = [
            self._stack.enter_context(
                socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
            )
            for port in ports
            for _ in range(count)
        ]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listening_at(pid: int) -> set[tuple[str, int]]:
    """The addresses and ports at which a process listens."""
    inodes = {_inode(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].partition(":")
                words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                host = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
                found.add((host, int(port, 16)))
    return found


def _inode(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
