"""What a phase hands to its command reaches it as it was meant, or is refused with what to write instead."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from prefect_ft.config import Phase, load_job, resolved
from prefect_ft.errors import ConfigError

JOB = """\
name: j
model_dir: m
phases:
  - name: p
    command: [c]
    params:
"""


def params_of(text: str, folder: Path) -> Any:
    file = folder / "job.yaml"
    file.write_text(f"{JOB}      a: {text}\n")
    job = load_job(file)
    assert resolved(job)["phases"][0]["params"] == job.phases[0].params
    return job.phases[0].params


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.1", 0.1),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("5.", 5.0),
        ("+3", 3),
        ("'1e-3'", "1e-3"),
        ("'010'", "010"),
        ("!!str .5", ".5"),
        ("yes", True),
        ("~", None),
        ("{b: [1, {c: 2e0}], d: {}}", {"b": [1, {"c": 2.0}], "d": {}}),
        ("\u00e9\U0001f600", "\u00e9\U0001f600"),
    ],
)
def test_values_are_read_as_they_were_meant(written: str, value: object, tmp_path: Path) -> None:
    read = params_of(written, tmp_path)
    assert (read, type(read["a"])) == ({"a": value}, type(value))
    assert yaml.safe_load(yaml.safe_dump(read)) == {"a": value}


MORE_THAN_TEXT = "is more than text to some readers of YAML; put it in quotes, or write a decimal number"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *(
            pytest.param(word, f"a: {word} {MORE_THAN_TEXT}", id=word)
            for word in ("010", "1_000", "0x10", "12:30", "2024-01-01", ".inf")
        ),
        pytest.param(
            "[1, 1e999]",
            "a[1]: must be a finite number, got inf; put it in quotes and let the command convert it",
            id="beyond-all-numbers",
        ),
    ],
)
def test_what_readers_take_for_different_things_is_refused(
    written: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        params_of(written, tmp_path)
    assert str(caught.value) == f"{tmp_path}/job.yaml:7: phases[0].params.{expected}"


def test_params_are_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("params:", "params: [a]"))
    with pytest.raises(ConfigError) as caught:
        load_job(tmp_path / "job.yaml")
    expected = "job.yaml:6: phases[0].params: must be a mapping of keys to values, got a list"
    assert str(caught.value) == f"{tmp_path}/{expected}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param({1: 2}, "a key must be text, got 1", id="number-for-a-key"),
        pytest.param({"a": {"\ud800": 1}}, "a key must be text", id="half-a-character-in-a-key"),
        pytest.param({"a": "\ud800"}, "the text holds half a surrogate pair", id="half-a-character"),
        pytest.param({"a": (1, {2})}, "got a value of type set", id="set"),
        pytest.param({"a": float("nan")}, "must be a finite number, got nan", id="no-number"),
    ],
)
def test_values_from_python_that_no_file_can_hold(value: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Phase(name="p", command=("c",), params=value)
