"""The example of what a restart within the processes may keep: it runs, and says what it does again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import inprocess_ranks
import pytest
from ports import free_port

SCRIPT = inprocess_ranks.ROOT / "flows" / "wrapped.py"


def run(directory: Path, *words: str) -> list[list[str]]:
    """Run two ranks of the example; what each printed."""
    directory.mkdir()
    port = str(free_port(2))
    env = {"PYTHONPATH": str(inprocess_ranks.ROOT), "CHECKPOINT": str(directory / "checkpoint.json")}
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            env={**os.environ, **env, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    return [output.splitlines() for output, _ in told]


@pytest.mark.parametrize(
    ("which", "times"),
    [
        pytest.param("all-of-main", {"loads data": 2, "compiles": 2, "makes the model": 2}, id="all-of-main"),
        pytest.param(
            "data-outside", {"loads data": 1, "compiles": 2, "makes the model": 2}, id="data-outside"
        ),
        pytest.param("all-outside", {"loads data": 1, "compiles": 1, "makes the model": 1}, id="all-outside"),
    ],
)
def test_what_is_outside_is_done_once_and_the_result_is_the_same(
    tmp_path: Path, which: str, times: dict[str, int]
) -> None:
    undisturbed, disturbed = run(tmp_path / "a", which), run(tmp_path / "b", which, "7")
    assert [{what: lines.count(what) for what in times} for lines in disturbed] == [times] * 2
    assert [lines[-1] for lines in disturbed] == [undisturbed[0][-1]] * 2
    assert undisturbed[0][-1].startswith("weights [")
