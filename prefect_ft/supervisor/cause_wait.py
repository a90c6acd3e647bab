"""Whether a rank that still runs may be about to report the cause for which others lost their connection to it. Pure.

A trainer may leave the process group before it reports its exception: then its peers fail first, of that.
"""

from __future__ import annotations

from itertools import islice
from signal import Signals

from prefect_ft.decide.classify import judge, only_lost_its_peer
from prefect_ft.supervisor.attempt import Attempt

CAUSE_WAIT_S = 5.0
"""How long such a rank may take: as long as PyTorch's data loader waits for its workers when it ends."""

MAX_JUDGED = 16
"""Of how many failed ranks the output is judged: that takes tens of milliseconds for each."""

_RAISED = 1
"""The exit code after an exception."""


class CauseWait:
    """The wait for what ends an attempt whose first failures only follow from it; until `due_s`."""

    def __init__(self, attempt: Attempt, now_s: float) -> None:
        self.due_s = now_s + CAUSE_WAIT_S
        self._attempt = attempt
        self._lost_a_peer: set[int] = set()
        """The ranks that have been judged, and have only lost a peer."""
        self._is_cause_known = False

    def goes_on(self, now_s: float) -> bool:
        """Return whether the ranks that have failed, of which the first are judged, lost a peer, and others run."""
        if self._is_cause_known or now_s >= self.due_s or not self._attempt.has_failed_in_part:
            return False
        if len(self._lost_a_peer) >= MAX_JUDGED:
            return True
        for rank in islice(self._attempt.failures, MAX_JUDGED):
            if rank not in self._lost_a_peer and not self._has_lost_a_peer(rank):
                self._is_cause_known = True
                return False
            self._lost_a_peer.add(rank)
        return True

    def _has_lost_a_peer(self, rank: int) -> bool:
        """Return whether a rank has failed of a lost peer: by an exception, or aborted by what found that out."""
        state = self._attempt.ranks[rank]
        if state.signal not in (None, Signals.SIGABRT):
            return False
        log = state.output.findings()
        return only_lost_its_peer(judge([log], exit_code=state.exit_code or _RAISED), log)
