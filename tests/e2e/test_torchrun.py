"""What a rank sees under torchrun it sees where a job has torchrun's command rewritten, forked ranks too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torches import torch

from prefect_ft import train_flow
from prefect_ft.config import JobConfig

__all__ = ["torch"]

SUPPORT = str(Path(__file__).parents[1] / "support")
LOOK = """
import glob, json, os, signal, time
import like_cold

if __name__ == "__main__":
    fields = like_cold.fields(dict(globals()))
    with open("seen-{TORCHELASTIC_RESTART_COUNT}-{RANK}.json".format(**os.environ), "w") as file:
        json.dump(fields, file, default=repr)
    if os.environ.get("PREFECT_FT_RESTART_COUNT") == "0":
        (journal,) = glob.glob("model/*_restartable/journal.jsonl")
        while '"parked":2' not in open(journal).read():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""
DIFFERENT = ("open files", "subreaper's child")
"""Where output goes, and who is a rank's parent."""

OPTIONS = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--role=trainer"]

OURS = ("PREFECT_FT_", "MA_", "TMPDIR", "PYTHONUNBUFFERED")
"""Variables that only our ranks have."""

ITS_OWN = ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE")
"""Variables that only torchrun's have: how its ranks tell it of an exception, and what ends it."""

EACH_TIME = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
"""Variables that both have, with values that mean something to the one that made them."""


def seen(directory: Path, restart: int, runtime_dir: Path) -> list[dict[str, Any]]:
    """Each rank's fields as far as they are to be the same."""
    ranks = [json.loads((directory / f"seen-{restart}-{rank}.json").read_text()) for rank in range(2)]
    return [_without_what_is_ours(rank, str(runtime_dir)) for rank in ranks]


def _without_what_is_ours(rank: dict[str, Any], runtime_dir: str) -> dict[str, Any]:
    env = {name: value for name, value in rank["environ"].items() if not name.startswith(OURS + ITS_OWN)}
    paths = [path for path in env["PYTHONPATH"].split(":") if not path.startswith(runtime_dir)]
    env |= {"PYTHONPATH": ":".join(paths), **dict.fromkeys(EACH_TIME, "")}
    path = [place for place in rank["path"] if not place.startswith(runtime_dir)]
    same = {name: value for name, value in rank.items() if name not in DIFFERENT}
    return {**same, "path": path, "environ": env}


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[tuple[int, str, Any, Any]]:
    """Rank, field, and what either sees: a whole rank is too much to be read."""
    return [
        (rank, name, one.get(name), other.get(name))
        for rank, (one, other) in enumerate(zip(ours, theirs, strict=True))
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]


@pytest.fixture(autouse=True)
def _hangups_end() -> Iterator[None]:
    """Where the tests were started by nohup, ranks inherit that, and torchrun's do not."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.timeout(240)  # to import torch takes seconds
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["look.py", "a", "--b"], id="script"),
        pytest.param(["-m", "pack.look", "-x"], id="module", marks=pytest.mark.long),
    ],
)
def test_ranks_see_what_they_see_under_torchrun(
    words: list[str], torch: str, tmp_path: Path, runtime_dir: Path, prefect_server: None
) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("look.py", "pack/look.py"):
        (tmp_path / name).write_text(LOOK)
    env = {"PYTHONPATH": SUPPORT}
    command = [torch, "-m", "torch.distributed.run", *OPTIONS, *words]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, check=True)
    under_torchrun = seen(tmp_path, 0, runtime_dir)

    phase = {"name": "p", "mode": "eval", "command": command, "rewrite_launcher": True, "warm": ["json"]}
    fields = {"name": "test", "model_dir": "model", "env": env, "autorestart": {"max_num_restarts": 3}}
    summary = train_flow(JobConfig.model_validate({**fields, "phases": [phase]}).at(tmp_path))[0]
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": 1})
    assert differences(seen(tmp_path, 0, runtime_dir), under_torchrun) == []
    forked = seen(tmp_path, 1, runtime_dir)
    for rank in forked:
        assert rank["environ"].pop("TORCHELASTIC_RESTART_COUNT") == "1"
    for rank in under_torchrun:
        del rank["environ"]["TORCHELASTIC_RESTART_COUNT"]
    assert differences(forked, under_torchrun) == []
