"""A candidate in the checkpoint directory at one moment: its files, their sizes and ages.

Owns the walk over a candidate's tree and the opening of its files; knows no format. The `Entry` holds everything
that a check may depend on, so two equal entries have the same verdict.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import (
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Set,
    Tuple,
    Union,
)

MAX_FILES = 100_000
MAX_DEPTH = 16
CLOCK_SKEW_NS = 2_000_000_000
"""How far apart the clocks of two hosts that write one checkpoint may be."""


class AwayError(Exception):
    """The checkpoints' directory cannot be reached, so its content is unknown. What was seen before still holds."""


class Verdict(NamedTuple):
    """What a check found: `complete` by the format's own mark, `False` with a reason, or `None`.

    `None`: nothing is wrong, but the format does not mark its end, so only time can show it. `marked_ns` is then when
    a marker was written that should be last and is older than other files; None: there is no such marker.
    """

    complete: Optional[bool]
    reason: str = ""
    marked_ns: Optional[int] = None


class Gap(str):
    """A reason of missing files, which may be on another machine's disk; `names` are their names."""

    names: Tuple[str, ...]

    def __new__(cls, reason: str, names: Iterable[str]) -> Gap:
        """Return the reason with the names, sorted."""
        gap = super().__new__(cls, reason)
        gap.names = tuple(sorted(names))
        return gap


COMPLETE = Verdict(True)
UNMARKED = Verdict(None)


class Stat(NamedTuple):
    """What changes when a file is written or replaced."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, result: os.stat_result) -> Stat:
        """Keep the part of a stat result that distinguishes one content from another."""
        return cls(result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino)


class Ranges(Protocol):
    """A file whose bytes are fetched."""

    def fetch(self, length: int, offset: int) -> bytes:
        """Return these bytes, fewer only at the end of the file; raises OSError."""


Readable = Union[int, Ranges]
"""An open file: a descriptor, or an object that fetches its bytes."""


class Item(Protocol):
    """What a listing says of a file or a directory."""

    @property
    def name(self) -> str:
        """The name in its directory."""

    def stat(self) -> os.stat_result:
        """Return its state; raises OSError."""


class Place(Protocol):
    """Where checkpoints are. Every method raises OSError, and AwayError where the whole place cannot be reached."""

    def listing(self, path: str) -> Mapping[str, Item]:
        """Return what is in a directory, by name."""

    def walk(self, path: str) -> Dict[str, Stat]:
        """Return the state of every file below a directory, by its path relative to that."""

    def opened(self, path: str, seen: Stat) -> ContextManager[Readable]:
        """Open a file that was seen in this state; an OSError also if it has changed since."""


class _FileSystem:
    """This machine's directories."""

    def listing(self, path: str) -> Mapping[str, Item]:
        with os.scandir(path) as items:
            return {item.name: item for item in items}

    def walk(self, path: str) -> Dict[str, Stat]:
        return walk(path)

    def opened(self, path: str, seen: Stat) -> ContextManager[Readable]:
        return opened(path, seen)


FILE_SYSTEM = _FileSystem()


class Entry(NamedTuple):
    """One candidate. `name` is relative to the checkpoint directory, `path` absolute; `step` is the one in its name.

    `files` maps paths below `path` to their state; a single file is `{"": state}`. `manifest` is the
    state of `<name>.manifest.json` beside it. `latest` and `iteration` are what the trackers of
    DeepSpeed and Megatron in the checkpoint directory say of it, `None` without a tracker.
    `device` and `inode` are those of the file or directory itself. `place` is where it is.
    """

    name: str
    path: str
    step: Optional[int]
    is_directory: bool
    files: Mapping[str, Stat]
    manifest: Optional[Stat] = None
    latest: Optional[Verdict] = None
    iteration: Optional[Verdict] = None
    device: int = 0
    inode: int = 0
    place: Place = FILE_SYSTEM

    @property
    def size(self) -> int:
        """Bytes of all its files together."""
        return sum(file.size for file in self.files.values())

    @property
    def mtime_ns(self) -> int:
        """When the newest of its files was last written; 0 without files."""
        return newest_ns(self.files)

    def by_directory(self) -> Dict[str, List[str]]:
        """Return the base names of its files by the directory (relative, "" is the top) that they are in."""
        found: Dict[str, List[str]] = {}
        for name in sorted(self.files):
            directory, _, base = name.rpartition("/")
            found.setdefault(directory, []).append(base)
        return found

    @contextmanager
    def open(self, name: str = "") -> Iterator[Tuple[Readable, int]]:
        """Open one of its files for reading: (the open file, size in bytes); raises OSError."""
        path = os.path.join(self.path, name) if name else self.path
        with self.place.opened(path, self.files[name]) as file:
            yield file, self.files[name].size


def newest_ns(files: Mapping[str, Stat]) -> int:
    """Return the newest modification time; 0 without files."""
    return max((file.mtime_ns for file in files.values()), default=0)


@contextmanager
def opened(path: str, seen: Stat) -> Iterator[Readable]:
    """Open a file that was seen in this state; raises OSError, also if it has changed since."""
    # O_NONBLOCK: a FIFO that has replaced the file must not block the scan.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        now = os.fstat(descriptor)
        if (now.st_size, now.st_mtime_ns) != (seen.size, seen.mtime_ns):
            raise OSError(errno.ESTALE, "it changed while it was read")
        yield descriptor
    finally:
        os.close(descriptor)


def read_at(file: Readable, length: int, offset: int) -> bytes:
    """Read exactly `length` bytes, fewer only at the end of the file."""
    if not isinstance(file, int):
        return file.fetch(length, offset) if length > 0 else b""
    pieces: List[bytes] = []
    while length > 0:
        piece = os.pread(file, length, offset)
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
        offset += len(piece)
    return b"".join(pieces)


def walk(path: str) -> Dict[str, Stat]:
    """Return the state of every regular file below a directory; raises OSError for what cannot be read.

    Symbolic links are followed, each directory is entered once.
    """
    files: Dict[str, Stat] = {}
    entered: Set[Tuple[int, int]] = set()
    pending: List[str] = [""]
    while pending:
        prefix = pending.pop()
        if prefix.count("/") > MAX_DEPTH:
            raise OSError(errno.ELOOP, f"its directories are more than {MAX_DEPTH} levels deep")
        directory = os.path.join(path, prefix)
        itself = os.stat(directory)
        if (itself.st_dev, itself.st_ino) in entered:
            continue
        entered.add((itself.st_dev, itself.st_ino))
        with os.scandir(directory) as listing:
            for item in listing:
                state = item.stat()
                if stat.S_ISDIR(state.st_mode):
                    pending.append(f"{prefix}{item.name}/")
                elif stat.S_ISREG(state.st_mode):
                    files[prefix + item.name] = Stat.of(state)
        if len(files) > MAX_FILES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_FILES} files")
    return files
