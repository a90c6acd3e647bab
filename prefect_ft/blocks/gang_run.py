"""One command on one gang of workers, restarted only on request of its holder, which makes the decisions.

Everything is done in the caller's thread; ranks run whether or not it waits.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from prefect.blocks.abstract import JobRun, LoggerOrAdapter
from typing_extensions import Self

from prefect_ft.blocks.result import TrainingResult
from prefect_ft.clock import PhaseClock, utc_now
from prefect_ft.config import Infrastructure, JobConfig, Phase
from prefect_ft.decide import initial_placement
from prefect_ft.errors import BackendError, ConfigError, LeaseLostError, RunFailedError
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.model import Action, Counters, Decision, Incident
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.placing import placed_on, tenancy_of
from prefect_ft.orchestrate.plan import phase_plan
from prefect_ft.orchestrate.run import begin_run, conclude
from prefect_ft.orchestrate.workers import backend_of
from prefect_ft.plaintext import as_line
from prefect_ft.run import vacancy
from prefect_ft.run.ownership import recorded_runtime
from prefect_ft.supervisor import RunLog, StopRequest, Supervisor, describe

STOPPED = "stop()"
"""The source of the stop, where the holder of a command stops it."""


class TrainingRun(JobRun[TrainingResult]):
    """A command that runs from construction until `stop`; also a context that stops it on exit.

    Its model directory is held as any run's: `prefect-ft cancel` ends it, from elsewhere too.
    """

    def __init__(
        self,
        infrastructure: Infrastructure,
        command: Sequence[str],
        *,
        name: str,
        nproc_per_worker: int | str,
        env: Mapping[str, str | None],
        model_dir: Path | None,
        logger: LoggerOrAdapter,
    ) -> None:
        """Raises ConfigError before anything starts, BackendError for workers that cannot be created."""
        phase = {"name": "command", "mode": "eval", "command": command, "nproc_per_worker": nproc_per_worker}
        directory = model_dir or Path(tempfile.mkdtemp(prefix=f"prefect-ft-{name}-"))
        job = JobConfig(
            name=name,
            model_dir=str(directory),
            infrastructure=infrastructure,
            env=dict(env),
            phases=(Phase.model_validate(phase),),
        ).at(Path.cwd())
        preflight.check(job)
        self._logger = logger
        self._result: TrainingResult | None = None
        self._open = ExitStack()
        self.is_over = False
        """Whether it has been stopped: then its workers are gone."""
        try:
            self._hold(job)
            self._start("start")
        except BaseException:
            self._open.close()
            raise
        atexit.register(self.stop)

    def _hold(self, job: JobConfig) -> None:
        """Hold the model directory, and the connections to the workers; `_open` releases everything."""
        holding = begin_run(job, vacancy(Path(job.model_dir), job.lease_s))
        run, self._stop = holding.run, StopRequest()
        self._open.callback(self._stop.close)
        self._open.enter_context(
            holding.kept(on_lost=self._stop.abandon, on_cancel=self._stop.ask, each_time=self._stop.record)
        )
        self._open.callback(lambda: conclude(holding, self._status))
        runtime = recorded_runtime(run)
        tenancy = tenancy_of(job, 0, run, self._stop)
        job = placed_on(job, 0, run, tenancy)
        self.log = Path(job.model_dir) / "run.log"
        log = RunLog(self.log, runtime / "run.places", job.run_log_mb << 20)
        self._open.enter_context(closing(log))
        plan = phase_plan(job, 0, run, run.root, lines=(), isolated=())
        plan = replace(plan, suspension=replace(plan.suspension, response="shadow"))
        self._placement = initial_placement(plan.policy) or ()
        self._journal = MemoryJournal()
        backend = self._open.enter_context(closing(backend_of(job, 0, run, plan, runtime)))
        self._supervisor = Supervisor(
            plan,
            backend,
            key=run.key,
            epoch=holding.lease.epoch,
            journal=self._journal,
            clock=PhaseClock(),
            log=log,
            stop=self._stop,
            check=holding.lease.check,
        )
        self._open.callback(self._supervisor.close)

    # -- what its holder may do -------------------------------------------------------------------

    def re_execute(self) -> Self:
        """End all processes of the command and start it again in the same workers.

        Containers, their files and their /dev/shm stay. Raises BackendError where a worker is gone.
        """
        self._again("re_execute", "restart_in_place", recreate=())
        return self

    def rebuild(self) -> Self:
        """Remove the workers, create them again, and start the command in them; raises BackendError."""
        self._again("rebuild", "rebuild", recreate=tuple(range(len(self._placement))))
        return self

    def wait_for_completion(self, timeout_s: float | None = None) -> None:  # type: ignore[override]  # as `trigger`
        """Wait until every rank has completed; raises RunFailedError for any other end, TimeoutError.

        Afterwards nothing of the command runs; workers stay until `stop`.
        """
        if self._result is None:
            if not self._supervisor.wait(timeout_s):
                raise TimeoutError(f"the command still runs after {timeout_s:g} s")
            self._result = self._ended()
            kind, reason = self._result.incident.kind, self._result.reason
            self._logger.info("attempt=%d outcome=%s: %s", self._result.attempt, kind, as_line(reason))
        if not self._result.succeeded:
            raise RunFailedError(self._result.reason)

    def fetch_result(self) -> TrainingResult:  # type: ignore[override]  # as `trigger`
        """Return how the last attempt ended; raises ConfigError before `wait_for_completion` has seen that."""
        if self._result is None:
            raise ConfigError("the command has not ended: wait_for_completion() first")
        return self._result

    def stop(self) -> None:
        """End the command and remove the workers. Idempotent."""
        if self.is_over:
            return
        atexit.unregister(self.stop)
        self.is_over = True
        try:
            with suppress(BackendError, LeaseLostError):
                self._stop.ask(STOPPED)
                self._supervisor.wait()
        finally:
            self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- attempts ---------------------------------------------------------------------------------

    def _again(self, name: str, action: Action, recreate: tuple[int, ...]) -> None:
        """Carry out the holder's decision; raises BackendError."""
        if self._stop.wanted is not None:
            raise LeaseLostError("the run is being cancelled: stop() it")
        self._supervisor.end(name)
        number, now = self._journal.last_number + 1, self._supervisor.clock.now()
        incident = Incident(t=now, kind="cancelled", attempt=self._supervisor.attempts)
        self._journal.append_incident(incident, n=number, utc=utc_now(), ended_t=now)
        decision = Decision(
            n=number,
            rule=name,
            action=action,
            reason=f"{name}()",
            placement=self._placement,
            counters=Counters(),
            recreate=recreate,
        )
        self._journal.append_decision(decision, t=now, utc=utc_now())
        self._start(name)

    def _start(self, name: str) -> None:
        self._result = None
        failed = self._supervisor.start()
        if failed is not None:
            incident = failed.incident
            why = incident.evidence.text if incident.evidence is not None else describe(incident)
            raise BackendError(f"worker {incident.worker}: {why}", system=incident.system)
        self._logger.info(
            "attempt=%d action=%s log=%s", self._supervisor.attempts, name, as_line(str(self.log))
        )

    def _ended(self) -> TrainingResult:
        incident = self._supervisor.last_incident
        return TrainingResult(
            attempt=self._supervisor.attempts, incident=incident, reason=describe(incident), log=self.log
        )

    @property
    def _status(self) -> str:
        """How the run as a whole has ended, as `prefect-ft list` shows it."""
        if self._result is None or self._result.incident.kind == "cancelled":
            return "cancelled"
        return "completed" if self._result.succeeded else "failed"
