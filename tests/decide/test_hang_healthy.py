"""Healthy but quiet: kinds of it, generated, and nobody is ever said to hang."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from traces import END, Script, Stretch, verdict

from prefect_ft.decide.hang import Limits, Pace

A_FEW, MANY = range(6), range(6, 520)
"""Seeds of each kind: in every run, and with `-m long`; together more than 10,000 traces."""

Kind = Callable[[random.Random], tuple[list[Script], Limits]]
KINDS: dict[str, Kind] = {}

LIMITS = Limits(hang_s=1800.0)
TRAIN = Stretch(3000.0, stage="train", step_s=20.0)
MUTE = Stretch(3000.0)
"""Training without heartbeats: it reads data and prints."""


def kind(make: Kind) -> Kind:
    KINDS[make.__name__.replace("_", "-")] = make
    return make


def below(chance: random.Random, limit_s: float = 1800.0) -> float:
    """A time that is long, and still within a limit."""
    return chance.uniform(0.4, 0.9) * limit_s


def quiet(lasts_s: float, **fields: object) -> Stretch:
    """Nothing is read or written, and the load does not change."""
    return Stretch(lasts_s, **{"io": 0.0, "cores": 1.0, "noise": 0.0, **fields})  # type: ignore[arg-type]


@kind
def long_compile(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[quiet(below(chance), stage="compile"), TRAIN] for _ in range(2)], LIMITS


@kind
def long_compile_without_heartbeats(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[MUTE, quiet(below(chance)), MUTE]], LIMITS


@kind
def compile_within_a_limit_that_was_given(chance: random.Random) -> tuple[list[Script], Limits]:
    limits = Limits(hang_s=1800.0, stages={"compile": 7200.0})
    return [[quiet(below(chance, 7200), stage="compile"), TRAIN]], limits


@kind
def twenty_minutes_of_checkpoint(chance: random.Random) -> tuple[list[Script], Limits]:
    save = Stretch(1200.0, stage="checkpoint", io=chance.choice((0.0, 0.1, 1.0)), cores=0.02, state="D")
    return [[TRAIN, save, TRAIN, save, TRAIN], [TRAIN, quiet(1200.0), TRAIN, quiet(1200.0), TRAIN]], LIMITS


@kind
def others_wait_for_one_that_saves_for_an_hour(chance: random.Random) -> tuple[list[Script], Limits]:
    limits = Limits(hang_s=1800.0, stages={"checkpoint": 5400.0})
    lasts_s = chance.uniform(2000.0, 4800.0)
    saves = [TRAIN, Stretch(lasts_s, stage="checkpoint", io=0.05, cores=0.1), TRAIN]
    waits = [TRAIN, quiet(lasts_s, cores=chance.choice((0.0, 1.0))), TRAIN]
    return [saves, waits, waits], limits


@kind
def long_validation_that_beats(chance: random.Random) -> tuple[list[Script], Limits]:
    validate = quiet(chance.uniform(2000, 9000), stage="validate", beats_s=chance.uniform(1, 600))
    return [[TRAIN, validate, TRAIN] for _ in range(2)], LIMITS


@kind
def long_validation_that_is_silent(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[TRAIN, quiet(below(chance), stage="validate"), TRAIN]], LIMITS


@kind
def slow_first_batch(chance: random.Random) -> tuple[list[Script], Limits]:
    limits = Limits(hang_s=600.0, first_step_s=3600.0)
    first = Stretch(below(chance, 3600.0), stage=chance.choice(("load", "train")), io=0.01, cores=0.0)
    return [[first, TRAIN] for _ in range(2)], limits


@kind
def slow_first_batch_before_the_first_beat(chance: random.Random) -> tuple[list[Script], Limits]:
    limits = Limits(hang_s=600.0, first_step_s=3600.0)
    return [[quiet(below(chance, 3600.0), cores=0.0), TRAIN]], limits


@kind
def pauses_of_the_garbage_collector(chance: random.Random) -> tuple[list[Script], Limits]:
    script: list[Stretch] = []
    for _ in range(6):
        script += [Stretch(chance.uniform(100, 900), stage="train", step_s=5.0), quiet(chance.uniform(1, 60))]
    return [script, [TRAIN]], LIMITS


@kind
def bursts_of_io(chance: random.Random) -> tuple[list[Script], Limits]:
    script: list[Stretch] = []
    for _ in range(4):
        script += [quiet(below(chance), cores=0.0), Stretch(60.0)]
    return [script], LIMITS


@kind
def sleeps_with_heartbeats(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[quiet(9000.0, cores=0.0, beats_s=chance.uniform(1, 600), stage="train")]], LIMITS


@kind
def one_rank_waits_for_a_slow_one(chance: random.Random) -> tuple[list[Script], Limits]:
    lasts_s = chance.uniform(1900, 5000)
    slow = Stretch(lasts_s, io=0.3, cores=0.8, noise=0.3)
    return [[TRAIN, slow, TRAIN], [TRAIN, quiet(lasts_s, cores=chance.choice((0.0, 1.0))), TRAIN]], LIMITS


@kind
def one_looks_only_now_and_then_whether_the_slow_one_is_done(
    chance: random.Random,
) -> tuple[list[Script], Limits]:
    lasts_s = chance.uniform(1900, 5000)
    slow = Stretch(lasts_s, io=0.3, cores=0.8, noise=0.3)
    return [[TRAIN, slow, TRAIN, TRAIN], [TRAIN, quiet(lasts_s + chance.uniform(1, 150)), TRAIN]], LIMITS


@kind
def one_waits_for_a_slow_one_without_heartbeats(chance: random.Random) -> tuple[list[Script], Limits]:
    lasts_s = chance.uniform(1900, 3300)
    slow = Stretch(lasts_s, io=0.5, cores=0.8, noise=0.3)
    return [[MUTE, slow, MUTE], [MUTE, quiet(lasts_s, cores=0.0), MUTE]], LIMITS


@kind
def only_rank_0_beats(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[Stretch(9000.0, stage="train", step_s=chance.uniform(1, 900))], [quiet(9000.0)]], LIMITS


@kind
def an_overloaded_machine(chance: random.Random) -> tuple[list[Script], Limits]:
    starved = Stretch(6000.0, io=0.0, cores=0.03, noise=0.0, wait=chance.uniform(0.6, 0.97))
    return [[MUTE, starved, MUTE]], LIMITS


@kind
def fits_and_starts_on_a_machine_that_gives_an_even_share(
    chance: random.Random,
) -> tuple[list[Script], Limits]:
    share = chance.uniform(0.2, 0.4)
    idle, busy = quiet(chance.uniform(60, 200), cores=share), quiet(chance.uniform(60, 200), cores=share)
    works = [replace(busy, wait=1 - share), idle] * 20
    return [[MUTE, *works]], LIMITS


@kind
def busy_devices_without_io(chance: random.Random) -> tuple[list[Script], Limits]:
    works = quiet(9000.0, devices=chance.uniform(10, 90))
    return [[MUTE, works]], LIMITS


@kind
def a_load_that_changes_without_io(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[MUTE, Stretch(9000.0, io=0.0, cores=2.0, noise=chance.uniform(0.6, 1.5))]], LIMITS


@kind
def a_rank_that_ends_early(chance: random.Random) -> tuple[list[Script], Limits]:
    return [[TRAIN, END], [Stretch(9000.0, stage="train", step_s=30.0)], [MUTE, MUTE]], LIMITS


@kind
def one_ends_soon_after_the_one_that_it_waited_for(chance: random.Random) -> tuple[list[Script], Limits]:
    works = Stretch(9000.0, stage="train", step_s=30.0)
    waits = quiet(9000.0 + below(chance), cores=chance.choice((0.0, 1.0)))
    return [[works, END], [waits, END], [works, END]], LIMITS


@kind
def steps_nearly_as_long_as_the_limit(chance: random.Random) -> tuple[list[Script], Limits]:
    slow = quiet(20_000.0, stage="train", step_s=below(chance))
    return [[slow], [slow]], LIMITS


@kind
def back_in_training_after_a_long_save(chance: random.Random) -> tuple[list[Script], Limits]:
    limits = Limits(hang_s=1800.0, stages={"checkpoint": 7200.0}, evidence=1)
    save, first = Stretch(below(chance, 7200), stage="checkpoint"), Stretch(below(chance), stage="train")
    return [[Stretch(3000.0, stage="train", step_s=20.0), save, first, TRAIN]], limits


@kind
def a_clock_that_jumps(chance: random.Random) -> tuple[list[Script], Limits]:
    script = [replace(TRAIN, clock_off_s=chance.uniform(-1e6, 1e6)), quiet(below(chance), stage="validate")]
    return [[*script, *script, TRAIN]], LIMITS


def found(name: str, seed: int) -> object:
    chance = random.Random(f"{name} {seed}")
    scripts, limits = KINDS[name](chance)
    return verdict(scripts, seed, limits=limits)


def test_there_are_twenty_kinds_and_ten_thousand_traces() -> None:
    assert len(KINDS) >= 20
    assert len(KINDS) * (len(A_FEW) + len(MANY)) > 10_000


@pytest.mark.parametrize("name", KINDS)
def test_nobody_healthy_is_said_to_hang(name: str) -> None:
    assert [(seed, told) for seed in A_FEW if (told := found(name, seed))] == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KINDS)
def test_nobody_healthy_is_said_to_hang_in_many_traces(name: str) -> None:
    assert [(seed, told) for seed in MANY if (told := found(name, seed))] == []


def test_a_stage_that_has_taken_long_before_may_do_so_again() -> None:
    known = Pace([{"checkpoint": [2000.0, 2100.0, 2200.0]}])
    save = quiet(3500.0, stage="checkpoint", cores=0.0)
    assert verdict([[TRAIN, save, TRAIN]], pace=known) is None
    assert verdict([[TRAIN, save, TRAIN]]) is not None
