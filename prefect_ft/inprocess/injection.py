"""Which parameter of a wrapped function takes the call wrapper, and how a call is completed with it.

Reads annotations as far as possible, and never fails because of one: what cannot be resolved is compared as text.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import sys
import types
import typing
from typing import Any, Callable, Dict, List, Optional, Tuple

from prefect_ft.inprocess.state import CallWrapper

Entry = Callable[[CallWrapper], Any]
"""Calls the function, with everything but the call wrapper given already."""

_NAME = CallWrapper.__name__
"""A class of this name in another package counts as ours: code is migrated from there."""

_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))
_UNKNOWN = object()


class Injection:
    """The injection into one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = _signature_of(function)
        self._name = _parameter(self._signature, _names_around(function))
        others = [each for each in self._signature.parameters.values() if each.name != self._name]
        self._others = self._signature.replace(parameters=others)

    def entry(self, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> Entry:
        """Return the function with these arguments, in which the call wrapper is missing or None.

        Raises TypeError where they do not fit the function.
        """
        if self._name is None:
            return lambda _: self._function(*arguments, **named)
        bound = self._signature.bind_partial(*arguments, **named)
        if not isinstance(bound.arguments.get(self._name), (type(None), CallWrapper)):  # it was left out
            bound = self._others.bind_partial(*arguments, **named)
        known, name = bound.arguments, self._name

        def enter(handle: CallWrapper) -> Any:
            complete = inspect.BoundArguments(self._signature, {**known, name: handle})
            return self._function(*complete.args, **complete.kwargs)

        return enter


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters; none where they are unknown."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib  # noqa: PLC0415  # annotations are evaluated there, and may fail

            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.Signature()


def _names_around(function: Any) -> Dict[str, Any]:
    """Return the globals with which to resolve a function's annotations."""
    while True:
        inner = function.func if isinstance(function, functools.partial) else inspect.unwrap(function)
        if inner is function:
            break
        function = inner
    if not hasattr(function, "__globals__") and not hasattr(function, "__func__"):
        function = type(function).__call__  # of an object that can be called
    return getattr(getattr(function, "__func__", function), "__globals__", {})


def _parameter(signature: inspect.Signature, names: Dict[str, Any]) -> Optional[str]:
    """Return the name of the first parameter that may be a call wrapper; None: there is none."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature.parameters.items():
        with contextlib.suppress(RecursionError):  # an alias that names itself
            if parameter.kind not in variable and _takes(parameter.annotation, names):
                return name
    return None


def _takes(annotation: Any, names: Dict[str, Any]) -> bool:
    """Return whether an annotation names the class, alone or as one of several choices."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        return _text_takes(annotation, names)
    origin = typing.get_origin(annotation)
    if origin in _UNIONS:
        return any(_takes(choice, names) for choice in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _takes(annotation.__origin__, names)
    if type(annotation).__name__ == "TypeAliasType":  # made by the statement `type`
        return _takes(annotation.__value__, names)
    return isinstance(annotation, type) and origin is None and annotation.__name__ == _NAME


def _text_takes(text: str, names: Dict[str, Any]) -> bool:
    try:
        return _node_takes(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError):
        return False


def _node_takes(node: ast.AST, names: Dict[str, Any]) -> bool:
    """As `_takes`, for an annotation that is text: nothing in it is called, and names may be unknown here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _text_takes(node.value, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _node_takes(node.left, names) or _node_takes(node.right, names)
    if isinstance(node, ast.Subscript):
        return any(_node_takes(choice, names) for choice in _choices(node, names))
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    found = _resolved(node, names)
    return _last_name(node) == _NAME if found is _UNKNOWN else _takes(found, names)


def _choices(node: ast.Subscript, names: Dict[str, Any]) -> List[ast.AST]:
    """Return what an Optional, a Union or an Annotated may be; nothing for any other generic."""
    found = _resolved(node.value, names)
    known = [name for name in ("Optional", "Union", "Annotated") if found is getattr(typing, name)]
    generic = _last_name(node.value) if found is _UNKNOWN else known[0] if known else None
    items: List[ast.AST] = [*node.slice.elts] if isinstance(node.slice, ast.Tuple) else [node.slice]
    if generic == "Annotated":
        return items[:1]
    return items if generic in ("Optional", "Union") else []


def _resolved(node: ast.AST, names: Dict[str, Any]) -> Any:
    """Return what a dotted name stands for."""
    if isinstance(node, ast.Name):
        return names.get(node.id, getattr(builtins, node.id, _UNKNOWN))
    if isinstance(node, ast.Attribute):
        with contextlib.suppress(Exception):  # attribute access may raise anything
            return getattr(_resolved(node.value, names), node.attr)
    return _UNKNOWN


def _last_name(node: ast.AST) -> Optional[str]:
    return getattr(node, "attr", getattr(node, "id", None))
