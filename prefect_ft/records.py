"""Records: immutable values whose fields say their JSON forms, so that one table checks, reads and writes them.

Unlike dataclasses, these classes are cheap to create: commands that answer in milliseconds import dozens of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from typing_extensions import Self, dataclass_transform

from prefect_ft.worker.forms import Form, FormError, named, read_fields

T = TypeVar("T", bound="Record")


class _Field:
    def __init__(self, its: Form, default: Any) -> None:
        self.form, self.default = its, default


def of(form: Form, *, default: Any = ...) -> Any:
    """Declare a field that every object read must have; one made here may leave it at `default`."""
    return _Field(form, default)


def absent(form: Form, *, default: Any = None) -> Any:
    """Declare a field of a form that may be absent; a record has `default` then."""
    return _Field(form._replace(name=f"{form.name}, or absent", may_be_absent=True), default)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(of, absent))
class Record:
    """A value with the fields that its class declares by `of` and `absent`; equal by class and values."""

    forms: ClassVar[Mapping[str, Form]] = {}
    """The forms of its fields, by name, in their order."""
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if isinstance(value, _Field)}
        for name in own:
            delattr(cls, name)
        cls.forms = {**cls.forms, **{name: each.form for name, each in own.items()}}
        defaults = {name: each.default for name, each in own.items() if each.default is not ...}
        cls._defaults = {**cls._defaults, **defaults}

    def __init__(self, **values: Any) -> None:
        """Raises TypeError for a field that is missing or not declared."""
        fields = {**self._defaults, **values}
        if fields.keys() != self.forms.keys():
            wrong = ", ".join(sorted(fields.keys() ^ self.forms.keys()))
            raise TypeError(f"{type(self).__name__}: missing or unknown: {wrong}")
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *map(self.__dict__.get, self.forms)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Return an object as this record, without the fields that it does not declare. Raises FormError."""
        self = cls.__new__(cls)
        self.__dict__.update(cls._defaults)
        self.__dict__.update(read_fields(cls.forms, fields))
        return self

    def write(self) -> dict[str, Any]:
        """Return the record as a JSON object, without absent fields."""
        return {
            name: written(self.__dict__[name])
            for name, its in self.forms.items()
            if self.__dict__[name] is not None or not its.may_be_absent
        }

    def but(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields."""
        return type(self)(**{**self.__dict__, **changes})


def written(value: Any) -> Any:
    """Return a field's value as JSON, records in it as objects."""
    match value:
        case Record():
            return value.write()
        case tuple() | list():
            return [written(each) for each in value]
        case Mapping():
            return {name: written(each) for name, each in value.items()}
        case _:
            return value


def record(cls: type[Record], name: str | None = None) -> Form:
    """Return the form of such a record; `name` is by default made of its fields."""
    its = Form("{" + ", ".join(cls.forms) + "}", lambda value: _read(cls, value))
    return its if name is None else named(name, its)


def _read(cls: type[T], value: Any) -> T:
    if not isinstance(value, dict):
        raise FormError("is not an object")
    return cls.read(value)
