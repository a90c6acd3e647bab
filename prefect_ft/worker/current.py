"""The current attempt of a worker, or its last one."""

from __future__ import annotations

from typing import List, Optional

from prefect_ft.worker.gang import Gang, Rank


class Current:
    """Holds its ranks, for all that report on them or end them. `gang` is None before the first attempt."""

    def __init__(self) -> None:
        self.gang: Optional[Gang] = None

    @property
    def ranks(self) -> List[Rank]:
        """The ranks, including those that have ended."""
        return list(self.gang.ranks.values()) if self.gang is not None else []

    @property
    def is_idle(self) -> bool:
        """Whether no rank is running."""
        return self.gang is None or self.gang.over or self.gang.all_exited

    @property
    def is_over(self) -> bool:
        """Whether certainly nothing of it still runs."""
        return self.gang is None or self.gang.over
