"""Fit a small network with Lightning, resuming from `last`: `torchrun … lightning_last.py OUT NODES DEVICES`."""

from __future__ import annotations

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Dropout(0.0), nn.Linear(128, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def on_train_epoch_end(self) -> None:
        self.print(f"epoch {self.current_epoch} done", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    out, nodes, devices = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    lightning.seed_everything(7)
    x = torch.randn(1024, 16)
    data = torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=30,
        accelerator="gpu" if "FOREIGN_ON_ONE_GPU" in os.environ else "cpu",
        strategy="ddp",
        num_nodes=nodes,
        devices=devices,
        callbacks=[ModelCheckpoint(out, every_n_epochs=2, save_last=True)],
        default_root_dir=out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), loader, ckpt_path="last")


if __name__ == "__main__":
    main()
