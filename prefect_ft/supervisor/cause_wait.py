"""Whether a rank that still runs may be about to say why others lost their connection to it. Pure.

A trainer may leave the process group before it reports its exception: then its peers fail first, of that.
"""

from __future__ import annotations

from prefect_ft.decide.classify import judge, only_lost_its_peer
from prefect_ft.supervisor.attempt import Attempt

LAST_WORDS_S = 5.0
"""How long such a rank may take: as long as PyTorch's data loader waits for its workers when it ends."""


class LastWords:
    """Whether to wait for what ends an attempt whose first failures only follow from it; until `due_s`."""

    def __init__(self, attempt: Attempt, now_s: float) -> None:
        self.due_s = now_s + LAST_WORDS_S
        self._attempt = attempt
        self._judged: set[int] = set()
        """The ranks of which it is known that they have only lost a peer."""
        self._is_known = False
        """Whether one has failed of something else."""

    def may_come(self, now_s: float) -> bool:
        """Return whether every rank that has failed lost a peer, and others run; each is judged once."""
        if self._is_known or now_s >= self.due_s or not self._attempt.is_failing_alone:
            return False
        for rank in self._attempt.failures:
            if rank not in self._judged and not self._has_lost_its_peer(rank):
                self._is_known = True
                return False
            self._judged.add(rank)
        return True

    def _has_lost_its_peer(self, rank: int) -> bool:
        state = self._attempt.ranks[rank]
        log = state.output.findings()
        return only_lost_its_peer(judge([log], exit_code=state.exit_code, signal=state.signal), log)
