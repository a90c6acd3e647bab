"""Frames of a web socket, byte by byte: what a process says, and what it is told."""

from __future__ import annotations

import struct

import pytest

from prefect_ft.backends.kubernetes.websocket_frames import ProcessFrames


def frame(payload: bytes, opcode: int = 2, *, is_last: bool = True) -> bytes:
    """A server's frame: not masked."""
    first = (0x80 if is_last else 0) | opcode
    if len(payload) < 126:
        return bytes([first, len(payload)]) + payload
    if len(payload) < 1 << 16:
        return bytes([first, 126]) + struct.pack(">H", len(payload)) + payload
    return bytes([first, 127]) + struct.pack(">Q", len(payload)) + payload


def unmasked(sent: bytes) -> tuple[int, bytes]:
    """The opcode and content of a client's one frame."""
    length, start = sent[1] & 0x7F, 2
    assert sent[1] & 0x80, "a client has to mask"
    if length >= 126:
        form = ">H" if length == 126 else ">Q"
        (length,) = struct.unpack_from(form, sent, 2)
        start += struct.calcsize(form)
    mask, masked = sent[start : start + 4], sent[start + 4 :]
    assert len(masked) == length
    return sent[0], bytes(byte ^ mask[index % 4] for index, byte in enumerate(masked))


LENGTHS = [1, 124, 125, 126, 1 << 12, (1 << 16) - 2, (1 << 16) - 1, 1 << 17]


@pytest.mark.parametrize("length", LENGTHS)
def test_output_of_every_length(length: int) -> None:
    text = bytes(range(256)) * (length // 256 + 1)
    assert ProcessFrames().unwrapped(bytearray(frame(b"\x01" + text[:length]))) == text[:length]


@pytest.mark.parametrize("length", LENGTHS)
def test_input_of_every_length(length: int) -> None:
    text = (bytes(range(256)) * (length // 256 + 1))[:length]
    assert unmasked(ProcessFrames().wrapped(text)) == (0x82, b"\x00" + text)


def test_no_input_is_no_frame() -> None:
    assert ProcessFrames().wrapped(b"") == b""


def test_output_comes_in_whatever_pieces() -> None:
    frames, received, output = ProcessFrames(), bytearray(), b""
    for byte in frame(b"\x01one ") + frame(b"\x01" + b"x" * 200) + frame(b"\x01 end"):
        received.append(byte)
        output += frames.unwrapped(received)
    assert output == b"one " + b"x" * 200 + b" end"
    assert not frames.has_ended


@pytest.mark.parametrize(
    ("received", "expected", "has_ended"),
    [
        pytest.param(frame(b"\x01a") + frame(b"\x01b"), b"ab", False, id="two-at-once"),
        pytest.param(frame(b"\x01a") + frame(b"\x02oops"), b"a", False, id="errors-are-no-output"),
        pytest.param(
            frame(b"\x01") + frame(b"\x03") + frame(b""), b"", False, id="channels-are-opened-empty"
        ),
        pytest.param(
            frame(b"\x01a") + frame(b'\x03{"status":"Success"}'), b"a", True, id="its-status-is-the-end"
        ),
        pytest.param(frame(b"\x01a") + frame(b"\x03\xe8", 8), b"a", True, id="close-is-the-end"),
        pytest.param(frame(b"\x01a", is_last=False) + frame(b"b", 0), b"ab", False, id="in-fragments"),
    ],
)
def test_what_a_server_sends(received: bytes, expected: bytes, has_ended: bool) -> None:
    frames = ProcessFrames()
    assert frames.unwrapped(bytearray(received)) == expected
    assert frames.has_ended is has_ended


def test_how_a_process_has_ended_is_kept_for_who_asks() -> None:
    frames = ProcessFrames()
    frames.unwrapped(bytearray(frame(b"\x03") + frame(b'\x03{"status":"Failure"}')))
    assert frames.status == b'{"status":"Failure"}'


def test_a_ping_is_answered_before_what_else_there_is_to_say() -> None:
    frames = ProcessFrames()
    assert frames.unwrapped(bytearray(frame(b"there?", 9))) == b""
    sent = frames.wrapped(b"in")
    length = 2 + 4 + len(b"there?")
    assert unmasked(sent[:length]) == (0x8A, b"there?")
    assert unmasked(sent[length:]) == (0x82, b"\x00in")
    assert frames.wrapped(b"") == b""
