"""From a decision to what is done with workers."""

from __future__ import annotations

import pytest

from prefect_ft.model import Action, Counters, Decision
from prefect_ft.supervisor.enact import GangChange, change_for, failure_kind, first_gang


def decision(action: Action, *recreate: int) -> Decision:
    return Decision(
        n=1,
        rule="r",
        action=action,
        reason="",
        placement=("s0", "s1"),
        counters=Counters(),
        recreate=recreate,
    )


def change(destroy: tuple[int, ...], create: tuple[int, ...]) -> GangChange:
    return GangChange(destroy=destroy, create=create)


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def test_a_phase_begins_with_all_its_workers() -> None:
    assert first_gang(3) == change((), (0, 1, 2))


@pytest.mark.parametrize(
    ("decided", "present", "expected"),
    [
        pytest.param(decision("restart_in_place"), (0, 1), change((), ()), id="in-place"),
        pytest.param(decision("replace_workers", 1), (0, 1), change((1,), (1,)), id="replace"),
        pytest.param(decision("replace_workers", 1), (0,), change((), (1,)), id="replace-one-that-is-gone"),
        pytest.param(decision("rebuild", 0, 1), (1, 0), change((0, 1), (0, 1)), id="rebuild"),
        pytest.param(decision("rebuild", 0, 1), (), change((), (0, 1)), id="rebuild-from-nothing"),
        pytest.param(decision("isolate_and_rebuild", 0), (0, 1), change((0, 1), (0,)), id="shrink"),
        pytest.param(decision("isolate_and_rebuild", 0, 1, 2), (0, 1), change((0, 1), (0, 1, 2)), id="grow"),
    ],
)
def test_what_a_restart_changes(decided: Decision, present: tuple[int, ...], expected: GangChange) -> None:
    assert change_for(decided, present) == expected


@pytest.mark.parametrize("action", ["complete", "cancel", "fail", "continue"])
def test_what_starts_no_attempt_changes_nothing(action: Action) -> None:
    with pytest.raises(ValueError, match=f"{action} starts no attempt"):
        change_for(decision(action), (0,))


@pytest.mark.parametrize(
    ("action", "was_created", "kind"),
    [
        (None, True, "rebuild_failed"),
        ("rebuild", True, "rebuild_failed"),
        ("isolate_and_rebuild", True, "rebuild_failed"),
        ("replace_workers", True, "replacement_failed"),
        ("replace_workers", False, "in_place_failed"),
        ("restart_in_place", False, "in_place_failed"),
    ],
)
def test_which_recovery_failed(action: Action | None, was_created: bool, kind: str) -> None:
    assert failure_kind(action, was_created=was_created) == kind
