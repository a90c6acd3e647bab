"""`pool list` and `pool release`: on files that are named, and on those that runs known here name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.cli import main
from prefect_ft.run import new_run
from prefect_ft.run.quarantine import Quarantined, add, read

Say = Callable[..., tuple[int, str, str]]

SINCE = "2026-01-02T03:04:05Z"
S0 = Quarantined(
    system="s0", since=SINCE, run="r-1", job="[j]", phase="p", rule="node-lost", reason="its GPU\nhas gone"
)
S1 = Quarantined(system="s1", since=SINCE)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: object) -> tuple[int, str, str]:
        code = main(["pool", *map(str, words)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def quarantine(tmp_path: Path) -> Callable[..., Path]:
    """Write a quarantine which the job of a run known here names."""

    def make(name: str, *entries: Quarantined) -> Path:
        path = tmp_path / name
        add(path, entries)
        for number in range(2):
            new_run(tmp_path / f"model-{name}-{number}", "j", job_config={"quarantine": str(path)})
        return path

    return make


LONG = "/".join(["a" * 200] * 25)


def test_of_nothing(say: Say, tmp_path: Path) -> None:
    new_run(tmp_path / "model", "j", job_config={"quarantine": None})
    new_run(tmp_path / "other", "j", job_config={"quarantine": str(tmp_path / "not-yet")})
    assert say("list") == (0, "no system is quarantined\n", "")
    assert say("list", "--json") == (0, "[]\n", "")


def test_list_of_all_that_runs_here_name(say: Say, quarantine: Callable[..., Path]) -> None:
    first, second = quarantine("a", S0), quarantine("b", S1)
    code, out, err = say("list")
    assert (code, err) == (0, "")
    header, *rows = (line.split() for line in out.splitlines())
    assert header == ["system", "since", "job", "phase", "run", "rule", "reason", "file"]
    assert rows == [
        ["s0", SINCE, "[j]", "p", "r-1", "node-lost", "its", "GPU", "has", "gone", str(first)],
        ["s1", SINCE, str(second)],
    ]


def test_list_as_json(say: Say, quarantine: Callable[..., Path]) -> None:
    path = quarantine("a", S0, S1)
    code, out, err = say("list", "--json", "--file", path)
    assert (code, err) == (0, "")
    assert json.loads(out) == [{"file": str(path), **entry.to_json()} for entry in (S0, S1)]


def test_one_damaged_file_does_not_hide_the_others(say: Say, quarantine: Callable[..., Path]) -> None:
    damaged, whole = quarantine("a", S0), quarantine("b", S0)
    damaged.write_text("{")
    code, out, err = say("list", "--json")
    assert (code, [row["file"] for row in json.loads(out)]) == (2, [str(whole)])
    assert err.startswith(f"error: {damaged}:1: is not JSON; ")
    code, out, err = say("release", "s0")
    assert (code, out.splitlines()) == (2, [f"released s0 from {whole}: new runs can use it"])
    assert err.startswith(f"error: {damaged}:1: is not JSON; ")
    assert damaged.read_text() == "{"


def test_release_from_every_file_that_has_it(say: Say, quarantine: Callable[..., Path]) -> None:
    paths = [quarantine("a", S0), quarantine("b", S0, S1), quarantine("c", S1)]
    code, out, err = say("release", "s0", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"system": "s0", "released": [str(path) for path in paths[:2]]}
    assert [read(path) for path in paths] == [(), (S1,), (S1,)]


def test_release_from_the_file_that_is_named(say: Say, quarantine: Callable[..., Path]) -> None:
    first, second = quarantine("a", S0), quarantine("b", S0)
    said = f"released s0 from {second}: new runs can use it\n"
    assert say("release", "s0", "--file", second) == (0, said, "")
    assert (read(first), read(second)) == ((S0,), ())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["release", "s9"], "s9 is not in quarantine in any known file", id="in-none"),
        pytest.param(["release", "s9", "--file", "a"], "s9 is not in quarantine in a", id="not-in-this-one"),
        pytest.param(["release", "s0", "--file", "none"], "none: no such file", id="release-of-no-file"),
        pytest.param(["list", "--file", "none"], "none: no such file", id="list-of-no-file"),
        pytest.param(["list", "--file", LONG], f"{LONG}: no such file", id="list-of-a-long-path"),
    ],
)
def test_what_cannot_be_done(
    say: Say,
    quarantine: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[Any],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = quarantine("a", S0)
    assert say(*words) == (2, "", f"error: {says}\n")
    assert read(path) == (S0,)
