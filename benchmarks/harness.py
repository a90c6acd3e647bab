"""What every benchmark shares: its options, the machine it ran on, its rows, and how they are printed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

OURS = "prefect-ft"


@contextmanager
def workplace(script: str) -> Iterator[Path]:
    """A directory with what is to be run as `script.py` and a place for its `checkpoints`; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        directory = Path(name)
        (directory / "script.py").write_text(script)
        (directory / "checkpoints").mkdir()
        yield directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: what was measured, on which side, and the spread of its repeats."""

    side: str
    case: str
    unit: str
    median: float
    min: float
    max: float
    n: int
    settings: str = "default"
    ranks: int | None = None


def row(side: str, case: str, values: Sequence[float], *, unit: str = "ms", **fields: Any) -> Row:
    """Sum repeats up."""
    return Row(
        side=side,
        case=case,
        unit=unit,
        median=round(statistics.median(values), 3),
        min=round(min(values), 3),
        max=round(max(values), 3),
        n=len(values),
        **fields,
    )


@dataclass(slots=True)
class Results:
    """All rows of one run of a benchmark."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ratios(self) -> list[dict[str, Any]]:
        """Return, for each of our figures and each peer's of the same case, the peer's median over ours."""
        ours = {(each.case, each.ranks): each for each in self.rows if each.side == OURS}
        return [
            {
                "case": peer.case,
                "ranks": peer.ranks,
                "peer": f"{peer.side}, {peer.settings}",
                "ratio": round(peer.median / ours[peer.case, peer.ranks].median, 3),
            }
            for peer in self.rows
            if peer.side != OURS and (peer.case, peer.ranks) in ours
        ]

    def print(self) -> None:
        """Print the rows, then the ratios, then the notes."""
        for each in self.rows:
            ranks = f" W={each.ranks}" if each.ranks is not None else ""
            spread = f"{each.median:9.2f} {each.unit} ({each.min:.2f}-{each.max:.2f}) n={each.n}"
            print(f"{each.side:12} {each.settings:12} {each.case + ranks:32} {spread}")
        for ratio in self.ratios():
            print(f"ratio {ratio['peer']} / {OURS}: {ratio['case']} W={ratio['ranks']}: {ratio['ratio']}")
        for note in self.notes:
            print(f"note: {note}")

    def write(self, path: Path) -> None:
        """Write the JSON document that docs/benchmarks.md describes."""
        document = {
            "machine": machine(),
            "versions": {name: version(name) for name in ("prefect-ft", "prefect")},
            "rows": [asdict(each) for each in self.rows],
            "ratios": self.ratios(),
            "notes": self.notes,
        }
        path.write_text(json.dumps(document, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """Say what the figures were measured on, and when."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def options(description: str, extra: Iterable[tuple[str, dict[str, Any]]] = ()) -> argparse.Namespace:
    """Parse the options that all benchmarks have, and a benchmark's own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="a few repeats")
    parser.add_argument("--no-peers", action="store_true", help="leave out what we are compared with")
    for name, settings in extra:
        parser.add_argument(name, **settings)
    return parser.parse_args()


def finish(results: Results, arguments: argparse.Namespace) -> None:
    """Print the results, and write them where that was asked for."""
    results.print()
    if arguments.json:
        results.write(arguments.json)
