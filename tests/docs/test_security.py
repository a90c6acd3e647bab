"""Each line of the threat model names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\|[^|]+\|[^|]+\| `(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)` \|$")


def test_each_line_of_the_threat_model_has_its_test() -> None:
    lines = (ROOT / "docs" / "security.md").read_text().partition("## What it does not hold")[0].splitlines()
    rows = [
        line
        for line in lines
        if line.startswith("|") and not line.startswith(("|---", "| who may", "| what may"))
    ]
    named = [(row, ROW.match(row)) for row in rows]
    assert [row for row, found in named if found is None] == []
    missing = [
        row
        for row, found in named
        if found is not None
        and not re.search(rf"^def {found['name']}\(", (ROOT / found["path"]).read_text(), re.M)
    ]
    assert (missing, len(rows) > 30) == ([], True)
