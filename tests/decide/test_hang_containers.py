"""What a container's quota keeps from its ranks makes none of them hang, and is said of those that do."""

from __future__ import annotations

import pytest

from prefect_ft.decide.hang import ContainerSample, GangWatch, Hang, Limits, Pace, RankSample, Sample
from prefect_ft.decide.hang.container import Container

LIMITS = Limits(hang_s=100.0)


def verdict(
    *cores: float, throttled: float | None = None, kills: int | None = None, waits: float = 0.0
) -> Hang | None:
    """The verdict on ranks of one worker that compute so many cores each and do nothing else.

    `throttled` and `waits` are seconds for each that passes; `kills` come while they are watched.
    """
    watch = GangWatch(dict.fromkeys(range(len(cores)), 0), LIMITS, Pace(()))
    hang = None
    for now_s in range(0, 300, 10):
        ranks = {
            rank: RankSample(io=0, cpu_s=share * now_s, wait_s=waits * now_s)
            for rank, share in enumerate(cores)
        }
        told = ContainerSample(
            throttled_s=None if throttled is None else 7.0 + throttled * now_s,
            oom_kills=None if kills is None else 3 + (kills if now_s else 0),
        )
        watch.take(0, Sample(watched_s=now_s, ranks=ranks, container=told))
        hang = hang or watch.verdict()
    return hang


@pytest.mark.parametrize(
    ("cores", "throttled", "hangs"),
    [
        pytest.param((0.05,), None, True, id="unknown"),
        pytest.param((0.05,), 0.0, True, id="computes-little"),
        pytest.param((0.05,), 0.95, False, id="is-let-compute-little"),
        pytest.param((0.05,), 3.9, False, id="wants-several-processors"),
        pytest.param((0.5,), 0.5, True, id="gets-half-of-what-it-wants"),
        pytest.param((0.0,), 0.0, True, id="idle"),
        pytest.param((0.05, 0.05), 1.9, False, id="both-are-kept-off"),
    ],
)
def test_who_is_throttled_does_not_hang(
    cores: tuple[float, ...], throttled: float | None, hangs: bool
) -> None:
    assert (verdict(*cores, throttled=throttled) is not None) is hangs


def test_waiting_and_throttling_are_the_same_time() -> None:
    assert verdict(0.5, throttled=0.5, waits=0.5) is not None


@pytest.mark.parametrize(
    ("throttled", "kills", "beside"),
    [
        pytest.param(None, None, (), id="unknown"),
        pytest.param(0.05, 0, (), id="nothing-worth-saying"),
        pytest.param(
            0.5, None, ("the container of worker 0 was throttled for 50 s of 100 s",), id="throttled"
        ),
        pytest.param(
            None,
            1,
            ("the kernel has killed a process in the container of worker 0 for its memory",),
            id="killed",
        ),
        pytest.param(
            0.0,
            2,
            ("the kernel has killed 2 processes in the container of worker 0 for its memory",),
            id="several-killed",
        ),
    ],
)
def test_what_is_said_of_a_container(
    throttled: float | None, kills: int | None, beside: tuple[str, ...]
) -> None:
    hang = verdict(0.5, throttled=throttled, kills=kills)
    assert hang is not None
    assert hang.beside == beside
    assert hang.text.endswith("; ".join(("", *beside)) if beside else "s")


def shares(*told: tuple[float | None, tuple[float, ...]]) -> list[dict[int, float]]:
    """What each rank is given of what a container was throttled, sample by sample."""
    container = Container()
    return [
        container.take(
            Sample(
                watched_s=10.0 * number,
                ranks={rank: RankSample(cpu_s=cpu_s) for rank, cpu_s in enumerate(computed)},
                container=ContainerSample(throttled_s=throttled_s),
            )
        )
        for number, (throttled_s, computed) in enumerate(told)
    ]


def test_who_hangs_beside_one_that_is_throttled_is_not_excused() -> None:
    assert shares((5.0, (0.0, 1.0, 0.0)), (25.0, (0.5, 1.0, 1.5))) == [{}, {0: 5.0, 2: 15.0}]


def test_each_has_its_share_of_what_was_computed_since() -> None:
    assert shares((0.0, (10.0, 1.0)), (9.0, (11.0, 3.0))) == [{}, {0: 3.0, 1: 6.0}]


@pytest.mark.parametrize(("before", "after"), [(None, 9.0), (9.0, None), (None, None), (9.0, 4.0)])
def test_what_is_not_known_was_no_throttling(before: float | None, after: float | None) -> None:
    assert shares((before, (1.0,)), (after, (2.0,))) == [{}, {0: 0.0}]


def test_who_came_later_has_no_share_yet() -> None:
    assert shares((0.0, (1.0,)), (9.0, (2.0, 5.0)), (12.0, (2.0, 6.0))) == [{}, {0: 9.0}, {1: 3.0}]


def test_nothing_is_said_of_a_container_that_was_not_seen() -> None:
    assert Container().said("worker 0") == []


def test_a_worker_may_have_come_out_of_no_container() -> None:
    container = Container()
    unknown, known = ContainerSample(), ContainerSample(throttled_s=9.0, oom_kills=4)
    for told in (None, known, None):
        container.take(Sample(watched_s=1.0, ranks={0: RankSample()}, container=told))
        assert container.said("worker 0") == []
    for told in (unknown, known):
        container = Container()
        container.take(Sample(watched_s=1.0, ranks={}, container=told))
        container.take(Sample(watched_s=2.0, ranks={}, container=known if told is unknown else unknown))
        assert container.said("worker 0") == []


def test_what_is_counted_before_anybody_is_seen_to_compute_is_not_lost() -> None:
    assert shares((0.0, (1.0,)), (9.0, (1.0,)), (10.0, (1.1,)), (10.0, (2.0,))) == [
        {},
        {},
        {0: 10.0},
        {0: 0.0},
    ]
