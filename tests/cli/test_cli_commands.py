"""The table of commands: each is a module of its own, and what is not typed is not loaded."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import prefect_ft.cli
from prefect_ft.cli import main
from prefect_ft.cli.commands import COMMANDS, command

TYPED = [*([name] for name in COMMANDS if name != "pool"), ["pool", "list"], ["pool", "release"]]
"""What may stand before a command's arguments."""

LOADED = """
import contextlib, io, json, sys
from prefect_ft.cli import main
loaded = []
for words in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([*words, "--help"])
    loaded.append(sorted(sys.modules))
print(json.dumps(loaded))
"""


def loaded_by_help_of(*typed: list[str]) -> list[set[str]]:
    """Return which modules are there after `--help` of each, one after the other in one process."""
    words = [sys.executable, "-c", LOADED, json.dumps(typed)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [set(names) for names in json.loads(done.stdout)]


def of_commands(names: set[str]) -> set[str]:
    return {name.removeprefix("prefect_ft.cli.") for name in names if name.startswith("prefect_ft.cli.")}


def test_help_loads_no_command_and_a_command_no_other() -> None:
    shared = {"arguments", "commands", "exits"}
    overall, status, logs = loaded_by_help_of([], ["status"], ["logs"])
    assert of_commands(overall) == shared
    assert of_commands(status) - shared == {"status"}
    assert of_commands(logs) - shared == {"status", "logs"}


def test_the_help_of_no_command_loads_what_takes_time() -> None:
    heavy = {"prefect", "pydantic", "rich", "yaml", "docker", "psutil", "re2", "jinja2", "cryptography"}
    after = loaded_by_help_of([], *TYPED)
    assert {" ".join(words): heavy & names for words, names in zip(TYPED, after[1:], strict=True)} == {
        " ".join(words): set() for words in TYPED
    }


def test_each_command_is_a_module_and_each_such_module_a_command() -> None:
    modules = [each.name for each in pkgutil.iter_modules(prefect_ft.cli.__path__) if each.name != "__main__"]
    made = {name for name in modules if hasattr(import_module(f"prefect_ft.cli.{name}"), "add_arguments")}
    assert made == {name.replace("-", "_") for name in COMMANDS}
    assert all(callable(command(name).run) for name in COMMANDS)


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_each_command_says_what_it_does_and_takes_json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith(f"usage: prefect-ft {' '.join(words)} [-h] [--json]")
    described = said.split("\n\n")[1]
    assert (described[0].isupper(), described[-1]) == (True, ".")


def test_an_unknown_command_is_refused_by_the_names_of_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["strat", "job.yaml"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert [name for name in COMMANDS if name not in said] == []
