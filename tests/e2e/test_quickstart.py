"""flows/quickstart.yaml as it is: three faults, and the result of a run in which nothing failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_ft import JobConfig, train_flow

FLOWS = Path(__file__).parents[2] / "flows"


def run(directory: Path, *, faults: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the quickstart below `directory`, faster than it is for people; return its result and its summaries."""
    text = (FLOWS / "quickstart.yaml").read_text().replace("../runs/quickstart", str(directory))
    document = yaml.safe_load(text.replace("--pace=0.01", "--pace=0"))
    for phase in document["phases"]:
        phase["command"] = [word for word in phase["command"] if faults or not word.startswith("--fail")]
    summaries = train_flow(JobConfig.model_validate(document).at(FLOWS))
    return json.loads((directory / "result.json").read_text()), summaries


@pytest.mark.usefixtures("prefect_server")
def test_the_disturbed_run_ends_with_the_weights_of_the_undisturbed_one(tmp_path: Path) -> None:
    undisturbed, _ = run(tmp_path / "undisturbed", faults=False)
    disturbed, (pretrain, finetune) = run(tmp_path / "disturbed", faults=True)
    assert disturbed == undisturbed
    assert [attempt["rule"] for attempt in pretrain["attempts"]] == ["confirm-once", "transient", "completed"]
    assert [attempt["resume_step"] for attempt in pretrain["attempts"]] == [None, 100, 200]
    assert [attempt["resume_step"] for attempt in finetune["attempts"]] == [None, 50]
