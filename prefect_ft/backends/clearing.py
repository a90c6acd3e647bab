"""What is left of a run's workers, of whatever kind: ended and removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from prefect_ft.backends.kind import all_kinds
from prefect_ft.backends.strays import end_strays


def clear_directory(directory: Path) -> None:
    """End what is left of a run's workers, of any kind, and remove its run-time directory.

    Works without that directory too: workers outlive its removal.
    """
    for kind in all_kinds():
        kind.clear(directory)
    end_strays(directory)
    shutil.rmtree(directory, ignore_errors=True)
