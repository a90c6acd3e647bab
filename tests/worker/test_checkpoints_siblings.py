"""A checkpoint of two files counts once both are there and whole, where the others have both."""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path

import pytest

from prefect_ft.worker.checkpoints import Finder
from prefect_ft.worker.checkpoints.names import state_step
from prefect_ft.worker.checkpoints.siblings import Siblings

NOW = 1_700_000_000.0


def put(path: Path, content: bytes = b"raw", age: float = 1000.0) -> None:
    path.write_bytes(content)
    os.utime(path, (NOW - age, NOW - age))


def torch_file() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("archive/data.pkl", b"weights" * 50)
    return data.getvalue()


def saved(directory: Path, *names: str) -> None:
    for name in names:
        put(directory / name, torch_file() if name.endswith(".pt") else b"raw")


def scan(finder: Finder) -> tuple[list[int], dict[str, str]]:
    return [item.step for item in finder.scan(NOW)], finder.why_not()


@pytest.mark.parametrize(
    ("own", "beside"),
    [
        ("model_{}.pt", "optimizer_{}.pt"),
        ("step-{}.pt", "step-{}-optim.pt"),
        ("ckpt_{:06}.pt", "scheduler_{:06}.pkl"),
        ("epoch_{}.pdparams", "epoch_{}.pdopt"),
        ("epoch_{}.pdopt", "epoch_{}.pdparams"),
        ("model-epoch={0}-step={0}0.pt", "optimizer-epoch={0}-step={0}0.pt"),
        ("model_{:06}.pt", "optim_{:06}_rank0.pt"),
    ],
)
def test_one_without_what_the_others_have_does_not_count(own: str, beside: str, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saved(tmp_path, own.format(step), beside.format(step))
    saved(tmp_path, own.format(4))
    steps, why_not = scan(finder := Finder(str(tmp_path)))
    assert len(steps) == 3
    assert why_not[own.format(4)].endswith("is missing, which every other one has beside it")
    saved(tmp_path, beside.format(4))
    assert len(scan(finder)[0]) == 4


def test_what_is_cut_beside_it_after_it_has_counted_is_noticed(tmp_path: Path) -> None:
    for step in (1, 2):
        saved(tmp_path, f"model_{step}.pt", f"optimizer_{step}.pt")
    finder = Finder(str(tmp_path))
    assert scan(finder)[0] == [1, 2]
    put(tmp_path / "optimizer_2.pt", torch_file()[:-30], age=500.0)
    steps, why_not = scan(finder)
    assert steps == [1]
    assert why_not["model_2.pt"].startswith("optimizer_2.pt beside it: ")


def test_the_file_of_each_rank_is_wanted(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saved(tmp_path, f"model_{step}.pt", f"optim_{step}_rank0.pt", f"optim_{step}_rank1.pt")
    (tmp_path / "optim_3_rank1.pt").unlink()
    steps, why_not = scan(finder := Finder(str(tmp_path)))
    assert steps == [1, 2]
    assert why_not["model_3.pt"].startswith("optim_*_rank1.pt is missing")
    put(tmp_path / "optim_3_rank1.pt", torch_file()[:-30])
    assert scan(finder)[1]["model_3.pt"].startswith("optim_3_rank1.pt beside it: ")


def test_what_is_cut_beside_it_counts_as_missing(tmp_path: Path) -> None:
    saved(tmp_path, "model_1.pt", "optimizer_1.pt", "model_2.pt")
    put(tmp_path / "optimizer_2.pt", torch_file()[:-30])
    steps, why_not = scan(Finder(str(tmp_path)))
    assert steps == [1]
    assert why_not["model_2.pt"].startswith("optimizer_2.pt beside it: ")


def test_what_is_beside_it_may_have_another_layout_than_the_named_one(tmp_path: Path) -> None:
    for step in (1, 2):
        put(tmp_path / f"model_{step}.npz", torch_file())
        put(tmp_path / f"optimizer_{step}.safetensors", b"\x02\0\0\0\0\0\0\0{}")
    finder = Finder(str(tmp_path), layout="npz")
    assert scan(finder)[0] == [1, 2]
    put(tmp_path / "model_3.npz", torch_file())
    put(tmp_path / "optimizer_3.safetensors", b"\x02\0\0\0\0\0\0\0{")
    assert scan(finder)[0] == [1, 2]


def test_what_is_young_beside_it_is_waited_for(tmp_path: Path) -> None:
    saved(tmp_path, "model_1.pt", "optimizer_1.pkl", "model_2.pt")
    put(tmp_path / "optimizer_2.pkl", age=0.5)
    finder = Finder(str(tmp_path))
    assert scan(finder)[0] == [1]
    assert finder.settles_at == pytest.approx(NOW + 1.5)
    assert [item.step for item in finder.scan(NOW + 2)] == [1, 2]


def test_what_is_cut_beside_it_is_not_waited_for(tmp_path: Path) -> None:
    saved(tmp_path, "model_1.pt", "optimizer_1.pt", "model_2.pt")
    put(tmp_path / "optimizer_2.pt", torch_file()[:-30], age=0.5)
    finder = Finder(str(tmp_path))
    assert scan(finder)[0] == [1]
    assert finder.settles_at is None


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        pytest.param(["model_1.pt", "optimizer_1.pt"], [1], id="one"),
        pytest.param(["model_1.pt", "model_2.pt", "optimizer_9.pt"], [1, 2], id="never-beside-one"),
        pytest.param(
            ["model_1.pt", "model_2.pt", "model_3.pt", "optimizer_3.pt"], [1, 2, 3], id="newest-kept"
        ),
        pytest.param(
            ["model_1.pt", "optimizer_1.pt", "model_2.pt", "model_3.pt"], [1, 2, 3], id="beside-some"
        ),
        pytest.param(
            [*(f"model_{step}.pt" for step in (10, 20, 30))]
            + [f"optimizer_epoch{epoch}_step{step}.pt" for epoch, step in ((1, 10), (1, 20), (2, 30))],
            [10, 20, 30],
            id="with-an-epoch-in-one-name",
        ),
        pytest.param(
            ["epoch_0.pth", "epoch_1.pth", "epoch_2.pth", "rng_state_0.pth", "rng_state_1.pth"],
            [0, 1, 2],
            id="of-each-rank",
        ),
        pytest.param(
            ["epoch_1.pt", "epoch_2.pt", "optimizer_0.pt", "optimizer_1.pt"], [1, 2], id="of-each-model"
        ),
        pytest.param(
            ["model_1.pt", "optimizer_1.pt", "model_2.pt", "optimizer_2.pt", "epoch_2.pt", "epoch_3.pt"],
            [1, 2, 3],
            id="of-an-earlier-phase",
        ),
        pytest.param(["step-1.pt", "best_1.pt", "step-2.pt"], [1, 2], id="a-best-one"),
        pytest.param(["step-1.pt", "step-1.json", "step-2.pt"], [1, 2], id="notes"),
        pytest.param(["step-1.pt", "optimizer_1.pt.tmp", "step-2.pt"], [1, 2], id="temporary"),
    ],
)
def test_what_others_do_not_all_have_is_not_missed(
    names: list[str], counts: list[int], tmp_path: Path
) -> None:
    saved(tmp_path, *(name for name in names if not name.endswith(".json")))
    for name in names:
        if name.endswith(".json"):
            put(tmp_path / name, b"{}")
    assert scan(Finder(str(tmp_path)))[0] == counts


@pytest.mark.parametrize("own", ["epoch={0}-step={0}00.pt", "step={0}-loss=0.{1}.pt", "step={0}-{1:x}.pt"])
def test_names_that_all_differ_in_further_numbers_cost_no_more(own: str) -> None:
    names = [own.format(step, 7919 * step % 10007) for step in range(1, 3001)]
    states = [f"optimizer-{name}" for name in names]
    began = time.process_time()
    siblings = Siblings([*names, *states], {name: step for step, name in enumerate(names, 1)})
    assert all(siblings.missing(name) is None for name in names)
    assert len([each for name in names for each in siblings.of(name)]) <= len(names)
    assert time.process_time() - began < 5  # it took minutes


def test_what_a_completed_attempt_saved_last_may_be_alone(tmp_path: Path) -> None:
    saved(tmp_path, "model_1.pt", "optimizer_1.pt", "model_2.pt")
    finder = Finder(str(tmp_path))
    assert scan(finder)[0] == [1]
    assert [item.step for item in finder.scan(NOW, is_over=True)] == [1, 2]
    assert scan(finder)[0] == [1, 2]


def test_what_was_verified_stays_so_when_the_file_beside_it_goes(tmp_path: Path) -> None:
    saved(tmp_path, *(f"{name}_{step}.pt" for name in ("model", "optimizer") for step in (1, 2)))
    finder = Finder(str(tmp_path))
    assert scan(finder)[0] == [1, 2]
    (tmp_path / "optimizer_2.pt").unlink()
    assert scan(finder)[0] == [1, 2]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("optimizer_4.pt", 4),
        ("step-100-optim.pt", 100),
        ("rng_state_7.pth", None),
        ("GradScaler.pt", None),
        ("optimizer.pt", None),
        ("optimizer_4.log", None),
        ("optimizer_4.pt.tmp", None),
        ("optimizer_4.bak.pt", None),
        ("model_4.pt", None),
        ("optional_4.pt", None),
    ],
)
def test_what_holds_the_state_of_a_step_is_known_by_its_name(name: str, step: int | None) -> None:
    assert state_step(name) == step
