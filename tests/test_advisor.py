"""An advisor: real commands that answer well, badly, too much, too late; and what their answers do in a run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from without_prefect import run_of_one_phase

from prefect_ft.config import JobConfig
from prefect_ft.decide import advised, decide, is_in_doubt
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine, IncidentLine
from prefect_ft.model import Advice, Entry, Incident, Policy
from prefect_ft.orchestrate.advisor import ANSWER_BYTES, AdvisorPlan, ask, excerpt_of
from prefect_ft.report.read import read_story
from prefect_ft.report.words import advisor_said

UNKNOWN = Incident(t=1.0, kind="exit", attempt=2, worker=1, exit_code=1, failure_class="unknown")
LINES = [{"worker": 1, "rank": 1, "text": "something broke"}]
POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=3)


def plan(tmp_path: Path, code: str, timeout_s: float = 30.0) -> AdvisorPlan:
    return AdvisorPlan(
        command=(sys.executable, "-c", code), timeout_s=timeout_s, cwd=str(tmp_path), env=dict(os.environ)
    )


def never() -> bool:
    return False


ANSWER = """
import json, sys
asked = json.load(sys.stdin)
said = f"{asked['attempt']} {asked['worker']} {asked['class']} {asked['confidence']}"
print(json.dumps({"class": "storage", "line": asked["lines"][-1]["text"], "reason": said}))
"""


def test_an_advisor_is_told_what_is_known_and_answers(tmp_path: Path) -> None:
    assert ask(plan(tmp_path, ANSWER), UNKNOWN, LINES, never) == Advice(
        failure_class="storage", line="something broke", reason="2 1 unknown high"
    )


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        pytest.param("print('I think it is the disk')", "answered with no JSON", id="no-json"),
        pytest.param("print('[' * 100000)", "answered with more than 64 KiB", id="deep"),
        pytest.param("print('[' * 50000)", "answered with no JSON", id="deep-but-short"),
        pytest.param("print('[1]')", "answered with no JSON object", id="no-object"),
        pytest.param("print('{}')", "answered with no class of failure: None", id="no-class"),
        pytest.param(
            'print(\'{"class": "sorrow"}\')',
            "answered with no class of failure: 'sorrow'",
            id="another-class",
        ),
        pytest.param("", "answered with no JSON", id="nothing"),
        pytest.param("import sys; sys.exit(3)", "exit code 3", id="fails"),
        pytest.param(
            "while True: print('x' * 1000)", f"answered with more than {ANSWER_BYTES >> 10} KiB", id="endless"
        ),
        pytest.param(
            "import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "answered with no JSON", id="no-text"
        ),
    ],
)
def test_a_bad_answer_is_none(tmp_path: Path, code: str, problem: str) -> None:
    assert ask(plan(tmp_path, code), UNKNOWN, LINES, never) == Advice(problem=problem)


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    absent = AdvisorPlan(command=("/no/such/command",), timeout_s=1.0, cwd=str(tmp_path), env={})
    assert (ask(absent, UNKNOWN, LINES, never).problem or "").startswith("/no/such/command does not start: ")


SLEEPS = "import os, time; open('pid', 'w').write(str(os.getpid())); {fork}time.sleep(60)"


@pytest.mark.parametrize("fork", ["", "os.fork(); "], ids=["alone", "with-a-child"])
def test_an_advisor_that_takes_too_long_is_ended(tmp_path: Path, fork: str) -> None:
    began = time.monotonic()
    advice = ask(plan(tmp_path, SLEEPS.format(fork=fork), 1.0), UNKNOWN, LINES, never)
    assert advice == Advice(problem="did not answer within 1 s")
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_run_that_is_to_stop_waits_for_no_answer(tmp_path: Path) -> None:
    assert ask(plan(tmp_path, "import time; time.sleep(60)"), UNKNOWN, LINES, lambda: True) == Advice(
        problem="its answer is no longer needed"
    )


def test_an_advisor_that_does_not_read_its_question(tmp_path: Path) -> None:
    lines = [{"worker": 0, "rank": 0, "text": "x" * 1000}] * 1000
    assert ask(plan(tmp_path, 'print(\'{"class": "data"}\')'), UNKNOWN, lines, never).failure_class == "data"


# -- the excerpt ---------------------------------------------------------------------------------------


def test_the_excerpt_has_the_last_lines_of_the_attempt_and_of_the_worker_most(tmp_path: Path) -> None:
    lines = [f"[a1 w1 r1] earlier {number}" for number in range(10)]
    lines += [f"[a2 w{number % 2} r{number % 2}] line {number}" for number in range(2000)]
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
    excerpt = excerpt_of(tmp_path / "run.log", 2, 1)
    assert len(excerpt) == 500
    assert [each["worker"] for each in excerpt] == [0] * 100 + [1] * 400
    assert excerpt[-1] == {"worker": 1, "rank": 1, "text": "line 1999"}
    assert excerpt_of(tmp_path / "gone.log", 2, 1) == []


def test_the_excerpt_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"[a1 w0 r0] {'x' * 100_000}\n" * 300)
    excerpt = excerpt_of(tmp_path / "run.log", 1, 0)
    assert 0 < len(excerpt) < 130
    assert all(len(each["text"]) == 1000 for each in excerpt)


# -- what an answer does -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"failure_class": "unknown"}, True, id="unknown"),
        pytest.param({"failure_class": "config", "confidence": "low"}, True, id="low"),
        pytest.param({"failure_class": "config", "confidence": "high"}, False, id="high"),
        pytest.param({"failure_class": "config"}, False, id="high-if-not-said"),
    ],
)
def test_an_advisor_is_asked_in_doubt(fields: dict, expected: bool) -> None:
    assert is_in_doubt(Incident(t=0.0, kind="exit", **fields)) is expected
    assert not is_in_doubt(Incident(t=0.0, kind="suspended", **fields))


def test_an_answer_decides_where_ours_is_in_doubt() -> None:
    said = advised(POLICY, (), UNKNOWN, Advice(failure_class="storage", reason="full"))
    assert (said.failure_class, said.confidence, said.blame) == ("storage", "low", "none")
    assert said.advice == Advice(failure_class="storage", reason="full", used=True, instead_of="unknown")


@pytest.mark.parametrize(
    "failure_class", ["none", "unknown", "cancelled", None], ids=["none", "unknown", "cancelled", "no-answer"]
)
def test_an_answer_that_says_nothing_or_would_end_the_run_decides_nothing(failure_class) -> None:
    said = advised(POLICY, (), UNKNOWN, Advice(failure_class=failure_class))
    assert (said.failure_class, said.advice) == ("unknown", Advice(failure_class=failure_class, used=False))


def test_an_answer_never_leads_to_a_failure_that_ours_would_not_be() -> None:
    config = Advice(failure_class="config")
    first = advised(POLICY, (), UNKNOWN, config)
    assert first.failure_class == "config"  # a restart confirms it
    history = (Entry(incident=first, decision=decide(POLICY, (Entry(incident=first),))),)
    second = advised(POLICY, history, UNKNOWN, config)
    assert (second.failure_class, second.advice) == ("unknown", Advice(failure_class="config", used=False))


# -- in a run ------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], Path]:
    """Run a job whose first attempt fails without a word, with an advisor; return the phase's directory."""

    def call(code: str) -> Path:
        (tmp_path / "advisor.py").write_text(code)
        job = JobConfig.model_validate(
            {
                "name": "j",
                "model_dir": "model",
                "infrastructure": {"type": "process", "systems": ["s0"], "workers": 1},
                "autorestart": {"max_num_restarts": 3},
                "classify": {"command": [sys.executable, "advisor.py"], "timeout_s": 20},
                "phases": [
                    {
                        "name": "p",
                        "command": [
                            "sh",
                            "-c",
                            'echo "tape torn"; exit $((PREFECT_FT_ATTEMPT == 1 ? 3 : 0))',
                        ],
                        "checkpoints": {"path": "ck"},
                    }
                ],
            }
        ).at(tmp_path)
        assert run_of_one_phase(job).status == "completed"
        (directory,) = (tmp_path / "model").glob("*_restartable")
        return directory

    return call


def test_an_answer_is_recorded_decides_and_is_shown_as_theirs(run: Callable[[str], Path]) -> None:
    directory = run(ANSWER)
    lines = read_lines(directory / "journal.jsonl")
    incident = next(line.incident for line in lines if isinstance(line, IncidentLine))
    decision = next(line.decision for line in lines if isinstance(line, DecisionLine))
    assert incident.failure_class == "storage"
    assert incident.advice == Advice(
        failure_class="storage", line="tape torn", reason="1 0 unknown low", used=True, instead_of="unknown"
    )
    assert decision.action == "restart_in_place"
    raw = (directory / "journal.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("advice", {}).get("instead_of") == "unknown" for line in raw)
    (event,) = read_story([directory]).disturbances
    assert advisor_said(event) == "storage: 1 0 unknown low «tape torn» (decided by instead of unknown)"


def test_an_advisor_that_fails_changes_nothing(run: Callable[[str], Path]) -> None:
    directory = run("print('no idea')")
    incident = next(
        line.incident for line in read_lines(directory / "journal.jsonl") if isinstance(line, IncidentLine)
    )
    assert (incident.failure_class, incident.advice) == (
        "unknown",
        Advice(used=False, problem="answered with no JSON"),
    )
