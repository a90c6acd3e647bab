"""The call wrapper reaches a function's parameter, however its annotation names it and wherever it stands."""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from prefect_ft.inprocess import CallWrapper, Wrapper

ANNOTATIONS = [
    "CallWrapper",
    "Optional[CallWrapper]",
    "typing.Optional[CallWrapper]",
    "Union[None, CallWrapper]",
    "Union[int, CallWrapper, None]",
    "CallWrapper | None",
    "None | CallWrapper",
    "inprocess.CallWrapper",
    "prefect_ft.inprocess.CallWrapper | None",
    "Optional[inprocess.CallWrapper]",
    "Renamed",
    "Alias",
    "Optional['CallWrapper']",
    "Annotated[CallWrapper, 'note']",
    "Annotated[Optional[CallWrapper], 'note']",
    "Optional[Annotated['inprocess.CallWrapper', 1]]",
    "'CallWrapper'",
    "'Optional[CallWrapper]'",
    "'CallWrapper | None'",
    "'inprocess.CallWrapper'",
    "'Alias'",
    "'unknown.CallWrapper'",
    "'Optional[unknown.CallWrapper]'",
    "'unknown.CallWrapper | None'",
    "'typing.Annotated[unknown.CallWrapper, unknown()]'",
    "''' CallWrapper'''",
    "Foreign",
]
OTHERS = [
    "int",
    "None",
    "'unknown'",
    "'unknown.CallWrapper.State'",
    "'not an annotation'",
    "'CallWrapper('",
    "'1 / 0'",
    "'exit()'",
    "''",
    "5",
    "Callable[[CallWrapper], None]",
    "List[CallWrapper]",
    "'List[CallWrapper]'",
    "'CallWrappers'",
    "type[CallWrapper]",
    "Literal['CallWrapper']",
    "'Literal[\"CallWrapper\"]'",
    "'unknown[Literal[\"CallWrapper\"]]'",
]
"""Annotations of no call wrapper."""

PRELUDE = """
import typing
from typing import *
import prefect_ft.inprocess
from prefect_ft import inprocess
from prefect_ft.inprocess import CallWrapper
from prefect_ft.inprocess import CallWrapper as Renamed

class Foreign:
    pass

Foreign.__name__ = "CallWrapper"
Alias = Optional[CallWrapper]
"""


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def made(definition: str, before: str = "") -> Callable[..., Any]:
    """A function `f` as a module of its own defines it."""
    names: dict[str, Any] = {"__name__": "theirs"}
    exec(before + PRELUDE + definition, names)
    return names["f"]


def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return Wrapper(enabled=False)(function)(*arguments, **named)


@pytest.mark.parametrize("annotation", ANNOTATIONS)
@pytest.mark.parametrize("before", ["", "from __future__ import annotations\n"], ids=["now", "later"])
def test_however_it_is_annotated(annotation: str, before: str) -> None:
    function = made(f"def f(step, call: {annotation} = None):\n    return step, call", before)
    step, call = called(function, 7)
    assert (step, type(call)) == (7, CallWrapper)


@pytest.mark.parametrize("annotation", OTHERS)
@pytest.mark.parametrize("before", ["", "from __future__ import annotations\n"], ids=["now", "later"])
def test_nothing_else_is_taken_for_it(annotation: str, before: str) -> None:
    assert called(made(f"def f(call: {annotation} = None):\n    return call", before)) is None


@pytest.mark.parametrize(
    ("parameters", "arguments", "named"),
    [
        pytest.param("call: CallWrapper, a, b", (), {"a": 1, "b": 2}, id="first-and-the-rest-by-name"),
        pytest.param("call: CallWrapper, a, b", (1, 2), {}, id="first-and-left-out"),
        pytest.param("call: CallWrapper, a, b", (None, 1, 2), {}, id="first-and-none"),
        pytest.param("call: CallWrapper, a, b", (1,), {"b": 2}, id="first-and-both-ways"),
        pytest.param("call: CallWrapper, /, a, b", (1, 2), {}, id="positional-only"),
        pytest.param("a, call: CallWrapper, b", (1, 2), {}, id="between"),
        pytest.param("a, call: CallWrapper, b=2", (1,), {}, id="between-and-a-default"),
        pytest.param("a, b, call: Optional[CallWrapper] = None", (1, 2), {}, id="default"),
        pytest.param("a, b, call: Optional[CallWrapper] = None", (1, 2, None), {}, id="default-and-none"),
        pytest.param("a, b, *, call: CallWrapper", (1, 2), {}, id="by-name-only"),
        pytest.param("a, b, *, call: CallWrapper | None = None", (1,), {"b": 2, "call": None}, id="none-by-name"),
        pytest.param("call: CallWrapper, *rest, a=1, b=2", (), {}, id="before-the-rest"),
        pytest.param("a, b, call: CallWrapper, **rest", (1, 2), {"other": 3}, id="with-the-rest-by-name"),
    ],
)  # fmt: skip
def test_wherever_it_stands(parameters: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    function = made(f"def f({parameters}):\n    return call, a, b")
    call, *rest = called(function, *arguments, **named)
    assert (type(call), rest) == (CallWrapper, [1, 2])


def test_what_remains_of_a_function_and_what_is_bound() -> None:
    function = made("def f(a, b, call: 'Optional[CallWrapper]' = None):\n    return call, a, b")
    for partial in (
        functools.partial(function, 1),
        functools.partial(functools.partial(function, 1), call=None),
    ):
        call, *rest = called(partial, b=2)
        assert (type(call), rest) == (CallWrapper, [1, 2])
    method = types.MethodType(function, 1)
    assert type(called(method, 2)[0]) is CallWrapper


def test_a_method_a_callable_object_and_what_another_decorator_wraps() -> None:
    class Trainer:
        @Wrapper(enabled=False)
        def fit(self, call: CallWrapper, steps: int) -> tuple[Any, ...]:
            return self, type(call), steps

        def __call__(self, steps: int, call: CallWrapper | None = None) -> tuple[Any, ...]:
            return self, type(call), steps

    trainer = Trainer()
    assert trainer.fit(5) == called(trainer, 5) == (trainer, CallWrapper, 5)

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return called

    inner = made("def f(a, call: Alias):\n    return type(call)", "from __future__ import annotations\n")
    assert called(logged(inner), 1) is CallWrapper


def test_a_class_that_only_type_checkers_import() -> None:
    before = "from __future__ import annotations\n"
    function = made("del CallWrapper\ndef f(call: Optional[CallWrapper] = None):\n    return call", before)
    assert type(called(function)) is CallWrapper


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` is new in Python 3.12")
def test_an_alias_of_the_language() -> None:
    function = made("type Alias = CallWrapper | None\ndef f(call: Alias = None):\n    return call")
    assert type(called(function)) is CallWrapper


def test_what_has_no_signature_is_called_as_it_is() -> None:
    assert called(iter, [1]).__next__() == 1
    assert called(itertools.count, 3).__next__() == 3


def test_a_call_that_does_not_fit_is_no_failure_of_the_function() -> None:
    function = made("def f(a, call: CallWrapper):\n    return a")
    with pytest.raises(TypeError, match="unexpected keyword"):
        called(function, 1, b=2)
    with pytest.raises(TypeError, match="too many positional"):
        called(function, 1, 2, 3)


def test_an_alias_that_names_itself_is_nothing() -> None:
    assert called(made("Alias = Optional['Alias']\ndef f(call: 'Alias' = None):\n    return call")) is None
