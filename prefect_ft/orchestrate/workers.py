"""The backend of a phase's workers, and what their agents are given."""

from __future__ import annotations

from pathlib import Path

from prefect_ft.backends.base import AgentSettings, Backend
from prefect_ft.backends.kind import Workers, kind_of
from prefect_ft.config import JobConfig, given_in, own_signatures, unset_in
from prefect_ft.decide.classify import signs_of
from prefect_ft.orchestrate.plan import files_of
from prefect_ft.run import Run
from prefect_ft.run.systems import lock_path
from prefect_ft.supervisor import PhasePlan


def backend_of(job: JobConfig, index: int, run: Run, plan: PhasePlan, runtime: Path) -> Backend:
    """Return the backend of a phase's workers; `runtime` is the run's directory for sockets."""
    checkpoints, infrastructure = job.phases[index].checkpoints, job.infrastructure_of(index)
    settings = AgentSettings(
        run_id=run.run_id,
        key=run.key,
        phase_index=index,
        sample_period_s=job.sample_period_s,
        device_command=job.suspension_of(index).device_command,
        detect={"by": job.faults.detectors, "every_s": job.faults.every_s} if job.faults.detectors else None,
        orphan_timeout_s=job.orphan_timeout_s,
        spool_bytes=job.spool_mb << 20,
        output=job.output,
        signs=signs_of(own_signatures(job.signatures)),
        warm=_warm(job, index),
        rendezvous={
            "by": job.phases[index].rendezvous,
            "command": list(plan.command),
            "cwd": plan.cwd,
            "env": given_in(plan.env),
            "unset": unset_in(plan.env),
        },
        checkpoints=checkpoints.model_dump(exclude={"on_demand", "warn_after_s"})
        if checkpoints and plan.has_checkpoints and not checkpoints.is_remote
        else None,
    )
    workers = Workers(
        settings=settings,
        infrastructure=infrastructure,
        directory=runtime,
        run_root=run.root,
        env=plan.env,
        system_env=plan.system_env,
        system_locks={system: lock_path(runtime, system) for system in run.record().get("systems", ())},
        checkpoints=checkpoints.path if checkpoints is not None and not checkpoints.is_remote else None,
        files=files_of(plan.env),
    )
    return kind_of(infrastructure).backend(workers)


def _warm(job: JobConfig, index: int) -> dict[str, object] | None:
    phase = job.phases[index]
    if phase.warm == "off":
        return None
    return {
        "modules": phase.warm if phase.warm == "auto" else list(phase.warm),
        "memory_mb": phase.warm_memory_mb,
    }
