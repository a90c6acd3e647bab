"""One command on one gang of workers, started again only by who asks: no policy, no checkpoints, no journal.

Everything is done in the caller's thread; ranks go on whether anybody waits or not.
"""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from prefect.blocks.abstract import JobRun, LoggerOrAdapter
from typing_extensions import Self

from prefect_ft.blocks.result import TrainingResult
from prefect_ft.config import Infrastructure, JobConfig, Phase
from prefect_ft.decide import initial_placement
from prefect_ft.errors import BackendError, ConfigError, LeaseLostError, RunFailedError
from prefect_ft.orchestrate import preflight
from prefect_ft.orchestrate.phase import backend_of
from prefect_ft.orchestrate.plan import phase_plan
from prefect_ft.orchestrate.run import begin_run, conclude
from prefect_ft.plaintext import as_line
from prefect_ft.run import vacancy
from prefect_ft.run.ownership import recorded_runtime
from prefect_ft.supervisor import RunLog, StopRequest, describe
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.crew import Crew, StopWantedError
from prefect_ft.supervisor.enact import GangChange, first_gang
from prefect_ft.supervisor.events import Event, Excerpt, Lost, Output
from prefect_ft.supervisor.gang import WorkerGoneError
from prefect_ft.supervisor.launch import Launch, ranks_by_worker, start_orders
from prefect_ft.supervisor.masking import masking


class TrainingRun(JobRun[TrainingResult]):
    """A command that runs from the construction on, until `stop`; also a context that stops it at its end.

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
        self._attempt: Attempt | None = None
        self._number = 0
        """The last attempt's."""
        self._created = self._executed = 0
        """How often the workers have been created, and the command been started in those that are there."""
        self._began_s = time.monotonic()
        self._open = ExitStack()
        try:
            self._hold(job)
            self._begin("start", first_gang(len(self._placement)))
        except BaseException:
            self._open.close()
            raise
        atexit.register(self.stop)

    def _hold(self, job: JobConfig) -> None:
        """Get hold of the model directory, and of what speaks with the workers; `_open` lets go of it all."""
        holding = begin_run(job, vacancy(Path(job.model_dir), job.lease_s))
        run, stop = holding.run, StopRequest()
        self._open.callback(stop.close)
        self._open.enter_context(
            holding.kept(on_lost=stop.abandon, on_cancel=stop.ask, each_time=stop.record)
        )
        self._open.callback(lambda: conclude(holding, self._status))
        runtime = recorded_runtime(run)
        self.log = Path(job.model_dir) / "run.log"
        self._log = self._open.enter_context(
            closing(RunLog(self.log, runtime / "run.places", job.run_log_mb << 20))
        )
        self._plan = phase_plan(job, 0, run, run.root, lines=(), isolated=())
        self._placement = initial_placement(self._plan.policy) or ()
        self._epoch = holding.lease.epoch
        backend = self._open.enter_context(closing(backend_of(job, 0, run, self._plan, runtime)))
        self._crew = Crew(
            backend,
            run_id=run.run_id,
            phase_index=self._plan.phase_index,
            key=run.key,
            epoch=self._epoch,
            stop=stop,
            calls=self._open.enter_context(closing(Calls())),
            listener=self._listen,
            mask=masking(self._plan.secret_env.values()),
            check=holding.lease.check,
        )
        self._open.callback(self._crew.close)

    # -- what its holder may do -------------------------------------------------------------------

    def re_execute(self) -> Self:
        """End all processes of the command and start it again in the same workers.

        Containers, their files and their /dev/shm stay. Raises BackendError where a worker is gone.
        """
        self._end_ranks(0.0)
        self._begin("re_execute", GangChange(destroy=(), create=()))
        return self

    def rebuild(self) -> Self:
        """Remove the workers, create them anew, and start the command in them; raises BackendError."""
        self._end_ranks(0.0)
        everyone = tuple(range(len(self._placement)))
        self._begin("rebuild", GangChange(destroy=everyone, create=everyone))
        return self

    def wait_for_completion(self, timeout_s: float | None = None) -> None:  # type: ignore[override]  # as `trigger`
        """Wait until every rank is done; raises RunFailedError for another end, TimeoutError.

        Afterwards nothing of the command runs; workers stay until `stop`.
        """
        attempt = self._attempt
        assert attempt is not None
        if self._result is None:
            self._result = self._await_end(attempt, timeout_s)
            kind, reason = self._result.incident.kind, self._result.reason
            self._logger.info("attempt=%d outcome=%s: %s", self._number, kind, as_line(reason))
        if not self._result.succeeded:
            raise RunFailedError(self._result.reason)

    def fetch_result(self) -> TrainingResult:  # type: ignore[override]  # as `trigger`
        """Return how the last attempt ended; raises ConfigError before `wait_for_completion` has seen that."""
        if self._result is None:
            raise ConfigError("the command has not ended: wait_for_completion() first")
        return self._result

    @property
    def is_over(self) -> bool:
        """Whether it has been stopped: then there are no workers any more."""
        return self._number < 0

    def stop(self) -> None:
        """End the command and remove the workers. Idempotent."""
        if self.is_over:
            return
        atexit.unregister(self.stop)
        try:
            if self._attempt is not None and self._attempt.is_running:
                with suppress(BackendError):
                    self._end_ranks(self._plan.stop_grace_s)
        finally:
            self._number = -1
            self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- attempts ---------------------------------------------------------------------------------

    def _begin(self, action: str, change: GangChange) -> None:
        """Change the workers and start the command on them."""
        with self._gone_told():
            self._crew.change(change, self._placement, self._created)
            if change.create:
                self._created, self._executed = self._created + 1, 0
            self._number, self._executed = self._number + 1, self._executed + 1
            self._result = None
            launch = self._launch()
            self._attempt = Attempt(self._number, ranks_by_worker(self._plan, launch.placement))
            self._crew.start(start_orders(self._plan, launch, {"attempt": self._number}), self._token)
        self._logger.info("attempt=%d action=%s log=%s", self._number, action, as_line(str(self.log)))

    def _launch(self) -> Launch:
        return Launch(
            attempt=self._number,
            restarts=self._number - 1,
            decision=None,
            placement=self._placement,
            start_counts=((self._created, self._executed),) * len(self._placement),
            master=self._crew.gang.master,
            has_store=self._crew.gang.has_store,
            in_process_port=self._crew.gang.in_process_port,
            in_process_key=self._crew.gang.in_process_key,
            resume_step=None,
            resume_path=None,
            passed_over={},
            skip_eval_at_step=None,
        )

    def _await_end(self, attempt: Attempt, timeout_s: float | None) -> TrainingResult:
        cancelled_by = None
        try:
            self._crew.serve(lambda: attempt.over, timeout_s)
        except StopWantedError:
            cancelled_by = "prefect-ft cancel"
        if cancelled_by is None and not attempt.over:
            raise TimeoutError(f"the command still runs after {timeout_s:g} s")
        t = time.monotonic() - self._began_s
        self._end_ranks(0.0 if cancelled_by is None else self._plan.stop_grace_s)
        incident = attempt.incident(t, cancelled_by=cancelled_by)
        return TrainingResult(
            attempt=attempt.number, incident=incident, reason=describe(incident), log=self.log
        )

    def _end_ranks(self, grace_s: float) -> None:
        """End every process of the attempt, and hear the last of its output."""
        if self._attempt is not None:
            self._attempt.ending = True
        with self._gone_told():
            self._crew.stop(self._token, grace_s)

    @contextmanager
    def _gone_told(self) -> Iterator[None]:
        """Have a worker that is not there told as BackendError."""
        try:
            yield
        except WorkerGoneError as exc:
            raise BackendError(f"worker {exc.worker}: {exc.why}", system=exc.system) from exc
        except StopWantedError as exc:
            raise LeaseLostError("the run is being cancelled: stop() it") from exc

    @property
    def _token(self) -> tuple[int, int, int]:
        return self._epoch, self._plan.phase_index, self._number

    @property
    def _status(self) -> str:
        """How the whole of it has ended, as `prefect-ft list` shows it."""
        if self._result is None or self._result.incident.kind == "cancelled":
            return "cancelled"
        return "completed" if self._result.succeeded else "failed"

    def _listen(self, worker: int, event: Event | Lost) -> None:
        match event:
            case Output():
                self._log.write(event.token[2], worker, event.rank, event.text, event.offset)
            case Excerpt():
                self._log.write_excerpt(event.token[2], worker, event)
            case _:
                pass
        if self._attempt is not None:
            self._attempt.take(worker, event)
