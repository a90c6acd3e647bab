"""Skips the batches of steps that are to be skipped, on all ranks alike. Imports no framework.

`heartbeat.skips` says which steps these are, by the step alone: ranks that decided separately would deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from prefect_ft.heartbeat import beat, skips


class SkippingLoader:
    """A data loader without the batches of skipped steps: these are read, and the step counter advances.

    `loader` yields the batches from the one after `step`, the step from which the run resumes; wrap it after a
    framework has prepared it. One step takes `batches_per_step` of them. It keeps counting through further epochs.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        step: int = 0,
        *,
        batches_per_step: int = 1,
        on_skip: Optional[Callable[[int], object]] = None,
    ) -> None:
        """`on_skip` is called with each skipped step, for example for a learning-rate schedule that counts steps."""
        if batches_per_step < 1:
            raise ValueError(f"batches_per_step must be at least 1, got {batches_per_step}")
        self._loader, self._per_step, self._on_skip = loader, batches_per_step, on_skip
        self._taken = step * batches_per_step
        self.step = step
        """The step of the last batch, returned or skipped."""

    def __len__(self) -> int:
        """The number of the loader's batches, including skipped ones."""
        return len(self._loader)  # type: ignore[arg-type]  # raises TypeError where it has no length

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the loader: its dataset, its sampler, `set_epoch`."""
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self.step = self._taken // self._per_step + 1
            self._taken += 1
            if not skips(self.step):
                yield batch
            elif self._taken % self._per_step == 0:
                beat(step=self.step)
                if self._on_skip is not None:
                    self._on_skip(self.step)
