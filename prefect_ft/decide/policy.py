"""The decision about an incident: a rule proposes, after-checks and a person may change that, and it takes effect.

`rules` has which rule proposes, `after_checks` what a restart must pass, `budgets` what is counted, `placement`
which worker is where, `resume` the step to resume from. Pure: the same history gives the same decision.
"""

from __future__ import annotations

from prefect_ft.decide import rules
from prefect_ft.decide.after_checks import Proposal, backoff_s, check
from prefect_ft.decide.fold import fold
from prefect_ft.decide.gate import answered
from prefect_ft.decide.placement import recreated
from prefect_ft.decide.reasons import sentence
from prefect_ft.decide.situation import Situation
from prefect_ft.model import RESTARTS, Answer, Decision, History, Incident, Policy


def propose(s: Situation) -> Proposal:
    """Let the first rule that matches choose, unless the attempt continues or nothing may be restarted."""
    rule, move = rules.TABLE.first_match(s)
    if s.goes_on:
        return Proposal(rule, "continue", move.isolate, "")
    if move.action in RESTARTS and rule.needs_autorestart and not s.policy.autorestart:
        refused = rules.NOT_RESTARTABLE.then(s).action
        return Proposal(rules.NOT_RESTARTABLE, refused, move.isolate, "autorestart is not configured")
    return Proposal(rule, move.action, move.isolate, move.why, move.avoid, move.step_back)


class InTurn:
    """Decides about a phase's incidents in turn, assuming that each is carried out; nothing is folded twice."""

    __slots__ = ("_number", "_situation")

    def __init__(self, policy: Policy, history: History = ()) -> None:
        """`history` is what has been decided before."""
        self._situation = fold(policy, history)
        self._number = len(history)

    @property
    def systems(self) -> tuple[str, ...]:
        """The pool, which a hand-over exchanges."""
        return self._situation.policy.systems

    def decide(self, incident: Incident, answer: Answer | None = None) -> Decision:
        """Decide about the next incident; `answer` is a person's answer to the proposal."""
        s = self._situation
        self._number += 1
        s.arrive(incident)
        proposal = check(s, propose(s))
        return _settled(s, proposal if answer is None else answered(s, proposal, answer), self._number)


def decide(policy: Policy, history: History) -> Decision:
    """Decide about the last incident of a phase's history.

    Of earlier incidents the recorded decision is what was done. Raises ValueError without an incident.
    """
    return _before_last(policy, history).decide(history[-1].incident)


def decide_with_answer(policy: Policy, history: History, answer: Answer) -> Decision:
    """Decide as `decide` does, then apply a person's answer to that."""
    return _before_last(policy, history).decide(history[-1].incident, answer)


def _before_last(policy: Policy, history: History) -> InTurn:
    if not history:
        raise ValueError("decide needs a history with at least one incident")
    return InTurn(policy, history[:-1])


def _settled(s: Situation, proposal: Proposal, number: int) -> Decision:
    """Apply a proposal's effects, and return it as a decision."""
    rule, action, isolate = proposal.rule, proposal.action, proposal.isolate
    before = s.pool.gang
    gang = s.pool.next_gang(action, isolate, proposal.avoid)
    recreate = recreated(action, before, gang)
    delay_s = backoff_s(s, proposal)
    effects = rule.effects
    step_back = proposal.step_back or effects.step_back
    resume_step = s.checkpoints.next_step(s.incident, step_back) if action in RESTARTS else None
    window = s.window() if effects.budget == "skips" else None
    windows = () if window is None else (window,)
    s.settle(effects, action, isolate, gang, resume_step=resume_step, windows=windows)
    return Decision(
        n=number,
        rule=rule.name,
        action=action,
        isolate=isolate,
        recreate=recreate,
        placement=gang,
        delay_s=delay_s,
        resume_step=resume_step,
        skip_steps=s.skipping.windows if action in RESTARTS else (),
        at_fault=None if s.goes_on else s.trials.finding,
        counters=s.counters(),
        reason=sentence(s, proposal, before, recreate, delay_s=delay_s, resume_step=resume_step),
    )
