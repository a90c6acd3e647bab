"""The sections that a job and its phases may have: restarts, checkpoints.

Each checks itself; the job checks requirements between sections.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, StrictBool, model_validator
from typing_extensions import Self

from prefect_ft.config.fields import (
    ADDED,
    DAY_S,
    HOUR_S,
    MAX_COUNT,
    MONTH_S,
    YEAR_S,
    NotBool,
    PathOrUrl,
    Seconds,
    Section,
    Text,
    WholeNumber,
    complete_schema,
    problem,
    shown,
)
from prefect_ft.model import FailureClass, Gated, LastSystem, Policy

ENVIRONMENT_CLASSES: tuple[FailureClass, ...] = (
    "hardware",
    "network",
    "storage",
    "collective_timeout",
    "port_in_use",
)
"""The failures of the program's environment, which neither its code nor its data can prevent."""

_DEFAULT = Policy(systems=(), workers=1)
"""The source of a policy's defaults, for the core and for users."""


def _autorestart_schema(schema: dict[str, Any]) -> None:
    """Show the second name of `min_num_systems`, which pydantic accepts but does not show."""
    properties = schema["properties"]
    other = {"title": "Min Num Csx", "description": "Another name of min_num_systems; give one of the two"}
    complete_schema(schema)
    properties["min_num_csx"] = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, **other}


class AutoRestart(Section):
    """Whether and how often a phase is restarted; without this section it never is."""

    model_config = ConfigDict(json_schema_extra=_autorestart_schema)

    max_num_restarts: WholeNumber = Field(
        ge=1,
        le=128,
        description="Restarts without progress, in a row, after which the next failure fails the phase",
        examples=[3],
    )
    min_num_systems: WholeNumber = Field(
        default=_DEFAULT.min_num_systems,
        ge=1,
        le=MAX_COUNT,
        validation_alias=AliasChoices("min_num_systems", "min_num_csx"),
        description="Usable systems below which the phase fails instead of going on with a smaller gang; "
        "at most the number of workers",
    )
    unconditional: StrictBool = Field(
        default=_DEFAULT.unconditional, description="Restart after any failed exit, whatever its cause"
    )
    restart_on: tuple[FailureClass, ...] = Field(
        default=tuple(name for name in get_args(FailureClass) if name in _DEFAULT.restart_on),
        description="Classes of failure that are transient: the phase is restarted after them",
    )
    environment_only: StrictBool = Field(
        default=_DEFAULT.environment_only,
        description="Restart after no failure that an older checkpoint or a second try might cure; "
        f"restart_on then names none but {', '.join(ENVIRONMENT_CLASSES)}",
    )
    rebuild_only: StrictBool = Field(
        default=_DEFAULT.rebuild_only,
        description="Create all workers anew after a transient failure instead of first restarting in place",
    )
    restart_delay_s: Seconds = Field(
        default=_DEFAULT.restart_delay_s,
        ge=0,
        le=DAY_S,
        description="Seconds before a counted restart, doubled with each further one without progress",
    )
    max_restart_delay_s: Seconds = Field(
        default=_DEFAULT.max_restart_delay_s,
        ge=0,
        le=DAY_S,
        description="Seconds to which that delay may grow",
    )
    max_worker_replacements: WholeNumber = Field(
        default=_DEFAULT.max_worker_replacements,
        ge=0,
        le=128,
        description="Times in a phase that only the workers of a faulty system are replaced, by spares; "
        "0 recreates all workers instead",
    )
    stop_on_repeat: WholeNumber = Field(
        default=_DEFAULT.stop_on_repeat,
        ge=0,
        le=MAX_COUNT,
        description="Identical failures at one step, in a row, after which the next one fails the phase; "
        "0 turns this off",
    )
    suspect_limit: WholeNumber = Field(
        default=_DEFAULT.suspect_limit,
        ge=1,
        le=MAX_COUNT,
        description="Failures that point to a system, after which it is isolated if a spare is there",
    )
    user_induced_codes: tuple[Text, ...] = Field(
        default=tuple(sorted(_DEFAULT.user_induced_codes)),
        description="Codes of device faults that programs cause: they isolate no system",
    )
    isolation_ttl_s: Annotated[float, Field(gt=0, le=YEAR_S, allow_inf_nan=False), NotBool] | None = Field(
        default=_DEFAULT.isolation_ttl_s,
        description="Seconds after which an isolated system may be used again; absent: never in this run",
    )
    max_suspension_restarts: WholeNumber = Field(
        default=_DEFAULT.max_suspension_restarts,
        ge=0,
        le=MAX_COUNT,
        description="Restarts after suspensions, in a row without progress, after which the next one fails",
    )
    max_preemptions: Annotated[int, Field(ge=0, le=MAX_COUNT), NotBool] | None = Field(
        default=_DEFAULT.max_preemptions,
        description="Restarts after a preemption, after which the next one fails the phase; absent: no limit",
    )
    max_hand_overs: Annotated[WholeNumber, ADDED] = Field(
        default=_DEFAULT.max_hand_overs,
        ge=0,
        le=MAX_COUNT,
        description="Allocations that may end without progress, one after the other; the next one fails the phase",
    )
    skip_steps: Annotated[WholeNumber, ADDED] = Field(
        default=_DEFAULT.skip_steps,
        ge=0,
        le=100000,
        description="Steps to skip where numbers or data go bad at the same step again; twice as many each further "
        "time; 0 never skips",
    )
    max_skips: Annotated[WholeNumber, ADDED] = Field(
        default=_DEFAULT.max_skips,
        ge=1,
        le=10,
        description="Restarts that skip steps, without progress",
    )
    max_skips_per_phase: Annotated[WholeNumber, ADDED] = Field(
        default=_DEFAULT.max_skips_per_phase,
        ge=1,
        le=MAX_COUNT,
        description="Restarts that skip steps, in a phase",
    )
    numeric_elsewhere: Annotated[StrictBool, ADDED] = Field(
        default=_DEFAULT.numeric_elsewhere,
        description="Where the numbers of a worker go bad again, start it on a spare once, before its system or the "
        "step is at fault",
    )
    last_system: Annotated[LastSystem, ADDED] = Field(
        default=_DEFAULT.last_system,
        description="What happens where a fault would take a system out of use without which too few are left: fail "
        "the phase, or keep the system and restart in place, as often as max_num_restarts allows",
    )
    ask_before: tuple[Gated, ...] = Field(
        default=(),
        description="Decisions that wait for a person: isolate, taking a system out of use; fail, giving up",
        examples=[["isolate", "fail"]],
    )
    ask_timeout_s: Seconds = Field(
        default=3600.0,
        gt=0,
        le=MONTH_S,
        description="Seconds that an answer is waited for; then ask_default holds",
    )
    ask_default: Literal["approve", "reject"] = Field(
        default="approve",
        description="What holds without an answer; rejected, a phase is restarted without isolating",
    )

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        others = [name for name in self.restart_on if name not in ENVIRONMENT_CLASSES]
        if self.environment_only and self.unconditional:
            raise problem(
                "cannot be combined with unconditional: true; keep one of the two", "environment_only"
            )
        if self.environment_only and others:
            written = f"restart_on: [{', '.join(ENVIRONMENT_CLASSES)}]"
            message = f"needs restart_on without {others[0]!r}; write {written}, or environment_only: false"
            raise problem(message, "environment_only")
        return self

    def onto(self, base: Policy) -> Policy:
        """Return the policy `base` with these restarts."""
        return replace(
            base,
            autorestart=True,
            max_num_restarts=self.max_num_restarts,
            min_num_systems=self.min_num_systems,
            unconditional=self.unconditional,
            restart_on=frozenset(self.restart_on),
            environment_only=self.environment_only,
            rebuild_only=self.rebuild_only,
            restart_delay_s=self.restart_delay_s,
            max_restart_delay_s=self.max_restart_delay_s,
            max_worker_replacements=self.max_worker_replacements,
            stop_on_repeat=self.stop_on_repeat,
            suspect_limit=self.suspect_limit,
            user_induced_codes=frozenset(self.user_induced_codes),
            isolation_ttl_s=self.isolation_ttl_s,
            max_suspension_restarts=self.max_suspension_restarts,
            max_preemptions=self.max_preemptions,
            max_hand_overs=self.max_hand_overs,
            skip_steps=self.skip_steps,
            max_skips=self.max_skips,
            max_skips_per_phase=self.max_skips_per_phase,
            numeric_elsewhere=self.numeric_elsewhere,
            last_system=self.last_system,
        )


def _layouts() -> list[str]:
    from prefect_ft.worker.checkpoints import LAYOUTS  # noqa: PLC0415  # only a job that names one needs them

    return ["auto", *LAYOUTS]


def _layout(value: str) -> str:
    if value != "auto" and value not in _layouts():
        raise problem(f"must be one of {', '.join(_layouts())}, got {shown(value)}")
    return value


def _layout_schema(schema: dict[str, Any]) -> None:
    schema["enum"] = _layouts()


def _pattern(value: str) -> str:
    from prefect_ft.worker.checkpoints.names import PatternNames  # noqa: PLC0415  # as for the layouts

    if value.count("{step}") > 1:
        raise problem(f"must hold {{step}} once, where the step stands in a name, got {shown(value)}")
    try:
        PatternNames(value)
    except ValueError as error:
        raise problem(f"must be NAME or DIRECTORY/NAME inside path, got {shown(value)}") from error
    return value


def _signal(value: str) -> str:
    if value in ("SIGKILL", "SIGSTOP") or value not in signal.Signals.__members__:
        raise problem(
            f"must be the name of a signal that a program can take, like SIGUSR1, got {shown(value)}"
        )
    return value


class OnDemand(Section):
    """How ranks are asked for a checkpoint before they are stopped on purpose."""

    signal: Annotated[Text, AfterValidator(_signal)] | None = Field(
        default=None,
        description="Signal that is sent to those processes of each rank that handle it; absent: none. "
        "should_checkpoint() says so in either case",
        examples=["SIGUSR1"],
    )
    grace_s: Seconds = Field(
        default=60.0,
        gt=0,
        le=DAY_S,
        description="Seconds that a new checkpoint is waited for, before the stop",
    )


class Checkpoints(Section):
    """Where the command saves its checkpoints, and what they look like."""

    path: PathOrUrl = Field(
        description="Directory or URL; a relative one starts at the job file's directory",
        examples=["checkpoints"],
    )
    layout: Annotated[Text, AfterValidator(_layout)] = Field(
        default="auto",
        description="How a checkpoint is laid out; auto knows the usual layouts by their files",
        json_schema_extra=_layout_schema,
    )
    pattern: Annotated[Text, AfterValidator(_pattern)] | None = Field(
        default=None,
        description="A checkpoint's name with {step} where its step stands, for names unknown to auto; without "
        "{step}, the name of a file that each checkpoint overwrites",
        examples=["weights_{step}.bin"],
    )
    settle_s: Seconds = Field(
        default=2.0,
        ge=0,
        le=HOUR_S,
        description="Seconds in which a checkpoint that has no marker must not grow before it counts",
    )
    keep_copies: Annotated[bool, ADDED] = Field(
        default=False,
        description="Keep copies of a file that each checkpoint overwrites, and restore the newest complete one where "
        "the file is truncated; needs room for three of them",
    )
    local: Annotated[StrictBool, ADDED] = Field(
        default=False,
        description="Each worker saves its part to a disk of its own, which the others do not see: a checkpoint counts "
        "once all workers have their parts. `{system}` in path is the system's name",
    )
    warn_after_s: Annotated[Seconds, ADDED] = Field(
        default=600.0,
        ge=0,
        le=DAY_S,
        description="Seconds after which a run is warned of that has saved nothing to resume from; 0: it is not",
    )
    on_demand: OnDemand | None = Field(
        default=None,
        description="Ask for a checkpoint before a planned stop: of a system that still works, on a notice of "
        "preemption, by cancel --checkpoint; absent: never",
    )

    @model_validator(mode="after")
    def _is_local_or_shared(self) -> Self:
        if self.keep_copies and self.is_remote:
            raise problem("needs a directory, where a file can be put back", "keep_copies")
        if self.local and self.is_remote:
            raise problem("cannot be combined with a URL: all workers see that; keep one of the two", "local")
        if self.local and self.keep_copies:
            message = "cannot be combined with keep_copies; save each step under a name of its own"
            raise problem(message, "local")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether they are at a URL, where the orchestrator looks for them."""
        return "://" in self.path

    @property
    def never_copied(self) -> str | None:
        """Why `keep_copies` has no effect; None: it has, or is off."""
        if not self.keep_copies or self.pattern is None:
            return None
        if "/" in self.pattern:
            why = "only files directly in path are copied"
        elif "{step}" in self.pattern:
            why = "no file is overwritten whose name has {step}"
        else:
            return None
        return f"has no effect with the pattern {shown(self.pattern)}: {why}"

    def places(self, systems: Iterable[str]) -> list[str]:
        """Return the directories on these systems' own disks, or the one that all share."""
        from prefect_ft.worker.checkpoints.names import place_on  # noqa: PLC0415  # as for the layouts

        return sorted({place_on(self.path, system) for system in systems}) if self.local else [self.path]
