"""The records and forms of the fields of agents' events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from prefect_ft.model import Stage
from prefect_ft.records import Record, absent, of, record
from prefect_ft.worker.forms import (
    ANY,
    BOOL,
    INT,
    NUMBER,
    STRING,
    Form,
    FormError,
    form,
    list_of,
    named,
    or_null,
)
from prefect_ft.worker.protocol import MARKS, STRINGS


def _stage(value: Any) -> Stage | None:
    """Return a stage; None for one of a later version, which journals cannot store."""
    name = or_null(STRING).read(value)
    return name if name in get_args(Stage) else None


STAGE = Form("stage or null", _stage)


def _value(value: Any) -> float | None:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return None if value is None else float(NUMBER.read(value))


class Value(NamedTuple):
    """A rank's report on one step: its number from 1, the step, the loss, the norm of the gradients."""

    number: int
    step: int | None
    loss: float | None
    grad_norm: float | None


def _values(value: Any) -> tuple[Value, ...]:
    rows = list_of(list_of(ANY)).read(value)
    if any(len(row) != len(Value._fields) for row in rows):
        raise FormError("is not a list of values")
    step = or_null(INT).read
    return tuple(Value(INT.read(row[0]), step(row[1]), _value(row[2]), _value(row[3])) for row in rows)


VALUES = Form('[[number, step, loss, grad_norm]], null what is unknown, "nan", "inf", "-inf"', _values)


class RankEnd(Record):
    """How a rank ended: `t_ns` by its machine's CLOCK_BOOTTIME, `oom` where its container ran out of memory."""

    code: int | None = of(or_null(INT))
    signal: int | None = of(or_null(INT))
    t_ns: int = of(INT)
    oom: bool = absent(BOOL, default=False)


class Verified(Record):
    """A complete checkpoint: size in bytes, `mtime` in seconds since the epoch; `counted`: a version, not a step.

    Or one worker's part of one: the files that it `has`, and those that it `needs` other workers to have.
    """

    step: int = of(INT)
    path: str = of(STRING)
    mtime: float | None = of(or_null(NUMBER))
    counted: bool = absent(BOOL, default=False)
    size: int | None = absent(INT)
    device: int | None = absent(INT)
    inode: int | None = absent(INT)
    needs: tuple[str, ...] | None = absent(list_of(STRING))
    has: tuple[str, ...] | None = absent(list_of(STRING))


class Part(Record):
    """A piece of output: where it begins, in bytes, and after how many lines."""

    offset: int = of(INT)
    line: int = of(INT)
    text: str = of(STRING)


class Excerpted(Record):
    """An excerpt of output that stays with the worker, where it has `bytes` and `lines`."""

    bytes: int = of(INT)
    lines: int = of(INT)
    path: str = of(STRING)
    parts: tuple[Part, ...] = of(list_of(record(Part)))


class RankSampled(Record):
    """One rank's activity up to a sample; docs/agent-protocol.md has the units."""

    over: bool = of(BOOL)
    state: str | None = of(or_null(STRING))
    cpu_s: float | None = of(or_null(NUMBER))
    wait_s: float | None = of(or_null(NUMBER))
    io: int | None = of(or_null(INT))
    output: int = of(INT)
    beats: int = of(INT)
    beat_s: float | None = of(or_null(NUMBER))
    step: int | None = of(or_null(INT))
    stage: Stage | None = of(STAGE)


class ContainerCounts(Record):
    """The container's counters: seconds in which it was throttled, processes killed for memory."""

    throttled_s: float | None = of(or_null(NUMBER))
    oom_kills: int | None = of(or_null(INT))


class Process(Record):
    """One process of a rank that hangs."""

    pid: int = of(INT)
    name: str = of(STRING)
    state: str = of(STRING)
    threads: int = of(INT)
    waits_in: str = of(STRING)
    kernel_stack: str = of(STRING)


class Diagnosed(Record):
    """Where a rank is: its Python stacks by pid, and its processes, the rank itself first."""

    stacks: Mapping[str, str] = of(STRINGS)
    processes: tuple[Process, ...] = of(list_of(record(Process)))


class Restarted(Record):
    """A restart within the processes of a worker's ranks."""

    iteration: int = of(INT)
    rank: int | None = of(or_null(INT))
    kind: str = of(STRING)
    text: str = of(STRING)
    took_ms: float = of(NUMBER)


VERIFIED = named(MARKS.name, list_of(record(Verified)))  # agents of earlier versions tell less of them
FAULT = form(
    "{device, code, severity, message}",
    lambda value: isinstance(value, dict) and {"device", "code", "severity", "message"} <= value.keys(),
)
