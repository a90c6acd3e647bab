"""Reads the documentation's pages: their sections, tables and code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

Table = list[list[str]]


def section(page: str, heading: str) -> str:
    """Return what stands below a heading, up to the next of its own level or above."""
    text = (DOCS / page).read_text()
    start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert start is not None, f"{page} has no heading {heading!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def subsections(page: str, heading: str) -> dict[str, str]:
    """Return the sections directly below a heading by theirs."""
    parts = re.split(r"^### (.+)$", section(page, heading), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def tables(text: str) -> list[Table]:
    """Return all tables without their headers."""
    found = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [[_cells(line) for line in table.splitlines()[2:]] for table in found]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def named(source: str | Table) -> list[str]:
    """Return all names that the first column of a table (of a text, its first) has between backticks."""
    rows = tables(source)[0] if isinstance(source, str) else source
    return [name for row in rows for name in re.findall("`(.+?)`", row[0])]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
