"""Paths that no file can have, or that would harm what lies there, are refused with file, line and field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.config import load_job, validate
from prefect_ft.config.source import Document
from prefect_ft.errors import ConfigError

JOB = """\
name: j
model_dir: m
journal_dir: jo
quarantine: q.jsonl
cwd: .
faults: {file: f}
signatures: [s.yaml]
infrastructure: {type: docker, image: i, volumes: [./v:/v]}
phases:
  - name: one
    command: [python, t.py]
    cwd: .
    checkpoints: {path: ck}
"""
PATHS = {
    "model_dir": ("model_dir: m", 'model_dir: "{}"'),
    "journal_dir": ("journal_dir: jo", 'journal_dir: "{}"'),
    "quarantine": ("quarantine: q.jsonl", 'quarantine: "{}"'),
    "cwd": ("cwd: .\nfaults", 'cwd: "{}"\nfaults'),
    "faults.file": ("faults: {file: f}", 'faults: {{file: "{}"}}'),
    "signatures[0]": ("signatures: [s.yaml]", 'signatures: ["{}"]'),
    "infrastructure.volumes[0]": ("[./v:/v]", '["{}:/v"]'),
    "phases[0].cwd": ("    cwd: .", '    cwd: "{}"'),
    "phases[0].checkpoints.path": ("{path: ck}", '{{path: "{}"}}'),
}
"""Every field that is a path of this machine, and how one is written into the job."""


def job_with(**paths: str) -> str:
    text = JOB
    for field, path in paths.items():
        old, new = PATHS[field]
        assert text.count(old) == 1
        text = text.replace(old, new.format(path))
    return text


def error_of(folder: Path, text: str, **options: Any) -> str:
    (folder / "s.yaml").touch()
    (folder / "job.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_job(folder / "job.yaml", **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).replace(f"{folder}/", "")


def test_the_job_that_is_spoiled_below_is_good(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("[]")
    (tmp_path / "job.yaml").write_text(JOB)
    assert load_job(tmp_path / "job.yaml").faults.file == str(tmp_path / "f")


@pytest.mark.parametrize("field", PATHS)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param(
            "~nosuchuser/x",
            "there is no user 'nosuchuser' here; write the path itself, for a directory of that name: ./~nosuchuser/x",
            id="nobodys-home",
        ),
        pytest.param("/".join(["a" * 200] * 25), "must be at most 4095 bytes long, got 5024", id="too-long"),
        pytest.param("x/" + "é" * 128, "each name in it must be at most 255 bytes long, got 256", id="a-name"),
        pytest.param("a\\0b", "must not contain a NUL character; take it out", id="nul"),
    ],
)  # fmt: skip
def test_a_path_that_no_file_can_have(tmp_path: Path, field: str, path: str, said: str) -> None:
    line = 1 + next(
        number for number, text in enumerate(job_with(**{field: "HERE"}).splitlines()) if "HERE" in text
    )
    assert error_of(tmp_path, job_with(**{field: path})) == f"job.yaml:{line}: {field}: {said}"


def test_a_path_with_half_a_character_cannot_be_written_down() -> None:
    job = {"name": "j", "model_dir": "a\ud800", "phases": [{"name": "p", "command": ["c"]}]}
    with pytest.raises(ConfigError, match="model_dir: must not contain half a surrogate pair; take it out"):
        validate(Document(job, {}))


def test_a_home_that_is_somebodys_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.yaml").write_text(
        JOB.replace("[s.yaml]", "[]").replace("model_dir: m", "model_dir: ~/m")
    )
    assert load_job(tmp_path / "job.yaml").model_dir == str(tmp_path / "m")
    assert load_job(tmp_path / "job.yaml", model_dir="~/n").model_dir == str(tmp_path / "n")


def test_a_directory_on_the_command_line_in_nobodys_home(tmp_path: Path) -> None:
    said = error_of(tmp_path, JOB, model_dir="~nosuchuser/x")
    assert said.startswith("--model-dir: model_dir: there is no user 'nosuchuser' here")


# -- the run's own directories, and those of checkpoints ------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        pytest.param(
            {"phases[0].checkpoints.path": "m/../m"},
            "job.yaml:13: phases[0].checkpoints.path: is model_dir too, where runs leave files of their own; "
            "write a directory for the checkpoints alone, like m/checkpoints",
            id="model-dir",
        ),
        pytest.param(
            {"phases[0].checkpoints.path": "linked"},
            "job.yaml:13: phases[0].checkpoints.path: is model_dir too, where runs leave files of their own; "
            "write a directory for the checkpoints alone, like m/checkpoints",
            id="a-link-to-model-dir",
        ),
        pytest.param(
            {"phases[0].checkpoints.path": 'm", pattern: "{step}_*'},
            "job.yaml:13: phases[0].checkpoints.path: is model_dir too, where runs leave files of their own; "
            "write a directory for the checkpoints alone, like m/checkpoints",
            id="model-dir-by-names-that-runs-have-too",
        ),
        pytest.param(
            {"phases[0].checkpoints.path": "jo"},
            "job.yaml:13: phases[0].checkpoints.path: is journal_dir too, where runs leave files of their own; "
            "write a directory for the checkpoints alone, like m/checkpoints",
            id="journal-dir",
        ),
        pytest.param(
            {"phases[0].checkpoints.path": "m/.prefect-ft/ck"},
            "job.yaml:13: phases[0].checkpoints.path: is inside what a run leaves in model_dir; "
            "write a directory for the checkpoints alone, like m/checkpoints",
            id="in-a-runs-own",
        ),
        pytest.param(
            {"phases[0].checkpoints.path": "m/20260131_120000_restartable-2"},
            "job.yaml:13: phases[0].checkpoints.path: is inside what a run leaves in model_dir; "
            "write a directory for the checkpoints alone, like m/checkpoints",
            id="a-phases-own",
        ),
        pytest.param(
            {"model_dir": "ck/run-step-100"},
            "job.yaml:2: model_dir: is inside the checkpoints of phase 'one', where its name would make it the "
            "checkpoint of step 100; write a directory beside them",
            id="a-model-dir-that-reads-like-a-checkpoint",
        ),
        pytest.param(
            {"model_dir": "ck/100/runs"},
            "job.yaml:2: model_dir: is inside the checkpoints of phase 'one', where its name would make it the "
            "checkpoint of step 100; write a directory beside them",
            id="a-model-dir-inside-such",
        ),
    ],
)  # fmt: skip
def test_checkpoints_and_what_runs_leave_are_kept_apart(
    tmp_path: Path, paths: dict[str, str], said: str
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "linked").symlink_to("m")
    text = job_with(**paths).replace("[s.yaml]", "[]")
    assert error_of(tmp_path, text) == said


def test_a_model_dir_of_the_command_line_is_held_against_the_checkpoints_too(tmp_path: Path) -> None:
    said = error_of(tmp_path, JOB.replace("[s.yaml]", "[]"), model_dir=tmp_path / "ck")
    assert said.startswith("job.yaml:13: phases[0].checkpoints.path: is model_dir too")


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param({"phases[0].checkpoints.path": "m/checkpoints"}, id="checkpoints-in-model-dir"),
        pytest.param({"model_dir": "ck/runs"}, id="model-dir-in-checkpoints"),
        pytest.param({"phases[0].checkpoints.path": "/v/m"}, id="in-a-volume-of-containers"),
        pytest.param({"phases[0].checkpoints.path": "s3://m"}, id="a-url"),
        pytest.param(
            {"phases[0].checkpoints.path": 'm", pattern: "checkpoint_{step}*.mdl'},
            id="in-model-dir-by-names-of-their-own",
        ),
    ],
)
def test_what_may_lie_in_each_other(tmp_path: Path, paths: dict[str, str]) -> None:
    (tmp_path / "job.yaml").write_text(job_with(**paths).replace("[s.yaml]", "[]"))
    load_job(tmp_path / "job.yaml")


# -- files that are to be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(None, "s.yaml cannot be read: No such file or directory", id="none"),
        pytest.param("directory", "s.yaml cannot be read: Is a directory", id="a-directory"),
        pytest.param(b"\xff", "s.yaml cannot be read: it is not UTF-8 text", id="no-text"),
        pytest.param(b"#" * ((1 << 20) + 1), "s.yaml cannot be read: it is larger than 1 MiB", id="too-large"),
    ],
)  # fmt: skip
def test_a_file_of_signatures_that_cannot_be_read(tmp_path: Path, made: Any, said: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    if made == "directory":
        (tmp_path / "s.yaml").mkdir()
    elif made is not None:
        (tmp_path / "s.yaml").write_bytes(made)
    with pytest.raises(ConfigError) as caught:
        load_job(tmp_path / "job.yaml")
    said = f"job.yaml:7: signatures[0]: {said}; write the path of a YAML file of signatures"
    assert str(caught.value).replace(f"{tmp_path}{os.sep}", "") == said


# -- words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(
            "[python, t.py]",
            f"[python, {'a' * 131_072}]",
            "job.yaml:11: phases[0].command[1]: must be at most 131071 bytes long, got 131072; "
            "hand it over in a file",
            id="a-word",
        ),
        pytest.param(
            "cwd: .\nfaults",
            f"env: {{A: {'a' * 131_070}}}\nfaults",
            "job.yaml:5: env.A: must be at most 131069 bytes long, got 131070; hand it over in a file",
            id="a-variable",
        ),
        pytest.param(
            "[python, t.py]",
            "['', t.py]",
            'job.yaml:11: phases[0].command: must begin with a program; write its words, like ["python", "train.py"]',
            id="no-program",
        ),
        pytest.param(
            "[python, t.py]",
            "[' ', t.py]",
            'job.yaml:11: phases[0].command: must begin with a program; write its words, like ["python", "train.py"]',
            id="a-program-of-blanks",
        ),
    ],
)  # fmt: skip
def test_words_that_no_program_can_be_given(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert error_of(tmp_path, JOB.replace(old, new, 1)) == said
