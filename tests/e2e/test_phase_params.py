"""A phase's params reach every rank of every attempt as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from prefect_ft import train_flow
from prefect_ft.config import JobConfig

Make = Callable[..., JobConfig]
Seen = Callable[..., list[dict[str, str]]]
PARAMS: dict[str, Any] = {
    "fit": {"lr": 1e-05, "betas": [0.9, 0.95], "name": "010"},
    "init": None,
    "on": "yes",
}


def test_ranks_are_told_where_it_is_whatever_the_job_s_environment_says(job: Make, seen: Seen) -> None:
    config = job(
        "if restarts == 0: die()", phase={"params": PARAMS}, env={"PREFECT_FT_PARAMS": "somewhere else"}
    )
    train_flow(config)
    (directory,) = Path(config.model_dir).glob("*_restartable")
    paths = [env["PREFECT_FT_PARAMS"] for env in seen()]
    assert paths == [str(directory / "phase-params.yaml")] * 4
    assert yaml.safe_load(Path(paths[0]).read_text()) == PARAMS


def test_a_phase_without_any_has_no_file(job: Make, seen: Seen) -> None:
    config = job("save(5)")
    train_flow(config)
    assert "PREFECT_FT_PARAMS" not in seen()[0]
    assert list(Path(config.model_dir).glob("*/phase-params.yaml")) == []
