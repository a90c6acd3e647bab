"""What every backend promises: workers on systems, each with an agent that can be reached.

A backend creates and destroys workers and knows nothing of ranks, attempts or decisions: those are the
agents' and the supervisor's. All calls are idempotent.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prefect_ft.model import Evidence
from prefect_ft.run import Certificates
from prefect_ft.worker import descriptors


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker of the gang: its number and system, and what created it.

    That is a decision of the phase (0: its beginning) in one life of the orchestrator, its epoch. No two
    workers of a phase are alike in number, epoch and decision.
    """

    number: int
    system: str
    epoch: int
    decision: int


class RouteUnavailableError(ConnectionError):
    """The route to a worker is unavailable; nothing is known about the worker itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a worker's agent listens, and the host name by which other workers reach this one."""

    socket_path: Path
    host: str

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection; raises OSError, RouteUnavailableError where a retry may help."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(self.socket_path))
        except OSError:
            connection.close()
            raise
        return descriptors.moved(connection)


def place_of(phase_index: int, worker: Worker) -> str:
    """Return the name of a worker's directory, wherever it is; no other worker of the run has it."""
    return f"{phase_index}-{worker.number}-{worker.epoch}-{worker.decision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The configuration of all agents of a phase; of `key`, the run's, only what each can verify.

    `checkpoints` (path, layout, pattern, settle_s, keep_copies) goes to worker 0's agent, which looks for them.
    `device_command` is the user's command that prints device utilization; None: there is none.
    `detect` (by, every_s) says how they look for device faults; None: not at all.
    `output` is `forward` or `workers`; `signs` are texts that mark lines of interest there.
    `rendezvous` (who, and the phase's command, cwd and env) goes to worker 0's agent too.
    `warm` (modules, memory_mb) is what ranks find already imported; None: they start cold.
    `certificates` are the run's, for agents reached over a network; None: no agent is.
    """

    run_id: str
    key: str = field(repr=False)
    phase_index: int
    sample_period_s: float
    orphan_timeout_s: float
    spool_bytes: int
    checkpoints: Mapping[str, Any] | None
    output: str = "forward"
    signs: tuple[str, ...] = ()
    rendezvous: Mapping[str, Any] | None = None
    warm: Mapping[str, Any] | None = None
    device_command: tuple[str, ...] | None = None
    detect: Mapping[str, Any] | None = None
    certificates: Certificates | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A worker that exists, whether its agent answers or not.

    `result` is what an agent wrote before it left by itself: the fields of `attached`, its last
    `token`, and `excerpts`, the fields of `excerpt` for each rank.
    """

    worker: Worker
    address: Address
    result: Mapping[str, Any] | None


OUT_OF_MEMORY = "container-oom"
"""The rule of evidence that the kernel killed a process because its worker ran out of memory."""

USED_UP = Evidence(
    rule=OUT_OF_MEMORY,
    text="the kernel ended a process of its container that had used up the container's memory",
    hint="raise the container's limit in `resources`; /dev/shm counts as its memory",
)
"""That evidence."""

PART_ENDED = "further-job-ended"
"""The rule of evidence that the scheduler takes away systems that were added to the run later."""

TAKEN_AWAY = frozenset(("pod-preempted", "pod-drained", "node-shutdown", PART_ENDED))
"""The rules of evidence that a worker's place was taken away: a preemption, not a failure."""

TENURE_ENDED = "allocation-ended"
"""The rule of evidence that the scheduler has taken all systems of the run."""

NODE_LOST = "node-lost"
"""The rule of evidence that nothing answers on a system any more, and of the decision that follows from it."""


class Backend(Protocol):
    """Creates and destroys workers. Raises BackendError, with the system where it is known."""

    def create(self, workers: Sequence[Worker]) -> list[Address]:
        """Create these workers, in their order; raises BackendError with none of them left behind.

        Keeps a worker that exists already with a live agent. Raises TenureEndedError where the run has lost all of
        its systems.
        """

    def destroy(self, workers: Sequence[Worker]) -> None:
        """End these workers and everything that runs in them, and remove their files.

        Includes workers of earlier orchestrators, and those whose agents have died.
        """

    def exchange(self, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
        """Destroy the old workers and create the new ones; concurrently where that is quicker."""

    def find(self) -> list[Found]:
        """Return the phase's workers, also those of earlier orchestrators, by the traces that they left.

        In the order of epoch and decision.
        """

    def answers(self, system: str) -> bool:
        """Whether the system itself responds, whatever the state of its workers."""

    def evidence(self, worker: Worker, *, is_gone: bool) -> Evidence | None:
        """Return what the infrastructure knows about what just ended in a worker.

        `is_gone`: the agent itself ended.
        """

    def close(self) -> None:
        """Release this process's resources; workers keep running. Idempotent, and the last call."""


def exchange_side_by_side(backend: Backend, old: Sequence[Worker], new: Sequence[Worker]) -> list[Address]:
    """Exchange workers that share nothing with each other."""
    with ThreadPoolExecutor(1) as pool:
        removal = pool.submit(backend.destroy, old)
        try:
            return backend.create(new)
        finally:
            removal.result()
