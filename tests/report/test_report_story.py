"""The story of a run is what its journals say, and the pictures and words are what the story says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from past_runs import PAST_RUNS, Telling, came_through, gave_up, hung, write
from rich.console import Console

from prefect_ft.decide.rules import RULES
from prefect_ft.journal.attempts import PARTS
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import AttemptLine, DecisionLine, IncidentLine
from prefect_ft.journal.stages import STAGES
from prefect_ft.model import Evidence, Policy
from prefect_ft.prefect_edge.reporting.pages import recovery_page
from prefect_ft.report import Story, read_story, timeline
from prefect_ft.report.html import page
from prefect_ft.report.next_steps import next_steps
from prefect_ft.report.paint import TimeScale, tick_label
from prefect_ft.report.restarts import STAGE_MEANINGS
from prefect_ft.report.steps import lost_area
from prefect_ft.report.story import Climb, PhaseJournal, story_of
from prefect_ft.report.terminal import show
from prefect_ft.report.timeline import clusters
from prefect_ft.report.words import comebacks, duration, lead, share

ALL = pytest.mark.parametrize("make", PAST_RUNS.values(), ids=PAST_RUNS)


def told(*runs: Telling, now_t: float | None = None) -> Story:
    return story_of([PhaseJournal(lines=run.lines, now_t=now_t) for run in runs])


def printed(story: Story, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    show(story, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def words_of(html: str) -> str:
    """What a reader sees of a page, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", html))


# -- the story --------------------------------------------------------------------------------------


@ALL
def test_every_moment_belongs_to_one_part(make: Callable[[], Telling]) -> None:
    (phase,) = told(make()).phases
    at = phase.start
    for span in phase.spans:
        assert (span.start, span.end > span.start) == (pytest.approx(at), True)
        at = span.end
    assert at == pytest.approx(phase.end)
    spent = {part: sum(span.end - span.start for span in phase.spans if span.part == part) for part in PARTS}
    assert spent == pytest.approx({part: phase.summary.time_s[part] for part in PARTS}, abs=0.01)


def test_a_lane_says_when_a_system_worked_and_when_it_was_out_of_use() -> None:
    lanes = {lane.system: lane for lane in told(came_through()).lanes}
    worked = {
        name: sorted({span.attempt for span in lane.spans if span.part == "productive"})
        for name, lane in lanes.items()
    }
    assert worked == {"node-a": [1, 2, 3], "node-b": [1, 2, 3], "node-c": [1, 2], "node-d": [3]}
    assert {name: lane.out for name, lane in lanes.items() if lane.out} == {
        "node-c": ((pytest.approx(9100.3), pytest.approx(19963)),)
    }


def test_disturbances_are_numbered_over_all_phases() -> None:
    begun = Telling(Policy(systems=("node-a",), workers=1), phase="finetune", began_s=20000.0)
    story = told(came_through(), begun)
    assert [event.number for event in story.events] == [1, 2, None]
    assert [(phase.start, phase.name) for phase in story.phases] == [(0.0, "pretrain"), (20000.0, "finetune")]
    assert story.total_s == 20000.0


def test_what_a_disturbance_cost() -> None:
    costs = [(event.down_s, event.steps_lost, dict(event.skipped)) for event in told(came_through()).events]
    assert costs == [
        (pytest.approx(1.0), 253, {}),
        (pytest.approx(60.0), 366, {"step-2700.pt": "cut off at 1048576 of 8388608 bytes"}),
        (None, None, {}),
    ]


def test_training_resumes_with_the_first_step_and_not_as_ranks_are_started() -> None:
    run = came_through()
    second = next(line for line in run.lines if isinstance(line, AttemptLine) and line.attempt == 2)
    for attempt, t in ((1, 40.0), (2, second.t + 14.0), (2, second.t + 99.0)):
        run.append("came-up", second.t + 15, attempt=attempt, worker=0, what="first-step", at_t=t)
    run.lines.sort(key=lambda line: line.t)
    story = told(run)
    assert [event.down_s for event in story.events] == [pytest.approx(15.0), pytest.approx(60.0), None]
    assert [event.has_resumed for event in story.events] == [True, False, False]
    assert "15 s until training resumed, 253 steps repeated" in words_of(page(story))


def test_a_run_of_which_no_phase_has_begun() -> None:
    story = story_of([PhaseJournal(lines=[])])
    assert lead(story) == "No phase has begun yet."
    assert "No phase has begun yet." in printed(story)
    assert "No phase has begun yet." in words_of(page(story))


# -- what somebody who knows neither project nor training can say from it ---------------------------

CAME_THROUGH = [
    "The run char-lm completed at step 6,000, after 5 h 33 min.",
    "It was interrupted twice and restarted twice. node-c was taken out of use.",
    "90.2% of the time was useful work; 32 min 43 s was not, 30 min 59 s of it for 619 lost steps.",
    "A training process crashed (rank 1, on node-b, SIGSEGV)",
    "Fatal Python error: Segmentation fault",
    "Restarted in the same workers from step 1,200.",
    "1.0 s until its ranks ran again, 253 steps repeated",
    "A machine or device failed (rank 2, on node-c)",
    "Took node-c out of use, recreated all workers and restarted with node-d from step 2,400.",
    "the system is gone, or the output of the training blames it, so the run continues without it",
    "Check node-c before using it again: the device is gone until the node is power-cycled. This run isolated it",
    "Checkpoint step-2700.pt was not used: cut off at 1048576 of 8388608 bytes.",
    "2 failures in 5 h 31 min of work: one every 2 h 45 min (few failures: a rough estimate).",
    "A checkpoint took 12 s (4 measured).",
    "The best interval is 8 min 5 s",
]
HUNG = [
    "Nothing: the run continues by itself.",
    "The run vision is running, for 1 h 40 min now. Its last known step is 1,200.",
    "The training hung (worker 1, on node-b)",
    "no step for 1800 s; 3 ranks in all_reduce, rank 3 in read()",
    "30 min 3 s until its ranks ran again",
    "3 ranks in all_reduce, rank 3 in read() of data.py",
]
GAVE_UP = [
    (
        "The run tabular gave up at step 140, after 11 min 8 s: Some training data could "
        "not be used (rank 0, on node-a, exit code 1) «ValueError: shard-0017.tar: record 88 is truncated»; it came "
        "back in the same words at the same place, so it is not chance: it would come back again."
    ),
    (
        "Fix the cause of the failure («ValueError: shard-0017.tar: record 88 is truncated»): the run does not "
        "continue by itself."
    ),
    (
        "Then `prefect-ft resume 20260301-220000-c0ffee` restarts phase pretrain from the newest good "
        "checkpoint, step 100 or later."
    ),
    "If the job file has to change, `prefect-ft run JOB.yaml` begins a new run with it; `resume` does not.",
    "It was interrupted 3 times and restarted twice.",
    "ValueError: shard-0017.tar: record 88 is truncated",
    "Gave up.",
    "40 steps not saved",
    "repeated-failure",
]


@pytest.mark.parametrize(
    ("make", "now_t", "said"),
    [
        pytest.param(came_through, None, CAME_THROUGH, id="came-through"),
        pytest.param(hung, 6000.0, HUNG, id="hung"),
        pytest.param(gave_up, None, GAVE_UP, id="gave-up"),
    ],
)
def test_what_happened_why_and_what_it_cost_is_said_in_the_terminal_and_on_the_page(
    make: Callable[[], Telling], now_t: float | None, said: list[str]
) -> None:
    story = told(make(), now_t=now_t)
    for shown in (words_of(page(story)), re.sub(r"\s+", " ", printed(story))):
        assert [each for each in said if each.replace("`", "") not in shown.replace("`", "")] == []


def of_versions(*, counted: bool, status: str) -> Story:
    """A run that saved one file over and over, was killed twice, and has ended or goes on; no rank told a step."""
    policy = Policy(systems=("node-a",), workers=1, max_num_restarts=1)
    run = Telling(policy)
    for number, step in enumerate((3, 5)):
        run.attempt(100.0 * number, saved_every=999, until=100.0 * number + 9)
        for saved in range(2 * number + 1, step + 1):
            t = 100.0 * number + saved
            run.append(
                "checkpoint", t, step=saved, written_t=t, counted=counted, path="last.pt", attempt=number + 1
            )
        run.end_attempt(
            100.0 * number + 9, step=step, reached=None, worker=0, signal=9, failure_class="unknown",
            counted=counted or None, verified=(step,),
        )  # fmt: skip
    if status != "running":
        run.append("end", 200.0, status=status, reason="so it ended")
    return told(run, now_t=210.0 if status == "running" else None)


@pytest.mark.parametrize(("counted", "number"), [(True, "version"), (False, "step")])
def test_a_checkpoint_has_the_number_of_a_version_where_nothing_states_its_step(
    counted: bool, number: str
) -> None:
    story = of_versions(counted=counted, status="failed")
    for shown in (words_of(page(story)), re.sub(r"\s+", " ", printed(story))):
        assert f"Restarted in the same workers from {number} 3." in shown
        assert f"gave up at {number} 5" in shown
        assert f"from the newest good checkpoint, {number} 5 or later" in shown
    assert f"last good checkpoint {number} 3" in words_of(page(story))
    assert f"<title>checkpoint of {number} 2</title>" in page(story)
    assert f"Its last known {number} is 5." in lead(of_versions(counted=counted, status="running"))
    assert f"completed at {number} 5" in lead(of_versions(counted=counted, status="completed"))


def came_back(**fields: Any) -> Story:
    run = hung()
    known = {"epoch": 2, "by_hand": False, "silent_s": 610.0, "attempt": 2, "goes_on": True}
    run.append("comeback", 6100.0, **{**known, "adopted": [0, 1], "left": [], "unwatched_s": 95.0, **fields})
    return told(run, now_t=6200.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {},
            "After 1 h 42 min: the orchestrator came back by itself after 95 s. Attempt 2 went on; 2 workers were "
            "adopted with their ranks.",
            id="it-went-on",
        ),
        pytest.param(
            {"by_hand": True, "adopted": [0]},
            "After 1 h 42 min: the orchestrator was brought back by hand after 95 s. Attempt 2 went on; 1 worker was "
            "adopted with its ranks.",
            id="by-hand",
        ),
        pytest.param(
            {"unwatched_s": None, "adopted": [1], "left": [0]},
            "After 1 h 42 min: the orchestrator came back by itself after 10 min 10 s without a line in its journal. "
            "Attempt 2 went on; 1 worker was adopted with its ranks, 1 worker had ended and left its results.",
            id="unknown-for-how-long",
        ),
        pytest.param(
            {"adopted": [], "left": [0, 1]},
            "After 1 h 42 min: the orchestrator came back by itself after 95 s. Attempt 2 had ended; 2 workers had "
            "ended and left their results.",
            id="it-had-ended",
        ),
        pytest.param(
            {"adopted": []},
            "After 1 h 42 min: the orchestrator came back by itself after 95 s. Attempt 2 was lost; no worker was "
            "left.",
            id="no-worker-was-left",
        ),
        pytest.param(
            {"goes_on": False, "adopted": []},
            "After 1 h 42 min: the orchestrator came back by itself after 95 s. No attempt was running; no worker was "
            "left.",
            id="nothing-was-running",
        ),
    ],
)
def test_that_the_orchestrator_was_gone_is_told_wherever_the_story_is(
    fields: dict[str, Any], expected: str
) -> None:
    story = came_back(**fields)
    assert [*comebacks(story)] == [expected]
    for shown in (words_of(page(story)), re.sub(r"\s+", " ", printed(story)), unescape(recovery_page(story))):
        assert expected in shown.replace("\\", "")
        assert "When nobody watched" in shown


def test_an_attempt_that_had_ended_is_not_said_to_have_continued() -> None:
    run = hung()
    known = {"epoch": 2, "by_hand": True, "attempt": 2, "goes_on": True, "adopted": [0, 1], "left": []}
    run.append("comeback", 6100.0, **known)
    run.end_attempt(6050.0, step=1200, reached=1300, noticed_s=51, exit_code=1, failure_class="user_code")
    assert [*comebacks(told(run))] == [
        "After 1 h 42 min: the orchestrator was brought back by hand. Attempt 2 had ended; 2 workers were adopted."
    ]


def test_a_run_that_was_watched_all_the_time_has_no_word_about_it() -> None:
    story = told(came_through())
    assert "When nobody watched" not in words_of(page(story)) + printed(story) + recovery_page(story)


def ended(**fields: Any) -> Story:
    run = Telling(Policy(systems=("node-a",), workers=1, max_num_restarts=3))
    run.end_attempt(9.0, step=None, reached=run.attempt(0.0, saved_every=9, until=9.0), worker=0, **fields)
    return told(run)


KILLED = "A training process was killed (rank 0, on node-a, SIGKILL)"
TORCHRUN = (
    "E1122 21:20:14.375 21867 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 21912) of binary: python"
)
TABLE = "  exitcode  : -9 (pid: 21912)"
DEEPSPEED = (
    "[2025-03-01 10:01:00,020] [ERROR] [launch.py:325:sigkill_handler] ['t.py'] exits with return code = -9"
)
ACCELERATE = "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."
UNKNOWN = "A training process ended for an unknown reason (rank 0, on node-a, exit code 1)"


@pytest.mark.parametrize(
    ("rule", "text", "end", "expected"),
    [
        pytest.param("signal", "ended by SIGKILL", {"signal": 9}, KILLED, id="the-rank-itself"),
        pytest.param("signal", TORCHRUN, {"exit_code": 1}, KILLED, id="under-torchrun"),
        pytest.param(
            "elastic-child-failed", TABLE, {"exit_code": 1}, KILLED, id="in-the-words-of-an-earlier-release"
        ),
        pytest.param("signal", DEEPSPEED, {"exit_code": 247}, KILLED, id="under-deepspeed"),
        pytest.param("signal", ACCELERATE, {"exit_code": 1}, KILLED, id="under-accelerate"),
        pytest.param("shell-killed", "Killed", {"exit_code": 137}, KILLED, id="under-a-shell"),
        pytest.param("exit-code", "exit code 1", {"exit_code": 1}, UNKNOWN, id="nothing-says-so"),
        pytest.param("signal", TORCHRUN.replace("-9", "-10"), {"exit_code": 1}, UNKNOWN, id="another-signal"),
    ],
)
def test_a_process_that_was_killed_is_told_alike_whoever_had_started_it(
    rule: str, text: str, end: dict[str, int], expected: str
) -> None:
    evidence = Evidence(rule=rule, text=text, file="rank0", line=7)
    assert expected in printed(ended(failure_class="unknown", evidence=evidence, **end))


def test_each_restart_has_its_stages_in_the_terminal_and_on_the_page() -> None:
    """Of what nothing is known there is no column."""
    run = came_through()
    ready = next(line.t for line in run.lines if isinstance(line, AttemptLine) and line.attempt == 2)
    run.append("came-up", ready + 2, attempt=2, worker=0, what="first-line", at_t=ready + 1.25)
    run.lines.sort(key=lambda line: line.t)
    story = told(run)
    titles = ["phase", "attempt", "detect", "reap", "decide", "retry", "wait", "start", "first line"]
    assert [*STAGE_MEANINGS] == [*STAGES]
    table = [line.split() for line in printed(story).partition("in milliseconds\n")[2].splitlines()[:3]]
    assert table[0] == " ".join(titles).split()
    assert [row[:2] for row in table[1:]] == [["pretrain", "2"], ["pretrain", "3"]]
    assert table[1][-1] == "1,250.0"
    section = page(story).partition("<h2>How long each restart took</h2>")[2].partition("</table>")[0]
    assert re.findall(r"<th[^>]*>(.+?)</th>", section) == titles
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in section.split("<tr>")[2:]]
    assert [[cell for cell in row if cell] for row in cells] == table[1:]
    assert "How long each restart took" not in page(told()) + printed(told())


def test_the_formula_for_the_interval_is_there_where_something_failed() -> None:
    begun = told(Telling(Policy(systems=("node-a",), workers=1)))
    for shown in (page, printed):
        assert "Nothing failed: this run does not show how often to save." in shown(begun)
        assert ["Daly" in shown(story) for story in (begun, told(came_through()))] == [False, True]


def failed_again(skip_steps: int) -> Telling:
    """A run whose numbers go bad at step 233 from two checkpoints."""
    policy = Policy(systems=("node-a",), workers=1, max_num_restarts=3, skip_steps=skip_steps)
    run = Telling(policy)
    for number, step in enumerate((200, 150)):
        run.attempt(1000.0 * number, saved_every=50, until=1000.0 * number + 10)
        run.end_attempt(
            1000.0 * number + 10, step=step, reached=233, is_told=True, worker=0, exit_code=1,
            failure_class="numeric", evidence=Evidence(rule="nan", text="loss is nan"),
        )  # fmt: skip
    run.attempt(3000.0, saved_every=50, until=3010.0)
    return run


@pytest.mark.parametrize(
    ("skip_steps", "said"),
    [
        pytest.param(20, "look at the data of steps 215 to 234, which were skipped.", id="skipped"),
        pytest.param(0, "look at the data of steps 233 to 234.", id="given-up"),
    ],
)
def test_where_data_is_to_be_looked_at(skip_steps: int, said: str) -> None:
    steps = list(next_steps(told(failed_again(skip_steps))))
    (look,) = [step for step in steps if "look at the data" in step]
    assert look == f"2 attempts of phase pretrain failed at step 233 (numeric): {said}"
    assert not [step for step in next_steps(told(came_through())) if "look at the data" in step]


def test_the_sample_is_named_where_it_was_told() -> None:
    run = failed_again(20)
    lines = [
        line.but(facts=replace(line.incident, sample="shard-`7`")) if isinstance(line, IncidentLine) else line
        for line in run.lines
    ]
    (look,) = [
        step for step in next_steps(story_of([PhaseJournal(lines=lines)])) if "look at the data" in step
    ]
    assert look.endswith("look at the data of steps 215 to 234 (shard-'7'), which were skipped.")


def test_what_attempts_have_proven_is_told() -> None:
    policy = Policy(systems=("node-a", "node-b"), workers=1, max_num_restarts=3, numeric_elsewhere=True)
    run = Telling(policy)
    run.attempt(0.0, saved_every=50, until=10.0)
    run.end_attempt(
        10.0, step=200, reached=233, is_told=True, worker=0, exit_code=1, failure_class="numeric",
        evidence=Evidence(rule="nan", text="loss is nan"),
    )  # fmt: skip
    run.attempt(100.0, saved_every=50, until=110.0)
    run.end_attempt(110.0, kind="completed", step=300, reached=300)
    said = "node-a is suspect: it reported the failure at step 233, which has gone since it is not in use"
    assert f"Of phase pretrain, at fault: {said}." in [*next_steps(told(run))]


@pytest.mark.parametrize(
    ("odd", "more"),
    [
        (4, "1 more value of phase pretrain was out of the usual: its journal has it."),
        (5, "2 more values of phase pretrain were out of the usual: its journal has them."),
    ],
)
def test_the_first_values_out_of_the_usual_are_named(odd: int, more: str) -> None:
    run = failed_again(20)
    for step in range(231, 231 + odd):
        run.append(
            "odd-value",
            3005.0,
            attempt=3,
            rank=1,
            step=step,
            quantity="loss",
            text=f"loss is NaN at step {step}",
        )
    said = [step for step in next_steps(told(run)) if "out of the usual" in step or "NaN" in step]
    assert said == [
        *(f"In attempt 3 of phase pretrain, rank 1: loss is NaN at step {step}." for step in (231, 232, 233)),
        more,
    ]


def of_a_target(step: int | None) -> Story:
    """A run that trained to its end and gave up, since no checkpoint shows that it has reached its target."""
    policy = Policy(systems=("node-a",), workers=1, max_num_restarts=0, target_step=60)
    run = Telling(policy, target_step=60)
    run.attempt(0.0, saved_every=999, until=9.0)
    decision = run.end_attempt(9.0, step=step, reached=None, kind="completed", exit_code=0)
    run.append("end", 10.0, status="failed", reason=decision.reason)
    return told(run)


def test_a_training_that_ended_at_an_unknown_step_is_told_what_to_set() -> None:
    story = of_a_target(None)
    unknown, otherwise = next_steps(story)
    assert unknown == (
        "The training ended with exit code 0, but no checkpoint with a step was recognised, so it is unknown whether "
        "it reached target_step 60. If it did, nothing more has to run."
    )
    assert otherwise == (
        "Otherwise set checkpoints.path and checkpoints.pattern so that its checkpoints are found, with steps in their "
        "names or reported by a heartbeat (docs/checkpoints.md), or leave target_step out. "
        "`prefect-ft run JOB.yaml --fresh` begins a run with the changed job; "
        "`prefect-ft resume 20260301-220000-c0ffee` repeats phase pretrain from scratch, with the old one."
    )
    assert "The training ended, and whether it reached its target is unknown" in lead(story)


def test_a_training_that_ended_below_its_target_is_said_to_have_done_so() -> None:
    story = of_a_target(40)
    assert next(iter(next_steps(story))).startswith("Fix the cause of the failure")
    assert "The training ended before its target" in lead(story)


def test_a_phase_that_never_trained_did_not_end_at_an_unknown_step() -> None:
    policy = Policy(systems=("node-a",), workers=1)
    before = Telling(policy, phase="prepare")
    before.attempt(0.0, saved_every=999, until=9.0)
    before.end_attempt(9.0, step=None, reached=None, kind="completed", exit_code=0)
    run = Telling(policy, index=1, began_s=10.0, target_step=60)
    run.append("end", 1.0, status="failed", reason="no space left on device")
    assert next(iter(next_steps(told(before, run)))).startswith("Fix the cause of the failure")


def test_of_a_run_that_has_long_been_silent_nothing_is_claimed() -> None:
    story = told(hung(), now_t=100_000.0)
    assert "when its journal went silent 1 d 2 h ago" in lead(story)
    assert story.total_s == pytest.approx(100_000.0 - story.silent_s)
    assert sum(story.time_s.values()) == pytest.approx(story.total_s)
    (said,) = next_steps(story)
    assert "its journal has been silent since 2026-03-01 23:31 UTC, for 1 d 2 h" in said
    assert "`prefect-ft resume 20260301-220000-c0ffee` resumes it" in said


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        *((rule.name, rule.meaning_of_end or rule.meaning) for rule in RULES),
        ("of-another-version", "of-another-version"),
    ],
)
def test_why_is_what_the_rule_says_and_else_its_name(rule: str, said: str) -> None:
    run = gave_up()
    run.journal = MemoryJournal(
        line.but(facts=replace(line.decision, rule=rule)) if isinstance(line, DecisionLine) else line
        for line in run.lines
    )
    assert f"why: {said}" in re.sub(r"\s+", " ", printed(told(run)))
    assert f"Why: {said}" in unescape(words_of(page(told(run))))


def test_a_restart_that_confirmed_the_failure_is_not_said_to_come() -> None:
    run = Telling(Policy(systems=("node-a",), workers=1, max_num_restarts=3))
    for number in range(2):
        run.attempt(10.0 * number, saved_every=999, until=10.0 * number + 9)
        decision = run.end_attempt(
            10.0 * number + 9, step=None, reached=None, worker=0, exit_code=2, failure_class="config",
            confidence="low", signature="5ca1ab1e", blame="none",
        )  # fmt: skip
    assert (decision.rule, decision.action) == ("confirm-once", "fail")
    run.append("end", 19.0, status="failed", reason=decision.reason)
    before, after = "one restart shows which", "failed in the same way"
    for shown in (re.sub(r"\s+", " ", printed(told(run))), unescape(words_of(page(told(run))))):
        restarted, gave_up = shown.split("Restarted in the same workers", 1)[1].split("Gave up.", 1)
        assert (before in restarted, after in restarted) == (True, False)
        assert before not in gave_up
        assert "the restart that was to tell whether it was chance failed in the same way" in gave_up
    assert before not in lead(told(run))
    assert after in lead(told(run))


# -- the pictures -----------------------------------------------------------------------------------


@ALL
def test_the_page_needs_nothing_else_and_the_pictures_are_well_formed(make: Callable[[], Telling]) -> None:
    html = page(told(make()))
    assert re.findall(r"(?:src|href|url)\s*[=(]\s*['\"]?(?!#)[^'\")\s]*", html) == []
    assert "<script" not in html
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(pictures) == 2
    for picture in (*pictures, timeline(told(make()), alone=True)):
        ET.fromstring(picture)


def test_what_a_rank_said_is_text_on_the_page_and_no_order_to_a_terminal() -> None:
    run = Telling(Policy(systems=("<s0>",), workers=1, max_num_restarts=1))
    reached = run.attempt(1, saved_every=10, until=100)
    text = "<script>alert(1)</script> \x1b[31m [bold]x[/bold] \udcc3"
    run.end_attempt(
        100, step=10, reached=reached, worker=0, failure_class="crash", evidence=Evidence(rule="x", text=text)
    )
    story = told(run)
    html, terminal = page(story), printed(story)
    assert "<script" not in html
    assert "\x1b" not in html + terminal
    assert "<script>alert(1)</script>" in terminal
    assert "[bold]x[/bold]" in terminal
    html.encode()


def test_marks_that_would_cover_one_another_are_one() -> None:
    events = [replace(event, t=t) for t, event in zip((0, 5, 500), told(came_through()).events, strict=True)]
    assert [len(group) for group in clusters(events, TimeScale(1000))] == [2, 1]


def test_what_was_lost_lies_above_the_step_that_was_kept() -> None:
    climb = Climb(points=((0, 0), (10, 100), (20, 140)), saves=((10, 100),), kept_to=50)
    assert lost_area(climb) == [(5, 50), (10, 100), (20, 140), (20, 50), (5, 50)]


def test_a_terminal_of_any_width_holds_the_pictures() -> None:
    for width in (60, 80, 200):
        assert max(map(len, printed(told(came_through()), width).splitlines())) <= min(width, 120)


# -- words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"), (0.0034, "3 ms"), (0.9994, "999 ms"), (1, "1.0 s"), (9.949, "9.9 s"), (9.95, "10 s"),
        (119, "119 s"), (120, "2 min"), (3599, "59 min 59 s"), (3600, "1 h"), (86399, "24 h"), (86400, "1 d"),
        (270000, "3 d 3 h"),
    ],
)  # fmt: skip
def test_a_duration_in_words(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("ratio", "said"), [(None, "unknown"), (1, "100%"), (0.99999, "99.9%"), (0.5, "50.0%"), (0, "0.0%")]
)
def test_a_share_in_words(ratio: float | None, said: str) -> None:
    assert share(ratio) == said


@pytest.mark.parametrize(
    ("t", "step_s", "said"),
    [
        (0.05, 0.01, "0.05 s"), (0.5, 0.1, "0.5 s"), (20, 5, "20 s"), (120, 60, "2 min"), (5400, 1800, "1:30 h"),
        (90000, 21600, "1 d 1:00"), (172800, 86400, "2 d"),
    ],
)  # fmt: skip
def test_a_tick_in_words(t: float, step_s: float, said: str) -> None:
    assert tick_label(t, step_s) == said


# -- reading ----------------------------------------------------------------------------------------


def test_stacks_are_read_from_beside_the_journal_and_a_journal_alone_is_enough(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", hung())
    (with_stacks,) = read_story([directory]).hangs
    assert with_stacks.text is not None
    assert "line 31 in read" in words_of(page(read_story([directory])))
    (directory / "hang-1.txt").unlink()
    (without,) = read_story([directory]).hangs
    assert without == replace(with_stacks, text=None)
