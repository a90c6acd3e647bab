"""Announces outside the run which systems a phase isolates, while the phase runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from prefect_ft.journal.records import DecisionLine, Line
from prefect_ft.model import Decision
from prefect_ft.observe import Fact, observed_by

LAST_WAIT_S = 10.0
"""How long the end of a phase waits for announcements that are under way."""


@contextmanager
def following(lines: Callable[[], Sequence[Line]], act: Callable[[str, Decision], None]) -> Iterator[None]:
    """Call `act` with each system that a phase isolates while entered, and the decision, in a thread of its own.

    Begins with systems isolated earlier and not used since. `lines` returns its journal's lines so far. Never blocks.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefect-ft-isolation")
    before = _decisions(lines())
    seen = len(before)
    under_way = [pool.submit(act, system, why) for system, why in isolated_since(before).items()]

    def heard(_: Fact) -> None:
        nonlocal seen
        new = _decisions(lines())[seen:]
        seen += len(new)
        under_way.extend(pool.submit(act, *each) for each in _isolated(new).items())

    with observed_by(heard):
        try:
            yield
        finally:
            wait(under_way, LAST_WAIT_S)
            pool.shutdown(wait=False, cancel_futures=True)


def isolated_since(decisions: Sequence[Decision]) -> dict[str, Decision]:
    """Return the systems that a phase's decisions have isolated and not used again, each with the decision."""
    used = set(decisions[-1].placement) if decisions else set()
    return {system: why for system, why in _isolated(decisions).items() if system not in used}


def _isolated(decisions: Sequence[Decision]) -> dict[str, Decision]:
    return {system: decision for decision in decisions for system in decision.isolate}


def _decisions(lines: Sequence[Line]) -> list[Decision]:
    """Return the decisions; those that cannot be read are refused where the history is read."""
    facts = [line.facts for line in lines if isinstance(line, DecisionLine)]
    return [each for each in facts if isinstance(each, Decision)]
