"""The quickstart's training: interrupted in any way, it ends with the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from ports import free_port

SCRIPT = Path(__file__).parents[2] / "flows" / "digits.py"
STEPS = ("--steps", "60", "--every", "20")


@dataclass(frozen=True)
class Ended:
    """How one rank ended: `returncode` is negative for a signal."""

    returncode: int
    output: str
    last_error: str


def start(ranks, *arguments, resume_from=""):
    """Start the ranks of one attempt with the environment that each of them gets."""
    gang = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    gang |= {"PREFECT_FT_RUN_ID": "a-run", "PREFECT_FT_RESUME_FROM": str(resume_from)}
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, arguments)],
            env={**os.environ, **gang, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def wait(processes, timeout_s=30):
    ended = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=timeout_s)
            ended.append(Ended(process.returncode, output, (errors.splitlines() or [""])[-1]))
    finally:
        for process in processes:
            process.kill()
    return ended


def train(folder, *arguments, ranks=2, resume_from=""):
    """One attempt that must succeed; return its result."""
    arguments = (*STEPS, "--checkpoints", folder, "--out", folder / "out.json", *arguments)
    ended = wait(start(ranks, *arguments, resume_from=resume_from))
    assert [(rank.returncode, rank.last_error) for rank in ended] == [(0, "")] * ranks
    return json.loads((folder / "out.json").read_text())


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    result = train(folder)
    assert files(folder) == ["out.json", "step-20.npz", "step-40.npz", "step-60.npz"]
    assert (result["step"], result["accuracy"] > 0.5) == (60, True)
    return result


@pytest.fixture(scope="module")
def killed_while_saving(tmp_path_factory):
    """A folder with one good checkpoint and one cut in half, and how the ranks ended."""
    folder = tmp_path_factory.mktemp("cut")
    arguments = (*STEPS, "--checkpoints", folder, "--fail", "0:45:cut")
    return folder, wait(start(2, *arguments))


def test_a_run_that_an_exception_interrupted_ends_with_the_same_weights(undisturbed, tmp_path):
    fault = ("--fail", "1:35:exception")
    rank_0, rank_1 = wait(start(2, *STEPS, "--checkpoints", tmp_path, *fault))
    assert (rank_1.returncode, rank_1.last_error) == (
        1,
        "RuntimeError: rank 1 was told to fail at step 35",
    )
    assert (rank_0.returncode, rank_0.last_error.split(":")[0]) == (1, "ConnectionResetError")
    assert train(tmp_path, *fault, resume_from=tmp_path / "step-20.npz") == undisturbed


def test_a_killed_peer_ends_the_others(killed_while_saving):
    _, (rank_0, rank_1) = killed_while_saving
    assert rank_0.returncode == -signal.SIGKILL
    assert (rank_1.returncode, rank_1.last_error.split(":")[0]) == (1, "ConnectionResetError")


def test_cut_leaves_half_of_the_last_checkpoint(killed_while_saving):
    folder, _ = killed_while_saving
    good, cut = (folder / name for name in ("step-20.npz", "step-40.npz"))
    assert files(folder) == [".fault-a-run-0-45-cut", "step-20.npz", "step-40.npz"]
    assert cut.stat().st_size == good.stat().st_size // 2


def test_half_a_checkpoint_is_refused(killed_while_saving, tmp_path):
    folder, _ = killed_while_saving
    (rank,) = wait(start(1, "--checkpoints", tmp_path, resume_from=folder / "step-40.npz"))
    assert (rank.returncode, rank.last_error) == (1, "zipfile.BadZipFile: File is not a zip file")


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_number_of_ranks_does_not_change_the_weights(ranks, undisturbed, killed_while_saving, tmp_path):
    folder, _ = killed_while_saving
    assert train(tmp_path, ranks=ranks, resume_from=folder / "step-20.npz") == undisturbed


def test_rank_0_reports_where_it_stands(killed_while_saving):
    _, (rank_0, rank_1) = killed_while_saving
    lines = [line.split() for line in rank_0.output.splitlines()]
    assert [(line[0], line[1], line[2], line[4]) for line in lines] == [
        ("step", step, "loss", "accuracy") for step in ("10", "20", "30", "40")
    ]
    assert rank_1.output == ""


def test_finetuning_begins_with_the_weights_it_is_given(killed_while_saving, tmp_path):
    folder, _ = killed_while_saving
    phase = ("--phase", "finetune", "--init", folder / "step-20.npz", "--lr", "0.05")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_FT_")}
    done = subprocess.run(
        [sys.executable, SCRIPT, *phase, "--steps", "10", "--checkpoints", tmp_path],
        env=plain,
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stderr, files(tmp_path)) == (0, "", ["step-10.npz"])
    assert float(done.stdout.split()[-1]) > 0.7, "ten steps from new weights reach 0.5"
