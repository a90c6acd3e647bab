"""Parts of checkpoints on the disks of several systems: which steps are whole, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest
from heard import heard

from prefect_ft.journal.records import AttemptLine
from prefect_ft.supervisor.event_parts import Verified
from prefect_ft.supervisor.events import Checkpoints
from prefect_ft.supervisor.parts import Parts

TOKEN = (1, 0, 1)


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def part(step: int, mtime: float = 10.0, system: str = "s0", **fields: Any) -> dict[str, Any]:
    return {
        "step": step, "path": f"/{system}/step-{step}", "mtime": mtime, "size": 5, "device": 1, "inode": step, **fields
    }  # fmt: skip


def told(*new: dict[str, Any], gone: tuple[int, ...] = ()) -> Checkpoints:
    return heard("checkpoints", new=list(new), gone=list(gone), last=None)


def parts(*course: tuple[str, Checkpoints], placement: tuple[str, ...] = ("s0", "s1")) -> Parts:
    made = Parts()
    made.begin(placement, 1.0)
    for system, event in course:
        made.take(system, event)
    made.news(TOKEN)
    return made


BOTH = (("s0", told(part(10))), ("s1", told(part(10, 12.0, "s1"))))
META = {"needs": ["__1_0.distcp"], "has": [".metadata", "__0_0.distcp"]}
SHARD = {"needs": [".metadata"], "has": ["__1_0.distcp"]}
CASES: dict[str, tuple[list[tuple[str, Checkpoints]], tuple[int, ...], str | None]] = {
    "nothing": ([], (), None),
    "of-one-worker": ([BOTH[0]], (), "worker 1 has no whole part of it on s1"),
    "of-all-workers": ([*BOTH], (10,), None),
    "of-a-system-without-a-worker": ([*BOTH, ("s9", told(part(20)))], (10,), None),
    "gone-from-one-disk": ([*BOTH, ("s1", told(gone=(10,)))], (), "worker 1 has no whole part of it on s1"),
    "needs-that-others-have": (
        [("s0", told(part(10, **META))), ("s1", told(part(10, **SHARD)))],
        (10,),
        None,
    ),
    "needs-that-nobody-has": (
        [("s0", told(part(10, **META))), ("s1", told(part(10, has=["__2_0.distcp"])))],
        (),
        "no worker has __1_0.distcp",
    ),
    "needs-many": (
        [("s0", told(part(10, needs=list("abcde"), has=[]))), ("s1", told(part(10)))],
        (),
        "no worker has a, b, c and 2 more",
    ),
    "a-version-that-is-counted": (
        [("s0", told(part(10))), ("s1", told(part(10, counted=True)))],
        (),
        "nothing tells its step: ranks have to report it, or its name has to hold it",
    ),
    "written-in-different-attempts": (
        [("s0", told(part(10, 0.5))), ("s1", told(part(10, 10.0)))],
        (),
        "its parts were written in different attempts",
    ),
    "written-before-the-phase": ([("s0", told(part(10, 0.5))), ("s1", told(part(10, 0.7)))], (10,), None),
}


@pytest.mark.parametrize(("course", "whole", "why_not"), CASES.values(), ids=CASES)
def test_which_steps_are_whole(
    course: list[tuple[str, Checkpoints]], whole: tuple[int, ...], why_not: str | None
) -> None:
    made = parts(*course)
    assert made.whole == whole
    assert made.why_not() == ({} if why_not is None else {"step-10": why_not})


def test_a_whole_one_is_at_the_path_of_worker_0_and_as_old_as_its_last_part() -> None:
    made = Parts()
    made.begin(("s0", "s1"), 1.0)
    made.take("s1", BOTH[1][1])
    assert made.news(TOKEN) == Checkpoints(token=TOKEN, new=(), last=None, gone=())
    made.take("s0", BOTH[0][1])
    joined = Verified(
        step=10,
        path="/s0/step-10",
        mtime=12.0,
        size=10,
        device=1,
        inode=10,
        counted=False,
        needs=None,
        has=None,
    )
    assert made.news(TOKEN) == Checkpoints(token=TOKEN, new=(joined,), last=10, gone=())
    assert made.news(TOKEN) == Checkpoints(token=TOKEN, new=(), last=10, gone=())
    made.take("s0", told(gone=(10,)))
    assert made.news(TOKEN) == Checkpoints(token=TOKEN, new=(), last=None, gone=(10,))


@pytest.mark.parametrize(
    ("placement", "why_not"),
    [
        (("s0", "s1"), None),
        (("s0", "s2"), "worker 1 has no whole part of it on s2"),
        (("s1", "s0"), "it was written by workers on s0, s1, now they are on s1, s0"),
        (("s0",), "it was written by workers on s0, s1, now they are on s0"),
        (("s0", "s1", "s2"), "worker 2 has no whole part of it on s2"),
    ],
    ids=["the-same", "a-spare", "other-numbers", "fewer", "more"],
)
def test_only_the_workers_that_wrote_it_can_resume_from_it(
    placement: tuple[str, ...], why_not: str | None
) -> None:
    made = parts(*BOTH)
    made.placement = placement
    assert made.news(TOKEN).gone == (() if why_not is None else (10,))
    assert made.why_not() == ({} if why_not is None else {"step-10": why_not})


def test_a_save_that_was_begun_anew_is_not_mixed_with_the_one_before() -> None:
    made = parts(*BOTH)
    made.begin(("s0", "s1"), 20.0)
    made.take("s0", told(part(10, 25.0)))
    assert made.news(TOKEN).gone == (10,)
    made.take("s1", told(part(10, 26.0, "s1")))
    assert [each.mtime for each in made.news(TOKEN).new] == [26.0]


def test_a_later_life_knows_the_attempts() -> None:
    made = Parts()
    lines = [
        AttemptLine(attempt=1, placement=("s0", "s1"), begun_t=0.5, t=1.0),
        AttemptLine(attempt=2, placement=("s0", "s2"), begun_t=30.0, t=31.0),
    ]
    made.recall(lines, zero_s=0.0)
    assert made.placement == ("s0", "s2")
    for system in ("s0", "s1", "s2"):
        made.take(system, told(part(10), part(20, 40.0)))
    assert [each.step for each in made.news(TOKEN).new] == [20]
    assert made.why_not() == {"step-10": "it was written by workers on s0, s1, now they are on s0, s2"}


def test_each_agent_is_told_what_is_known_of_its_own_disk() -> None:
    made = parts(*BOTH, ("s1", told(part(20, 13.0, "s1"))))
    names = ("step", "path", "size", "mtime", "device", "inode", "counted")
    assert made.marks("s1") == [
        dict(zip(names, (10, "/s1/step-10", 5, 12.0, 1, 10, False), strict=True)),
        dict(zip(names, (20, "/s1/step-20", 5, 13.0, 1, 20, False), strict=True)),
    ]
    assert made.marks("s2") == []
