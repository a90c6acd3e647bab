"""`Wrapper`: a function that all ranks run starts again on all of them when it fails on any.

Owns the order of things between a fault and the next entry: announce, abort, finalize, health check,
barrier, assignment, budget. docs/in-process.md says what users can rely on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Union

from prefect_ft.inprocess.abort import AbortTorchDistributed, nccl_defaults
from prefect_ft.inprocess.errors import (
    Interrupted,
    RestartAbort,
    StoreLostError,
)
from prefect_ft.inprocess.health_check import CudaHealthCheck
from prefect_ft.inprocess.injection import Injection
from prefect_ft.inprocess.limits import Duration, Limits, limits
from prefect_ft.inprocess.rank_assignment import Assignment, Member, shift_ranks
from prefect_ft.inprocess.session import Session
from prefect_ft.inprocess.state import CallWrapper, Fault, State
from prefect_ft.worker.restarts import report_restart

Hook = Callable[[State], object]
Hooks = Union[None, Hook, Sequence[Hook]]

logger = logging.getLogger("prefect_ft.inprocess")

_MAX_TEXT = 500

STORM_S = 0.1
"""A restart of a function that ran shorter counts towards a storm of them."""

_PACKAGE = os.path.dirname(__file__) + os.sep

_call_numbers = itertools.count()
"""They identify the calls of ranks that call several wrapped functions in turn."""

_lost_ranks: Set[int] = set()
"""Ranks that earlier calls have lost: they will not come back."""


class Wrapper:
    """Wraps a function, as a decorator or as a call: `Wrapper(...)(function)(arguments)`."""

    def __init__(
        self,
        *,
        initialize: Hooks = None,
        abort: Hooks = AbortTorchDistributed(),  # noqa: B008  (it has no state)
        finalize: Hooks = None,
        health_check: Hooks = CudaHealthCheck(),  # noqa: B008  (the same)
        completion: Hooks = None,
        terminate: Hooks = None,
        rank_assignment: Assignment = shift_ranks,
        soft_timeout: Optional[Duration] = 60.0,
        hard_timeout: Optional[Duration] = 90.0,
        heartbeat_timeout: Duration = 30.0,
        barrier_timeout: Duration = 120.0,
        completion_timeout: Duration = 120.0,
        rank_key: Optional[Callable[[State], str]] = None,
        termination_grace_time: Duration = 0.0,
        max_restarts: Optional[int] = None,
        max_restarts_without_progress: Optional[int] = 3,
        max_restart_storm: Optional[int] = None,
        min_world_size: int = 1,
        store_port: Optional[int] = None,
        enabled: bool = True,
    ) -> None:
        """Durations are seconds or timedelta. Each hook may be one callable or several, called in order."""
        self._settings = _Settings(
            initialize=_listed(initialize),
            abort=_listed(abort),
            finalize=_listed(finalize),
            health_check=_listed(health_check),
            completion=_listed(completion),
            terminate=_listed(terminate),
            rank_assignment=rank_assignment,
            limits=limits(
                soft_timeout,
                hard_timeout,
                heartbeat_timeout,
                barrier_timeout,
                completion_timeout,
                grace=termination_grace_time,
            ),
            max_restarts=max_restarts,
            max_without_progress=max_restarts_without_progress,
            max_storm=max_restart_storm,
            min_world_size=min_world_size,
            rank_key=rank_key,
            store_port=store_port,
            handle=self._handle,
            ends_by=self._ends_by,
        )
        self._enabled = enabled

    def _ends_by(self, failure: Optional[BaseException], abort: RestartAbort) -> BaseException:
        """Return what this rank raises where there is no further restart; `failure` is its own."""
        return failure or abort

    def _handle(self, *arguments: Any) -> CallWrapper:
        """Return the function's handle."""
        return CallWrapper(*arguments)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the wrapped function; in a rank that ends in reserve it returns None."""
        injection = Injection(function)

        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            call = injection.entry(arguments, named)
            if not self._enabled:
                rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
                return call(self._handle(State(0, rank, size, rank, size, None)))
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            with _environment(self._settings.limits):
                return _Call(self._settings, rank, size, call).run()

        return wrapped


class _Settings:
    """The arguments of a wrapper."""

    def __init__(
        self,
        *,
        initialize: Sequence[Hook],
        abort: Sequence[Hook],
        finalize: Sequence[Hook],
        health_check: Sequence[Hook],
        completion: Sequence[Hook],
        terminate: Sequence[Hook],
        rank_assignment: Assignment,
        limits: Limits,
        max_restarts: Optional[int],
        max_without_progress: Optional[int],
        max_storm: Optional[int],
        min_world_size: int,
        rank_key: Optional[Callable[[State], str]],
        store_port: Optional[int],
        handle: Callable[..., CallWrapper],
        ends_by: Callable[[Optional[BaseException], RestartAbort], BaseException],
    ) -> None:
        self.initialize, self.abort, self.finalize = initialize, abort, finalize
        self.health_check, self.completion, self.terminate = health_check, completion, terminate
        self.rank_assignment, self.limits = rank_assignment, limits
        self.max_restarts, self.max_without_progress = max_restarts, max_without_progress
        self.max_storm, self.min_world_size = max_storm, min_world_size
        self.rank_key, self.store_port = rank_key, store_port
        self.handle, self.ends_by = handle, ends_by


class _Call:
    """One call of a wrapped function, until all ranks have completed it or this one gives up."""

    def __init__(self, settings: _Settings, rank: int, size: int, call: Callable[[CallWrapper], Any]) -> None:
        self._settings, self._call = settings, call
        self._members = [Member(number, number) for number in range(size)]
        self._state = State(-1, rank, size, None, 0, None)
        self._budget = _Budget(settings)
        self._abort_lock = threading.Lock()
        self._aborted = -1
        self._began_s = 0.0
        self._ran_s = math.inf
        """How long the function ran in the last iteration; infinite for a rank in reserve."""
        self._failure: Optional[BaseException] = None
        """This rank's own failure, until the others have arrived."""
        self._session = Session(
            rank,
            size,
            settings.limits,
            self._abort,
            call=next(_call_numbers),
            store_port=settings.store_port,
        )

    def run(self) -> Any:
        """Return the function's result in the iteration in which all ranks completed it.

        If there is no further restart, raises this rank's own failure, or RestartAbort on other ranks.
        """
        try:
            return self._iterate()
        except RestartAbort as exc:
            self._leave(exc)
            end = self._settings.ends_by(self._failure, exc)
        except BaseException as exc:
            self._leave(exc)
            raise
        finally:
            self._session.close()
        raise end

    def _iterate(self) -> Any:
        while True:
            self._next_iteration()
            self._ran_s = math.inf
            if self._state.rank is None:
                is_complete, value = self._session.wait_for_end(self._state.iteration, None), None
            else:
                is_complete, value = self._attempt()
            if is_complete:
                self._run_hooks(self._settings.completion)
                return value
            self._recover()

    # -- an iteration -----------------------------------------------------------------------------

    def _next_iteration(self) -> None:
        iteration = self._state.iteration + 1
        rank_key = self._settings.rank_key
        key = None if rank_key is None else rank_key(self._state)
        without, step, fault, keys = self._session.enter(iteration, _lost_ranks, key)
        there = [
            member._replace(key=keys.get(member.initial_rank))
            for member in self._members
            if member.initial_rank not in without
        ]
        _lost_ranks.update(without)
        active = list(self._settings.rank_assignment(there))
        rank_of = {member.initial_rank: rank for rank, member in enumerate(active)}
        self._members = [Member(member.initial_rank, rank_of.get(member.initial_rank)) for member in there]
        own, size = self._state.initial_rank, self._state.initial_world_size
        before = self._state
        self._state = State(iteration, own, size, rank_of.get(own), len(active), fault)
        if (before.rank, before.world_size) != (self._state.rank, self._state.world_size):
            self._state.export()
        why = self._budget.spent(fault, step, len(active), ran_s=self._ran_s)
        if why is not None:
            self._session.give_up(why)
            raise RestartAbort(why)
        self._failure = None
        if fault is not None:
            self._report(fault)

    def _attempt(self) -> Any:
        """Enter the function; return whether all have completed it, and its value."""
        state, session = self._state, self._session
        handle = self._settings.handle(
            state, session.progress, session.interrupter, session.address, self._settings.limits.barrier_s
        )
        session.progress.begin()
        entered_s = time.monotonic()
        excepthook = sys.excepthook  # each of torch's process groups adds its own around it
        try:
            value = session.interrupter.run(state.iteration, lambda: self._enter(handle))
        except Interrupted:
            session.interrupter.disarm()
        except RestartAbort as exc:
            session.give_up(f"rank {state.initial_rank}: {exc}")
            raise
        except Exception as exc:
            self._failed(exc)
        else:
            return session.wait_for_end(state.iteration, state.world_size), value
        finally:
            sys.excepthook = excepthook
            self._began_s = time.monotonic()
            self._ran_s = self._began_s - entered_s
        return False, None

    def _enter(self, handle: CallWrapper) -> Any:
        for hook in self._settings.initialize:
            hook(self._state)
        return self._call(handle)

    def _failed(self, exc: Exception) -> None:
        self._session.announce(self._state.iteration, "exception", _in_words(exc))
        if logger.isEnabledFor(logging.WARNING):  # the text takes a rank as long as all the rest of a restart
            trace = "".join(traceback.format_exception(type(exc), exc, _below_us(exc.__traceback__)))
            logger.warning(
                "iteration=%d rank=%d failed\n%s", self._state.iteration, self._state.initial_rank, trace
            )
        # Release what the function held before anything is set up again.
        traceback.clear_frames(exc.__traceback__)
        self._failure = exc

    # -- between two iterations -------------------------------------------------------------------

    def _recover(self) -> None:
        self._abort(self._state.iteration)
        self._run_hooks(self._settings.finalize)
        self._run_hooks(self._settings.health_check)

    def _abort(self, iteration: int) -> None:
        """Call the abort hooks once in an iteration; in the watch's thread where this one hangs in C."""
        with self._abort_lock:
            if self._aborted >= iteration:
                return
            self._aborted = iteration
            for hook in self._settings.abort:
                try:
                    self._run_hooks([hook])
                except Exception as exc:  # the other hooks must run too, and the health check decides
                    logger.warning("iteration=%d abort hook failed: %s", iteration, _in_words(exc))

    def _run_hooks(self, hooks: Sequence[Hook]) -> None:
        is_interruptible = threading.current_thread() is threading.main_thread()
        for hook in hooks:
            if is_interruptible:
                self._session.interrupter.run_hook(self._settings.limits.soft_s, lambda: hook(self._state))  # noqa: B023
            else:
                hook(self._state)

    def _report(self, fault: Fault) -> None:
        """Report the restart from one rank: the failed one, or the first where that is gone."""
        ranks = [member.initial_rank for member in self._members]
        if self._state.initial_rank != (fault.rank if fault.rank in ranks else ranks[0]):
            return
        took_ms = 1000 * (time.monotonic() - self._began_s)
        logger.warning(
            "restart iteration=%d world_size=%d fault_rank=%s fault=%s took_ms=%.1f: %s",
            self._state.iteration,
            self._state.world_size,
            fault.rank,
            fault.kind,
            took_ms,
            fault.text,
        )
        report_restart(self._state.iteration, fault.rank, fault.kind, fault.text, took_ms)

    # -- leaving ----------------------------------------------------------------------------------

    def _leave(self, exc: BaseException) -> None:
        """Report why this rank leaves."""
        self._session.interrupter.disarm()
        with contextlib.suppress(StoreLostError):
            self._session.announce(self._state.iteration, "exit", _in_words(exc))
        try:
            self._run_hooks(self._settings.terminate)
        except Exception as problem:
            logger.warning("terminate hook failed: %s", _in_words(problem))


class _Budget:
    """How often a call may restart. All ranks see and decide the same."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._restarts = self._without_progress = 0
        self._highest_step: Optional[int] = None
        self._storm = 0
        """Restarts in a row of a function that hardly ran."""

    def spent(
        self, fault: Optional[Fault], step: Optional[int], world_size: int, *, ran_s: float
    ) -> Optional[str]:
        """Count a restart, where a fault led here; return why there may not be one. None: there may.

        `ran_s` is how long the function ran here. Ranks may detect a storm in turn: the first makes all give up.
        """
        settings = self._settings
        if fault is not None:
            self._count(step)
            self._storm = self._storm + 1 if ran_s < STORM_S else 0
        if world_size < settings.min_world_size:
            ranks = "rank" if world_size == 1 else "ranks"
            return f"{world_size} {ranks} could run, min_world_size is {settings.min_world_size}"
        if settings.max_restarts is not None and self._restarts > settings.max_restarts:
            return f"max_restarts is {settings.max_restarts}"
        limit = settings.max_without_progress
        if limit is not None and self._without_progress > limit:
            return f"max_restarts_without_progress is {limit}"
        if settings.max_storm is not None and self._storm > settings.max_storm:
            return f"max_restart_storm is {settings.max_storm}: each time it ran for less than {STORM_S:g} s"
        return None

    def _count(self, step: Optional[int]) -> None:
        self._restarts += 1
        if step is not None and (self._highest_step is None or step > self._highest_step):
            self._highest_step, self._without_progress = step, 0
        self._without_progress += 1


def _listed(hooks: Hooks) -> List[Hook]:
    if hooks is None:
        return []
    return [hooks] if callable(hooks) else list(hooks)


@contextlib.contextmanager
def _environment(limits: Limits) -> Iterator[None]:
    """Set what torch's groups need, unless nothing else ends a rank that hangs; put all back after."""
    before = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    with nccl_defaults() if limits.hard_s is not None else contextlib.nullcontext():
        try:
            yield
        finally:
            os.environ.update(before)


def _below_us(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """Leave out the frames of this package, which come first."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace


def _in_words(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"[:_MAX_TEXT]
