"""Texts from elsewhere within Markdown that Prefect renders: what a rank printed makes no link and no picture.

The one escape for Markdown, as GitHub specifies it: Prefect's page makes links of bare addresses too.
"""

from __future__ import annotations

import re

from prefect_ft.plaintext import as_line

__all__ = ["as_code", "as_text"]

_MEANING = re.compile(
    r"[\\`*\[\]<>#|!$~&@]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word it means nothing, and names are full of it
    r"|:(?=//)|(?<=[wW]{3})\."  # what an address begins with
    r"|\A[-+=]|\A(?P<number>\d{1,9})(?=[.)](?:\s|\Z))"  # what a list begins with
)


def as_text(content: str) -> str:
    """Return it as one line that Markdown leaves as it is, wherever it stands."""
    return _MEANING.sub(_escaped, as_line(content).strip())


def _escaped(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found["number"] else f"\\{found[0]}"


def as_code(content: str) -> str:
    """Return it as a span of code, in which nothing has a meaning but backticks; those become apostrophes."""
    return f"`{as_line(content).replace('`', chr(39)) or ' '}`"
