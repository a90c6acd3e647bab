"""The directory that workers are given: the worker side of this package and nothing else.

Named by its content, made once, put on the ranks' PYTHONPATH, and run as it is by `python DIRECTORY`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import prefect_ft

_PARTS = ("__init__.py", "heartbeat.py", "worker")
_MAIN = "import sys\n\nfrom prefect_ft.worker.agent import main\n\nsys.exit(main(sys.argv[1:]))\n"


@cache
def payload_directory(parent: Path) -> Path:
    """Give the payload's directory below `parent`, made if it is not there yet. Safe against a race."""
    files = {"__main__.py": _MAIN.encode()} | _sources()
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    target = parent / f"payload-{digest}"
    if not target.exists():
        _write(files, target)
    return target


def _sources() -> dict[str, bytes]:
    """Read the worker's part of this package, by path inside the payload."""
    root = Path(prefect_ft.__file__).parent
    paths = [path for part in _PARTS for path in ([root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py")))]
    return {str(Path("prefect_ft") / path.relative_to(root)): path.read_bytes() for path in paths}


def _write(files: dict[str, bytes], target: Path) -> None:
    """Make the directory whole and then move it into place; who comes second throws its own away."""
    scratch = Path(tempfile.mkdtemp(prefix=".payload-", dir=target.parent))
    for name, content in files.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    scratch.chmod(0o755)
    with contextlib.suppress(OSError):
        os.rename(scratch, target)
    if scratch.exists():
        shutil.rmtree(scratch)
