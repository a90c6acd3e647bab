"""What two runs' failures have in common if they are the same, and the short key made of it.

Owns what counts as varying: numbers, addresses, places, times, sizes. Journals keep the keys: a
change here makes old failures new ones.
"""

from __future__ import annotations

import re
from hashlib import sha256

from prefect_ft.decide.classify.tracebacks import Raised

__all__ = ["likeness_of_exception", "likeness_of_line", "signature_of"]

_VARYING = (
    (re.compile(r"(?<![\w.-])/(?:tmp|var/tmp|dev/shm|run)/[^\s'\",:)\]]+"), "<tmp>"),
    (re.compile(r"(?:/[^\s/'\",:)\]]+)*/([^\s/'\",:)\]]+)"), r"\1"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2,8}:)+[0-9a-fA-F]{2}(?:\.\d)?\b"), "#"),
    (re.compile(r"\b0x[0-9a-fA-F]+|\b(?=[a-f-]*\d)[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b"), "#"),
    (re.compile(r"\d+(?:\.\d+)*(?:\s?(?:[KMGT]i?B|bytes)\b)?"), "#"),
)
_HOST = re.compile(r"\b(?:[Oo]n|ON|node|host|from|NODE) (?:node |host )?[\w.-]*\d[\w.-]*")
_MAX_CHARACTERS = 600


def signature_of(likeness: str) -> str:
    """Return the key of a failure."""
    return sha256(likeness.encode(errors="replace")).hexdigest()[:12]


def likeness_of_exception(raised: Raised) -> str:
    """Return the constant part of an exception and its innermost frame; the line's number may change."""
    return f"{_without_varying(_sentence(raised.text))}\n{_without_varying(raised.file)} {raised.function}"


def likeness_of_line(rule: str, text: str) -> str:
    """Return the constant part of a line; `rule` is the entry that matched it."""
    return f"{rule}\n{_without_varying(_HOST.sub('#', _sentence(text)))}"


def _sentence(text: str) -> str:
    """Cut a message after its first sentence: figures and advice follow."""
    return text[:_MAX_CHARACTERS].partition(". ")[0]


def _without_varying(text: str) -> str:
    for varying, constant in _VARYING:
        text = varying.sub(constant, text)
    return text
