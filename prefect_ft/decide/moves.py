"""What a rule can choose. Knows limits and levels; `conditions` has when a rule applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prefect_ft.decide.classify.exits import asks_for_other_hardware
from prefect_ft.decide.effects import StepBack
from prefect_ft.decide.situation import Situation
from prefect_ft.decide.trials import first_reporter
from prefect_ft.model import Action

MAX_UNCONDITIONAL = 3


class Move(NamedTuple):
    """An action, the systems that it takes out of use, and why if the rule's name does not say it."""

    action: Action
    isolate: tuple[str, ...] = ()
    why: str = ""
    avoid: tuple[str, ...] = ()
    """Systems whose workers move to spares, but that stay usable."""
    step_back: StepBack | None = None
    """Where it resumes, if that differs from its rule's."""


def always(action: Action, why: str = "") -> Callable[[Situation], Move]:
    """Choose the same whatever the counters say."""
    move = Move(action, (), why)
    return lambda _: move


def isolate_systems(s: Situation, systems: tuple[str, ...]) -> Move:
    """Take systems out of use on the lowest level that can work; with no system to blame only rebuild."""
    if not systems:
        return Move("rebuild", (), "no system is to blame")
    isolate = s.pool.not_isolated(systems)
    replacements_left = s.budgets.worker_replacements < s.policy.max_worker_replacements
    if replacements_left and s.pool.can_replace(isolate):
        return Move("replace_workers", isolate)
    return Move("isolate_and_rebuild", isolate)


def isolate(s: Situation) -> Move:
    """Isolate the systems that the incident blames."""
    return isolate_systems(s, s.blamed)


def rebuild_elsewhere(s: Situation) -> Move:
    """Rebuild without the system on which the last rebuild failed, if that is known."""
    return Move("isolate_and_rebuild", s.pool.not_isolated(s.blamed)) if s.blamed else Move("rebuild")


def first_in_place(s: Situation) -> Move:
    """Restart in place once, then rebuild until there is progress."""
    rebuild = s.policy.rebuild_only or s.budgets.transient_since_progress
    return Move("rebuild" if rebuild else "restart_in_place")


def confirm(s: Situation) -> Move:
    """Restart once for each class, to see whether it was chance: failures at other steps confirm nothing."""
    failure_class, reached = s.incident.failure_class, s.incident.reached
    earlier = s.budgets.confirmed_since_progress.get(failure_class, ()) if failure_class is not None else ()
    is_elsewhere = reached is not None and None not in earlier and reached not in earlier
    if earlier and not is_elsewhere:
        return Move("fail", (), "the confirming restart has failed in the same way")
    return Move("restart_in_place", (), "at another step than before" if earlier else "once, to confirm")


def step_back(s: Situation) -> Move:
    """Restart from an older checkpoint, unless the failure comes at its step from there too."""
    if s.skipping.is_bound:
        return Move(
            "fail",
            (),
            f"it fails at step {s.incident.reached} from wherever it starts: the data or the code is bad",
        )
    elsewhere = suspected_of_numbers(s)
    asks = asks_for_other_hardware(s.incident)
    if elsewhere is not None:
        within = s.budgets.worker_replacements < s.policy.max_worker_replacements
        why = f"{elsewhere} reported it first and gives its worker to a spare"
        step: StepBack = "last" if asks else "second_try"
        return Move("replace_workers" if within else "rebuild", (), why, (elsewhere,), step)
    if asks:
        return Move("restart_in_place", (), "from the checkpoint that it saved to be tried again", (), "last")
    return Move("restart_in_place", (), "one checkpoint further back")


def suspected_of_numbers(s: Situation) -> str | None:
    """Return the system to leave for a second try: once since progress, if there is a spare."""
    if s.has_moved or not (s.policy.numeric_elsewhere or asks_for_other_hardware(s.incident)):
        return None
    system = first_reporter(s.incident, s.pool.gang)
    return system if system is not None and s.pool.spares((system,)) else None


def skip(s: Situation) -> Move:
    """Restart with steps to be skipped."""
    window = s.window()
    steps = "" if window is None else f", steps {window[0]} to {window[1]} are skipped"
    return Move("restart_in_place", (), f"failed at step {s.incident.reached} again{steps}")


def set_aside(s: Situation) -> Move:
    """Restart without the checkpoint that cannot be loaded."""
    bad = s.checkpoints.unreadable(s.incident)
    return Move("restart_in_place", (), "" if bad is None else f"the checkpoint of step {bad} is set aside")


def suspended(s: Situation) -> Move:
    """Restart after a suspension, up to the limit in a row."""
    return _within(
        s.policy.max_suspension_restarts,
        s.budgets.consecutive_suspensions,
        "restart_in_place",
        "max_suspension_restarts is used up",
    )


def unconditional(s: Situation) -> Move:
    """Rebuild after any failure, up to the limit without progress."""
    used_up = "rebuilding does not help, so the program itself must be at fault"
    return _within(MAX_UNCONDITIONAL, s.budgets.consecutive_unconditional, "rebuild", used_up)


def preempted(s: Situation) -> Move:
    """Rebuild where the scheduler took a machine, as often as the policy allows."""
    return _within(s.policy.max_preemptions, s.budgets.preemptions, "rebuild", "max_preemptions is used up")


def handed_over(s: Situation) -> Move:
    """Rebuild in the next allocation, up to the limit without progress."""
    if s.budgets.hand_overs > s.policy.max_hand_overs:
        return Move("fail", (), "max_hand_overs is used up")
    return Move("rebuild")


def _within(limit: int | None, used: int, action: Action, used_up: str) -> Move:
    return Move(action) if limit is None or used < limit else Move("fail", (), used_up)
