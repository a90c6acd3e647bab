"""What an agent tells is held against the protocol where it comes in: what is no event loses the worker alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.backends.base import Address, Worker
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.events import Checkpoints, Diagnosis, Event, Exited, Sampled, read_event
from prefect_ft.supervisor.hangs import sample_of
from prefect_ft.supervisor.link import Link, LinkLostError
from prefect_ft.supervisor.masking import masking
from prefect_ft.supervisor.saves import Saves
from prefect_ft.worker import frames
from prefect_ft.worker.forms import FormError

TOKEN = [1, 0, 1]
SECRETS = ["hf_abcdef"]
EXITED = {
    "ev": "exited",
    "token": TOKEN,
    "rank": 0,
    "code": 1,
    "signal": None,
    "t_ns": 5,
    "oom": False,
    "ends": False,
}
RECORDED = Path(__file__).parents[1] / "releases" / "921e233" / "frames"


class Said:
    """An agent that has said what it is given."""

    def __init__(self, *messages: Mapping[str, Any]) -> None:
        self.data = b"".join(frames.encode(dict(message)) for message in messages)

    def connect(self, timeout_s: float) -> socket.socket:
        here, there = socket.socketpair()
        there.sendall(self.data)
        there.close()
        return here

    host = "127.0.0.1"


def heard(*messages: Mapping[str, Any]) -> list[Event]:
    link = Link(
        Worker(number=0, system="s0", epoch=1, decision=0), cast("Address", Said(*messages)), masking(SECRETS)
    )
    try:
        return link.receive()
    finally:
        link.close()


def test_events_come_as_they_were_said() -> None:
    exited = Exited(token=(1, 0, 1), rank=0, code=1, signal=None, t_ns=5, oom=False, ends=False)
    assert heard(EXITED, {**EXITED, "later": 3}) == [exited, exited]


def test_an_event_of_a_later_version_is_not_heard() -> None:
    assert heard({"ev": "moved", "token": TOKEN, "to": "there"}, EXITED) == [read_event(EXITED)]


def test_what_only_the_orchestrator_says_itself_is_not_heard() -> None:
    assert heard({"ev": "lost", "token": TOKEN, "system_answers": False, "evidence": None}) == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        pytest.param({"token": TOKEN}, "an event without a name", id="no-name"),
        pytest.param({"ev": ["exited"], "token": TOKEN}, "an event without a name", id="no-text-for-a-name"),
        pytest.param({"ev": "exited"}, "exited: token is missing", id="no-token"),
        pytest.param({"ev": "moved", "token": [1, 2]}, "moved: token must be", id="half-a-token"),
        pytest.param({**EXITED, "rank": "0"}, "exited: rank must be int", id="type"),
        pytest.param({**EXITED, "rank": True}, "exited: rank must be int", id="bool"),
        pytest.param({**EXITED, "code": 1.5}, "exited: code must be int or null", id="fraction"),
        pytest.param({"ev": "beat", "token": TOKEN, "rank": 0}, "beat: beats is missing", id="no-field"),
        pytest.param(
            {"ev": "checkpoints", "token": TOKEN, "new": [{"step": 1}], "gone": [], "last": None},
            "checkpoints: new must be",
            id="within",
        ),
    ],
)
def test_what_is_no_event_loses_the_worker(message: Mapping[str, Any], why: str) -> None:
    with pytest.raises(LinkLostError, match=f"the agent breaks the protocol: {why}"):
        heard(EXITED, message)


# -- whatever passes is understood ------------------------------------------------------------------


def recorded() -> Iterator[dict[str, Any]]:
    for path in sorted(RECORDED.glob("*.events")):
        yield from frames.FrameReader().feed(path.read_bytes())


EXAMPLES = [
    *recorded(),
    EXITED,
    {"ev": "output", "token": TOKEN, "rank": 0, "offset": 0, "text": "Error: x\n"},
    {"ev": "excerpt", "token": TOKEN, "rank": 0, "bytes": 9, "lines": 1, "path": "p",
     "parts": [{"offset": 0, "line": 0, "text": "a\n"}]},
    {"ev": "sample", "token": TOKEN, "watched_s": 1.0, "past": False, "devices": {"0": 3}, "container": None,
     "ranks": {"0": {"over": False, "state": "S", "cpu_s": 1.0, "wait_s": None, "io": 3, "output": 2, "beats": 1,
                     "beat_s": 0.5, "step": 3, "stage": "train"}}},
    {"ev": "checkpoints", "token": TOKEN, "gone": [1], "last": 2,
     "new": [{"step": 2, "path": "p", "counted": False, "size": 1, "mtime": 2.0, "device": 1, "inode": 2}]},
    {"ev": "call", "token": TOKEN, "inside": [0], "excused": []},
    {"ev": "start_failed", "token": TOKEN, "errno": 2, "error": "e", "what": "w"},
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "x", "step"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, each in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(each, (*path, key))


@given(st.data())
def test_an_event_that_passes_is_understood(data: st.DataObject) -> None:
    """One value of it is exchanged for any other, or taken away."""
    event = json.loads(json.dumps(data.draw(st.sampled_from(EXAMPLES))))
    *way, last = data.draw(st.sampled_from([path for path in places(event) if path and path != ("ev",)]))
    holder = event
    for key in way:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[last] = data.draw(VALUES)
    else:
        del holder[last]
    try:
        read = read_event(event)
    except FormError:
        return
    if read is not None and event.get("rank", 0) == 0:
        attempt = Attempt(1, {0: 0})
        attempt.take(0, read)
        assert isinstance(attempt.over, bool)
        if isinstance(read, Sampled):
            sample_of(read)
        if isinstance(read, Checkpoints):
            Saves().report(read)


# -- secrets ------------------------------------------------------------------------------------------


def test_secrets_are_masked_where_events_come_in() -> None:
    processes = [
        {"pid": 1, "name": "p", "state": "S", "threads": 1, "waits_in": "", "kernel_stack": "hf_abcdef"}
    ]
    ranks = {"0": {"stacks": {"1": "File hf_abcdef.py"}, "processes": processes}}
    (event,) = heard({"ev": "diagnosis", "token": TOKEN, "ranks": ranks})
    assert isinstance(event, Diagnosis)
    found = event.ranks[0]
    assert (found.stacks, found.processes[0].kernel_stack) == ({"1": "File *********.py"}, "*********")
