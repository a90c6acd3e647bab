"""The one way in which decisions are made: on disk first the incident, then the decision, then it counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.clock import PhaseClock
from prefect_ft.decide import decide
from prefect_ft.errors import JournalError
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal, MemoryJournal, read_lines
from prefect_ft.journal.records import UnknownLine
from prefect_ft.model import Decision, Entry, Incident, Policy

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=3)
CRASH = Incident(t=1.0, kind="exit", exit_code=7, failure_class="crash")


class Watched(MemoryJournal):
    """Tells in which order it is used, and fails at what it is told to fail at."""

    def __init__(self, fails_at: str = "") -> None:
        super().__init__()
        self.order: list[str] = []
        self._fails_at = fails_at

    def _write(self, line: Any) -> None:
        self._did(line.type)

    def sync(self) -> None:
        self._did("sync")

    def _did(self, what: str) -> None:
        self.order.append(what)
        if what == self._fails_at:
            raise JournalError(f"no {what}")


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a journal's order tell when it is decided; the decision is the true one."""

    def watch(journal: Watched) -> None:
        def decided(*arguments: Any) -> Decision:
            journal.order.append("decide")
            return decide(*arguments)

        monkeypatch.setattr("prefect_ft.journal.judge.decide", decided)

    return watch


def test_the_incident_is_written_before_and_the_decision_made_last_before_it_is_given(deciding: Any) -> None:
    journal = Watched()
    deciding(journal)
    decision = judge(journal, POLICY, CRASH, PhaseClock())
    assert journal.order == ["incident", "decide", "decision", "sync"]
    assert (decision.n, decision.rule, decision.action) == (1, "transient", "restart_in_place")


@pytest.mark.parametrize(
    ("fails_at", "order"),
    [
        pytest.param("incident", ["incident"], id="what-cannot-be-recorded-is-not-decided"),
        pytest.param("decision", ["incident", "decide", "decision"], id="nor-given-what-cannot-be-written"),
        pytest.param("sync", ["incident", "decide", "decision", "sync"], id="nor-given-what-may-not-last"),
    ],
)
def test_a_journal_that_fails_decides_nothing(deciding: Any, fails_at: str, order: list[str]) -> None:
    journal = Watched(fails_at)
    deciding(journal)
    with pytest.raises(JournalError):
        judge(journal, POLICY, CRASH, PhaseClock())
    assert journal.order == order


def test_an_incident_about_which_no_decision_could_be_made_has_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = MemoryJournal()
    with monkeypatch.context() as patch:
        patch.setattr("prefect_ft.journal.judge.decide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            judge(journal, POLICY, CRASH, PhaseClock())
    decision = judge(journal, POLICY, CRASH, PhaseClock())
    assert [entry.decision for entry in journal.history()] == [None, decision]
    assert (decision.n, decision.counters.failures_without_progress) == (2, 1)


@pytest.mark.parametrize(
    ("t", "ended_t", "recorded"),
    [
        pytest.param(8.0, None, (8.0, 8.0), id="nothing-better-is-known"),
        pytest.param(8.0, 6.5, (8.0, 6.5), id="known-from-the-agent"),
        pytest.param(8.0, 9.5, (8.0, 8.0), id="not-after-it-was-noticed"),
        pytest.param(2.0, None, (5.0, 5.0), id="not-before-the-line-above"),
    ],
)
def test_when_it_happened(t: float, ended_t: float | None, recorded: tuple[float, float]) -> None:
    journal = MemoryJournal()
    journal.append(UnknownLine(type="note", fields={}), t=5, utc="2026-01-02T03:04:05Z")
    judge(journal, POLICY, Incident(t=t, kind="cancelled"), PhaseClock(), ended_t=ended_t)
    line = journal.lines[1]
    assert (line.t, line.ended_t) == recorded
    assert journal.history()[0].incident.t == recorded[0]


def test_facts_stand_beside_the_incident_and_decide_nothing() -> None:
    journal = MemoryJournal()
    judge(journal, POLICY, CRASH, PhaseClock(), first_step=3, last_step=None)
    assert (journal.lines[0].first_step, journal.lines[0].last_step) == (3, None)
    assert journal.history()[0].incident == CRASH


steps = st.none() | st.integers(0, 5).map(lambda hundred: 100 * hundred)
incidents = st.builds(
    Incident,
    t=st.floats(0, 1e6),
    kind=st.sampled_from(
        ("exit", "suspended", "preempted", "in_place_failed", "rebuild_failed", "system_lost")
    ),
    worker=st.none() | st.integers(0, 1),
    step=steps,
    seen_step=steps,
    baseline_step=steps,
    verified=st.none() | st.lists(st.integers(0, 500), max_size=3).map(tuple),
    exit_code=st.none() | st.integers(0, 3),
    failure_class=st.sampled_from(
        (None, "crash", "network", "numeric", "checkpoint", "config", "user_code", "none")
    ),
    signature=st.none() | st.sampled_from("ab"),
    recoverable=st.sampled_from((None, "confirm", True)),
    log=st.just(()) | st.just(("Killed",)),
    stage=st.sampled_from((None, "load", "validate")),
    reported=st.none() | st.just((0,)),
)
policies = st.builds(
    Policy,
    systems=st.just(("s0", "s1", "s2")),
    workers=st.integers(1, 3),
    max_num_restarts=st.integers(1, 4),
    suspension_restart=st.booleans(),
    unconditional=st.booleans(),
    restart_delay_s=st.floats(0, 100),
    max_worker_replacements=st.integers(0, 2),
    isolation_ttl_s=st.none() | st.floats(1, 1e5),
)


@given(policy=policies, told=st.lists(incidents, max_size=6))
def test_replaying_a_journal_gives_the_decisions_that_it_recorded(
    policy: Policy, told: list[Incident]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.jsonl"
        journal, clock = Journal(path), PhaseClock()
        given_back = [judge(journal, policy, incident, clock) for incident in told]
        journal.close()
        reopened = Journal(path)
        recorded = reopened.history()
        reopened.close()
        assert len(read_lines(path)) == 2 * len(told)
    assert [entry.decision for entry in recorded] == given_back
    for number, entry in enumerate(recorded, start=1):
        assert decide(policy, (*recorded[: number - 1], Entry(incident=entry.incident))) == entry.decision
