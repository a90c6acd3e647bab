"""Secrets taken out of what ranks print, before anything is made of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from prefect_ft.supervisor.link import Event

MIN_LENGTH = 4
"""Characters; shorter values stand in any text, and to mask them would only garble it."""

Mask = Callable[[Event], Event]


def masking(secrets: Iterable[str]) -> Mask:
    """Give what puts asterisks for these values, a byte for a byte: output is known by its offsets."""
    wanted = sorted({line for secret in secrets for line in secret.splitlines() if len(line) >= MIN_LENGTH})
    if not wanted:
        return lambda event: event
    pattern = re.compile(
        "|".join(map(re.escape, reversed(wanted)))
    )  # of two that begin alike the longer first

    def masked(text: str) -> str:
        return pattern.sub(lambda match: "*" * len(match[0].encode("utf-8", "surrogateescape")), text)

    def mask(event: Event) -> Event:
        match event["ev"]:
            case "output":
                return {**event, "text": masked(event["text"])}
            case "excerpt":
                return {**event, "parts": [{**part, "text": masked(part["text"])} for part in event["parts"]]}
            case "fault" | "in_process":
                told = event["report"].items()
                report = {name: masked(said) if isinstance(said, str) else said for name, said in told}
                return {**event, "report": report}
            case "start_failed":
                return {**event, "error": masked(event["error"]), "what": masked(event["what"])}
            case _:
                return event

    return mask
