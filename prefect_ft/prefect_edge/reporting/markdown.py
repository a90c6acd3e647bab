"""Foreign texts within Markdown that Prefect renders: a rank's output must not become a link or a picture.

The one escape for Markdown, as GitHub specifies it: Prefect's page makes links of bare addresses too.
"""

from __future__ import annotations

import re

from prefect_ft.plaintext import as_line

__all__ = ["as_code", "as_text"]

_MEANING = re.compile(
    r"[\\`*\[\]<>#|!$~&@]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word it has no effect, and names often contain it
    r"|:(?=//)|(?<=[wW]{3})\."  # the beginning of an address
    r"|\A[-+=]|\A(?P<number>\d{1,9})(?=[.)](?:\s|\Z))"  # the beginning of a list
)


def as_text(content: str) -> str:
    """Return a text as one line that Markdown leaves unchanged anywhere."""
    return _MEANING.sub(_escaped, as_line(content).strip())


def _escaped(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found["number"] else f"\\{found[0]}"


def as_code(content: str) -> str:
    """Return a text as a code span, in which only backticks have a meaning; those become apostrophes."""
    return f"`{as_line(content).replace('`', chr(39)) or ' '}`"
