"""What real frameworks have a rank tell by our callbacks: each runs a small training, every beat is written down."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torches import skip_without, torch

from prefect_ft.callbacks import SkippingLoader

__all__ = ["torch"]

ROOT = Path(__file__).parents[2]

RECORD = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from prefect_ft import heartbeat
said = []
heartbeat.beat = lambda step=None, stage=None, **values: said.append((step, stage)) if step or stage else None
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
        "from prefect_ft.callbacks import AccelerateHeartbeat, SkippingLoader, TorchHeartbeat\n"
        "frameworks = {'torch', 'transformers', 'lightning', 'pytorch_lightning', 'accelerate', 'typing'}\n"
        "print(sorted(frameworks & before), sorted((frameworks - {'typing'}) & set(sys.modules)), dir(callbacks))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [
        "AccelerateHeartbeat", "HuggingFaceHeartbeat", "HuggingFaceSkipping", "LightningHeartbeat", "LightningSkipping",
        "SkippingLoader", "TorchHeartbeat",
    ]  # fmt: skip
    assert done.stdout == f"[] [] {names}\n"


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("HuggingFaceHeartbeat", "transformers"),
        ("HuggingFaceSkipping", "transformers"),
        ("LightningHeartbeat", "pytorch_lightning"),
        ("LightningSkipping", "pytorch_lightning"),
    ],
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


# -- skipped steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "step", "per_step", "given", "passed"),
    [
        pytest.param("", 0, 1, "abcdef", [], id="none"),
        pytest.param("2-3", 0, 1, "adef", [2, 3], id="a-window"),
        pytest.param("1-1,6-9", 0, 1, "bcde", [1, 6], id="two"),
        pytest.param("12-13", 10, 1, "adef", [12, 13], id="after-a-checkpoint"),
        pytest.param("2-2", 0, 2, "abef", [2], id="two-batches-a-step"),
        pytest.param("3-4", 1, 4, "abcd", [], id="a-step-that-the-epoch-does-not-end"),
        pytest.param("1-9", 0, 1, "", [1, 2, 3, 4, 5, 6], id="all"),
    ],
)
def test_a_loader_passes_over_the_batches_of_skipped_steps(
    windows: str, step: int, per_step: int, given: str, passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_FT_SKIP_STEPS", windows)
    skipped: list[int] = []
    loader = SkippingLoader("abcdef", step, batches_per_step=per_step, on_skip=skipped.append)
    assert ("".join(loader), skipped, len(loader)) == (given, passed, 6)


def test_a_loader_says_the_step_of_each_batch_and_counts_on_in_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_FT_SKIP_STEPS", "3-3,7-8")
    loader = SkippingLoader("abcd", step=1)
    epochs = [[(loader.step, batch) for batch in loader] for _ in range(2)]
    assert epochs == [[(2, "a"), (4, "c"), (5, "d")], [(6, "a"), (9, "d")]]


def test_a_loader_is_as_the_one_inside_of_it() -> None:
    class Loader(list[int]):
        sampler = "mine"

    loader = SkippingLoader(Loader([1, 2]))
    assert loader.sampler == "mine"
    with pytest.raises(AttributeError):
        _ = loader.dataset
    with pytest.raises(TypeError):
        len(SkippingLoader(iter("ab")))
    with pytest.raises(ValueError, match="batches_per_step must be at least 1, got 0"):
        SkippingLoader("ab", batches_per_step=0)
    assert pickle.loads(pickle.dumps(SkippingLoader([1, 2], 3))).step == 3


def test_steps_that_a_loader_passes_over_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    def beat(step: int) -> None:
        said.append(step)

    monkeypatch.setattr("prefect_ft.callbacks.skipping.beat", beat)
    monkeypatch.setenv("PREFECT_FT_SKIP_STEPS", "2-3")
    assert "".join(SkippingLoader("abcd")) == "ad"
    assert said == [2, 3]


SKIPPED = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
os.environ["PREFECT_FT_SKIP_STEPS"] = "3-4,7-7"
import torch
from torch import nn
read, rates, weights = [], [], []
class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        read.append(index)
        point = torch.full((2,), float(index))
        if index in (5, 13):  # of the steps 3 and 7: whoever trains on them has NaN from then on
            point = point * float("nan")
        return {{"x": point, "labels": point.sum().reshape(1)}}
"""
"""Eight steps of two points each; two of the steps have a bad point."""

HUGGING_FACE_SKIPS = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from prefect_ft.callbacks import HuggingFaceSkipping

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)
    def forward(self, x, labels=None):
        y = self.line(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}

class Watch(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, lr_scheduler=None, **_):
        weights.append(model.line.weight.detach().flatten().tolist())
        rates.append(lr_scheduler.get_last_lr()[0])

arguments = TrainingArguments(
    "saved", num_train_epochs=1, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATED,
    learning_rate=0.08, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", max_grad_norm=1.0,
    dataloader_num_workers=0, train_sampling_strategy="sequential",
)
trainer = Trainer(Model(), arguments, train_dataset=Points(), callbacks=[Watch()])
HuggingFaceSkipping(trainer)
trainer.train()
steps = trainer.state.global_step
"""

LIGHTNING_SKIPS = """
import lightning as L
from prefect_ft.callbacks import LightningSkipping

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)
    def training_step(self, batch, number):
        return ((self.line(batch["x"]) - batch["labels"]) ** 2).mean()
    def configure_optimizers(self):
        sgd = torch.optim.AdamW(self.parameters(), lr=0.08)
        rate = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=8)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

class Watch(L.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        if len(weights) < trainer.global_step:
            weights.append(module.line.weight.detach().flatten().tolist())
            rates.append(trainer.lr_scheduler_configs[0].scheduler.get_last_lr()[0])

trainer = L.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, accumulate_grad_batches=ACCUMULATED, gradient_clip_val=1.0,
    callbacks=[LightningSkipping(), Watch()],
)
trainer.fit(Model(), torch.utils.data.DataLoader(Points(), batch_size=BATCH))
steps = trainer.global_step
"""

ACCELERATE_SKIPS = """
from accelerate import Accelerator
from prefect_ft.callbacks import AccelerateHeartbeat, SkippingLoader
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
line = nn.Linear(2, 1)
sgd = torch.optim.AdamW(line.parameters(), lr=0.08)
rate = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=8)
line, sgd, loader = accelerator.prepare(line, sgd, torch.utils.data.DataLoader(Points(), batch_size=BATCH))
beats = AccelerateHeartbeat(accelerator, sgd)

def passed(step):
    beats.pass_over(step)
    rate.step()
    weights.append(line.weight.detach().flatten().tolist())
    rates.append(rate.get_last_lr()[0])

for batch in (loader := SkippingLoader(loader, batches_per_step=ACCUMULATED, on_skip=passed)):
    with accelerator.accumulate(line):
        accelerator.backward(((line(batch["x"]) - batch["labels"]) ** 2).mean())
        sgd.step()
        sgd.zero_grad()
    if accelerator.sync_gradients:
        rate.step()
        weights.append(line.weight.detach().flatten().tolist())
        rates.append(rate.get_last_lr()[0])
assert loader.step == beats._step
steps = loader.step
"""


@pytest.mark.long
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize(
    ("framework", "code"),
    [
        pytest.param("transformers", HUGGING_FACE_SKIPS, id="hugging-face"),
        pytest.param("lightning", LIGHTNING_SKIPS, id="lightning"),
        pytest.param("accelerate", ACCELERATE_SKIPS, id="accelerate"),
    ],
)
def test_a_training_of_a_framework_skips_steps(
    framework: str, code: str, accumulated: int, torch: str, tmp_path: Path
) -> None:
    """All batches are read, the counter and the rate go on, and the weights stay as they were in these steps alone."""
    skip_without(torch, framework)
    sizes = f"BATCH, ACCUMULATED = {2 // accumulated}, {accumulated}\n"
    script = tmp_path / "train.py"
    script.write_text(
        SKIPPED + sizes + code + "\njson.dump([steps, read, weights, rates], open('said.json', 'w'))"
    )
    done = subprocess.run(
        [torch, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps, read, weights, rates = json.loads((tmp_path / "said.json").read_text())
    assert (steps, read, len(weights)) == (8, [*range(16)], 8)
    assert rates == pytest.approx([0.08 * (8 - step) / 8 for step in range(1, 9)])
    same = [number + 2 for number, (before, after) in enumerate(pairwise(weights)) if before == after]
    assert [step for step in same if step < 8] == [3, 4, 7], "the last one has a rate of almost nothing"
    assert all(math.isfinite(each) for step in weights for each in step)
