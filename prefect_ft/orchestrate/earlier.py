"""What the journals of a run's phases say of their executions so far: systems, summaries, what is unfinished."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.errors import ComebackError, JournalError
from prefect_ft.journal.lines import checked_lines, end_of, head_of
from prefect_ft.journal.records import Line
from prefect_ft.journal.summary import PhaseSummary, summarise
from prefect_ft.run import JOURNAL, Run


def systems_of(run: Run, index: int) -> tuple[str, ...] | None:
    """Return the systems that an unfinished phase began with; None: it has not begun, or does not say."""
    directory = unfinished_directory(run, index)
    head = head_of(lines_of(directory)) if directory is not None else None
    return head.systems if head is not None else None


def summary_of(run: Run, index: int) -> PhaseSummary | None:
    """Return the summary of a phase's last execution; None: it has not begun."""
    lines = lines_of(run.directory_of(index))
    return summarise(lines) if lines else None


def unfinished_directory(run: Run, index: int) -> Path | None:
    """Return the directory of a phase that has begun and not ended, else None."""
    directory = run.directory_of(index)
    has_ended = end_of(lines_of(directory)) is not None
    return None if directory is None or has_ended else directory


def lines_of(directory: Path | None) -> list[Line]:
    """Return the lines of a phase's journal; none where it has not begun. Raises ComebackError, JournalError."""
    if directory is None:
        return []
    try:
        return checked_lines(directory / JOURNAL)
    except JournalError as exc:
        raise ComebackError(str(exc)) from exc  # leave the workers running: a person may repair the journal
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise JournalError(f"{directory / JOURNAL}: {exc.strerror}") from exc


def isolated_before(run: Run, directory: Path) -> list[str]:
    """Return the systems that were in quarantine when the run began, and those that it has isolated since.

    The latter come from its journals except this one: of earlier phases, and of failed executions of this phase.
    """
    names = [each["directory"] for each in run.record()["phases"] if each["directory"] != directory.name]
    journals = [lines for name in names if (lines := lines_of(run.model_dir / name))]
    isolated = {system for lines in journals for system in summarise(lines).isolated_systems}
    return sorted({*isolated, *run.record().get("quarantined", ())})
