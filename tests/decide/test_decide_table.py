"""A rule is its row: one more of it is decided by and told of, and no other module knows a rule by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
from past_runs import Telling
from rich.console import Console

import prefect_ft
from prefect_ft.config import JobConfig, warnings
from prefect_ft.decide import decide, rules
from prefect_ft.decide.effects import NOTHING, Effects
from prefect_ft.decide.moves import always
from prefect_ft.decide.rules import RULES, Rule, RuleName, Table
from prefect_ft.model import Decision, Entry, FailureClass, Incident, Kind, Policy
from prefect_ft.report.html import page
from prefect_ft.report.story import PhaseJournal, story_of
from prefect_ft.report.terminal import show

POLICY = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=3)


# -- the rows ---------------------------------------------------------------------------------------


def test_every_name_has_a_row_and_every_row_a_meaning() -> None:
    assert {rule.name for rule in RULES} == set(NAMES)
    assert all(rule.meaning for rule in RULES)


def test_rows_of_one_name_differ_in_what_they_match_alone() -> None:
    matching = {"classes", "when"}
    for name in NAMES:
        first, *others = [rule for rule in RULES if rule.name == name]
        for field in fields(Rule):
            if field.name not in matching:
                assert all(getattr(other, field.name) == getattr(first, field.name) for other in others)


# -- one more ---------------------------------------------------------------------------------------

COOLED = Rule(
    name="cooled-down",
    kinds=("exit",),
    classes=("network",),
    when=lambda s: s.incident.exit_code == 99,
    then=always("restart_in_place", "it was too warm"),
    effects=Effects(counted=NOTHING, budget="preemptions", step_back="below_last"),
    standing=lambda s: f"the fan was off {s.budgets.preemptions} times",
    meaning="the machine was too warm, and has cooled down",
)


def warm(t: float, step: int) -> Incident:
    return Incident(t=t, kind="exit", failure_class="network", exit_code=99, step=step)


def decided(*incidents: Incident) -> list[Decision]:
    history: tuple[Entry, ...] = ()
    for incident in incidents:
        asked = Entry(incident=incident)
        history = (*history, replace(asked, decision=decide(POLICY, (*history, asked))))
    return [entry.decision for entry in history if entry.decision is not None]


def test_a_row_is_all_that_a_rule_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONTRIBUTING's recipe: match, action, costs, step back, words in the reason and in both reports."""
    monkeypatch.setattr(rules, "TABLE", Table((COOLED, *RULES)))
    first, second = decided(warm(60, 100), warm(120, 200))
    assert (first.rule, first.action, first.resume_step) == ("cooled-down", "restart_in_place", None)
    assert (second.rule, second.resume_step) == ("cooled-down", 100)
    assert (second.counters.failures_without_progress, second.counters.preemptions) == (0, 2)
    assert second.reason == (
        "network (exit code 99) after progress to step 200, the fan was off 2 times: it was too warm, "
        "restarted in place from step 100"
    )
    run = Telling(Policy(systems=("s0",), workers=1, max_num_restarts=3))
    reached = run.attempt(1, saved_every=10, until=100)
    run.end_attempt(100, step=30, reached=reached, failure_class="network", exit_code=99)
    story = story_of([PhaseJournal(lines=run.lines)])
    console = Console(file=StringIO(), width=200)
    show(story, console)
    assert f"why: {COOLED.meaning}" in console.file.getvalue()
    assert f"Why: {COOLED.meaning}" in page(story)


def test_a_restart_by_a_rule_of_another_version_is_a_counted_failure_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as later:
        later.setattr(rules, "TABLE", Table((COOLED, *RULES)))
        recorded = decided(warm(60, 100))
    history = (Entry(incident=warm(60, 100), decision=recorded[0]), Entry(incident=warm(120, 100)))
    decision = decide(POLICY, history)
    assert (decision.rule, decision.action, decision.resume_step) == ("transient", "restart_in_place", 100)
    assert (decision.counters.failures_without_progress, decision.counters.preemptions) == (2, 0)


# -- names in other modules -------------------------------------------------------------------------

NAMES = list(get_args(RuleName))
PACKAGE = Path(prefect_ft.__file__).parent
OWNER = PACKAGE / "decide" / "rules.py"
ALSO_MEAN_ANOTHER_THING = {
    *get_args(Kind),
    *get_args(FailureClass),
    "unconditional",
    "transient",
    "in-process",
}
"""Kinds, classes, settings, a feature: of those names only what is compared with a rule can be told."""

ELSEWHERE = {
    # The job file's side is below the rules and may not import them; the test below holds it against them.
    "config/job.py": {"non-recoverable", "checkpoint-unreadable"},
    # Evidence and signatures have names of their own.
    "decide/classify/unreadable.py": {"checkpoint-unreadable"},
    "backends/base.py": {"node-lost"},
    "backends/kubernetes/pod_ends.py": {"node-lost"},
}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != OWNER]


def texts(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def is_a_rule(node: ast.expr) -> bool:
    """Whether an expression is called a rule: `rule`, `x.rule`, `x["rule"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=name)):
            return name == "rule"
    return False


def compared(tree: ast.AST) -> Iterator[str]:
    """What anything that is called a rule is compared with, or matched against, or looked up in a table by."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(is_a_rule, (left, *others))):
                yield from texts(node)
            case ast.Match(subject=subject) if is_a_rule(subject):
                yield from texts(node)
            case ast.Call(keywords=given, func=ast.Name(id="Decision" | "Proposal")):
                yield from (text for each in given if each.arg == "rule" for text in texts(each.value))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_module_knows_a_rule_by_its_name(path: Path) -> None:
    tree = ast.parse(path.read_text())
    known = (texts(tree) - ALSO_MEAN_ANOTHER_THING) | set(compared(tree))
    assert known & set(NAMES) == ELSEWHERE.get(str(path.relative_to(PACKAGE)), set())


@pytest.mark.parametrize(
    "written",
    [
        'x = "max-restarts"',
        'x = {"node-lost": 1}',
        'x = rule == "numeric"',
        'x = d.rule in ("completed", "cancelled")',
        'x = line["rule"] != "suspended"',
        'match d.rule:\n    case "preempted":\n        pass',
        'x = Proposal(rule="transient")',
    ],
)
def test_such_a_name_would_be_found(written: str) -> None:
    tree = ast.parse(written)
    assert ((texts(tree) - ALSO_MEAN_ANOTHER_THING) | set(compared(tree))) & set(NAMES)


def earlier(policy: Policy, name: FailureClass) -> set[str]:
    """The rules that decide about exits of a class to be restarted on, with and without progress."""
    exit_code = 0 if name == "none" else 1
    failed = [
        Incident(t=0, kind="exit", failure_class=name, exit_code=exit_code, step=step) for step in (None, 9)
    ]
    asked = replace(policy, restart_on=frozenset((name,)))
    return {decide(asked, (Entry(incident=incident),)).rule for incident in failed}


def warned(name: FailureClass, **settings: Any) -> set[str]:
    """The rule that a job file's warning names that asks to restart on a class."""
    phase = {"name": "p", "command": ["python", "t.py"], "mode": "eval"}
    autorestart = {"max_num_restarts": 1, "last_system": "keep", "restart_on": [name], **settings}
    job = {"name": "j", "model_dir": "runs", "phases": [phase], "autorestart": autorestart}
    return set(re.findall("the rule '(.+?)' decides", " ".join(warnings(JobConfig.model_validate(job)))))


@pytest.mark.parametrize("name", get_args(FailureClass))
def test_a_job_file_is_warned_of_the_rule_that_decides_before_transient(name: FailureClass) -> None:
    deciding = earlier(POLICY, name)
    assert warned(name) == (set() if "transient" in deciding else deciding)
    assert warned(name, unconditional=True) <= earlier(replace(POLICY, unconditional=True), name)
