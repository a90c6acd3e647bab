"""The heartbeat and the skipped steps of Lightning's Trainer, whichever of its two packages is installed."""

from __future__ import annotations

from functools import wraps
from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

from prefect_ft.heartbeat import beat, skips


class LightningHeartbeat(Callback):  # type: ignore[misc]  # mypy does not know the framework
    """For `Trainer(callbacks=[…])`: reports `global_step`, and when it loads, validates and saves.

    With `values` it also reports the loss of each step, which waits for the loss's device.
    """

    def __init__(self, *, values: bool = False) -> None:
        self._values = values

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        beat(stage="load")

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        beat(stage="train")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any, **__: Any) -> None:
        loss = outputs.get("loss") if self._values and isinstance(outputs, dict) else None
        # It stays 0 where a module steps optimizers unknown to Lightning; then each beat counts as progress.
        beat(step=trainer.global_step or None, stage="train", loss=None if loss is None else float(loss))

    def on_validation_start(self, *_: Any) -> None:
        beat(stage="validate")

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        beat(stage="validate")

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        beat(stage="validate")

    def on_predict_batch_end(self, *_: Any, **__: Any) -> None:
        beat(stage="validate")

    def on_save_checkpoint(self, *_: Any) -> None:
        beat(stage="checkpoint")

    def on_train_end(self, *_: Any) -> None:
        beat(stage="finish")


class LightningSkipping(Callback):  # type: ignore[misc]  # as above
    """For `Trainer(callbacks=[…])`: skipped steps read their batches and update nothing, on all ranks alike.

    `training_step` is not called for them, the optimizer makes no step, but `global_step` and the learning-rate
    schedule advance. Not for modules that step optimizers themselves: nothing would count the steps.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or hasattr(pl_module.training_step, "skips_for_prefect_ft"):
            return
        if not pl_module.automatic_optimization:
            raise ValueError(
                "LightningSkipping needs automatic_optimization; ask prefect_ft.heartbeat.skips instead"
            )
        pl_module.training_step = _without_steps(
            trainer, pl_module.training_step, lambda *_, **__: _nothing(pl_module)
        )
        pl_module.optimizer_step = _without_steps(trainer, pl_module.optimizer_step, _closure_alone)


def _without_steps(trainer: Any, done: Any, instead: Any) -> Any:
    """Return a hook that does something else in steps that are to be skipped."""

    @wraps(done)
    def hook(*arguments: Any, **named: Any) -> Any:
        return (instead if skips(trainer.global_step + 1) else done)(*arguments, **named)

    hook.skips_for_prefect_ft = True  # type: ignore[attr-defined]
    return hook


def _nothing(pl_module: Any) -> Any:
    """Return a loss with zero gradients: ranks that train together wait for gradients, and None is refused."""
    return sum(each.flatten()[:1].sum() * 0 for each in pl_module.parameters() if each.requires_grad)


def _closure_alone(*arguments: Any, **named: Any) -> None:
    """Do everything of an optimizer step but the step: the closure is the hook's fourth argument."""
    closure = named.get("optimizer_closure", arguments[3] if len(arguments) > 3 else None)
    if closure is not None:
        closure()
