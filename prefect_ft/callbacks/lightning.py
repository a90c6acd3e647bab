"""The heartbeat of Lightning's Trainer, whichever of its two packages is installed."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

from prefect_ft.heartbeat import beat


class LightningHeartbeat(Callback):  # type: ignore[misc]  # mypy does not know the framework
    """For `Trainer(callbacks=[…])`: tells `global_step`, and when it loads, validates and saves."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        beat(stage="load")

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        beat(stage="train")

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        # It stays 0 where a module steps optimizers that Lightning does not know; then a beat is progress.
        beat(step=trainer.global_step or None, stage="train")

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
