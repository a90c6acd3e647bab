"""The directory that workers are given: the worker side of this package and nothing else.

Named by its content, made once, put on the ranks' PYTHONPATH, and run as it is by `python DIRECTORY`.
"""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import prefect_ft

_PARTS = (
    "__init__.py", "appended.py", "callbacks", "faults.py", "heartbeat.py", "inprocess", "restarts.py", "worker",
)  # fmt: skip
_MAIN = "import sys\n\nfrom prefect_ft.worker.agent import main\n\nsys.exit(main(sys.argv[1:]))\n"


def payload_directory(parent: Path) -> Path:
    """Give the payload's directory below `parent`, made if it is not there whole. Safe against a race."""
    name, files = _payload()
    target = parent / name
    if not all((target / file).is_file() for file in files):  # cleaners of temporary files leave ruins
        _write(files, target)
    return target


@cache
def _payload() -> tuple[str, Mapping[str, bytes]]:
    """Give the directory's name and its files, by path inside it."""
    root = Path(prefect_ft.__file__).parent
    sources = {f"prefect_ft/{path.relative_to(root)}": path.read_bytes() for path in _source_paths(root)}
    files = {"__main__.py": _MAIN.encode(), **sources}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    return f"payload-{digest}", files


def _source_paths(root: Path) -> Iterable[Path]:
    for part in _PARTS:
        yield from sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]


def _write(files: Mapping[str, bytes], target: Path) -> None:
    """Make the directory whole and then move it into place; who comes second throws its own away."""
    scratch = Path(tempfile.mkdtemp(prefix=".payload-", dir=target.parent))
    try:
        new = scratch / "new"
        for name, content in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        # Agents start together: each would compile all of it by itself.
        compileall.compile_dir(new, quiet=2, stripdir=str(new), prependdir=str(target))
        for path in (new, *new.rglob("*")):  # containers may run as another user, whatever our umask is
            path.chmod(0o755 if path.is_dir() else 0o644)
        with contextlib.suppress(FileNotFoundError):
            target.rename(scratch / "ruin")
        with contextlib.suppress(OSError):  # somebody else's is in place
            os.rename(new, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
