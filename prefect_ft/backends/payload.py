"""The payload: a directory with the worker side of this package and nothing else.

Named by its content, made once, put on the ranks' PYTHONPATH, and run by `python DIRECTORY`.
"""

from __future__ import annotations

import compileall
import contextlib
import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import prefect_ft

_PARTS = ("__init__.py", "callbacks", "compat", "heartbeat.py", "inprocess", "worker")
_MAIN = """import sys
from importlib import import_module

words = sys.argv[1:]
name = words.pop(0) if words[:1] in (["node"], ["holder"]) else "agent"
sys.exit(import_module("prefect_ft.worker." + name).main(words))
"""


def payload_directory(parent: Path) -> Path:
    """Return the payload's directory below `parent`, made unless it is complete. Safe to call concurrently."""
    name, files = _payload()
    target = parent / name
    if not all((target / file).is_file() for file in files):  # cleaners of temporary files remove some
        _write(files, target)
    return target


def payload_archive() -> tuple[str, bytes]:
    """Return the payload's name and its files as a compressed tar archive; deterministic."""
    name, files = _payload()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return name, gzip.compress(packed.getvalue(), mtime=0)


@cache
def _payload() -> tuple[str, Mapping[str, bytes]]:
    """Return the directory's name and its files, by path inside it."""
    root = Path(prefect_ft.__file__).parent
    sources = {f"prefect_ft/{path.relative_to(root)}": path.read_bytes() for path in _source_paths(root)}
    files = {"__main__.py": _MAIN.encode(), **sources}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    return f"payload-{digest}", files


def _source_paths(root: Path) -> Iterable[Path]:
    for part in _PARTS:
        yield from sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]


def _write(files: Mapping[str, bytes], target: Path) -> None:
    """Put the files in place one by one; existing ones stay: a process may run from them, or have them mounted."""
    target.mkdir(exist_ok=True)
    target.chmod(0o755)  # containers may run as another user, whatever our umask is
    for name, content in files.items():
        path = target / name
        for directory in reversed(path.relative_to(target).parents[:-1]):
            (target / directory).mkdir(exist_ok=True)
            (target / directory).chmod(0o755)
        if not path.is_file():
            _put(path, content)
    # Agents start together: each would compile everything by itself.
    compileall.compile_dir(target, quiet=2)
    for compiled in target.rglob("__pycache__"):
        compiled.chmod(0o755)
        for path in compiled.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes it now
                path.chmod(0o644)


def _put(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    fd, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        os.fchmod(fd, 0o644)
    os.replace(name, path)
