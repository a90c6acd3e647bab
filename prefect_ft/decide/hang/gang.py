"""The ranks of a gang together: which hang, which only wait for one that works, and which is to blame.

Two rules run side by side: one for all workers, one for each by itself. A rank that reports progress is never judged
by what its processes do, and a rank that waits is excused while another one works.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prefect_ft.decide.hang.container import Container
from prefect_ft.decide.hang.evidence import Judgement, is_quiet, judged
from prefect_ft.decide.hang.facts import Hang, Limits, Sample, Sign, Straggler
from prefect_ft.decide.hang.pace import Pace
from prefect_ft.decide.hang.track import BUSY_CORES, MAX_LOADS, MIN_LOADS, Track

FRESH = 2
"""How many samples of another worker may arrive before a worker that reported none since counts as unknown."""

ALONE = 2.0
"""The factor on the limit of a worker that alone is quiet, and does not report progress."""


GRACE = 0.1
"""Share of its limit within which a rank must progress, once the rank that it may have waited for does."""


class _StepsMade(NamedTuple):
    """A rank's last step, and how many it has made in `lasted_s`."""

    rank: int
    step: int
    steps: int
    lasted_s: float


class GangWatch:
    """One attempt. `pace` learns what its stages take, and may know it from earlier ones."""

    def __init__(self, ranks: Mapping[int, int], limits: Limits, pace: Pace) -> None:
        """`ranks` maps each rank to its worker."""
        self._limits, self._pace = limits, pace
        self._tracks = {rank: Track(worker, pace) for rank, worker in ranks.items()}
        self._up_to_date: set[int] = set()
        """The workers whose samples are up to date."""
        self._taken = 0
        self._samples: dict[int, deque[int]] = {}
        """By worker, the numbers of its last samples, counted over all workers."""
        self._last_reporter: int | None = None
        """The worker that reported last."""
        self._unconfirmed: tuple[int, ...] = ()
        """The ranks of a verdict that has yet to be confirmed."""
        self._excused_s: dict[int, float] = {}
        """When a rank that seemed to hang was last excused by the others; in its worker's watched time."""
        self._heard_since: set[int] = set()
        """The workers that have reported since then."""
        self._containers: dict[int, Container] = {}
        self._devices: dict[int, deque[tuple[float, Mapping[str, float]]]] = {}
        self._lines: dict[int, tuple[int, float]] = {}
        """Of each log pattern that is due: the rank whose output it was seen in, and when."""

    # -- in ---------------------------------------------------------------------------------------

    def take(self, worker: int, sample: Sample) -> bool:
        """Add a sample; return whether any rank has been quiet for so long that a verdict may be near."""
        if sample.is_past:
            self._up_to_date.discard(worker)
        else:
            self._up_to_date.add(worker)
        self._heard_since.add(worker)
        self._taken += 1
        self._samples.setdefault(worker, deque(maxlen=FRESH + 1)).append(self._taken)
        self._last_reporter = worker
        ended = False
        throttled = self._containers.setdefault(worker, Container()).take(sample)
        for rank, rank_sample in sample.ranks.items():
            if rank in self._tracks:
                ended |= rank_sample.is_over and not self._tracks[rank].last.is_over
                self._tracks[rank].take(sample.watched_s, rank_sample, throttled.get(rank, 0.0))
        if ended:  # those that waited for it have a limit's time to end as well
            for _, track in self._living():
                track.restart_quiet()
        if sample.devices is not None:
            devices = self._devices.setdefault(worker, deque(maxlen=MAX_LOADS))
            devices.append((sample.watched_s, sample.devices))
        return not sample.is_past and any(
            self._is_suspect(rank) for rank in sample.ranks if rank in self._tracks
        )

    def line_seen(self, pattern: int, rank: int) -> None:
        """Note that a log pattern, by its place in the limits, was seen: it is now due again."""
        if rank in self._tracks:
            self._lines[pattern] = rank, self._tracks[rank].now_s

    def awaits(self, pattern: int) -> bool:
        """Whether a log pattern is due again."""
        return pattern in self._lines

    def lines_stop(self, pattern: int) -> None:
        """Note that a log pattern is no longer due."""
        self._lines.pop(pattern, None)

    # -- out --------------------------------------------------------------------------------------

    def verdict(self) -> Hang | None:
        """Return which ranks hang; None: none does, or a worker's state is unknown."""
        if not self._knows_all_workers():
            return None
        found = {rank: self._judged(rank, track) for rank, track in self._living()}
        hung = [rank for rank, each in found.items() if each.is_hung]
        if not hung:
            return None
        if len(hung) == len(found):
            return self._hang("all-workers", hung, found)
        return self._confirmed(self._one_worker(hung, found) or self._one_rank(hung, found))

    def _knows_all_workers(self) -> bool:
        """Whether the samples of every worker are up to date.

        A worker whose agent was stopped, or cannot sample, may be working: its last report condemns neither its own
        ranks nor those that wait for them.
        """
        if self._last_reporter is None or not self._up_to_date >= {
            track.worker for track in self._tracks.values()
        }:
            return False
        recent = self._samples[self._last_reporter]
        since = recent[0] if len(recent) > FRESH else 0
        return all(self._samples[track.worker][-1] >= since for _, track in self._living())

    def _confirmed(self, hang: Hang | None) -> Hang | None:
        """Hold a verdict until all workers have reported again: they report in turn, and this one may be first."""
        if hang is None or hang.ranks != self._unconfirmed:
            self._unconfirmed = hang.ranks if hang is not None else ()
            self._heard_since.clear()
            return None
        return hang if self._heard_since >= {track.worker for _, track in self._living()} else None

    @property
    def is_suspicious(self) -> bool:
        """Whether any rank has been quiet for so long that a verdict may be near."""
        return any(self._is_suspect(rank) for rank in self._tracks)

    def has_moved(self, ranks: Iterable[int]) -> bool:
        """Whether any of these ranks progresses again, by its own report or by its processes' activity."""
        tracks = [self._tracks[rank] for rank in ranks]
        return any(self._is_moving(track) for track in tracks)

    def stragglers(self) -> list[Straggler]:
        """Return the ranks that make fewer steps than the others, over the time that makes a hang."""
        made = {rank: each for rank, track in self._living() if (each := self._steps_made(rank, track))}
        usual = _middle([each.steps for each in made.values()]) if len(made) > 1 else 0
        others_step = _middle([each.step for each in made.values()]) if made else 0
        return [
            Straggler(
                rank=each.rank,
                worker=self._tracks[each.rank].worker,
                step=each.step,
                others_step=others_step,
                pace=max(0, each.steps) / usual,
                lasted_s=each.lasted_s,
            )
            for each in made.values()
            if usual > MIN_LOADS and each.steps < self._limits.straggling * usual
        ]

    def _steps_made(self, rank: int, track: Track) -> _StepsMade | None:
        """Return how many steps a rank has made; `None` before it is known for as long as makes a hang."""
        window_s = self._limits.hang_s
        if not track.steps or track.now_s - track.steps[0][0] < window_s:
            return None
        within = [each for each in track.steps if each[0] >= track.now_s - window_s]
        if len(within) < MIN_LOADS:
            return None
        (began_s, first), (ended_s, last) = within[0], within[-1]
        return _StepsMade(rank, last, last - first, ended_s - began_s)

    # -- judging ----------------------------------------------------------------------------------

    def _living(self) -> list[tuple[int, Track]]:
        """Return the ranks that run."""
        return [(rank, track) for rank, track in self._tracks.items() if not track.last.is_over]

    def _is_suspect(self, rank: int) -> bool:
        track = self._tracks[rank]
        if track.last.is_over:
            return False
        is_late = any(
            track.now_s - seen_s >= self._limits.logs[pattern].every_s
            for pattern, (_, seen_s) in self._lines.items()
        )
        enough = self._limits.evidence == 1  # then utilisation alone may do, which only judging shows
        return enough or is_late or is_quiet(track, track.limit_s(self._limits))

    def _judged(self, rank: int, track: Track) -> Judgement:
        devices = self._devices.get(track.worker, ())
        return judged(rank, track, self._limits, devices, self._late_lines())

    def _late_lines(self) -> list[Sign]:
        late = []
        for pattern, (rank, seen_s) in self._lines.items():
            awaited = self._limits.logs[pattern]
            age_s = self._tracks[rank].now_s - seen_s
            if age_s >= awaited.every_s:
                text = f"no line like {awaited.pattern!r} for {age_s:.0f} s (limit {awaited.every_s:g} s)"
                late.append(Sign(kind="log", text=text, lasted_s=age_s))
        return late

    def _one_worker(self, hung: list[int], found: Mapping[int, Judgement]) -> Hang | None:
        """Condemn a worker that alone is quiet: after twice the limit, unless any rank is known to progress."""
        if any(each.progresses for each in found.values()):
            return None
        for worker in dict.fromkeys(self._tracks[rank].worker for rank in hung):
            ranks = [rank for rank in found if self._tracks[rank].worker == worker]
            if all(rank in hung and self._is_quiet_alone(found[rank]) for rank in ranks):
                return self._hang("one-worker", ranks, found)
        return None

    def _is_quiet_alone(self, judged: Judgement) -> bool:
        track = self._tracks[judged.rank]
        quiet_s = track.io_quiet_s if track.knows_io else 0.0
        return not track.speaks and quiet_s >= ALONE * judged.limit_s

    def _one_rank(self, hung: list[int], found: Mapping[int, Judgement]) -> Hang | None:
        """Condemn ranks that report no progress, or can do nothing, and do not wait for another rank."""
        condemned = [
            rank
            for rank in hung
            if found[rank].has("state") or (found[rank].has("progress") and not self._is_excused(rank, found))
        ]
        return self._hang("one-rank", condemned, found) if condemned else None

    def _is_excused(self, rank: int, found: Mapping[int, Judgement]) -> bool:
        """Whether another rank works, is in a stage that may take longer, or is about to be judged; or just was."""
        now_s, limit_s = self._tracks[rank].now_s, found[rank].limit_s
        others = [each for each in found.values() if not each.is_hung]
        if any(not each.progresses or each.is_quiet or each.limit_s > limit_s for each in others):
            self._excused_s[rank] = now_s
        return now_s - self._excused_s.get(rank, -limit_s) < GRACE * limit_s

    def _hang(self, scope: str, ranks: list[int], found: Mapping[int, Judgement]) -> Hang:
        blamed = self._blamed(ranks, found)
        workers = {self._tracks[rank].worker for rank in ranks}
        worker = self._tracks[blamed].worker if blamed is not None else next(iter(workers))
        beside = [text for each in sorted(workers) for text in self._containers[each].said(f"worker {each}")]
        return Hang(
            scope=scope,  # type: ignore[arg-type]
            ranks=tuple(ranks),
            signs=tuple(sign for rank in ranks for sign in found[rank].signs),
            limit_s=max(found[rank].limit_s for rank in ranks),
            blamed=blamed,
            worker=worker if blamed is not None or len(workers) == 1 else None,
            beside=tuple(beside),
        )

    def _blamed(self, ranks: list[int], found: Mapping[int, Judgement]) -> int | None:
        """Return the one rank that is unlike all others that hang: they wait for it."""
        if len(ranks) == 1:
            return ranks[0]
        still = [rank for rank in ranks if found[rank].has("state")]
        if len(still) == 1:
            return still[0]
        steps = {rank: self._tracks[rank].last.step for rank in ranks}
        if all(step is not None for step in steps.values()):
            behind = [
                rank
                for rank in ranks
                if steps[rank] == min(step for step in steps.values() if step is not None)
            ]
            if len(behind) == 1:
                return behind[0]
        if len(ranks) < 3:
            return None
        for trait in ({rank: self._tracks[rank].last.stage for rank in ranks}, self._busyness(ranks, found)):
            values = list(trait.values())
            odd = [rank for rank in ranks if values.count(trait[rank]) == 1]
            if len(odd) == 1 and len(set(values)) == 2:
                return odd[0]
        return None

    def _busyness(self, ranks: list[int], found: Mapping[int, Judgement]) -> dict[int, object]:
        """Return for each rank whether it hangs busy or idle; `None`: its load is not known to be flat."""
        loads = {rank: found[rank].load for rank in ranks}
        return {rank: None if load is None else load > BUSY_CORES for rank, load in loads.items()}

    def _is_moving(self, track: Track) -> bool:
        limit_s = track.limit_s(self._limits)
        if track.last.is_over:
            return True
        if track.began_s is None or track.now_s - track.began_s < limit_s:
            return False  # it has not been seen for long enough to say
        return track.silent_s < limit_s if track.speaks else track.io_quiet_s < limit_s


def _middle(values: list[int]) -> int:
    """Return the median, of an even number of values the upper one: of two ranks the faster sets the pace."""
    return sorted(values)[len(values) // 2]
