"""Samples of real ranks, played once more: who hung then is said to hang, and nobody else."""

from __future__ import annotations

from hanging import FAULTS
from recorded import traces, verdict_of

RECORDED = traces()


def test_who_hung_is_said_to_hang_and_nobody_who_was_only_quiet() -> None:
    hung = {name for name, trace in RECORDED.items() if (found := verdict_of(trace)) and 1 in found.ranks}
    quiet = {name for name, trace in RECORDED.items() if verdict_of(trace) is None}
    assert hung == set(FAULTS)
    assert quiet == set(RECORDED) - hung
    assert len(quiet) >= 20
