"""Jobs of one rank that fail and finish at once, on a real Prefect server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import nobody_left

from prefect_ft.config import JobConfig

__all__ = ["nobody_left"]

PREAMBLE = 'import os; restarts = int(os.environ["PREFECT_FT_RESTART_COUNT"])\n'


@pytest.fixture
def job(tmp_path: Path, prefect_server: None) -> Callable[..., JobConfig]:
    """Return a job with a phase for each piece of code, which knows how often it has been restarted."""

    def make(*code: str, **fields: Any) -> JobConfig:
        phases = [
            {
                "name": f"phase-{number}",
                "command": [sys.executable, "-S", "-c", PREAMBLE + each],
                "checkpoints": {"path": "ck"},
            }
            for number, each in enumerate(code)
        ]
        document = {
            "name": "test",
            "model_dir": "model",
            "autorestart": {"max_num_restarts": 3},
            "stop_grace_s": 0,
            "phases": phases,
            **fields,
        }
        return JobConfig.model_validate(document).at(tmp_path)

    return make
