"""The heartbeat of Hugging Face's Trainer, and of trainers that are built on it (TRL's)."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from prefect_ft.heartbeat import beat


class HuggingFaceHeartbeat(TrainerCallback):  # type: ignore[misc]  # mypy does not know the framework
    """For `Trainer(callbacks=[…])`: tells `global_step`, and when it validates and saves.

    The Trainer says that it has saved, not that it is about to; what comes after a step its own callbacks have
    decided by the time that ours is called, because they stand before those of users.
    """

    def __init__(self) -> None:
        self._trains = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trains = True
        beat(step=state.global_step, stage="train")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        beat(step=state.global_step, stage="train")
        if control.should_evaluate:
            beat(stage="validate")
        elif control.should_save:
            beat(stage="checkpoint")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_step_end(args, state, control, **kwargs)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        beat(stage="validate")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trains:
            beat(stage="checkpoint" if control.should_save else "train")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        beat(stage="train")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trains = False
        beat(stage="finish")
