"""One log, to the letter: which lines are read and where they stand, in whatever pieces it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from prefect_ft.decide.classify import Catalogue, LogFindings, LogScanner
from prefect_ft.decide.classify import scanner as scanning
from prefect_ft.decide.classify.chains import GENERIC
from prefect_ft.decide.classify.findings import Finding
from prefect_ft.decide.classify.heads import stamp_of
from prefect_ft.decide.classify.tracebacks import DIRECT_CAUSE, MEANWHILE, Raised
from prefect_ft.signatures import Signature

KABOOM = Signature(id="kaboom", failure_class="network", pattern="kaboom")
OZONE = Signature(id="ozone", failure_class="data", pattern=r"ozone \w+ hole")
CLASSES = [
    Signature(id=name, failure_class=name, pattern=f"said-{name}")
    for name in ("hardware", "oom_host", "preempted", "cancelled")
]
ADVICE = Signature(id="advice", failure_class="config", pattern="AdviceError|kaboom-advice", role="advice")
NOISE = Signature(id="noise", failure_class="none", pattern="NoiseError", role="noise")
OWN = Catalogue((ADVICE, NOISE, KABOOM, OZONE, *CLASSES))

HEAD = b"Traceback (most recent call last):\n"
FRAME = b'  File "/a.py", line 3, in f\n'
KEY_ERROR = HEAD + FRAME + b"KeyError: 'x'\n"
QUIET = b"all is well\n"
HELD_BYTES = 1 << 16


def scanner(*pieces: bytes, **how) -> LogScanner:
    reading = LogScanner("a.log", OWN, **how)
    for piece in pieces:
        reading.feed(piece)
    return reading


def read(*pieces: bytes, **how) -> LogFindings:
    return scanner(*pieces, **how).findings()


def places(found: LogFindings) -> list[tuple[str, int, int]]:
    """Rule, line and order of each finding."""
    return [(one.signature.id, one.line, one.order) for one in found.findings]


def lines_of(found: LogFindings) -> list[int]:
    return [one.line for one in found.findings]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """All that is read as a line of its own, but for the tail."""
    seen: list[bytes] = []
    read_line = scanning.read_line

    def noted(raw: bytes):
        seen.append(raw)
        return read_line(raw)

    monkeypatch.setattr(scanning, "read_line", noted)
    monkeypatch.setattr(LogScanner, "_closing", lambda self, *sizes: [])
    return seen


LOG = (
    b"all is well\n"
    b"[rank1]: 2026-01-02 03:04:05 ERROR kaboom one\n"
    b"all is w\xffll\n" + KEY_ERROR + b"done\r\n"
    b"5%\r6%\n"
)
TAIL = (
    "all is well",
    "2026-01-02 03:04:05 ERROR kaboom one",
    "all is w\ufffdll",
    *KEY_ERROR.decode().splitlines(),
    "done",
    "6%",
)
WHOLE = LogFindings(
    file="a.log",
    findings=(
        Finding(
            signature=KABOOM,
            text="2026-01-02 03:04:05 ERROR kaboom one",
            line=2,
            order=1,
            rank="[rank1]:",
            level="E",
            stamp=stamp_of("2026-01-02 03:04:05"),
        ),
        Finding(
            signature=GENERIC,
            text="KeyError: 'x'",
            line=6,
            order=4,
            raised=Raised("KeyError", "'x'", 2, "/a.py", "f", outermost=("/a.py", "f"), has_own=True),
            stamp=stamp_of("2026-01-02 03:04:05"),
        ),
    ),
    tail=TAIL,
    bytes_after=26,
    closing_ranks=("", "[rank1]:", *[""] * (len(TAIL) - 2)),
)


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
def test_all_that_a_log_comes_to_in_whatever_pieces_it_comes(size: int) -> None:
    found = read(*(LOG[start : start + size] for start in range(0, len(LOG), size)))
    assert replace(found, number_of_tail=WHOLE.number_of_tail) == WHOLE
    assert [found.number_of_tail(index) for index in range(len(TAIL))] == [*range(1, 9)]


def test_what_it_has_come_to_may_be_asked_at_any_time() -> None:
    reading = scanner(b"kaboom one\nkab")
    assert lines_of(reading.findings()) == [1]
    assert reading.findings().tail == ("kaboom one", "kab")
    reading.feed(b"oom two\nkaboom three\n")
    assert lines_of(reading.findings()) == [1, 3]


def test_nothing_comes_to_nothing() -> None:
    assert replace(LogScanner().findings(), number_of_tail=None) == LogFindings(file="", number_of_tail=None)


def test_lines_may_be_given_as_text() -> None:
    reading = scanner()
    reading.feed_lines([])
    reading.feed_lines(["two\nin one", "kaboom \udcff"])
    reading.feed_lines(["kaboom two"])
    found = reading.findings()
    assert (lines_of(found), found.tail) == ([2, 3], ("two in one", "kaboom ?", "kaboom two"))


# -- what has not ended -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        pytest.param((b"x" * (HELD_BYTES - 3) + b"kab", b"oom\n"), [1], id="as-much-is-held"),
        pytest.param((b"x" * (HELD_BYTES - 2) + b"kab", b"oom\n"), [], id="and-no-more"),
        pytest.param((b"x" * HELD_BYTES + b"kaboom\rkab", b"oom\n"), [1, 1], id="what-follows-a-bar-is-held"),
        pytest.param((QUIET * 9000 + b"kab", b"oom\n"), [9001], id="an-end-of-line-is-enough"),
        pytest.param((QUIET * 30_000 + b"kaboom\n", b"kaboom two\n"), [30_001, 30_002], id="a-piece-of-many-blocks"),
    ],
)  # fmt: skip
def test_a_line_counts_once_it_has_ended(pieces: tuple[bytes, ...], lines: list[int]) -> None:
    assert lines_of(read(*pieces)) == lines


@pytest.mark.parametrize(
    ("piece", "at_most"),
    [
        pytest.param(QUIET * 800, 20_000, id="lines"),
        pytest.param(b"5%\r" * 3200, 160_000, id="a-bar"),
        pytest.param(b"x" * 9600, 160_000, id="no-end"),
    ],
)
def test_what_is_held_is_bounded(piece: bytes, at_most: int) -> None:
    reading = scanner(*[piece] * 40)
    assert sum(len(held) for held in vars(reading).values() if isinstance(held, bytes)) < at_most


# -- lines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [b"", b"one\ntwo\n", b"5%\r6%\r", b"one\n6%\r"])
@pytest.mark.parametrize(
    ("at", "length", "start", "stop"),
    [
        pytest.param(0, 4000, 0, 4000, id="as-long-as-is-read"),
        pytest.param(0, 4001, 0, 4000, id="longer"),
        pytest.param(3000, 4000, 0, 4000, id="whole-wherever-it-says-so"),
        pytest.param(3000, 4001, 2000, 4001, id="else-from-a-little-before"),
        pytest.param(1999, 6000, 0, 4000, id="from-the-beginning-if-that-is-near"),
        pytest.param(2000, 6000, 1000, 5000, id="if-it-is-not"),
        pytest.param(5000, 5500, 4000, 5500, id="to-the-end"),
        pytest.param(5000, 20_000, 4000, 8000, id="far-from-both"),
    ],
)
def test_of_a_line_what_is_around_the_place_is_read(
    before: bytes, at: int, length: int, start: int, stop: int
) -> None:
    line = b"x" * at + b"kaboom" + b"y" * (length - at - 6)
    (finding,) = read(before + line + b"\nquiet\n").findings
    assert finding.text == line[start:stop].decode()
    assert finding.line == before.count(b"\n") + 1


@pytest.mark.parametrize("before", [b"", b"one\n", b"5%\r"])
def test_what_was_read_of_a_line_is_not_read_again(before: bytes) -> None:
    line = b"kaboom" + b"x" * 5494 + b"kaboom" + b"y" * 494
    found = read(before + line + b"\nkaboom\n")
    assert [one.text.encode() for one in found.findings] == [line[:4000], line[4000:], b"kaboom"]


@pytest.mark.parametrize(
    ("log", "texts"),
    [
        pytest.param(b"a\rb\rkaboom\rc\rd\n", ["kaboom"], id="between-two-returns"),
        pytest.param(b"a\nb\nkaboom\r\nc\r\n", ["kaboom"], id="ended-as-windows-does"),
        pytest.param(b"kaboom\rkaboom two\n", ["kaboom", "kaboom two"], id="two-in-one-line"),
        pytest.param(b"ka\x1b[1mboom\x1b[0m one\nkaboom two\n", ["kaboom one", "kaboom two"], id="coloured"),
        pytest.param(b"\n\n\n kaboom", [" kaboom"], id="empty-ones-and-no-end"),
        pytest.param(b"kaboom-advice\nNoiseError\n", [], id="advice-and-noise"),
    ],
)
def test_which_text_is_read(log: bytes, texts: list[str]) -> None:
    assert [one.text for one in read(log).findings] == texts


def numbered(*, counts: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """The lines of eight findings in eight pieces, and what was counted again for them."""
    pieces = [b"one\ntwo\nkaboom " + bytes([letter]) + b"\nthree\n" for letter in b"abcdefgh"]
    log, asked = b"".join(pieces), []

    def count(start: int, end: int) -> int:
        asked.append((start, end))
        return log.count(b"\n", start, end)

    return lines_of(read(*pieces, count=count if counts else None)), asked


def test_lines_are_numbered_over_all_pieces() -> None:
    assert numbered(counts=False) == ([4 * k + 3 for k in range(8)], [])


def test_where_a_log_can_be_read_again_lines_are_counted_when_they_are_asked_for() -> None:
    size = len(b"one\ntwo\nkaboom a\nthree\n")
    assert numbered(counts=True) == (
        [4 * k + 3 for k in range(8)],
        [(k * size, k * size + size) for k in range(7)],
    )


def test_what_did_not_come_is_passed_over() -> None:
    reading = scanner(b"one\nkaboom a\n", HEAD + FRAME + b"    x()")
    reading.pass_over(100)
    reading.feed(b"KeyError: 'x'\nkaboom b\ntwo\n")
    reading.feed(b"kaboom c\n")
    found = reading.findings()
    assert places(found) == [("kaboom", 2, 1), ("kaboom", 101, 5), ("kaboom", 103, 6)]
    assert found.tail == ("KeyError: 'x'", "kaboom b", "two", "kaboom c")
    assert [found.number_of_tail(index) for index in range(4)] == [100, 101, 102, 103]


@pytest.mark.parametrize(
    ("log", "tail", "first"),
    [
        pytest.param(b"".join(b"%d\n" % number for number in range(30)), [str(n) for n in range(10, 30)], 11, id="20"),
        pytest.param(b"x" * 3000 + b"\n" + b"y" * 2000 + b"\n", ["y" * 2000], 2, id="4000-bytes"),
        pytest.param(b"y" * 5000 + b"\n", ["y" * 4000], 1, id="the-end-of-one-that-is-longer"),
        pytest.param(b"a\n\n  \nb\nX\r\n", ["a", "b", "X"], 1, id="no-empty-ones"),
        pytest.param(b"1%\r2%\r\n3%\r4%\r\r\n", ["2%", "4%"], 1, id="what-is-left-of-a-bar"),
        pytest.param(b"a\nb" + b"\n" * 9000, ["a", "b"], 1, id="above-empty-ones"),
        pytest.param(b"5%\r  \nb\n", ["b"], 2, id="nothing-of-one-that-was-wiped"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 5000])
def test_the_last_lines(log: bytes, tail: list[str], first: int, size: int) -> None:
    found = read(*(log[start : start + size] for start in range(0, len(log), size)))
    assert list(found.tail) == tail
    assert found.number_of_tail(0) == first


# -- lines that repeat ------------------------------------------------------------------------------


@pytest.mark.parametrize("between", [b"", QUIET, QUIET * 3])
def test_of_lines_that_repeat_the_first_eight_are_read_and_the_last_four(
    between: bytes, reads: list[bytes]
) -> None:
    found = read(b"".join(between + b"kaboom %d\n" % number for number in range(300)))
    step = between.count(b"\n") + 1
    kept = (1, 2, 3, 4, 297, 298, 299, 300)
    assert places(found) == [("kaboom", number * step, number) for number in kept]
    assert len(reads) == 12


def test_the_last_of_them_may_not_have_ended() -> None:
    flood = b"".join(b"kaboom %d\n" % number for number in range(1, 31))
    assert places(read(flood[:-1])) == places(read(flood))


def test_of_those_that_say_nothing_no_further_one_is_read(reads: list[bytes]) -> None:
    found = read(b"".join(b"ozone %d\n" % number for number in range(300)))
    assert (places(found), len(reads)) == ([], 8)


def test_the_last_of_them_are_read_in_each_piece(reads: list[bytes]) -> None:
    found = read(*(b"".join(b"kaboom %d\n" % number for number in range(50)) for _ in range(3)))
    assert lines_of(found) == [1, 2, 3, 4, 147, 148, 149, 150]
    assert len(reads) == 8 + 3 * 4


def test_what_is_said_between_them_has_its_place() -> None:
    flood = [b"kaboom %d\n" % number for number in range(40)]
    found = read(b"".join([*flood[:30], b"ozone big hole\n", *flood[30:], b"ozone old hole\n"]))
    assert places(found) == [
        *(("kaboom", number, number) for number in (1, 2, 3, 4)),
        ("ozone", 31, 31),
        *(("kaboom", number, number) for number in (38, 39, 40, 41)),
        ("ozone", 42, 42),
    ]


def test_what_was_read_within_a_traceback_is_read_again() -> None:
    steps = b"".join(b"step %d\n" % number for number in range(20))
    found = read(HEAD + FRAME + steps + b"KeyError: 'x'\n" + b"kaboom\n" + steps + QUIET * 30)
    assert (places(found), found.had_progress) == ([], True)


def test_what_says_where_a_run_is_is_read_each_time() -> None:
    trials = b"".join(b"trial %d: ozone %d\n" % (number, number) for number in range(20))
    found = read(b"trial 1: ozone 1\n" * 20 + b"kaboom\n" + trials + QUIET * 30)
    assert (found.findings, found.had_progress) == ((), True)


def test_an_end_is_read_each_time() -> None:
    found = read(b"Training complete\n" * 10 + b"kaboom\nstep 1\n" + b"Training complete\n")
    assert (places(found), found.completed) == ([], 12)


# -- how a run gets on ------------------------------------------------------------------------------


def steps(count: int) -> bytes:
    return b"".join(b"step %d \xff\n" % number for number in range(count))


@pytest.mark.parametrize(
    ("said", "needed"),
    [(b"kaboom", 2), (b"said-hardware", 5), (b"said-oom_host", 5), (b"said-preempted", 40), (b"said-cancelled", 40)],
)  # fmt: skip
def test_how_many_places_show_that_it_was_no_end(said: bytes, needed: int) -> None:
    few, enough = (read(said + b"\n" + steps(count) + QUIET * 30) for count in (needed - 1, needed))
    assert (len(few.findings), few.had_progress) == (1, needed > 2)
    assert (len(enough.findings), enough.had_progress) == (0, True)


@pytest.mark.parametrize(
    ("after", "had_progress"),
    [
        pytest.param(b"step 1\nstep 1\n", False, id="one-place"),
        pytest.param(b"step 1\rstep 2\n", True, id="a-bar"),
        pytest.param(b"step 1" + b" x" * 3000 + b" step 2\n", True, id="far-apart-in-one-line"),
        pytest.param(b"step 1" + b" x" * 1000 + b" step 2\n", False, id="not-so-far"),
        pytest.param(
            b"x" * 500 + b" step 1\n" + b"x" * 500 + b" step 2\n", True, id="far-from-the-beginning"
        ),
        pytest.param(
            b"".join(b"* " + b"x" * 297 + b" step %d\n" % number for number in (1, 2)), False, id="a-list"
        ),
        pytest.param(
            b"".join(b"* " + b"x" * 298 + b" step %d\n" % number for number in (1, 2)), True, id="not-seen"
        ),
        pytest.param(
            b"".join(b"step 1 " + b"x" * 286 + b" step %d\n" % number for number in (1, 2)), True, id="near"
        ),
        pytest.param(
            b"".join(b"step 1 " + b"x" * 287 + b" step %d\n" % number for number in (1, 2)), False, id="far"
        ),
        pytest.param(b"step 1\nkaboom\nstep 2\n", False, id="from-the-last-finding-on"),
    ],
)
def test_what_shows_that_a_run_gets_on(after: bytes, had_progress: bool) -> None:
    found = read(b"kaboom\n" + after + QUIET * 30)
    assert (found.had_progress, found.findings == ()) == (had_progress, had_progress)


def test_the_last_lines_alone_may_show_it() -> None:
    assert read(steps(2)).had_progress
    assert not read(steps(1)).had_progress


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(HEAD + FRAME + b"[rank1]: kaboom\n" + steps(2), [], id="after-a-finding"),
        pytest.param(HEAD + FRAME + b"[rank1]: kaboom\n" + steps(1), ["kaboom"], id="one-place"),
    ],
)
def test_others_may_get_on_while_one_raises(log: bytes, expected: list[str]) -> None:
    found = read(log + QUIET * 30)
    assert ([one.signature.id for one in found.findings], found.had_progress) == (expected, not expected)


@pytest.mark.parametrize("log", [HEAD + FRAME + steps(3), b"kaboom\nozone step 1\nozone step 2\n"])
def test_what_does_not_show_it(log: bytes) -> None:
    assert not read(log + QUIET * 30).had_progress


@pytest.mark.parametrize(
    ("log", "expected", "completed"),
    [
        pytest.param(b"Training complete\n", [], 1, id="through"),
        pytest.param(b"Training complete\nkaboom\n", ["kaboom"], 1, id="and-then-a-finding"),
        pytest.param(b"kaboom\nTraining complete\n", ["kaboom"], None, id="a-script-s-own-words"),
        pytest.param(b"kaboom\nstep 1\nTraining complete\n", [], 2, id="it-got-on-before"),
        pytest.param(
            b"Training complete\nRestarting worker group\nkaboom\n", ["kaboom"], None, id="a-new-run"
        ),
        pytest.param(b"kaboom\nRestarting worker group\nquiet\n", [], None, id="of-which-nothing-is-known"),
    ],
)
def test_beginnings_and_ends(log: bytes, expected: list[str], completed: int | None) -> None:
    found = read(log)
    assert ([one.signature.id for one in found.findings], found.completed) == (expected, completed)


# -- tracebacks -------------------------------------------------------------------------------------


def ranked(rank: int, lines: bytes) -> list[bytes]:
    return [b"[rank%d]: " % rank + line for line in lines.splitlines(keepends=True)]


def test_each_rank_has_its_own() -> None:
    mixed = b"".join(a + b for a, b in zip(ranked(0, KEY_ERROR), ranked(1, KEY_ERROR), strict=True))
    found = read(mixed + QUIET * 5 + b"kaboom\n")
    assert places(found) == [("python-exception", 5, 5), ("python-exception", 6, 6), ("kaboom", 12, 7)]


def test_outside_of_them_only_what_is_of_interest_is_read() -> None:
    assert places(read(KEY_ERROR + QUIET * 5 + b"kaboom\n")) == [
        ("python-exception", 3, 3),
        ("kaboom", 9, 4),
    ]


@pytest.mark.parametrize(
    ("between", "lines"),
    [
        pytest.param(QUIET * 20, [23], id="so-long-it-is-waited-for"),
        pytest.param(QUIET * 21, [], id="and-no-longer"),
        pytest.param(QUIET * 15 + b"[rank1]: " + FRAME + QUIET * 5, [24], id="from-the-last-line-of-any-on"),
        pytest.param(QUIET * 15 + b"[rank1]: " + FRAME + QUIET * 20, [39], id="as-long-as-before"),
        pytest.param(QUIET * 15 + b"[rank1]: " + FRAME + QUIET * 21, [], id="and-no-longer-either"),
    ],
)
def test_one_that_does_not_end_is_given_up(
    between: bytes, lines: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_QUIET_LINES", 20)
    header, frame, end = ranked(0, KEY_ERROR)
    assert lines_of(read(header + frame + between + end)) == lines


def test_after_one_was_given_up_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_QUIET_LINES", 20)
    header, frame, _ = ranked(0, KEY_ERROR)
    found = read(header + frame + QUIET * 25 + b"kaboom\n" + KEY_ERROR)
    assert places(found) == [("kaboom", 28, 24), ("python-exception", 31, 27)]


@pytest.mark.parametrize(("ranks", "lines"), [(8, [17]), (9, [])])
def test_of_so_many_ranks_they_are_read(
    ranks: int, lines: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_RANKS", 8)
    begun = [b"".join(ranked(rank, HEAD + FRAME)) for rank in range(ranks)]
    assert lines_of(read(*begun, b"[rank0]: KeyError: 'x'\n")) == lines


@pytest.mark.parametrize(
    ("above", "is_fatal"),
    [
        pytest.param((b"Exception ignored in: <f>\n",), False, id="right-above-in-the-first-line"),
        pytest.param((QUIET + b"Exception ignored in: <f>\r\n",), False, id="as-windows-ends-lines"),
        pytest.param((QUIET, b"Exception ignored in: <f>\n", b""), False, id="in-the-piece-before"),
        pytest.param((b"Exception ignored in: \xff\n",), False, id="no-utf-8"),
        pytest.param((b"Exception ignored in: <f>\n\n",), False, id="above-an-empty-line"),
        pytest.param((b"Exception ignored in: <f>\n  \n",), True, id="not-above-one-of-blanks"),
        pytest.param((b"Exception ignored in: <f>\nXX\n",), True, id="nor-above-another"),
        pytest.param((b"Exception ignored in: " + b"x" * 4000 + b"\n",), True, id="nor-far-from-the-end-of-it"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_apart", [False, True])
def test_what_stands_above_one(above: tuple[bytes, ...], is_fatal: bool, is_apart: bool) -> None:
    pieces = (*above, KEY_ERROR) if is_apart else (b"".join(above) + KEY_ERROR,)
    assert (read(*pieces).findings != ()) is is_fatal


def raising(line: bytes, *, function: bytes = b"f") -> bytes:
    return HEAD + FRAME.replace(b"in f", b"in " + function) + line + b"\n"


FIRST = raising(b"OSError: kaboom")
LAST = raising(b"ValueError: x")
WRAPPER = raising(b"RuntimeError: x")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(raising(b"NoiseError: x"), [], id="noise"),
        pytest.param(raising(b"AdviceError: x"), ["AdviceError: x"], id="what-is-raised-is-no-advice"),
        pytest.param(raising(b"OSError: kaboom-advice"), ["OSError: kaboom-advice"], id="but-what-it-is-beside"),
        pytest.param(FIRST + LAST, ["OSError: kaboom", "ValueError: x"], id="two-of-their-own"),
        pytest.param(FIRST + DIRECT_CAUSE.encode() + b":\n" + LAST, ["OSError: kaboom"], id="its-direct-cause"),
        pytest.param(FIRST + MEANWHILE.encode() + b":\n" + LAST, ["ValueError: x"], id="raised-while-it-was-handled"),
        pytest.param(FIRST + MEANWHILE.encode() + b":\n" + WRAPPER, ["OSError: kaboom"], id="or-wrapped"),
        pytest.param(FIRST + b"Original " + WRAPPER, ["RuntimeError: x"], id="the-original-is-what-counts"),
        pytest.param(DIRECT_CAUSE.encode() + b":\n" + LAST, ["ValueError: x"], id="of-a-cause-out-of-sight"),
        pytest.param(
            FIRST + DIRECT_CAUSE.encode() + b":\n" + LAST + DIRECT_CAUSE.encode() + b":\n" + WRAPPER,
            ["OSError: kaboom"],
            id="a-chain-of-three",
        ),
        pytest.param(
            FIRST + MEANWHILE.encode() + b":\n" + LAST + MEANWHILE.encode() + b":\n" + WRAPPER,
            ["RuntimeError: x"],
            id="of-which-the-first-was-left-behind",
        ),
        pytest.param(
            FIRST + b"[rank1]: " + DIRECT_CAUSE.encode() + b":\n" + b"".join(ranked(1, LAST)),
            ["OSError: kaboom", "ValueError: x"],
            id="each-rank-has-its-own-chain",
        ),
    ],
)  # fmt: skip
def test_what_is_kept_of_exceptions(log: bytes, expected: list[str]) -> None:
    assert [one.text for one in read(log).findings] == expected


# -- when -------------------------------------------------------------------------------------------

WHEN, LATER = b"2026-01-02 03:04:05", b"2026-01-02 09:00:00"


@pytest.mark.parametrize(
    ("log", "stamp"),
    [
        pytest.param(b"kaboom\n", None, id="not-said"),
        pytest.param(WHEN + b" kaboom\n" + LATER + b" x\n", WHEN, id="in-its-line"),
        pytest.param(LATER + b" x\n" + WHEN + b" kaboom\n", WHEN, id="rather-than-before"),
        pytest.param(WHEN + b" a\nb\nkaboom\n" + LATER + b" x\n", WHEN, id="before-it"),
        pytest.param(LATER + b" a\n" + WHEN + b" b\nkaboom\n", WHEN, id="last-before-it"),
        pytest.param(b"kaboom" + b" " * 375 + WHEN + b" x\n", WHEN, id="within-four-hundred"),
        pytest.param(b"kaboom" + b" " * 376 + WHEN + b" x\n", None, id="not-behind"),
        pytest.param(b"kaboom" + b" " * 500 + b"\n" + WHEN + b" x\n", None, id="nor-in-the-next-line"),
        pytest.param(WHEN + b"\n" + b"x" * 4075 + b"\nkaboom\n", WHEN, id="within-four-thousand-before"),
        pytest.param(WHEN + b"\n" + b"x" * 4076 + b"\nkaboom\n", None, id="not-before-that"),
        pytest.param(WHEN + b" \xff kaboom\n", WHEN, id="no-utf-8"),
        pytest.param(WHEN + b" \xff\nkaboom\n", WHEN, id="nor-before-it"),
        pytest.param(b"kaboom " + WHEN, WHEN, id="without-an-end"),
    ],
)
def test_when_a_finding_was_written(log: bytes, stamp: bytes | None) -> None:
    (finding,) = read(log).findings
    assert finding.stamp == (None if stamp is None else stamp_of(stamp.decode()))


def test_of_a_rule_only_the_first_ones_are_dated() -> None:
    found = read(b"".join(WHEN + b" kaboom " + bytes([letter]) + b"\n" for letter in b"abcdef"))
    assert [one.stamp is not None for one in found.findings] == [True] * 4 + [False] * 2


def test_a_time_once_seen_holds_until_another_is() -> None:
    found = read(WHEN + b" kaboom\n" + b"x" * 5000 + b"\n", b"kaboom b\n")
    assert [one.stamp for one in found.findings] == [stamp_of(WHEN.decode())] * 2
