"""Fit a small network with MMEngine's Runner, its best models saved beside its checkpoints: `mmengine_best.py OUT`."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn


class Classifier(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 2048), nn.ReLU(), nn.Linear(2048, 4))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, mode: str) -> Any:
        scores = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else (scores, labels)


class Accuracy(BaseMetric):
    def process(self, data_batch: Any, data_samples: Any) -> None:
        scores, labels = data_samples
        self.results.append((int((scores.argmax(1) == labels).sum()), len(labels)))

    def compute_metrics(self, results: list[tuple[int, int]]) -> dict[str, float]:
        return {"accuracy": sum(right for right, _ in results) / sum(count for _, count in results)}


def loader(count: int, *, shuffle: bool) -> dict[str, Any]:
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(count))
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(1))
    return {
        "dataset": data,
        "batch_size": 16,
        "sampler": {"type": "DefaultSampler", "shuffle": shuffle},
        "collate_fn": {"type": "default_collate"},
    }


def main() -> None:
    given = os.environ.get("PREFECT_FT_RESUME_FROM") or None
    if given is not None:
        print(f"resuming from {given}", flush=True)
    runner = Runner(
        model=Classifier(),
        work_dir=sys.argv[1],
        train_dataloader=loader(4096, shuffle=True),
        val_dataloader=loader(256, shuffle=False),
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 1e-3}},
        train_cfg={"by_epoch": True, "max_epochs": 30, "val_interval": 1},
        val_cfg={},
        val_evaluator={"type": Accuracy},
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 3, "save_best": "accuracy"}},
        env_cfg={"dist_cfg": {"backend": "gloo"}},
        launcher="pytorch",
        randomness={"seed": 7},
        resume=given is not None,
        load_from=given,
    )
    runner.train()


if __name__ == "__main__":
    main()
