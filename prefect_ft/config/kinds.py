"""The kinds of infrastructure: those of this package, and those that installed packages add.

A job file names a kind in `infrastructure.type`. It is loaded when a job names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Protocol, Union, get_args

from pydantic import Discriminator, GetCoreSchemaHandler, GetJsonSchemaHandler, Tag, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from prefect_ft.config.fields import problem, shown
from prefect_ft.config.infrastructure import Infrastructure
from prefect_ft.errors import ConfigError

_log = logging.getLogger(__name__)

GROUP = "prefect_ft.backends"
"""Entry points by which packages add kinds: the name is the `type`, the object a `prefect_ft.backends.kind.Kind`."""

DEFAULT = "process"
_OWN = {name: f"prefect_ft.backends.{name}.kind" for name in (DEFAULT, "docker", "kubernetes", "slurm")}


class Registered(Protocol):
    """The part of a kind's interface that is used here; `prefect_ft.backends.kind.Kind` is all of it."""

    @property
    def config(self) -> type[Infrastructure]:
        """The model of its section of a job file."""


def names() -> tuple[str, ...]:
    """Return the types that a job file may name, those of this package first."""
    return (*_OWN, *sorted(_added()))


@cache
def kind_named(name: str) -> Registered:
    """Return a kind; raises KeyError for an unknown name, ConfigError where a package's kind cannot be loaded."""
    if name in _OWN:
        found: Registered = import_module(_OWN[name]).KIND
        return found
    added = _added()[name]
    try:
        loaded: Registered = added.load()
        if not issubclass(loaded.config, Infrastructure):
            raise TypeError(f"its config is not a subclass of {Infrastructure.__name__}")
    except Exception as exc:  # another package's code
        package = added.dist.name if added.dist is not None else added.value
        raise ConfigError(f"{name!r} of the package {package} cannot be loaded: {exc}", field="type") from exc
    return loaded


def usable_kinds() -> Iterator[Registered]:
    """Yield every kind except those of other packages that cannot be loaded, which are logged."""
    for name in names():
        try:
            yield kind_named(name)
        except ConfigError as exc:
            _log.warning("infrastructure of type %s", exc.message)


@cache
def _added() -> dict[str, EntryPoint]:
    """Return the kinds that packages add, except those with the name of a kind of this package."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _OWN}


def default_infrastructure() -> Infrastructure:
    """Return the infrastructure of a job that does not say where it runs."""
    return kind_named(DEFAULT).config.model_validate({})


def _validated(value: Any) -> Infrastructure:
    if isinstance(value, dict) and "block" in value:
        message = "is looked up in job files only; give train_flow the block itself, as infrastructure"
        raise problem(message, "block")
    given = _given_type(value)
    # The type alone is checked first: the keys beside an unknown one cannot be judged.
    if not isinstance(given, str) or (given not in _OWN and given not in _added()):
        raise problem(f"unknown type {shown(given)}; known types: {', '.join(names())}", "type")
    try:
        sections = [kind_named(each).config for each in dict.fromkeys((*_OWN, given))]
        return _adapter(*sections).validate_python(value)
    except ConfigError as exc:
        raise problem(exc.message, "type") from exc


@cache
def _adapter(*sections: type[Infrastructure]) -> TypeAdapter[Infrastructure]:
    """Return the reader of these sections; in its errors the type is a part of the path."""
    choices = tuple(Annotated[each, Tag(type_of(each))] for each in sections)
    union: Any = Union[choices]  # noqa: UP007  (known only when this runs)
    return TypeAdapter(Annotated[union, Discriminator(_given_type)])


def _given_type(value: Any) -> Any:
    return value.get("type", DEFAULT) if isinstance(value, dict) else getattr(value, "type", DEFAULT)


def type_of(section: type[Infrastructure]) -> str:
    """Return the one `type` that a section of a job file may have."""
    return str(get_args(section.model_fields["type"].annotation)[0])


class _OfItsKind:
    """Reads an infrastructure by its `type`, and writes it with all its fields."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source, handler
        return core_schema.no_info_plain_validator_function(
            _validated, serialization=core_schema.simple_ser_schema("any")
        )

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        del schema
        return handler(_adapter(*(kind.config for kind in usable_kinds())).core_schema)


AnyInfrastructure = Annotated[Infrastructure, _OfItsKind]
"""The infrastructure of a job or a phase, of any kind."""
