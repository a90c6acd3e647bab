"""The keys in a front door's document beside those it rewrites, and the facts about the file for its defaults."""

from __future__ import annotations

import os
import re
from typing import Any

from prefect_ft.config.source import Document

KEYS = ("mode", "command", "resume_args", "nproc_per_worker", "checkpoints", "target_step", "elastic")
"""Keys of a phase that may be at the top of a document without phases of its own."""

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def at_the_top(document: Document) -> dict[str, Any]:
    """Return the keys of a phase at the top of a document."""
    return {key: document.value[key] for key in KEYS if key in document.value}


def file_of(document: Document) -> str | None:
    """Return the file that a document was read from; None: there is none."""
    files = (place.file for place in document.places.values())
    return next((file for file in files if file is not None and not file.startswith("--")), None)


def name_for(document: Document, otherwise: str) -> str:
    """Return a job's name for a document that has none: that of its file."""
    file = file_of(document)
    stem = os.path.splitext(os.path.basename(file))[0] if file is not None else ""
    return _NO_NAME.sub("-", stem).strip("-")[:64] or otherwise
