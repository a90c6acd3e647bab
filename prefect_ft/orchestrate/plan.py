"""The plan of one phase: everything that its execution needs, resolved.

Owns the translation from the user's configuration to the supervisor's plan.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect_ft.backends.host import inherited_environment
from prefect_ft.backends.kind import kind_of
from prefect_ft.clock import epoch_now, seconds_since
from prefect_ft.config import Infrastructure, JobConfig, Phase, given_in, own_signatures, plain
from prefect_ft.decide import spikes
from prefect_ft.decide.classify import with_own
from prefect_ft.decide.hang import Limits, LogPattern
from prefect_ft.errors import NewerFormatError
from prefect_ft.files import write_yaml
from prefect_ft.journal.lines import head_of, read_lines
from prefect_ft.journal.records import CheckpointLine, Line, PhaseLine
from prefect_ft.model import Policy
from prefect_ft.orchestrate.advisor import AdvisorPlan
from prefect_ft.run import JOURNAL, PARAMS, Run
from prefect_ft.supervisor import (
    AskPlan,
    PhasePlan,
    SavesPlan,
    SourcePlan,
    SuspensionPlan,
    SystemPlan,
    UpkeepPlan,
    WatchPlan,
    pauses_in,
)

IMAGE_CWD = "."
"""The agent's own working directory: the one that the container's image sets."""

PARAMS_VARIABLE = "PREFECT_FT_PARAMS"


def phase_plan(
    job: JobConfig, index: int, run: Run, directory: Path, *, lines: Sequence[Line], isolated: Sequence[str]
) -> PhasePlan:
    """Resolve a phase; values determined when it began are in its journal's `lines`.

    `isolated` are the systems out of use when it begins.
    """
    head = head_of(lines)
    phase, infrastructure = job.phases[index], job.infrastructure_of(index)
    env = {**job.env_of(index), **_params_variable(phase, directory)}
    is_here = infrastructure.ranks_are_here
    return PhasePlan(
        run_id=run.run_id,
        phase=phase.name,
        phase_index=index,
        phases=len(job.phases),
        command=_command(phase, is_here=is_here),
        progress_pattern=phase.progress_pattern,
        resume_args=phase.resume_args,
        skip_args=phase.skip_args,
        watch=_watch(job, index),
        cwd=str(phase.cwd or IMAGE_CWD),
        inherited=frozenset(os.environ) if is_here else frozenset(),
        env=env,
        secret_env=plain(infrastructure.secret_env),
        system_env=_system_env(job, index),
        ranks_per_worker=(head.ranks_per_worker if head is not None else None)
        or _ranks_per_worker(phase, infrastructure, env),
        has_checkpoints=phase.checkpoints is not None and phase.mode != "eval",
        hang_detect_time_s=job.hang_detect_time_s(index),
        stop_grace_s=job.stop_grace_s,
        directory=directory,
        role=phase.launched.role if phase.launched is not None else "default",
        elastic_id=phase.launched.run_id if phase.launched is not None else None,
        lost_ranks_last_s=infrastructure.lost_ranks_last_s(),
        suspension=_suspension(job, index, run, directory),
        on_demand=phase.checkpoints.on_demand if phase.checkpoints is not None else None,
        sources=_sources(job, index, run, env),
        upkeep=_upkeep(job, index, run, env),
        policy=_policy(job, index, isolated, head),
        ask=_ask(job, index),
        catalogue=with_own(own_signatures(job.signatures)),
        saves=_saves(job, index, run, directory, head),
    )


def _policy(job: JobConfig, index: int, isolated: Sequence[str], head: PhaseLine | None) -> Policy:
    """Return the policy of a phase; one that has begun keeps the pool of its beginning, which the history changes."""
    policy = job.policy(index, isolated)
    if head is None or not head.systems or head.workers is None:
        return policy
    return replace(policy, systems=tuple(head.systems), workers=head.workers)


def _saves(job: JobConfig, index: int, run: Run, directory: Path, head: PhaseLine | None) -> SavesPlan | None:
    """Return which checkpoints belong to the phase; `head` is its journal's first line, if it has begun."""
    phase = job.phases[index]
    started = run.record().get("started")
    if phase.checkpoints is None or phase.mode == "eval":
        return None
    recorded_s = head.saves_since_s if head is not None else None
    since_s = _saves_since_s(job, index, run, directory) if recorded_s is None else recorded_s or None
    return SavesPlan(
        directory=phase.checkpoints.path,
        run_began_s=epoch_now() - seconds_since(started) if isinstance(started, str) else None,
        since_s=since_s,
        warn_after_s=phase.checkpoints.warn_after_s,
        keeps_copies=phase.checkpoints.keep_copies,
        is_local=phase.checkpoints.local,
        marks=tuple(_marks_of_earlier(run, directory, phase.checkpoints.path)),
        look=phase.checkpoints.model_dump(include={"path", "layout", "pattern", "settle_s"})
        if phase.checkpoints.is_remote
        else None,
        look_every_s=job.sample_period_s,
    )


def _marks_of_earlier(run: Run, directory: Path, place: str) -> Iterator[Mapping[str, Any]]:
    """Yield what the run's other phases have verified in a directory of checkpoints, the last word on each."""
    found: dict[str, CheckpointLine] = {}
    for each in run.record().get("phases", ()):
        if each["directory"] == directory.name:
            continue
        with suppress(OSError, NewerFormatError):
            lines = read_lines(run.model_dir / each["directory"] / JOURNAL)
            found |= {str(line.path): line for line in lines if isinstance(line, CheckpointLine)}
    for path, line in found.items():
        mark = {name: getattr(line, name) for name in ("step", "mtime", "size", "device", "inode", "counted")}
        if Path(path).is_relative_to(place) and None not in mark.values():
            yield {"path": path, **mark}


def _saves_since_s(job: JobConfig, index: int, run: Run, directory: Path) -> float | None:
    """Return the time from which checkpoints count for a phase that begins; None: all count.

    A phase repeated in the same run resumes from its own earlier checkpoints.
    """
    if job.resume_of(index) == "auto":
        return None
    names = [each["directory"] for each in run.record().get("phases", ()) if each["index"] == index]
    for name in names:
        with suppress(OSError):
            head = head_of(read_lines(run.model_dir / name / JOURNAL))
            if run.model_dir / name != directory and head is not None and head.saves_since_s:
                return float(head.saves_since_s)
    return epoch_now()


def _ask(job: JobConfig, index: int) -> AskPlan:
    section = job.autorestart_of(index)
    if section is None:
        return AskPlan()
    return AskPlan(
        before=frozenset(section.ask_before), timeout_s=section.ask_timeout_s, default=section.ask_default
    )


def _suspension(job: JobConfig, index: int, run: Run, directory: Path) -> SuspensionPlan:
    section = job.suspension_of(index)
    is_shadow = section.mode == "shadow"
    logs = [LogPattern(**each.model_dump()) for each in section.logs]
    return SuspensionPlan(
        limits=Limits(
            hang_s=job.hang_detect_time_s(index),
            stages=section.stages,
            first_step_s=section.first_step_s,
            floor_s=section.floor_s,
            evidence=section.evidence,
            logs=tuple(logs),
        ),
        response="shadow" if is_shadow else "restart" if section.restart else "report",
        grace_s=section.grace_s,
        sample_period_s=job.sample_period_s,
        pauses=tuple(_earlier_pauses(run.model_dir, job.phases[index].name, directory)),
    )


def _watch(job: JobConfig, index: int) -> WatchPlan:
    section = job.numeric_of(index)
    limits = spikes.Limits(window=section.window, least=section.min_values, deviations=section.deviations)
    return WatchPlan(response=section.watch, limits=limits, max_acts=section.max_acts)


def _earlier_pauses(
    model_dir: Path, phase: str, but: Path, most: int = 5
) -> Iterator[Mapping[str, Sequence[float]]]:
    """Yield the pauses recorded by the last executions of a phase in this model directory, oldest first."""
    found = [path for path in model_dir.glob(f"*_restartable*/{JOURNAL}") if path.parent != but]
    for path in sorted(found)[-most:]:
        with suppress(OSError, NewerFormatError):  # the journal was moved away, or has a newer format
            lines = read_lines(path)
            if (head := head_of(lines)) is not None and head.phase == phase:
                yield from pauses_in(lines)


def _sources(job: JobConfig, index: int, run: Run, env: Mapping[str, str | None]) -> SourcePlan:
    return SourcePlan(
        faults=job.faults,
        place=run.root / "faults.json",
        cwd=_host_cwd(job, index),
        env=_command_env(job, index, run, env),
    )


RESET = (sys.executable, "-m", "prefect_ft.worker.detectors.reset")
"""The default of `heal`: the vendor's tool, for a device that no other process uses."""


def _upkeep(job: JobConfig, index: int, run: Run, env: Mapping[str, str | None]) -> UpkeepPlan:
    infrastructure = job.infrastructure_of(index)
    common = _command_env(job, index, run, env)
    usual = RESET if job.faults.detectors and infrastructure.ranks_are_here else None
    systems = {
        system.name: SystemPlan(
            env=given_in({**common, **system.env}),
            heal=system.heal or infrastructure.heal or usual,
            check=system.check or infrastructure.check,
        )
        for system in infrastructure.systems
    }
    return UpkeepPlan(
        systems=systems,
        cwd=_host_cwd(job, index),
        heal_timeout_s=infrastructure.heal_timeout_s,
        check_timeout_s=infrastructure.check_timeout_s,
    )


def advisor_plan(
    job: JobConfig, index: int, run: Run, phase_env: Mapping[str, str | None]
) -> AdvisorPlan | None:
    """Return how the job's advisor is asked; None where it has none."""
    if job.classify is None:
        return None
    return AdvisorPlan(
        command=job.classify.command,
        timeout_s=job.classify.timeout_s,
        cwd=_host_cwd(job, index),
        env=_command_env(job, index, run, phase_env),
    )


def _host_cwd(job: JobConfig, index: int) -> str:
    """Return the working directory of commands that run beside the training, on this machine."""
    is_here = job.infrastructure_of(index).ranks_are_here
    return str(job.phases[index].cwd if is_here else job.cwd)


def files_of(env: Mapping[str, str | None]) -> dict[str, Path]:
    """Return the files of this machine that ranks read, by their paths as ranks see them."""
    return {path: Path(path) for name in (PARAMS_VARIABLE,) if (path := env.get(name)) is not None}


def _command_env(job: JobConfig, index: int, run: Run, env: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of the user's commands that run beside the training."""
    about = {"PREFECT_FT_RUN_ID": run.run_id, "PREFECT_FT_PHASE": job.phases[index].name}
    return given_in({**inherited_environment(), **env, **about})


def _params_variable(phase: Phase, directory: Path) -> dict[str, str]:
    """Write the command's params file, if any; return the variable with its path."""
    if phase.params is None:
        return {}
    path = directory / PARAMS
    write_yaml(path, phase.params)
    return {PARAMS_VARIABLE: str(path.absolute())}


def _command(phase: Phase, *, is_here: bool) -> tuple[str, ...]:
    """Return the ranks' command; on this machine `python` as its first word is the flow's own interpreter."""
    first, *rest = phase.launched.command if phase.launched is not None else phase.command
    return (sys.executable if is_here and first == "python" else first, *rest)


def _ranks_per_worker(phase: Phase, infrastructure: Infrastructure, env: Mapping[str, str | None]) -> int:
    if phase.nproc_per_worker != "auto":
        return phase.nproc_per_worker
    return kind_of(infrastructure).ranks_per_worker(infrastructure, env)


def _system_env(job: JobConfig, index: int) -> dict[str, Mapping[str, str | None]]:
    return {system.name: system.env for system in job.infrastructure_of(index).systems}
