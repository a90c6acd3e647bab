"""Validates a cluster's answers against the schema that their readers rely on. Pure.

A proxy before the API may answer with a page of its own, and clusters omit empty fields, or send null.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json

Json = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Metadata(_Part):
    """An object of a dry run has no version."""

    name: str
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815  (the API's name)
    labels: dict[str, str] = {}
    creationTimestamp: str = ""  # noqa: N815


class _Condition(_Part):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Waiting(_Part):
    reason: str = ""
    message: str = ""


class _Terminated(_Waiting):
    exitCode: int  # noqa: N815


class _State(_Part):
    waiting: _Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: _Terminated | None = None


class _Container(_Part):
    state: _State = _State()


class _Status(_Part):
    phase: str = ""
    reason: str = ""
    message: str = ""
    podIP: str = ""  # noqa: N815
    conditions: list[_Condition] = []
    containerStatuses: list[_Container] = []  # noqa: N815


class _Object(_Part):
    """A pod, a node, an event, a secret or a config map, with the fields that are read."""

    metadata: _Metadata
    spec: dict[str, Any] = {}
    status: _Status = _Status()
    type: str = ""
    reason: str = ""
    message: str = ""


class _Version(_Part):
    resourceVersion: str = ""  # noqa: N815


class _List(_Part):
    metadata: _Version
    items: list[_Object] = []


class _Marked(_Part):
    metadata: _Version


class _Change(_Part):
    type: str
    object: _Marked


def object_in(data: bytes) -> Json:
    """Return one object; raises BackendError for an invalid one."""
    return _with_defaults(_checked(data, _Object))


def list_in(data: bytes) -> tuple[list[Json], str]:
    """Return the objects of a list, and its version; raises BackendError for an invalid one."""
    answer = _checked(data, _List)
    objects = [_with_defaults(each) for each in answer.get("items", ())]
    return objects, answer["metadata"].get("resourceVersion", "")


def change_in(line: bytes) -> Json:
    """Return one change, with its `type` and `object`; raises BackendError for an invalid one."""
    change = _checked(line, _Change)
    if change["type"] in ("ADDED", "MODIFIED", "DELETED"):
        return {**change, "object": _with_defaults(_validated(change["object"], _Object))}
    return change


def _checked(data: bytes, shape: type[BaseModel]) -> Json:
    try:
        return _validated(_without_nulls(parse_json(data)), shape)
    except ValueError as exc:
        raise BackendError(f"its answer is not JSON: {data[:80]!r}") from exc


def _validated(value: Any, shape: type[BaseModel]) -> Json:
    try:
        shape.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise BackendError(f"its answer does not match Kubernetes' API: {where}: {first['msg']}") from exc
    return dict(value)


def _with_defaults(obj: Json) -> Json:
    """Add the fields that readers do not expect to be missing."""
    metadata = {"labels": {}, "uid": "", "resourceVersion": "", **obj["metadata"]}
    return {"spec": {}, "status": {}, **obj, "metadata": metadata}


def _without_nulls(value: Any) -> Any:
    """Return an answer without nulls, which mean missing fields."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value
