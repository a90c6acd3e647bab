"""What the next attempt must know, folded from a history whose last decision starts it.

Owns the numbers behind variables of the script's contract; the caller owns paths, ports and names.
"""

from __future__ import annotations

from prefect_ft.decide.fold import fold
from prefect_ft.decide.placement import initial_placement
from prefect_ft.model import RESTARTS, Decision, History, Policy


def set_aside(policy: Policy, history: History) -> tuple[int, ...]:
    """Return the steps of the checkpoints that could not be loaded and were not verified again since."""
    return tuple(sorted(fold(policy, history).checkpoints.set_aside))


def start_counts(policy: Policy, history: History, *, before_first: int = 0) -> tuple[tuple[int, int], ...]:
    """Return for each worker how often it was created and how often the command was started in it.

    Both include the attempt that the last decision starts (`MA_SCHEDULE_CNT`, `MA_PROC_START_CNT`).
    `before_first` is how many decisions had been made when the first attempt started: a worker created by them
    counts as created once, as far as the command can know.
    """
    first = [entry.decision.placement for entry in history[:before_first] if entry.decision is not None]
    gang = first[-1] if first else initial_placement(policy) or ()
    counts = dict.fromkeys(range(len(gang)), (1, 1))
    for entry in history[before_first:]:
        if entry.decision is not None and entry.decision.action in RESTARTS:
            gang = entry.decision.placement
            counts.update(_started(counts, entry.decision))
    return tuple(counts[worker] for worker in range(len(gang)))


def _started(counts: dict[int, tuple[int, int]], decision: Decision) -> dict[int, tuple[int, int]]:
    """Count one start; workers that a smaller gang lacks keep their counts until they come back."""
    started = {}
    for worker in range(len(decision.placement)):
        created, executed = counts.get(worker, (0, 0))
        started[worker] = (created + 1, 1) if worker in decision.recreate else (created, executed + 1)
    return started


def skip_eval_at(policy: Policy, history: History) -> int | None:
    """Return the step of the validation in which the last attempt failed; `None`: skip none.

    Only the attempt right after it skips, also if the first action to get there failed.
    """
    if policy.mode != "train_and_eval":
        return None
    situation = fold(policy, history)
    ended = situation.ended_by
    return ended.stage_step if ended is not None and ended.stage == "validate" else None
