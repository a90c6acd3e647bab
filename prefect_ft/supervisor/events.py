"""What agents report: the events of protocol version 1, read once, where they come in.

The one table that events are checked and read by and docs/agent-protocol.md is held against.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, get_args

from prefect_ft.model import Evidence, Stage
from prefect_ft.records import Record, absent, of, record
from prefect_ft.worker.forms import (
    ANY,
    BOOL,
    INT,
    NUMBER,
    OBJECT,
    SECONDS,
    STRING,
    Form,
    FormError,
    by_rank,
    form,
    list_of,
    named,
    object_of,
    or_null,
)
from prefect_ft.worker.protocol import INTS, MARKS, OFFSETS, STRINGS, TIMES, TOKEN, Token

# -- what events are made of --------------------------------------------------------------------------


def _stage(value: Any) -> Stage | None:
    """Return a stage; None for one of a later version, which journals would not hold."""
    name = or_null(STRING).read(value)
    return name if name in get_args(Stage) else None


STAGE = Form("stage or null", _stage)


def _value(value: Any) -> float | None:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return None if value is None else float(NUMBER.read(value))


class Value(NamedTuple):
    """What a rank reported of one step: its number from 1, the step, the loss, the norm of the gradients."""

    number: int
    step: int | None
    loss: float | None
    grad_norm: float | None


def _values(value: Any) -> tuple[Value, ...]:
    rows = list_of(list_of(ANY)).read(value)
    if any(len(row) != len(Value._fields) for row in rows):
        raise FormError("is no list of values")
    step = or_null(INT).read
    return tuple(Value(INT.read(row[0]), step(row[1]), _value(row[2]), _value(row[3])) for row in rows)


VALUES = Form('[[number, step, loss, grad_norm]], null what is unknown, "nan", "inf", "-inf"', _values)


class RankEnd(Record):
    """How a rank ended: `t_ns` by its machine's CLOCK_BOOTTIME, `oom` where its container's memory was used up."""

    code: int | None = of(or_null(INT))
    signal: int | None = of(or_null(INT))
    t_ns: int = of(INT)
    oom: bool = absent(BOOL, default=False)


class Verified(Record):
    """A whole checkpoint: size in bytes, `mtime` in seconds since the epoch; `counted`: a version, not a step.

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
    """What was chosen of output that stays with the worker, in which it has `bytes` and `lines`."""

    bytes: int = of(INT)
    lines: int = of(INT)
    path: str = of(STRING)
    parts: tuple[Part, ...] = of(list_of(record(Part)))


class RankSampled(Record):
    """What one rank did up to a sample; docs/agent-protocol.md has the units."""

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
    """What the worker's container has counted: seconds in which it was throttled, processes killed for memory."""

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


# -- events -------------------------------------------------------------------------------------------


class Event(Record):
    """Anything that an agent reports. `token` is that of the last start that it knows."""

    name: ClassVar[str]
    token: Token = of(TOKEN)


class AgentStanding(Event):
    """How an agent stands: where the next attempt's ranks can meet, and what became of the last one's."""

    port: int | None = of(or_null(INT))
    store: bool = of(BOOL)
    in_process_port: int | None = of(or_null(INT))
    inside: tuple[int, ...] = of(INTS)
    excused: tuple[int, ...] = of(INTS)
    running: tuple[int, ...] = of(INTS)
    over: bool = of(BOOL)
    exits: Mapping[int, RankEnd] = of(named("{rank: {code, signal, t_ns, oom}}", by_rank(record(RankEnd))))
    note: Mapping[str, Any] | None = of(or_null(OBJECT))
    deaths: tuple[float, ...] = of(TIMES)


class Attached(AgentStanding):
    """The agent has let an orchestrator in."""

    name = "attached"
    version: int = of(INT)
    worker: int = of(INT)
    system: str = of(STRING)
    pid: int = of(INT)
    release: str | None = absent(or_null(STRING))


class Chosen(Event):
    """The checkpoint to resume from; None: from scratch. `why_not` says what is wrong with others, by name."""

    name = "chosen"
    step: int | None = of(or_null(INT))
    path: str | None = of(or_null(STRING))
    why_not: Mapping[str, str] = of(STRINGS)


class Started(Event):
    """All ranks have been started. `stays`: files in which the output of ranks stays with the worker."""

    name = "started"
    pids: Mapping[int, int] = of(OFFSETS)
    stays: Mapping[int, str] = of(by_rank(STRING))
    warm: bool = of(BOOL)


class StartFailed(Event):
    """The command could not be started."""

    name = "start_failed"
    errno: int | None = of(or_null(INT))
    error: str = of(STRING)
    what: str = of(STRING)


class Exited(Event):
    """A rank has ended. `ends`: the agent ends the attempt's other ranks by itself."""

    name = "exited"
    rank: int = of(INT)
    code: int | None = of(or_null(INT))
    signal: int | None = of(or_null(INT))
    t_ns: int = of(INT)
    oom: bool = of(BOOL)
    ends: bool = of(BOOL)


class Output(Event):
    """What a rank has printed, from this offset in bytes."""

    name = "output"
    rank: int = of(INT)
    offset: int = of(INT)
    text: str = of(STRING)


class Dropped(Event):
    """Output that came too fast to keep."""

    name = "dropped"
    rank: int = of(INT)
    bytes: int = of(INT)


class Excerpt(Event):
    """What was chosen of a rank's output that stays with the worker."""

    name = "excerpt"
    rank: int = of(INT)
    bytes: int = of(INT)
    lines: int = of(INT)
    path: str = of(STRING)
    parts: tuple[Part, ...] = of(list_of(record(Part)))


class Beat(Event):
    """A rank's heartbeat. Times are by CLOCK_BOOTTIME."""

    name = "beat"
    rank: int = of(INT)
    beats: int = of(INT)
    t_ns: int = of(INT)
    step: int | None = of(or_null(INT))
    stage: Stage | None = of(STAGE)
    stage_t_ns: int | None = of(or_null(INT))
    stage_step: int | None = of(or_null(INT))
    every: int | None = absent(or_null(INT))
    values: tuple[Value, ...] = absent(VALUES, default=())
    sample: str | None = absent(STRING)
    sample_step: int | None = absent(or_null(INT))


class Sampled(Event):
    """What all ranks of a worker did; `past`: a look back at what was sampled before."""

    name = "sample"
    watched_s: float = of(SECONDS)
    past: bool = of(BOOL)
    devices: Mapping[str, float] | None = of(or_null(named("{device: percent}", object_of(NUMBER))))
    container: ContainerCounts | None = of(or_null(record(ContainerCounts)))
    ranks: Mapping[int, RankSampled] = of(named("{rank: sample}", by_rank(record(RankSampled))))


class Diagnosis(Event):
    """Where the ranks are."""

    name = "diagnosis"
    ranks: Mapping[int, Diagnosed] = of(by_rank(record(Diagnosed)))


class Fault(Event):
    """A rank's report of a fault, its `n`-th."""

    name = "fault"
    rank: int = of(INT)
    n: int = of(INT)
    report: Mapping[str, Any] = of(FAULT)


class Detected(Event):
    """A fault of a device that the agent found by itself, at CLOCK_BOOTTIME `t_ns`."""

    name = "detected"
    t_ns: int = of(INT)
    report: Mapping[str, Any] = of(FAULT)


class Detecting(Event):
    """By what the agent looks for faults of devices, and why not by others."""

    name = "detecting"
    by: tuple[str, ...] = of(list_of(STRING))
    why_not: Mapping[str, str] = of(STRINGS)


class InProcess(Event):
    """A restart within the processes, the `n`-th."""

    name = "in_process"
    rank: int = of(INT)
    n: int = of(INT)
    report: Restarted = of(record(Restarted))


class Checkpoints(Event):
    """What has been verified, and the steps that are good no more; earlier versions tell only the `last` good one."""

    name = "checkpoints"
    new: tuple[Verified, ...] = of(VERIFIED)
    last: int | None = of(or_null(INT))
    gone: tuple[int, ...] | None = absent(INTS)


class Unrecognised(Event):
    """Files that look like checkpoints of no known layout, each with the reason."""

    name = "unrecognised"
    names: Mapping[str, str] = of(STRINGS)


class CameUp(Event):
    """How far the ranks have come up: they have printed, or met."""

    name = "came_up"
    what: str = of(STRING)
    t_ns: int = of(INT)


class Call(Event):
    """The ranks inside a wrapped call, and those that are lost and that it goes on without."""

    name = "call"
    inside: tuple[int, ...] = of(INTS)
    excused: tuple[int, ...] = of(INTS)


class Stopped(Event):
    """Nothing of the attempt runs any more but processes that are `stuck` in the kernel, by pid."""

    name = "stopped"
    stuck: tuple[int, ...] = of(INTS)
    port: int | None = of(or_null(INT))
    store: bool = of(BOOL)
    in_process_port: int | None = of(or_null(INT))
    deaths: tuple[float, ...] = of(TIMES)
    passed_over: Mapping[str, str] | None = of(or_null(STRINGS))


class Warm(Event):
    """What a worker keeps ready for the next start."""

    name = "warm"
    ready: bool = of(BOOL)
    modules: int = of(INT)
    parked: int = of(INT)
    memory_kb: int = of(INT)
    left_out: Mapping[str, str] = of(STRINGS)
    why_cold: str | None = of(or_null(STRING))


class Leaving(Event):
    """The agent was told to go."""

    name = "leaving"
    within_s: float = of(SECONDS)


class Refused(Event):
    """An order was not carried out."""

    name = "refused"
    op: Any = of(ANY)
    why: str = of(STRING)
    epoch: int = of(INT)
    version: int | None = absent(INT)
    release: str | None = absent(or_null(STRING))


class Superseded(Event):
    """An orchestrator of a higher epoch has been let in."""

    name = "superseded"
    epoch: int = of(INT)


_EVENTS: Mapping[str, type[Event]] = {
    event.name: event
    for event in (
        *(Attached, Chosen, Started, StartFailed, Exited, Output, Dropped, Excerpt, Beat, Sampled, Diagnosis),
        *(
            Fault,
            Detected,
            Detecting,
            InProcess,
            Checkpoints,
            Unrecognised,
            CameUp,
            Call,
            Stopped,
            Warm,
            Leaving,
            Refused,
            Superseded,
        ),
    )
}
EVENTS: Mapping[str, Mapping[str, Form]] = {
    name: {field: its for field, its in event.forms.items() if field != "token"}
    for name, event in _EVENTS.items()
}
"""What an agent reports: each event's fields, besides `token`, which all of them carry."""


class Left(AgentStanding):
    """What an agent leaves behind that leaves by itself: also, by rank, output that nobody heard."""

    name = "left"

    excerpts: Mapping[int, Excerpted] | None = absent(by_rank(record(Excerpted)))


class Lost(Record):
    """What the orchestrator itself says of a worker whose agent is gone."""

    system_answers: bool = of(BOOL)
    evidence: Evidence | None = of(ANY)


# -- reading ------------------------------------------------------------------------------------------


def read_event(message: Mapping[str, Any]) -> Event | None:
    """Return the event that a message is, None for one of a later version; raises FormError for what is none."""
    kind = message.get("ev")
    if not isinstance(kind, str):
        raise FormError("an event without a name")
    try:
        event = _EVENTS.get(kind, Event).read(message)
    except FormError as exc:
        raise FormError(f"{kind}: {exc}") from exc
    return event if kind in _EVENTS else None
