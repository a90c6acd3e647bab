"""A job as users describe it: its phases, and the settings that apply to each.

A section of a phase replaces the job's section as a whole; environments are merged, and the narrower scope takes
precedence. Nothing here reads a file: `load` does, and returns the same `JobConfig` that Python code can build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from prefect_ft.config.advisor import Advisor
from prefect_ft.config.faults import Faults
from prefect_ft.config.fields import (
    ADDED,
    DAY_S,
    HOUR_S,
    MAX_COUNT,
    MAX_MB,
    MONTH_S,
    Directory,
    LocalFile,
    Name,
    RankEnv,
    Seconds,
    Section,
    Some,
    WholeNumber,
    absolute,
    as_error,
    shown,
)
from prefect_ft.config.infrastructure import Infrastructure
from prefect_ft.config.kinds import AnyInfrastructure, default_infrastructure
from prefect_ft.config.metrics import Metrics
from prefect_ft.config.numeric import Numeric
from prefect_ft.config.phase import Phase
from prefect_ft.config.sections import AutoRestart
from prefect_ft.config.signatures import Signatures
from prefect_ft.config.suspension import Suspension
from prefect_ft.config.yaml_text import FieldPath, dotted
from prefect_ft.errors import ConfigError
from prefect_ft.model import FailureClass, Policy, Resume


class JobConfig(Section):
    """What is run: the phases one after the other, and what happens when one fails."""

    name: Name = Field(description="The job's name", examples=["my-job"])
    model_dir: Directory = Field(
        description="Directory for what runs leave behind; a relative one starts at the job file's directory",
        examples=["runs/my-job"],
    )
    journal_dir: Directory | None = Field(
        default=None, description="Directory for the journal on a local disk; absent: in model_dir"
    )
    infrastructure: AnyInfrastructure = Field(
        default_factory=default_infrastructure, description="Where the workers run"
    )
    quarantine: LocalFile | None = Field(
        default=None,
        description="File of the systems that no run begins with; what a run isolates is added to it, and other "
        "jobs may name it too; a relative one starts at the job file's directory; absent: isolation ends with "
        "the run",
        examples=["quarantine.jsonl"],
    )
    autorestart: AutoRestart | None = Field(
        default=None, description="Restarts after failures; absent: the first failure fails the job"
    )
    suspension: Suspension = Field(default=Suspension(), description="Detection of phases that get nowhere")
    numeric: Annotated[Numeric, ADDED] = Field(
        default=Numeric(), description="Watch over the losses and gradient norms that ranks report"
    )
    faults: Faults = Field(default=Faults(), description="Reports of faults of devices and systems")
    env: RankEnv = Field(
        default={},
        description="Environment variables of all ranks; null unsets one, whatever sets it",
        examples=[{"LOG_LEVEL": "info"}],
    )
    signatures: Signatures = Field(
        default=(),
        description="Signatures of failures that are tried before the package's own, and paths of YAML files "
        "with such; one with the name of one of the package's replaces it",
        examples=[["signatures.yaml"]],
    )
    classify: Annotated[Advisor | None, ADDED] = Field(
        default=None,
        description="The advisor, asked why an attempt failed where the classifier does not know; absent: none",
    )
    cwd: Directory | None = Field(
        default=None,
        description="Directory on this host in which commands run; absent: the job file's directory",
    )
    resume: Annotated[Resume, ADDED] = Field(
        default="auto",
        description="What a phase begins with: auto, the newest whole checkpoint that is there, whatever wrote it; "
        "never, nothing, and what was there when it began is neither resumed from nor deleted",
    )
    phases: Some[tuple[Phase, ...]] = Field(
        description="The phases in their order; one that fails ends the job",
        examples=[[{"name": "pretrain", "command": ["python", "train.py"]}]],
    )
    metrics: Metrics | None = Field(
        default=None,
        description="A port on which a run's metrics are served to Prometheus; absent: none",
        examples=[{"port": 9464}],
    )
    stop_grace_s: Seconds = Field(
        default=10.0,
        ge=0,
        le=DAY_S,
        description="Seconds that a cancelled job's ranks have between SIGTERM and SIGKILL",
    )
    sample_period_s: Seconds = Field(
        default=10.0,
        gt=0,
        le=HOUR_S,
        description="Seconds between two samples of the ranks' processes and devices",
    )
    orphan_timeout_s: Seconds = Field(
        default=3600.0,
        gt=0,
        le=MONTH_S,
        description="Seconds for which workers continue alone when the orchestrator is gone",
    )
    max_orchestrator_restarts: WholeNumber = Field(
        default=20,
        ge=0,
        le=MAX_COUNT,
        description="How often the orchestrator may die and come back without progress in between",
    )
    lease_s: Seconds = Field(
        default=30.0,
        ge=1,
        le=DAY_S,
        description="Seconds of silence after which another machine's orchestrator counts as dead",
    )
    output: Literal["forward", "workers"] = Field(
        default="forward",
        description="Where what the ranks print goes: forward gathers it in run.log; workers leaves it in the "
        "workers' files, and of an attempt that fails only an excerpt comes: its first errors and its end",
    )
    spool_mb: WholeNumber = Field(
        default=64,
        ge=1,
        le=MAX_MB,
        description="Megabytes of each rank's output that a worker keeps",
    )
    run_log_mb: Annotated[WholeNumber, ADDED] = Field(
        default=1024,
        ge=1,
        le=MAX_MB,
        description="Megabytes that a phase's run.log takes, with the pieces run.log.1, run.log.2, … before it; "
        "the oldest piece is removed first",
    )

    def autorestart_of(self, phase_index: int) -> AutoRestart | None:
        """Return the restarts of a phase; `None`: it is never restarted."""
        return self.phases[phase_index].autorestart or self.autorestart

    def suspension_of(self, phase_index: int) -> Suspension:
        """Return what happens when a phase makes no progress; `hang_detect_time_s` may override its time."""
        return self.phases[phase_index].suspension or self.suspension

    def numeric_of(self, phase_index: int) -> Numeric:
        """Return how a phase's losses and gradient norms are watched."""
        return self.phases[phase_index].numeric or self.numeric

    def resume_of(self, phase_index: int) -> Resume:
        """Return what a phase begins with."""
        return self.phases[phase_index].resume or self.resume

    def infrastructure_of(self, phase_index: int) -> Infrastructure:
        """Return where the workers of a phase run."""
        return self.phases[phase_index].infrastructure or self.infrastructure

    def env_of(self, phase_index: int, system: str | None = None) -> dict[str, str | None]:
        """Return the environment variables of a phase's ranks on a system; `None`: without any system's own."""
        on = (each.env for each in self.infrastructure_of(phase_index).systems if each.name == system)
        return self.env | self.phases[phase_index].env | next(on, {})

    def hang_detect_time_s(self, phase_index: int) -> float:
        """Return the seconds of silence that make a suspension: MA_HANG_DETECT_TIME's, where it is in range."""
        minutes = _hang_detect_minutes(self.env_of(phase_index).get(_HANG_DETECT))
        return self.suspension_of(phase_index).hang_detect_time_s if minutes is None else 60.0 * minutes

    def policy(self, phase_index: int, isolated: Iterable[str] = ()) -> Policy:
        """Return the policy of a phase; `isolated` are systems that are out of use when it begins."""
        phase, infrastructure = self.phases[phase_index], self.infrastructure_of(phase_index)
        base = Policy(
            systems=tuple(system.name for system in infrastructure.systems),
            workers=infrastructure.workers,
            mode=phase.mode,
            isolated=tuple(isolated),
            autorestart=False,
            suspension_restart=self.suspension_of(phase_index).restart,
            elastic=phase.elastic,
            target_step=phase.target_step,
        )
        section = self.autorestart_of(phase_index)
        return base if section is None else section.onto(base)

    def on(self, infrastructure: Infrastructure) -> Self:
        """Return the job on another infrastructure; raises ConfigError where that does not fit it."""
        said = {name: getattr(self, name) for name in self.model_fields_set}
        try:
            return self.model_validate({**said, "infrastructure": infrastructure})
        except ValidationError as error:
            raise ConfigError(error.errors()[0]["msg"], field="infrastructure") from error

    def from_scratch(self) -> Self:
        """Return the job with all phases beginning without existing checkpoints."""
        phases = tuple(phase.model_copy(update={"resume": None}) for phase in self.phases)
        return self.model_copy(update={"resume": "never", "phases": phases})

    def at(self, base_dir: str | os.PathLike[str]) -> Self:
        """Return the job with absolute paths: relative ones start at `base_dir`, where commands run by default.

        `~` is a home directory; URLs stay as they are. Idempotent.
        """
        base = os.path.abspath(base_dir)
        cwd = absolute(self.cwd, base) or base
        phases = tuple(
            _phase_at(phase, base, cwd if self.infrastructure_of(index).shares_files else None)
            for index, phase in enumerate(self.phases)
        )
        return self.model_copy(
            update={
                "model_dir": absolute(self.model_dir, base),
                "journal_dir": absolute(self.journal_dir, base),
                "quarantine": absolute(self.quarantine, base),
                "cwd": cwd,
                "infrastructure": self.infrastructure.at(base),
                "faults": self.faults.model_copy(update={"file": absolute(self.faults.file, base)}),
                "signatures": tuple(
                    absolute(item, base) if isinstance(item, str) else item for item in self.signatures
                ),
                "phases": phases,
            }
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if found := list(_problems(self)):
            raise as_error(found)
        return self


def resolved(job: JobConfig) -> dict[str, Any]:
    """Return the job with all defaults, in plain values and a fixed order; validating it returns the same job."""
    return job.model_dump(mode="json")


def warnings(job: JobConfig) -> list[str]:
    """Return settings without effect, or with an unexpected one, each as `FIELD: MESSAGE`."""
    said: dict[str, None] = {}
    for index, phase in enumerate(job.phases):
        if (section := job.autorestart_of(index)) is not None:
            where = dotted((*_where(job, index, "autorestart"), "restart_on"))
            said |= dict.fromkeys(f"{where}: {message}" for message in _useless_classes(section))
        if phase.mode == "eval" and phase.target_step is not None:
            said[f"phases[{index}].target_step: has no effect in the mode eval; leave it out"] = None
        if phase.skip_args and not job.policy(index).skip_steps:
            said[f"phases[{index}].skip_args: has no effect without autorestart.skip_steps; leave it out"] = (
                None
            )
        if phase.checkpoints is not None and (why := phase.checkpoints.never_copied) is not None:
            said[f"phases[{index}].checkpoints.keep_copies: {why}"] = None
        if phase.launched is not None and (options := phase.launched.without_effect):
            verb = "have" if len(options) > 1 else "has"
            message = f"{', '.join(options)} {verb} no effect with rewrite_launcher: {_DECIDED_HERE}"
            said[f"phases[{index}].command: {message}"] = None
        written = job.env_of(index).get(_HANG_DETECT)
        if written is not None and _hang_detect_minutes(written) is None:
            where = dotted((*(("phases", index) if _HANG_DETECT in phase.env else ()), "env", _HANG_DETECT))
            said[f"{where}: is ignored; must be 10 to 720 minutes, got {shown(written)}"] = None
    return [*said, *dict.fromkeys(_without_a_spare(job))]


MAX_SKIPPED_WORDS = 50_000
"""How many steps a command may name: with their pointers, half of Linux's limit for arguments and environment."""

_HANG_DETECT = "MA_HANG_DETECT_TIME"
_NONE_LEFT = (
    "a hardware fault ends the run: no other system is left; name a spare system, or write last_system: keep in "
    "autorestart"
)
_DECIDED_HERE = "restarts, rendezvous, output and stopping are this job's"
_EARLIER_RULES: dict[FailureClass, str] = {
    "compile": "non-recoverable",
    "assertion": "non-recoverable",
    "numeric": "numeric",
    "checkpoint": "checkpoint-unreadable",
    "preempted": "preempted",
    "cancelled": "cancelled",
    "none": "completed",
}
"""The classes for which a rule before `transient` always decides, and that rule."""


def _hang_detect_minutes(written: str | None) -> int | None:
    """Return the minutes that the variable sets; `None` where it is absent or has no effect."""
    in_range = written is not None and re.fullmatch("[0-9]{2,3}", written) and 10 <= int(written) <= 720
    return int(written) if written is not None and in_range else None


def _without_a_spare(job: JobConfig) -> Iterator[str]:
    """Yield the pools in which isolating a single system fails a phase that is restarted."""
    for index in range(len(job.phases)):
        policy = job.policy(index)
        is_smaller_enough = policy.elastic and policy.workers - 1 >= policy.min_num_systems
        has_spare = len(policy.systems) > policy.workers or not policy.systems
        if policy.autorestart and policy.last_system == "fail" and not has_spare and not is_smaller_enough:
            infrastructure = ("phases", index) if job.phases[index].infrastructure is not None else ()
            yield f"{dotted((*infrastructure, 'infrastructure', 'systems'))}: {_NONE_LEFT}"


def _useless_classes(section: AutoRestart) -> Iterator[str]:
    for name in section.restart_on:
        rule = _EARLIER_RULES.get(name)
        if rule == "non-recoverable" and section.unconditional:
            rule = "unconditional"
        if rule is not None:
            yield f"{name!r} has no effect; the rule {rule!r} decides about it first; leave it out"


def _where(job: JobConfig, phase_index: int, section: str) -> FieldPath:
    """Return the path of the section that applies to a phase: the phase's own, else the job's."""
    own = getattr(job.phases[phase_index], section) is not None
    return ("phases", phase_index, section) if own else (section,)


def _problems(job: JobConfig) -> Iterator[tuple[FieldPath, str]]:
    """Yield requirements of one part of a job that another does not meet."""
    first: dict[str, int] = {}
    for index, phase in enumerate(job.phases):
        if (other := first.setdefault(phase.name, index)) != index:
            message = f"the name of a phase must be unique; {phase.name!r} is also phases[{other}]"
            yield ("phases", index, "name"), message
        section, workers = job.autorestart_of(index), job.infrastructure_of(index).workers
        asked = phase.launched.workers if phase.launched is not None else None
        if asked not in (None, workers):
            message = f"--nnodes or --standalone asks for {asked}, and infrastructure.workers is {workers}"
            yield ("phases", index, "command"), f"{message}; write the same number, or leave the option out"
        yield from _too_many_ranks(job, index)
        if section is None and job.suspension_of(index).restart:
            where = (*_where(job, index, "suspension"), "restart")
            yield where, "needs autorestart; write autorestart: {max_num_restarts: 3}, or restart: false"
        if section is None and job.numeric_of(index).watch == "act":
            where = (*_where(job, index, "numeric"), "watch")
            yield where, "needs autorestart; write autorestart: {max_num_restarts: 3}, or watch: report"
        if section is None:
            continue
        if section.min_num_systems > workers:
            where = (*_where(job, index, "autorestart"), "min_num_systems")
            got = section.min_num_systems
            yield where, f"must be at most {workers}, the workers of phase {phase.name!r}, got {got}"
        named = section.skip_steps * 2 ** (section.max_skips - 1) * section.max_skips_per_phase
        if named > MAX_SKIPPED_WORDS and any("{steps}" in word for word in phase.skip_args):
            message = (
                f"may name {named} steps, and a command has room for {MAX_SKIPPED_WORDS}; write {{windows}}"
            )
            yield ("phases", index, "skip_args"), f"{message}, or a smaller skip_steps or max_skips_per_phase"
        if phase.mode != "eval" and phase.checkpoints is None:
            message = "missing; a phase that trains and restarts needs them, like {path: checkpoints}"
            yield ("phases", index, "checkpoints"), message


def _too_many_ranks(job: JobConfig, index: int) -> Iterator[tuple[FieldPath, str]]:
    """Check a phase's ranks against its infrastructure's limit for a worker."""
    ranks = job.phases[index].nproc_per_worker
    if ranks != "auto" and (refusal := job.infrastructure_of(index).refusal_of_ranks(ranks)) is not None:
        yield ("phases", index, "nproc_per_worker"), refusal


def _phase_at(phase: Phase, base: str, default_cwd: str | None) -> Phase:
    checkpoints = phase.checkpoints
    if checkpoints is not None:
        checkpoints = checkpoints.model_copy(update={"path": absolute(checkpoints.path, base)})
    return phase.model_copy(
        update={
            "cwd": absolute(phase.cwd, base) or default_cwd,
            "checkpoints": checkpoints,
            "infrastructure": phase.infrastructure and phase.infrastructure.at(base),
        }
    )
