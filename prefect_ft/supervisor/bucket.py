"""Checkpoints at a URL, read by fsspec: listings, and the few bytes that prove a file. Never writes.

One listing of everything below the URL is one scan: objects appear atomically, so no file is watched.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, NamedTuple

from prefect_ft.worker.checkpoints.entry import MAX_FILES, AwayError, Readable, Stat

OBS, S3 = "obs://", "s3://"
"""Object stores of Huawei's cloud use the protocol of S3."""

BLOCK_BYTES = 256 * 1024
"""How much is fetched at a time: checks read a few bytes at several places close to each other."""

KEPT_BLOCKS = 8

_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
"""The fields in which file systems of fsspec report a file's time of writing."""


def opened_at(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path there.

    Credentials and the endpoint come from the environment, or from fsspec's configuration. Raises AwayError, with what
    to do, where the file system has no package or takes no such URL.
    """
    import fsspec  # noqa: PLC0415  (a job without a URL needs none of it)

    known = S3 + url.removeprefix(OBS) if url.startswith(OBS) else url
    try:
        files, path = fsspec.core.url_to_fs(known, use_listings_cache=False)
    except ImportError as exc:
        raise AwayError(f"{exc}; install the package where the flow runs") from exc
    except Exception as exc:  # of many libraries
        raise AwayError(_message(exc)) from exc
    return files, str(path).rstrip("/")


class Bucket:
    """The files below one URL, as a place of checkpoints. Not thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opened: tuple[Any, str] | None = None
        self._files: dict[str, Stat] = {}
        """All files of the last listing, by their paths relative to the URL; the tag of a version is its inode."""
        self._first_seen_ns: dict[tuple[str, int], int] = {}
        """When files without a time of writing were first seen."""

    def listing(self, path: str) -> Mapping[str, _Item]:
        """Return the contents of a directory; for the URL itself, fresh ones. Raises AwayError if unreachable."""
        inside = self._relative(path)
        if not inside:
            self._files = self._look()
        found: dict[str, _Item] = {}
        for name, state in self._below(inside):
            base, _, rest = name.partition("/")
            if rest:
                found.setdefault(base, _Item(base, None))
            else:
                found[base] = _Item(base, state)
        return found

    def walk(self, path: str) -> dict[str, Stat]:
        """Return the state of every file below a directory, as the last listing had it."""
        files = dict(self._below(self._relative(path)))
        if len(files) > MAX_FILES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_FILES} files")
        return files

    @contextmanager
    def opened(self, path: str, seen: Stat) -> Iterator[Readable]:
        """Open a file that was listed in this state; raises OSError if it has changed since, or is gone."""
        files, root = self._file_system()
        yield _Fetched(files, f"{root}/{self._relative(path)}".rstrip("/"), seen.size)

    def _file_system(self) -> tuple[Any, str]:
        if self._opened is None:
            self._opened = opened_at(self._url)
        return self._opened

    def _relative(self, path: str) -> str:
        return path[len(self._url) :].strip("/")

    def _below(self, inside: str) -> Iterator[tuple[str, Stat]]:
        prefix = f"{inside}/" if inside else ""
        for name, state in self._files.items():
            if name.startswith(prefix):
                yield name[len(prefix) :], state

    def _look(self) -> dict[str, Stat]:
        files, root = self._file_system()
        try:
            files.invalidate_cache()
            found = files.find(root, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as exc:  # of many libraries
            raise AwayError(f"cannot be listed: {_message(exc)}") from exc
        listed = {}
        for path, info in found.items():
            name = path[len(root) :].strip("/")
            if name and info.get("type", "file") == "file" and not path.endswith("/"):
                listed[name] = self._stat(name, info)
        return listed

    def _stat(self, name: str, info: Mapping[str, Any]) -> Stat:
        size = int(info.get("size") or 0)
        written = next((info[key] for key in _TIMES if info.get(key) is not None), None)
        tag = str(info.get("ETag") or info.get("etag") or info.get("md5") or written)
        written_ns = _ns(written)
        if written_ns is None:
            written_ns = self._first_seen_ns.setdefault((name, size), time.time_ns())
        version = int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=6).digest(), "big")
        return Stat(size, written_ns, 0, version)


class _Item(NamedTuple):
    """A file, or a directory (None)."""

    name: str
    state: Stat | None

    def stat(self) -> os.stat_result:
        if self.state is None:
            return os.stat_result((stat.S_IFDIR, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        state = self.state
        times = {"st_atime_ns": 0, "st_mtime_ns": state.mtime_ns, "st_ctime_ns": state.ctime_ns}
        return os.stat_result((stat.S_IFREG, state.inode, 0, 1, 0, 0, state.size, 0, 0, 0), times)


class _Fetched:
    """One file whose bytes are fetched in blocks."""

    def __init__(self, files: Any, path: str, size: int) -> None:
        self._files, self._path, self._size = files, path, size
        self._blocks: dict[int, bytes] = {}

    def fetch(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self._size)
        if offset >= end:
            return b""
        if end - offset > BLOCK_BYTES:
            return self._range(offset, end)
        first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        joined = b"".join(self._block(number) for number in range(first, last + 1))
        return joined[offset - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * BLOCK_BYTES
            self._blocks[number] = self._range(start, min(start + BLOCK_BYTES, self._size))
            if len(self._blocks) > KEPT_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        return self._blocks[number]

    def _range(self, start: int, end: int) -> bytes:
        try:
            piece: bytes = self._files.cat_file(self._path, start=start, end=end)
        except (FileNotFoundError, IsADirectoryError) as exc:
            raise OSError(errno.ESTALE, "it is no longer there") from exc
        except Exception as exc:  # of many libraries
            raise AwayError(f"cannot be read: {_message(exc)}") from exc
        if len(piece) != end - start:
            raise OSError(errno.ESTALE, "it changed while it was read")
        return piece


def _ns(written: object) -> int | None:
    """Return a time in any form as nanoseconds since the epoch; None: it is not a time."""
    if isinstance(written, str):
        try:
            written = datetime.fromisoformat(written.replace("Z", "+00:00"))
        except ValueError:
            return None
    if isinstance(written, datetime):
        aware = written if written.tzinfo is not None else written.replace(tzinfo=timezone.utc)
        written = aware.timestamp()
    return int(written * 1e9) if isinstance(written, (int, float)) else None


def _message(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
