"""Small files: read with whatever is there, replaced whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """Give a JSON object, an empty one where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace a file whole or not at all; `durable`: before this returns, and against the machine's death."""
    replace_file(path, json.dumps(content, indent=2) + "\n", durable=durable)


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole or not at all."""
    import yaml  # noqa: PLC0415  (only runs write YAML; `status` need not load it)

    replace_file(path, yaml.safe_dump(dict(content), sort_keys=False))


def replace_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace a file whole or not at all; raises OSError, and then nothing is left behind."""
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
    """Make the names in a directory survive the machine's death."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
