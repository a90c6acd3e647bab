"""What another system says of itself, which may be some moments old: asked again until it is what is expected."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0
"""Only who is disappointed waits so long."""


def eventually(look: Callable[[], T], expected: object, within_s: float = DEADLINE_S) -> T:
    """Return what `look` gives as soon as that is `expected`, else what it gives after the deadline."""
    deadline = time.monotonic() + within_s
    while (seen := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return seen
