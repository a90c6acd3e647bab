"""The blocks themselves. Their fields are those of an infrastructure in a job file, and their own command.

A saved block must load in all later versions: fields are only added, and each has a default.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from prefect.blocks.abstract import JobBlock
from prefect.blocks.core import Block, schema_extra
from pydantic import ConfigDict, Field, PrivateAttr

from prefect_ft.backends.docker.config import DockerInfrastructure
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.process.config import ProcessInfrastructure
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.blocks.result import TrainingResult
from prefect_ft.config import Infrastructure
from prefect_ft.config.fields import Directory, Processes, RankEnv, Words, complete_schema
from prefect_ft.errors import ConfigError

if TYPE_CHECKING:
    from prefect_ft.blocks.gang_run import TrainingRun


def _block_schema(schema: dict[str, Any], model: type[Block]) -> None:
    """Return Prefect's schema with our additions; each value of a secret mapping is marked as secret."""
    complete_schema(schema)
    schema_extra(schema, model)
    schema["secret_fields"] = [
        f"{name}.*" if schema["properties"][name].get("type") == "object" else name
        for name in schema["secret_fields"]
    ]


_CONFIG = ConfigDict(extra="forbid", frozen=False, json_schema_extra=_block_schema, hide_input_in_errors=True)
"""Set by each block itself: of a class with several bases, the last one's would apply."""


class TrainingBlock(JobBlock[TrainingResult]):
    """What all our blocks can do: run a command on their workers, restart it there, or on new ones.

    They do not restart by themselves: `train_flow` does.
    """

    _infrastructure: ClassVar[type[Infrastructure]]

    command: Words | None = Field(
        default=None,
        description="What start and trigger run; jobs have commands of their own",
        examples=[["python", "train.py"]],
    )
    nproc_per_worker: Processes = Field(
        default=1, description="Ranks in each worker for that command; auto: as many as accelerators, else 1"
    )
    model_dir: Directory | None = Field(
        default=None,
        description="Directory for what that leaves behind; absent: a new one among the temporary files",
    )
    _run: TrainingRun | None = PrivateAttr(None)

    def infrastructure(self) -> Infrastructure:
        """Return the infrastructure of a job with this block; fields at their defaults count as absent."""
        fields = self._infrastructure.model_fields
        said = {name: getattr(self, name) for name, field in fields.items()}
        kept = {name: value for name, value in said.items() if value != fields[name].default}
        return self._infrastructure.model_validate({"type": said["type"], **kept})

    def trigger(self) -> TrainingRun:  # type: ignore[override]  # Prefect takes both kinds of function
        """Run the block's command, as `start` does."""
        return self.start()

    def start(self, command: Words | None = None, *, env: RankEnv | None = None) -> TrainingRun:
        """Create the workers, start a command on all of them, and return; `env` is for its ranks.

        Raises ConfigError before anything starts, BackendError for workers that cannot be created.
        """
        from prefect_ft.blocks.gang_run import TrainingRun  # noqa: PLC0415  (Prefect loads blocks at every start)

        if self._run is not None and not self._run.is_over:
            raise ConfigError("its command has been started already: stop() it, or re_execute() it")
        if (words := command or self.command) is None:
            raise ConfigError("there is no command: give one to start(), or to the block", field="command")
        self._run = TrainingRun(
            self.infrastructure(),
            words,
            name=self._block_document_name or self.get_block_type_slug(),
            nproc_per_worker=self.nproc_per_worker,
            env=env or {},
            model_dir=Path(self.model_dir) if self.model_dir is not None else None,
            logger=self.logger,
        )
        return self._run

    def re_execute(self) -> TrainingRun:
        """End all processes of the command and start it again in the same workers; see `TrainingRun`."""
        return self._current().re_execute()

    def rebuild(self) -> TrainingRun:
        """Remove the workers, create them again, and start the command in them; see `TrainingRun`."""
        return self._current().rebuild()

    def stop(self) -> None:
        """End the command and remove the workers. Idempotent."""
        if self._run is not None:
            self._run.stop()

    def _current(self) -> TrainingRun:
        if self._run is None or self._run.is_over:
            raise ConfigError("no command has been started: start() one")
        return self._run


class DockerTraining(TrainingBlock, DockerInfrastructure):
    """Workers in Docker containers: for jobs, as a flow's parameter, or to run one command by itself."""

    _block_type_name = "Docker Training"
    _block_type_slug = "docker-training"
    _infrastructure = DockerInfrastructure
    model_config = _CONFIG

    type: Literal["docker"] = Field(default="docker", description="What the workers are")


class KubernetesTraining(TrainingBlock, KubernetesInfrastructure):
    """Workers in pods of a Kubernetes cluster: for jobs, as a flow's parameter, or by itself."""

    _block_type_name = "Kubernetes Training"
    _block_type_slug = "kubernetes-training"
    _infrastructure = KubernetesInfrastructure
    model_config = _CONFIG

    type: Literal["kubernetes"] = Field(default="kubernetes", description="What the workers are")


class ProcessTraining(TrainingBlock, ProcessInfrastructure):
    """Workers as groups of processes of one machine: for jobs, as a flow's parameter, or by itself."""

    _block_type_name = "Process Training"
    _block_type_slug = "process-training"
    _infrastructure = ProcessInfrastructure
    model_config = _CONFIG


class SlurmTraining(TrainingBlock, SlurmInfrastructure):
    """Workers on the nodes of an allocation of Slurm: for jobs, as a flow's parameter, or by itself."""

    _block_type_name = "Slurm Training"
    _block_type_slug = "slurm-training"
    _infrastructure = SlurmInfrastructure
    model_config = _CONFIG

    type: Literal["slurm"] = Field(default="slurm", description="What the workers are")
