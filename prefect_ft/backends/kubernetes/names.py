"""The names of one phase's workers in a cluster, their directories in pods, and the labels that find them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from prefect_ft.backends.base import Worker, place_of
from prefect_ft.backends.home import SOCKET
from prefect_ft.backends.kubernetes.request import LABELS, home_in_pod, object_name


@dataclass(frozen=True, slots=True)
class PhaseNames:
    """All follow from the worker: an orchestrator that comes back finds the same."""

    run_id: str
    phase_index: int

    @property
    def selector(self) -> str:
        """The labels of the phase's pods."""
        return f"{LABELS.run}={self.run_id},{LABELS.phase}={self.phase_index}"

    def labels(self, worker: Worker) -> dict[str, str]:
        """Return the labels of a worker's pod and secret."""
        return LABELS.of(self.run_id, self.phase_index, worker)

    def pod(self, worker: Worker) -> str:
        """Return the name of a worker's pod, and of its secret."""
        return object_name(self.run_id, self.phase_index, worker)

    def place(self, worker: Worker) -> str:
        """Return the name of a worker's directory, which is in its certificate."""
        return place_of(self.phase_index, worker)

    def home(self, worker: Worker) -> PurePosixPath:
        """Return a worker's directory in its pod."""
        return home_in_pod(self.phase_index, worker)

    def socket(self, worker: Worker) -> str:
        """Return the path of the agent's socket in its pod."""
        return str(self.home(worker) / SOCKET)
