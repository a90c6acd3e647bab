"""What a cluster answers, held against the shape that all who read it take for granted. Pure.

A proxy between here and the API may answer with a page of its own, and clusters leave out what is empty, or say null.
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
    """What is only judged, and not made, has no version yet."""

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
    """A pod, a node, an event of either, a secret or a config map, as far as anything is read of it."""

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
    """Return one object; raises BackendError for what is none."""
    return _filled(_checked(data, _Object))


def list_in(data: bytes) -> tuple[list[Json], str]:
    """Return the objects of a list, and its version; raises BackendError for what is none."""
    told = _checked(data, _List)
    return [_filled(each) for each in told.get("items", ())], told["metadata"].get("resourceVersion", "")


def change_in(line: bytes) -> Json:
    """Return one change, with its `type` and `object`; raises BackendError for what is none."""
    told = _checked(line, _Change)
    if told["type"] in ("ADDED", "MODIFIED", "DELETED"):
        return {**told, "object": _filled(_held(told["object"], _Object))}
    return told


def _checked(data: bytes, shape: type[BaseModel]) -> Json:
    try:
        return _held(_without_nulls(parse_json(data)), shape)
    except ValueError as exc:
        raise BackendError(f"its answer is not JSON: {data[:80]!r}") from exc


def _held(told: Any, shape: type[BaseModel]) -> Json:
    try:
        shape.model_validate(told)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise BackendError(f"its answer does not match Kubernetes' API: {where}: {first['msg']}") from exc
    return dict(told)


def _filled(told: Json) -> Json:
    """Put in what is read without looking whether it is there."""
    metadata = {"labels": {}, "uid": "", "resourceVersion": "", **told["metadata"]}
    return {"spec": {}, "status": {}, **told, "metadata": metadata}


def _without_nulls(told: Any) -> Any:
    """Return an answer without what is null: that is not there."""
    if isinstance(told, dict):
        return {name: _without_nulls(value) for name, value in told.items() if value is not None}
    if isinstance(told, list):
        return [_without_nulls(each) for each in told if each is not None]
    return told
