"""Lines made of a pattern's own repeated parts cost the classifier no more than their length, whatever the pattern."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from growth import is_linear
from pumps import Pump, pumps_of

import prefect_ft.decide.classify as package
from prefect_ft.decide.classify import Catalogue, builtin_catalogue, classify, with_own
from prefect_ft.decide.classify.literals import keys_of, texts_of
from prefect_ft.decide.classify.tracebacks import HEADER
from prefect_ft.signatures import EntryError, Signature, read_entry

LONG = 3_900
"""Characters: just below where the classifier cuts a line."""

ENDS = ("!", " 1:")
LAST_CODES = (2, 127)
"""Exit codes by which the last lines are read again."""

GROUPS, PUMPS, MANY_PUMPS = 16, 8, 40
"""Of the catalogue's patterns, so many groups; of the lines that can be made of each group's, so many."""


def patterns_in(value: Any) -> Iterator[str]:
    """The patterns that a module has, of Python's own kind and of RE2's."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from patterns_in(each)
    elif isinstance(found := getattr(value, "pattern", None), (str, bytes)) and hasattr(value, "search"):
        yield found if isinstance(found, str) else found.decode("latin-1")


def ours() -> dict[str, list[str]]:
    """The patterns of the classifier's modules, by module and name."""
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}")
        for each in pkgutil.iter_modules(package.__path__)
    ]
    named = {
        f"{module.__name__.rpartition('.')[2]}.{name}": list(patterns_in(value))
        for module in modules
        for name, value in vars(module).items()
    }
    return {name: found for name, found in named.items() if found}


OURS = ours()


def lines_of(pump: Pump, length: int) -> list[str]:
    """A log in which such lines stand wherever text from elsewhere may: messages, files, functions, exceptions."""
    some = [pump.line(length, end) for end in ENDS]
    frames = [f'  File "{line}", line 1, in {line}' for line in some]
    return [
        *some,
        HEADER,
        *frames,
        *some,
        f"ValueError: {some[0]}",
        HEADER,
        '  File "a.py", line 1, in f',
        some[0],
    ]


def attacked(pump: Pump, catalogue: Catalogue | None = None, codes: tuple[int, ...] = (1,)) -> bool:
    """Return whether such lines cost no more than their length."""

    def work(length: int) -> Callable[[], Any]:
        log = {"rank0.log": lines_of(pump, length)}
        return lambda: [classify(log, exit_code=code, catalogue=catalogue) for code in codes]

    return is_linear(work, LONG)


@pytest.mark.parametrize("most", [PUMPS, pytest.param(10**6, id="all", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", OURS)
def test_a_pattern_of_the_classifier_is_pumped_in_vain(name: str, most: int) -> None:
    pumps = sorted({pump for pattern in OURS[name] for pump in pumps_of(pattern)})
    codes = LAST_CODES if name.startswith("exits.") else (1,)
    tried = pumps[:: max(1, len(pumps) // most)]
    assert [pump for pump in tried if not attacked(pump, codes=codes)] == []


@pytest.mark.parametrize("most", [PUMPS, pytest.param(MANY_PUMPS, marks=pytest.mark.long)])
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_signature_is_pumped_in_vain(group: int, most: int) -> None:
    signatures = builtin_catalogue().signatures[group::GROUPS]
    pumps = sorted({pump for signature in signatures for pump in pumps_of(signature.pattern)})
    assert [pump for pump in pumps[:: max(1, len(pumps) // most)] if not attacked(pump)] == []


# -- a user's own -----------------------------------------------------------------------------------

CATASTROPHIC = (
    "(a+)+$", "(a|aa)+$", "(a|a?)+$", "(.*a){12}$", r"(\w+\s?)*:$", "^(([a-z])+.)+[A-Z]([a-z])+$", "a*a*a*a*a*a*b",
    r"(?:\d+,?)+x", "(x+x+)+y",
)  # fmt: skip
"""On each of these a matcher that goes back is lost, or takes a power of the length."""


def own(pattern: str) -> Signature:
    return read_entry({"id": "own", "class": "config", "pattern": f"qq{pattern}"})


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_pattern_of_a_user_is_pumped_in_vain(pattern: str) -> None:
    catalogue = with_own([own(pattern)])
    assert [pump for pump in sorted(pumps_of(f"qq{pattern}")) if not attacked(pump, catalogue)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("((a{100}){100}){100}", id="repeated-too-often"),
        pytest.param(r"(a)\1", id="what-only-going-back-finds"),
        pytest.param("(?<=a)b", id="what-looks-behind"),
        pytest.param("(?:abc?){1000}" * 10, id="too-large"),
    ],
)
def test_a_pattern_that_cannot_be_bounded_is_refused(pattern: str) -> None:
    with pytest.raises(EntryError, match="is not a pattern of RE2"):
        own(pattern)


@pytest.mark.parametrize("piece", ["a", "(a|b)", "[ab]c?", "(?:ab+|c)*", "x|y", r"\d{3}"])
def test_the_outline_of_a_long_pattern_costs_no_more_than_its_length(piece: str) -> None:
    def work(length: int) -> Callable[[], Any]:
        pattern = piece * (length // len(piece))
        return lambda: (keys_of(pattern), texts_of(pattern))

    assert is_linear(work, 6_000)
