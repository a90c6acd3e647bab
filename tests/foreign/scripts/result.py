"""Print what a training came to, as JSON: `python result.py TRAINER DIRECTORY`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def hugging_face(directory: Path) -> dict[str, Any]:
    state = json.loads((directory / "out/trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    weights = (directory / "out/model.safetensors").read_bytes()
    return {"steps": state["global_step"], "weights": _hash(weights), "metric": losses[-1]}


def lightning(directory: Path) -> dict[str, Any]:
    saved = _torch_file(directory / "out/last.ckpt")
    return {"steps": saved["global_step"], "weights": _of_tensors(saved["state_dict"])}


def flax_orbax(directory: Path) -> dict[str, Any]:
    steps = max(int(path.name) for path in (directory / "out").iterdir() if path.name.isdigit())
    return {"steps": steps, "weights": _hash((directory / "out/params.msgpack").read_bytes())}


def xgboost(directory: Path) -> dict[str, Any]:
    import xgboost as xgb

    model = xgb.Booster(model_file=directory / "out/final.json")
    return {"steps": model.num_boosted_rounds(), "weights": _hash("".join(model.get_dump()).encode())}


def nanogpt(directory: Path) -> dict[str, Any]:
    saved = _torch_file(directory / "out/ckpt.pt")
    weights, loss = _of_tensors(saved["model"]), float(saved["best_val_loss"])
    return {"steps": saved["iter_num"], "weights": weights, "metric": round(loss, 4)}


def ddp_tutorial(directory: Path) -> dict[str, Any]:
    saved = _torch_file(directory / "snapshot.pt")
    return {"steps": saved["EPOCHS_RUN"], "weights": _of_tensors(saved["MODEL_STATE"])}


def mmengine(directory: Path) -> dict[str, Any]:
    saved = _torch_file(directory / "out/epoch_30.pth")
    return {"steps": saved["meta"]["epoch"], "weights": _of_tensors(saved["state_dict"])}


def _torch_file(path: Path) -> dict[str, Any]:
    import torch

    loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return loaded


def _of_tensors(tensors: dict[str, Any]) -> str:
    return _hash(*(tensors[name].numpy().tobytes() for name in sorted(tensors)))


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


READERS = {
    reader.__name__.replace("_", "-"): reader
    for reader in (hugging_face, lightning, flax_orbax, xgboost, nanogpt, mmengine, ddp_tutorial)
}

if __name__ == "__main__":
    print(json.dumps(READERS[sys.argv[1]](Path(sys.argv[2]))))
