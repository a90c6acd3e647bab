"""Faults of devices: where reports of them come from, and how severe a code is.

The presets' codes are in `device_faults.yaml`, with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, StrictBool

from prefect_ft.config.fields import ADDED, DAY_S, Directory, Seconds, Section, Text, Words
from prefect_ft.model import Severity

Preset = Literal["nvidia", "ascend"]
Detector = Literal["nvml", "dcgm", "kernel", "npu"]
"""A source of faults beside the ranks: NVIDIA's library, its DCGM, the kernel's log, Ascend's npu-smi."""


class Faults(Section):
    """What reports faults of devices and losses of systems, besides the ranks themselves."""

    detect: Annotated[Literal["auto"] | tuple[Detector, ...] | None, ADDED] = Field(
        default=None,
        description="Where workers look for faults of their devices by themselves while ranks run: `nvml`, `dcgm`, "
        "`kernel`, `npu`; `auto`: wherever they can. Healing then has a default: see `infrastructure.heal`",
        examples=["auto"],
    )
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
        description="Seconds between two executions of that command, which may last as long, and between two looks "
        "of detectors",
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

    @property
    def detectors(self) -> list[Detector]:
        """The sources that workers watch."""
        return list(get_args(Detector) if self.detect == "auto" else self.detect or ())

    def severity_of(self, code: str, said: Severity | None = None) -> Severity | None:
        """Return how severe a fault is; `said` is what its reporter gave. `None`: unknown."""
        return self.severities.get(code) or said or self._documented().get(code)

    def _documented(self) -> Mapping[str, Severity]:
        """Return the documented severities of codes: the preset's, and every vendor's where devices are watched."""
        if not self.detectors:
            return documented_severities(self.preset)
        return documented_severities(*([self.preset] if self.preset else get_args(Preset)), "detected")

    def knows(self, code: str) -> bool:
        """Return whether the severity of a code is known without its reporter's."""
        return self.severity_of(code) is not None


@cache
def documented_severities(*sections: str | None) -> Mapping[str, Severity]:
    """Return the severities of the codes of these sections of the table; None is no section."""
    table: dict[str, Any] = yaml.safe_load(
        files(__package__).joinpath("device_faults.yaml").read_text("utf-8")
    )
    return {
        code: severity
        for section in sections
        if section is not None
        for severity, codes in table[section]["severities"].items()
        for code in codes.split()
    }
