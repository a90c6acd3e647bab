"""The formats of a run's files, which other versions may read: their numbers, and the check against newer ones.

A format grows by new fields, which earlier versions ignore. Its number grows only with a change that would do harm
where it is ignored. A file without a number has the first format.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from prefect_ft.errors import NewerFormatError

FORMATS: Mapping[str, int] = {"run": 1, "job": 1, "journal": 1}
"""The highest formats that this version reads, which are those that it writes."""


@cache
def this_version() -> str:
    """Return this version of prefect-ft."""
    from importlib.metadata import version  # noqa: PLC0415  (`status` does without it)

    return version("prefect-ft")


def stamp(record: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of run.json about formats; higher formats of `record`, its earlier content, stay."""
    before = _formats_in(record or {})
    formats = {name: max(number, before.get(name, 1)) for name, number in FORMATS.items()}
    return {"formats": formats, "version": this_version()}


def written_by(name: str) -> dict[str, Any]:
    """Return the fields by which a journal says its format, and the version that continues it."""
    return {"format": FORMATS[name], "version": this_version()}


def check_run(record: Mapping[str, Any], file: str) -> None:
    """Raise NewerFormatError for a run of which anything has a newer format than this version reads."""
    for name, number in _formats_in(record).items():
        check(name, number, record.get("version"), file)


def check(name: str, number: Any, version: Any, file: str) -> None:
    """Raise NewerFormatError for a format that this version does not read; `version` is the one that wrote it."""
    if type(number) is int and number > FORMATS.get(name, 0):
        raise NewerFormatError(
            f"the {name} has format {number} and prefect-ft {this_version()} reads formats up to "
            f"{FORMATS.get(name, 0)}; nothing was changed. {how_to_get(version)}",
            file=file,
        )


def how_to_get(version: Any) -> str:
    """Return how to install a version of prefect-ft; None, or a value that is not text, is an unknown one."""
    if isinstance(version, str) and version != this_version():
        return f"Install the version that wrote it: pip install 'prefect-ft=={version}'"
    return "Install the version that wrote it, or a later one: pip install --upgrade prefect-ft"


def _formats_in(record: Mapping[str, Any]) -> Mapping[str, Any]:
    formats = record.get("formats")
    return {
        name: number
        for name, number in (formats.items() if isinstance(formats, dict) else ())
        if type(number) is int
    }
