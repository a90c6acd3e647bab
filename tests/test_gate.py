"""A decision that waits for a person: in the journal as proposed, answered from elsewhere, by time, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.cli import main
from prefect_ft.clock import PhaseClock
from prefect_ft.errors import LeaseLostError
from prefect_ft.journal.attempts import timeline_of
from prefect_ft.journal.judge import judge, judge_pending
from prefect_ft.journal.lines import Journal, proposal_in, read_lines
from prefect_ft.journal.records import AttemptLine, PhaseLine
from prefect_ft.model import Answer, Decision, Incident, Policy
from prefect_ft.observe import Fact, Proposed, observed_by
from prefect_ft.run import Run, new_run
from prefect_ft.supervisor import AskPlan, Gate, StopRequest

POLICY = Policy(systems=("s0", "s1"), workers=1, max_num_restarts=3)
LOST = Incident(t=10, kind="system_lost", attempt=1, system="s0", step=5)
ASKED = frozenset(("isolate", "fail"))


class Phase:
    """A phase whose only attempt has lost its system, and who decides about that."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.directory = run.add_phase("train", 0, {})
        self.journal = Journal(self.directory / "journal.jsonl")
        head = {"run": run.run_id, "job": "j", "phase": "train", "systems": ["s0", "s1"]}
        self.journal.append(PhaseLine(**head), t=0)
        self.journal.append(AttemptLine(attempt=1, placement=["s0"], resume_step=None), t=1)
        self.stop = StopRequest()

    def gate(self, **plan: Any) -> Gate:
        return Gate(
            AskPlan(**{"before": ASKED, **plan}),
            "train",
            answers=lambda number: self.run.answer_to(self.directory.name, number),
            clock=PhaseClock(10.0),
            stop=self.stop,
        )

    def judge(self, **plan: Any) -> Decision:
        return judge(self.journal, POLICY, LOST, PhaseClock(10.0), gate=self.gate(**plan))

    def lines(self, *kinds: str) -> list[Any]:
        return [line for line in read_lines(self.directory / "journal.jsonl") if line.type in kinds]


@pytest.fixture
def phase(tmp_path: Path) -> Phase:
    return Phase(new_run(tmp_path / "model", "j"))


@pytest.fixture
def answering(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Call the command line as soon as something is proposed."""

    def watch(phase: Phase, *words: str) -> Any:
        def answer(fact: Fact) -> None:
            if isinstance(fact, Proposed):
                assert main(["approve", phase.run.run_id, "--by", "ann", *words]) == 0

        return observed_by(answer)

    return watch


@pytest.mark.parametrize(
    ("words", "action", "isolate", "answer"),
    [
        pytest.param((), "isolate_and_rebuild", ("s0",), "approve", id="approved"),
        pytest.param(("--reject",), "rebuild", (), "reject", id="rejected"),
        pytest.param(("--action", "fail"), "fail", (), "change", id="changed"),
        pytest.param(("--isolate", "s1"), "isolate_and_rebuild", ("s1",), "change", id="another-system"),
    ],
)
def test_an_answer_from_the_command_line(
    phase: Phase, answering: Any, words: tuple[str, ...], action: str, isolate: tuple[str, ...], answer: str
) -> None:
    with answering(phase, *words):
        decision = phase.judge()
    assert (decision.action, decision.isolate) == (action, isolate)
    proposed, answered, decided = phase.lines("proposed", "answer", "decision")
    assert (proposed.action, answered.answer, answered.by) == ("isolate_and_rebuild", answer, "ann")
    assert decided.decision.action == action
    assert proposal_in(read_lines(phase.directory / "journal.jsonl")) is None


@pytest.mark.parametrize(("default", "action"), [("approve", "isolate_and_rebuild"), ("reject", "rebuild")])
def test_without_an_answer_the_default_holds_after_a_time(phase: Phase, default: str, action: str) -> None:
    assert phase.judge(timeout_s=0.05, default=default).action == action
    (answered,) = phase.lines("answer")
    assert (answered.answer, answered.by) == (default, "nobody within the time")


def test_who_ends_the_run_agrees_to_no_isolation(phase: Phase) -> None:
    phase.stop.ask("SIGINT")
    assert (phase.judge().action, phase.lines("answer")[0].by) == ("rebuild", "SIGINT")


def test_who_has_lost_the_run_decides_nothing(phase: Phase) -> None:
    phase.stop.abandon(LeaseLostError("taken over"))
    with pytest.raises(LeaseLostError):
        phase.judge()
    assert phase.lines("answer", "decision") == []


def test_whoever_comes_back_finds_the_proposal_and_the_time_that_is_left(
    phase: Phase, answering: Any
) -> None:
    phase.stop.abandon(LeaseLostError("this one dies"))
    with pytest.raises(LeaseLostError):
        phase.judge(timeout_s=1000.0)
    (proposed,) = phase.lines("proposed")
    phase.stop = StopRequest()
    told: list[Fact] = []
    with answering(phase, "--reject"), observed_by(told.append):
        decision = judge_pending(phase.journal, POLICY, PhaseClock(20.0), phase.gate(timeout_s=1.0))
    assert decision is not None
    assert decision.action == "rebuild"
    assert [fact.until for fact in told if isinstance(fact, Proposed)] == [proposed.until]
    assert len(phase.lines("proposed")) == 1


def test_an_answer_outlives_whoever_dies_before_it_is_carried_out(phase: Phase) -> None:
    phase.run.answer(phase.directory.name, 1, Answer(answer="reject", by="ann"))

    def die(number: int) -> Answer | None:
        assert phase.run.answer_to(phase.directory.name, number) is not None
        raise KeyboardInterrupt

    dying = Gate(AskPlan(before=ASKED), "train", answers=die, clock=PhaseClock(10.0), stop=phase.stop)
    with pytest.raises(KeyboardInterrupt):
        judge(phase.journal, POLICY, LOST, PhaseClock(10.0), gate=dying)
    decided = judge_pending(phase.journal, POLICY, PhaseClock(10.0), phase.gate())
    assert decided is not None
    assert (decided.action, decided.isolate) == ("rebuild", ())


def test_an_answer_that_comes_while_it_waits(phase: Phase) -> None:
    """Another process's: it is only seen in the file."""
    asked = threading.Event()
    answered = threading.Thread(
        target=lambda: (asked.wait(), main(["approve", phase.run.run_id, "--by", "ann"]))
    )
    answered.start()
    with observed_by(lambda fact: asked.set() if isinstance(fact, Proposed) else None):
        assert phase.judge().action == "isolate_and_rebuild"
    answered.join()


def test_the_time_that_a_person_takes_is_waiting(phase: Phase) -> None:
    phase.judge(timeout_s=0.05)
    phase.journal.append(AttemptLine(attempt=2, placement=["s1"], resume_step=5), t=40)
    lines = phase.journal.lines
    spent = [(span.part, round(span.end - span.start, 1)) for span in timeline_of(lines, 40.0).spans]
    asked, decided = (line.t for line in phase.lines("proposed", "decision"))
    assert ("wait", round(decided - asked, 1)) in spent


def test_what_waits_is_in_the_status(phase: Phase, capsys: pytest.CaptureFixture[str]) -> None:
    phase.stop.abandon(LeaseLostError("this one dies"))
    with pytest.raises(LeaseLostError):
        phase.judge()
    assert main(["status", phase.run.run_id]) == 0
    assert "waits for `prefect-ft approve` until" in capsys.readouterr().out
    assert main(["approve", phase.run.run_id, "--reject", "--by", "ann", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": phase.run.run_id, "n": 1, "proposed": "isolate_and_rebuild", "answer": "reject", "watched_by": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param((), "no decision of this run waits for an answer", id="nothing-waits"),
        pytest.param(("--isolate", "s9"), "--isolate: unknown system 's9'", id="unknown-system"),
    ],
)
def test_what_cannot_be_answered_is_an_error_of_one_line(
    phase: Phase, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    if words:
        phase.stop.abandon(LeaseLostError("this one dies"))
        with pytest.raises(LeaseLostError):
            phase.judge()
    assert main(["approve", phase.run.run_id, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        '{"answer": "maybe"}',
        '{"directory": "x", "n": 1, "answer": "approve", "isolate": []}',
        '{"directory": "%s", "n": 1, "answer": "change", "isolate": []}',
    ],
)
def test_what_is_no_answer_is_removed_and_waited_on(phase: Phase, damage: str) -> None:
    (phase.run.root / "answer.json").write_text(damage.replace("%s", phase.directory.name))
    assert phase.judge(timeout_s=0.05).action == "isolate_and_rebuild"
    assert not (phase.run.root / "answer.json").exists()
