"""Trainings of public frameworks, written as their tutorials write them, on one worker and on two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign import interpreter

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine, IncidentLine

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

COMMON = """
import json, os, signal, time
import torch
from torch.utils.data import Dataset

RESUME = os.environ["PREFECT_FT_RESUME_FROM"] or None
LOCAL, WORLD = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])

class Points(Dataset):
    def __len__(self):
        return 16 * WORLD

    def __getitem__(self, index):
        point = torch.full((4,), float(index))
        return {"x": point, "labels": point.sum()}

def taken(step):
    # Called after each step: rank 1 is killed once, when there is a checkpoint.
    if os.environ["KILLED"] == "1" and step == 6 and os.environ["PREFECT_FT_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

def finished(steps, rank, size):
    assert torch.distributed.get_world_size() == size
    told = torch.tensor([float(rank)])
    torch.distributed.all_reduce(told)
    with open(f"done-{os.environ['RANK']}.json", "w") as file:
        json.dump([steps, rank, size, told.item()], file)
    while not all(os.path.exists(f"done-{other}.json") for other in range(size)):
        time.sleep(0.01)
    os._exit(0)  # gloo's threads may abort when the interpreter ends: pytorch/pytorch#190489
"""

LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.line(batch["x"]).mean()

    def on_train_batch_end(self, outputs, batch, index):
        taken(self.global_step)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)

trainer = lightning.Trainer(
    accelerator="cpu", devices=LOCAL, num_nodes=WORLD // LOCAL, max_steps=10, logger=False,
    enable_progress_bar=False, callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=4, save_top_k=-1)],
)
trainer.fit(Line(), DataLoader(Points(), batch_size=4), ckpt_path=RESUME)
finished(trainer.global_step, trainer.global_rank, trainer.world_size)
"""

HUGGING_FACE = """
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

class Line(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.line = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, x, labels=None):
        return {"loss": (self.line(x).squeeze(-1) - labels).pow(2).mean()}

class Taken(TrainerCallback):
    def on_step_end(self, arguments, state, control, **rest):
        taken(state.global_step)

arguments = TrainingArguments(
    "checkpoints", max_steps=10, save_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to="none",
    learning_rate=0.0001, disable_tqdm=True, logging_strategy="no",
)
trainer = Trainer(Line(PretrainedConfig()), arguments, train_dataset=Points(), callbacks=[Taken()])
trainer.train(resume_from_checkpoint=RESUME)
finished(trainer.state.global_step, arguments.process_index, arguments.world_size)
"""

ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
line = torch.nn.Linear(4, 1)
line, optimizer, loader = accelerator.prepare(
    line, torch.optim.SGD(line.parameters(), lr=0.001), DataLoader(Points(), batch_size=4)
)
step = 0
if RESUME:
    accelerator.load_state(RESUME)
    step = int(RESUME.rpartition("-")[2])
while step < 10:
    for batch in loader:
        accelerator.backward(line(batch["x"]).mean())
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 4 == 0:
            accelerator.save_state(f"checkpoints/.step-{step}")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                os.replace(f"checkpoints/.step-{step}", f"checkpoints/step-{step}")
        taken(step)
        if step == 10:
            break
finished(step, accelerator.process_index, accelerator.num_processes)
"""

SCRIPTS = {"lightning": LIGHTNING, "transformers": HUGGING_FACE, "accelerate": ACCELERATE}


def trained(directory: Path, script: str, python: Path, *, workers: int, killed: bool, **phase: Any) -> Any:
    """Run a script on two ranks of each worker; return the phase's summary."""
    (directory / "train.py").write_text(script)
    systems = [f"s{number}" for number in range(workers)]
    job = {
        "name": "test",
        "model_dir": "model",
        "env": {"KILLED": str(int(killed)), "HF_HUB_OFFLINE": "1"},
        "infrastructure": {"type": "process", "systems": systems, "workers": workers},
        "autorestart": {"max_num_restarts": 1},
        "phases": [{"name": "train", "command": [str(python), "train.py"], "nproc_per_worker": 2, **phase}],
    }
    return train_flow(JobConfig.model_validate(job).at(directory))[0]


@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("workers", [1, 2], ids=["one-worker", "two-workers"])
@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_training_comes_to_its_end(
    framework: str, workers: int, killed: bool, tmp_path: Path, runtime_dir: Path, prefect_server: None
) -> None:
    python, script = interpreter(framework, "torch"), COMMON + SCRIPTS[framework]
    saves = {"checkpoints": {"path": "checkpoints"}, "target_step": 8}
    summary = trained(tmp_path, script, python, workers=workers, killed=killed, **saves)
    restarts = {"restart_in_place": 1} if killed else {}
    log = next(tmp_path.rglob("run.log")).read_text()
    assert (summary["status"], summary["restarts"]) == ("completed", restarts), log
    size = 2 * workers
    done = [json.loads((tmp_path / f"done-{rank}.json").read_text()) for rank in range(size)]
    assert done == [[10, rank, size, sum(range(size))] for rank in range(size)]


WAITING = """
import glob

class Waiting(TrainerCallback):
    # Steps that take a while; the first attempt ends when the next one's ranks are there.
    def on_step_end(self, arguments, state, control, **rest):
        time.sleep(0.1)
        (journal,) = glob.glob("model/*_restartable/journal.jsonl")
        if os.environ["PREFECT_FT_RESTART_COUNT"] == "1":
            control.should_training_stop = True
        elif '"parked":2' in open(journal).read() and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_of_a_trainer_without_heartbeats_are_warm(
    tmp_path: Path, runtime_dir: Path, prefect_server: None
) -> None:
    """Of its own accord the trainer tells nothing, and looks for packages that are not there at each step."""
    python = interpreter("transformers", "torch")
    changes = {
        "max_steps=10, save_steps=4": "max_steps=100000, save_strategy='no'",
        "arguments = Training": WAITING + "arguments = Training",
        "[Taken()]": "[Waiting()]",
    }
    script = "import sys\nprint('torch was here:', 'torch' in sys.modules)\n" + COMMON + HUGGING_FACE
    for before, after in changes.items():
        script = script.replace(before, after)
    summary = trained(tmp_path, script, python, workers=1, killed=False, mode="eval", warm="auto")
    log = next(tmp_path.rglob("run.log")).read_text()
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": 1}), log
    assert "[a2 w0 r0] torch was here: True" in log


# -- a bad batch ------------------------------------------------------------------------------------

FINITE = "assert all(torch.isfinite(each).all() for each in trainer.model.parameters())\n"
CALLBACKS = "from prefect_ft.callbacks import "
BAD = {
    "transformers": (
        ("point = torch.full", "point = (float('nan') if index == 37 else 1) * torch.full"),
        ("from transformers", f"{CALLBACKS}HuggingFaceHeartbeat, HuggingFaceSkipping\nfrom transformers"),
        ("[Taken()])", "[Taken(), HuggingFaceHeartbeat()])\nHuggingFaceSkipping(trainer)"),
        ('logging_strategy="no"', "logging_steps=1"),
    ),
    "lightning": (
        ("import lightning\n", f"import lightning\n{CALLBACKS}LightningHeartbeat, LightningSkipping\n"),
        ("return self.line(", "return (float('nan') if self.global_step == 6 else 1.0) * self.line("),
        ("callbacks=[", "callbacks=[LightningHeartbeat(values=True), LightningSkipping(), "),
    ),
}
BOTH = (
    ("return 16 * WORLD", "return 40 * WORLD"),
    ("finished(trainer", f"{FINITE}finished(trainer"),
    ("def taken(step):", "def taken(step):\n    time.sleep(0.3)"),
)
"""Changes to the scripts: data that makes their numbers bad, and the callbacks; neither looks at its numbers itself."""


@pytest.mark.parametrize("framework", BAD)
def test_a_bad_batch_is_found_by_its_values_and_skipped_on_all_ranks(
    framework: str, tmp_path: Path, runtime_dir: Path, prefect_server: None
) -> None:
    python, script = interpreter(framework, "torch"), COMMON + SCRIPTS[framework]
    for before, after in (*BAD[framework], *BOTH):
        assert before in script
        script = script.replace(before, after)
    summary = trained(
        tmp_path,
        script,
        python,
        workers=2,
        killed=False,
        checkpoints={"path": "checkpoints"},
        target_step=8,
        autorestart={"max_num_restarts": 3, "skip_steps": 2},
        numeric={"watch": "act"},
        warm="auto",
    )
    log = next(tmp_path.rglob("run.log")).read_text()
    lines = read_lines(next(tmp_path.rglob("journal.jsonl")))
    decisions = [line.decision for line in lines if isinstance(line, DecisionLine)]
    assert [each.rule for each in decisions] == ["numeric", "skip-steps", "completed"], log
    first, second, _ = [line.incident for line in lines if isinstance(line, IncidentLine)]
    assert first.reached == second.reached is not None
    (window,) = decisions[1].skip_steps
    assert window[0] <= first.reached <= window[1]
    found = decisions[1].at_fault
    assert found is not None
    assert (found.what, found.steps) == ("data_or_code", (first.reached,))
    done = [json.loads((tmp_path / f"done-{rank}.json").read_text()) for rank in range(4)]
    assert done == [[10, rank, 4, 6.0] for rank in range(4)]
    assert summary["status"] == "completed"
