"""How long each stage of each restart took, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from prefect_ft.console import plain
from prefect_ft.stages import STAGES
from prefect_ft.summary import PhaseSummary


def stages_table(summaries: Sequence[PhaseSummary]) -> Table:
    """Give a row for each restart; a stage that is not known is empty."""
    table = Table(title="Restarts, milliseconds", title_justify="left", header_style="bold", box=None)
    for name in ("phase", "attempt", *(stage.replace("_", " ") for stage in STAGES)):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for summary in summaries:
        for attempt in summary.attempts:
            if attempt.stages_s:
                times = (attempt.stages_s.get(stage) for stage in STAGES)
                cells = ("" if seconds is None else f"{1000 * seconds:.1f}" for seconds in times)
                table.add_row(*map(plain, (summary.phase, str(attempt.number), *cells)))
        table.add_section()
    return table
