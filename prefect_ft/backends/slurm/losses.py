"""Explains losses: by the node servers first, and by Slurm only where none of them answers."""

from __future__ import annotations

from collections.abc import Mapping

from prefect_ft.backends.base import NODE_LOST, PART_ENDED, TENURE_ENDED
from prefect_ft.backends.slurm.allocations import Allocation, Allocations, parts_of
from prefect_ft.backends.slurm.commands import Slurm
from prefect_ft.backends.slurm.links import is_any_going
from prefect_ft.backends.slurm.nodes import NodeLink
from prefect_ft.backends.slurm.peers import Peers
from prefect_ft.model import Evidence

FRESH_S = 5.0
"""How old Slurm's answer may be where it has to explain a loss."""


class Losses:
    """What is known about losses of one tenure.

    `allocation` is the one whose end ends the tenure; further ones have its other nodes.
    """

    def __init__(
        self,
        allocation: Allocation | None,
        allocations: Allocations,
        links: Mapping[str, NodeLink],
        peers: Peers,
        slurm: Slurm,
    ) -> None:
        self._allocation, self._allocations = allocation, allocations
        self._links, self._peers, self._slurm = links, peers, slurm

    def evidence(self, system: str) -> Evidence | None:
        """Return why an agent on a system may have ended; None: the system itself is well."""
        if (ended := self.allocation_end(system)) is not None:
            return Evidence(rule=TENURE_ENDED, text=ended)
        if (ended := self._further_job_end(system)) is not None:
            return Evidence(rule=PART_ENDED, text=ended)
        link = self._links.get(system)
        if link is None or not link.answers():
            return Evidence(rule=NODE_LOST, text=f"nothing answers on the node {system}")
        return None

    def allocation_end(self, system: str) -> str | None:
        """Describe how the whole allocation has ended; None: it has not, as far as is known.

        `system` is where the loss was seen: that node server is asked, and a few others.
        """
        allocation = self._allocation
        if allocation is None:
            return "the run has no allocation"
        if self._allocations.has_ended(allocation.name):
            return f"{allocation.name} has ended"
        asked = [link for link in (self._links.get(system), *self._peers.after(system)) if link is not None]
        if is_any_going(link for link in asked if link.system in allocation.nodes):
            return f"{allocation.name} is being ended: its nodes were told to go"
        try:
            job_state = self._slurm.state(allocation.job, within_s=FRESH_S)
        except LookupError:
            return f"{allocation.name} has ended: Slurm does not know it any more"
        if job_state is None or not (job_state.has_ended or job_state.is_pending):
            return None
        return f"{allocation.name} has ended: {job_state.state}"

    def _further_job_end(self, system: str) -> str | None:
        """Describe how the further job that added a system has ended; None: there is no such job, or it runs."""
        for part in parts_of(self._allocations.current or "")[1:]:
            found = self._allocations.named(part)
            if found is not None and system in found.nodes:
                link = self._links.get(system)
                is_ended = self._allocations.has_ended(part) or (link is not None and is_any_going([link]))
                return f"job {found.job}, which has added {system}, is ended" if is_ended else None
        return None
