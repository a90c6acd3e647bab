"""Secrets taken out of what agents tell, before anything is made of it. Pure.

Agents mask what ranks print, wherever it is cut. What else may hold a secret, and what an agent tells that was not
told of any (it was started by an earlier version), is masked here.
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
"""The fields with texts that a rank may have written, by event."""


def masking(values: Iterable[str]) -> Mask:
    """Return what puts asterisks for these values, a byte for a byte: output is known by its offsets."""
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
