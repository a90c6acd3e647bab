"""Ranks in containers are kept warm by the same agent as elsewhere, and have nothing that is unset."""

from __future__ import annotations

from pathlib import Path

import pytest
from deaths import journals, of_type
from engine import IMAGE

from prefect_ft import JobConfig, train_flow

pytestmark = pytest.mark.timeout(300)

CODE = """
import os, sys, time
print("here", "colorsys" in sys.modules, flush=True)
print("left", [name for name in ("RANK", "OF_ALL", "OF_SYSTEM", "PATH") if name in os.environ], flush=True)
if os.environ["PREFECT_FT_ATTEMPT"] == "1":
    time.sleep(3)
    os.kill(os.getpid(), 9)
"""


def test_a_restart_in_place_finds_its_ranks_parked_in_the_container(
    prefect_server: None, docker_engine: str, tmp_path: Path
) -> None:
    phase = {
        "name": "train", "mode": "eval", "command": ["python", "-u", "-c", CODE], "nproc_per_worker": 2,
        "warm": ["colorsys"],
    }  # fmt: skip
    document = {
        "name": "warm",
        "model_dir": "model",
        "infrastructure": {
            "type": "docker",
            "image": IMAGE,
            "engine": docker_engine,
            "env": {"OF_ALL": "1"},
            "systems": [{"name": "s0", "env": {"OF_SYSTEM": "1"}}],
        },
        "env": {"RANK": None, "OF_ALL": None},
        "autorestart": {"max_num_restarts": 3},
        "phases": [phase],
    }
    (summary,) = train_flow(JobConfig.model_validate(document).at(tmp_path))
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": 1})
    log = next(tmp_path.rglob("run.log")).read_text().splitlines()
    said = sorted({line.replace("r0", "r").replace("r1", "r") for line in log if "] here" in line})
    assert said == ["[a1 w0 r] here False", "[a2 w0 r] here True"]
    assert {line.partition("] left ")[2] for line in log if "] left" in line} == {"['OF_SYSTEM', 'PATH']"}
    told = of_type(journals(tmp_path / "model")["train"], "warm")[-1]
    assert (told["parked"], told["why_cold"]) == (2, None)
