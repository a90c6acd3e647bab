"""A job's infrastructure of type `process`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import Self

from prefect_ft.config.fields import Some, SystemName
from prefect_ft.config.infrastructure import Infrastructure, System, named

NameOrSystem = Annotated[System, BeforeValidator(named, json_schema_input_type=SystemName | System)]


class ProcessInfrastructure(Infrastructure):
    """Workers are groups of processes on this host, one for each system that is used."""

    type: Literal["process"] = Field(default="process", description="What the workers are")
    systems: Some[tuple[NameOrSystem, ...]] = Field(
        default=(System(name="localhost"),),
        description="The pool, in the order in which workers are placed: names, or mappings {name, env}; "
        "default localhost alone",
        examples=[["s0", "s1"]],
    )

    ranks_are_here: ClassVar[bool] = True
    shares_files: ClassVar[bool] = True

    def keeps(self, path: str) -> bool:
        """Whether a file survives the worker that wrote it: yes, it is this machine's."""
        del path
        return True

    def mounts(self, path: str) -> bool:
        """Whether a worker's path is in a mount: no, workers use this machine's paths."""
        del path
        return False

    def refusal_of_ranks(self, ranks: int) -> str | None:
        """Return why a worker cannot have that many ranks: None, the machine is checked before a run."""
        del ranks
        return None

    def lost_ranks_last_s(self) -> float | None:
        """Return how long ranks keep running when their system is lost: None, the system is this machine."""
        return None

    def at(self, base: str) -> Self:
        """Return it with absolute paths: unchanged, it has no paths."""
        del base
        return self
