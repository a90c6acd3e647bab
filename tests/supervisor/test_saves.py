"""What agents say of checkpoints becomes what an incident says: where one can resume, and what is progress."""

from __future__ import annotations

from typing import Any

import pytest
from heard import heard

from prefect_ft.journal.records import AttemptLine, CheckpointLine, IncidentLine
from prefect_ft.model import Incident
from prefect_ft.supervisor.events import Checkpoints
from prefect_ft.supervisor.saves import Saves

ATTEMPT = AttemptLine(attempt=1, placement=("s0",))


def saved(step: int, mtime: float) -> CheckpointLine:
    return CheckpointLine(step=step, path=f"ck/{step}", mtime=mtime, written_t=0)


def report(last: int | None, *new: int, mtime: float = 1.0) -> Checkpoints:
    items = [{"step": step, "path": f"ck/{step}", "mtime": mtime} for step in new]
    return heard("checkpoints", new=items, last=last)


def saves(*course: Any) -> Saves:
    """`None` begins an attempt, a list sets these steps aside, a pair is a fence, anything else a report."""
    made = Saves()
    for each in course:
        if each is None:
            made.begin_attempt()
        elif isinstance(each, list):
            made.set_aside(each)
        elif isinstance(each, tuple):
            made.fence(*each)
        else:
            made.report(each)
    return made


def facts(
    step: int | None, seen: int | None, baseline: int | None, *verified: int, counted: bool | None = None
) -> dict[str, Any]:
    return {
        "step": step, "seen_step": seen, "baseline_step": baseline, "verified": verified, "counted": counted
    }  # fmt: skip


def version(step: int, mtime: float, *gone: int, counted: bool = True) -> Checkpoints:
    """A version of a file that is overwritten."""
    item = {"step": step, "path": "ck/snapshot.pt", "mtime": mtime, "counted": counted}
    return heard("checkpoints", new=[item], gone=list(gone), last=step)


CASES = {
    "nothing": ([None], facts(None, None, None)),
    "none-on-disk": ([report(None), None], facts(None, None, None)),
    "step-0": ([None, report(0, 0)], facts(0, 0, None, 0)),
    "two-saved": ([None, report(10, 10), report(20, 20)], facts(20, 20, None, 10, 20)),
    "found-before-the-attempt": ([report(20, 10, 20), None], facts(20, None, 20, 10, 20)),
    "more-than-before": ([report(10, 10), None, report(20, 20)], facts(20, 20, 10, 10, 20)),
    "saved-while-the-attempt-was-ended": (
        [None, report(10, 10), report(20, 20), None],
        facts(20, None, 20, 10, 20),
    ),
    "damaged-after-it-was-seen": ([None, report(20, 10, 20), report(10)], facts(10, 20, None, 10)),
    "all-gone": ([None, report(20, 10, 20), report(None)], facts(None, 20, None)),
    "the-baseline-never-falls": ([report(20, 20), report(None), None, report(5, 5)], facts(5, 5, 20, 5)),
    "set-aside": ([report(20, 10, 20), [20], None], facts(10, None, 20, 10)),
    "the-only-one-set-aside": ([report(20, 20), [20], None], facts(None, None, 20)),
    "reported-again-by-a-new-agent": (
        [report(20, 10, 20), [20], None, report(20, 10, 20)],
        facts(10, 20, 20, 10),
    ),
    "written-anew": ([report(20, 10, 20), [20], None, report(20, 20, mtime=2)], facts(20, 20, 20, 10, 20)),
    "written-anew-and-unreadable-again": (
        [report(20, 10, 20), [20], None, report(20, 20, mtime=2), [20], None],
        facts(10, None, 20, 10),
    ),
    "gone-for-a-while-and-still-the-same": (
        [report(20, 10, 20), [20], None, report(10), [20], None, report(20, 20)],
        facts(10, 20, 20, 10),
    ),
    "set-aside-before-it-was-reported": ([[20], None, report(20, 10, 20)], facts(20, 20, None, 10, 20)),
    "before-a-fence": ([report(10, 10), (5, 9), None], facts(10, None, 10, 10)),
    "of-a-fenced-attempt": ([report(10, 10), (5, 9), None, report(30, 30, mtime=7)], facts(10, None, 10, 10)),
    "after-a-fence": ([report(10, 10), (5, 9), None, report(30, 30, mtime=10)], facts(30, 30, 10, 10, 30)),
    "in-the-place-of-a-good-one": (
        [report(20, 10, 20), (5, 9), None, report(20, 20, mtime=6)],
        facts(10, None, 20, 10),
    ),
    "written-anew-after-a-fence": (
        [report(10, 10), (5, 9), None, report(30, 30, mtime=7), report(30, 30, mtime=10)],
        facts(30, 30, 10, 10, 30),
    ),
    "one-of-two-fences": (
        [report(10, 10), (5, 9), (20, 24), None, report(30, 30, mtime=21)],
        facts(10, None, 10, 10),
    ),
    "rotated-away": (
        [report(20, 10, 20), heard("checkpoints", gone=[10], last=20), None],
        facts(20, None, 20, 20),
    ),
    "a-version-takes-the-place-of-the-one-before": (
        [None, version(1, 1.0), version(2, 2.0, 1)],
        facts(2, 2, None, 2, counted=True),
    ),
    "a-version-of-which-a-copy-is-kept": (
        [
            None,
            version(1, 1.0),
            heard(
                "checkpoints",
                new=[
                    {
                        "step": 1,
                        "path": "ck/.prefect-ft-copies/1c@snapshot.pt",
                        "mtime": 1.0,
                        "counted": True,
                    },
                    *(each.write() for each in version(2, 2.0).new),
                ],
                gone=[],
            ),
        ],
        facts(2, 2, None, 1, 2, counted=True),
    ),
    "a-version-beside-a-name-with-a-step": (
        [None, report(100, 100), version(101, 2.0)],
        facts(101, 101, None, 100, 101),
    ),
    "a-version-of-a-lower-step": (
        [None, version(80, 1.0, counted=False), None, version(60, 2.0, counted=False)],
        facts(60, 60, 80, 60),
    ),
    "a-version-that-is-cut": (
        [None, version(1, 1.0), heard("checkpoints", gone=[1])],
        facts(None, 1, None, counted=True),
    ),
    "no-longer-set-aside": ([report(20, 10, 20), [20], [], None], facts(20, None, 20, 10, 20)),
}


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


@pytest.mark.parametrize(("course", "expected"), CASES.values(), ids=CASES.keys())
def test_what_an_incident_says_of_checkpoints(course: list[Any], expected: dict[str, Any]) -> None:
    assert saves(*course).facts() == expected


def test_what_has_counted_once_has_been_saved_also_when_it_is_gone() -> None:
    assert [
        saves(*course).has_ever_saved for course in ([], [report(5, 5)], [report(5, 5), report(None)])
    ] == [
        False,
        True,
        True,
    ]


def test_those_set_aside_are_avoided() -> None:
    assert saves(report(30, 10, 20, 30), [30, 10]).avoided == [10, 30]


def test_what_lost_ranks_wrote_is_avoided_until_it_is_written_anew() -> None:
    known = saves(report(10, 10), (5, 9), None)
    assert known.report(report(30, 30, mtime=7)) == []
    assert (known.avoided, known.newest_s) == ([30], 1.0)
    known.report(report(30, 30, mtime=10))
    assert (known.avoided, known.newest_s) == ([], 10.0)


def test_what_a_completed_attempt_wrote_counts_in_spite_of_a_fence_and_nothing_earlier_does() -> None:
    """A short training may end before ranks of a lost system have certainly ended."""
    made = saves(report(10, 10), (5, 20), None, report(20, 20, mtime=7), report(30, 30, mtime=15))
    assert made.facts() == facts(10, None, 10, 10)
    made.trust(since_s=12)
    assert made.facts() == facts(30, 30, 10, 10, 30)
    assert made.avoided == [20]


def test_a_fence_is_recalled() -> None:
    known = Saves()
    lost = IncidentLine(n=1, ended_t=1, facts=Incident(t=1, kind="system_lost"), fences=((5, 9),))
    known.recall([ATTEMPT, lost, ATTEMPT], [])
    known.report(report(30, 30, mtime=7))
    assert known.avoided == [30]


def test_what_was_saved_since_values_went_wrong_counts_for_nothing() -> None:
    known = saves(
        report(20, 20, mtime=1),
        None,
        report(30, 30, mtime=2),
        report(34, 34, mtime=3.0004),
        report(40, 40, mtime=4),
    )
    assert known.distrust(33, 5.0) == (3.0, 5.0)
    assert known.facts() == facts(30, 30, 20, 20, 30)
    assert known.avoided == [34, 40]
    known.begin_attempt()
    known.report(report(40, 40, mtime=4))  # another connection
    assert known.facts() == facts(30, None, 40, 20, 30)
    known.report(report(34, 34, mtime=6))
    assert (known.facts(), known.avoided) == (facts(34, 34, 40, 20, 30, 34), [40])


def test_nothing_is_distrusted_that_was_saved_before() -> None:
    known = saves(None, report(30, 30, mtime=2))
    assert known.distrust(31, 5.0) is None
    assert known.facts() == facts(30, 30, None, 30)
    assert known.distrust(30, 5.0) == (2.0, 5.0)
    assert known.facts() == facts(None, None, None)


def test_a_later_life_does_not_trust_what_was_saved_since_values_went_wrong() -> None:
    odd = IncidentLine(n=1, ended_t=1, facts=Incident(t=1, kind="exit"), fences=((3.0, 5.0),))
    later = Saves()
    later.recall([ATTEMPT, saved(30, 2.0), saved(34, 3.0), odd, ATTEMPT, saved(34, 6.0)], [])
    assert later.facts() == facts(34, 34, 34, 30, 34)
    later = Saves()
    later.recall([ATTEMPT, saved(30, 2.0), saved(34, 3.0), odd], [])
    assert (later.facts()["verified"], later.avoided) == ((30,), [34])


def test_a_later_life_knows_what_the_one_before_it_did() -> None:
    """What was set aside is not good again because it is remembered; what was written anew since then is."""
    lines = [ATTEMPT, saved(10, 1.0), saved(20, 1.0), ATTEMPT, saved(30, 2.0)]
    later = Saves()
    later.recall(lines, [20])
    assert later.facts() == facts(30, 30, 20, 10, 30)
    anew = [*lines, saved(20, 3.0)]
    later = Saves()
    later.recall(anew, [20])
    assert later.facts() == facts(30, 30, 20, 10, 20, 30)


@pytest.mark.parametrize(("counted", "number"), [(True, "version"), (False, "step")])
def test_why_an_attempt_starts_elsewhere_is_told_in_steps_or_in_versions(counted: bool, number: str) -> None:
    made = saves(version(1, 1.0, counted=counted), version(2, 2.0, 1, counted=counted))
    assert made.why_not(1, {}) == f"snapshot.pt is of {number} 2 now"
    assert made.why_not(9, {}) == f"no checkpoint of {number} 9 is known"
    made.set_aside([2])
    assert made.why_not(2, {}) == f"{number} 2 is set aside"
