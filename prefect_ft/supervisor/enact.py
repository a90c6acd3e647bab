"""The one table from a decision to the changes of workers. Pure: plans only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from typing_extensions import assert_never

from prefect_ft.model import Action, Decision, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class GangChange:
    """Which of the old gang's workers are destroyed, and which workers, by new number, are created."""

    destroy: tuple[int, ...]
    create: tuple[int, ...]


def first_gang(workers: int) -> GangChange:
    """Return the change that a phase begins with."""
    return GangChange(destroy=(), create=tuple(range(workers)))


def change_for(decision: Decision, present: Collection[int]) -> GangChange:
    """Return what a restart changes in the gang; `present` are the workers that exist now."""
    match decision.action:
        case "restart_in_place":
            return GangChange(destroy=(), create=())
        case "replace_workers":
            gone = tuple(worker for worker in sorted(present) if worker in decision.recreate)
            return GangChange(destroy=gone, create=decision.recreate)
        case "rebuild" | "isolate_and_rebuild":
            return GangChange(destroy=tuple(sorted(present)), create=decision.recreate)
        case "complete" | "cancel" | "fail" | "continue":
            raise ValueError(f"{decision.action} starts no attempt")
        case _:
            assert_never(decision.action)


def failure_kind(action: Action | None, *, was_created: bool) -> Kind:
    """Return the incident's kind for a worker that is missing after `action` (`None`: at the phase's start)."""
    if not was_created:
        return "in_place_failed"
    return "replacement_failed" if action == "replace_workers" else "rebuild_failed"
