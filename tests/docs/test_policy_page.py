"""The tables of docs/recovery-policy.md against the rows of the rules, cell by cell."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from pages import Table, named, section, tables

from prefect_ft.decide import decide
from prefect_ft.decide.fold import fold
from prefect_ft.decide.rules import RULES, Rule
from prefect_ft.model import RESTARTS, Action, Entry, FailureClass, History, Incident, Kind, Policy

DECIDING = [rule for rule in RULES if rule.kinds]
STOPPING = [rule for rule in RULES if not rule.kinds]
ONCE = {
    "transient_since_progress": "its one restart in place",
    "confirmed_since_progress": "its one restart for the class",
}
ISOLATING = {"replace_workers", "isolate_and_rebuild", "rebuild"}

POLICY = Policy(systems=("s0", "s1", "s2"), workers=2, max_num_restarts=128, suspect_limit=100)
POLICIES = [
    POLICY,
    replace(POLICY, max_worker_replacements=9),
    replace(POLICY, unconditional=True, max_preemptions=1, suspension_restart=True),
    replace(POLICY, skip_steps=10, max_hand_overs=1),
]
GAP_S = 60.0
TIMES = 5
"""How often each incident comes: past every limit, and often enough within a day."""


def rows() -> Table:
    """The rows of the page's first table of rules."""
    return tables(section("recovery-policy.md", "Rules"))[0]


def faults(**fields: object) -> list[Incident]:
    return [
        Incident(
            t=0,
            kind="device_fault",
            device="0",
            worker=1,
            severity=severity,
            healed=healed,
            code=code,
            **fields,
        )
        for severity in ("warning", "minor", "major", "critical")
        for healed in (None, True, False)
        for code in ("A1", "80C98002")
    ]


def exits(**fields: object) -> list[Incident]:
    known = [
        Incident(t=0, kind="exit", failure_class=name, exit_code=1, **fields)
        for name in get_args(FailureClass)
    ]
    return [
        *known,
        *(replace(known[0], failure_class="network", recoverable=asked) for asked in (False, "confirm")),
        replace(known[0], failure_class="compile", confidence="low"),
    ]


def incidents() -> list[Incident]:
    plain = [Incident(t=0, kind=kind) for kind in get_args(Kind) if kind not in ("exit", "device_fault")]
    somewhere = [*plain, *exits(), *faults()]
    return [
        *somewhere,
        *(replace(incident, worker=1) for incident in (*plain, *exits(signature="a", step=100))),
        *exits(step=100, reached=120),
        *(replace(incident, worker=1, blame="none") for incident in somewhere),
    ]


@cache
def chosen() -> dict[int, set[Action]]:
    """What each row chooses, by its place: of all policies and incidents, as they come again and again."""
    actions: dict[int, set[Action]] = {place: set() for place in range(len(DECIDING))}
    for policy in POLICIES:
        for incident in incidents():
            history: History = ()
            for number in range(TIMES):
                told = replace(incident, t=number * GAP_S)
                situation = fold(policy, history)
                situation.arrive(told)
                seen = situation.incident
                for place, rule in enumerate(DECIDING):
                    if rule.is_about(seen.kind, seen.failure_class) and rule.when(situation):
                        actions[place].add(rule.then(situation).action)
                asked = Entry(incident=told)
                history = (*history, replace(asked, decision=decide(policy, (*history, asked))))
    return actions


def actions_in(cell: str) -> set[str]:
    isolating = ISOLATING if cell.startswith("isolate") else set()
    return {name for name in re.findall("`(.+?)`", cell) if name in get_args(Action)} | isolating


def incidents_of(rule: Rule) -> str:
    """Write the cell that says which incidents a rule is about."""
    if rule.kinds == get_args(Kind):
        return "any"
    classes = ", ".join(f"`{name}`" for name in rule.classes or ())
    return "; ".join(
        f"`{kind}`" + (f": {classes}" if kind == "exit" and classes else "") for kind in rule.kinds
    )


def costs_of(rule: Rule, actions: set[Action]) -> str:
    """Write the cell that says what a restart by a rule costs."""
    if not actions & RESTARTS:
        return "no restart"
    budget = rule.effects.budget
    parts = ["a failure"] if actions & rule.effects.counted else []
    parts += [ONCE.get(budget, f"`{budget}`")] if budget is not None else []
    return " and ".join(parts) or "nothing"


def test_the_page_has_every_rule_in_the_order_in_which_they_decide() -> None:
    assert named(rows()) == [rule.name for rule in DECIDING]


@pytest.mark.parametrize(
    "place", range(len(DECIDING)), ids=[f"{n}-{rule.name}" for n, rule in enumerate(DECIDING)]
)
def test_the_page_says_what_a_rule_is_about_what_it_chooses_and_what_that_costs(place: int) -> None:
    rule, actions = DECIDING[place], chosen()[place]
    _, about, _, action, cost, _ = rows()[place]
    assert actions, "no incident of this test is one for the rule"
    assert (about, actions_in(action), cost) == (incidents_of(rule), actions, costs_of(rule, actions))


@pytest.mark.parametrize("rule", STOPPING, ids=lambda rule: rule.name)
def test_the_page_says_what_a_check_does_and_costs(rule: Rule) -> None:
    checks = tables(section("recovery-policy.md", "After-checks"))[0]
    (row,) = [row for row in checks if named([row]) and named([row])[0] == rule.name]
    situation = fold(POLICY, ())
    assert rule.then(situation).action in actions_in(row[1])
    assert (row[2], "fail" in rule.effects.counted) == ("a failure, as the restart that it stops", True)


@pytest.mark.parametrize("name", get_args(FailureClass))
def test_the_page_says_which_rules_are_about_a_class(name: str) -> None:
    (row,) = [
        row for row in tables(section("recovery-policy.md", "Classes of failure"))[0] if row[0] == f"`{name}`"
    ]
    deciding = set(re.findall("`(.+?)`", row[2]))
    assert {rule.name for rule in RULES if rule.classes and name in rule.classes} <= deciding
    assert deciding <= {rule.name for rule in RULES if rule.is_about("exit", name)} | {"completed"}
