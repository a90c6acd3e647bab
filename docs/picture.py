"""Draws a run's report as the README shows it: `python docs/picture.py RUN_DIR docs/images/quickstart.svg`.

Paths are shown from the working directory on.
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console

from prefect_ft.cli.show import print_report
from prefect_ft.run import phase_directories


def main(run: str, target: str) -> None:
    """Record the report and write it as SVG, without the web fonts that rich would link."""
    console = Console(record=True, width=120, file=StringIO(), highlight=False, force_terminal=True)
    print_report(phase_directories(run), console)
    svg = console.export_svg(title=f"prefect-ft report {run}").replace(f"{Path.cwd()}/", "")
    with open(target, "w", encoding="utf-8") as file:
        file.write(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
