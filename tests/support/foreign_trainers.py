"""The trainers that are not this project's: how each is started, where it saves, and how it is known to go on."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pytest

HERE = Path(__file__).parents[1] / "foreign"
SCRIPTS, OUTSIDE = HERE / "scripts", HERE / "outside"

ONE_FILE: dict[str, Any] = {"keep_copies": True}
"""Of checkpoints that are written over and over: the one before has to be somewhere."""

WITHOUT_CUDA = {"FOREIGN_WITHOUT_CUDA": "1"}
"""For scripts that ask for CUDA whatever there is: see `outside/sitecustomize.py`."""

ON_ONE_GPU = {"FOREIGN_ON_ONE_GPU": "1"}
"""All ranks share a GPU: the same."""


@dataclass(frozen=True)
class Trainer:
    """One trainer, as its users start it."""

    name: str
    style: str
    """How it saves and resumes, in words."""
    packages: tuple[str, ...]
    command: Callable[[Path, Path], list[str]]
    """The command, from interpreter and working directory; it prepares that."""
    saved: str
    """Its checkpoints in the working directory, as a pattern of pathlib's."""
    under_way: str
    """A line that says: two checkpoints are there, and half of the training is to come."""
    resumed: str
    """What it prints when it goes on from a checkpoint."""
    steps: int
    """What its result says when all of it is done."""
    is_exact: bool = True
    """Whether it restores everything, so that a restart changes nothing."""
    checkpoints: dict[str, Any] = field(default_factory=dict)
    phase: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    source: tuple[str, str] | None = None
    """Repository and file in it, where it is no package."""
    result: str = ""
    """By which reader of `scripts/result.py`; empty: that of its name."""
    workers: int = 1
    shares_gpu: bool = True
    """Whether its ranks can be told to share a GPU."""

    def environment(self) -> dict[str, str]:
        """Return what its ranks get, besides what all do."""
        return ON_ONE_GPU if foreign.on_one_gpu() else self.env

    def interpreter(self) -> Path:
        """Return its interpreter; skips the test where that, the program, or a GPU for each rank is not there."""
        if foreign.on_one_gpu() and not self.shares_gpu:
            pytest.skip(f"{self.name}: its ranks do not share a GPU")
        if self.source:
            foreign.program(self.source[1], self.source[0])
        return foreign.interpreter(*self.packages)


def _script(name: str, *arguments: str) -> Callable[[Path, Path], list[str]]:
    return lambda python, work: [str(python), str(SCRIPTS / name), *arguments]


def _torchrun(script: Path | str, *arguments: str, nodes: int = 1) -> Callable[[Path, Path], list[str]]:
    options = [f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}"]
    return lambda python, work: [
        str(python), "-m", "torch.distributed.run", *options, str(script), *arguments
    ]  # fmt: skip


def _nanogpt(python: Path, work: Path) -> list[str]:
    """It wants to be started where it lies, and has its data there: copies, so that the clone stays as it is."""
    clone = foreign.program(_NANOGPT[1], _NANOGPT[0]).parent
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(clone / name, work)
    data = work / "data" / "made_up"
    data.mkdir(parents=True)
    steps = np.random.default_rng(0).integers(1, 4, 40_000)
    tokens = (steps.cumsum() % 64).astype(np.uint16)
    tokens[:36_000].tofile(data / "train.bin")
    tokens[36_000:].tofile(data / "val.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))
    return _torchrun("train.py", str(SCRIPTS / "nanogpt_config.py"))(python, work)


def _ddp_tutorial(python: Path, work: Path) -> list[str]:
    script = foreign.program(_TUTORIAL[1], _TUTORIAL[0])
    return _torchrun(script, "121", "5")(python, work)


_NANOGPT = ("github.com/karpathy/nanoGPT", "nanoGPT/train.py")
_TUTORIAL = (
    "github.com/pytorch/examples",
    "examples/distributed/ddp-tutorial-series/multigpu_torchrun.py",
)
_LIGHTNING: dict[str, Any] = {
    "packages": ("lightning", "torch"),
    "saved": "out/last.ckpt",
    "under_way": r"epoch 9 done",
    "resumed": r"Restoring states from the checkpoint path at",
    "steps": 480,
    "result": "lightning",
    "checkpoints": {"path": "out", **ONE_FILE},
    "phase": {"rewrite_launcher": True},
}

TRAINERS = (
    Trainer(
        name="nanogpt",
        style="its own train.py, unmodified; writes `ckpt.pt` over and over",
        source=_NANOGPT,
        packages=("torch", "numpy"),
        command=_nanogpt,
        saved="out/ckpt.pt",
        under_way=r"iter 130:",
        resumed=r"Resuming training from out",
        steps=300,
        is_exact=False,  # it does not save where it was in its data, and draws them anew
        checkpoints={"path": "out", **ONE_FILE},
        phase={"rewrite_launcher": True},
        env=WITHOUT_CUDA,
    ),
    Trainer(
        name="hugging-face",
        style="Trainer on two ranks, `checkpoint-N/`, `train(resume_from_checkpoint=…)`",
        packages=("transformers", "accelerate", "torch"),
        command=_torchrun(SCRIPTS / "hugging_face.py", "out"),
        saved="out/checkpoint-*",
        under_way=r"'epoch': '3.333'",
        resumed=r"resuming from .*checkpoint-\d+",
        steps=240,
        checkpoints={"path": "out"},
        phase={"rewrite_launcher": True, "target_step": 240},
    ),
    Trainer(
        name="lightning",
        shares_gpu=False,
        style='strategy "ddp", `last.ckpt` beside `epoch=N-step=N.ckpt`, `fit(ckpt_path="last")`',
        command=_torchrun(SCRIPTS / "lightning_last.py", "out", "1", "2"),
        **_LIGHTNING,
    ),
    Trainer(
        name="lightning-two-workers",
        style="the same on two workers with a rank each",
        command=_torchrun(SCRIPTS / "lightning_last.py", "out", "2", "1", nodes=2),
        workers=2,
        **_LIGHTNING,
    ),
    Trainer(
        name="flax-orbax",
        shares_gpu=False,
        style="jax.distributed on two processes, optax, orbax's `CheckpointManager` (asynchronous), `N/`",
        packages=("jax", "flax", "optax", "orbax-checkpoint"),
        command=_script("flax_orbax.py", "out"),
        saved="out/[0-9]*",
        under_way=r"step 260 loss",
        resumed=r"resuming from step \d+",
        steps=600,
        checkpoints={"path": "out"},
        phase={"nproc_per_worker": 2, "rendezvous": "ranks", "target_step": 600},
    ),
    Trainer(
        name="xgboost",
        shares_gpu=False,
        style="RabitTracker in rank 0, `TrainingCheckPoint` as `model_N.json`, `train(xgb_model=…)`",
        packages=("xgboost", "numpy"),
        command=_script("xgboost_rabit.py", "out"),
        saved="out/model_*.json",
        under_way=r"round 110 ",
        resumed=r"resuming from .*model_\d+\.json",
        steps=240,
        checkpoints={"path": "out"},
        phase={"nproc_per_worker": 2, "rendezvous": "ranks"},
    ),
    Trainer(
        name="mmengine",
        shares_gpu=False,
        style="Runner with `save_best`: `best_accuracy_epoch_N.pth` beside `epoch_N.pth`, `load_from=…, resume=True`",
        packages=("mmengine", "torch"),
        command=_torchrun(SCRIPTS / "mmengine_best.py", "out"),
        saved="out/epoch_*.pth",
        under_way=r"Epoch\(train\) +\[14\]",
        resumed=r"resuming from .*/epoch_\d+\.pth",
        steps=30,
        checkpoints={"path": "out"},
        phase={"rewrite_launcher": True, "target_step": 30},
        env=WITHOUT_CUDA
        | {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # its checkpoints hold more than weights
    ),
    Trainer(
        name="ddp-tutorial",
        style="PyTorch's multigpu_torchrun.py, unmodified; writes `snapshot.pt` over and over",
        source=_TUTORIAL,
        packages=("torch",),
        command=_ddp_tutorial,
        saved="snapshot.pt",
        under_way=r"\] Epoch 42 \|",
        resumed=r"Resuming training from snapshot at Epoch \d+",
        steps=120,
        checkpoints={"path": ".", **ONE_FILE},
        phase={"rewrite_launcher": True},
        env=WITHOUT_CUDA,
    ),
)


def described(trainer: Trainer) -> str:
    """Return its version as the table shows it."""
    python = os.environ[foreign.PYTHON]
    versions = [f"{package} {foreign.version(python, package)}" for package in trainer.packages]
    return ", ".join([*([foreign.commit(trainer.source[1])] if trainer.source else []), *versions])
