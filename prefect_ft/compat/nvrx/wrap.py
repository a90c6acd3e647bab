"""`Wrapper` and `CallWrapper` with their arguments and meaning, on the engine of `prefect_ft.inprocess`."""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import logging
import os
import sys
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Set, cast

from prefect_ft.compat.nvrx import exception
from prefect_ft.compat.nvrx.abort import Abort, AbortTorchDistributed
from prefect_ft.compat.nvrx.completion import Completion
from prefect_ft.compat.nvrx.compose import Compose
from prefect_ft.compat.nvrx.contexts import RankAssignment
from prefect_ft.compat.nvrx.finalize import Finalize
from prefect_ft.compat.nvrx.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    HealthCheck,
)
from prefect_ft.compat.nvrx.initialize import Initialize
from prefect_ft.compat.nvrx.places import Places
from prefect_ft.compat.nvrx.rank_assignment import ActivateAllRanks, ShiftRanks
from prefect_ft.compat.nvrx.state import FrozenState
from prefect_ft.compat.nvrx.terminate import Terminate
from prefect_ft.inprocess import state as engine_state
from prefect_ft.inprocess import wrapper as engine
from prefect_ft.inprocess.errors import RestartAbort as EngineAbort
from prefect_ft.inprocess.rank_assignment import Member

logger = logging.getLogger("nvrx")

_S = datetime.timedelta(seconds=1)
_NOT_NEEDED: Dict[str, str] = {
    "store_factory": "the engine has a store of its own",
    "monitor_thread_interval": "nothing is polled",
    "monitor_process_interval": "nothing is polled",
    "heartbeat_interval": "a lost rank closes its connections",
    "progress_watchdog_interval": "nothing is polled",
    "last_call_wait": "a second fault is part of the same restart, however late",
    "monitor_process_logfile": "the process beside a rank writes to its standard error",
    "monitor_process_pidfile": "the process beside a rank ends with it",
}
"""The arguments that are accepted and do nothing, and why."""

STORM = 100
"""Restarts in a row of a function that hardly ran, which end all ranks; theirs has no such limit."""

_warned: Set[str] = set()

_NCCL_SETTINGS = {"NCCL_NVLS_ENABLE": "0"}
"""The variables with which NCCL lets communicators be aborted (NVRx's usage guide)."""


class CallWrapper(engine_state.CallWrapper):
    """The wrapped function's handle; given to the parameter that is annotated with it, or with `Optional` of it."""

    def __init__(self, *arguments: Any, places: Places) -> None:
        super().__init__(*arguments)
        self._places = places

    @property
    def frozen_state(self) -> FrozenState:
        """This rank's place."""
        return self._places.own(self.iteration)

    def disable_hang_protection(self) -> ContextManager[None]:
        """Suspend timeouts until the block is left."""
        return self.unwatched()


class Wrapper(engine.Wrapper):
    """Restarts a function on all ranks when it fails on any.

    Durations are timedelta. Raises TypeError for a hook of another kind, ValueError for timeouts out of their order.
    `store_kwargs["port"]` is where the store is outside of a run, MASTER_PORT if not given, and the port after it
    under torchrun, whose own store is there.
    """

    def __init__(
        self,
        *,
        store_factory: Any = None,
        store_kwargs: Optional[Dict[str, Any]] = None,
        initialize: Optional[Initialize] = None,
        abort: Optional[Abort] = AbortTorchDistributed(),  # noqa: B008  (it has no state)
        finalize: Optional[Finalize] = None,
        health_check: Optional[HealthCheck] = None,
        rank_assignment: Optional[RankAssignment] = None,
        monitor_thread_interval: datetime.timedelta = _S,
        monitor_process_interval: datetime.timedelta = _S,
        heartbeat_interval: datetime.timedelta = _S,
        progress_watchdog_interval: datetime.timedelta = _S,
        soft_timeout: datetime.timedelta = 60 * _S,
        hard_timeout: datetime.timedelta = 90 * _S,
        heartbeat_timeout: datetime.timedelta = 30 * _S,
        barrier_timeout: datetime.timedelta = 120 * _S,
        completion_timeout: datetime.timedelta = 120 * _S,
        last_call_wait: datetime.timedelta = _S,
        termination_grace_time: datetime.timedelta = 5 * _S,
        monitor_process_logfile: Optional[str] = None,
        monitor_process_pidfile: Optional[str] = None,
        enabled: bool = True,
        completion: Optional[Completion] = None,
        terminate: Optional[Terminate] = None,
    ) -> None:
        if rank_assignment is None:
            rank_assignment = cast("RankAssignment", Compose(ActivateAllRanks(), ShiftRanks()))
        given = dict(locals())
        _check_kinds(given)
        _check_order(given)
        _warn_of_unneeded(given)
        self.enabled = enabled
        self.health_check = health_check
        self.restart_health_check = _restart_check(health_check)
        self.rank_assignment = rank_assignment
        self._hard_timeout = hard_timeout
        self._places = Places(rank_assignment, 0, 1)
        super().__init__(
            initialize=[*self._hooks(initialize), *self._hooks(health_check)],
            abort=self._hooks(abort),
            finalize=[*self._hooks(finalize), _collect],
            health_check=self._hooks(self.restart_health_check, ends_as=exception.HealthCheckError),
            completion=self._hooks(completion),
            terminate=self._hooks(terminate),
            rank_assignment=self._assign,
            rank_key=lambda _: self._places.keys(),
            soft_timeout=soft_timeout,
            hard_timeout=hard_timeout,
            heartbeat_timeout=heartbeat_timeout,
            barrier_timeout=barrier_timeout,
            completion_timeout=completion_timeout,
            termination_grace_time=termination_grace_time,
            max_restarts_without_progress=None,
            max_restart_storm=STORM,
            store_port=_port((store_kwargs or {}).get("port")),
        )

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, wrapped, or as it is where the wrapper is not enabled."""
        if not self.enabled:
            return function
        entered = super().__call__(self._noting_failures(function))

        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            _check_torch()
            rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            self._places = Places(self.rank_assignment, rank, size)
            logger.debug("rank %d of %d enters", rank, size)
            with _frozen():
                return entered(*arguments, **named)

        return wrapped

    def _noting_failures(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*arguments: Any, **named: Any) -> Any:
            self._places.failed(None)
            try:
                with _aborting():
                    return function(*arguments, **named)
            except Exception as exc:
                self._places.failed(exc)
                raise

        return noting

    def _hooks(self, hook: Any, ends_as: Optional[type] = None) -> List[engine.Hook]:
        """Return a hook as the engine calls it; what it raises becomes an `ends_as`, if one is given."""
        if hook is None:
            return []

        def call(state: engine_state.State) -> None:
            try:
                with _aborting():
                    hook(self._places.own(max(0, state.iteration)))
            except Exception as exc:
                if ends_as is None or isinstance(exc, ends_as):
                    raise
                raise ends_as(f"{type(exc).__name__}: {exc}") from exc

        return [call]

    def _assign(self, members: List[Member]) -> List[Member]:
        return self._places.assign(members)

    def _handle(self, *arguments: Any) -> CallWrapper:
        return CallWrapper(*arguments, places=self._places)

    def _ends_by(self, failure: Optional[BaseException], abort: EngineAbort) -> BaseException:
        end = exception.RestartAbort(str(abort))
        end.__cause__ = failure or self._places.own(0).fn_exception
        return end


def _collect(_: engine_state.State) -> None:
    """Free reference cycles, including stores of process groups, as their wrapper does."""
    while gc.collect():
        pass


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Exclude existing objects from the garbage collection of each restart: torch's modules take tens of ms.

    Only those from before the call: a restart must free what the failed iteration made.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


@contextlib.contextmanager
def _aborting() -> Iterator[None]:
    """Have the engine end all ranks when a hook or the function raises RestartAbort."""
    try:
        yield
    except exception.RestartAbort as exc:
        raise EngineAbort(str(exc)) from exc


def _restart_check(health_check: Optional[HealthCheck]) -> Any:
    """Return the checks after a fault: the user's, and those of LOCAL_RANK's devices."""
    checks: List[Any] = [] if health_check is None else [*getattr(health_check, "instances", [health_check])]
    local_rank = os.environ.get("LOCAL_RANK", "")
    if local_rank.isdecimal():
        kinds = (ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck)
        checks += [kind(device_index=int(local_rank)) for kind in kinds]
    return Compose(*checks) if checks else None


def _port(given: Optional[int]) -> Optional[int]:
    if given is not None:
        return given
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ  # then MASTER_PORT is the launcher's own store's
    master_port = os.environ.get("MASTER_PORT")
    return int(master_port) if master_port and not is_launched else None


def _check_kinds(given: Dict[str, Any]) -> None:
    kinds = {
        "initialize": Initialize,
        "abort": Abort,
        "finalize": Finalize,
        "health_check": HealthCheck,
        "completion": Completion,
        "terminate": Terminate,
    }
    for name, kind in kinds.items():
        if given[name] is not None and not isinstance(given[name], kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {type(given[name]).__name__}")
    if not isinstance(given["rank_assignment"], RankAssignment):
        raise TypeError(f"rank_assignment must be a RankAssignment, not {given['rank_assignment']!r}")
    for name, value in given.items():
        if name.endswith(("_timeout", "_interval", "_time", "_wait")) and not isinstance(
            value, datetime.timedelta
        ):
            raise TypeError(f"{name} must be a timedelta, not {value!r}")


def _check_order(given: Dict[str, Any]) -> None:
    for low, high in (
        ("soft_timeout", "hard_timeout"),
        ("hard_timeout", "barrier_timeout"),
        ("heartbeat_timeout", "barrier_timeout"),
        ("heartbeat_interval", "heartbeat_timeout"),
        ("monitor_process_interval", "heartbeat_timeout"),
        ("monitor_process_interval", "soft_timeout"),
        ("monitor_thread_interval", "soft_timeout"),
        ("progress_watchdog_interval", "soft_timeout"),
    ):
        if given[low] >= given[high]:
            raise ValueError(f"{low} < {high} does not hold: {given[low]} and {given[high]}")
    for name in ("monitor_process_logfile", "monitor_process_pidfile"):
        if given[name] is not None and not os.path.isabs(given[name]):
            raise ValueError(f"{name} must be an absolute path, not {given[name]!r}")


def _warn_of_unneeded(given: Dict[str, Any]) -> None:
    for name, why in _NOT_NEEDED.items():
        if given[name] not in (None, _S) and name not in _warned:
            _warned.add(name)
            logger.warning("%s is not needed: %s", name, why)


def _check_torch() -> None:
    """Raise ValueError where a process group is there already; warn of settings of NCCL that keep it from aborting."""
    torch = sys.modules.get("torch")
    dist = sys.modules.get("torch.distributed")
    if torch is None or dist is None or not dist.is_available():
        return
    if dist.is_initialized():
        raise ValueError("not torch.distributed.is_initialized() does not hold: the wrapper must come first")
    if torch.cuda.is_available():
        _warn_of_nccl()


def _warn_of_nccl() -> None:
    """Warn of what keeps NCCL from aborting; the rest of torch's settings are the wrapper's."""
    for name, value in _NCCL_SETTINGS.items():
        if os.environ.get(name) != value and name not in _warned:
            _warned.add(name)
            logger.warning("set %s=%s: else a restart can hang in NCCL", name, value)
