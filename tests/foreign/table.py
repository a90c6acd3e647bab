"""Print the tables of docs/foreign-trainers.md: `python table.py FILE`, FILE what PREFECT_FT_MATRIX named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FAULTS = ("none", "exception", "sigkill", "sigstop", "orchestrator", "cut", "damaged")
"""In the order of the columns."""


def read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last line of each cell."""
    cells = map(json.loads, path.read_text().splitlines())
    return {(cell["trainer"], cell["fault"]): cell for cell in cells}


def shown(cell: dict[str, Any] | None) -> str:
    """Return what a cell says: whether it finished, with the same result, and by which decisions."""
    if cell is None:
        return "not tried"
    result = "not finished" if not cell["finished"] else "same" if cell.get("same") else "finished"
    rules = ", ".join(f"`{rule}`" for rule in cell.get("rules", ()))
    told = f"{result}; {len(cell['rules'])}: {rules}" if rules else f"{result}; 0"
    return told if cell["passed"] else f"**{told}**"


def main(path: Path) -> None:
    cells = read(path)
    trainers = {trainer: cell for (trainer, _), cell in cells.items()}
    print("| trainer | version | saves and resumes | resume is exact |\n|---|---|---|---|")
    for name, cell in trainers.items():
        print(f"| {name} | {cell['version']} | {cell['style']} | {'yes' if cell['exact'] else 'no'} |")
    print("\n| trainer | " + " | ".join(FAULTS) + " |")
    print("|---" * (len(FAULTS) + 1) + "|")
    for name in trainers:
        print(f"| {name} | " + " | ".join(shown(cells.get((name, fault))) for fault in FAULTS) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
