"""Small files that hold anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_ft.files import parse_json, read_json

DEEP = "[" * 100_000


def test_what_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(RecursionError):
        json.loads(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)


@pytest.mark.parametrize("content", [DEEP, '{"a": ' * 100_000, "[1]", "{", "\0", "", "\xe9"])
def test_a_file_that_holds_no_object_reads_as_an_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "told.json"
    path.write_bytes(content.encode("latin-1"))
    assert read_json(path) == {}


def test_a_file_that_is_not_there_reads_as_an_empty_object(tmp_path: Path) -> None:
    assert read_json(tmp_path / "told.json") == {}
    assert read_json(tmp_path) == {}
