"""The labels that identify a run's containers and pods, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prefect_ft.backends.base import Worker


@dataclass(frozen=True, slots=True)
class Labels:
    """`prefix` begins each label's name, as the infrastructure expects."""

    prefix: str

    @property
    def run(self) -> str:
        return f"{self.prefix}run"

    @property
    def phase(self) -> str:
        return f"{self.prefix}phase"

    def of(self, run_id: str, phase_index: int, worker: Worker) -> dict[str, str]:
        """Return a worker's labels; the token is EPOCH.DECISION, as in `Worker`."""
        return {
            self.run: run_id,
            self.phase: str(phase_index),
            f"{self.prefix}worker": str(worker.number),
            f"{self.prefix}system": worker.system,
            f"{self.prefix}token": f"{worker.epoch}.{worker.decision}",
        }

    def worker(self, given: Mapping[str, str]) -> Worker | None:
        """Return the worker with these labels; None: they are no worker's."""
        try:
            epoch, decision = given[f"{self.prefix}token"].split(".")
            return Worker(
                number=int(given[f"{self.prefix}worker"]),
                system=given[f"{self.prefix}system"],
                epoch=int(epoch),
                decision=int(decision),
            )
        except (KeyError, ValueError):
            return None


def name_of(run_id: str, phase_index: int, worker: Worker) -> str:
    """Return the unique name of a worker's container or pod."""
    return f"prefect-ft-{run_id}-{phase_index}-{worker.number}-{worker.epoch}-{worker.decision}"
