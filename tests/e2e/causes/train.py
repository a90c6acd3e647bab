"""A small training with torch on several ranks, into which one cause of bad numbers is planted.

    python train.py                    as a rank
    python train.py reference STEPS    reads lines `WORLD WINDOWS`, answers each with the digest of the last weights

Gradients are gathered and added in the order of the ranks, so that one process gets the same bits as many. Each rank
looks at its own before that: afterwards nobody could tell whose they were. Adam is written out here, because the first
optimizer of torch imports its compiler, which takes four seconds of a processor.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import random
import signal
import sys
from pathlib import Path

import torch
from torch import distributed, nn

from prefect_ft.heartbeat import beat, skips

EVERY = 5
torch.set_num_threads(1)


class Adam:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.taken = model, 0
        size = sum(each.numel() for each in model.parameters())
        self.mean, self.square = torch.zeros(size), torch.zeros(size)

    def step(self, gradient: torch.Tensor) -> None:
        self.taken += 1
        self.mean.mul_(0.9).add_(gradient, alpha=0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        mean = self.mean / (1 - 0.9**self.taken)
        change = mean / ((self.square / (1 - 0.999**self.taken)).sqrt() + 1e-8)
        at = 0
        with torch.no_grad():
            for each in self.model.parameters():
                each.sub_(change[at : at + each.numel()].view_as(each), alpha=0.01)
                at += each.numel()

    def state(self) -> dict:
        return {"taken": self.taken, "mean": self.mean, "square": self.square}

    def load(self, state: dict) -> None:
        self.taken, self.mean, self.square = state["taken"], state["mean"], state["square"]


def new_model() -> tuple[nn.Module, Adam]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, Adam(model)


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    points = torch.randn(8, 8, generator=generator)
    return points, points.sum(dim=1, keepdim=True)


def gradients(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    loss = (model(batch[0]) - batch[1]).square().mean()
    loss.backward()
    return loss.item(), torch.cat([each.grad.flatten() for each in model.parameters()])


def average(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total / len(parts)


def digest(model: nn.Module) -> str:
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def reference(steps: int) -> None:
    """Train in one process, without the steps of the windows."""
    for line in sys.stdin:
        world, _, windows = line.strip().partition(" ")
        os.environ["PREFECT_FT_SKIP_STEPS"] = windows
        model, optimizer = new_model()
        for step in range(1, steps + 1):
            if not skips(step):
                parts = [gradients(model, batch_of(step, rank))[1] for rank in range(int(world))]
                optimizer.step(average(parts))
        sys.stdout.write(f"{digest(model)}\n")
        sys.stdout.flush()


class Planted:
    """What goes wrong in this run; `seed` says where, all else is the same in all runs."""

    def __init__(self, cause: str, seed: int, steps: int, world: int) -> None:
        chosen = random.Random(f"{cause} {seed}")
        self.cause, self.seed = cause, seed
        self.step = chosen.randint(2, steps - 1)
        self.rank = chosen.randrange(world)
        self.system = chosen.choice(["s0", "s1"])
        self.saved = EVERY * chosen.randint(1, steps // EVERY - 1)
        self.killed = self.saved + chosen.randint(1, EVERY - 1)
        self.attempt, self.start = int(os.environ["PREFECT_FT_ATTEMPT"]), 0
        self.hit = self.step

    def starts(self, start: int, steps: int) -> None:
        if self.cause == "chance" and self.attempt == 2:
            chosen = random.Random(f"again {self.seed}")
            self.hit, self.rank = (
                chosen.randint(start + 1, steps),
                chosen.randrange(int(os.environ["WORLD_SIZE"])),
            )

    def spoil(
        self, step: int, rank: int, batch: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch that is bad wherever it is read, or an input that a system or chance flips a bit of."""
        points, labels = batch
        is_bad = False
        if self.cause == "batch":
            is_bad = (step, rank) == (self.step, self.rank)
        elif self.cause == "system":
            here = os.environ["PREFECT_FT_SYSTEM"] == self.system
            is_bad = here and random.Random(f"{self.seed} {self.attempt} {step} {rank}").random() < 0.15
        elif self.cause == "chance":
            is_bad = self.attempt <= 2 and (step, rank) == (self.hit, self.rank)
        if is_bad:
            points = points.clone()
            points[3, 5] = float("nan" if self.cause == "batch" else "inf")
        return points, labels

    def poison(self, step: int, state: dict) -> dict:
        """A checkpoint that was written wrong, and can be read all the same."""
        if self.cause == "checkpoint" and self.attempt == 1 and step == self.saved:
            state = {**state, "model": {name: each.clone() for name, each in state["model"].items()}}
            state["model"]["2.weight"][0, 0] = 1e30  # as a bit of the exponent that has flipped
        return state

    def may_die(self, step: int) -> None:
        if self.cause == "checkpoint" and self.attempt == 1 and step == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)


def save(step: int, model: nn.Module, optimizer: Adam, planted: Planted) -> None:
    state = planted.poison(step, {"step": step, "model": model.state_dict(), "optimizer": optimizer.state()})
    written = io.BytesIO()
    torch.save(state, written)
    Path(f"ck/.tmp-{step}").write_bytes(written.getvalue())
    os.replace(f"ck/.tmp-{step}", f"ck/step-{step}.pt")


def train(steps: int) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    planted = Planted(os.environ["CAUSE"], int(os.environ["SEED"]), steps, world)
    model, optimizer = new_model()
    start = 0
    if resume := os.environ["PREFECT_FT_RESUME_FROM"]:
        state = torch.load(resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load(state["optimizer"])
        start = state["step"]
    planted.starts(start, steps)
    beat(step=start, stage="train")
    distributed.init_process_group("gloo")
    for step in range(start + 1, steps + 1):
        batch = batch_of(step, rank)
        beat(step=step, sample=f"batch-{step}")
        planted.may_die(step)
        if not skips(step):
            loss, own = gradients(model, planted.spoil(step, rank, batch))
            beat(loss=loss)
            if not (math.isfinite(loss) and torch.isfinite(own).all()):
                raise FloatingPointError(f"loss or gradient is nan at step {step}")
            parts = [torch.empty_like(own) for _ in range(world)]
            distributed.all_gather(parts, own)
            optimizer.step(average(parts))
        if step % EVERY == 0 and rank == 0:
            save(step, model, optimizer, planted)
    if rank == 0:
        Path("digest").write_text(digest(model))
    distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    reference(int(sys.argv[2])) if sys.argv[1:2] == ["reference"] else train(int(os.environ["STEPS"]))
