"""A file system that never answers: whoever looks for a file in it waits in the kernel, and SIGKILL does not end that.

It is FUSE's protocol, as far as it takes to be mounted; requests are read, and those for names stay unanswered.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import wait_until_ended

_HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extensions, padding
_ANSWER = struct.Struct("<IiQ")  # length, error, unique
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")  # version, read-ahead, flags, …, the largest write, …
_LOOKUP, _INIT, _INTERRUPT, _FORGETS = 1, 26, 36, (2, 42)
_EIO = 5


class FrozenFiles:
    """Mounted at `path` until `release`, when whoever waits is let go."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where this machine or user cannot mount it."""
        self.path = path
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"prefect-ft-test", os.fsencode(path), b"fuse", 0, options) != 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number))
        self._waiting: set[int] = set()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 20)
            except OSError:  # it is not mounted any more
                return
            _, opcode, unique, _, _, _, pid, _, _ = _HEADER.unpack_from(request)
            if opcode == _LOOKUP:
                self._waiting.add(pid)
            elif opcode == _INIT:
                self._answer(unique, 0, _INIT_OUT.pack(7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0))
            elif opcode not in (_INTERRUPT, *_FORGETS):
                self._answer(unique, _EIO)

    def _answer(self, unique: int, error: int, content: bytes = b"") -> None:
        os.write(self._fd, _ANSWER.pack(_ANSWER.size + len(content), -error, unique) + content)

    def release(self) -> None:
        """Unmount it; returns when nobody waits any more."""
        for how in (
            "--force",
            "--lazy",
        ):  # the first one ends every request, and is refused while there are any
            subprocess.run(["umount", how, str(self.path)], check=False, stderr=subprocess.DEVNULL)
        self._thread.join(10)
        os.close(self._fd)
        for pid in self._waiting:
            wait_until_ended(pid)


@pytest.fixture
def frozen_files(tmp_path: Path) -> Iterator[FrozenFiles]:
    """A directory in which every look for a name waits for ever."""
    path = tmp_path / "frozen"
    path.mkdir()
    try:
        files = FrozenFiles(path)
    except OSError as error:
        pytest.skip(f"needs FUSE, and root: {error}")
    yield files
    files.release()
