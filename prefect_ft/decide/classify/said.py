"""What a text says of the kind of a failure, in any library's words.

Owns the reading of `words.yaml`: for each class what fails and how it fails, near each other. Looks at one text only;
`kinds` and `closing` decide whether it matters.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from prefect_ft.model import FailureClass
from prefect_ft.signatures import compiled

__all__ = ["first", "said_by", "said_of_exception", "says_to_go_on"]

Words = Sequence[tuple[FailureClass, str]]

_RESOURCE = "words.yaml"
_THING = re.compile(r"<([a-z]+)>")
_OF_EXCEPTIONS = frozenset(
    (
        "checkpoint", "compile", "config", "data", "hardware", "network", "numeric", "oom_device", "port_in_use",
        "storage",
    )
)  # fmt: skip
"""Classes that the message of an exception may tell: the others end a program in other ways."""


_GOES_ON = compiled(
    r"(?i)\b(?:ignor(?:ed|ing)|skipp(?:ed|ing)|retrying|will (?:try|continue|retry|ignore|skip)|fall(?:s|ing)? ?back|"
    r"continuing|(?:rebound|reconnect)ing|will stop after|thrown while requesting|recomputing|sleeping for|"
    r"defaulting to|using (?:the )?(?:best|default|cached?|slow|cpu)|non-fatal|not fatal|"
    r"harmless|replac(?:ed|ing) (?:by|with)|creating it|zero(?:ed|ing)|"
    r"no (?:\w+ )?(?:checkpoint|ckpt|snapshot|weights|model|state|save)s?(?: files?)? yet|"
    r"start(?:ing|s)? (?:fresh|anew))\b|[;,] using \b|"
    r"(?:\b\w+ing (?:\w+ ){0,2}|[,;:] )from scratch(?: instead)?(?:$|[.,;:!()])"
)


def says_to_go_on(text: str) -> bool:
    """Return whether a line that complains says itself that its program goes on."""
    return _GOES_ON.search(text) is not None


def said_by(text: str) -> FailureClass | None:
    """Return what a line that complains says of the kind of failure: rather the reason in it than what failed."""
    words = tuple(_words().items())
    reason = text.partition(": ")[2]
    return (first(words, reason) if reason else None) or first(words, text)


def said_of_exception(message: str) -> FailureClass | None:
    """Return the class in an exception's message, among those that a program may report by one.

    A message about shapes and types concerns the program's own values, whatever else it says.
    """
    words = _words()
    if _pattern(words["user_code"]).search(message) is not None:
        return None
    return first([each for each in words.items() if each[0] in _OF_EXCEPTIONS], message)


def first(table: Words, text: str) -> FailureClass | None:
    """Return the first class of a table whose pattern is in a text."""
    return next((each for each, pattern in table if _pattern(pattern).search(text) is not None), None)


@cache
def _words() -> Mapping[FailureClass, str]:
    data = pkgutil.get_data("prefect_ft.decide", _RESOURCE)
    assert data is not None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read: Any = yaml.load(data, loader)  # noqa: S506  (a safe loader)
    things: Mapping[str, str] = read["things"]
    joined = {each: "|".join(patterns) for each, patterns in read["classes"].items()}
    return {
        each: f"(?i){_THING.sub(lambda found: things[found[1]], pattern)}" for each, pattern in joined.items()
    }


@cache
def _pattern(pattern: str) -> Any:
    return compiled(pattern)
