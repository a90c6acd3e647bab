"""What libraries print when a checkpoint is damaged, as `tests/damage_checkpoints.py` recorded it.

And what they print where it is whole, but does not fit, may not be loaded or is not there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from prefect_ft.decide.classify import LogScanner, Resumption, judge

RECORDED = Path(__file__).with_name("damaged.jsonl.zst")
ROWS = [json.loads(line) for line in zstandard.decompress(RECORDED.read_bytes()).splitlines()]
DAMAGED = [row for row in ROWS if row["damage"] not in ("none", "missing")]
WHOLE_ROWS = [row for row in ROWS if row["damage"] == "none"]
GONE = [row for row in ROWS if row["damage"] == "missing"]

WHOLE = {
    "dcp-size": "checkpoint",  # as DCP says it, a part may be missing
    "eqx-shape": "user_code",
    "flax-keys": "user_code",
    "hf-size": "user_code",
    "hf-trainer-size": "user_code",
    "lightning-optimizer": "user_code",
    "lightning-size": "user_code",
    "orbax-keys": "user_code",
    "orbax-shape": "user_code",
    "sample-npy": "data",
    "sample-torch": "data",
    "sample-torch-worker": "data",
    "torch-class-gone": "user_code",
    "torch-cuda": "config",
    "torch-disallowed": "user_code",
    "torch-disallowed-build": "user_code",
    "torch-keys": "user_code",
    "torch-missing": "config",
    "torch-optimizer": "user_code",
    "torch-plain-pickle": "checkpoint",  # of another format
    "torch-protocol-5": "checkpoint",
    "torch-size": "user_code",
    "torch-user-key": "user_code",
    "torch-user-setstate": "user_code",
}
"""What comes of a checkpoint that is whole; of the samples, what comes of a data loader that meets half a file."""

GONE_TOO = {
    "hf-pretrained-config.json-missing": "user_code",  # a default one is taken, which the weights do not fit
    "tf-keras-m.keras-missing": "checkpoint",  # says the same of a damaged one, and it was there
}
"""Files of which it is not said that they are missing."""

UNTOLD = {"json": "data", "parquet": "data"}
"""Files of any kind: the log alone does not tell that it is a checkpoint."""


def name(row: dict[str, Any]) -> str:
    return f"{row['library']}-{row['file'].rpartition('/')[2]}-{row['damage']}"


def resumption(row: dict[str, Any], *, is_loading: bool) -> Resumption:
    """What a supervisor knows of a rank that was given this row's checkpoint."""
    file = row["file"].removeprefix("out/") or "a.pt"
    return Resumption(f"/ckpts/{file.partition('/')[0]}", is_loading)


def classified(row: dict[str, Any], resumption: Resumption | None = None) -> str:
    scanner = LogScanner("rank0")
    scanner.feed_lines(row["log"])
    findings = replace(scanner.findings(), resumption=resumption)
    return judge([findings], exit_code=row["exit_code"]).failure_class


@pytest.mark.parametrize("row", DAMAGED, ids=name)
def test_a_log_tells_of_a_damaged_checkpoint(row: dict[str, Any]) -> None:
    expected = "config" if name(row) == "tf-keras-m.keras-half" else UNTOLD.get(row["library"], "checkpoint")
    assert classified(row) == expected


@pytest.mark.parametrize("is_loading", [True, False], ids=["loading", "before-its-first-step"])
@pytest.mark.parametrize("row", DAMAGED, ids=name)
def test_a_rank_that_was_given_it_could_not_read_it(row: dict[str, Any], is_loading: bool) -> None:
    expected = "data" if row["library"] == "parquet" else "checkpoint"
    assert classified(row, resumption(row, is_loading=is_loading)) == expected


@pytest.mark.parametrize("row", WHOLE_ROWS, ids=name)
def test_another_checkpoint_would_not_help(row: dict[str, Any]) -> None:
    expected = WHOLE[row["library"]]
    assert classified(row) == expected
    assert classified(row, resumption(row, is_loading=True)) == expected


@pytest.mark.parametrize("row", GONE, ids=name)
def test_a_file_that_is_not_there(row: dict[str, Any]) -> None:
    """A part of the checkpoint that the rank was given; the whole of it is a matter of the configuration."""
    told = [classified(row, resumption(row, is_loading=is_loading)) for is_loading in (True, False)]
    expected = GONE_TOO.get(name(row), "checkpoint" if "/" in row["file"] else "config")
    assert classified(row) in ("config", expected)
    assert told == [expected] * 2


def test_every_whole_checkpoint_is_in_the_table() -> None:
    assert sorted(row["library"] for row in WHOLE_ROWS) == sorted(WHOLE)


def failed(error: str) -> str:
    """Return a traceback of a script's own lines that ends with an error."""
    return (
        f'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    main()\n{error}\n'
    )


LACKS_OPTIMIZER = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
PADDLES = "ValueError: The path ({}) to load model not exists."


@pytest.mark.parametrize(
    ("given", "error", "is_damage"),
    [
        ("ckpts/model_4.pt", LACKS_OPTIMIZER.format("ckpts/optimizer_4.pt"), True),
        ("ckpts/model_4.pt", LACKS_OPTIMIZER.format("./optimizer_4.pt"), True),
        ("ckpts/model_000040.pt", LACKS_OPTIMIZER.format("ckpts/optim_000040_rank0.pt"), True),
        ("ckpts/model_4.pt", LACKS_OPTIMIZER.format("ckpts/optim_rank4.pt"), False),
        ("ckpts/epoch_5.pdparams", PADDLES.format("/job/ckpts/epoch_5.pdopt"), True),
        ("ckpts/model_4.pt", LACKS_OPTIMIZER.format("ckpts/optimizer_5.pt"), False),
        ("ckpts/model_4.pt", LACKS_OPTIMIZER.format("data/shard_4.bin"), False),
        ("ckpts/model_4.pt", LACKS_OPTIMIZER.format("ckpts/model_4.pt"), False),
        ("ckpts/last.pt", LACKS_OPTIMIZER.format("ckpts/vocab.json"), False),
        ("ckpts/step-4", LACKS_OPTIMIZER.format("ckpts/tokenizer-4.json"), False),
        ("ckpts/epoch_1.pt", LACKS_OPTIMIZER.format("exp1.yaml"), False),
        ("ckpts/epoch_1.pt", LACKS_OPTIMIZER.format("ckpts/samples_1.png"), False),
        ("ckpts/epoch_1.pt", "RuntimeError: no gradient for model.layers.1.weight", False),
        ("ckpts/epoch_1.pt", "ValueError: layer1.params.weight has no group", False),
        ("ckpts/epoch_0.pt", "ValueError: optimizer got no encoder.block.0.bias", False),
    ],
)
def test_a_file_of_the_same_step_that_is_missing_beside_it(given: str, error: str, is_damage: bool) -> None:
    """By the names of torch's and Paddle's examples; a directory has its files inside."""
    scanner = LogScanner("rank0")
    scanner.feed(failed(error).encode())
    findings = replace(scanner.findings(), resumption=Resumption(f"/job/{given}", is_loading=False))
    told = judge([findings], exit_code=1).failure_class
    assert (told == "checkpoint") is is_damage
