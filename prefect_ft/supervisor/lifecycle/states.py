"""The states of a phase, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

State = Literal[
    "idle", "adopting", "clearing", "backing-off", "checking", "exchanging", "attaching", "choosing", "starting",
    "running", "diagnosing", "saving", "stopping", "healing", "ended",
]  # fmt: skip
"""`clearing` ends what may still run where a decision could not be carried out, or where that is unknown."""

_OBSTRUCTED: tuple[State, ...] = ("clearing", "idle", "stopping")
"""The states that follow when a worker turns out to be gone, or a request to stop arrives."""

TRANSITIONS: Mapping[State, frozenset[State]] = {
    "idle": frozenset(("adopting", "backing-off", "clearing", "stopping", "ended")),
    "adopting": frozenset(("running", "clearing")),
    "clearing": frozenset(("idle", "backing-off", "stopping", "ended")),
    "backing-off": frozenset(("checking", *_OBSTRUCTED)),
    "checking": frozenset(("exchanging", "choosing", "backing-off", "ended", *_OBSTRUCTED)),
    "exchanging": frozenset(("attaching", *_OBSTRUCTED)),
    "attaching": frozenset(("choosing", *_OBSTRUCTED)),
    "choosing": frozenset(("choosing", "starting", *_OBSTRUCTED)),
    "starting": frozenset(("running", "saving", *_OBSTRUCTED)),
    "running": frozenset(("running", "diagnosing", "saving", "stopping")),
    "diagnosing": frozenset(("running", "saving", "stopping")),
    "saving": frozenset(("stopping",)),
    "stopping": frozenset(("healing", "ended")),
    "healing": frozenset(("ended",)),
    "ended": frozenset(("backing-off", "stopping", "idle")),
}
"""The states that may follow each state."""

HEEDS_STOP: frozenset[State] = frozenset(
    ("backing-off", "checking", "exchanging", "attaching", "choosing", "starting", "running", "diagnosing")
)
"""The states that a request to stop ends; the others end by themselves."""

RESTS: frozenset[State] = frozenset(("idle", "ended"))
"""The states that do not wait."""
