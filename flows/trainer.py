"""Read a trainer configuration and train as it says: a stand-in for a trainer that loads its own file.

    prefect-ft run flows/trainer.yaml --command 'python trainer.py fit'

It needs no device: its only weight is a number. What a trainer of this kind needs to be restarted well is marked by
a number:

1. it loads the file that `PREFECT_FT_PARAMS` names, its configuration without `autorestart`;
2. it takes `--checkpoint_path`, which attempts that resume have (`resume_args`);
3. it reports its step and stage with `beat`, and leaves out the validation that `skip_eval` names: after a failure in
   a validation the run goes on with the next training loop.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from prefect_ft.heartbeat import beat, skip_eval


def configuration() -> dict[str, Any]:
    """(1) The one trainer of the file, which has it under `trainer` as the file of a person has."""
    content = yaml.safe_load(Path(os.environ["PREFECT_FT_PARAMS"]).read_text())
    trainer: dict[str, Any] = content["trainer"]
    if "autorestart" in trainer["init"]:
        raise ValueError("autorestart would restart this trainer within itself")
    return trainer


def save(step: int, weight: float, folder: Path) -> None:
    """Write a checkpoint: under a hidden name first, so that it is complete or absent."""
    hidden = folder / ".checkpoint.tmp"
    hidden.write_text(json.dumps({"global_step": step, "weight": weight}))
    hidden.replace(folder / f"checkpoint_{step}.mdl")


def validate(step: int, weight: float, fail_at: int | None) -> None:
    """Print how good the weight is, or fail on purpose."""
    if step == fail_at:
        raise ConnectionResetError(f"the validation at step {step} lost its connection")
    print(f"step {step} validation error {abs(1 - weight):.4f}", flush=True)


def fit(trainer: dict[str, Any], checkpoint: Path | None, fail_at: int | None) -> None:
    """Train to `max_steps`, with a validation after each training loop and checkpoints in between."""
    init = trainer["init"]
    loop, every, folder = init["loop"], init["checkpoint"]["steps"], Path(init["model_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    step, weight = 0, 0.0
    if checkpoint:
        state = json.loads(checkpoint.read_text())
        step, weight = int(state["global_step"]), float(state["weight"])
    print(f"train from step {step}", flush=True)
    while step < loop["max_steps"]:
        step, weight = step + 1, weight + 0.1 * (1 - weight)
        beat(step=step, stage="train")
        if step % every == 0 or step == loop["max_steps"]:
            beat(stage="checkpoint")
            save(step, weight, folder)
        if step % loop["eval_frequency"] == 0:
            if skip_eval(step):  # (3)
                print(f"step {step} validation left out", flush=True)
            else:
                beat(stage="validate")
                validate(step, weight, fail_at)
                beat(stage="train")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train as a configuration says.")
    parser.add_argument("command", choices=["fit"])
    parser.add_argument("--checkpoint_path", type=Path, help="checkpoint to resume from")  # (2)
    parser.add_argument("--fail-validation", type=int, metavar="STEP", help="fail in the validation there")
    options = parser.parse_args(arguments)
    fit(configuration(), options.checkpoint_path, options.fail_validation)


if __name__ == "__main__":
    main()
