"""Waiting for changes of files instead of polling: the few calls of inotify(7) that are needed."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import List, NamedTuple

MODIFY = 0x00000002
CLOSE_WRITE = 0x00000008
MOVED_FROM = 0x00000040
MOVED_TO = 0x00000080
CREATE = 0x00000100
DELETE = 0x00000200
Q_OVERFLOW = 0x00004000

_EVENT = struct.Struct("iIII")
_MAX_READS = 64


class Change(NamedTuple):
    """One event: the watch that saw it, its mask, and the name inside the watched directory."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance; its `fileno()` is readable when something has changed.

    Creating one raises OSError where the user has too many (EMFILE).
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._fd

    def watch(self, directory: str, mask: int) -> int:
        """Watch a directory and return the watch's number, the same again if it is watched already.

        Raises OSError (ENOENT; ENOSPC: the user's limit). Looks the path up, so it hangs where that does.
        """
        path = os.fsencode(directory)
        return self._checked(self._libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(mask)), directory)

    def unwatch(self, watch: int) -> None:
        """Stop watching; a watch whose directory is gone has ended by itself."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> List[Change]:
        """Return what has changed since the last call; an empty list if nothing has."""
        changes: List[Change] = []
        for _ in range(_MAX_READS):  # bounded, because a busy directory never stops changing
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            changes += _changes(data)
        return changes

    def close(self) -> None:
        """Close the instance."""
        os.close(self._fd)

    @staticmethod
    def _checked(result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno() or errno.EIO
            raise OSError(number, os.strerror(number), what)
        return result


def _changes(data: bytes) -> List[Change]:
    changes = []
    position = 0
    while position < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, position)
        position += _EVENT.size
        name = data[position : position + length].rstrip(b"\0")
        changes.append(Change(watch, mask, os.fsdecode(name)))
        position += length
    return changes
