"""Names of actions, of events and of orders stand in the modules that own them; no other one knows them as strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import prefect_ft
from prefect_ft.model import CHOICES, Action
from prefect_ft.supervisor.events import EVENTS
from prefect_ft.worker.protocol import ORDERS

PACKAGE = Path(prefect_ft.__file__).parent
ACTIONS = frozenset(get_args(Action))
SAID = frozenset(EVENTS) | frozenset(ORDERS)

OWN_ACTIONS = (
    "model.py",  # which there are, and which of them are alike
    "decide/",  # when
    "supervisor/enact.py",  # what they change
    "report/words.py",  # what the reader of a report is told
    "prefect_edge/reporting/records.py",  # what Prefect calls the run meanwhile
    "blocks/gang_run.py",  # a person's orders, which are recorded as actions
)
OWN_WHAT_IS_SAID = (
    "worker/",  # agents speak, and obey
    "inprocess/",  # ranks speak with their coordinator
    "supervisor/events.py",
    "supervisor/masking.py",  # which fields of events hold text of the user's
    "supervisor/member.py",
    "supervisor/gang.py",
    "supervisor/conversation.py",
    "backends/slurm/",  # the holder of a node speaks the same way
)
ALSO_AN_ATTEMPTS_OWN_WORD = {"journal/attempts.py": {"complete"}}
"""`summary.json` has the action that ended an attempt, and a journal's reader has no decision there."""


def is_called(node: ast.expr, *names: str) -> bool:
    """Whether an expression is called one of these: `action`, `x.action`, `x["action"]`, `x.get("action")`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=name)):
            return name in names
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=name), *_]):
            return name in names
    return False


def texts(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def compared(tree: ast.AST, *names: str) -> Iterator[str]:
    """What anything of these names is compared with, matched against, or given as."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                if any(is_called(each, *names) for each in (left, *others)):
                    yield from texts(node)
            case ast.Match(subject=subject) if is_called(subject, *names):
                yield from (text for case in node.cases for text in texts(case.pattern))
            case ast.Call(keywords=given):
                yield from (text for each in given if each.arg in names for text in texts(each.value))
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in names:
                        yield from texts(value)


def actions_in(tree: ast.AST) -> set[str]:
    """Those of several words mean nothing else; the others are found where they stand for an action."""
    plain = {text for text in texts(tree) if "_" in text}
    return ACTIONS & (plain | {*compared(tree, "action", "actions")})


def said_in(tree: ast.AST) -> set[str]:
    return SAID & {*compared(tree, "ev", "op")}


def test_no_other_module_knows_an_action_an_event_or_an_order_by_its_name() -> None:
    actions, said = {}, {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name, tree = str(path.relative_to(PACKAGE)), ast.parse(path.read_text())
        if not name.startswith(OWN_ACTIONS) and (found := actions_in(tree)):
            actions[name] = found
        if not name.startswith(OWN_WHAT_IS_SAID) and (found := said_in(tree)):
            said[name] = found
    assert actions == ALSO_AN_ATTEMPTS_OWN_WORD
    assert said == {}


@pytest.mark.parametrize(
    "written",
    [
        'x = "restart_in_place"',
        'x = {"isolate_and_rebuild": 1}',
        'x = d.action == "complete"',
        'x = action in ("fail", "cancel")',
        'x = line["action"] != "continue"',
        'match d.action:\n    case "fail":\n        pass',
        'x = Decision(action="rebuild")',
        'x = {"action": "cancel"}',
    ],
)
def test_such_an_action_would_be_found(written: str) -> None:
    assert actions_in(ast.parse(written))


@pytest.mark.parametrize(
    "written",
    [
        'x = message["ev"] == "exited"',
        'x = message.get("ev") in ("output", "beat")',
        'x = {"ev": "attached"}',
        'x = order.op == "start"',
        'match event["ev"]:\n    case "stopped":\n        pass',
    ],
)
def test_such_an_event_would_be_found(written: str) -> None:
    assert said_in(ast.parse(written))


@pytest.mark.parametrize("written", ['x = {"fail": 1}', 'x = kind == "complete"', 'x = state == "attached"'])
def test_what_means_another_thing_is_not(written: str) -> None:
    assert not actions_in(ast.parse(written)) | said_in(ast.parse(written))


@pytest.mark.parametrize("owner", [*OWN_ACTIONS, *OWN_WHAT_IS_SAID])
def test_each_owner_has_such_names(owner: str) -> None:
    """Whoever owns none any more loses its place in the list."""
    found = [PACKAGE / owner] if owner.endswith(".py") else sorted((PACKAGE / owner).rglob("*.py"))
    trees = [ast.parse(path.read_text()) for path in found]
    assert any((texts(tree) & (ACTIONS if owner in OWN_ACTIONS else SAID)) for tree in trees)


def test_the_values_are_those_of_the_type() -> None:
    assert {*CHOICES} < ACTIONS
