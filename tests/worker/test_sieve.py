"""What is chosen of a rank's output: all that the classifier names, at its place, however much there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from growth import is_linear

from prefect_ft.decide.classify import LogScanner, builtin_catalogue, judge, signs_of
from prefect_ft.decide.classify.scanner import ENDINGS, FIRST_LINES, RESTARTS
from prefect_ft.model import Verdict
from prefect_ft.signatures import read_entry
from prefect_ft.worker.sieve import _SIGNS, BEFORE_BYTES, END_BYTES, FIRST_BYTES, LAST_BYTES, Part, Sieve

LOGS = sorted((Path(__file__).parents[1] / "decide" / "logs").glob("*.log"))
QUIET = b"".join(b"all is well, says number %d\n" % number for number in range(10_000))
STEPS = b"".join(b"step %d loss 0.%d\n" % (number, number) for number in range(10_000))


def sifted(log: bytes, size: int = 1 << 18, signs: tuple[str, ...] = ()) -> list[Part]:
    """The parts; each stands where it is said to stand."""
    sieve = Sieve(signs)
    for start in range(0, len(log), size):
        sieve.take(start, log[start : start + size])
    parts = sieve.parts()
    for part in parts:
        assert log[part.offset :].startswith(part.data)
        assert part.line == log.count(b"\n", 0, part.offset) + 1
    assert (sieve.offset, sieve.lines) == (len(log), log.count(b"\n"))
    assert sum(len(part.data) for part in parts) <= FIRST_BYTES + LAST_BYTES + END_BYTES
    return parts


def text(parts: list[Part]) -> bytes:
    return b"".join(part.data for part in parts)


def verdict(log: bytes, exit_code: int | None = 1) -> Verdict:
    scanner = LogScanner("log")
    scanner.feed(log)
    return judge([scanner.findings()], exit_code=exit_code)


def verdict_of_parts(log: bytes, exit_code: int | None = 1, **how: int) -> Verdict:
    scanner = LogScanner("log")
    for part in sifted(log, **how):
        scanner.pass_over(part.line)
        scanner.feed(part.data)
    return judge([scanner.findings()], exit_code=exit_code)


IN_TURN = 3
"""Of the logs the ordinary run takes every third."""

SOME_LOGS = [
    pytest.param(path, id=path.stem, marks=() if number % IN_TURN == 0 else pytest.mark.long)
    for number, path in enumerate(LOGS)
]


@pytest.mark.parametrize("path", SOME_LOGS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"", b"", id="alone"),
        pytest.param(QUIET, b"", id="at-the-end", marks=pytest.mark.long),
        pytest.param(STEPS, QUIET, id="in-the-middle"),
        pytest.param(QUIET, STEPS, id="followed-by-progress", marks=pytest.mark.long),
    ],
)
def test_the_root_is_that_of_the_whole_log(path: Path, before: bytes, after: bytes) -> None:
    log = before + path.read_bytes() + after
    whole, chosen = verdict(log), verdict_of_parts(log)
    assert (chosen.failure_class, chosen.evidence, chosen.signature) == (
        whole.failure_class,
        whole.evidence,
        whole.signature,
    )


def test_it_is_known_that_a_run_got_on_after_an_error_long_ago() -> None:
    log = QUIET + b"CUDA out of memory\n" + QUIET[:9000] + STEPS[:900] + QUIET
    assert verdict(log, None).failure_class == "none"
    assert verdict_of_parts(log, None).failure_class == "none"


def test_a_traceback_is_whole_whatever_stands_in_it() -> None:
    frames = b'  File "a.py", line 3, in f\n' + b"    x()\n" * 9
    log = QUIET + b"Traceback (most recent call last):\n" + frames + b"lib.Odd: so it goes\n" + QUIET
    assert verdict_of_parts(log).evidence == verdict(log).evidence
    assert verdict(log).failure_class == "user_code"


@pytest.mark.parametrize("path", SOME_LOGS)
def test_it_does_not_matter_in_what_pieces_output_comes(path: Path) -> None:
    log = STEPS + path.read_bytes() + QUIET
    assert verdict_of_parts(log, size=999).evidence == verdict(log).evidence


def test_every_signature_that_says_why_is_of_interest() -> None:
    """A line without anything around it, far from the end; several are far from each other in one log."""
    telling = [each for each in builtin_catalogue() if each.role in ("root", "cascade")]
    lost = []
    for start in range(0, len(telling), TOGETHER):
        some = telling[start : start + TOGETHER]
        kept = text(
            sifted(_far(("\n" + QUIET[: 2 * BEFORE_BYTES].decode()).join(each.example for each in some)))
        )
        lost += [each.id for each in some if each.example.encode() not in kept]
    assert lost == []


@pytest.mark.parametrize("said", [*RESTARTS, *ENDINGS, *FIRST_LINES])
def test_so_is_a_new_start_and_an_end(said: str) -> None:
    assert said.encode() in text(sifted(_far(re.sub("^raining", "Training", said))))


TOGETHER = 24
"""Lines of interest of which each is kept with its context."""


def _far(line: str) -> bytes:
    """More before and behind it than is kept for its place's sake alone."""
    return QUIET[: 2 * BEFORE_BYTES] + line.encode() + b"\n" + QUIET[: 2 * END_BYTES]


def test_of_a_log_without_errors_the_end_is_chosen() -> None:
    assert text(sifted(QUIET)) == QUIET[-END_BYTES:]


def test_first_and_last_are_kept_of_a_log_of_errors() -> None:
    log = b"".join(b"error %d: no %s\n" % (number, b"x" * (number % 50)) for number in range(50_000))
    chosen = text(sifted(log))
    assert b"error 0:" in chosen
    assert b"error 49999:" in chosen


def test_what_repeats_leaves_room_for_what_is_new() -> None:
    noise = b"".join(b"warning: %d retries failed so far\n" % number for number in range(20_000))
    assert b"a new fault" in text(sifted(noise + b"a new fault\n" + noise + noise))


def test_a_line_of_megabytes_gives_what_is_around_its_errors() -> None:
    log = b"x" * 3_000_000 + b" CUDA out of memory " + b"y" * 3_000_000 + b"\n" + QUIET
    chosen = text(sifted(log))
    assert b"CUDA out of memory" in chosen
    assert len(chosen) < END_BYTES + 20_000


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        pytest.param(r"licence server \S+ says NO", "licence server lic-2 says NO", id="a-text"),
        pytest.param("(?i)Seats: none", "SEATS: NONE", id="in-any-case"),
        pytest.param("grün|gelb", "alles gelb", id="one-of-two"),
        pytest.param("Grün", "alles Grün", id="not-ascii"),
    ],
)
def test_lines_of_own_signatures_are_of_interest(pattern: str, line: str) -> None:
    own = read_entry({"id": "own", "class": "config", "pattern": pattern})
    assert line.encode() not in text(sifted(_far(line)))
    assert line.encode() in text(sifted(_far(line), signs=signs_of([own])))


def test_what_was_lost_or_passed_by_is_no_part_and_counts_as_far_as_it_is_known() -> None:
    sieve = Sieve()
    sieve.take(0, b"error one\n")
    sieve.take(100, b"error two\n")
    sieve.skip(110, b"error three\n" * 3)
    sieve.take(146, b"error four\n")
    assert sieve.parts() == [
        Part(0, 1, b"error one\n"),
        Part(100, 2, b"error two\n"),
        Part(146, 6, b"error four\n"),
    ]


def test_words_are_plain_text() -> None:
    """They stand in no expression of their own, so that none can be slow."""
    assert text(sifted(_far("a(b"), signs=("a(b",))).count(b"a(b") == 1
    assert re.search(rb"a\(b", text(sifted(_far("A(B"), signs=("a(b",)))) is None


# -- what it costs ----------------------------------------------------------------------------------

REPEATED = [
    *(b"error", b"error ", b"error\n", b"error\r", b"err", b"e", b" ", b"\n"),
    *(b"\r", b"\r\n", b"step 1", b"step 1\n", b"step"),
    *(b"1/1 [1:1", b"1/", b"step :=#/", b"loss" + b" " * 12, b"a: error step 1\n"),
    *(b"\x00", b"\xff", b"E", b"error 1\nstep 1\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    "piece_bytes",
    [pytest.param(1 << 20, id="at-once", marks=pytest.mark.long), pytest.param(4096, id="in-pieces")],
)
@pytest.mark.parametrize("repeated", [*REPEATED, *(sign.encode() for sign in _SIGNS.split("|"))], ids=repr)
def test_what_comes_costs_no_more_than_its_length(repeated: bytes, piece_bytes: int) -> None:
    def work(length: int) -> Callable[[], None]:
        data = (repeated * (length // len(repeated) + 1))[:length]

        def sift() -> None:
            sieve = Sieve(("own sign",))
            for start in range(0, length, piece_bytes):
                sieve.take(start, data[start : start + piece_bytes])
            sieve.parts()

        return sift

    assert is_linear(work, 256 << 10)
