"""What a command is known to run, and which torch it would import, without running it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prefect_ft.worker.command import Program, program_of, talks_to_store, torch_version, written_out

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "program"),
    [
        pytest.param(["t.py", "-c", "x"], ((), "script", "t.py", ("-c", "x")), id="script"),
        pytest.param(["-u", "-X", "dev", "t.py"], (("-u", "-X", "dev"), "script", "t.py", ()), id="options"),
        pytest.param(["-uBOO", "-Wignore", "t.py"], (("-uBOO", "-W", "ignore"), "script", "t.py", ()), id="packed"),
        pytest.param(["-m", "a.b", "-m", "c"], ((), "module", "a.b", ("-m", "c")), id="module"),
        pytest.param(["-ma.b"], ((), "module", "a.b", ()), id="module-attached"),
        pytest.param(["-uc", "pass", "x"], (("-u",), "code", "pass", ("x",)), id="code"),
        pytest.param(["-uWerror", "t.py"], (("-u", "-W", "error"), "script", "t.py", ()), id="packed-argument"),
        pytest.param(["-"], None, id="standard-input"),
        pytest.param([], None, id="nothing"),
        pytest.param(["-i", "t.py"], None, id="dialogue"),
        pytest.param(["-V"], None, id="version"),
        pytest.param(["--check-hash-based-pycs", "always", "t.py"], None, id="long-option"),
        pytest.param(["-m"], None, id="module-of-no-name"),
    ],
)  # fmt: skip
def test_pythons_command_line(words: list[str], program: tuple | None) -> None:  # type: ignore[type-arg]
    found = program_of([PYTHON, *words], "/", {})
    assert found == (None if program is None else Program(PYTHON, *program))


@pytest.mark.parametrize("word", ["sh", "/usr/bin/env", "torchrun", "pythonic", "python-config", "nopython"])
def test_other_commands_are_none(word: str) -> None:
    assert program_of([word, "t.py"], "/", {"PATH": str(Path(PYTHON).parent)}) is None


def test_a_name_is_looked_up_and_a_path_begins_at_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.symlink_to(PYTHON)
    by_name = program_of(["python3", "t.py"], "/", {"PATH": f"/nowhere:{tmp_path}/bin"})
    by_path = program_of(["bin/python3", "t.py"], str(tmp_path), {})
    assert [by_name, by_path] == [Program(str(python), (), "script", "t.py", ())] * 2
    assert program_of(["bin/python3", "t.py"], str(tmp_path / "bin"), {}) is None


@pytest.mark.parametrize(
    ("first", "name", "words"),
    [
        pytest.param("#!/usr/bin/python3", "t.py", ["/usr/bin/python3"], id="path"),
        pytest.param("#! /usr/bin/python3 -u ", "t.py", ["/usr/bin/python3", "-u"], id="one-option"),
        pytest.param("#!/usr/bin/env python3", "t.py", ["python3"], id="env"),
        pytest.param("#!/usr/bin/env -S python3 -u -O", "t.py", ["python3", "-u", "-O"], id="env-of-many-words"),
        pytest.param("#!/usr/bin/env python3 -u", "t.py", None, id="a-name-with-a-blank"),
        pytest.param("#!/bin/sh", "t.py", None, id="another-interpreter"),
        pytest.param("#!/usr/bin/env", "t.py", None, id="env-of-nothing"),
        pytest.param("#!", "t.py", None, id="nobody"),
        pytest.param("import os", "t.py", None, id="no-such-line"),
        pytest.param("#!/usr/bin/python3", "torchrun", None, id="what-a-package-installs"),
    ],
)  # fmt: skip
def test_what_the_kernel_makes_of_a_script(
    first: str, name: str, words: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(first + "\nprint()\n")
    command = [f"./{name}", "-x"]
    assert written_out(command, str(tmp_path)) == command, "nobody may execute it"
    (tmp_path / name).chmod(0o755)
    assert written_out(command, str(tmp_path)) == [*(words or []), *command]


def installed(directory: Path, version: str | None) -> Path:
    (directory / "torch").mkdir(parents=True)
    if version is not None:
        (directory / "torch" / "version.py").write_text(
            f"from typing import Optional\n\n__version__ = '{version}'\n"
        )
    return directory


@pytest.mark.parametrize(
    ("version", "told"), [("2.13.0+cpu", "2.13"), ("2.9.1", "2.9"), ("3.0.0a0+git", "3.0"), (None, None)]
)
def test_torchs_version_is_read_where_the_interpreter_looks(
    tmp_path: Path, version: str | None, told: str | None
) -> None:
    installed(tmp_path / "lib" / "python3.11" / "site-packages", version)
    program = Program(str(tmp_path / "bin" / "python"), (), "script", "t.py", ())
    (tmp_path / "pyvenv.cfg").touch()
    assert torch_version(program, {}) == told
    assert talks_to_store(program, {}, ["2.13"]) == (told == "2.13")


def test_pythonpath_comes_first(tmp_path: Path) -> None:
    installed(tmp_path / "lib" / "python3.11" / "site-packages", "2.13.0")
    program = Program(str(tmp_path / "bin" / "python"), (), "script", "t.py", ())
    mine = installed(tmp_path / "mine", "2.99.0")
    assert torch_version(program, {"PYTHONPATH": f":/nowhere:{mine}"}) == "2.99"


def test_two_releases_are_none(tmp_path: Path) -> None:
    for python, version in (("python3.11", "2.13.0"), ("python3.12", "2.12.0")):
        installed(tmp_path / "lib" / python / "site-packages", version)
    assert torch_version(Program(str(tmp_path / "bin" / "python"), (), "script", "t.py", ()), {}) is None


def test_a_launcher_starts_a_store_of_its_own(tmp_path: Path) -> None:
    installed(tmp_path / "lib" / "python3.11" / "site-packages", "2.13.0")
    launcher = Program(str(tmp_path / "bin" / "python"), (), "module", "torch.distributed.run", ())
    assert not talks_to_store(launcher, {}, ["2.13"])
