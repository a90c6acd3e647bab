"""A number with its noun, in texts that people read. Pure."""

from __future__ import annotations

__all__ = ["count", "save_noun"]


def count(number: int, thing: str, things: str | None = None) -> str:
    """Return a count with its noun, singular or plural; `things` where the plural is not `thing` and an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def save_noun(*, counted: bool | None) -> str:
    """Return what the number of a checkpoint is: a step, or a version of its file where nothing states the step."""
    return "version" if counted else "step"
