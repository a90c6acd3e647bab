"""The page about the agent protocol."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "agent-protocol.md"


def documented(section: str) -> dict[str, dict[str, str]]:
    """The names of a section with their fields and types, as the page's tables have them."""
    page = PAGE.read_text()
    body = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    names = re.split(r"\n### `(\w+)`\n", body)[1:]
    return {
        name: dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.MULTILINE))
        for name, text in zip(names[::2], names[1::2])  # noqa: B905  (runs on Python 3.9)
    }
