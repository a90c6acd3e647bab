"""What the documentation says of journals, summaries and environments, against a run that has just ended."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pages import named, section, subsections, tables
from watched import SLEEPS, write_job

from prefect_ft.config import JobConfig

SCRIPT = """
import json, os, zipfile
from prefect_ft import report_fault
from prefect_ft.heartbeat import beat
rank, attempt = os.environ["RANK"], os.environ["PREFECT_FT_ATTEMPT"]
with open(f"env-{attempt}-{rank}.json", "w") as file:
    json.dump(dict(os.environ), file)
if rank == "1":
    raise SystemExit
with open("ck/step-1.npz", "wb") as file:
    file.write(b"PK")
with zipfile.ZipFile("ck/.tmp", "w") as file:
    file.writestr("weights", "x")
os.replace("ck/.tmp", "ck/step-5.npz")
beat(step=5, stage="validate")
if attempt == "1":
    report_fault(0, "E1", "warning")
    raise ValueError("shapes differ")
"""

ENVELOPE = {"type", "t", "utc", "sum"}


@dataclass(frozen=True)
class Ended:
    """A run of two ranks: the first attempt fails in a validation, the second completes."""

    lines: list[dict[str, Any]]
    summary: dict[str, Any]
    environments: dict[str, set[str]]
    """The names that the ranks of each attempt found and the flow's process had not."""


@pytest.fixture(scope="module")
def ended(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    directory = tmp_path_factory.mktemp("run")
    (directory / "ck").mkdir()
    (directory / "ck" / "step-2.json").write_text("{}")  # of an earlier run
    job = {
        "name": "test",
        "model_dir": "model",
        "autorestart": {"max_num_restarts": 3},
        "phases": [
            {
                "name": "train",
                "mode": "train_and_eval",
                "command": [sys.executable, "-c", SCRIPT],
                "params": {"rate": 0.1},
                "nproc_per_worker": 2,
                "checkpoints": {"path": "ck"},
                "rendezvous": "agent",
            }
        ],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_FT_RUNTIME_DIR", str(tmp_path_factory.mktemp("rt")))
        patch.setenv("XDG_STATE_HOME", str(directory))
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.delenv("TMPDIR", raising=False)
        yield _run(JobConfig.model_validate(job).at(directory), directory)


def _run(job: JobConfig, directory: Path) -> Ended:
    from prefect_ft import train_flow

    (summary,) = train_flow(job)
    journal = next(directory.glob("model/*_restartable/journal.jsonl"))
    environments = {
        attempt: set(json.loads((directory / f"env-{attempt}-0.json").read_text()))
        - set(os.environ)
        - {"LC_CTYPE"}
        for attempt in ("1", "2")
    }
    return Ended([json.loads(line) for line in journal.read_text().splitlines()], summary, environments)


def test_the_journal_has_the_types_of_lines_that_are_explained(ended: Ended) -> None:
    documented = [heading.strip("`") for heading in subsections("journal.md", "The journal")]
    others = {"comeback", "hang", "hang-over", "straggler", "pace", "warm"}  # not in this run
    others |= {"proposed", "answer"}  # nobody was asked
    others |= {"odd-value"}  # no rank reports values
    others |= {"repaired"}  # nothing was damaged
    others |= {"tenure", "hand-over"}  # the job names its systems
    others |= {"warning", "earlier-saves"}  # nothing was to be warned of, and nothing was there before
    assert set(documented) == {line["type"] for line in ended.lines} | others


def test_a_comeback_and_the_runs_own_directory_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from prefect_ft.cli import main

    site = write_job(tmp_path, SLEEPS)
    try:
        site.watch()
        site.orphan()
        assert main(["cancel", str(site.model_dir)]) == 0
    finally:
        site.close()
    journal = next(site.model_dir.glob("*_restartable/journal.jsonl"))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    documented = set(named(subsections("journal.md", "The journal")["`comeback`"])) | ENVELOPE
    assert [set(line) for line in lines if line["type"] == "comeback"] == [documented]
    rows = {
        row[0].strip("`"): set(re.findall("`(.+?)`", row[1]))
        for row in tables(section("journal.md", "Files"))[0]
    }
    below = "MODEL_DIR/.prefect-ft/RUN_ID/"
    assert {path.name for path in site.run.root.iterdir()} == {
        path.removeprefix(below) for path in rows if path.startswith(below)
    } - {"cancel.json", "answer.json", "authority.pem"}  # the one was carried out, the others never written
    for name in ("run.json", "lease.json"):
        assert set(json.loads((site.run.root / name).read_text())) <= rows[below + name]


@pytest.mark.parametrize("kind", ["phase", "earlier-saves", "attempt", "checkpoint", "decision", "end"])
def test_a_line_has_the_fields_that_are_explained(kind: str, ended: Ended) -> None:
    documented = set(named(subsections("journal.md", "The journal")[f"`{kind}`"])) | ENVELOPE
    assert [set(line) for line in ended.lines if line["type"] == kind and set(line) != documented] == []


def test_an_incident_has_no_field_that_is_not_explained(ended: Ended) -> None:
    documented = set(named(subsections("journal.md", "The journal")["`incident`"])) | ENVELOPE
    incidents = [line for line in ended.lines if line["type"] == "incident"]
    assert [line["kind"] for line in incidents] == ["device_fault", "exit", "completed"]
    further = [set(line) - documented for line in incidents]
    assert further == [{"device", "code", "severity"}, set(), set()]
    # The exit has them all, but what no exit has and what was not known.
    assert documented - set(incidents[1]) <= {
        "system", "signal", "recoverable", "baseline_step", "fences", "counted", "confidence",
        "reached", "reached_every", "sample", "advice",
    }  # fmt: skip


def test_the_summary_has_the_fields_that_are_explained(ended: Ended) -> None:
    whole, attempts, times = tables(section("journal.md", "summary.json"))
    assert set(named(whole)) == set(ended.summary)
    assert [set(named(attempts))] * 2 == [set(attempt) for attempt in ended.summary["attempts"]]
    assert {"total", *named(times)} == set(ended.summary["time_s"])


def test_ranks_get_the_variables_that_are_explained(ended: Ended) -> None:
    always, sometimes = (set(named(table)) for table in tables(section("script-contract.md", "Environment")))
    both = (always | sometimes) - set(os.environ)
    both -= {"PREFECT_FT_SKIP_STEPS"}  # nothing came back at its step
    both -= {"PREFECT_FT_SIGTERM_IS_NOTICE"}  # no scheduler
    assert ended.environments == {"1": both - {"PREFECT_FT_SKIP_EVAL_AT_STEP"}, "2": both}
