"""Who hangs is found within the limit and a period, and the right rank is blamed; who can't be known is not."""

from __future__ import annotations

from typing import Any

import pytest
from traces import END, PERIOD_S, Script, Stretch, verdict

from prefect_ft.decide.hang import GangWatch, Hang, Limits, LogPattern, Pace, RankSample, Sample

LIMIT_S = 1800.0
BEFORE_S = 3000.0
SLACK_S = 2.1 * PERIOD_S
"""What was last seen may be a period old, and what is seen next another one."""

TRAIN = Stretch(BEFORE_S, stage="train", step_s=20.0)
MUTE = Stretch(BEFORE_S)


def stuck(**fields: Any) -> Stretch:
    return Stretch(**{"lasts_s": 9000.0, "io": 0.0, "cores": 0.0, "noise": 0.0, "state": "S", **fields})


IDLE, BUSY, STOPPED = stuck(), stuck(cores=1.0, state="R"), stuck(state="T")
LOGS = stuck(io=1.0, cores=1.0, state="R")

FAULTS: dict[str, tuple[list[Script], str, int | None, set[str]]] = {
    "deadlock": ([[MUTE, IDLE]], "all-workers", 0, {"io", "utilisation"}),
    "deadlock-of-all": ([[MUTE, IDLE], [MUTE, IDLE]], "all-workers", None, {"io", "utilisation"}),
    "busy-loop": ([[MUTE, BUSY]], "all-workers", 0, {"io", "utilisation"}),
    "busy-loop-on-a-busy-machine": (
        [[MUTE, stuck(cores=0.4, wait=0.6, state="R")]],
        "all-workers",
        0,
        {"io", "utilisation"},
    ),
    "one-idle-of-busy-waiters": ([[MUTE, BUSY], [MUTE, IDLE], [MUTE, BUSY]], "all-workers", 1, {"io"}),
    "one-busy-of-idle-waiters": ([[MUTE, IDLE], [MUTE, IDLE], [MUTE, BUSY]], "all-workers", 2, {"io"}),
    "stopped-among-waiters": ([[TRAIN, IDLE], [TRAIN, STOPPED]], "all-workers", 1, {"state", "progress"}),
    "stopped-while-others-go-on": ([[MUTE, MUTE, MUTE], [MUTE, STOPPED]], "one-rank", 1, {"state", "io"}),
    "logs-and-gets-nowhere": ([[TRAIN, LOGS]], "all-workers", 0, {"progress", "utilisation"}),
    "beats-without-steps": (
        [[TRAIN, stuck(beats_s=1.0, io=1.0, cores=1.0)]],
        "all-workers",
        0,
        {"progress", "utilisation"},
    ),
    "a-step-behind-the-others": (
        [[TRAIN, Stretch(100.0, stage="train", step_s=20.0), IDLE], [TRAIN, IDLE]],
        "all-workers",
        1,
        {"progress", "io"},
    ),
    "in-another-stage": (
        [[TRAIN, IDLE], [TRAIN, stuck(stage="checkpoint")], [TRAIN, IDLE]],
        "all-workers",
        1,
        {"progress", "io"},
    ),
    "alone-while-others-make-steps": (
        [[TRAIN, TRAIN, TRAIN], [TRAIN, IDLE]],
        "one-rank",
        1,
        {"progress", "io", "utilisation"},
    ),
    "at-the-exit": ([[TRAIN, END], [TRAIN, IDLE]], "all-workers", 1, {"progress", "io"}),
    "zombie": ([[MUTE, stuck(state="Z")]], "all-workers", 0, {"state", "io"}),
    "in-the-kernel": ([[MUTE, stuck(state="D")]], "all-workers", 0, {"state", "io"}),
    "before-the-first-step": ([[Stretch(60.0, stage="load"), IDLE]], "all-workers", 0, {"progress", "io"}),
    "devices-stand-still": ([[MUTE, stuck(devices=0.0)]], "all-workers", 0, {"io"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_hang_is_found_in_time_and_the_right_rank_blamed(name: str) -> None:
    scripts, scope, blamed, kinds = FAULTS[name]
    told = verdict(scripts, lasts_s=9000.0)
    assert told is not None
    at_s, hang = told
    assert (hang.scope, hang.blamed, hang.worker) == (scope, blamed, blamed)
    assert kinds <= {sign.kind for sign in hang.signs}
    hanging = scripts if scope == "all-workers" else [scripts[hang.ranks[0]]]
    began_s = max(sum(stretch.lasts_s for stretch in script[:-1]) for script in hanging)
    assert LIMIT_S - PERIOD_S <= at_s - began_s <= LIMIT_S + SLACK_S


@pytest.mark.parametrize("evidence", [1, 2])
def test_progress_alone_is_enough_only_where_one_kind_is(evidence: int) -> None:
    works = stuck(io=1.0, cores=2.0, noise=1.0)
    told = verdict([[TRAIN, works]], limits=Limits(hang_s=LIMIT_S, evidence=evidence))
    assert (told is not None) == (evidence == 1)


def test_a_quiet_worker_without_heartbeats_has_twice_the_time_where_another_one_works() -> None:
    told = verdict([[MUTE, MUTE, MUTE, MUTE], [MUTE, IDLE]])
    assert told is not None
    at_s, hang = told
    assert (hang.scope, hang.ranks, hang.blamed) == ("one-worker", (1,), 1)
    assert 2 * LIMIT_S - PERIOD_S <= at_s - BEFORE_S <= 2 * LIMIT_S + SLACK_S


def test_a_stage_has_the_limit_that_it_was_given() -> None:
    limits = Limits(hang_s=LIMIT_S, stages={"validate": 600.0})
    told = verdict([[TRAIN, stuck(stage="validate")]], limits=limits)
    assert told is not None
    assert told[0] - BEFORE_S <= 600.0 + SLACK_S
    assert told[1].limit_s == 600.0


def test_a_first_step_has_a_limit_of_its_own() -> None:
    limits = Limits(hang_s=LIMIT_S, first_step_s=600.0)
    told = verdict([[Stretch(60.0, stage="load"), IDLE]], limits=limits)
    assert told is not None
    assert told[0] - 60.0 <= 600.0 + SLACK_S


def rank(**fields: Any) -> RankSample:
    return RankSample(**{"io": 0, "wait_s": 0.0, **fields})


def fed(limits: Limits, *, lines: dict[float, str] | None = None, until_s: float = 4000.0) -> float | None:
    """Play a rank whose load is flat and that does I/O all the time; when it is said to hang."""
    watch = GangWatch({0: 0}, limits, Pace())
    for number in range(1, int(until_s / 10)):
        now_s = 10.0 * number
        is_suspect = watch.take(0, Sample(watched_s=now_s, ranks={0: rank(io=number, cpu_s=now_s)}))
        match (lines or {}).get(now_s):
            case "seen" | "start":
                watch.line_seen(0, 0)
            case "stop":
                watch.lines_stop(0)
            case _:
                pass
        if is_suspect and watch.verdict():
            return now_s
    return None


@pytest.mark.parametrize(
    ("lines", "found_s"),
    [
        pytest.param({}, None, id="never-seen"),
        pytest.param({100.0: "seen"}, 900.0, id="not-again-and-the-load-is-flat-for-half-the-limit"),
        pytest.param({100.0: "seen", 500.0: "seen"}, 1100.0, id="once-more"),
        pytest.param({100.0: "start", 600.0: "stop"}, None, id="stopped"),
    ],
)
def test_a_line_that_must_come_again_is_evidence(lines: dict[float, str], found_s: float | None) -> None:
    limits = Limits(hang_s=LIMIT_S, logs=(LogPattern(pattern="step", every_s=600.0),))
    at_s = fed(limits, lines=lines)
    assert at_s == pytest.approx(found_s, abs=20.0) if found_s is not None else at_s is None


def test_nothing_is_said_before_all_workers_are_known_up_to_now() -> None:
    watch = GangWatch({0: 0, 1: 1}, Limits(hang_s=100.0), Pace())
    for number in range(60):
        watch.take(0, Sample(watched_s=10.0 * number, ranks={0: rank()}))
        watch.take(1, Sample(watched_s=10.0 * number, ranks={1: rank()}, is_past=True))
        assert watch.verdict() is None
    watch.take(1, Sample(watched_s=600.0, ranks={1: rank()}))
    assert watch.verdict() is not None


@pytest.mark.parametrize("beats", [True, False], ids=["gets-on-when-last-seen", "quiet-when-last-seen"])
def test_an_agent_that_was_stopped_condemns_nobody(beats: bool) -> None:
    """Rank 0 gets on for 200 s and then hangs; of rank 1 nothing is heard from then on until 1000 s."""
    watch = GangWatch({0: 0, 1: 1}, Limits(hang_s=100.0), Pace())
    found = []
    for number in range(130):
        step = min(number, 20)
        works = rank(beats=1 + step, step=step, io=step)
        watch.take(0, Sample(watched_s=10.0 * number, ranks={0: works}))
        found.append(watch.verdict())
        if number <= 20 or number >= 100:
            watch.take(1, Sample(watched_s=10.0 * number, ranks={1: works if beats else rank()}))
            found.append(watch.verdict())
    told = [hang.ranks for hang in found if hang]
    assert found[:121] == [None] * 121
    assert told[-1] == (0, 1)


def test_a_hang_says_what_it_was_seen_by() -> None:
    told = verdict([[TRAIN, IDLE]])
    assert told is not None
    assert told[1].text.startswith("rank 0 hangs; rank 0: no progress for 18")
    assert "in the stage train (limit 1800 s), the last one is 149" in told[1].text
    assert "load flat at 0.00 cores for 900 s" in told[1].text


def test_stragglers_are_told_and_not_condemned() -> None:
    slow = Stretch(9000.0, stage="train", step_s=90.0)
    fast = Stretch(9000.0, stage="train", step_s=30.0)
    assert verdict([[fast], [slow], [fast]]) is None
    watch = GangWatch({0: 0, 1: 1}, Limits(hang_s=100.0), Pace())
    for number in range(1, 30):
        watch.take(0, Sample(watched_s=10.0 * number, ranks={0: rank(beats=number, step=3 * number)}))
        watch.take(1, Sample(watched_s=10.0 * number, ranks={1: rank(beats=number, step=number)}))
    (found,) = watch.stragglers()
    assert (found.rank, found.step, found.others_step, round(found.pace, 2)) == (1, 29, 87, 0.33)


@pytest.mark.parametrize(
    ("known", "limits", "limit_s"),
    [
        pytest.param([], Limits(hang_s=100), 100, id="nothing-known"),
        pytest.param([10.0, 10.0], Limits(hang_s=100), 100, id="too-few"),
        pytest.param([10.0] * 3, Limits(hang_s=100), 100, id="never-below-the-default"),
        pytest.param([10.0] * 3, Limits(hang_s=100, floor_s=30), 30, id="never-below-the-floor"),
        pytest.param([80.0] * 3, Limits(hang_s=100), 160, id="twice-the-median"),
        pytest.param([80.0, 90.0, 130.0], Limits(hang_s=100), 90 + 8 * 1.4826 * 10, id="by-deviation"),
        pytest.param([80.0] * 3, Limits(hang_s=100, stages={"validate": 50}), 50, id="given"),
    ],
)
def test_a_stages_limit_is_given_or_learnt(known: list[float], limits: Limits, limit_s: float) -> None:
    assert Pace([{"validate": known}]).limit_s("validate", limits) == pytest.approx(limit_s)


def test_pauses_that_ended_are_kept_for_later_attempts() -> None:
    pace = Pace()
    save = Stretch(600.0, stage="checkpoint", io=0.0)
    assert verdict([[TRAIN, save, TRAIN, save, TRAIN]], pace=pace) is None
    assert [round(pause_s, -2) for pause_s in pace.pauses["checkpoint"]] == [600, 600]


def test_what_hung_is_no_pause() -> None:
    pace = Pace()
    assert isinstance((verdict([[TRAIN, IDLE]], pace=pace) or (0, None))[1], Hang)
    assert max(pace.pauses["train"]) < 2 * PERIOD_S
