"""Steps that ranks print, as trainers of others print them; a count that is one of many places is none."""

from __future__ import annotations

import pytest

from prefect_ft.decide.step_lines import StepLines

MEGATRON = " iteration {:8}/  500000 | consumed samples: 2560 | elapsed time per iteration (ms): 812.1 | lm loss: 7.1"
NANOGPT = "iter {}: loss 4.2105, time 312.07ms, mfu 5.20%"
TORCHTITAN = (
    "[rank0]:2025-01-01 00:00:00,000 - root - INFO - step: {:2}  loss:  8.2271  memory: 10.31GiB(13.04%)"
)
DEEPSPEED = (
    "[2025-10-22 19:31:26,242] [INFO] [logging.py:107:log_dist] [Rank 0] step={}, skipped=0, lr=[1e-05]"
)
FAIRSEQ = "2023-01-01 | INFO | train_inner | {{'loss': '9.1', 'num_updates': '{}', 'lr': '1e-05'}}"
MODDED = "step:{}/1000000 train_loss:2.1323 train_time:1196819ms step_avg:78.74ms"
JAX = "Step {}: grad_norm=0.2181, loss=0.0112, param_norm=1382.5397"


def printed(
    form: str, *steps: int, start: int | None = None, pattern: str | None = None
) -> tuple[int | None, int | None]:
    lines = StepLines(pattern, start=start)
    for step in steps:
        lines.feed(f"loading\n{form.format(step)}\n")
    return lines.step, lines.every


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(MEGATRON, id="megatron"),
        pytest.param(NANOGPT, id="nanogpt"),
        pytest.param(TORCHTITAN, id="torchtitan"),
        pytest.param(DEEPSPEED, id="deepspeed"),
        pytest.param(FAIRSEQ, id="fairseq"),
        pytest.param(MODDED, id="modded-nanogpt"),
        pytest.param(JAX, id="jax"),
    ],
)
def test_steps_of_trainers_are_understood(form: str) -> None:
    assert printed(form, 100, 110, 120) == (120, 10)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("Epoch 3: step {}/391 loss 0.3", id="of-an-epoch"),
        pytest.param("eval step {}: loss 0.3", id="of-an-evaluation"),
        pytest.param("━━━ STEP {}: Build the dataset ━━━", id="of-a-plan"),
        pytest.param("slurmstepd: error: *** STEP 1083.{} ON n1 CANCELLED ***", id="of-slurm"),
        pytest.param("Saving checkpoint at step {} with loss 0.3", id="a-save"),
        pytest.param("warmup_step:{}/50 loss:3", id="of-a-warm-up"),
        pytest.param("steps_per_print ............... {} loss", id="a-setting"),
        pytest.param("100 steps, {} tokens", id="a-number-before"),
    ],
)
def test_other_counts_are_none(form: str) -> None:
    assert printed(form, 1, 2, 3) == (None, None)


@pytest.mark.parametrize(
    ("steps", "start", "expected"),
    [
        pytest.param((5,), None, (5, None), id="one"),
        pytest.param((5, 5, 6), None, (6, 1), id="told-by-two-lines"),
        pytest.param((389, 390, 1, 2), None, (None, None), id="falls-back"),
        pytest.param((389, 390, 1, 400, 401), None, (None, None), id="and-is-never-believed-again"),
        pytest.param((3, 4), 200, (None, None), id="behind-the-checkpoint"),
        pytest.param((200, 210), 200, (210, 10), id="from-the-checkpoint-on"),
    ],
)
def test_what_a_step_must_be(
    steps: tuple[int, ...], start: int | None, expected: tuple[int | None, int | None]
) -> None:
    assert printed(NANOGPT, *steps, start=start) == expected


def test_a_pattern_of_the_users_takes_the_place_of_what_is_known() -> None:
    assert printed("it#{} ok", 7, 8, pattern=r"^it#(\d+) ") == (8, 1)
    assert printed(NANOGPT, 7, 8, pattern=r"^it#(\d+) ") == (None, None)
    assert printed("it#{}x", 7, 8, pattern=r"^it#(\w+)") == (None, None)


def test_hostile_lines_take_linear_time() -> None:
    lines = StepLines()
    lines.feed(("step " * 100_000 + "loss\n") * 3)
    lines.feed("step" + " " * 1_000_000 + "1 loss")
    assert lines.step is None
