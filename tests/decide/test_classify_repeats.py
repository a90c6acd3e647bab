"""Lines that repeat but for their numbers: read a few times, then passed over, with the same answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_ft.decide.classify import LogFindings, LogScanner, builtin_catalogue, judge, repeats
from prefect_ft.decide.classify.repeats import Repeats
from prefect_ft.signatures import Signature

LOGS = Path(__file__).with_name("logs")


def scanned(data: bytes) -> LogFindings:
    scanner = LogScanner()
    for at in range(0, len(data), 5000):
        scanner.feed(data[at : at + 5000])
    return scanner.findings()


def learnt(line: str, rule: str) -> Repeats:
    known = Repeats(builtin_catalogue())
    for number in range(1000, 1020):
        known.note((line % number).encode(), rule)
    return known


@pytest.mark.parametrize(
    ("line", "other", "rule"),
    [
        pytest.param("Broken pipe on fd %d", "Broken pipe on fd 7", "net-broken-pipe", id="any-number"),
        pytest.param("shard %d skipped", "shard 2 skipped", "", id="that-says-nothing"),
        pytest.param("shard %d skipped", "shards 2 skipped", None, id="not-another-word"),
        pytest.param("[Errno 28] fd %d", "[Errno 28] fd 4711", "os-no-space", id="the-same-code"),
        pytest.param("[Errno 28] fd %d", "[Errno 2] fd 4711", None, id="not-another-code"),
    ],
)
def test_a_line_is_known_by_its_form(line: str, other: str, rule: str | None) -> None:
    assert learnt(line, "os-no-space" if rule is None else rule).rule_of(other.encode()) == rule


def test_a_form_that_comes_to_different_things_is_read_each_time() -> None:
    known = Repeats(builtin_catalogue())
    for number in range(20):
        known.note(b"fd %d" % number, ("one", "other")[number % 2])
    assert known.rule_of(b"fd 4") is None


CODED = Signature(id="coded", failure_class="config", pattern="code 28")


def known(*lines: bytes, rule: str = "x") -> Repeats:
    """What is known after these lines, all of the same rule."""
    repeats = Repeats([CODED])
    for line in lines:
        repeats.note(line, rule)
    return repeats


@pytest.mark.parametrize(
    ("line", "times"),
    [
        pytest.param(b"fd %d", 8, id="plain"),
        pytest.param(b"code 28 of %d", 16, id="with-a-code"),
        pytest.param(b"x" * 998 + b"%02d", 8, id="as-long-as-is-kept"),
        pytest.param(b"\xff fd %d", 8, id="no-utf-8"),
        pytest.param(b"\xff code 28 of %d", 16, id="with-a-code-and-no-utf-8"),
    ],
)
def test_how_often_a_line_is_read(line: bytes, times: int) -> None:
    said = [line % 7] * times
    assert known(*said[1:]).rule_of(said[0]) is None
    assert known(*said).rule_of(said[0]) == "x"


def test_a_longer_line_is_read_each_time() -> None:
    assert known(*[b"x" * 1001] * 20).rule_of(b"x" * 1001) is None


def test_each_code_has_its_own_rule() -> None:
    repeats = known(*[b"code 28 of 4711"] * 16)
    for _ in range(8):
        repeats.note(b"code 5 of 4712", "other")
    said = [b"code %d of 9999" % code for code in (28, 5, 7)]
    assert [repeats.rule_of(line) for line in said] == ["x", "other", None]


def test_a_short_number_beside_a_code_tells_lines_apart() -> None:
    assert known(*[b"code 28 of 7"] * 16).rule_of(b"code 28 of 8") is None


@pytest.mark.parametrize(("others", "rule"), [(1023, "x"), (1024, None)])
def test_of_more_forms_none_is_remembered(others: int, rule: str | None) -> None:
    forms = [
        "".join(letters).encode() for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=3)
    ]
    assert known(*[b"fd 7"] * 8, *forms[:others]).rule_of(b"fd 7") == rule


def watchdog(number: int) -> str:
    return f"[rank{number % 8}]:[E ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: {number}"


def assertion(number: int) -> str:
    return f"Loss.cu:240: block: [{number},0,0] Assertion `t >= 0 && t < n_classes` failed."


def mixed(number: int) -> str:
    return (f"Broken pipe {number}", f"step {number} loss {number / 7:.3f}", watchdog(number))[number % 3]


@pytest.mark.parametrize("line", [watchdog, assertion, mixed])
def test_the_answer_is_that_of_reading_every_line(
    line: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = "".join(f"{line(number)}\n" for number in range(400)).encode()
    passed_over = scanned(data)
    monkeypatch.setattr(repeats, "_READ_FIRST", 1000)
    read = scanned(data)
    assert passed_over.findings == read.findings
    assert judge([passed_over], exit_code=1) == judge([read], exit_code=1)


IN_TURN = 3
"""Of the logs the ordinary run takes every third."""


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(log, id=log.stem, marks=() if number % IN_TURN == 0 else pytest.mark.long)
        for number, log in enumerate(sorted(LOGS.glob("*.log")))
    ],
)
def test_so_it_is_for_logs_that_repeat_as_a_whole(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = log.read_bytes() * 12
    passed_over = judge([scanned(data)], exit_code=1)
    monkeypatch.setattr(repeats, "_READ_FIRST", 10**6)
    assert passed_over == judge([scanned(data)], exit_code=1)


def test_a_line_with_which_programs_begin_is_read_each_time() -> None:
    failed = ["Traceback (most recent call last):", '  File "a.py", line 7, in <module>', "KeyError: 'a'"]
    run = ["GPU available: True (cuda), used: True", *failed]
    log = "\n".join([*run * 12, run[0], "all is well", ""]).encode()
    assert judge([scanned(log)]).failure_class == "none"
