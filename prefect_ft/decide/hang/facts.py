"""The facts about hangs: samples and limits that go in, verdicts with their evidence that come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from prefect_ft.model import Stage

EvidenceKind = Literal["progress", "io", "utilisation", "state", "log"]
"""The kinds of evidence; each is independent of the others."""

FIRST_STEP = "first_step"
"""The name, besides the stages, for the time before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """One rank and all processes that it started, at one moment. `None`: not known.

    `beats`, `step` and `stage` are the last heartbeat's, 0 and `None` before the first; `beat_s` is when that
    was, in watched time, where it is known more exactly than by the sample. `io` is a count that
    changes whenever any process reads or writes, `output` the bytes printed so far. `cpu_s` is the processor time
    of all, `wait_s` the time in which the main thread was ready but got no processor. `state` is the
    main process's letter in /proc. `is_over`: it has exited.
    """

    beats: int = 0
    beat_s: float | None = None
    step: int | None = None
    stage: Stage | None = None
    io: int | None = None
    output: int = 0
    cpu_s: float = 0.0
    wait_s: float | None = None
    state: str = "S"
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSample:
    """What the kernel counts of a container, since it began. `None`: not known.

    `throttled_s` is how long its quota throttled its processes, `oom_kills` how many of them the OOM killer
    killed.
    """

    throttled_s: float | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All ranks of one worker at one moment.

    `watched_s` is how long they have been watched by then. `devices` is the share of each device that is in
    use, in percent; `None`: not known. `container` is `None` where the worker has none. `is_past`: newer ones of
    this worker follow.
    """

    watched_s: float
    ranks: Mapping[int, RankSample]
    devices: Mapping[str, float] | None = None
    container: ContainerSample | None = None
    is_past: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """A line that must come again within `every_s` once it, or `start`, was seen, until `stop` is.

    The texts are the patterns as the user wrote them; the reader of the output does the matching.
    """

    pattern: str
    every_s: float
    start: str | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds.

    `hang_s` is the default. `stages` and `first_step_s` are the user's and apply unchanged; a learnt limit is
    never below `floor_s`. `evidence` is how many kinds of it make a hang.
    `straggling` is the share of the others' pace below which a rank counts as a straggler.
    """

    hang_s: float
    stages: Mapping[str, float] = field(default_factory=dict)
    first_step_s: float | None = None
    floor_s: float | None = None
    evidence: int = 2
    straggling: float = 0.5
    logs: tuple[LogPattern, ...] = ()

    @property
    def shortest_s(self) -> float:
        """The shortest time after which anything is a hang."""
        known = (self.hang_s, self.first_step_s, self.floor_s, *self.stages.values())
        return min(each for each in known if each is not None)

    def given(self, stage: str) -> float | None:
        """Return the limit that the user gave for a stage, or for what comes before the first step."""
        if stage == FIRST_STEP:
            return self.first_step_s
        return self.stages.get(stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One kind of evidence against a rank (`None`: against the gang): what it shows, and for how long."""

    kind: EvidenceKind
    text: str
    lasted_s: float
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A verdict: these ranks hang. `blamed` is the one that the others wait for, `worker` its worker.

    Both are `None` where no rank can be blamed. `scope` is the rule that found it. `beside` are
    remarks about where they run that are not evidence.
    """

    scope: Literal["all-workers", "one-worker", "one-rank"]
    ranks: tuple[int, ...]
    signs: tuple[Sign, ...]
    limit_s: float
    blamed: int | None = None
    worker: int | None = None
    beside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The evidence in one line: of the blamed rank, else of the first one."""
        rank = self.ranks[0] if self.blamed is None else self.blamed
        said = [sign.text for sign in self.signs if sign.rank in (rank, None)]
        hang = f"{who(self.ranks)} hang{'s' if len(self.ranks) == 1 else ''}; rank {rank}: {'; '.join(said)}"
        return "; ".join((hang, *self.beside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that progresses more slowly than the others: `pace` is its share of theirs, over `lasted_s`."""

    rank: int
    worker: int
    step: int
    others_step: int
    pace: float
    lasted_s: float


def who(ranks: tuple[int, ...]) -> str:
    """Name ranks: a few by number, many by how many they are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= 4:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"{len(ranks)} ranks"
