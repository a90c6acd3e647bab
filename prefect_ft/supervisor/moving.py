"""Moves a phase to another tenure: which incidents ended the attempt of the earlier one. Pure.

A tenure is the systems that a scheduler lends a run for a time; no worker outlives its tenure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefect_ft.journal.records import AttemptLine, HandOverLine, IncidentLine, Line, TenureLine
from prefect_ft.model import Evidence, FailureClass, Incident, Kind

RULE = "tenure"
"""The rule of evidence that a run has moved from one tenure to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move from the tenure `before` to `name`, which has `systems`.

    `kind` and the fields after it say how the earlier one ended, if the orchestrator did not hand it over.
    """

    before: str
    name: str
    systems: tuple[str, ...]
    kind: Kind = "handed_over"
    reason: str = ""
    failure_class: FailureClass | None = None
    lost: tuple[str, ...] = ()


def tenures(lines: Sequence[Line]) -> list[TenureLine]:
    """Return the tenures that a phase has had, in their order."""
    return [line for line in lines if isinstance(line, TenureLine)]


def left_behind(lines: Sequence[Line], name: str) -> str | None:
    """Return the tenure from which a phase has to move to the one of this name; None: it is there already."""
    had = tenures(lines)
    if not had:
        return None
    if had[-1].name != name:
        return had[-1].name
    began = max(number for number, line in enumerate(lines) if line is had[-1])
    if was_left_in_order(lines[began:]):
        return name  # the orchestrator died before it had the next one
    if len(had) == 1 or any(_is_hand_over(line) for line in lines[began:]):
        return None
    return had[-2].name  # the one before did not come to judge it


def was_left_in_order(lines: Sequence[Line]) -> bool:
    """Whether the last orchestrator stopped all ranks before it left the phase to the next tenure."""
    line = hand_over_in(lines)
    return line is not None and bool(line.is_clean)


def incidents(
    move: Move, lines: Sequence[Line], *, attempt: int, is_open: bool, t: float, known_saves: dict[str, Any]
) -> list[Incident]:
    """Return the incidents to judge: the end of the attempt, unless it was handed over, and the move.

    `is_open`: the attempt `attempt` has not ended yet. `t` is now.
    """
    left = hand_over_in(lines)
    text = left.reason if left is not None and left.is_clean else move.reason
    found: list[Incident] = []
    if is_open and move.kind != "handed_over":
        end = Incident(
            t=t,
            kind=move.kind,
            attempt=attempt,
            failure_class=move.failure_class,
            systems=move.lost,
            exit_code=1 if move.kind == "exit" else None,
            evidence=Evidence(rule=RULE, text=f"{move.before}: {move.reason}"),
            **known_saves,
        )
        found.append(end)
    handed_over = Incident(
        t=t,
        kind="handed_over",
        attempt=attempt or None,
        systems=move.systems,
        evidence=Evidence(rule=RULE, text=f"from {move.before} to {move.name}: {text}"),
        **known_saves,
    )
    return [*found, handed_over]


def hand_over_in(lines: Sequence[Line]) -> HandOverLine | None:
    """Return the last hand-over, unless an attempt has begun since."""
    for line in reversed(lines):
        if isinstance(line, HandOverLine):
            return line
        if isinstance(line, (AttemptLine, IncidentLine)):
            return None
    return None


def workers_in(lines: Sequence[Line]) -> int | None:
    """Return how many workers the last attempt has, or had; None: there was none."""
    return next((len(line.placement) for line in reversed(lines) if isinstance(line, AttemptLine)), None)


def heard_last_t(lines: Sequence[Line]) -> float:
    """Return the time of the last event in the earlier tenure, in seconds since the phase began."""
    ending = [number for number, line in enumerate(lines) if isinstance(line, TenureLine)]
    return max((line.t for line in lines[: ending[-1]]), default=0.0) if ending else 0.0


def _is_hand_over(line: Line) -> bool:
    return isinstance(line, IncidentLine) and line.incident.kind == "handed_over"
