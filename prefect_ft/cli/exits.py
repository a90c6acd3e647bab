"""The exit codes of the command line, and the errors that lead to them."""

from __future__ import annotations

from prefect_ft.errors import (
    ConfigError,
    PrefectFTError,
    RunHeldError,
    SystemHeldError,
    UnfinishedRunError,
)

COMPLETED, FAILED, INVALID, CANCELLED = range(4)
"""The run completed; failed; was refused before anything started; was cancelled."""

REFUSALS = (ConfigError, RunHeldError, SystemHeldError, UnfinishedRunError)
"""The errors that are raised before anything starts."""


def code_of(error: PrefectFTError) -> int:
    """Return the exit code of a command that raised this error."""
    return INVALID if isinstance(error, REFUSALS) else FAILED
