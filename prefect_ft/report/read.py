"""Reads a run's journals for its story; the run may be over, alive or without an orchestrator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from prefect_ft.clock import seconds_since
from prefect_ft.errors import ConfigError, JournalError
from prefect_ft.journal.lines import check_format, describe_damage, end_of, history_of, scan
from prefect_ft.journal.records import HangLine, Line
from prefect_ft.report.story import PhaseJournal, Story, story_of
from prefect_ft.run import JOURNAL

MAX_TEXT = 200_000
"""Maximum characters read from a file next to the journal."""


def read_story(directories: Iterable[Path]) -> Story:
    """Return the story of the run with these phase directories; raises ConfigError if a journal cannot be read."""
    return story_of([read_phase(directory) for directory in directories])


def read_phase(directory: Path) -> PhaseJournal:
    """Read a phase; one without an end counts as running until now.

    Raises ConfigError for a journal that cannot be read, or whose incidents are invalid.
    """
    journal = directory / JOURNAL
    try:
        data = journal.read_bytes()
    except FileNotFoundError:
        data = b""  # the phase has only just begun
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(journal)) from exc
    check_format(data, str(journal))
    found = scan(data)
    lines = [line for _, line in found.lines]
    damage = describe_damage(journal, found.damaged) if found.damaged else None
    try:
        history_of(lines)
    except JournalError as exc:
        raise ConfigError(str(exc), file=str(journal)) from exc
    return PhaseJournal(lines=lines, now_t=_now_t(lines), texts=_texts(directory, lines), damage=damage)


def _now_t(lines: Sequence[Line]) -> float | None:
    """Return the current time of a phase that has begun and not ended, else None."""
    if not lines or end_of(lines) is not None:
        return None
    return float(lines[0].t) + seconds_since(lines[0].utc)


def _texts(directory: Path, lines: Sequence[Line]) -> dict[str, str]:
    """Read the existing diagnoses of suspensions; a journal that was copied alone has none."""
    texts = {}
    for line in lines:
        name = line.diagnosis if isinstance(line, HangLine) else None
        if name is not None and Path(name).name == name:
            with suppress(OSError):
                texts[name] = (directory / name).read_text(encoding="utf-8", errors="replace")[:MAX_TEXT]
    return texts
