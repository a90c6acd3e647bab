"""Copies of a file that is overwritten with each checkpoint: if a version is truncated, only that version is lost.

They are in a hidden directory beside the file, the newest few of each. What is overwritten with the file, as the state
of an optimizer, is copied with it, into a directory for each copy: `7+model.pt/optimizer.pt` for `7@model.pt`, which is
made last. Owns their names, how they are made (by a reflink where the file system supports it) and restored; only
complete files are copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

from prefect_ft.worker.checkpoints.marks import Known, Mark

DIRECTORY = ".prefect-ft-copies"
KEPT = 2
"""Copies of each file: the newest version, and the one before it to go back to."""

SET_ASIDE = ".old"
"""Suffix of a file that a copy has replaced, with a number where that name is taken."""

_BESIDE = re.compile(r"[0-9]{1,18}c?\+[^/]+")
_NAME = re.compile(r"(?P<step>[0-9]{1,18})(?P<counted>c?)@(?P<of>[^/]+)")
_CLONE = 0x40049409  # FICLONE of linux/fs.h: both files share their blocks until one is written
_PIECE_BYTES = 64 << 20


class Copy(NamedTuple):
    """One copy: of which file, of which step; `name` is its own, relative to the checkpoint directory."""

    name: str
    of: str
    step: int
    counted: bool

    @property
    def beside(self) -> str:
        """The directory of what is copied with it; earlier releases take its name for no copy's."""
        return self.name.replace("@", "+", 1)


def read_name(base: str) -> Optional[Copy]:
    """Read a copy's name; `None` if it is not one."""
    match = _NAME.fullmatch(base)
    if match is None:
        return None
    return Copy(f"{DIRECTORY}/{base}", match["of"], int(match["step"]), bool(match["counted"]))


def keep(
    root: str, name: str, known: Known, beside: Mapping[str, Mark], is_wanted: Callable[[], bool]
) -> None:
    """Copy a version of `root/name`, with what is `beside` it, if there is no copy of it yet. Raises OSError.

    The copy is dropped where one of the files changes meanwhile, or where `is_wanted()` turns false.
    """
    if any(_is_kept(root, copy, known.mark, beside) for copy in _all_of(root, name)):
        return
    os.makedirs(os.path.join(root, DIRECTORY), mode=0o755, exist_ok=True)
    _remove_unfinished(os.path.join(root, DIRECTORY))
    copy = Copy(
        f"{DIRECTORY}/{known.step}{'c' if known.counted else ''}@{name}", name, known.step, known.counted
    )
    directory = os.path.join(root, copy.beside)
    if beside or os.path.isdir(directory):
        _remove(root, copy)  # it may be of another save of the step
    if beside:
        os.mkdir(directory, mode=0o755)
    targets = {each: os.path.join(directory, each) for each in beside}
    targets[name] = os.path.join(root, copy.name)
    marks = {**beside, name: known.mark}
    if all(
        _copied(os.path.join(root, each), target, marks[each], is_wanted) for each, target in targets.items()
    ):
        for old in _all_of(root, name)[:-KEPT]:
            _remove(root, old)


def put_back(root: str, copy: Copy) -> Dict[str, Mark]:
    """Restore a copy and what is beside it, after setting aside what is there; return their marks. Raises OSError."""
    kept = {**{each: f"{copy.beside}/{each}" for each in beside_of(root, copy)}, copy.of: copy.name}
    return {name: _restored(root, each, name) for name, each in kept.items()}


def _restored(root: str, kept: str, name: str) -> Mark:
    path = os.path.join(root, name)
    mark = mark_of(os.stat(os.path.join(root, kept)))
    if not _is_of(path, mark):
        beside = os.path.join(root, f".{name}.putting-back")
        _copied(os.path.join(root, kept), beside, mark, lambda: True)
        with contextlib.suppress(FileNotFoundError):
            set_aside(root, name)
        os.replace(beside, path)
    return mark_of(os.stat(path))


def is_put_back(root: str, copy: Copy) -> bool:
    """Return whether the files under the names of a copy's files are this copy."""
    kept = {copy.of: copy.name, **{each: f"{copy.beside}/{each}" for each in beside_of(root, copy)}}
    try:
        marks = {name: mark_of(os.stat(os.path.join(root, each))) for name, each in kept.items()}
    except OSError:
        return False
    return all(_is_of(os.path.join(root, name), mark) for name, mark in marks.items())


def beside_of(root: str, copy: Copy) -> List[str]:
    """Return the names of what was copied with it."""
    try:
        names = sorted(os.listdir(os.path.join(root, copy.beside)))
    except OSError:
        return []
    return [name for name in names if not name.startswith(".")]


def set_aside(root: str, name: str) -> None:
    """Rename a file that cannot be resumed from, so that no script finds it by itself. Raises OSError.

    The new name is a free one: NAME.old may be the script's own file.
    """
    path = os.path.join(root, name)
    names = (path + SET_ASIDE + (f"-{number}" if number else "") for number in itertools.count())
    os.rename(path, next(free for free in names if not os.path.lexists(free)))


def point(link: str, target: str) -> None:
    """Have a link lead to another file, atomically. Raises OSError."""
    directory, name = os.path.split(link)
    beside = os.path.join(directory, f".{name}.putting-back")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    os.symlink(target, beside)
    os.replace(beside, link)


def mark_of(state: os.stat_result) -> Mark:
    """Return the mark of a single file."""
    return Mark(state.st_size, state.st_mtime_ns / 1e9, state.st_dev, state.st_ino)


def copies_of(root: str, name: str) -> List[Copy]:
    """Return the copies of a file that can be put back, the oldest first.

    One that lacks what others have beside it cannot, as long as that is there: earlier releases copied the file alone.
    """
    copies = _all_of(root, name)
    beside = {copy: {*beside_of(root, copy)} for copy in copies}
    wanted = {each for names in beside.values() for each in names if os.path.exists(os.path.join(root, each))}
    return [copy for copy in copies if wanted <= beside[copy]]


def _all_of(root: str, name: str) -> List[Copy]:
    found = []
    with contextlib.suppress(OSError):
        for base in os.listdir(os.path.join(root, DIRECTORY)):
            copy = read_name(base)
            if copy is not None and copy.of == name:
                found.append((os.stat(os.path.join(root, copy.name)).st_mtime_ns, copy))
    return [copy for _, copy in sorted(found)]


def _is_kept(root: str, copy: Copy, mark: Mark, beside: Mapping[str, Mark]) -> bool:
    """Return whether this is the copy of a version, with no file beside it from further away than the one there."""
    if not _is_of(os.path.join(root, copy.name), mark):
        return False
    for name, there in beside.items():
        try:
            kept_s = mark_of(os.stat(os.path.join(root, copy.beside, name))).mtime
        except OSError:
            return False
        if abs(there.mtime - mark.mtime) < abs(kept_s - mark.mtime):
            return False
    return True


def _is_of(path: str, mark: Mark) -> bool:
    """Return whether a file has this size and time."""
    try:
        state = os.stat(path)
    except OSError:
        return False
    return (state.st_size, state.st_mtime_ns / 1e9) == (mark.size, mark.mtime)


def _remove(root: str, copy: Copy) -> None:
    """Remove a copy, if it is there, and what is beside it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, copy.name))
    shutil.rmtree(os.path.join(root, copy.beside), ignore_errors=True)


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
    """Remove unfinished copies of agents that were killed, and what was beside copies that are gone."""
    bases = {*os.listdir(directory)}
    for base in bases:
        if base.startswith(".") and base.endswith(".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, base))
        elif _BESIDE.fullmatch(base) and base.replace("+", "@", 1) not in bases:
            shutil.rmtree(os.path.join(directory, base), ignore_errors=True)


def _pieces(source: int, target: int) -> Iterator[None]:
    """Copy a file; yield after each piece, so that a long copy can be given up."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        while os.sendfile(target, source, None, _PIECE_BYTES):
            yield
