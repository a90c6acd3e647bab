"""Heartbeats of loops that scripts write themselves, by the steps of their optimizer. Imports no framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect_ft.heartbeat import beat


class TorchHeartbeat:
    """Beats after each step of an optimizer of torch 2.0 or newer; `step` is the one from which the run resumes."""

    def __init__(self, optimizer: Any, step: int = 0) -> None:
        self._step = step
        optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._step += 1
        beat(step=self._step, stage="train")

    def pass_over(self, step: int) -> None:
        """Note a skipped step, in which the optimizer made none: `SkippingLoader(on_skip=…)`."""
        self._step = step
        beat(step=step, stage="train")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Report, while entered, the stage `name` instead of training: validate, checkpoint, compile, load."""
        beat(stage=name)
        try:
            yield
        finally:
            beat(stage="train")


class AccelerateHeartbeat(TorchHeartbeat):
    """The same for an optimizer from `Accelerator.prepare`; also reports when `save_state` saves.

    Steps count as Accelerate makes them: once for all batches whose gradients it accumulates.
    """

    def __init__(self, accelerator: Any, optimizer: Any, step: int = 0) -> None:
        # Accelerate's own optimizer takes no hooks; the one inside of it does.
        super().__init__(getattr(optimizer, "optimizer", optimizer), step)
        accelerator.register_save_state_pre_hook(self._saves)

    def _saves(self, *_: Any) -> None:
        beat(stage="checkpoint")
