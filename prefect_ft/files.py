"""Small files: reads, and atomic replacement."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes, **settings: Any) -> Any:
    """Return the value of a JSON text, as `json.loads` does; raises ValueError, also for one nested too deeply."""
    try:
        return json.loads(text, **settings)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one where there is none."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace a file atomically; `durable`: on disk before this returns."""
    replace_file(path, json.dumps(content, indent=2) + "\n", durable=durable)


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file atomically."""
    import yaml  # noqa: PLC0415  (only runs write YAML; `status` need not load it)

    replace_file(path, yaml.safe_dump(dict(content), sort_keys=False))


def replace_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace a file atomically; raises OSError, and then leaves nothing behind."""
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        scratch.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a crash of the machine."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_KEEP_SIZE = 1


def reserve(fd: int, offset: int, length: int) -> bool:
    """Have the file system reserve `length` bytes from `offset` on; the file's content does not change.

    False: it has no room, or does not support it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return bool(libc.fallocate(fd, _KEEP_SIZE, offset, length) == 0)
