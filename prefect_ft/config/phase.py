"""One phase of a job, as users describe it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from prefect_ft.config.fields import (
    ADDED,
    MAX_MB,
    MAX_STEP,
    Directory,
    Name,
    NotBool,
    Processes,
    RankEnv,
    ResumeArgs,
    Section,
    Text,
    WholeNumber,
    Words,
    problem,
    shown,
)
from prefect_ft.config.kinds import AnyInfrastructure
from prefect_ft.config.launcher import Launched, launched
from prefect_ft.config.numeric import Numeric
from prefect_ft.config.params import Params
from prefect_ft.config.sections import AutoRestart, Checkpoints
from prefect_ft.config.suspension import Suspension
from prefect_ft.model import Mode, Resume


def _steps(value: str | None) -> str | None:
    if value is None:
        return None
    import re2  # noqa: PLC0415  (only jobs that name a pattern need it)

    from prefect_ft.signatures import capturing  # noqa: PLC0415  (as above)

    try:
        groups = capturing(value).groups
    except re2.error as exc:
        raise problem(f"must be a pattern that RE2 takes, got {shown(value)}") from exc
    if not groups:
        raise problem(f"must have a group: put the step in parentheses, got {shown(value)}")
    return value


class Phase(Section):
    """One trainer configuration: a command that the whole gang runs until it completes."""

    name: Name = Field(description="Its name, unique in the job", examples=["pretrain"])
    mode: Mode = Field(
        default="train",
        description="What the command does; eval has no checkpoints and always starts from scratch",
    )
    command: Words = Field(
        description="The program and its arguments, which are not rewritten",
        examples=[["python", "train.py"]],
    )
    resume_args: Annotated[ResumeArgs, ADDED] = Field(
        default=(),
        description="Words appended to the command of an attempt that resumes, and to no other; {resume_from} in "
        "them is the checkpoint",
        examples=[["--checkpoint_path", "{resume_from}"]],
    )
    skip_args: Annotated[ResumeArgs, ADDED] = Field(
        default=(),
        description="Words appended to the command of an attempt that skips steps, and to no other; a word {steps} "
        "becomes a word for each step, in a longer word it is the steps with commas between them, and {windows} is "
        "195-234,301-310",
        examples=[["--iterations-to-skip", "{steps}"]],
    )
    progress_pattern: Annotated[Text | None, AfterValidator(_steps), ADDED] = Field(
        default=None,
        description="Pattern (RE2) of the lines in which a rank prints its step, the number in its first group, where "
        "ranks send no heartbeats with steps; absent: what is known of common trainers",
        examples=[r"^step=(\d+) loss="],
    )
    rewrite_launcher: StrictBool = Field(
        default=False,
        description="The command is one of torchrun's: its workers' own command is run in its place, with the "
        "ranks and restarts of this job; nproc_per_worker is that of its option",
    )
    params: Params | None = Field(
        default=None,
        description="Handed to the command as a YAML file, whose path is in PREFECT_FT_PARAMS",
        examples=[{"learning_rate": 0.001}],
    )
    nproc_per_worker: Processes = Field(
        default=1, description="Ranks in each worker; auto: as many as accelerators are visible, else 1"
    )
    checkpoints: Checkpoints | None = Field(
        default=None,
        description="Where the command saves checkpoints; a phase that trains and restarts needs them",
    )
    resume: Annotated[Resume | None, ADDED] = Field(default=None, description="Replaces the job's resume")
    target_step: Annotated[int, Field(ge=1, le=MAX_STEP), NotBool] | None = Field(
        default=None, description="Step that completes the phase; ending successfully before it is a failure"
    )
    rendezvous: Literal["auto", "agent", "ranks"] = Field(
        default="auto",
        description="Who listens at MASTER_ADDR and MASTER_PORT: agent, with a store that clients of torch's "
        "TCPStore use, or ranks, where rank 0 has to; auto: agent where the command is Python with a torch "
        "whose clients are known, else ranks",
    )
    warm: Literal["off", "auto"] | Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default="off",
        description="Modules that ranks find imported when they are started again in place, where the command is "
        "Python; auto: what the first ranks have imported; off: nothing is prepared for a restart",
        examples=[["torch", "torch.distributed"]],
    )
    warm_memory_mb: WholeNumber = Field(
        default=4096,
        ge=1,
        le=MAX_MB,
        description="Megabytes that a worker may spend on being warm; beyond, it starts cold",
    )
    elastic: StrictBool = Field(
        default=True, description="Go on with fewer workers where systems are lost and no spare is left"
    )
    env: RankEnv = Field(
        default={}, description="Environment variables of its ranks; they win over the job's, null unsets one"
    )
    cwd: Directory | None = Field(
        default=None,
        description="Directory in which the command runs; absent: the job's, in containers the image's",
    )
    autorestart: AutoRestart | None = Field(default=None, description="Replaces the job's autorestart")
    suspension: Suspension | None = Field(default=None, description="Replaces the job's suspension")
    numeric: Annotated[Numeric | None, ADDED] = Field(default=None, description="Replaces the job's numeric")
    infrastructure: AnyInfrastructure | None = Field(
        default=None, description="Replaces the job's infrastructure"
    )

    @property
    def launched(self) -> Launched | None:
        """What the launcher in the command asks for; None: the command is run as it is."""
        return launched(self.command) if self.rewrite_launcher else None

    @model_validator(mode="before")
    @classmethod
    def _ranks_of_the_launcher(cls, value: Any) -> Any:
        """Take over the launcher's number of ranks where the phase itself has none."""
        if not isinstance(value, dict) or value.get("rewrite_launcher") is not True:
            return value
        command = value.get("command")
        is_words = isinstance(command, (list, tuple)) and all(isinstance(word, str) for word in command)
        if not is_words or not command or "nproc_per_worker" in value:
            return value
        try:
            ranks = launched(command).ranks_per_worker
        except PydanticCustomError:  # reported after all fields have been checked
            return value
        return value if ranks is None else {**value, "nproc_per_worker": ranks}

    @model_validator(mode="after")
    def _agrees_with_the_launcher(self) -> Self:
        asked = self.launched
        if asked is None or asked.ranks_per_worker in (None, self.nproc_per_worker):
            return self
        message = (
            f"is {self.nproc_per_worker}, and --nproc-per-node in the command is {asked.ranks_per_worker}"
        )
        raise problem(f"{message}; keep one of the two", "nproc_per_worker")
