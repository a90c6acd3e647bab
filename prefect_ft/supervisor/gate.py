"""The human gate: a decision that needs approval waits in the journal as proposed until a person answers.

No rank runs meanwhile: decisions that leave ranks running need no approval. The wait outlives the orchestrator:
the next one finds the proposal and the time that is left.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import dataclass, replace

from prefect_ft.clock import PhaseClock, seconds_since, utc_after, utc_now
from prefect_ft.decide import asks_before, decide_with_answer
from prefect_ft.journal.lines import MemoryJournal, proposal_in
from prefect_ft.journal.records import AnswerLine, ProposedLine
from prefect_ft.model import Answer, AnswerKind, Decision, Gated, History, Policy
from prefect_ft.observe import Proposed, tell
from prefect_ft.supervisor.stopping import StopRequest

LOOK_S = 0.2
"""How often to check for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPlan:
    """Which decisions need approval, how long to wait for an answer, and the default without one."""

    before: frozenset[Gated] = frozenset()
    timeout_s: float = 3600.0
    default: AnswerKind = "approve"


class Gate:
    """Asks a person about one phase's decisions. `answers` returns the answer to a decision by its number, if any."""

    def __init__(
        self,
        plan: AskPlan,
        phase: str,
        *,
        answers: Callable[[int], Answer | None],
        clock: PhaseClock,
        stop: StopRequest,
    ) -> None:
        self._plan, self._phase = plan, phase
        self._answers = answers
        self._clock, self._stop = clock, stop

    def __call__(
        self, journal: MemoryJournal, policy: Policy, history: History, decision: Decision
    ) -> Decision:
        """Return the final decision; at once where no approval is needed. Raises LeaseLostError."""
        if not asks_before(self._plan.before, decision):
            return decision
        proposed = proposal_in(journal.lines) or self._propose(journal, decision)
        incident = history[-1].incident
        attempt = incident.attempt or 0
        tell(Proposed(phase=self._phase, attempt=attempt, decision=decision, until=proposed.until))
        answer = self._wait(decision.n, proposed)
        line = AnswerLine(
            n=decision.n,
            answer=answer.answer,
            action=answer.action,
            isolate=answer.isolate,
            by=answer.by,
        )
        journal.append(line, t=self._clock.now())
        return decide_with_answer(policy, history, answer)

    def _propose(self, journal: MemoryJournal, decision: Decision) -> ProposedLine:
        now = utc_now()
        until = utc_after(now, self._plan.timeout_s) or now
        line = ProposedLine.about(decision, until=until, default=self._plan.default)
        journal.append(line, t=self._clock.now(), utc=now)
        journal.sync()
        return line

    def _wait(self, number: int, proposed: ProposedLine) -> Answer:
        """Wait for an answer. A request to stop counts as a rejection."""
        while (answer := self._answers(number)) is None:
            if self._stop.lost is not None:
                raise self._stop.lost
            if self._stop.wanted is not None:
                return Answer(answer="reject", by=self._stop.wanted)
            left_s = -seconds_since(proposed.until)
            if left_s <= 0:
                return Answer(answer=self._plan.default, by="nobody within the time")
            select.select([self._stop], [], [], min(LOOK_S, left_s))
        return replace(answer, by=answer.by or "a person")
