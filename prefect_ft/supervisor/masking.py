"""Masks secrets in agents' events before they are read. Pure.

Agents mask the ranks' output themselves, wherever it is cut. Other fields that may contain a secret, and events of
agents that were not given the secrets (started by an earlier version), are masked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prefect_ft.worker.masking import Secrets

Message = Mapping[str, Any]
"""An event as it came, before it is read."""

Mask = Callable[[Message], Message]

_TEXTS: Mapping[str, tuple[str, ...]] = {
    "output": ("text",),
    "excerpt": ("parts",),
    "diagnosis": ("ranks",),
    "fault": ("report",),
    "detected": ("report",),
    "detecting": ("why_not",),
    "in_process": ("report",),
    "start_failed": ("error", "what"),
}
"""The fields with text from a rank, by event."""


def masking(values: Iterable[str]) -> Mask:
    """Return a function that masks these values byte by byte: output is identified by its offsets."""
    secrets = Secrets(values)
    if not secrets.words:
        return lambda message: message

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            return secrets.mask_text(value)
        if isinstance(value, dict):
            return {name: masked(each) for name, each in value.items()}
        return [masked(each) for each in value] if isinstance(value, list) else value

    def mask(message: Message) -> Message:
        fields = _TEXTS.get(str(message.get("ev")), ())
        return {**message, **{name: masked(message[name]) for name in fields if name in message}}

    return mask
