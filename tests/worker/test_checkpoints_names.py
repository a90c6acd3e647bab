"""Which names count as checkpoints, and of which step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.worker.checkpoints.names import PatternNames, UsualNames, is_temporary_inside


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-100.json", 100),
        ("checkpoint-100", 100),
        ("checkpoint_1_200.pt", 200),
        ("checkpoint_12_12.pt", 12),
        ("checkpoint_200_1.pt", 200),
        ("checkpoint12.pt", 12),
        ("ckpt_100.pt", 100),
        ("global_step100", 100),
        ("iter_0000100", 100),
        ("epoch=1-step=100.ckpt", 100),
        ("epoch=1-step=100-v1.ckpt", 100),
        ("epoch=3-step=100-eval_loss=0.5.ckpt", 100),
        ("step=100-epoch=7.ckpt", 100),
        ("epoch-3.pt", 3),
        ("epoch_1.5.pt", 1),
        ("epoch=0-step=1000.0.ckpt", 1000),
        ("ep1-ba200", 200),
        ("model.ckpt-100.index", 100),
        ("model_100.safetensors", 100),
        ("lora-rank16-step-100.safetensors", 100),
        ("STEP_5.PT", 5),
        ("0000100", 100),
        ("100.npz", 100),
        ("step-0.json", 0),
        ("checkpoint_100_best.pt", 100),
        ("sample-mnist-epoch=02-val_loss=0.32.ckpt", 2),
        ("eval-run-step=100.ckpt", 100),
        ("2026-11-29_step-100.pt", 100),
        ("run_2026-11-29_07-29-07_epoch=3.ckpt", 3),
        ("ckpt_20261129_070512_step_7.pt", 7),
        ("checkpoint_2026-11-29_12.pt", 12),
        ("20261129070512.pt", 20261129070512),
        ("rl_model_20261129_steps.zip", 20261129),
    ],
)
def test_usual_names_speak_of_a_step(name: str, step: int) -> None:
    assert UsualNames().read(name) == step


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("checkpoint_2026-11-29_07-29-07.604357", 20261129072907),
        ("CKPT+2026-11-29+07-51-19+00", 20261129075119),
        ("ckpt_20261129_070512.pt", 20261129070512),
        ("model-20261129-0705.pth", 20261129070500),
        ("2026-11-29T07:05:12Z-weights.npz", 20261129070512),
        ("model_20261129_070512_acc0.91.pt", 20261129070512),
    ],
)
def test_a_date_with_a_time_orders_checkpoints(name: str, date: int) -> None:
    assert (UsualNames().read(name), UsualNames().is_dated(name)) == (date, True)


@pytest.mark.parametrize(
    "name",
    [
        "step-100.pt.tmp",
        "tmp-checkpoint-100",
        "tmpab12cd_step-100.pt",
        "100.orbax-checkpoint-tmp-1700000000",
        "100.orbax-checkpoint-tmp",
        "step-100.partial",
        "step-100.pt.part",
        "step-100.safetensors.incomplete",
        "checkpoint-100-unfinished",
        "ckpt-100_temp",
        "step-100.pt.tempstate17",
        "step-100.pt~",
        "#step-100.pt#",
        "_tmp.step-100",
        "step-100\n.tmp",
    ],
)
def test_temporary_names_never_count(name: str) -> None:
    assert UsualNames().read(name) == "its name is a temporary one"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("step-100.pt.bak", "sets it aside"),
        ("checkpoint-100.corrupt", "sets it aside"),
        ("ckpt_100_rank0.pt", "one part"),
        ("ep0-ba100-rank0.pt", "one part"),
        ("rank_0-step-100.pt", "one part"),
        ("model-00001-of-00003.safetensors", "one part"),
        ("metrics-step-100.json", "goes with a checkpoint"),
        ("step_100_optimizer.pt", "goes with a checkpoint"),
        ("checkpoint_2026-11-29", "has a date, but no step"),
        ("checkpoint_2026-11-29_07-29-07_optimizer.pt", "goes with a checkpoint"),
    ],
)
def test_names_that_are_no_whole_checkpoint_are_refused_with_a_reason(name: str, why: str) -> None:
    reading = UsualNames().read(name)
    assert isinstance(reading, str)
    assert why in reading


@pytest.mark.parametrize(
    "name",
    [
        ".step-100.pt",
        ".nfs000100",
        "last.ckpt",
        "latest",
        "best.pt",
        "config.json",
        "model-7b.safetensors",
        "step-100k.pt",
        "footstep-100.pt",
        "step-100.log",
        "samples_step-100.png",
        "step-100.pt.sha256",
        "step-100.manifest.json",
        "step-100.onnx",
        "epoch_3.gguf",
        "step-" + "9" * 19,
        "model_0.66.json",
        "ckpt_0.5.pt",
        "2026-11-29",
        "checkpoint_2026-11-29.pt",
        "2026-11-29_07-29-07",
        "final_model_2026-11-29_07-29-07.pt",
        "step-१००.pt",
    ],
)
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert UsualNames().read(name) is None


@pytest.mark.parametrize(
    ("pattern", "name", "reading"),
    [
        pytest.param("weights_{step}.bin", "weights_7.bin", 7, id="plain"),
        pytest.param("weights_{step}.bin", "weights_7.bin.tmp", None, id="the whole name"),
        pytest.param("weights_{step}.bin", "weights_7xbin", None, id="a dot is a dot"),
        pytest.param("run-*-{step}", "run-a.b-12", 12, id="star"),
        pytest.param("run-*-{step}", "run-tmp-12", "its name is a temporary one", id="star, temporary"),
        pytest.param("*{step}.pt", ".x7.pt", "its name is a temporary one", id="star, hidden"),
        pytest.param("part-{step}.bin", "part-7.bin", 7, id="temporary word of the user's own"),
        pytest.param("optimizer_{step}_rank0.pt", "optimizer_7_rank0.pt", 7, id="what auto refuses"),
        pytest.param("step-{step}/model.pt", "step-7/model.pt", 7, id="one directory level"),
        pytest.param("step-{step}/model.pt", "step-7", None, id="not the directory itself"),
        pytest.param("*/{step}.pt", "tmp_a/7.pt", "its name is a temporary one", id="temporary directory"),
    ],
)
def test_a_pattern_reads_the_users_names(pattern: str, name: str, reading: object) -> None:
    assert PatternNames(pattern).read(name) == reading


@pytest.mark.parametrize(
    "pattern", ["{step}-{step}", "a/b/{step}", "../{step}", "/{step}", "{step}/", "./{step}"]
)
def test_a_pattern_that_can_match_nothing_is_an_error(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        PatternNames(pattern)


def test_a_pattern_enters_only_the_directories_it_speaks_of() -> None:
    names = PatternNames("step-{step}/model.pt")
    assert [names.enters(name) for name in ("step-7", "step-x", "step-7.tmp")] == [True, False, False]
    assert not PatternNames("{step}.pt").enters("7.pt")


@pytest.mark.parametrize(
    ("base", "temporary"),
    [
        ("model.pt.tmp", True),
        (".metadata.tmp", True),
        ("tmpx1", True),
        ("model.safetensors.incomplete", True),
        ("model.pt~", True),
        (".metadata", False),
        ("part-00000.bin", False),
        ("model.pt", False),
        ("temperature.json", False),
    ],
)
def test_inside_a_tree_hidden_names_and_parts_are_usual(base: str, temporary: bool) -> None:
    assert is_temporary_inside(base) is temporary


@given(st.text(max_size=40), st.integers(0, 10**18 - 1))
def test_a_name_that_begins_hidden_never_counts(rest: str, step: int) -> None:
    assert UsualNames().read(f".{rest}step-{step}.pt") is None


@given(st.text(max_size=60))
def test_any_text_can_be_read(name: str) -> None:
    assert isinstance(UsualNames().read(name), (int, str, type(None)))
