"""Several hooks or assignments as one, called from the last to the first, each with what the one before returned."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Callable, Tuple


class Compose:
    """`Compose(a, b)(x)` is `a(b(x))`; an instance of the closest class that all of them are instances of."""

    instances: Tuple[Callable[..., Any], ...] = ()

    def __new__(cls, *instances: Callable[..., Any]) -> Any:
        """Return an instance of a class of its own, below this one and the common one."""
        common = _common_class(instances)
        bases = (Compose,) if common in (object, Compose) else (Compose, common)
        own = type(
            "Composed",
            bases,
            {"__new__": lambda c, *_: object.__new__(c), "__abstractmethods__": frozenset()},
        )
        made: Any = object.__new__(own)
        made.instances = instances
        return made

    def __init__(self, *instances: Callable[..., Any]) -> None:
        """Do nothing: `__new__` has done it."""

    def __call__(self, *arguments: Any) -> Any:
        result = None
        for instance in reversed(self.instances):
            result = instance(*arguments)
            if result is None and arguments and arguments != (None,):
                warnings.warn(f"{instance} returned nothing to the one before it in Compose", stacklevel=2)
            one = (result,) if _takes_any(instance) else ()
            arguments = result if isinstance(result, tuple) else one
        return result


def _common_class(instances: Tuple[Any, ...]) -> type:
    first, *others = (type(instance).__mro__ for instance in instances)
    return next(each for each in first if all(each in mro for mro in others))


def _takes_any(instance: Callable[..., Any]) -> bool:
    return bool(inspect.signature(instance).parameters)
