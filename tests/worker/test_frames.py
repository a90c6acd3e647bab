"""Frames arrive as they were sent, whatever the stream does to them; anything else is recognised."""

from __future__ import annotations

import json
import struct

import pytest

from prefect_ft.worker.frames import MAX_FRAME, FrameError, FrameReader, encode

MESSAGES = [
    {"op": "attach", "epoch": 3},
    {"ev": "output", "text": b"half a \xc3, a NUL \x00, no UTF-8 \xff\n".decode("utf-8", "surrogateescape")},
    {},
    {"nested": {"list": [1, None, True, "\u2588\U0001f642"]}},
]


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(size: int) -> None:
    stream = b"".join(map(encode, MESSAGES))
    reader = FrameReader()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [message for piece in pieces for message in reader.feed(piece)] == MESSAGES


def test_bytes_that_are_no_text_come_back_as_they_were() -> None:
    raw = bytes(range(256)) * 3
    (message,) = FrameReader().feed(encode({"text": raw.decode("utf-8", "surrogateescape")}))
    assert message["text"].encode("utf-8", "surrogateescape") == raw


def test_half_a_frame_is_no_message_yet() -> None:
    assert list(FrameReader().feed(encode({"op": "stop"})[:-1])) == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(frame(b"stop"), "not JSON", id="no-json"),
        pytest.param(frame(b"\xff\xfe{}"), "not JSON", id="no-utf-8"),
        pytest.param(frame(b'{"grace_s": NaN}'), "not JSON", id="nan"),
        pytest.param(frame(b'{"grace_s": -Infinity}'), "not JSON", id="infinity"),
        pytest.param(frame(b"[" * 1_000_000), "not JSON", id="too-deep"),
        pytest.param(frame(b"[1]"), "not an object: list", id="a-list"),
        pytest.param(frame(b""), "not JSON", id="empty"),
        pytest.param(struct.pack(">I", MAX_FRAME + 1), "at most 16777216", id="too-long"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", "at most 16777216", id="another-protocol"),
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        list(FrameReader().feed(data))


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(FrameError, match="at most"):
        encode({"text": "x" * MAX_FRAME})


def test_a_reader_takes_no_more_than_its_limit() -> None:
    reader = FrameReader(limit=100)
    with pytest.raises(FrameError, match="at most 100"):
        list(reader.feed(encode({"text": "x" * 100})))
    reader = FrameReader(limit=100)
    reader.limit = 1000
    assert list(reader.feed(encode({"text": "x" * 100}))) == [{"text": "x" * 100}]


def test_a_frame_is_a_length_and_plain_json() -> None:
    data = encode({"op": "leave", "token": [1, 0, 2]})
    assert (data[:4], json.loads(data[4:])) == (b"\0\0\0\x1e", {"op": "leave", "token": [1, 0, 2]})
