"""Where the workers of a job run. A further `type` joins `Infrastructure` here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from prefect_ft.config.fields import (
    Env,
    Problems,
    Seconds,
    Section,
    Some,
    SystemName,
    WholeNumber,
    Words,
    as_error,
    problem,
    shown,
)

_TYPES = ("process",)


class System(Section):
    """One machine of the pool, or a sandbox of this host that stands for one."""

    name: SystemName = Field(description="Its name, unique in the pool", examples=["s0"])
    env: Env = Field(
        default={},
        description="Environment variables of its ranks; they win over the phase's and the job's",
        examples=[{"CUDA_VISIBLE_DEVICES": "0,1"}],
    )
    heal: Words | None = Field(default=None, description="Replaces the infrastructure's heal")
    check: Words | None = Field(default=None, description="Replaces the infrastructure's check")


def _system(value: object) -> object:
    return value if isinstance(value, (dict, System)) else {"name": value}


NameOrSystem = Annotated[System, BeforeValidator(_system, json_schema_input_type=SystemName | System)]


class ProcessInfrastructure(Section):
    """Workers are groups of processes on this host, one for each system that is used."""

    type: Literal["process"] = Field(default="process", description="What the workers are")
    systems: Some[tuple[NameOrSystem, ...]] = Field(
        default=(System(name="localhost"),),
        description="The pool, in the order in which workers are placed: names, or mappings {name, env}; "
        "default localhost alone",
        examples=[["s0", "s1"]],
    )
    workers: WholeNumber = Field(
        default=1,
        ge=1,
        description="Workers of the gang, one on a system, at most as many as there are systems; "
        "the other systems are spares",
    )
    heal: Words | None = Field(
        default=None,
        description="Command that mends a device of a system after a minor or major fault; exit code 0: healed. "
        "It runs where the flow does, with the system and the fault in its environment",
        examples=[["./reset-device.sh"]],
    )
    heal_timeout_s: Seconds = Field(default=600.0, gt=0, description="Seconds after which healing has failed")
    check: Words | None = Field(
        default=None,
        description="Command that tries a system before it is used and after it is suspected; any exit code "
        "but 0 takes it out of use. It runs where the flow does, with the system in its environment",
        examples=[["./check-node.sh"]],
    )
    check_timeout_s: Seconds = Field(
        default=120.0, gt=0, description="Seconds after which a check has failed"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_known_type(cls, value: Any) -> Any:
        """Judge the type alone: what stands beside an unknown one is not this section's to judge."""
        given = value.get("type", "process") if isinstance(value, dict) else "process"
        if given not in _TYPES:
            raise problem(f"unknown type {shown(given)}; known types: {', '.join(_TYPES)}", "type")
        return value

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        first: dict[str, int] = {}
        found: Problems = []
        for index, system in enumerate(self.systems):
            if (other := first.setdefault(system.name, index)) != index:
                message = f"the name of a system must be unique; {system.name!r} is also systems[{other}]"
                found.append((("systems", index), message))
        if self.workers > (systems := len(self.systems)):
            message = (
                f"must be at most {systems}, the number of systems, got {self.workers}; name more systems"
            )
            found.append((("workers",), message))
        if found:
            raise as_error(found)
        return self


Infrastructure = ProcessInfrastructure
