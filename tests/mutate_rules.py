"""Puts faults into the rows of the rules, which mutmut passes over because they are data, and asks the tests.

    PYTHONPATH=. python tests/mutate_rules.py

Each fault is one row left out, one row before its neighbour of the same kind of incident, or one kind, operator
or label of one row changed, in what it matches and what it chooses: its effects and words show in no case's
`rule: action`, and have tests that compare whole decisions.
Prints what no case of `test_decide_rules.py` notices; docs/mutation.md says which of them are no faults.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect_ft.decide import after_checks, decide
from prefect_ft.decide import rules as intact
from prefect_ft.journal.forms import incident_from_json
from prefect_ft.model import Entry

TESTS = Path(__file__).parent / "decide" / "test_decide_rules.py"
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
    ast.And: ast.Or,
}
USED = (
    (intact, "TABLE"),
    (intact, "NOT_RESTARTABLE"),
    (after_checks, "MAX_RESTARTS"),
    (after_checks, "MIN_SYSTEMS"),
)
"""What of the rules' module a decision goes by."""


def cases() -> list[tuple[Any, list[Any], list[str]]]:
    """Return the policy, the lines and the expected decisions of each case of the tests' two tables."""
    spec = importlib.util.spec_from_file_location("rules_table", TESTS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    one_line = [(policy, [line], [expected]) for _, line, policy, expected in module.ONE_LINE]
    return one_line + [(policy, lines, expected) for _, policy, lines, expected in module.STORIES]


def decided(policy: Any, lines: list[Any]) -> list[str]:
    """Decide about the lines, an hour apart, as the tests do."""
    history, t = (), 0
    for line in lines:
        t = line.get("t", t + 3600)
        asked = Entry(incident=incident_from_json({**line, "t": t}))
        decision = decide(policy, (*history, asked))
        history = (*history, Entry(incident=asked.incident, decision=decision))
    return [f"{entry.decision.rule}: {entry.decision.action}" for entry in history]


def table_of(tree: ast.Module) -> ast.Tuple:
    """Find the rows of `RULES`."""
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "RULES"
    )
    assert isinstance(table, ast.Tuple)
    return table


def rows(tree: ast.Module) -> list[ast.Call]:
    """Find all rows, those that stand in the table by a name of their own too."""
    made = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in made if ast.unparse(call.func) in ("Rule", "replace")]


def parts(row: ast.Call) -> Iterator[ast.AST]:
    """Go through what a row matches and what it chooses."""
    for keyword in row.keywords:
        if keyword.arg in ("name", "kinds", "classes", "when", "then"):
            yield from ast.walk(keyword.value)


def faults(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Return each faulty module with a word about its fault."""
    for number, rule in enumerate(intact.RULES):
        faulty = copy.deepcopy(tree)
        del table_of(faulty).elts[number]
        yield f"row {number} {rule.name} left out", faulty
        if number and set(rule.kinds) & set(intact.RULES[number - 1].kinds):
            faulty = copy.deepcopy(tree)
            table = table_of(faulty).elts
            table[number - 1], table[number] = table[number], table[number - 1]
            yield f"row {number} {rule.name} before its neighbour", faulty
    for number, row in enumerate(rows(tree)):
        for place, _ in enumerate(parts(row)):
            faulty = copy.deepcopy(tree)
            node = list(parts(rows(faulty)[number]))[place]
            before = ast.unparse(node)
            if change(node):
                yield f"{ast.unparse(row.keywords[0].value)}: {before} -> {ast.unparse(node)}", faulty


def change(node: ast.AST) -> bool:
    """Put a fault into a node; say whether there is one for it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        node.ops[0] = OPPOSITES[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.BoolOp) and type(node.op) in OPPOSITES:
        node.op = OPPOSITES[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.op = ast.UAdd()
    elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
        node.elts.pop()
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        node.value += "x"
    elif isinstance(node, ast.Name) and node.id in ("EXIT", "DEVICE_FAULT"):
        node.id = "DEVICE_FAULT" if node.id == "EXIT" else "EXIT"
    else:
        return False
    return True


def notices(faulty: ast.Module, told: list[tuple[Any, list[Any], list[str]]]) -> bool:
    """Return whether some case comes out otherwise."""
    module = {"__name__": "faulty", "__file__": intact.__file__}
    sys.modules["faulty"] = intact
    kept = {(owner, name): getattr(owner, name) for owner, name in USED}
    try:
        exec(compile(ast.fix_missing_locations(faulty), intact.__file__, "exec"), module)
        for owner, name in USED:
            setattr(owner, name, module[name])
        return any(decided(policy, lines) != expected for policy, lines, expected in told)
    except Exception:
        return True
    finally:
        for (owner, name), value in kept.items():
            setattr(owner, name, value)


def main() -> None:
    """Try every fault."""
    told = cases()
    tree = ast.parse(Path(intact.__file__).read_text())
    assert not notices(tree, told), "the tables do not hold without a fault"
    results = {name: notices(faulty, told) for name, faulty in faults(tree)}
    for name, noticed in results.items():
        if not noticed:
            print(name)
    print(f"{sum(results.values())} of {len(results)} faults noticed")


if __name__ == "__main__":
    main()
