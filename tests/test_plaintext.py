"""What a terminal gets of a text from elsewhere obeys nobody: nested, split and broken sequences included."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from growth import is_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_ft.errors import ConfigError
from prefect_ft.plaintext import as_json, as_line, as_lines
from prefect_ft.prefect_edge.reporting.markdown import as_code, as_text
from prefect_ft.report.paint import printable

ESC, CSI, ST, OSC, DCS, APC, BEL = "\x1b", "\x9b", "\x9c", "\x9d", "\x90", "\x9f", "\x07"

pieces = st.sampled_from([
    *(ESC, CSI, ST, OSC, DCS, APC, BEL, "\x1b\\", "\x1b[", "\x1b]"),
    *("\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1b(", "\x1b#"),
    *("31m", "2J", "c", "B", "8", "0;title", "8;;http://a", "[", "]"),
    *("\\", "m", "H", "?25l", ">", " ", "$", "\r", "\n", "\t"),
    *("\x00", "\x08", "\x7f", "\x85", "\x84", "\u202e", "\u2066"),
    *("\u2069", "\u200b", "\u2028", "\ufeff", "\ud800", "\udcff"),
])  # fmt: skip
texts = st.lists(pieces | st.text(max_size=3), max_size=12).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_nothing_remains_but_what_can_be_seen(text: str) -> None:
    assert as_line(text).isprintable()
    assert as_lines(text).replace("\n", "").replace("\t", "").isprintable()
    assert as_line(as_line(text)) == as_line(text)
    assert as_lines(as_lines(text)) == as_lines(text)


@settings(max_examples=100, deadline=None)
@given(text=texts, at=st.integers(min_value=0, max_value=40))
def test_two_halves_of_a_text_make_no_sequence(text: str, at: int) -> None:
    joined = as_lines(text[:at]) + as_lines(text[at:])
    assert as_lines(joined) == joined


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]).filter(str.isprintable)))
def test_what_can_be_seen_stays(text: str) -> None:
    assert (as_line(text), as_lines(f"{text}\n\t{text}")) == (text, f"{text}\n\t{text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("\x1b[1;31mred\x1b[0m", "red", id="colours"),
        pytest.param("\x1b\x1b[31m[31mred", " [31mred", id="a-sequence-within-a-sequence"),
        pytest.param("\x1bca", "a", id="reset"),
        pytest.param("\x1b(Ba\x1b#8", "a", id="character-sets"),
        pytest.param("\x9b31ma\x9b2J", "a", id="in-one-byte"),
        pytest.param("\x1b]0;title\x07a\x1b]8;;http://b\x1b\\c", "ac", id="titles-and-links"),
        pytest.param("\x1bP1;2|x\x1b\\a\x90x\x9c\x1b_x\x9c\x1b^x\x1b\\\x1bXx\x1b\\", "a", id="strings"),
        pytest.param("\x1b]0;no end", "0;no end", id="a-string-without-end"),
        pytest.param("a\u202eb\u2066c", "a b c", id="direction"),
        pytest.param("50%\r100%\r\nb\x08", "50% 100%  b ", id="movements-of-a-teletype"),
    ],
)
def test_sequences_go(text: str, expected: str) -> None:
    assert as_line(text) == expected


def in_utf_16(text: str) -> bytes:
    """Two halves of a character that follow each other are the character, in JSON as in UTF-16."""
    return text.encode("utf-16", "surrogatepass")


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_json_can_be_seen_and_read_back(text: str) -> None:
    for indent in (None, 2):
        shown = as_json({"é": [text]}, indent)
        assert shown.replace("\n", "").isprintable()
        (found,) = json.loads(shown)["é"]
        assert in_utf_16(found) == in_utf_16(text)
    assert '"é"' in as_json("é")


def test_an_error_says_nothing_to_a_terminal() -> None:
    assert str(ConfigError("no\x1b[2J such\x1bc run", file="a\x85b")) == "a b: no such run"


REPEATED = [
    "a",
    *"\x1b\x9b\x9d\x90\x07\\[] ;0m\t\n\r`_*:.w",
    "\x1b[",
    "\x1b]0",
    "\x1b[0;",
    "\x1b(",
    "\x1b ",
    "\x9d0",
    "www.",
    "://",
    "1.",
]


@pytest.mark.parametrize(
    "escape", [as_lines, as_json, as_text, as_code, printable], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("repeated", REPEATED, ids=repr)
def test_a_text_costs_no_more_than_its_length(escape: Callable[[str], str], repeated: str) -> None:
    def work(length: int) -> Callable[[], str]:
        text = repeated * (length // len(repeated))
        return lambda: escape(text)

    assert is_linear(work, 64 << 10)
