"""Traces of gangs as agents would sample them: a script of stretches for each rank, played in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefect_ft.decide.hang import GangWatch, Hang, Limits, Pace, RankSample, Sample

LIMITS = Limits(hang_s=1800.0)
PERIOD_S = 30.0


@dataclass(frozen=True)
class Stretch:
    """What a rank does for a while. `step_s`: seconds a step; `beats`: seconds a beat without a step."""

    lasts_s: float
    stage: str | None = None
    step_s: float | None = None
    beats_s: float | None = None
    io: float = 1.0
    """Probability of I/O in a sample's interval."""
    cores: float = 0.9
    noise: float = 0.05
    wait: float = 0.0
    """Share of a core that it wants and does not get."""
    state: str = "R"
    devices: float | None = None
    clock_off_s: float = 0.0
    """By how much its beats' times are off."""
    ends: bool = False
    """Whether the rank exits when it has come here."""


Script = Sequence[Stretch]


class _Player:
    """One rank that plays its script."""

    def __init__(self, script: Script, chance: random.Random) -> None:
        self._script, self._chance = list(script), chance
        self._left_s = self._script[0].lasts_s
        self.told = RankSample(io=0, wait_s=0.0)
        self._since_step_s = self._since_beat_s = 0.0

    @property
    def now(self) -> Stretch:
        return self._script[0]

    def play(self, seconds: float, watched_s: float) -> None:
        """Go on."""
        self._left_s -= seconds
        while self._left_s <= 0 and len(self._script) > 1:
            self._script.pop(0)
            self._left_s += self.now.lasts_s
        now, told = self.now, self.told
        if now.ends:
            self.told = replace(told, is_over=True)
            return
        cores = max(0.0, now.cores + self._chance.gauss(0, now.noise)) if now.noise else now.cores
        io = told.io + (1 + self._chance.randrange(1000) if self._chance.random() < now.io else 0)
        self.told = replace(
            told,
            io=io,
            cpu_s=told.cpu_s + seconds * cores,
            wait_s=told.wait_s + seconds * now.wait,
            state=now.state,
        )
        self._beat(now, seconds, watched_s + now.clock_off_s)

    def _beat(self, now: Stretch, seconds: float, watched_s: float) -> None:
        told = self.told
        beats, step = told.beats, told.step
        if now.step_s is not None:
            self._since_step_s += seconds
            steps, self._since_step_s = divmod(self._since_step_s, now.step_s)
            if steps:
                beats, step = beats + int(steps), (step or 0) + int(steps)
        if now.beats_s is not None:
            self._since_beat_s += seconds
            more, self._since_beat_s = divmod(self._since_beat_s, now.beats_s)
            beats += int(more)
        if now.stage is not None and now.stage != told.stage:
            beats += 1
        if beats != told.beats:
            stage = now.stage or told.stage
            self.told = replace(told, beats=beats, step=step, stage=stage, beat_s=watched_s)


END = Stretch(1e9, ends=True)
"""At a script's end: the rank exits."""


def samples(
    scripts: Sequence[Script], chance: random.Random, lasts_s: float, period_s: float = PERIOD_S
) -> Iterator[tuple[int, Sample]]:
    """Play the scripts, each rank on a worker of its own."""
    players = [_Player(script, chance) for script in scripts]
    watched_s = 0.0
    while watched_s < lasts_s:
        lag_s = chance.uniform(0, 0.02 * period_s)
        seconds = period_s + lag_s
        watched_s += seconds
        for worker, player in enumerate(players):
            player.play(seconds, watched_s)
            devices = (
                None
                if player.now.devices is None
                else {"0": max(0.0, player.now.devices + chance.gauss(0, player.now.devices / 4))}
            )
            yield worker, Sample(watched_s=watched_s, ranks={worker: player.told}, devices=devices)


def verdict(
    scripts: Sequence[Script],
    seed: int = 0,
    *,
    limits: Limits = LIMITS,
    lasts_s: float | None = None,
    period_s: float = PERIOD_S,
    pace: Pace | None = None,
) -> tuple[float, Hang] | None:
    """Play the scripts until somebody is said to hang; when, and who."""
    watch = GangWatch({rank: rank for rank in range(len(scripts))}, limits, pace or Pace())
    lasts_s = lasts_s or max(sum(each.lasts_s for each in script if not each.ends) for script in scripts)
    for worker, sample in samples(scripts, random.Random(seed), lasts_s, period_s):
        if watch.take(worker, sample) and (found := watch.verdict()):
            return sample.watched_s, found
    return None
