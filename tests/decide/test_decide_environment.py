"""What the next attempt is told about its own past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide import skip_eval_at, start_counts
from prefect_ft.model import Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=99, stop_on_repeat=0)
FULL = replace(POLICY, systems=("s0", "s1"), isolation_ttl_s=2 * 3600)
TRAIN_AND_EVAL = replace(POLICY, mode="train_and_eval")

CRASH = {"kind": "exit", "class": "crash"}
PREEMPTED = {"kind": "preempted"}
S1_LOST = {"kind": "system_lost", "system": "s1"}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(POLICY, [], ((1, 1), (1, 1)), id="the-first-attempt"),
        pytest.param(POLICY, [CRASH], ((1, 2), (1, 2)), id="in-place-starts-the-command-again"),
        pytest.param(POLICY, [PREEMPTED], ((2, 1), (2, 1)), id="a-rebuild-creates-all-anew"),
        pytest.param(POLICY, [PREEMPTED, CRASH], ((2, 2), (2, 2)), id="starts-are-counted-from-its-creation"),
        pytest.param(
            replace(POLICY, max_worker_replacements=1),
            [CRASH, S1_LOST],
            ((1, 3), (2, 1)),
            id="only-the-replaced-anew",
        ),
        pytest.param(POLICY, [CRASH, {"kind": "in_process"}], ((1, 2), (1, 2)), id="a-report-starts-nothing"),
        pytest.param(POLICY, [CRASH, {"kind": "completed"}], ((1, 2), (1, 2)), id="the-end-starts-nothing"),
        pytest.param(FULL, [S1_LOST], ((2, 1),), id="a-smaller-gang"),
        pytest.param(
            replace(FULL, isolated=("s1",)),
            [CRASH, CRASH],
            ((2, 1), (1, 1)),
            id="a-number-that-is-there-for-the-first-time",
        ),
        pytest.param(
            FULL, [S1_LOST, CRASH, CRASH], ((3, 1), (2, 1)), id="a-number-that-comes-back-goes-on-counting"
        ),
    ],
)
def test_start_counts(told, policy, lines, expected):
    assert start_counts(policy, told(policy, *lines)) == expected


FAILED_IN_VALIDATION = CRASH | {"stage": "validate", "stage_step": 100}


@pytest.mark.parametrize(
    ("policy", "lines", "expected"),
    [
        pytest.param(TRAIN_AND_EVAL, [], None, id="the-first-attempt"),
        pytest.param(TRAIN_AND_EVAL, [FAILED_IN_VALIDATION], 100, id="failed-in-validation"),
        pytest.param(TRAIN_AND_EVAL, [CRASH | {"stage": "validate"}], None, id="in-which-is-unknown"),
        pytest.param(
            TRAIN_AND_EVAL, [CRASH | {"stage": "train", "stage_step": 100}], None, id="failed-in-training"
        ),
        pytest.param(TRAIN_AND_EVAL, [FAILED_IN_VALIDATION, CRASH], None, id="only-the-next-attempt-skips"),
        pytest.param(
            TRAIN_AND_EVAL,
            [FAILED_IN_VALIDATION, {"kind": "in_place_failed"}],
            100,
            id="also-if-a-recovery-action-fails",
        ),
        pytest.param(replace(POLICY, mode="train"), [FAILED_IN_VALIDATION], None, id="not-in-train"),
        pytest.param(replace(POLICY, mode="eval"), [FAILED_IN_VALIDATION], None, id="not-in-eval"),
    ],
)
def test_skip_eval_at(told, policy, lines, expected):
    assert skip_eval_at(policy, told(policy, *lines)) == expected
