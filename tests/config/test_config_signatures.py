"""A job's own signatures: in the job file, or in files that it names; what is wrong in them has a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_ft.config import load_job, own_signatures, resolved, validate
from prefect_ft.config.source import Document
from prefect_ft.errors import ConfigError

JOB = """\
name: j
model_dir: m
phases: [{name: one, command: [python, t.py]}]
signatures:
"""
INLINE = """\
  - id: licence
    class: config
    pattern: 'licence server said no'
"""
FILE = """\
- id: quota
  class: storage
  recoverable: confirm
  pattern: 'group quota of \\S+ is used up'
  example: 'group quota of vision is used up'
"""


def load(folder: Path, signatures: str, file: str = FILE) -> tuple[str, ...]:
    """The ids of a job's own signatures."""
    (folder / "own.yaml").write_text(file)
    (folder / "job.yaml").write_text(JOB + signatures)
    return tuple(each.id for each in own_signatures(load_job(folder / "job.yaml").signatures))


@pytest.mark.parametrize(
    ("signatures", "ids"),
    [
        pytest.param("  []\n", (), id="none"),
        pytest.param(INLINE, ("licence",), id="inline"),
        pytest.param("  own.yaml\n", ("quota",), id="one-path"),
        pytest.param("  - own.yaml\n" + INLINE, ("quota", "licence"), id="both-in-their-order"),
    ],
)
def test_where_they_may_stand(tmp_path: Path, signatures: str, ids: tuple[str, ...]) -> None:
    assert load(tmp_path, signatures) == ids


def test_a_job_that_is_written_out_has_the_same(tmp_path: Path) -> None:
    load(tmp_path, "  - own.yaml\n" + INLINE)
    job = load_job(tmp_path / "job.yaml")
    assert validate(Document(resolved(job), {})).signatures == job.signatures


@pytest.mark.parametrize(
    ("signatures", "file", "error"),
    [
        pytest.param(
            INLINE.replace("config", "bad_luck"), FILE, "job.yaml:6: signatures[0].class: must be one of",
            id="class",
        ),
        pytest.param(
            INLINE.replace("'licence server said no'", "(oops"), FILE,
            "job.yaml:7: signatures[0].pattern: is not a pattern of RE2: missing ): (oops", id="pattern",
        ),
        pytest.param(
            INLINE + INLINE, FILE, "job.yaml:8: signatures[1].id: must be unique; 'licence' is also signatures[0]",
            id="the-same-id-twice",
        ),
        pytest.param(
            "  7\n", FILE, "job.yaml:4: signatures: must be a list of signatures and paths", id="a-number"
        ),
        pytest.param(
            "  - own.yaml\n", FILE.replace("storage", "x"), "own.yaml:2: [0].class: must be one of", id="in-a-file"
        ),
        pytest.param(
            "  - own.yaml\n", FILE + FILE, "own.yaml:6: [1].id: must be unique; 'quota' is already above",
            id="twice-in-a-file",
        ),
        pytest.param(
            "  - own.yaml\n" + INLINE.replace("licence\n", "quota\n", 1), FILE,
            "job.yaml:6: signatures[1].id: must be unique; 'quota' is also in /", id="in-a-file-and-inline",
        ),
        pytest.param("  - own.yaml\n", "a: 1\n", "own.yaml:1: must hold a list of entries", id="no-list"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_a_place(tmp_path: Path, signatures: str, file: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, signatures, file)
    assert error in str(raised.value)
