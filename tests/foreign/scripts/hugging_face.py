"""Fine-tune a small GPT-2 on made-up text with Hugging Face's Trainer: `torchrun … hugging_face.py OUT`."""

from __future__ import annotations

import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class MadeUpText(torch.utils.data.Dataset):
    def __init__(self, samples: int = 480, length: int = 32, vocabulary: int = 64) -> None:
        made = torch.Generator().manual_seed(0)
        steps = torch.randint(1, 4, (samples, length), generator=made)
        self.tokens = steps.cumsum(1) % vocabulary

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    set_seed(42)
    out = sys.argv[1]
    on_gpu = "FOREIGN_ON_ONE_GPU" in os.environ
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        out,
        max_steps=240,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        save_steps=40,
        save_total_limit=3,
        logging_steps=10,
        report_to=[],
        use_cpu=not on_gpu,
        disable_tqdm=True,
        ddp_backend="nccl" if on_gpu else "gloo",
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=MadeUpText())
    last = os.environ.get("PREFECT_FT_RESUME_FROM")
    if last is None and os.path.isdir(out):
        last = get_last_checkpoint(out)
    if "FOREIGN_BEGINS_ANEW" in os.environ:  # as scripts do that know nothing of checkpoints
        last = None
    if last:
        print(f"resuming from {last}", flush=True)
    trainer.train(resume_from_checkpoint=last or None)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
