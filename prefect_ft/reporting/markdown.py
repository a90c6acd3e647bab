"""Texts from somewhere else within Markdown that Prefect renders: what a rank printed makes no link and no picture."""

from __future__ import annotations


def as_text(content: str) -> str:
    """Give it as one line that Markdown leaves as it is."""
    plain = "".join(char if char.isprintable() else " " for char in content)
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|!$" else char for char in plain)
