"""A worker's container: how far its quota has throttled the ranks, and its other limits that explain silence."""

from __future__ import annotations

from prefect_ft.decide.hang.facts import ContainerSample, Sample

WORTH_SAYING = 0.1
"""Share of the time from which on throttling is reported."""


class Container:
    """One worker's container during an attempt. Without one, nothing is throttled or reported."""

    def __init__(self) -> None:
        self._first: Sample | None = None
        self._last: Sample | None = None
        self._open_s = 0.0
        """Throttled time that is not yet attributed to a rank that computed."""

    def take(self, sample: Sample) -> dict[int, float]:
        """Add a sample; return for how long each rank was throttled since what was returned before.

        The kernel counts all ranks together: each gets the share that it has of the computing time. A rank that
        hangs beside one that computes is not throttled.
        """
        before, self._last = self._last, sample
        if self._first is None:
            self._first = sample
        if before is None:
            return {}
        computed = {
            rank: rank_sample.cpu_s - before.ranks[rank].cpu_s
            for rank, rank_sample in sample.ranks.items()
            if rank in before.ranks and rank_sample.cpu_s > before.ranks[rank].cpu_s
        }
        self._open_s += _throttled_s(before.container, sample.container)
        if not computed:
            return {}
        throttled_s, self._open_s = self._open_s, 0.0
        all_s = sum(computed.values())
        return {rank: throttled_s * computed_s / all_s for rank, computed_s in computed.items()}

    def said(self, name: str) -> list[str]:
        """Return what explains silence in the attempt so far without being evidence against a rank."""
        if self._first is None or self._last is None:
            return []
        first, last = self._first.container, self._last.container
        watched_s, throttled_s = self._last.watched_s - self._first.watched_s, _throttled_s(first, last)
        texts = []
        if throttled_s > WORTH_SAYING * watched_s:
            texts.append(
                f"the container of {name} was throttled for {throttled_s:.0f} s of {watched_s:.0f} s"
            )
        if killed := _killed(first, last):
            many = "a process" if killed == 1 else f"{killed} processes"
            texts.append(f"the kernel has killed {many} in the container of {name} for its memory")
        return texts


def _throttled_s(before: ContainerSample | None, after: ContainerSample | None) -> float:
    if before is None or after is None or before.throttled_s is None or after.throttled_s is None:
        return 0.0
    return max(0.0, after.throttled_s - before.throttled_s)


def _killed(before: ContainerSample | None, after: ContainerSample | None) -> int:
    if before is None or after is None or before.oom_kills is None or after.oom_kills is None:
        return 0
    return int(after.oom_kills - before.oom_kills)
