"""What the ranks of an attempt get: the script's contract as environment variables. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_ft.config import OnDemand, given_in, unset_in
from prefect_ft.decide.classify import Catalogue
from prefect_ft.model import Decision, Policy, Window
from prefect_ft.supervisor.fault_sources import SourcePlan
from prefect_ft.supervisor.gate import AskPlan
from prefect_ft.supervisor.hangs import SuspensionPlan
from prefect_ft.supervisor.upkeep import UpkeepPlan
from prefect_ft.supervisor.values import OFF, WatchPlan
from prefect_ft.worker.coordination import KEY_VARIABLE, STORE_VARIABLE, served_at
from prefect_ft.worker.rendezvous import USES_STORE

Environment = dict[str, str]


SIGNALS_TO_HANDLE = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's default, which its ranks inherit."""


RESUME_FROM = "{resume_from}"
"""What stands for the checkpoint in `resume_args`."""

STEPS, WINDOWS = "{steps}", "{windows}"
"""What stands for the steps that are skipped in `skip_args`, one by one and as windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavesPlan:
    """Where a phase's checkpoints are, and which of them are its own. Times are seconds since the epoch.

    Those written before `run_began_s` belong to an earlier run; None: its beginning is unknown. Those written up to
    `since_s` are ignored; None: all count. After `warn_after_s` seconds without any a warning is due, 0: never.
    `keeps_copies`: agents restore copies of overwritten files. `is_local`: each worker has a part of every checkpoint,
    on a disk that the others do not see. `look` (path, layout, pattern, settle_s) is how the orchestrator scans a URL,
    every `look_every_s`; None: agents scan a directory. `marks` are checkpoints that earlier phases of the run have
    verified, in the agents' form: they stay verified until they change.
    """

    directory: str
    run_began_s: float | None = None
    since_s: float | None = None
    warn_after_s: float = 0.0
    keeps_copies: bool = False
    is_local: bool = False
    look: Mapping[str, Any] | None = None
    look_every_s: float = 5.0
    marks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """One phase as it is to be executed: everything resolved, nothing left to look up.

    `env` holds the job's and the phase's variables, where the phase wins; `system_env` completes it
    for the ranks on a system. In both `None` unsets a variable, wherever it was set. `secret_env` has the lowest
    precedence, and is never shown. `inherited` are the names of variables that workers inherit.
    `ranks_per_worker` is the number of ranks in each worker. `catalogue` classifies failures; the
    package's own if not given. `on_demand` says how ranks are asked for checkpoints; None: not at all.
    `lost_ranks_last_s` is how long ranks of a lost system may keep running and writing; None: they end with it.
    `saves` is about the phase's checkpoints, None where it has none.
    `progress_pattern` finds steps in the ranks' output; the package's own if not given.
    `resume_args` are added to the command of an attempt that resumes; `skip_args` to one that skips steps.
    `watch` is over losses and gradient norms.
    `directory` is the phase's own, for its files. `role` and `elastic_id` are torchrun's names of the
    ranks' role and of their job, None: the run's id.
    """

    run_id: str
    phase: str
    phase_index: int
    phases: int
    command: tuple[str, ...]
    cwd: str
    inherited: frozenset[str]
    env: Mapping[str, str | None]
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    system_env: Mapping[str, Mapping[str, str | None]]
    ranks_per_worker: int
    has_checkpoints: bool
    hang_detect_time_s: float
    stop_grace_s: float
    directory: Path
    on_demand: OnDemand | None
    suspension: SuspensionPlan
    sources: SourcePlan
    upkeep: UpkeepPlan
    policy: Policy
    catalogue: Catalogue | None = None
    progress_pattern: str | None = None
    resume_args: tuple[str, ...] = ()
    skip_args: tuple[str, ...] = ()
    watch: WatchPlan = OFF
    role: str = "default"
    elastic_id: str | None = None
    lost_ranks_last_s: float | None = None
    ask: AskPlan = field(default_factory=AskPlan)
    saves: SavesPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One attempt about to start.

    `decision` led here, `None` for the first attempt. `start_counts[w]` is how often worker `w` was
    created, and how often the command was executed in it, this time included. `master` is host and port
    of worker 0's rendezvous, `has_store` whether its agent listens there; at `in_process_port` it coordinates
    restarts within the processes, None: it does not. `resume_step` and `resume_path` are `None` for from
    scratch; `why` says why that is not the decided step, `None` where it is; `skipped` are
    checkpoints that could not be resumed from, each with the reason. `resume_paths` are the workers' own paths of
    the checkpoint, where each has a part of it.
    """

    attempt: int
    restarts: int
    decision: Decision | None
    placement: tuple[str, ...]
    start_counts: tuple[tuple[int, int], ...]
    master: tuple[str, int]
    has_store: bool
    in_process_port: int | None
    in_process_key: str
    resume_step: int | None
    resume_path: str | None
    why: str | None = None
    skipped: Mapping[str, str]
    skip_eval_at_step: int | None
    resume_paths: Mapping[int, str] = field(default_factory=dict)

    def path_for(self, worker: int) -> str | None:
        """Return the checkpoint as the ranks of a worker find it; None: from scratch."""
        return self.resume_paths.get(worker, self.resume_path)


def worker_environment(plan: PhasePlan, launch: Launch, worker: int) -> Environment:
    """Return the variables that all ranks of one worker share, those that `unset` takes away again among them."""
    system = launch.placement[worker]
    created, executed = launch.start_counts[worker]
    env = {
        **_defaults(plan),
        **plan.secret_env,
        **given_in({**plan.env, **plan.system_env.get(system, {})}),
        **_place(plan, worker, len(launch.placement)),
        "MA_SCHEDULE_CNT": str(created),
        "MA_PROC_START_CNT": str(executed),
        "MASTER_ADDR": launch.master[0],
        "MASTER_PORT": str(launch.master[1]),
        "TORCHELASTIC_RESTART_COUNT": str(launch.restarts),
        USES_STORE: str(launch.has_store),
        "PREFECT_FT_RUN_ID": plan.run_id,
        "PREFECT_FT_PHASE": plan.phase,
        "PREFECT_FT_ATTEMPT": str(launch.attempt),
        "PREFECT_FT_WORKER": str(worker),
        "PREFECT_FT_SYSTEM": system,
        "PREFECT_FT_RESTART_COUNT": str(launch.restarts),
        "PREFECT_FT_RESTART_REASON": launch.decision.rule if launch.decision else "",
        "PREFECT_FT_RESTART_ACTION": launch.decision.action if launch.decision else "",
        "PREFECT_FT_RESUME_FROM": launch.path_for(worker) or "",
    }
    if launch.in_process_port is not None:
        env[STORE_VARIABLE] = served_at(env["MASTER_PORT"], launch.in_process_port)
        env[KEY_VARIABLE] = launch.in_process_key
    if launch.skip_eval_at_step is not None:
        env["PREFECT_FT_SKIP_EVAL_AT_STEP"] = str(launch.skip_eval_at_step)
    if launch.decision is not None and launch.decision.skip_steps:
        env["PREFECT_FT_SKIP_STEPS"] = _written(launch.decision.skip_steps)
    return env


def _written(windows: Sequence[Window]) -> str:
    return ",".join(f"{first}-{last}" for first, last in windows)


def rank_environments(plan: PhasePlan, worker: int) -> dict[int, Environment]:
    """Return each rank of a worker, by its global number, the variables of its own."""
    first = worker * plan.ranks_per_worker
    return {
        rank: {"RANK": str(rank), "LOCAL_RANK": str(rank - first), "ROLE_RANK": str(rank)}
        for rank in range(first, first + plan.ranks_per_worker)
    }


def ranks_by_worker(plan: PhasePlan, placement: Sequence[str]) -> dict[int, int]:
    """Return the ranks of a gang, by their global numbers, each with its worker."""
    return {rank: worker for worker in range(len(placement)) for rank in rank_environments(plan, worker)}


def start_orders(plan: PhasePlan, launch: Launch, note: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return each worker's order to start an attempt; worker 0's keeps `note` for a comeback.

    The note grows with the gang, so only one agent gets it; a start unknown to any agent never happened.
    """
    return {
        worker: {
            "command": _command(plan, launch, launch.path_for(worker)),
            "cwd": plan.cwd,
            "env": worker_environment(plan, launch, worker),
            "ranks": rank_environments(plan, worker),
            "unset": unset_in({**plan.env, **plan.system_env.get(system, {})}),
            "note": note if worker == 0 else {},
            "secrets": list(plan.secret_env.values()),
        }
        for worker, system in enumerate(launch.placement)
    }


def _command(plan: PhasePlan, launch: Launch, path: str | None) -> tuple[str, ...]:
    """Return the command of an attempt: words of one that resumes name the checkpoint, of one that skips the steps."""
    more = () if path is None else (word.replace(RESUME_FROM, path) for word in plan.resume_args)
    windows = () if launch.decision is None else launch.decision.skip_steps
    return (*plan.command, *more, *(_skipping(plan.skip_args, windows) if windows else ()))


def _skipping(words: Sequence[str], windows: Sequence[Window]) -> Iterator[str]:
    """Yield words with the steps in their places; a word that is only `{steps}` becomes one for each."""
    for word in words:
        steps = () if STEPS not in word else [str(step) for a, b in windows for step in range(a, b + 1)]
        if word == STEPS:
            yield from steps
        else:
            yield word.replace(STEPS, ",".join(steps)).replace(WINDOWS, _written(windows))


def _defaults(plan: PhasePlan) -> Environment:
    """Return what holds where the user says nothing, in the job or in the environment that workers inherit."""
    defaults = {
        "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "-1",
        "MA_HANG_DETECT_TIME": str(math.ceil(plan.hang_detect_time_s / 60)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # this one and the others as torchrun
        "TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS_TO_HANDLE,
    }
    if plan.ranks_per_worker > 1:
        # Several ranks on a machine must not each start a thread for every core.
        defaults["OMP_NUM_THREADS"] = "1"
    return {name: value for name, value in defaults.items() if name not in plan.inherited}


def _place(plan: PhasePlan, worker: int, workers: int) -> Environment:
    """Return what torchrun says of a worker's place in the gang: a node is a worker, and all have one role.

    Besides, `NODE_RANK`: what Lightning and others read, and torchrun leaves to its caller.
    """
    policy, world_size = plan.policy, workers * plan.ranks_per_worker
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(plan.ranks_per_worker),
        "GROUP_RANK": str(worker),
        "GROUP_WORLD_SIZE": str(workers),
        "NODE_RANK": str(worker),
        "ROLE_NAME": plan.role,
        "ROLE_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_RUN_ID": plan.elastic_id or plan.run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(policy.max_num_restarts if policy.autorestart else 0),
    }
