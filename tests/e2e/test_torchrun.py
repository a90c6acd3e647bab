"""What a rank sees under torchrun it sees here: its environment always, all else where torchrun is rewritten."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
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
DUMP = """
import json, os
with open(os.environ["DUMPED"] + os.environ["RANK"], "w") as file:
    json.dump(dict(os.environ), file)
"""
DIFFERENT = ("open files", "subreaper's child")
"""Where output goes, and who is a rank's parent."""

OPTIONS = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--role=trainer"]

OURS = ("PREFECT_FT_", "MA_", "TMPDIR", "PYTHONUNBUFFERED", "NODE_RANK")
"""Variables that only our ranks have."""

EACH_TIME = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
"""Variables that both have, with values that mean something to the one that made them."""


def seen(directory: Path, restart: int, runtime_dir: Path) -> list[dict[str, Any]]:
    """Each rank's fields as far as they are to be the same."""
    ranks = [json.loads((directory / f"seen-{restart}-{rank}.json").read_text()) for rank in range(2)]
    return [_without_what_is_ours(rank, str(runtime_dir)) for rank in ranks]


def _without_what_is_ours(rank: dict[str, Any], runtime_dir: str) -> dict[str, Any]:
    env = {name: value for name, value in rank["environ"].items() if not name.startswith(OURS)}
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


@pytest.mark.timeout(240)
def test_every_rank_has_the_environment_of_torchrun(
    torch: str, tmp_path: Path, runtime_dir: Path, prefect_server: None
) -> None:
    (tmp_path / "dump.py").write_text(DUMP)
    where = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    command = [torch, "-m", "torch.distributed.run", *where, "--nproc-per-node=2", "--max-restarts=3"]
    env = {**os.environ, "DUMPED": "theirs-"}
    nodes = [
        subprocess.Popen([*command, f"--node-rank={node}", "dump.py"], cwd=tmp_path, env=env, stderr=-3)
        for node in range(2)
    ]
    assert [node.wait() for node in nodes] == [0, 0]

    infrastructure = {"systems": ["s0", "s1"], "workers": 2}
    phase = {"name": "p", "mode": "eval", "command": [torch, "dump.py"], "nproc_per_worker": 2}
    fields = {"name": "t", "model_dir": "model", "env": {"DUMPED": "ours-"}, "infrastructure": infrastructure}
    job = {**fields, "autorestart": {"max_num_restarts": 3}, "phases": [phase]}
    assert train_flow(JobConfig.model_validate(job).at(tmp_path))[0]["status"] == "completed"
    for rank in range(4):
        ours, theirs = (
            json.loads((tmp_path / f"{whose}-{rank}").read_text()) for whose in ("ours", "theirs")
        )
        assert theirs.keys() - ours.keys() == set()
        other = {name: (ours[name], value) for name, value in theirs.items() if ours[name] != value}
        assert other.keys() <= {"DUMPED", "TMPDIR", *EACH_TIME}, other
        assert ours["NODE_RANK"] == theirs["GROUP_RANK"]
