"""A job's infrastructure of type `slurm`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator
from typing_extensions import Self

from prefect_ft.config.fields import (
    DAY_S,
    HOUR_S,
    MAX_COUNT,
    NotBool,
    Seconds,
    Text,
    WholeNumber,
    problem,
    shown,
)
from prefect_ft.config.infrastructure import Infrastructure, System

END_OF_RANKS_S = 10.0
"""How long it may take to end ranks, with the skew of two machines' clocks."""

OWNED = frozenset(
    (
        *(
            "array",
            "dependency",
            "deadline",
            "exclude",
            "job-name",
            "nodes",
            "no-kill",
            "kill-on-bad-exit",
            "no-requeue",
        ),
        *(
            "requeue",
            "open-mode",
            "output",
            "error",
            "parsable",
            "signal",
            "wait",
            "wrap",
            "chdir",
            "export",
            "account",
        ),
        *(
            "partition",
            "qos",
            "time",
            "constraint",
            "gres",
            "gpus-per-node",
            "ntasks",
            "ntasks-per-node",
            "test-only",
        ),
    )
)
"""Options of sbatch that have fields of their own, or that the run sets."""


def _option(name: str) -> str | None:
    """Return what is wrong with the name of an sbatch option; None: nothing."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        return "must be a long option of sbatch without its dashes, like mem or licenses"
    if name in OWNED:
        return "cannot be given here: the run sets it, or a field of its own does"
    return None


def _options(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    read: dict[str, str | bool] = {}
    for name, given in value.items():
        if (wrong := _option(str(name))) is not None:
            raise problem(wrong, str(name))
        if isinstance(given, bool):
            read[str(name)] = given
        elif isinstance(given, (str, int)) and "\n" not in str(given) and "\0" not in str(given):
            read[str(name)] = str(given)
        else:
            raise problem(
                f"must be a text, a number, or true for an option without a value, got {shown(given)}",
                str(name),
            )
    return read


def _node_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _time_limit(value: object) -> object:
    """Accept minutes as a number too: YAML reads them as one."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_time(value: str) -> str:
    if not re.fullmatch(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}", value):
        raise problem(f"must be a time limit of Slurm, like 60, 12:00:00 or 2-12, got {shown(value)}")
    return value


Options = Annotated[dict[str, str | StrictBool], BeforeValidator(_options)]
NodeNames = Annotated[tuple[Text, ...], BeforeValidator(_node_list)]
TimeLimit = Annotated[Text, BeforeValidator(_time_limit), AfterValidator(_is_time)]


class SlurmInfrastructure(Infrastructure):
    """Workers are processes on the nodes of an allocation, one worker on a node."""

    type: Literal["slurm"] = Field(description="What the workers are")
    systems: tuple[System, ...] = Field(
        default=(), description="Must be left out: the allocation's nodes are the systems"
    )
    nodes: Annotated[int, Field(ge=1, le=MAX_COUNT), NotBool] | None = Field(
        default=None,
        description="Workers, one on a node; absent inside an allocation: all of its nodes but the spares",
        examples=[8],
    )
    spares: WholeNumber = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Further nodes of the allocation, which take the place of those that are lost",
    )
    partition: Text | None = Field(default=None, description="As of sbatch", examples=["gpu"])
    account: Text | None = Field(default=None, description="As of sbatch")
    qos: Text | None = Field(default=None, description="As of sbatch")
    time: TimeLimit | None = Field(
        default=None, description="Time limit of one allocation, as of sbatch", examples=["2-12:00:00"]
    )
    constraint: Text | None = Field(default=None, description="As of sbatch")
    exclude: NodeNames = Field(
        default=(), description="Nodes that are not to be used; those that the run isolates are added"
    )
    gres: Text | None = Field(default=None, description="As of sbatch", examples=["gpu:8"])
    gpus_per_node: Text | None = Field(default=None, description="As of sbatch", examples=["h100:8"])
    sbatch: Options = Field(
        default={},
        description="Further options of sbatch, by their long names; true is one without a value",
        examples=[{"mem": "0", "exclusive": True}],
    )
    python: Text = Field(
        default="python3", description="The agents' interpreter on the nodes: a name on their PATH, or a path"
    )
    hand_over: StrictBool = Field(
        default=True,
        description="Queue a successor that goes on when the allocation ends: its time limit does not end the run",
    )
    queue_deadline: Text | None = Field(
        default=None,
        description="By when a successor must be able to end, as sbatch's --deadline: one that cannot leaves the queue",
        examples=["now+7days"],
    )
    reserve_s: Seconds = Field(
        default=60.0,
        ge=0,
        le=HOUR_S,
        description="Seconds that are left of an allocation, beside those for a checkpoint and stop_grace_s, when the "
        "run is handed over",
    )
    start_timeout_s: Seconds = Field(
        default=300.0,
        gt=0,
        le=DAY_S,
        description="Seconds after the allocation's start in which its nodes have to answer",
    )
    silence_timeout_s: Seconds = Field(
        default=10.0,
        ge=1,
        le=DAY_S,
        description="Seconds without a sign of life after which a node counts as lost",
    )
    grows: StrictBool = Field(
        default=False,
        description="Whether a run that has fewer workers than `nodes` asks for those that it lacks by a further job, "
        "and goes on with both once that has begun",
    )
    gives_back: StrictBool = Field(
        default=False,
        description="Whether the allocation shrinks by a node that is lost, before Slurm itself takes it away",
    )
    partition_timeout_s: Seconds = Field(
        default=60.0,
        ge=1,
        le=DAY_S,
        description="Seconds after which an agent ends its ranks that hears neither of an orchestrator nor of another "
        "node: they may have been started again elsewhere",
    )

    shares_files: ClassVar[bool] = True

    @model_validator(mode="after")
    def _knows_its_size(self) -> Self:
        """Refuse growth without a configured size."""
        if self.grows and self.nodes is None:
            raise problem("needs nodes: how many the run is to have", "grows")
        return self

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        """Take the number of workers from `nodes`; the number of systems is known with the allocation."""
        if self.systems:
            raise problem("cannot be named: they are the nodes of the allocation; leave it out", "systems")
        if "workers" in self.model_fields_set and self.workers != (self.nodes or 1):
            raise problem(f"is nodes here; write nodes: {self.workers} and leave it out", "workers")
        if self.nodes is not None and self.workers != self.nodes:
            object.__setattr__(self, "workers", self.nodes)
        return self

    def keeps(self, path: str) -> bool:
        """Whether a file survives the worker that wrote it: yes, nodes keep their files."""
        del path
        return True

    def mounts(self, path: str) -> bool:
        """Whether a worker's path is in a mount: no, file systems are shared."""
        del path
        return False

    def refusal_of_ranks(self, ranks: int) -> str | None:
        """Return why a worker cannot have that many ranks: None, the scheduler enforces its own limits."""
        del ranks
        return None

    def lost_ranks_last_s(self) -> float | None:
        """Return how long ranks keep running when their node is lost: until their agent detects the partition."""
        return self.silence_timeout_s + self.partition_timeout_s + END_OF_RANKS_S

    def at(self, base: str) -> Self:
        """Return it with absolute paths: unchanged, it has no paths."""
        del base
        return self

    def accelerators(self) -> int:
        """Return how many accelerators are requested of a node; 0: none."""
        asked = self.gpus_per_node or next(
            (part for part in (self.gres or "").split(",") if part.startswith("gpu")), ""
        )
        number = asked.partition("(")[0].rpartition(":")[2]
        return int(number) if number.isdecimal() else int(bool(asked))

    def placed_on(self, systems: tuple[str, ...]) -> Self:
        """Return it with the nodes of an allocation."""
        workers = self.nodes or max(1, len(systems) - self.spares)
        return self.model_copy(
            update={
                "systems": tuple(System(name=name) for name in systems),
                "workers": min(workers, len(systems)),
            }
        )
