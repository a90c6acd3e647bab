"""Faults of devices: where reports of them come from, and how severe a code is.

The presets' codes stand in `device_faults.yaml`, with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import Field, StrictBool

from prefect_ft.config.fields import DAY_S, Directory, Seconds, Section, Text, Words
from prefect_ft.model import Severity

Preset = Literal["nvidia", "ascend"]


class Faults(Section):
    """Who reports faults of devices and losses of systems, besides the ranks themselves."""

    file: Directory | None = Field(
        default=None,
        description="File to which a monitor appends reports, one JSON object a line; read from its end on",
        examples=["faults.jsonl"],
    )
    command: Words | None = Field(
        default=None,
        description="Command that prints the faults that there are now, one JSON object a line",
        examples=[["./list-faults.sh"]],
    )
    every_s: Seconds = Field(
        default=30.0,
        gt=0,
        le=DAY_S,
        description="Seconds between two executions of that command, which may last as long",
    )
    logs: StrictBool = Field(
        default=False,
        description="Take lines of the ranks' output for reports that name a code whose severity is known",
    )
    preset: Preset | None = Field(
        default=None, description="Vendor whose documentation says how severe a code is"
    )
    severities: dict[Text, Severity] = Field(
        default={},
        description="How severe a code is; wins over the report's own word and over the preset's",
        examples=[{"80E01801": "major"}],
    )
    same_s: Seconds = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="Seconds in which the same fault, reported again by whomever, is still the same",
    )

    def severity_of(self, code: str, said: Severity | None = None) -> Severity | None:
        """How severe a fault is of which its reporter has `said` so much; `None`: nobody knows."""
        return self.severities.get(code) or said or preset_severities(self.preset).get(code)

    def knows(self, code: str) -> bool:
        """Whether the severity of a code is known without its reporter's word."""
        return self.severity_of(code) is not None


@cache
def preset_severities(preset: Preset | None) -> Mapping[str, Severity]:
    """Return the severities of a vendor's codes."""
    if preset is None:
        return {}
    table: dict[str, Any] = yaml.safe_load(
        files(__package__).joinpath("device_faults.yaml").read_text("utf-8")
    )
    severities = table[preset]["severities"]
    return {code: severity for severity, codes in severities.items() for code in codes.split()}
