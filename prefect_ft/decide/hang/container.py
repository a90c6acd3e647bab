"""A worker's container: what its quota has kept from its ranks, and what else is to be said of it."""

from __future__ import annotations

from prefect_ft.decide.hang.facts import ContainerSample, Sample

WORTH_SAYING = 0.1
"""Share of the time for which a container was throttled from which on that is said of it."""


class Container:
    """One worker's, through an attempt. A worker without one is never throttled, and nothing is said of it."""

    def __init__(self) -> None:
        self._first: Sample | None = None
        self._last: Sample | None = None
        self._open_s = 0.0
        """Time for which it was throttled and in which nobody is known to have computed yet."""

    def take(self, sample: Sample) -> dict[int, float]:
        """Learn from a sample; return for how long each rank was throttled, as far as that was not given before.

        The kernel tells of all together: each has the share that it has of what was computed. Who hangs beside one
        that computes is not throttled.
        """
        before, self._last = self._last, sample
        if self._first is None:
            self._first = sample
        if before is None:
            return {}
        computed = {
            rank: told.cpu_s - before.ranks[rank].cpu_s
            for rank, told in sample.ranks.items()
            if rank in before.ranks and told.cpu_s > before.ranks[rank].cpu_s
        }
        self._open_s += _throttled_s(before.container, sample.container)
        if not computed:
            return {}
        throttled_s, self._open_s = self._open_s, 0.0
        all_s = sum(computed.values())
        return {rank: throttled_s * computed_s / all_s for rank, computed_s in computed.items()}

    def said(self, name: str) -> list[str]:
        """Return what explains why ranks are quiet and is no evidence against them, of the attempt so far."""
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
