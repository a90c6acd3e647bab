"""Agents' events, of protocol version 1, parsed once, where they arrive.

The one table by which events are checked and read, and which tests compare with docs/agent-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from prefect_ft.model import Evidence, Stage
from prefect_ft.records import Record, absent, of, record
from prefect_ft.supervisor.event_parts import (
    FAULT,
    STAGE,
    VALUES,
    VERIFIED,
    ContainerCounts,
    Diagnosed,
    Excerpted,
    Part,
    RankEnd,
    RankSampled,
    Restarted,
    Value,
    Verified,
)
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
    list_of,
    named,
    object_of,
    or_null,
)
from prefect_ft.worker.protocol import INTS, OFFSETS, SIGNAL, STRINGS, TIMES, TOKEN, Token

# -- events -------------------------------------------------------------------------------------------


class Event(Record):
    """Any event of an agent. `token` is that of the last start that it knows."""

    name: ClassVar[str]
    token: Token = of(TOKEN)


class AgentStanding(Event):
    """An agent's state: where the next attempt's ranks can meet, and how those of the last one ended."""

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
    """The checkpoint to resume from; None: from scratch. `why_not` says why others were skipped, by name."""

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
    """Output of a rank, from this offset in bytes."""

    name = "output"
    rank: int = of(INT)
    offset: int = of(INT)
    text: str = of(STRING)


class Dropped(Event):
    """Output that was dropped because it came too fast."""

    name = "dropped"
    rank: int = of(INT)
    bytes: int = of(INT)


class Excerpt(Event):
    """An excerpt of a rank's output that stays with the worker."""

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
    """The activity of all ranks of a worker; `past`: an earlier sample, sent again."""

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
    """The detectors that the agent uses for device faults, and why it does not use others."""

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
    """Verified checkpoints, and steps that are no longer good; earlier versions report only the `last` good one."""

    name = "checkpoints"
    new: tuple[Verified, ...] = of(VERIFIED)
    last: int | None = of(or_null(INT))
    gone: tuple[int, ...] | None = absent(INTS)


class Unrecognised(Event):
    """Files that look like checkpoints of no known layout, each with the reason."""

    name = "unrecognised"
    names: Mapping[str, str] = of(STRINGS)


class Unhandled(Event):
    """Ranks of which no process handles the signal that asks for a checkpoint; it was not sent to them."""

    name = "unhandled"
    signal: int = of(SIGNAL)
    ranks: tuple[int, ...] = of(INTS)


class CameUp(Event):
    """How far the ranks have come up: they have printed, or met."""

    name = "came_up"
    what: str = of(STRING)
    t_ns: int = of(INT)


class Call(Event):
    """The ranks inside a wrapped call, and lost ones that it continues without."""

    name = "call"
    inside: tuple[int, ...] = of(INTS)
    excused: tuple[int, ...] = of(INTS)


class Stopped(Event):
    """All processes of the attempt have ended, except those that are `stuck` in the kernel, by pid."""

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
    """The agent was asked to leave."""

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
            Unhandled,
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
    """The result of an agent that has left by itself, with undelivered output by rank."""

    name = "left"

    excerpts: Mapping[int, Excerpted] | None = absent(by_rank(record(Excerpted)))


class Lost(Record):
    """The orchestrator's own event for a worker whose agent is gone."""

    system_answers: bool = of(BOOL)
    evidence: Evidence | None = of(ANY)


# -- reading ------------------------------------------------------------------------------------------


def read_event(message: Mapping[str, Any]) -> Event | None:
    """Return the event in a message, None for one of a later version; raises FormError for an invalid one."""
    kind = message.get("ev")
    if not isinstance(kind, str):
        raise FormError("an event without a name")
    try:
        event = _EVENTS.get(kind, Event).read(message)
    except FormError as exc:
        raise FormError(f"{kind}: {exc}") from exc
    return event if kind in _EVENTS else None
