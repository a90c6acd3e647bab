"""Boost trees with XGBoost's own collective, saved by its callback: `python xgboost_rabit.py OUT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import xgboost as xgb
from xgboost import collective
from xgboost.tracker import RabitTracker

ROUNDS, SAVE_EVERY = 240, 40


class JsonCheckPoint(xgb.callback.TrainingCheckPoint):
    default_format = "json"


class Progress(xgb.callback.TrainingCallback):
    def after_iteration(self, model: xgb.Booster, epoch: int, evals_log: dict) -> bool:
        rounds = model.num_boosted_rounds()
        if collective.get_rank() == 0 and rounds % 10 == 0:
            print(f"round {rounds} rmse {evals_log['train']['rmse'][-1]:.4f}", flush=True)
        return False


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    if rank == 0:
        tracker = RabitTracker(host_ip=host, port=port, n_workers=ranks, sortby="task")
        tracker.start()
    with collective.CommunicatorContext(
        dmlc_communicator="rabit", dmlc_tracker_uri=host, dmlc_tracker_port=port, dmlc_task_id=str(rank)
    ):
        made = np.random.default_rng(rank)
        x = made.normal(size=(20_000, 20)).astype(np.float32)
        data = xgb.DMatrix(x, label=np.sin(x).sum(1) + x[:, 0] * x[:, 1])
        saved = sorted(out.glob("model_*.json"), key=lambda path: int(path.stem.split("_")[1]))
        last = os.environ.get("PREFECT_FT_RESUME_FROM", saved[-1] if saved else "")
        model = xgb.Booster(model_file=last) if last else None
        if model is not None:
            print(f"resuming from {last}", flush=True)
        model = xgb.train(
            {
                "objective": "reg:squarederror",
                "max_depth": 6,
                "eta": 0.05,
                "tree_method": "hist",
                "nthread": 1,
            },
            data,
            ROUNDS - (model.num_boosted_rounds() if model is not None else 0),
            evals=[(data, "train")],
            verbose_eval=False,
            xgb_model=model,
            callbacks=[JsonCheckPoint(out, interval=SAVE_EVERY), Progress()],
        )
        if rank == 0:
            model.save_model(out / "final.json")
    if rank == 0:
        tracker.wait_for()


if __name__ == "__main__":
    main()
