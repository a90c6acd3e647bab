"""The heartbeat and the skipped steps of Hugging Face's Trainer, and of trainers that are built on it (TRL's)."""

from __future__ import annotations

from functools import wraps
from typing import Any

from transformers import TrainerCallback

from prefect_ft.heartbeat import beat, skips


class HuggingFaceHeartbeat(TrainerCallback):  # type: ignore[misc]  # mypy does not know the framework
    """For `Trainer(callbacks=[…])`: reports `global_step`, the logged loss, and when it validates and saves.

    The Trainer reports that it has saved, not that it is about to; its own callbacks, which run before those of users,
    have decided what follows a step by the time that ours is called.
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

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Report what the Trainer logs of the last step: with `logging_steps=1` it logs each."""
        logs = logs or {}
        if self._trains and ("loss" in logs or "grad_norm" in logs):
            beat(loss=logs.get("loss"), grad_norm=logs.get("grad_norm"))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trains = False
        beat(stage="finish")


class HuggingFaceSkipping:
    """`HuggingFaceSkipping(trainer)` before `trainer.train()`: skipped steps read their batches and update nothing.

    The model sees none of these batches, the optimizer makes no step, but `global_step` and the learning-rate schedule
    advance. All ranks skip alike.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._guarded: Any = None
        trainer.training_step = self._wrapped(trainer.training_step)

    @property
    def _is_skipped(self) -> bool:
        """Whether the current step is one of them."""
        return skips(self._trainer.state.global_step + 1)

    def _wrapped(self, training_step: Any) -> Any:
        @wraps(training_step)
        def step(*arguments: Any, **named: Any) -> Any:
            if not self._is_skipped:
                return training_step(*arguments, **named)
            self._guard()
            import torch  # noqa: PLC0415  (only where something is skipped)

            return torch.zeros((), device=self._trainer.args.device)

        return step

    def _guard(self) -> None:
        """Disable the optimizer and gradient clipping in these steps: there are no gradients."""
        optimizer, accelerator = self._trainer.optimizer, self._trainer.accelerator
        if self._guarded is not optimizer:
            self._guarded = optimizer
            optimizer.step = self._unless_skipped(optimizer.step)
            accelerator.clip_grad_norm_ = self._unless_skipped(accelerator.clip_grad_norm_)

    def _unless_skipped(self, done: Any) -> Any:
        @wraps(done)
        def guarded(*arguments: Any, **named: Any) -> Any:
            return None if self._is_skipped else done(*arguments, **named)

        return guarded
