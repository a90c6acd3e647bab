"""The orders of protocol version 1: their fields and forms.

The one table by which the agent checks orders, and against which docs/agent-protocol.md is tested; the orchestrator
owns the table of events. A version only gains names and fields; either side ignores unknown fields.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, Mapping, Tuple

from prefect_ft.worker.forms import (
    BOOL,
    INT,
    NUMBER,
    OBJECT,
    SECONDS,
    STRING,
    Form,
    FormError,
    by_rank,
    fields_of,
    form,
    list_of,
    object_of,
    or_absent,
    or_null,
    problem_of,
)

Token = Tuple[int, int, int]
"""Orchestrator's epoch, phase index, attempt: orders are fenced by it."""

NO_TOKEN: Token = (0, -1, 0)
"""The token of an agent that has seen no start yet; below every other."""


class RefusedError(Exception):
    """An order that must not be carried out; the text is returned to its sender."""


def _token(value: Any) -> Token:
    token: Tuple[int, ...] = INTS.read(value)
    if len(token) != 3:
        raise FormError("is not a token")
    return token[0], token[1], token[2]


INTS = list_of(INT)
OFFSETS = by_rank(INT)
SIGNAL = form("signal number", lambda value: type(value) is int and 0 < value < signal.NSIG)
STRINGS = object_of(STRING)
TEXTS = list_of(STRING)
TIMES = list_of(SECONDS)
TOKEN = Form("[epoch, phase, attempt]", _token)
WORDS = form("[string, ...]", lambda value: TEXTS.holds(value) and bool(value))
MARKS = list_of(
    fields_of(
        {
            "step": INT,
            "path": STRING,
            "counted": BOOL,
            "size": INT,
            "mtime": NUMBER,
            "device": INT,
            "inode": INT,
        }
    )
)
"""The state of checkpoints when they were verified."""

ORDERS: Mapping[str, Mapping[str, Form]] = {
    "attach": {"version": INT, "run": STRING, "key": STRING, "epoch": INT, "have": OFFSETS},
    "choose": {
        "token": TOKEN,
        "limit": or_null(INT),
        "avoid": INTS,
        "deaths": TIMES,
        "verified": or_absent(MARKS),
        "gives_way": or_absent(STRING),
        "unreadable": or_absent(INTS),
    },
    "start": {
        "token": TOKEN,
        "command": WORDS,
        "cwd": STRING,
        "env": STRINGS,
        "ranks": by_rank(STRINGS),
        "note": OBJECT,
        "peers": or_absent(TEXTS),
        "unset": or_absent(TEXTS),
        "secrets": or_absent(TEXTS),
    },
    "checkpoint": {"token": TOKEN, "signal": or_null(SIGNAL)},
    "watch": {"token": TOKEN, "period_s": SECONDS},
    "diagnose": {"token": TOKEN, "timeout_s": SECONDS},
    "stop": {"token": TOKEN, "grace_s": SECONDS, "complete": BOOL},
    "leave": {"token": TOKEN},
}
"""The orders of an orchestrator, with the fields of each, required unless they may be absent."""


def checked(message: Dict[str, Any]) -> str:
    """Return the name of an order after checking its fields; raises RefusedError."""
    op = message.get("op")
    if not isinstance(op, str) or op not in ORDERS:
        raise RefusedError(f"no such order: {op!r}; there are: {', '.join(ORDERS)}")
    if (problem := problem_of(ORDERS[op], message)) is not None:
        raise RefusedError(f"{op}: {problem}")
    return op
