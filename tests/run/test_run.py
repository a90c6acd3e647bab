"""What a run keeps on disk beside its journals."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import yaml

from prefect_ft import formats
from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json
from prefect_ft.run import MAX_RUNTIME_PATH, made_runtime_directory, new_run, runtime_directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_has_an_identity_and_a_key_of_its_own(tmp_path: Path) -> None:
    runs = [new_run(tmp_path / "model", "my-job") for _ in range(2)]
    assert len({run.run_id for run in runs} | {run.key for run in runs}) == 4
    run = runs[0]
    assert (mode(run.root), mode(run.root / "key"), (run.root / "key").read_text()) == (0o700, 0o600, run.key)
    told = read_json(run.root / "run.json")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("started"))
    assert told == {
        "run": run.run_id,
        "job": "my-job",
        "status": "running",
        "phases": [],
        "place": run.place(),
        **formats.stamp(),
    }


def test_a_model_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"model_dir: .*file/model cannot be written: Not a directory"):
        new_run(tmp_path / "file" / "model", "j")


def test_phases_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    run = new_run(tmp_path, "j")
    directories = [run.add_phase(name, 0, {"name": name}) for name in ("a", "b", "c")]
    assert len(set(directories)) == 3
    assert all(re.fullmatch(r"\d{8}_\d{6}_restartable(-[12])?", path.name) for path in directories)
    assert [yaml.safe_load((path / "params.yaml").read_text()) for path in directories] == [
        {"name": name} for name in ("a", "b", "c")
    ]
    assert read_json(run.root / "run.json")["phases"] == [
        {"name": name, "index": 0, "directory": path.name}
        for name, path in zip("abc", directories, strict=True)
    ]


def test_the_run_time_directory_is_the_users_alone(runtime_dir: Path) -> None:
    directory = runtime_directory("r1")
    assert (directory, mode(directory), mode(runtime_dir)) == (runtime_dir / "r1", 0o700, 0o700)
    assert runtime_directory("r1") == directory


@pytest.mark.parametrize("shared_mode", [0o755, 0o770, 0o1777])
def test_a_directory_that_others_share_is_left_as_it_is(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, shared_mode: int
) -> None:
    shared = runtime_dir / "shared"
    shared.mkdir()
    shared.chmod(shared_mode)
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", str(shared))
    directory = runtime_directory("r1")
    assert mode(shared) == shared_mode
    assert (directory, mode(directory.parent)) == (shared / f"prefect-ft-{os.getuid()}" / "r1", 0o700)
    assert runtime_directory("r1") == directory


def test_a_run_time_directory_that_others_may_exchange_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match=r"PREFECT_FT_RUNTIME_DIR: other users can write to .*open"):
        made_runtime_directory(tmp_path / "open" / "r1")
    assert mode(tmp_path / "open") == 0o777


@pytest.mark.parametrize(
    ("place", "message"),
    [
        pytest.param("x" * MAX_RUNTIME_PATH, "is too long for sockets", id="too-long"),
        pytest.param("file/run", "Not a directory", id="cannot-be-made"),
    ],
)
def test_a_run_time_directory_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFECT_FT_RUNTIME_DIR", str(tmp_path / place))
    with pytest.raises(ConfigError, match=f"PREFECT_FT_RUNTIME_DIR: .*{message}"):
        runtime_directory("r1")


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '{"a"'])
def test_a_file_that_is_no_object_reads_as_an_empty_one(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    assert read_json(tmp_path / "x.json") == {}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert (read_json(path), list(tmp_path.iterdir())) == ({"a": 1}, [path])
