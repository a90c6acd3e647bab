"""What real frameworks have a rank tell by our callbacks: each runs a small training, every beat is written down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torches import skip_without, torch

__all__ = ["torch"]

ROOT = Path(__file__).parents[2]

RECORD = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from prefect_ft import heartbeat
said = []
heartbeat.beat = lambda step=None, stage=None: said.append((step, stage))
"""

MODEL = """
import torch
from torch import nn
line, batch = nn.Linear(2, 1), torch.ones(1, 2)
sgd = torch.optim.SGD(line.parameters(), lr=0.1)

def loss():
    return line(batch).mean()
"""

TORCH = """
from prefect_ft.callbacks import TorchHeartbeat
beats = TorchHeartbeat(sgd, step=40)
for _ in range(2):
    loss().backward(); sgd.step()
with beats.stage("validate"):
    loss()
sgd.step()
"""

ACCELERATE = """
from accelerate import Accelerator
from prefect_ft.callbacks import AccelerateHeartbeat
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
line, sgd = accelerator.prepare(line, sgd)
AccelerateHeartbeat(accelerator, sgd)
for _ in range(4):
    with accelerator.accumulate(line):
        accelerator.backward(loss()); sgd.step(); sgd.zero_grad()
accelerator.save_state("saved")
"""

HUGGING_FACE = """
from transformers import Trainer, TrainingArguments
from prefect_ft.callbacks import HuggingFaceHeartbeat

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)
    def forward(self, x, labels=None):
        y = self.line(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}

data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(8)]
arguments = TrainingArguments(
    "saved", max_steps=3, per_device_train_batch_size=2, eval_strategy="steps", eval_steps=2, save_steps=3,
    report_to=[], use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(
    Model(), arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[HuggingFaceHeartbeat()]
)
trainer.train()
trainer.evaluate()
"""

LIGHTNING = """
from prefect_ft.callbacks import LightningHeartbeat

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)
    def training_step(self, batch, number):
        return self.line(batch).mean()
    def validation_step(self, batch, number):
        self.log("loss", self.line(batch).mean())
    test_step = validation_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.ones(2, 2), batch_size=1)
model = Model()
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    default_root_dir="saved", callbacks=[LightningHeartbeat()],
)
trainer.fit(model, data, data)
trainer.test(model, data, verbose=False)
"""

EPOCHS = [
    "load", "validate", "train", "1 train", "train", "2 train", "validate", "checkpoint",
    "train", "3 train", "train", "4 train", "validate", "checkpoint", "finish", "load", "validate",
]  # fmt: skip

FRAMEWORKS = [
    pytest.param("torch", TORCH, ["41 train", "42 train", "validate", "train", "43 train"], id="torch"),
    pytest.param("accelerate", ACCELERATE, ["1 train", "2 train", "checkpoint"], id="accelerate"),
    pytest.param(
        "transformers",
        HUGGING_FACE,
        [
            "0 train", "1 train", "2 train", "validate", "train",
            "3 train", "validate", "checkpoint", "train", "3 train", "finish", "validate",
        ],
        id="hugging-face",
    ),
    pytest.param("lightning", "import lightning as L\n" + LIGHTNING, EPOCHS, id="lightning"),
    pytest.param(
        "pytorch_lightning",
        "sys.modules['lightning'] = None  # as where it is not installed\nimport pytorch_lightning as L\n" + LIGHTNING,
        EPOCHS,
        id="pytorch-lightning",
    ),
]  # fmt: skip


@pytest.mark.long  # to import each of them takes seconds
@pytest.mark.parametrize(("framework", "code", "expected"), FRAMEWORKS)
def test_a_training_tells_its_steps_and_stages(
    framework: str, code: str, expected: list[str], torch: str, tmp_path: Path
) -> None:
    skip_without(torch, framework)
    script = tmp_path / "train.py"
    script.write_text(RECORD + MODEL + code + "\njson.dump(said, open('said.json', 'w'))")
    done = subprocess.run(
        [torch, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [tuple(each) for each in json.loads((tmp_path / "said.json").read_text())]
    told = [stage if step is None else f"{step} {stage}" for step, stage in said]
    assert [each for each, before in zip(told, ["", *told], strict=False) if each != before] == expected


def test_nothing_is_imported_before_a_class_is_used() -> None:
    look = (
        "import sys, prefect_ft.callbacks as callbacks; before = set(sys.modules)\n"
        "from prefect_ft.callbacks import AccelerateHeartbeat, TorchHeartbeat\n"
        "frameworks = {'torch', 'transformers', 'lightning', 'pytorch_lightning', 'accelerate', 'typing'}\n"
        "print(sorted(frameworks & before), sorted((frameworks - {'typing'}) & set(sys.modules)), dir(callbacks))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = ["AccelerateHeartbeat", "HuggingFaceHeartbeat", "LightningHeartbeat", "TorchHeartbeat"]
    assert done.stdout == f"[] [] {names}\n"


@pytest.mark.parametrize(
    ("name", "framework"),
    [("HuggingFaceHeartbeat", "transformers"), ("LightningHeartbeat", "pytorch_lightning")],
)
def test_a_class_whose_framework_is_missing_names_it(name: str, framework: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"from prefect_ft.callbacks import {name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named {framework!r}"
