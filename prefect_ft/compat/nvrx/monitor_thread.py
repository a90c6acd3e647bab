"""What interrupts the function when a rank has failed."""

from __future__ import annotations

from prefect_ft.inprocess.errors import Interrupted


class RankShouldRestart(Interrupted):
    """Ends the function because another rank failed; raised by the function itself, it asks for a restart."""
