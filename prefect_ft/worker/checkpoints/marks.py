"""The state of a checkpoint when it was verified, and whether the one on disk is still the same.

An agent that has verified a checkpoint knows more than its files show: that it was renamed into place, that its
writer survived, which step it has. Later agents get that, so an unchanged checkpoint needs no second proof.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, NamedTuple


class Mark(NamedTuple):
    """One state of a checkpoint: bytes and newest time of writing (seconds since the epoch) over all its files.

    `device` and `inode` are those of the file or directory itself.
    """

    size: int
    mtime: float
    device: int
    inode: int

    def is_of(self, seen: Mark) -> bool:
        """Return whether this is the same content. Inodes are not compared where the devices differ.

        Agents see one file system under different devices: in containers, and on file servers after a new mount.
        """
        if (self.size, self.mtime) != (seen.size, seen.mtime):
            return False
        return self.device != seen.device or self.inode == seen.inode


class Known(NamedTuple):
    """A checkpoint that was verified. `counted`: nothing states its step, so it is the number of a version."""

    mark: Mark
    step: int
    counted: bool = False


def known_by_path(verified: Iterable[Mapping[str, Any]]) -> Dict[str, Known]:
    """Return the checkpoints of an order, by path."""
    return {
        item["path"]: Known(
            Mark(item["size"], item["mtime"], item["device"], item["inode"]),
            item["step"],
            item.get("counted", False),
        )
        for item in verified
    }
