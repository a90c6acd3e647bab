"""Foreign text made safe for a terminal: only visible characters, no control sequences. Pure.

The one escape for terminals and logs. HTML and Markdown have their own in addition: `report.html`'s
templates, `report.paint.printable`, `reporting.markdown`.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["as_json", "as_line", "as_lines"]

# Only the ends of a sequence are control characters, so each is scanned once, whatever follows.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, links, pictures
    r"|\x1b[ -/]*[0-~]"  # character sets, resets
)


def as_line(text: str) -> str:
    """Return a text as one line: terminal sequences are removed, other invisible characters become blanks."""
    return "".join(char if char.isprintable() else " " for char in _SEQUENCE.sub("", text))


def as_lines(text: str) -> str:
    """Return a text as `as_line` does, but keep line ends and tabs."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(as_line, line.split("\t"))) for line in lines)


def as_json(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON of visible characters only; read back it is the same."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
