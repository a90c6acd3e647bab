"""A worker's part of a checkpoint: whole with files missing that others have, never with files that are cut off."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
from layouts import DCP, DEEPSPEED, HF, SHARD, Tree, dcp_metadata, torch_file, write

from prefect_ft.worker.checkpoints import Checkpoint, Finder
from prefect_ft.worker.checkpoints.parts import Part


def found(root: Path, now: float | None = None, deaths: list[float] | None = None) -> list[Checkpoint]:
    return Finder(str(root), local=True).scan(time.time() + 1000 if now is None else now, deaths or [])


def without(tree: Tree, *names: str) -> Tree:
    return {name: data for name, data in tree.items() if name not in names}


def only(tree: Tree, *names: str) -> Tree:
    return {name: tree[name] for name in names}


LISTED = json.dumps({"files": [{"path": "a.bin", "size": 1}, {"path": "b.bin", "size": 2}]}).encode()
ZERO_0, ZERO_1 = "zero_pp_rank_0_mp_rank_00_optim_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
CASES: dict[str, tuple[str, Tree, tuple[str, ...]]] = {
    "dcp-of-the-coordinator": ("step-200", without(DCP, "__1_0.distcp"), ("__1_0.distcp",)),
    "dcp-of-another": ("step-200", only(DCP, "__1_0.distcp"), (".metadata",)),
    "dcp-whole": ("step-200", DCP, ()),
    "deepspeed-of-rank-0": ("global_step200", without(DEEPSPEED, ZERO_1), ("ZeRO optim shard 1/0",)),
    "deepspeed-two-of-three": (
        "global_step200",
        {"zero_pp_rank_2_mp_rank_00_optim_states.pt": torch_file(), ZERO_1: torch_file()},
        ("ZeRO optim shard 0/0",),
    ),
    "hf-one-of-two-weights": (
        "checkpoint-200",
        without(HF, "model-00002-of-00002.safetensors"),
        ("model-00002-of-00002.safetensors",),
    ),
    "numbered": (
        "step-200",
        {"w-00001-of-00003.bin": torch_file()},
        ("w-00002-of-00003.bin", "w-00003-of-00003.bin"),
    ),
    "numbered-from-0": ("step-200", {"w-0-of-2.bin": torch_file()}, ("w-1-of-2.bin",)),
    "megatron-of-another": (
        "iter_0000200",
        {"mp_rank_01/model_optim_rng.pt": torch_file()},
        ("latest_checkpointed_iteration.txt",),
    ),
    "manifest-of-both": ("step-200", {"manifest.json": LISTED, "a.bin": b"x"}, ("b.bin",)),
    "a-directory": ("step-200", {"rank0.pt": torch_file()}, ()),
    "a-file": ("step-200.pt", {"": torch_file()}, ()),
}


@pytest.mark.parametrize(("name", "files", "needs"), CASES.values(), ids=CASES)
def test_a_part_needs_what_it_says_itself_and_has_what_is_there(
    name: str, files: Tree, needs: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path, name, files)
    (part,) = found(tmp_path)
    assert (part.step, part.path) == (200, str(tmp_path / name))
    assert part.part is not None
    assert part.part.needs == needs
    assert {*part.part.has} >= {*files}
    assert not {*part.part.has} & {*needs}


@pytest.mark.parametrize(("name", "files", "needs"), CASES.values(), ids=CASES)
def test_missing_files_are_a_fault_where_one_agent_sees_all(
    name: str, files: Tree, needs: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path, name, files)
    seen = Finder(str(tmp_path)).scan(time.time() + 1000)
    assert [each.part for each in seen] == ([] if needs else [None])


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({**only(DCP, "__1_0.distcp"), "extra.pt": torch_file()[:-3]}, "extra.pt"),
        ({**only(DCP, "__1_0.distcp"), "__1_1.distcp": b""}, "__1_1.distcp: it is empty"),
        ({**only(DCP, "__1_0.distcp"), "__1_1.distcp.tmp": b"x"}, "is a temporary file"),
        ({**without(DCP, "__1_0.distcp"), ".metadata": dcp_metadata("__1_0.distcp")[:-1]}, ".metadata"),
        ({"manifest.json": LISTED, "b.bin": b"xxx"}, "b.bin has 3 of 2 bytes"),
        ({ZERO_0: SHARD, "zero_pp_rank_2_mp_rank_00_optim_states.pt": torch_file()[:-9]}, "rank_2"),
    ],
    ids=["cut-off", "empty", "temporary", "index-cut-off", "wrong-size", "a-shard-cut-off-beside-a-gap"],
)
def test_a_part_with_a_fault_is_none(files: Tree, reason: str, tmp_path: Path) -> None:
    write(tmp_path, "step-200", files)
    finder = Finder(str(tmp_path), local=True)
    assert finder.scan(time.time() + 1000) == []
    assert reason in finder.why_not()["step-200"]


def test_a_part_without_the_marker_needs_time(tmp_path: Path) -> None:
    """Only the coordinator's disk has `.metadata`, which proves that all shards had been written."""
    now = time.time()
    write(tmp_path, "step-200", only(DCP, "__1_0.distcp"))
    assert found(tmp_path, now) == []
    assert found(tmp_path, now + 1000, [now + 0.5]) == []
    assert [each.step for each in found(tmp_path, now + 1000, [now + 500])] == [200]


def test_the_coordinators_part_is_proved_by_its_marker(tmp_path: Path) -> None:
    now = time.time()
    write(tmp_path, "step-200", without(DCP, "__1_0.distcp"))
    assert [each.step for each in found(tmp_path, now, [now])] == [200]


def test_of_a_part_with_very_many_files_those_of_sets_are_named(tmp_path: Path) -> None:
    many = {f"{number}.bin": torch_file() for number in range(1001)}
    write(tmp_path, "step-200", {**many, "__1_0.distcp": b"x"})
    (part,) = found(tmp_path)
    assert part.part == Part((".metadata",), ("__1_0.distcp",))


@pytest.mark.parametrize("is_same", [True, False], ids=["same", "another"])
def test_hashes_are_compared_of_the_files_that_are_here(is_same: bool, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"x" if is_same else b"y").hexdigest()
    listed = [
        {"path": "a.bin", "size": 1, "sha256": digest},
        {"path": "b.bin", "size": 2, "sha256": "0" * 64},
    ]
    write(tmp_path, "step-200", {"manifest.json": json.dumps({"files": listed}).encode(), "a.bin": b"x"})
    finder = Finder(str(tmp_path), local=True)
    (part,) = finder.scan(time.time() + 1000)
    expected = None if is_same else "a.bin does not have the sha256 of the manifest"
    assert finder.confirm(part) == expected
