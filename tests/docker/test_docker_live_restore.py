"""An engine with live-restore restarts under a run: nobody notices."""

from __future__ import annotations

from pathlib import Path

import pytest
from deaths import journals, of_type
from engine import IMAGE, engine, why_not

from prefect_ft import JobConfig, train_flow
from prefect_ft.observe import AttemptStarted, Fact, observed_by
from tests.conftest import need

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os, time
attempt = int(os.environ["PREFECT_FT_ATTEMPT"])
"""


def job(code: str, engine: str, directory: Path) -> JobConfig:
    document = {
        "name": "restored",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": {
            "type": "docker", "image": IMAGE, "engine": engine, "volumes": [f"{directory}:{directory}"],
        },
        "autorestart": {"max_num_restarts": 3},
        "phases": [
            {"name": "train", "mode": "eval", "command": ["python", "-S", "-u", "-c", SCRIPT + code]}
        ],
    }  # fmt: skip
    return JobConfig.model_validate(document).at(directory)


@pytest.mark.long
def test_an_engine_with_live_restore_restarts_and_nobody_notices(
    prefect_server: None, tmp_path: Path
) -> None:
    """Ranks train on without it, are restarted in place without it, and rebuilt by the engine that came back."""
    need("docker", why_not() is None, why_not() or "")
    code = f"""
import pathlib
here = pathlib.Path({str(tmp_path)!r})
if attempt == 1:
    while not (here / "killed").exists(): time.sleep(0.01)
    raise ConnectionError("reset")
if attempt == 2:
    (here / "again").touch()
    while not (here / "back").exists(): time.sleep(0.01)
    raise ConnectionError("reset again")
"""
    with engine("--live-restore") as mortal:
        mortal.make_image()

        def die_and_come_back(fact: Fact) -> None:
            if isinstance(fact, AttemptStarted) and fact.attempt == 1:
                mortal.end()
                (tmp_path / "killed").touch()
            if isinstance(fact, AttemptStarted) and fact.attempt == 2:
                mortal.start("--live-restore")
                (tmp_path / "back").touch()

        with observed_by(die_and_come_back):
            train_flow(job(code, mortal.url, tmp_path))
    lines = journals(tmp_path / "model")["train"]
    actions = [line["action"] for line in of_type(lines, "decision")]
    assert actions == ["restart_in_place", "rebuild", "complete"]
    assert (tmp_path / "again").exists()
