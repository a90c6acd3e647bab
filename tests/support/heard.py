"""Events as agents report them, for tests that care for some of their fields."""

from __future__ import annotations

import json
from typing import Any

from prefect_ft.supervisor.events import EVENTS, Event, read_event

_EMPTY: dict[str, Any] = {
    "int": 0, "bool": False, "seconds": 0, "string": "", "[int]": [], "[seconds]": [], "any": None,
}  # fmt: skip


def heard(ev: str, *, token: Any = (1, 0, 1), **fields: Any) -> Any:
    """An event with these fields; the others are empty."""
    rest = {
        name: None if "or null" in form.name else _EMPTY.get(form.name, [] if form.name[0] == "[" else {})
        for name, form in EVENTS[ev].items()
        if not form.may_be_absent
    }
    message = {"ev": ev, **rest, **fields, "token": token}
    event = read_event(json.loads(json.dumps(message)))
    assert isinstance(event, Event)
    return event
