"""Where the workers of a job run: what all kinds of infrastructure have. `kinds` lists them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from prefect_ft.config.fields import (
    DAY_S,
    MAX_COUNT,
    Problems,
    RankEnv,
    Seconds,
    Section,
    SystemName,
    WholeNumber,
    Words,
    as_error,
)
from prefect_ft.config.secret_env import SecretEnv


class System(Section):
    """One machine of the pool, or a sandbox of this host that stands for one."""

    name: SystemName = Field(description="Its name, unique in the pool", examples=["s0"])
    env: RankEnv = Field(
        default={},
        description="Environment variables of its ranks; they win over the phase's and the job's, null unsets one",
        examples=[{"CUDA_VISIBLE_DEVICES": "0,1"}],
    )
    heal: Words | None = Field(default=None, description="Replaces the infrastructure's heal")
    check: Words | None = Field(default=None, description="Replaces the infrastructure's check")


def named(value: object) -> object:
    """Return a system's mapping: one written as a name alone has only that."""
    return value if isinstance(value, (dict, System)) else {"name": value}


class Infrastructure(Section, ABC):
    """What all kinds of infrastructure have, and what the rest of the program must know of each.

    Its `Kind` answers what takes a look at a machine.
    """

    type: str
    systems: tuple[System, ...] = ()
    workers: WholeNumber = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        description="Workers of the gang, one on a system, at most as many as there are systems; "
        "the other systems are spares",
    )
    secret_env: SecretEnv = Field(
        default={},
        description="Environment variables of the ranks whose values are shown nowhere; those of job, phase and "
        "system win",
    )
    heal: Words | None = Field(
        default=None,
        description="Command that mends a device of a system after a minor or major fault; exit code 0: healed. "
        "It runs where the flow does, with the system and the fault in its environment. Without it, where "
        "`faults.detect` is on and the ranks run there too, the vendor's tool resets a device that nothing else uses",
        examples=[["./reset-device.sh"]],
    )
    heal_timeout_s: Seconds = Field(
        default=600.0, gt=0, le=DAY_S, description="Seconds after which healing has failed"
    )
    check: Words | None = Field(
        default=None,
        description="Command that tries a system before it is used and after it is suspected; any exit code "
        "but 0 takes it out of use. It runs where the flow does, with the system in its environment",
        examples=[["./check-node.sh"]],
    )
    check_timeout_s: Seconds = Field(
        default=120.0, gt=0, le=DAY_S, description="Seconds after which a check has failed"
    )

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        first: dict[str, int] = {}
        found: Problems = []
        for index, system in enumerate(self.systems):
            if (other := first.setdefault(system.name, index)) != index:
                message = f"the name of a system must be unique; {system.name!r} is also systems[{other}]"
                found.append((("systems", index), message))
        if self.workers > (count := len(self.systems)):
            message = f"must be at most {count}, the number of systems, got {self.workers}; name more systems"
            found.append((("workers",), message))
        if found:
            raise as_error(found)
        return self

    ranks_are_here: ClassVar[bool] = False
    """Whether ranks are processes of this machine, with its paths, its environment and its Python."""

    shares_files: ClassVar[bool] = False
    """Whether workers see the files of this machine by the same paths, as on a shared file system."""

    @abstractmethod
    def keeps(self, path: str) -> bool:
        """Return whether a file of the workers survives the removal of the worker that wrote it."""

    @abstractmethod
    def mounts(self, path: str) -> bool:
        """Return whether a path of the workers is on a volume that the user has mounted, and so not this machine's."""

    @abstractmethod
    def refusal_of_ranks(self, ranks: int) -> str | None:
        """Return why a worker with this configuration cannot have that many ranks, and what to do; None: it can."""

    @abstractmethod
    def lost_ranks_last_s(self) -> float | None:
        """Return how many seconds the ranks of a lost system run on at most; None: they end with it, or unknown."""

    def placed_on(self, systems: tuple[str, ...]) -> Self:
        """Return it with the systems that a scheduler has given; where the job names them, it stays as it is."""
        del systems
        return self

    @abstractmethod
    def at(self, base: str) -> Self:
        """Return it with absolute paths; relative ones start at the directory `base`."""
