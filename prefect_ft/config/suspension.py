"""Suspension as users describe it: when living ranks count as making no progress, and what happens then."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import re2
from pydantic import AfterValidator, Field, StrictBool, field_validator

from prefect_ft.config.fields import DAY_S, MONTH_S, NotBool, Seconds, Section, Text, Words, problem, shown
from prefect_ft.model import Policy, Stage
from prefect_ft.signatures import compiled

_DEFAULT = Policy(systems=(), workers=1)
"""The source of a policy's defaults, for the core and for users."""


def _regex(value: str) -> str:
    try:
        compiled(value)
    except re2.error as error:
        raise problem(f"must be a pattern that RE2 takes, got {shown(value)}") from error
    return value


Above0 = Annotated[float, Field(gt=0, le=MONTH_S, allow_inf_nan=False), NotBool]
Pattern = Annotated[Text, AfterValidator(_regex)]


class RecurringLine(Section):
    """A line that the ranks print repeatedly as long as they make progress."""

    pattern: Pattern = Field(description="Regular expression (re2) of the line", examples=["step \\d+ loss"])
    every_s: Seconds = Field(
        gt=0,
        le=MONTH_S,
        description="Seconds within which it has to come again, once it was seen",
        examples=[600],
    )
    start: Pattern | None = Field(
        default=None,
        description="Regular expression of a line from which on it is due; absent: its first coming",
    )
    stop: Pattern | None = Field(
        default=None, description="Regular expression of a line after which it is no longer due"
    )


class Suspension(Section):
    """What happens when the ranks are alive but make no progress."""

    restart: StrictBool = Field(
        default=_DEFAULT.suspension_restart, description="Restart a suspended phase; off: only report it"
    )
    hang_detect_time_s: Seconds = Field(
        default=1800.0,
        gt=0,
        le=MONTH_S,
        description="Seconds without a sign of progress after which the phase counts as suspended; "
        "MA_HANG_DETECT_TIME (minutes, 10 to 720) in env wins over it",
    )
    mode: Literal["act", "shadow"] = Field(
        default="act",
        description="shadow: only record what would have been acted on, and whether the run then went on",
    )
    evidence: Annotated[int, Field(ge=1, le=2), NotBool] = Field(
        default=2, description="Kinds of evidence, each independent of the others, that make a suspension"
    )
    first_step_s: Above0 | None = Field(
        default=None,
        description="Seconds that the first step after a start may take; absent: learnt, at least floor_s",
    )
    stages: dict[Text, Above0] = Field(
        default={},
        description="Seconds that ranks may be silent in a stage; others are learnt from the pauses of this run "
        "and earlier ones, at least floor_s",
        examples=[{"checkpoint": 3600, "validate": 7200}],
    )
    floor_s: Above0 | None = Field(
        default=None,
        description="Seconds that a learnt limit is never below; absent: hang_detect_time_s",
    )
    logs: tuple[RecurringLine, ...] = Field(
        default=(), description="Lines whose absence is evidence, where output is forwarded"
    )
    device_command: Words | None = Field(
        default=None,
        description="Command that each worker executes once a sample and that prints a JSON object from device to "
        "percent in use; absent: NVIDIA's library where there is one",
        examples=[["./npu-usage.sh"]],
    )
    grace_s: Seconds = Field(
        default=5.0,
        ge=0,
        le=DAY_S,
        description="Seconds that suspended ranks have between SIGTERM and SIGKILL",
    )

    @field_validator("stages")
    @classmethod
    def _names_stages(cls, value: dict[str, float]) -> dict[str, float]:
        known = get_args(Stage)
        for name in value:
            if name not in known:
                raise problem(f"is not a stage; stages are {', '.join(known)}", name)
        return value
