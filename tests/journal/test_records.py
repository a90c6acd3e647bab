"""The records of a journal's lines: what is written comes back, stands as documented, and what is foreign stays."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pages import named, subsections

from prefect_ft.errors import JournalError
from prefect_ft.journal.forms import INCIDENT_FIELDS
from prefect_ft.journal.lines import Journal, read_lines
from prefect_ft.journal.records import (
    LINES,
    AnswerLine,
    AttemptLine,
    CameUpLine,
    CheckpointLine,
    ComebackLine,
    DecisionLine,
    EarlierSavesLine,
    EndLine,
    HandOverLine,
    HangLine,
    HangOverLine,
    IncidentLine,
    Line,
    Lost,
    Misread,
    OddValueLine,
    PaceLine,
    PhaseLine,
    ProposedLine,
    RepairedLine,
    ReportLine,
    Sign,
    StragglerLine,
    TenureLine,
    UnknownLine,
    WarmLine,
    WarningLine,
    read_line,
)
from prefect_ft.model import Counters, Decision, Evidence, Incident
from prefect_ft.worker.forms import FormError

UTC = "2026-01-02T03:04:05.678Z"
CRASH = Incident(
    t=1.5, kind="exit", attempt=1, worker=0, exit_code=1, failure_class="crash", verified=(5,),
    evidence=Evidence(rule="r", text="it died", file="rank0", line=3),
)  # fmt: skip
DECISION = Decision(
    n=1, rule="transient", action="rebuild", reason="once more", placement=("s0", "s1"), recreate=(1,),
    isolate=("s2",), resume_step=5, counters=Counters(suspects={"s2": 1}),
)  # fmt: skip
PHASE = PhaseLine(
    run="r1", job="j", phase="train", index=0, mode="train", systems=("s0", "s1"), isolated=(), workers=2,
    ranks_per_worker=4, target_step=None, limits={"preemptions": None}, saves_since_s=0.0, format=1, version="0.1",
)  # fmt: skip
ATTEMPT = AttemptLine(
    attempt=2, token=(1, 0, 2), placement=("s0", "s1"), start_counts=((1, 2), (2, 2)), resume_step=5,
    resume_path="/ck/5", decided_step=6, started_from=5, why="step-6 is gone", passed_over={"step-6": "cut off"},
    decisions=1, begun_t=2.5,
)  # fmt: skip
WARM = WarmLine(
    worker=0, modules=3, parked=2, memory_kb=1024, left_out={"torch": "forks badly"}, why_cold=None
)

EXAMPLES: list[Line] = [
    PHASE,
    PHASE.but(saves_since_s=1767322800.5),
    PHASE.but(saves_since_s=None),
    EarlierSavesLine(count=2, step=7, resume_step=None),
    ATTEMPT,
    AttemptLine(attempt=1, placement=("s0",)),
    WarningLine(attempt=1, what="nothing-saved", text="no checkpoint"),
    CameUpLine(attempt=1, worker=0, what="first-line", at_t=1.25),
    CheckpointLine(
        written_t=-3.5, mtime=1767322800.5, size=10, device=1, inode=2, counted=True, attempt=0, step=5, path="/ck/5"
    ),
    CheckpointLine(written_t=-3.5, step=5),
    ReportLine(source="attempt 1 rank 0 report 1", report=Incident(t=0, kind="preempted", systems=("s0", "s1"))),
    WARM,
    ComebackLine(
        epoch=2, by_hand=False, silent_s=3.25, attempt=None, goes_on=True, adopted=(0,), left=(1,), unwatched_s=1.5,
        format=1, version="0.1",
    ),
    TenureLine(name="slurm-17", systems=("n0", "n1"), until=UTC),
    HandOverLine(attempt=2, reason="slurm-17 ends", is_clean=True, had_ended=False, step=5, ended_t=1.25),
    HandOverLine(
        attempt=2, reason="slurm-17 ends", is_clean=False, had_ended=False, step=None, ended_t=1.25,
        deaths=(1767322800.5,), fences=((1.5, 2.5),), first_step=None, last_step=9, healing_s=None, reaped_t=1.375,
    ),
    HangLine(
        n=1, attempt=1, response="report", scope="all-workers", ranks=(0, 1), blamed=None, worker=None, limit_s=60,
        evidence=(Sign(kind="io", rank=None, text="no I/O", lasted_s=60.5),), where=None, diagnosis="hang-1.txt",
    ),
    HangOverLine(n=1, attempt=1, went_on=True, after_s=2.5),
    StragglerLine(attempt=1, rank=1, worker=0, step=5, others_step=9, pace=0.5, lasted_s=12.5),
    PaceLine(attempt=1, pauses={"train": (0.5, 1)}),
    OddValueLine(
        attempt=1, rank=1, worker=0, step=5, quantity="loss", oddness="spike", value=9.5, usual=2.0, deviations=94.4,
        text="loss is 9.5", acted=True,
    ),
    OddValueLine(attempt=1, rank=1, step=5, quantity="loss", oddness="nan", text="loss is NaN"),
    IncidentLine(n=1, ended_t=1.25, facts=CRASH),
    IncidentLine(
        n=1, ended_t=1.25, facts=CRASH, deaths=(1767322800.5,), fences=((1.5, 2.5),), first_step=None, last_step=9,
        healing_s=None, reaped_t=1.375,
    ),
    ProposedLine.about(DECISION, until=UTC, default="approve"),
    AnswerLine(n=1, answer="change", action="rebuild", isolate=("s1",), by="ann"),
    DecisionLine(n=1, facts=DECISION),
    RepairedLine(lost=(Lost(line=2, offset=120, why="its checksum is wrong"),)),
    EndLine(status="failed", reason="no more"),
    UnknownLine(type="news", fields={"colour": "red", "n": [1, {"a": None}]}),
]  # fmt: skip


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: line.type)
def test_each_line_that_is_written_reads_back(tmp_path: Path, line: Line) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(line, t=1.5, utc=UTC)
    journal.close()
    assert read_lines(journal.path) == journal.lines == [line.stamped(1.5, UTC)]


def test_there_is_an_example_of_each_type() -> None:
    assert {line.type for line in EXAMPLES} == {*LINES, "news"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(
            PHASE.but(limits={}),
            {
                "run": "r1", "job": "j", "phase": "train", "index": 0, "mode": "train", "systems": ["s0", "s1"],
                "isolated": [], "workers": 2, "ranks_per_worker": 4, "target_step": None, "limits": {},
                "saves_since_s": None, "format": 1, "version": "0.1",
            },
            id="a-phase",
        ),
        pytest.param(
            WARM,
            {
                "worker": 0, "modules": 3, "parked": 2, "memory_kb": 1024, "left_out": {"torch": "forks badly"},
                "why_cold": None,
            },
            id="what-is-unknown-is-null",
        ),
        pytest.param(
            IncidentLine(n=1, ended_t=1, facts=Incident(t=2, kind="rebuild_failed")),
            {"n": 1, "ended_t": 1, "kind": "rebuild_failed"},
            id="an-incident-of-no-attempt",
        ),
        pytest.param(
            IncidentLine(n=1, ended_t=1, facts=Incident(t=2, kind="exit"), deaths=(), reaped_t=2),
            {
                "n": 1, "ended_t": 1, "deaths": [], "first_step": None, "last_step": None, "healing_s": None,
                "reaped_t": 2, "kind": "exit",
            },
            id="an-incident-of-an-attempt",
        ),
        pytest.param(
            HangLine(
                n=1, attempt=1, response="shadow", scope="one-rank", ranks=(1,), blamed=None, worker=None,
                limit_s=9, evidence=(Sign(kind="io", rank=None, text="t", lasted_s=1),), where=None, diagnosis=None,
            ),
            {
                "n": 1, "attempt": 1, "response": "shadow", "scope": "one-rank", "ranks": [1], "blamed": None,
                "worker": None, "limit_s": 9,
                "evidence": [{"kind": "io", "rank": None, "text": "t", "lasted_s": 1}], "where": None,
                "diagnosis": None,
            },
            id="a-hang",
        ),
    ],
)  # fmt: skip
def test_the_names_on_disk_stay(line: Line, told: dict[str, Any]) -> None:
    assert list(line.stamped(1.5, UTC).write().items()) == list(
        {"type": line.type, "t": 1.5, "utc": UTC, **told}.items()
    )


# -- the page ---------------------------------------------------------------------------------------

OF_DECISIONS = set(Decision.__dataclass_fields__)
ELSEWHERE = {"incident": INCIDENT_FIELDS, "decision": OF_DECISIONS, "proposed": OF_DECISIONS}
"""Fields of other objects that a line has beside its own; some of them stand in its table."""


def test_the_page_says_what_the_table_says() -> None:
    sections = {
        name.strip("`"): set(named(text)) for name, text in subsections("journal.md", "The journal").items()
    }
    assert sections.keys() == LINES.keys()
    for name, line in LINES.items():
        elsewhere = {*ELSEWHERE.get(name, ()), "facts"}
        own = line.forms.keys() - Line.forms.keys()
        assert (name, sections[name] - elsewhere) == (name, own - elsewhere)
    assert sections["decision"] == OF_DECISIONS


# -- what others wrote ------------------------------------------------------------------------------


def test_a_line_of_an_unknown_type_is_kept_as_it_is() -> None:
    told = {"type": "news", "t": 3, "utc": UTC, "attempt": "first", "fences": [[1, 2]]}
    line = read_line(told)
    assert line == UnknownLine(type="news", t=3, utc=UTC, fields={"attempt": "first", "fences": [[1, 2]]})
    assert line.write() == told


@pytest.mark.parametrize(
    "value", [None, "x", -1, True, 1.5, [], {}, [[]], 10**400], ids=lambda value: str(value)[:4]
)
@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: line.type)
def test_whatever_stands_in_a_field_the_line_is_refused_or_read_into_its_forms(
    line: Line, value: Any
) -> None:
    told = json.loads(json.dumps(line.stamped(1.5, UTC).write()))
    for name in told:
        with suppress(FormError):
            found = read_line({**told, name: value})
            if not isinstance(getattr(found, "facts", None), Misread):
                assert read_line(json.loads(json.dumps(found.write()))) == found


def test_a_field_that_no_reader_relies_on_is_unknown_where_it_is_not_of_its_form() -> None:
    line = read_line(
        {**ATTEMPT.but(t=1.0, utc=UTC).write(), "token": "x", "decisions": -1, "passed_over": {"a": 1}}
    )
    assert line == ATTEMPT.but(t=1.0, utc=UTC, token=None, decisions=None, passed_over=None)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        pytest.param("kind", "explosion", "kind: got 'explosion', expected one of exit, ", id="unknown-kind"),
        pytest.param("kind", None, "kind: missing", id="none"),
        pytest.param("step", -1, "step: got -1, expected a whole number from 0", id="no-step"),
        pytest.param("evidence", {"rule": "r"}, r"evidence.text: missing", id="inside"),
    ],
)
def test_an_incident_that_is_not_understood_says_so_where_it_is_asked_for(
    field: str, value: Any, why: str
) -> None:
    told = IncidentLine(n=1, ended_t=1, facts=CRASH).stamped(1.5, UTC).write()
    line = read_line({**told, field: value})
    assert isinstance(line, IncidentLine)
    assert line.n == 1
    with pytest.raises(JournalError, match=f"^the journal is damaged: {why}"):
        _ = line.incident


def test_the_note_of_an_attempt_that_an_agent_keeps_is_its_line() -> None:
    note = json.loads(json.dumps(ATTEMPT.fields_to_json()))
    assert AttemptLine.noted({**note, "added": 1}) == ATTEMPT
