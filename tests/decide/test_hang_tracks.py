"""What is known of one rank from its samples, to the second: ages, limits, loads, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from prefect_ft.decide.hang import GangWatch, Limits, LogPattern, Pace, RankSample, Sample
from prefect_ft.decide.hang import track as tracks
from prefect_ft.decide.hang.evidence import Judgement, judged
from prefect_ft.decide.hang.facts import Sign, Straggler, who
from prefect_ft.decide.hang.pace import middle_and_spread
from prefect_ft.decide.hang.track import Load, Track, is_flat

Told = tuple[float, Mapping[str, Any]]


def tracked(*told: Told, pace: Pace | None = None) -> Track:
    track = Track(0, pace or Pace())
    for now_s, fields in told:
        track.take(now_s, RankSample(**{"io": 0, "wait_s": 0.0, **fields}))
    return track


BEGUN: Told = (10.0, {})
STEPPED: list[Told] = [
    (10.0, {"beats": 1, "step": 1, "stage": "train"}),
    (20.0, {"beats": 2, "step": 2, "stage": "train"}),
]


def test_a_rank_that_was_never_seen_has_no_age() -> None:
    track = Track(3, Pace())
    assert (track.worker, track.now_s, track.began_s, track.knows_io, track.speaks) == (
        3,
        0,
        None,
        False,
        False,
    )
    assert (track.silent_s, track.io_quiet_s, track.still_s, track.has_stepped) == (0, 0, 0, False)


@pytest.mark.parametrize(
    ("told", "progress_s", "io_s", "state_s"),
    [
        pytest.param([BEGUN], 10, 10, 10, id="first-seen"),
        pytest.param([BEGUN, (20.0, {})], 10, 10, 10, id="the-same-again"),
        pytest.param([BEGUN, (20.0, {"io": 1})], 10, 20, 10, id="io"),
        pytest.param([BEGUN, (20.0, {"output": 1})], 10, 20, 10, id="output"),
        pytest.param([BEGUN, (20.0, {"io": None})], 10, 20, 10, id="io-not-known"),
        pytest.param([BEGUN, (20.0, {"state": "D"})], 10, 10, 20, id="another-state"),
        pytest.param([BEGUN, (20.0, {"beats": 1})], 20, 10, 10, id="the-first-beat"),
        pytest.param([BEGUN, (20.0, {"beats": 1, "step": 4})], 20, 10, 10, id="the-first-step"),
        pytest.param([BEGUN, (20.0, {"stage": "load"})], 20, 10, 10, id="a-stage"),
        pytest.param([*STEPPED, (30.0, {"beats": 3, "step": 2, "stage": "train"})], 20, 10, 10, id="a-beat-no-step"),
        pytest.param(
            [(10.0, {"beats": 1, "step": 2}), (20.0, {"beats": 3, "step": 2})], 10, 10, 10, id="which-is-training"
        ),
        pytest.param(
            [(10.0, {"step": 2}), (20.0, {"beats": 1, "step": 2})], 20, 10, 10, id="but-for-the-first-beat"
        ),
        pytest.param(
            [(s, {"beats": s, "step": 2, "stage": "validate"}) for s in (10, 20)],
            20, 10, 10,
            id="in-another-stage-a-beat-will-do",
        ),
        pytest.param([BEGUN, (20.0, {"beats": 1, "beat_s": 15.0})], 15, 10, 10, id="when-it-beat"),
        pytest.param([BEGUN, (20.0, {"beats": 1, "beat_s": 5.0})], 10, 10, 10, id="not-before-the-last-sample"),
        pytest.param([BEGUN, (20.0, {"beats": 1, "beat_s": 25.0})], 20, 10, 10, id="nor-after-this-one"),
    ],
)  # fmt: skip
def test_since_when_it_is_quiet(told: list[Told], progress_s: float, io_s: float, state_s: float) -> None:
    track = tracked(*told)
    assert (track.progress_s, track.io_s, track.state_s) == (progress_s, io_s, state_s)
    assert (track.silent_s, track.io_quiet_s) == (told[-1][0] - progress_s, told[-1][0] - io_s)
    assert track.began_s == 10.0


@pytest.mark.parametrize(
    ("told", "has_stepped"),
    [
        pytest.param([BEGUN, (20.0, {"beats": 1})], False, id="a-beat"),
        pytest.param([BEGUN, (20.0, {"beats": 1}), (30.0, {"beats": 2})], True, id="two"),
        pytest.param([BEGUN, (20.0, {"beats": 1, "step": 4})], False, id="a-step"),
        pytest.param([BEGUN, (20.0, {"beats": 1}), (30.0, {"beats": 2, "step": 0})], False, id="a-beat-and-a-step"),
        pytest.param(STEPPED, True, id="two-steps"),
        pytest.param([*STEPPED, (30.0, {"beats": 3, "step": 2, "stage": "validate"})], True, id="for-good"),
    ],
)  # fmt: skip
def test_whether_it_has_made_a_step(told: list[Told], has_stepped: bool) -> None:
    assert tracked(*told).has_stepped is has_stepped


def test_pauses_are_those_of_the_stage_in_which_they_began() -> None:
    pace = Pace()
    tracked(
        (10.0, {"beats": 1, "stage": "load"}),
        (40.0, {"beats": 2, "stage": "train"}),
        (60.0, {"beats": 3, "step": 1, "stage": "train"}),
        (70.0, {"beats": 4, "step": 2, "stage": "train"}),
        (75.0, {"beats": 5, "step": 3, "stage": "train"}),
        (80.0, {"beats": 6, "step": 3, "stage": "validate"}),
        (90.0, {"beats": 7, "step": 4, "stage": "train"}),
        pace=pace,
    )
    assert pace.pauses == {"first_step": [30.0], "train": [20.0, 10.0, 5.0, 5.0], "validate": [10.0]}


def test_it_may_count_anew() -> None:
    track = tracked(BEGUN, (30.0, {"state": "T"}), (50.0, {"state": "T"}))
    assert (track.silent_s, track.io_quiet_s, track.still_s) == (40, 40, 20)
    track.restart_quiet()
    assert (track.silent_s, track.io_quiet_s, track.still_s) == (0, 0, 0)


@pytest.mark.parametrize(
    ("told", "limits", "known", "limit_s"),
    [
        pytest.param({}, {}, {}, 100, id="mute"),
        pytest.param({}, {"first_step_s": 300.0}, {}, 300, id="who-may-speak-yet"),
        pytest.param({}, {"first_step_s": 50.0}, {}, 100, id="and-if-not-as-any"),
        pytest.param({"beats": 1, "stage": "load"}, {}, {}, 100, id="before-the-first-step"),
        pytest.param({"beats": 1, "stage": "load"}, {"first_step_s": 50.0}, {}, 50, id="as-given"),
        pytest.param(
            {"beats": 1, "stage": "load"}, {"first_step_s": 50.0}, {"load": [400.0] * 3}, 50, id="whatever-was-learnt"
        ),
        pytest.param({"beats": 1, "stage": "load"}, {}, {"load": [400.0] * 3}, 800, id="else-as-learnt-of-its-stage"),
        pytest.param({"beats": 1, "stage": "load"}, {}, {"first_step": [400.0] * 3}, 800, id="or-of-all-before-it"),
        pytest.param({"beats": 1, "stage": "load"}, {"stages": {"load": 300.0}}, {}, 300, id="a-stage-s-own"),
        pytest.param({"beats": 1, "stage": "load"}, {"stages": {"load": 30.0}}, {}, 100, id="if-that-is-longer"),
        pytest.param({"beats": 1}, {"stages": {"train": 300.0}}, {}, 100, id="no-stage"),
        pytest.param({"beats": 1, "stage": "validate"}, {"stages": {"validate": 30.0}}, {}, 30, id="another-stage"),
    ],
)  # fmt: skip
def test_how_long_it_may_be_quiet(
    told: Mapping[str, Any], limits: Mapping[str, Any], known: Mapping[str, list[float]], limit_s: float
) -> None:
    track = tracked((10.0, told), pace=Pace([known]))
    assert track.limit_s(Limits(**{"hang_s": 100.0, **limits})) == limit_s


@pytest.mark.parametrize(
    ("state", "stillness"),
    [
        ("S", None),
        ("R", None),
        ("T", "stopped"),
        ("t", "stopped by a tracer"),
        ("D", "in the kernel, not to be interrupted"),
        ("Z", "its main thread has ended, others have not"),
    ],
)
def test_states_in_which_it_can_do_nothing(state: str, stillness: str | None) -> None:
    track = tracked(BEGUN, (20.0, {"state": state}), (50.0, {"state": state}))
    assert (track.stillness, track.still_s) == (stillness, 30 if stillness else 0)


# -- loads ------------------------------------------------------------------------------------------


def test_of_too_many_loads_every_other_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "MAX_LOADS", 8)
    track = tracked(*((float(number), {"cpu_s": number / 2}) for number in range(8)))
    assert list(track.loads) == [Load(number, number / 2, 0.0) for number in range(8)]
    track.take(8.0, RankSample(cpu_s=4.0))
    assert [load.watched_s for load in track.loads] == [0, 2, 4, 6, 8]


def test_waiting_and_throttling_are_one_time() -> None:
    track = Track(0, Pace())
    for now_s, wait_s, throttled_s in (
        (10.0, 5.0, 9.0),
        (20.0, 8.0, 2.0),
        (30.0, 9.0, 4.0),
        (40.0, None, 3.0),
    ):
        track.take(now_s, RankSample(wait_s=wait_s), throttled_s)
    assert [load.wait_s for load in track.loads] == [0.0, 3.0, 7.0, 10.0]


def loaded(*wanted: float, waits: float = 0.0, period_s: float = 10.0) -> Track:
    """A rank that computes so many cores in each period, and waits for so many besides."""
    told: list[Told] = [(0.0, {})]
    for cores in wanted:
        now_s, last = told[-1]
        told.append(
            (
                now_s + period_s,
                {
                    "cpu_s": last.get("cpu_s", 0.0) + cores * period_s,
                    "wait_s": last.get("wait_s", 0.0) + waits * period_s,
                },
            )
        )
    return tracked(*told)


@pytest.mark.parametrize(
    ("track", "load"),
    [
        pytest.param(loaded(0.5, 0.5, 0.5, 0.5), None, id="too-few"),
        pytest.param(loaded(0.5, 0.5, 0.5, 0.5, 0.5), 0.5, id="always-as-much"),
        pytest.param(loaded(0.0, 0.0, 0.0, 0.0, 0.0), 0.0, id="nothing"),
        pytest.param(loaded(0.2, 0.2, 0.2, 0.2, 0.2, waits=0.6), 0.8, id="what-it-waits-for-counts"),
        pytest.param(loaded(0.1, 0.9, 0.1, 0.9, 0.1), None, id="now-more-now-less"),
        pytest.param(loaded(9.0, 0.5, 0.5, 0.5, 0.5, 0.5), 0.5, id="within-the-window"),
        pytest.param(loaded(1.0, 1.0, 1.0, 1.0, 1.3), 1.0, id="nearly"),
        pytest.param(loaded(1.0, 1.0, 1.0, 1.0, 1.4), None, id="not-so-nearly"),
        pytest.param(loaded(*[0.5] * 5, period_s=1.0), 0.5, id="often"),
    ],
)
def test_a_load_is_flat(track: Track, load: float | None) -> None:
    assert track.flat_load(50.0) == (None if load is None else pytest.approx(load))


def test_a_load_is_measured_over_some_time() -> None:
    track = tracked(*((number / 32, {"cpu_s": float(number // 4)}) for number in range(33)))
    assert track.flat_load(10.0) == 8.0
    assert track.flat_load(0.9) is None


@pytest.mark.parametrize(
    ("track", "is_starved"),
    [
        pytest.param(Track(0, Pace()), False, id="never-seen"),
        pytest.param(loaded(), False, id="seen-once"),
        pytest.param(loaded(0.1, waits=0.9), True, id="gets-a-tenth"),
        pytest.param(loaded(0.25, waits=0.75), False, id="gets-a-quarter"),
        pytest.param(loaded(0.0, waits=0.06), True, id="wants-little-and-gets-nothing"),
        pytest.param(loaded(0.0, waits=0.04), False, id="wants-nearly-nothing"),
        pytest.param(loaded(9.0, *[0.1] * 5, waits=0.9), True, id="within-the-window"),
    ],
)
def test_who_gets_no_processor(track: Track, is_starved: bool) -> None:
    assert track.is_starved(50.0) is is_starved


@pytest.mark.parametrize(
    ("values", "slack", "share", "expected"),
    [
        ([1.0, 1.0], 0.0, 0.0, True),
        ([1.0, 3.0], 1.0, 0.0, True),
        ([1.0, 3.0], 0.99, 0.0, False),
        ([-9.0, -11.0], 0.0, 0.1, True),
        ([9.0, 11.0], 0.0, 0.09, False),
        ([0.0, 0.0, 0.0, 4.0], 2.0, 0.0, True),
        ([0.0, 0.0, 0.0, 4.0], 1.9, 0.0, False),
    ],
)
def test_flat_by_variance_about_the_median(
    values: list[float], slack: float, share: float, expected: bool
) -> None:
    assert is_flat(values, slack, share) is expected


# -- evidence ---------------------------------------------------------------------------------------

LIMITS = Limits(hang_s=100.0)
IDLE = [(10.0 * number, {}) for number in range(11)]
LATE = Sign(kind="log", text="late", lasted_s=1.0)


def sign(kind: str, text: str, lasted_s: float) -> Sign:
    return Sign(kind=kind, text=text, lasted_s=lasted_s, rank=7)  # type: ignore[arg-type]


QUIET = sign("io", "no process I/O for 100 s", 100.0)
FLAT = sign("utilisation", "load flat at 0.00 cores for 50 s", 50.0)


@pytest.mark.parametrize(
    ("told", "limits", "expected"),
    [
        pytest.param(IDLE, LIMITS, ((QUIET, FLAT), True, False, True), id="idle"),
        pytest.param(IDLE[:10], LIMITS, ((), False, False, True), id="not-for-long-enough"),
        pytest.param(IDLE[:5], LIMITS, ((), False, False, False), id="not-even-quiet"),
        pytest.param([(s, {"io": None}) for s, _ in IDLE], LIMITS, ((), False, False, False), id="io-unknown"),
        pytest.param(
            [(s, {"beats": 1, "stage": "load"}) for s, _ in IDLE],
            LIMITS,
            (
                (sign("progress", "no progress for 100 s before its first step (limit 100 s)", 100.0), QUIET, FLAT),
                True, False, True,
            ),
            id="before-its-first-step",
        ),
        pytest.param(
            [*STEPPED, *((s + 20.0, STEPPED[1][1]) for s, _ in IDLE[1:])],
            LIMITS,
            (
                (
                    sign(
                        "progress",
                        "no progress for 100 s in the stage train (limit 100 s), the last one is 2",
                        100.0,
                    ),
                    sign("io", "no process I/O for 110 s", 110.0),
                    FLAT,
                ),
                True, False, True,
            ),
            id="in-training",
        ),
        pytest.param(
            [(0.0, {"beats": 1}), *((s, {"beats": 2}) for s, _ in IDLE[1:]), (110.0, {"beats": 2, "io": 1})],
            LIMITS,
            (
                (sign("progress", "no progress for 100 s in the stage train (limit 100 s)", 100.0), FLAT),
                True, False, True,
            ),
            id="without-a-stage",
        ),
        pytest.param(
            [(s, {"beats": 1 + (s >= 50.0)}) for s, _ in IDLE], LIMITS, ((QUIET,), False, True, True), id="gets-on"
        ),
        pytest.param(
            [(s, {"io": int(s), "state": "T"}) for s, _ in IDLE],
            LIMITS,
            ((sign("state", "for 100 s stopped", 100.0), FLAT), True, False, True),
            id="stopped",
        ),
        pytest.param(
            [(s, {"state": "T" if s >= 50.0 else "R"}) for s, _ in IDLE],
            LIMITS,
            ((QUIET, sign("state", "for 50 s stopped", 50.0), FLAT), True, False, True),
            id="for-half-the-time",
        ),
        pytest.param(
            [(s, {"io": int(s)}) for s, _ in IDLE],
            Limits(hang_s=100.0, evidence=1),
            ((sign("utilisation", "load flat at 0.00 cores for 100 s", 100.0),), True, False, False),
            id="where-one-kind-is-enough",
        ),
        pytest.param(
            [(s, {"wait_s": 0.9 * s, "cpu_s": 0.1 * s}) for s, _ in IDLE],
            LIMITS,
            ((QUIET, sign("utilisation", "load flat at 1.00 cores for 50 s", 50.0)), False, False, True),
            id="starved",
        ),
    ],
)  # fmt: skip
def test_what_speaks_against_a_rank(told: list[Told], limits: Limits, expected: tuple[Any, ...]) -> None:
    signs, is_hung, progresses, is_quiet = expected
    found = judged(7, tracked(*told), limits, (), ())
    assert (found.rank, found.limit_s) == (7, 100.0)
    assert (found.signs, found.is_hung, found.progresses, found.is_quiet) == (
        signs,
        is_hung,
        progresses,
        is_quiet,
    )


def test_late_lines_speak_against_all() -> None:
    told = [(s, {"io": int(s)}) for s, _ in IDLE]
    assert judged(7, tracked(*told), LIMITS, (), [LATE]) == Judgement(
        7, 100.0, (FLAT, LATE), True, False, False, 0.0
    )


def test_who_was_seen_for_a_short_time_has_no_flat_load() -> None:
    told = [(s + 10.0, {"io": int(s)}) for s, _ in IDLE[:5]]
    assert judged(7, tracked(*told), LIMITS, (), [LATE]).signs == (LATE,)


def devices(*percents: float, name: str = "0") -> list[tuple[float, Mapping[str, float]]]:
    """What was told of a device, the last at 100 s."""
    return [(100.0 - 10.0 * left, {name: value}) for left, value in enumerate(reversed(percents))][::-1]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        pytest.param((), "load flat at 0.00 cores for 50 s", id="none"),
        pytest.param(
            devices(5.0, 6.0, 5.0, 6.0, 5.5), "load flat at 0.00 cores, device 0 at 5.5 % for 50 s", id="flat"
        ),
        pytest.param(devices(5.0, 9.0, 5.0, 9.0, 5.0), None, id="at-work"),
        pytest.param(devices(5.0, 5.0, 5.0, 5.0), None, id="too-few"),
        pytest.param(
            devices(99.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
            "load flat at 0.00 cores, device 0 at 0 % for 50 s",
            id="within-the-window",
        ),
        pytest.param(
            [(s, dict.fromkeys("fedcba", 1.0)) for s in (60.0, 70.0, 80.0, 90.0, 100.0)],
            "load flat at 0.00 cores, device a at 1 %, device b at 1 %, device c at 1 %, device d at 1 % for 50 s",
            id="four-of-many",
        ),
    ],
)  # fmt: skip
def test_where_devices_are_known_they_have_to_stand_still_too(told: Any, text: str | None) -> None:
    found = judged(7, tracked(*IDLE), LIMITS, told, ())
    assert [each.text for each in found.signs if each.kind == "utilisation"] == (
        [] if text is None else [text]
    )


# -- the gang ---------------------------------------------------------------------------------------


def played(
    *ranks: Mapping[str, Any], limits: Limits = LIMITS, from_s: float = 0.0, until_s: float = 100.0
) -> GangWatch:
    """A watch of ranks, one for each worker; what is a function is one of the sample's number."""
    watch = GangWatch({rank: rank for rank in range(len(ranks))}, limits, Pace())
    for number in range(int(from_s / 10), int(until_s / 10) + 1):
        for rank, told in enumerate(ranks):
            now = {name: value(number) if callable(value) else value for name, value in told.items()}
            sample = RankSample(**{"io": 0, "wait_s": 0.0, **now})
            watch.take(rank, Sample(watched_s=10.0 * number, ranks={rank: sample}))
    return watch


def steps(pace: float) -> dict[str, Any]:
    return {"beats": lambda n: 1 + n, "step": lambda n: int(pace * n), "stage": "train"}


@pytest.mark.parametrize(
    ("ranks", "until_s", "expected"),
    [
        pytest.param([steps(4), steps(1)], 100.0, (1, 10, 40, 0.25, 100.0), id="one-of-two"),
        pytest.param(
            [steps(4), steps(1), steps(3)], 150.0, (1, 15, 45, 10 / 30, 100.0), id="the-median-counts"
        ),
        pytest.param(
            [steps(4), steps(1) | {"step": lambda n: 1000 + n}],
            100.0,
            (1, 1010, 1010, 0.25, 100.0),
            id="ahead",
        ),
        pytest.param([steps(4), steps(2)], 100.0, None, id="half-as-fast"),
        pytest.param([steps(4), steps(1)], 90.0, None, id="not-for-long-enough"),
        pytest.param([steps(0.5), steps(0)], 100.0, None, id="too-few-steps"),
        pytest.param([steps(0.6), steps(0)], 100.0, (1, 0, 6, 0.0, 100.0), id="hardly-enough"),
        pytest.param([steps(1)], 100.0, None, id="alone"),
        pytest.param([steps(4), {}], 100.0, None, id="one-of-whom-nothing-is-known"),
    ],
)
def test_who_makes_fewer_steps(
    ranks: list[dict[str, Any]], until_s: float, expected: tuple[Any, ...] | None
) -> None:
    found = played(*ranks, until_s=until_s).stragglers()
    if expected is None:
        assert found == []
        return
    rank, step, others_step, pace, lasted_s = expected
    assert found == [
        Straggler(rank=rank, worker=rank, step=step, others_step=others_step, pace=pace, lasted_s=lasted_s)
    ]


def test_of_a_gang_without_steps_nothing_is_said() -> None:
    assert GangWatch({0: 0}, LIMITS, Pace()).stragglers() == []


@pytest.mark.parametrize(
    ("rank", "until_s", "is_near", "has_moved"),
    [
        pytest.param({}, 40.0, False, False, id="just-begun"),
        pytest.param({}, 50.0, True, False, id="quiet-for-half-the-limit"),
        pytest.param({}, 100.0, True, False, id="quiet"),
        pytest.param({"io": lambda n: n}, 100.0, False, True, id="reads"),
        pytest.param({"io": lambda n: n}, 90.0, False, False, id="not-for-long-enough-to-say"),
        pytest.param({"io": lambda n: n, **steps(1)}, 100.0, False, True, id="makes-steps"),
        pytest.param(steps(1), 100.0, False, True, id="and-nothing-else"),
        pytest.param({"io": lambda n: n, "beats": 1}, 100.0, True, False, id="reads-and-gets-nowhere"),
        pytest.param({"is_over": True}, 100.0, False, True, id="over"),
    ],
)
def test_what_a_rank_has_come_to(
    rank: dict[str, Any], until_s: float, is_near: bool, has_moved: bool
) -> None:
    watch = played(rank, until_s=until_s)
    assert watch.is_suspicious is is_near
    assert watch.has_moved([0]) is has_moved


def test_who_was_not_seen_for_long_enough_has_not_moved() -> None:
    reads = {"io": lambda n: n}
    assert not played(reads, from_s=50.0, until_s=140.0).has_moved([0])
    assert played(reads, {}, from_s=50.0, until_s=150.0).has_moved([1, 0])


def test_when_one_is_over_the_others_count_anew() -> None:
    ends: dict[str, Any] = {"is_over": lambda n: n >= 10}
    watch, idle = played({}, ends), RankSample(io=0, wait_s=0.0)
    assert not watch.is_suspicious
    for now_s, is_near in ((140.0, False), (150.0, True)):
        watch.take(0, Sample(watched_s=now_s, ranks={0: idle}))
        watch.take(1, Sample(watched_s=now_s, ranks={1: RankSample(is_over=True)}))
        assert watch.is_suspicious is is_near


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ((7,), "rank 7"),
        ((7, 9), "ranks 7 and 9"),
        ((1, 2, 3, 9), "ranks 1, 2, 3 and 9"),
        ((1, 2, 3, 4, 9), "5 ranks"),
    ],
)
def test_ranks_have_a_name(ranks: tuple[int, ...], name: str) -> None:
    assert who(ranks) == name


def test_a_sample_tells_whether_a_verdict_may_be_near() -> None:
    watch = played({}, until_s=40.0)
    idle = {0: RankSample(io=0, wait_s=0.0)}
    assert not watch.take(0, Sample(watched_s=60.0, ranks=idle, is_past=True))
    assert watch.take(0, Sample(watched_s=60.0, ranks=idle))
    assert not watch.take(0, Sample(watched_s=60.0, ranks={5: idle[0]}))


@pytest.mark.parametrize(("evidence", "is_near"), [(1, True), (2, False)])
def test_where_one_kind_is_enough_it_always_may_be(evidence: int, is_near: bool) -> None:
    watch = played({"io": lambda n: n}, limits=Limits(hang_s=100.0, evidence=evidence))
    assert watch.is_suspicious is is_near


@pytest.mark.parametrize(
    ("seen_s", "text"),
    [(30.0, "no line like 'step' for 70 s (limit 70 s)"), (40.0, None)],
)
def test_a_line_that_is_late(seen_s: float, text: str | None) -> None:
    works = {"io": lambda n: n}
    limits = Limits(hang_s=100.0, logs=(LogPattern(pattern="step", every_s=70.0),))
    watch = played(works, works, limits=limits, until_s=seen_s)
    assert not watch.awaits(0)
    watch.line_seen(0, 1)
    watch.line_seen(0, 9)
    assert watch.awaits(0)
    for number in range(int(seen_s / 10) + 1, 11):
        for rank in (0, 1):
            watch.take(rank, Sample(watched_s=10.0 * number, ranks={rank: RankSample(io=number, wait_s=0.0)}))
    assert watch.is_suspicious is (text is not None)
    hang = watch.verdict()
    assert (hang and [each.text for each in hang.signs if each.kind == "log"]) == (text and [text, text])


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param({"state": "T"}, id="stopped"),
        pytest.param({"beats": 1, "step": 0, "stage": "train"}, id="without-progress"),
    ],
)
def test_what_is_found_of_one_rank_is_found_again_once_all_were_heard_of(quiet: dict[str, Any]) -> None:
    watch = GangWatch({0: 0, 1: 1, 2: 2}, LIMITS, Pace())
    found = []
    for number in range(13):
        for rank in range(3):
            works = {"beats": 1 + number, "step": number, "stage": "train", "io": number}
            told = RankSample(**({"io": 0, **quiet} if rank == 1 else works))  # type: ignore[arg-type]
            watch.take(rank, Sample(watched_s=10.0 * number, ranks={rank: told}))
            if hang := watch.verdict():
                found.append((10 * number, rank, hang.scope, hang.ranks, hang.blamed, hang.worker))
    assert found[0] == (110, 1, "one-rank", (1,), 1, 1)


def test_who_has_told_nothing_for_three_samples_of_another_is_not_known() -> None:
    watch, idle = played({}, {}), RankSample(io=0, wait_s=0.0)
    found = []
    for number in range(11, 14):
        watch.take(0, Sample(watched_s=10.0 * number, ranks={0: idle}))
        found.append(watch.verdict() is not None)
    assert found == [True, True, False]


BUSY = {"cpu_s": lambda n: 10.0 * n}
UNSTEADY = {"cpu_s": lambda n: 10.0 * (n + n % 2)}


@pytest.mark.parametrize(
    ("ranks", "blamed"),
    [
        pytest.param([{}, {}, {}], None, id="all-alike"),
        pytest.param([{}, BUSY, {}], 1, id="one-is-busy"),
        pytest.param([BUSY, BUSY, {}], 2, id="one-is-idle"),
        pytest.param([{}, BUSY], None, id="of-two-nobody-knows"),
        pytest.param([{"beats": 1}, {"beats": 1} | UNSTEADY, {"beats": 1}], 1, id="of-one-it-is-not-known"),
        pytest.param([{"beats": 1, "stage": stage} for stage in ("load", "load", "train")], 2, id="in-another-stage"),
        pytest.param(
            [{"beats": 1, "stage": stage} for stage in ("load", "load", "train", "train")], None, id="two-and-two"
        ),
        pytest.param(
            [{"beats": 1, "stage": stage} for stage in ("load", "compile", "train")], None, id="each-in-its-own"
        ),
        pytest.param([{"beats": 1, "step": step} for step in (4, 3, 4)], 1, id="a-step-behind"),
        pytest.param([{"beats": 1, "step": step} for step in (3, 3, 4)], None, id="two-behind"),
        pytest.param([{"state": "T"}, {}, BUSY], 0, id="stopped"),
    ],
)  # fmt: skip
def test_whom_the_others_wait_for(ranks: list[dict[str, Any]], blamed: int | None) -> None:
    hang = played(*ranks).verdict()
    assert hang is not None
    assert (hang.scope, hang.ranks, hang.blamed) == ("all-workers", tuple(range(len(ranks))), blamed)


@pytest.mark.parametrize(
    ("values", "middle", "spread"),
    [([3.0], 3.0, 0.0), ([9.0, 1.0, 3.0], 3.0, 2.0), ([20.0, 1.0, 10.0, 2.0], 6.0, 4.5)],
)
def test_median_and_spread(values: list[float], middle: float, spread: float) -> None:
    assert middle_and_spread(values) == (middle, spread)


def test_of_a_stage_the_newest_pauses_are_kept() -> None:
    pace = Pace([{"load": [7.0] * 99}, {"load": [8.0]}])
    assert pace.limit_s("load", Limits(hang_s=1.0)) == 14.0
    for pause_s in (1 / 3, 9.0):
        pace.note("load", pause_s)
    assert pace.pauses == {"load": [*[7.0] * 97, 8.0, 0.333, 9.0]}
    for _ in range(99):
        pace.note("load", 20.0)
    assert pace.limit_s("load", Limits(hang_s=1.0)) == 40.0
