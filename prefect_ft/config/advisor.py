"""An advisor as users describe it: a command of theirs, asked about failures that the classifier cannot name."""

from __future__ import annotations

from pydantic import Field

from prefect_ft.config.fields import HOUR_S, Seconds, Section, Words


class Advisor(Section):
    """The command that is asked why an attempt failed where the classifier does not know, or is not sure."""

    command: Words = Field(
        description="Command that reads an excerpt of the output from standard input, as a JSON object, and answers "
        'with one: {"class": …, "line": …, "reason": …}. Its answer never ends a run',
        examples=[["./why.py", "--model", "local"]],
    )
    timeout_s: Seconds = Field(
        default=30.0,
        gt=0,
        le=HOUR_S,
        description="Seconds after which the restart continues without its answer",
    )
