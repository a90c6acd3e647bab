"""A cluster for whole tests: whatever a run or a backend makes in it has to be gone afterwards."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator

import pytest
from kube import Target

FOLLOWS_UNTIL_S = 75.0
"""A watch that is closed while it waits for an answer ends with that, or after a minute."""


@pytest.fixture
def target(kubernetes_cluster: Target) -> Iterator[Target]:
    """The cluster; a test's runs may leave no objects in it, and no thread that watches it."""
    before = kubernetes_cluster.objects()
    yield kubernetes_cluster
    for thread in threading.enumerate():
        if thread.name == "prefect-ft-watch":
            thread.join(FOLLOWS_UNTIL_S)
            assert not thread.is_alive(), "".join(traceback.format_stack(sys._current_frames()[thread.ident]))
    assert kubernetes_cluster.objects() - before == set()
