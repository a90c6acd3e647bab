"""The table of events is what the orchestrator reads them by, and what the documentation says."""

from __future__ import annotations

from typing import get_args

import pytest
from heard import heard
from protocol_page import documented

from prefect_ft.model import Stage
from prefect_ft.supervisor.events import EVENTS, Exited, read_event


def test_the_page_says_what_the_table_of_events_says() -> None:
    assert documented("Events") == {
        name: {field: form.name for field, form in fields.items()} for name, fields in EVENTS.items()
    }


@pytest.mark.parametrize(
    ("said", "stage"), [*((each, each) for each in get_args(Stage)), ("warp", None), (None, None)]
)
def test_a_stage_of_a_later_version_is_unknown(said: str | None, stage: Stage | None) -> None:
    """The journal would not be readable with it."""
    assert heard("beat", stage=said).stage == stage


FILLED = {
    "fault": {"report": {"device": "0", "code": "E1", "severity": "minor", "message": None}},
    "detected": {"report": {"device": "0", "code": "E1", "severity": None, "message": "m"}},
    "in_process": {"report": {"iteration": 1, "rank": None, "kind": "fault", "text": "t", "took_ms": 0.5}},
    "exited": {"code": 3},
    "unhandled": {"signal": 10, "ranks": [1]},
    "checkpoints": {"new": [{"step": 1, "path": "p", "mtime": 2.5}], "gone": [1]},
    "excerpt": {"parts": [{"offset": 1, "line": 2, "text": "t"}]},
}


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_what_is_written_is_read_again(kind: str) -> None:
    event = heard(kind, **FILLED.get(kind, {}))
    assert read_event({"ev": kind, **event.write(), "token": list(event.token)}) == event


def test_a_record_has_the_fields_that_it_declares_and_stays_as_it_is() -> None:
    event = heard("exited", code=3)
    with pytest.raises(TypeError, match=r"Exited: missing or unknown: .*ends"):
        Exited(token=(1, 0, 1), rank=0)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="immutable"):
        event.code = 4
    assert event.but(code=4) == heard("exited", code=4)
    assert event != heard("exited", code=4)
