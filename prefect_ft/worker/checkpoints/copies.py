"""Copies of a file that is overwritten with each checkpoint: if a version is truncated, only that version is lost.

They are in a hidden directory beside the file, the newest few of each. Owns their names, how they are made (by a
reflink where the file system supports it) and restored; only complete files are copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from typing import Callable, Iterator, List, NamedTuple, Optional

from prefect_ft.worker.checkpoints.marks import Known, Mark

DIRECTORY = ".prefect-ft-copies"
KEPT = 2
"""Copies of each file: the newest version, and the one before it to go back to."""

SET_ASIDE = ".old"
"""Suffix of a file that a copy has replaced, with a number where that name is taken."""

_NAME = re.compile(r"(?P<step>[0-9]{1,18})(?P<counted>c?)@(?P<of>[^/]+)")
_CLONE = 0x40049409  # FICLONE of linux/fs.h: both files share their blocks until one is written
_PIECE_BYTES = 64 << 20


class Copy(NamedTuple):
    """One copy: of which file, of which step; `name` is its own, relative to the checkpoint directory."""

    name: str
    of: str
    step: int
    counted: bool


def read_name(base: str) -> Optional[Copy]:
    """Read a copy's name; `None` if it is not one."""
    match = _NAME.fullmatch(base)
    if match is None:
        return None
    return Copy(f"{DIRECTORY}/{base}", match["of"], int(match["step"]), bool(match["counted"]))


def keep(root: str, name: str, known: Known, is_wanted: Callable[[], bool]) -> None:
    """Copy a version of `root/name`, if there is no copy of it yet. Raises OSError.

    The copy is dropped where the file changes meanwhile, or where `is_wanted()` turns false.
    """
    copies = copies_of(root, name)
    if any(_is_of(root, copy, known.mark) for copy in copies):
        return
    os.makedirs(os.path.join(root, DIRECTORY), mode=0o755, exist_ok=True)
    _remove_unfinished(os.path.join(root, DIRECTORY))
    base = f"{known.step}{'c' if known.counted else ''}@{name}"
    if _copied(os.path.join(root, name), os.path.join(root, DIRECTORY, base), known.mark, is_wanted):
        for copy in copies_of(root, name)[:-KEPT]:
            os.unlink(os.path.join(root, copy.name))


def put_back(root: str, copy: Copy) -> Mark:
    """Restore a copy under its file's name, after setting aside the file there; return its mark. Raises OSError."""
    path, kept = os.path.join(root, copy.of), os.path.join(root, copy.name)
    mark = mark_of(os.stat(kept))
    beside = os.path.join(root, f".{copy.of}.putting-back")
    _copied(kept, beside, mark, lambda: True)
    with contextlib.suppress(FileNotFoundError):
        set_aside(root, copy.of)
    os.replace(beside, path)
    return mark_of(os.stat(path))


def is_put_back(root: str, copy: Copy) -> bool:
    """Return whether the file under the name of a copy's file is this copy."""
    try:
        state = os.stat(os.path.join(root, copy.of))
    except OSError:
        return False
    return _is_of(root, copy, mark_of(state))


def set_aside(root: str, name: str) -> None:
    """Rename a file that cannot be resumed from, so that no script finds it by itself. Raises OSError.

    The new name is a free one: NAME.old may be the script's own file.
    """
    path = os.path.join(root, name)
    names = (path + SET_ASIDE + (f"-{number}" if number else "") for number in itertools.count())
    os.rename(path, next(free for free in names if not os.path.lexists(free)))


def mark_of(state: os.stat_result) -> Mark:
    """Return the mark of a single file."""
    return Mark(state.st_size, state.st_mtime_ns / 1e9, state.st_dev, state.st_ino)


def copies_of(root: str, name: str) -> List[Copy]:
    """Return the copies of a file, the oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for base in os.listdir(os.path.join(root, DIRECTORY)):
            copy = read_name(base)
            if copy is not None and copy.of == name:
                found.append((os.stat(os.path.join(root, copy.name)).st_mtime_ns, copy))
    return [copy for _, copy in sorted(found)]


def _is_of(root: str, copy: Copy, mark: Mark) -> bool:
    try:
        state = os.stat(os.path.join(root, copy.name))
    except OSError:
        return False
    return (state.st_size, state.st_mtime_ns / 1e9) == (mark.size, mark.mtime)


def _copied(source: str, target: str, mark: Mark, is_wanted: Callable[[], bool]) -> bool:
    """Copy a file atomically, with the times of its source; return whether that was done."""
    beside = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.tmp")
    try:
        with open(source, "rb") as original, open(beside, "wb") as copy:
            finished = all(is_wanted() for _ in _pieces(original.fileno(), copy.fileno()))
            if finished:
                os.fsync(copy.fileno())
        state = os.stat(source)
        os.utime(beside, ns=(state.st_atime_ns, state.st_mtime_ns))
        if not finished or not mark.is_of(mark_of(state)) or os.stat(beside).st_size != mark.size:
            return False
        os.replace(beside, target)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


def _remove_unfinished(directory: str) -> None:
    """Remove unfinished copies of agents that were killed."""
    for base in os.listdir(directory):
        if base.startswith(".") and base.endswith(".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, base))


def _pieces(source: int, target: int) -> Iterator[None]:
    """Copy a file; yield after each piece, so that a long copy can be given up."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        while os.sendfile(target, source, None, _PIECE_BYTES):
            yield
