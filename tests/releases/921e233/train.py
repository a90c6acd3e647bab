"""The training of recorded runs: `train.py STORY`; two ranks add up 30 steps, rank 0 saves every tenth."""

import json
import os
import sys
import time
from pathlib import Path

from prefect_ft import heartbeat

story, rank, attempt = sys.argv[1], int(os.environ["RANK"]), int(os.environ["PREFECT_FT_ATTEMPT"])
resume = os.environ["PREFECT_FT_RESUME_FROM"]
state = json.loads(Path(resume).read_text()) if resume else {"step": 0, "sum": 0}
while state["step"] < 30:
    step = state["step"] + 1
    state = {"step": step, "sum": state["sum"] + step}
    heartbeat.beat(step=step, stage="train")
    if rank == 0 and step % 10 == 0:
        scratch = Path("checkpoints", ".scratch")
        scratch.write_text(json.dumps(state))
        scratch.rename(f"checkpoints/step-{step}.json")
    if step == 15:
        while Path("hold").exists():
            Path(f"held-{rank}").write_text(str(os.getpid()))
            time.sleep(0.02)
        if rank == 1 and attempt == 1 and story in ("several-attempts", "left"):
            raise ConnectionError("reset by peer")
        if rank == 1 and story in ("failed", "proposed"):
            raise AssertionError("loss is not finite")
    time.sleep(0.02)
print("the end", rank)
