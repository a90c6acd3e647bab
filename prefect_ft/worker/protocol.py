"""The orders and events of protocol version 1: their fields and types, and who may say what when.

The one table that the agent checks orders by and docs/agent-protocol.md is held against. A version
changes only by new names and new fields; whoever does not know a field passes over it.
"""

from __future__ import annotations

import math
import signal
from typing import Any, Callable, Dict, NamedTuple, Tuple

Token = Tuple[int, int, int]
"""Orchestrator's epoch, phase index, attempt: what orders are fenced by."""

NO_TOKEN: Token = (0, -1, 0)
"""What an agent has seen that has seen no start yet; below every other."""


class RefusedError(Exception):
    """An order that must not be carried out; the text goes back to who gave it."""


class Type(NamedTuple):
    """A field's type: its name in the documentation, and whether a value is of it."""

    name: str
    holds: Callable[[Any], bool]
    may_be_absent: bool = False


def _is_int(value: Any) -> bool:
    return type(value) is int  # a bool is none here


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_environment(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_list_of(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _by_rank(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Hold for an object whose keys are ranks in decimal digits."""
    return lambda value: (
        isinstance(value, dict)
        and all(key.isascii() and key.isdigit() and len(key) < 10 for key in value)
        and all(map(holds, value.values()))
    )


def _or_null(known: Type) -> Type:
    return Type(f"{known.name} or null", lambda value: value is None or known.holds(value))


def _or_absent(known: Type) -> Type:
    return Type(f"{known.name}, or absent", known.holds, may_be_absent=True)


BOOL = Type("bool", lambda value: isinstance(value, bool))
INT = Type("int", _is_int)
INTS = Type("[int]", lambda value: _is_list_of(value, _is_int))
SIGNAL = Type("signal number", lambda value: _is_int(value) and 0 < value < signal.NSIG)
SECONDS = Type("seconds", _is_seconds)
TIMES = Type("[seconds]", lambda value: _is_list_of(value, _is_seconds))
STRING = Type("string", _is_string)
WORDS = Type("[string, ...]", lambda value: _is_list_of(value, _is_string) and bool(value))
STRINGS = Type("{string: string}", _is_environment)
ENVIRONMENTS = Type("{rank: {string: string}}", _by_rank(_is_environment))
OFFSETS = Type("{rank: int}", _by_rank(_is_int))
MAYBE_STRINGS = Type("[string], or absent", lambda value: _is_list_of(value, _is_string), may_be_absent=True)
PATHS = Type("{rank: string}", _by_rank(_is_string))
TOKEN = Type("[epoch, phase, attempt]", lambda value: _is_list_of(value, _is_int) and len(value) == 3)
STAGE = Type("stage or null", lambda value: value is None or isinstance(value, str))
EXITS = Type(
    "{rank: {code, signal, t_ns, oom}}",
    _by_rank(lambda value: isinstance(value, dict) and set(value) == {"code", "signal", "t_ns", "oom"}),
)
_CHECKPOINT = {
    "step": _is_int,
    "path": _is_string,
    "counted": lambda value: isinstance(value, bool),
    "size": _is_int,
    "mtime": _is_number,
    "device": _is_int,
    "inode": _is_int,
}
CHECKPOINTS = Type(
    f"[{{{', '.join(_CHECKPOINT)}}}]",
    lambda value: _is_list_of(
        value,
        lambda item: (
            isinstance(item, dict)
            and set(item) >= set(_CHECKPOINT)
            and all(holds(item[name]) for name, holds in _CHECKPOINT.items())
        ),
    ),
)
FAULT = Type(
    "{device, code, severity, message}",
    lambda value: isinstance(value, dict) and set(value) == {"device", "code", "severity", "message"},
)
RESTART = Type(
    "{iteration, rank, kind, text, took_ms}",
    lambda value: isinstance(value, dict) and set(value) == {"iteration", "rank", "kind", "text", "took_ms"},
)
PARTS = Type(
    "[{offset, line, text}]",
    lambda value: _is_list_of(
        value, lambda item: isinstance(item, dict) and set(item) == {"offset", "line", "text"}
    ),
)
USAGE = Type(
    "{device: percent}",
    lambda value: isinstance(value, dict) and all(type(each) in (int, float) for each in value.values()),
)
COUNTS = Type(
    "{throttled_s, oom_kills}",
    lambda value: isinstance(value, dict) and set(value) == {"throttled_s", "oom_kills"},
)
SAMPLES = Type(
    "{rank: sample}",
    _by_rank(
        lambda value: (
            isinstance(value, dict)
            and set(value)
            == {"over", "state", "cpu_s", "wait_s", "io", "output", "beats", "beat_s", "step", "stage"}
        )
    ),
)
DIAGNOSES = Type(
    "{rank: {stacks, processes}}",
    _by_rank(lambda value: isinstance(value, dict) and set(value) == {"stacks", "processes"}),
)
OBJECT = Type("object", lambda value: isinstance(value, dict))
ANY = Type("any", lambda _: True)

ORDERS: Dict[str, Dict[str, Type]] = {
    "attach": {"version": INT, "run": STRING, "key": STRING, "epoch": INT, "have": OFFSETS},
    "choose": {
        "token": TOKEN,
        "limit": _or_null(INT),
        "avoid": INTS,
        "deaths": TIMES,
        "verified": _or_absent(CHECKPOINTS),
        "unreadable": _or_absent(INTS),
    },
    "start": {
        "token": TOKEN,
        "command": WORDS,
        "cwd": STRING,
        "env": STRINGS,
        "ranks": ENVIRONMENTS,
        "note": OBJECT,
        "peers": MAYBE_STRINGS,
        "unset": MAYBE_STRINGS,
        "secrets": MAYBE_STRINGS,
    },
    "checkpoint": {"token": TOKEN, "signal": _or_null(SIGNAL)},
    "watch": {"token": TOKEN, "period_s": SECONDS},
    "diagnose": {"token": TOKEN, "timeout_s": SECONDS},
    "stop": {"token": TOKEN, "grace_s": SECONDS, "complete": BOOL},
    "leave": {"token": TOKEN},
}
"""What an orchestrator may ask: each order's fields, required but for those that may be absent."""

EVENTS: Dict[str, Dict[str, Type]] = {
    "attached": {
        "version": INT,
        "release": _or_null(STRING),
        "worker": INT,
        "system": STRING,
        "pid": INT,
        "port": _or_null(INT),
        "store": BOOL,
        "in_process_port": _or_null(INT),
        "inside": INTS,
        "excused": INTS,
        "running": INTS,
        "over": BOOL,
        "exits": EXITS,
        "note": _or_null(OBJECT),
        "deaths": TIMES,
    },
    "chosen": {"step": _or_null(INT), "path": _or_null(STRING), "why_not": STRINGS},
    "started": {"pids": OFFSETS, "stays": PATHS, "warm": BOOL},
    "start_failed": {"errno": _or_null(INT), "error": STRING, "what": STRING},
    "exited": {
        "rank": INT,
        "code": _or_null(INT),
        "signal": _or_null(INT),
        "t_ns": INT,
        "oom": BOOL,
        "ends": BOOL,
    },
    "output": {"rank": INT, "offset": INT, "text": STRING},
    "dropped": {"rank": INT, "bytes": INT},
    "excerpt": {"rank": INT, "bytes": INT, "lines": INT, "path": STRING, "parts": PARTS},
    "beat": {
        "rank": INT,
        "beats": INT,
        "t_ns": INT,
        "step": _or_null(INT),
        "stage": STAGE,
        "stage_t_ns": _or_null(INT),
        "stage_step": _or_null(INT),
    },
    "sample": {
        "watched_s": SECONDS,
        "past": BOOL,
        "devices": _or_null(USAGE),
        "container": _or_null(COUNTS),
        "ranks": SAMPLES,
    },
    "diagnosis": {"ranks": DIAGNOSES},
    "fault": {"rank": INT, "n": INT, "report": FAULT},
    "in_process": {"rank": INT, "n": INT, "report": RESTART},
    "checkpoints": {"new": CHECKPOINTS, "gone": INTS, "last": _or_null(INT)},
    "unrecognised": {"names": STRINGS},
    "came_up": {"what": STRING, "t_ns": INT},
    "call": {"inside": INTS, "excused": INTS},
    "stopped": {
        "stuck": INTS,
        "port": _or_null(INT),
        "store": BOOL,
        "in_process_port": _or_null(INT),
        "deaths": TIMES,
        "passed_over": _or_null(STRINGS),
    },
    "warm": {
        "ready": BOOL,
        "modules": INT,
        "parked": INT,
        "memory_kb": INT,
        "left_out": STRINGS,
        "why_cold": _or_null(STRING),
    },
    "leaving": {"within_s": SECONDS},
    "refused": {"op": ANY, "why": STRING, "epoch": INT, "version": INT, "release": _or_null(STRING)},
    "superseded": {"epoch": INT},
}
"""What an agent reports: each event's fields, besides `token`, which all of them carry."""


def checked(message: Dict[str, Any]) -> str:
    """Give the name of the order that `message` is, whole and of the right types; raises RefusedError."""
    op = message.get("op")
    if not isinstance(op, str) or op not in ORDERS:
        raise RefusedError(f"no such order: {op!r}; there are: {', '.join(ORDERS)}")
    for field, expected in ORDERS[op].items():
        if field not in message and expected.may_be_absent:
            continue
        if field not in message:
            raise RefusedError(f"{op} without {field}")
        if not expected.holds(message[field]):
            raise RefusedError(f"{op}: {field} must be {expected.name}")
    return op
