"""The orders and events of protocol version 1: their fields and types, and who may say what when.

The one table that the agent checks orders by and docs/agent-protocol.md is held against. A version
changes only by new names and new fields; whoever does not know a field passes over it.
"""

from __future__ import annotations

import math
import signal
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

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


def _record(**holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Hold for an object that has these fields, of these types; later versions may add others."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and check(value[name]) for name, check in holds.items())
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _null_or(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


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
    _by_rank(_record(code=_null_or(_is_int), signal=_null_or(_is_int), t_ns=_is_int)),
)
VERIFIED = Type(
    "[{step, path, counted, size, mtime, device, inode}]",
    lambda value: _is_list_of(
        value,
        _record(
            step=_is_int,
            path=_is_string,
            counted=_is_bool,
            size=_is_int,
            mtime=_is_number,
            device=_is_int,
            inode=_is_int,
        ),
    ),
)
CHECKPOINTS = Type(
    VERIFIED.name,  # agents of earlier versions tell less of them
    lambda value: _is_list_of(value, _record(step=_is_int, path=_is_string, mtime=_null_or(_is_number))),
)
FAULT = Type(
    "{device, code, severity, message}",
    _record(**dict.fromkeys(("device", "code", "severity", "message"), lambda _: True)),
)
RESTART = Type(
    "{iteration, rank, kind, text, took_ms}",
    _record(iteration=_is_int, rank=_null_or(_is_int), kind=_is_string, text=_is_string, took_ms=_is_number),
)
PARTS = Type(
    "[{offset, line, text}]",
    lambda value: _is_list_of(value, _record(offset=_is_int, line=_is_int, text=_is_string)),
)
USAGE = Type(
    "{device: percent}", lambda value: isinstance(value, dict) and all(map(_is_number, value.values()))
)
COUNTS = Type(
    "{throttled_s, oom_kills}", _record(throttled_s=_null_or(_is_number), oom_kills=_null_or(_is_int))
)
SAMPLES = Type(
    "{rank: sample}",
    _by_rank(
        _record(
            over=_is_bool,
            state=_null_or(_is_string),
            cpu_s=_null_or(_is_number),
            wait_s=_null_or(_is_number),
            io=_null_or(_is_int),
            output=_is_int,
            beats=_is_int,
            beat_s=_null_or(_is_number),
            step=_null_or(_is_int),
            stage=_null_or(_is_string),
        )
    ),
)
_PROCESS = _record(
    pid=_is_int,
    name=_is_string,
    state=_is_string,
    threads=_is_int,
    waits_in=_is_string,
    kernel_stack=_is_string,
)
DIAGNOSES = Type(
    "{rank: {stacks, processes}}",
    _by_rank(_record(stacks=_is_environment, processes=lambda value: _is_list_of(value, _PROCESS))),
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
        "verified": _or_absent(VERIFIED),
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
        "release": _or_absent(_or_null(STRING)),
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
    "checkpoints": {"new": CHECKPOINTS, "gone": _or_absent(INTS), "last": _or_null(INT)},
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
    "refused": {
        "op": ANY,
        "why": STRING,
        "epoch": INT,
        "version": _or_absent(INT),
        "release": _or_absent(_or_null(STRING)),
    },
    "superseded": {"epoch": INT},
}
"""What an agent reports: each event's fields, besides `token`, which all of them carry."""


def checked(message: Dict[str, Any]) -> str:
    """Return the name of the order that `message` is, whole and of the right types; raises RefusedError."""
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


def event_problem(message: Dict[str, Any]) -> Optional[str]:
    """Return what keeps a message from being an event: then no agent of any version has said it. None: nothing.

    An event or a field that is not known here is of a later version.
    """
    kind = message.get("ev")
    if not isinstance(kind, str):
        return "an event without a name"
    for field, expected in {"token": TOKEN, **EVENTS.get(kind, {})}.items():
        if field not in message and not expected.may_be_absent:
            return f"{kind} without {field}"
        if field in message and not expected.holds(message[field]):
            return f"{kind}: {field} must be {expected.name}"
    return None
