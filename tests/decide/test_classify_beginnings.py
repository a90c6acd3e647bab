"""Which run is judged in a file to which several have appended."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import LogScanner, judge
from prefect_ft.decide.classify.beginnings import Beginning
from prefect_ft.decide.classify.scanner import PRINTED_LATE

BANNER = [
    "/env/sklearn/utils/validation.py:37: distutils Version classes are deprecated",
    "  LARGE_SPARSE_SUPPORTED = LooseVersion(scipy_version) >= '0.14.0'",
    "[2023-03-06 19:38:04] loading the configuration of model 7",
    "[2023-03-06 19:38:05] device: 1, driver API version: 11.7",
    "[2023-03-06 19:38:06] numba is used where it helps",
]
AGAIN = [
    line.replace("2023-03-06 19:3", "2023-04-11 08:0").replace("device: 1", "device: 3") for line in BANNER
]
SHOWN = [
    line
    for name in ("numba", "numpy")
    for line in (f"/env/{name}.py:3: UserWarning: old", f"  import {name}")
]
FAILED = ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "KeyError: 'a'"]
CUT_OFF = ["Traceback (most recent call last):", '  File "train.py", line 8, in <module>', "    work()"]
MUCH = ["words of a run"] * 200
BEGUN = "2026-02-25 03:04:05 - INFO - Job started"
"""As in https://github.com/MadeshRavichandran/mlops-batch-job."""
OTHER = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "ValueError: b"]


def rule(lines: list[str], exit_code: int | None = None, size: int = 1 << 20) -> tuple[str, int | None]:
    reading, log = LogScanner("job.log"), "".join(f"{line}\n" for line in lines).encode()
    for start in range(0, len(log), size):
        reading.feed(log[start : start + size])
    verdict = judge([reading.findings()], exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


@pytest.mark.parametrize("size", [1, 97, 1 << 20])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([*BANNER, *FAILED], ("user_code", 8), id="one-attempt"),
        pytest.param([*BANNER, *FAILED, *AGAIN], ("none", None), id="a-second-one-has-begun"),
        pytest.param([*BANNER, *FAILED, *AGAIN, *OTHER], ("user_code", 16), id="a-second-one-has-failed"),
        pytest.param([*BANNER, *FAILED, *AGAIN[:3]], ("user_code", 8), id="two-of-its-lines-are-not-enough"),
        pytest.param([*BANNER, *FAILED, *reversed(AGAIN)], ("user_code", 8), id="in-another-order"),
        pytest.param(
            [*BANNER, *FAILED, *(line for each in AGAIN for line in (each, "x" * 9000))],
            ("user_code", 8),
            id="far-apart",
        ),
        pytest.param(
            [*BANNER[:3], *FAILED, *AGAIN], ("user_code", 6), id="a-beginning-too-short-to-be-known"
        ),
        pytest.param([*FAILED, *BANNER], ("user_code", 3), id="no-beginning"),
        pytest.param(
            [BEGUN, *FAILED, "other words", BEGUN.replace("03", "04"), "well done"],
            ("none", None),
            id="a-dated-line-that-says-so",
        ),
        pytest.param(
            [BEGUN[20:], *FAILED, "other words", BEGUN[20:], "well done"],
            ("user_code", 4),
            id="a-line-without-a-date-that-says-so",
        ),
        pytest.param(
            ["a program's name", BEGUN, *FAILED, "other words", BEGUN, "well done"],
            ("user_code", 5),
            id="a-later-line-that-says-so",
        ),
        pytest.param(
            [BEGUN, BEGUN, *FAILED, "other words", BEGUN, "well done"],
            ("user_code", 5),
            id="a-line-of-several-processes-that-says-so",
        ),
        pytest.param(
            [BEGUN, BEGUN, "loading the model now", *FAILED, "other words", "loading the model now"],
            ("user_code", 6),
            id="another-line-below-those-of-several-processes",
        ),
        pytest.param(
            [*(line for each in BANNER for line in (each, each)), *FAILED, *AGAIN],
            ("user_code", 13),
            id="of-two-processes",
        ),
        pytest.param([*BANNER, *AGAIN, *FAILED, *BANNER], ("none", None), id="and-once-more"),
        pytest.param(
            [f"\r  0%|   | 0/100 [00:00<?, ?it/s]\r{line}" for line in (*BANNER, *FAILED, *AGAIN)],
            ("none", None),
            id="behind-bars",
        ),
        pytest.param(
            [
                each
                for line in (*BANNER, *FAILED, *AGAIN)
                for each in ("[rank9]: I0102 prefetching data", line)
            ],
            ("none", None),
            id="beside-another-rank",
        ),
        pytest.param(
            ["KeyError: 'b'", "worker group: Restarting worker group", *BANNER, *FAILED, *AGAIN],
            ("none", None),
            id="after-a-start-that-a-launcher-tells-of",
        ),
        pytest.param(
            ["KeyError: 'b'", f"{PRINTED_LATE} to be 1", *BANNER, *FAILED, *AGAIN, *MUCH],
            ("none", None),
            id="after-a-launchers-line-that-may-be-late",
        ),
        pytest.param(
            [f"\r  0%|   | 0/100 [00:00<?, ?it/s]\r{line}" for line in (*BANNER, *FAILED, *CUT_OFF, *AGAIN)],
            ("none", None),
            id="behind-bars-while-a-traceback-is-read",
        ),
        pytest.param(
            [
                f"2026-01-02T03:04:05.{at:06d}Z {line}"
                for at, line in enumerate((*SHOWN, *BANNER[2:], *FAILED, *BANNER[2:]))
            ],
            ("none", None),
            id="behind-times-with-code-of-warnings",
        ),
    ],
)
def test_what_was_before_the_program_started_again_is_of_an_earlier_attempt(
    lines: list[str], expected: tuple[str, int | None], size: int
) -> None:
    """As in https://github.com/SMATousi/graph-vls and many others' nohup.out."""
    assert rule(lines, size=size) == expected


FOLLOWS = (
    "[rank1]:[W410 16:32:58 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=1): Connection reset"
)


@pytest.mark.parametrize(
    ("lines", "exit_code", "expected"),
    [
        pytest.param(
            [*BANNER, *FAILED, *AGAIN, FOLLOWS], None, ("user_code", 8), id="which-then-lost-the-first"
        ),
        pytest.param([*BANNER, *FAILED, *AGAIN], 1, ("user_code", 8), id="and-the-job-has-failed"),
        pytest.param(
            [*BANNER, *FAILED, *AGAIN, "step 1", "step 2", FOLLOWS],
            None,
            ("network", 16),
            id="unless-it-got-on",
        ),
        pytest.param(
            [*BANNER, *FAILED, *AGAIN, "step 1", "step 2"], 0, ("none", None), id="and-all-ended-well"
        ),
    ],
)
@pytest.mark.parametrize("is_warned", [False, True])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_another_process_may_start_while_the_first_one_fails(
    lines: list[str], exit_code: int | None, expected: tuple[str, int | None], size: int, is_warned: bool
) -> None:
    warning = BANNER[0].replace("distutils", "DeprecationWarning: distutils")
    lines = [warning if is_warned and line == BANNER[0] else line for line in lines]
    assert rule(lines, exit_code, size) == expected


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param("  indented code of a warning", 0, id="code"),
        pytest.param("-------------------------", 0, id="a-separator"),
        pytest.param("epoch 3 of the training", 0, id="a-place"),
        pytest.param("nohup: ignoring input", 0, id="nohup"),
        pytest.param("loading the data set 3", 1, id="a-message"),
    ],
)
def test_lines_that_mark_a_start(text: str, keys: int) -> None:
    beginning = Beginning()
    beginning.take(f"{text}\nboom\nloading the model now\n".encode(), 100)
    beginning.close(100 + len(text) + 1)
    assert len(beginning.keys) == keys


def test_only_the_first_lines_are_looked_at() -> None:
    beginning = Beginning()
    lines = [f"line {'abcdefghijklmnopqrstuvwxyz'[number]} of the beginning" for number in range(20)]
    beginning.take("".join(f"{line}\n" for line in lines).encode(), 0)
    beginning.close(10_000)
    assert len(beginning.keys) == 12
    late = Beginning()
    late.take(b"\n" * 40 + b"a line of the beginning\n", 0)
    late.close(10_000)
    assert late.keys == []
    last = Beginning()
    last.take(b"\n" * 39, 0)
    last.take(b"a line of the beginning\nanother one of the beginning\n", 39)
    last.close(10_000)
    last.take(b"a later line of the log\n", 10_000)
    last.close(20_000)
    assert len(last.keys) == 1


KEYS = [f"line {letter} of the beginning" for letter in "abcdefg"]


def beginning() -> Beginning:
    found = Beginning()
    found.take("".join(f"{key}\n" for key in KEYS).encode(), 0)
    found.close(1000)
    return found


def starts(lines: str, apart: int = 100) -> list[bool]:
    """Feed lines by letter, `apart` bytes from each other; return for each whether it completes another start."""
    found = beginning()
    return [found.see("abcdefg".index(line), 50_000 + apart * at) for at, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        pytest.param("abc", [2], id="the-first-three"),
        pytest.param("aabbc", [4], id="each-twice"),
        pytest.param("ace", [2], id="some-of-them"),
        pytest.param("cde", [2], id="from-the-third-on"),
        pytest.param("def", [], id="from-the-fourth-on"),
        pytest.param("cba", [], id="backwards"),
        pytest.param("abababa", [], id="two-of-them-again-and-again"),
        pytest.param("abdabc", [2, 5], id="twice"),
        pytest.param("bade", [3], id="after-one-that-stands-alone"),
        pytest.param("gabc", [3], id="after-a-late-one"),
    ],
)
def test_three_of_the_first_lines_in_their_order_are_another_start(lines: str, at: list[int]) -> None:
    assert [number for number, is_start in enumerate(starts(lines)) if is_start] == at


@pytest.mark.parametrize(("apart", "is_start"), [(8000, True), (8001, False)])
def test_they_stand_close_to_each_other(apart: int, is_start: bool) -> None:
    assert starts("abc", apart)[-1] is is_start


def test_what_was_found_before_a_failure_is_not_of_the_start_after_it() -> None:
    found = beginning()
    found.see(0, 10)
    found.see(1, 20)
    found.clear()
    assert not found.see(2, 30)
    assert not found.see(3, 40)
    assert found.see(4, 50)


def test_where_first_lines_stand_again() -> None:
    block = (
        b"other\nline b of the beginning, and more\n line c of the beginning\nx\rline c of the beginning\n"
    )
    assert list(beginning().occurrences(block, 0)) == [(6, 1), (block.index(b"\rline c") + 1, 2)]
    assert list(beginning().occurrences(block, 20)) == [(block.index(b"\rline c") + 1, 2)]
    assert not beginning().occurrences(b"nothing\n", 0)


def test_a_first_line_may_come_in_pieces_and_be_long() -> None:
    found = Beginning()
    found.take(b"a line that has not end", 0)
    found.take(b"line a of the beginning" + b"x" * 500 + b"\r\nline b of the beginning\n", 0)
    found.close(1000)
    assert [len(key) for key in found.keys] == [160, 23]


@pytest.mark.parametrize("first", ["Namespace(lr=0.1, epochs=3)", "nohup: ignoring input"])
@pytest.mark.parametrize(
    "failed", [FAILED, [*FAILED[:2], "bdb.BdbQuit", ""]], ids=["exception", "without a message"]
)
def test_what_a_program_prints_first_marks_another_start(first: str, failed: list[str]) -> None:
    assert rule([*failed, first, "training"])[0] == "none"
    assert rule([first, *failed])[0] != "none"
    assert rule([*failed, first, *OTHER])[1] == len(failed) + 1 + len(OTHER)
    assert rule([*failed, first, "training"], exit_code=1)[0] == rule(failed)[0]


@pytest.mark.parametrize(("minute", "failure_class"), [(4, "user_code"), (5, "none")])
def test_a_first_line_that_comes_soon_again_is_of_another_run_if_a_minute_has_passed(
    minute: int, failure_class: str
) -> None:
    """A log to which runs were appended, in Navyatr13/Molecular_Generation."""
    first = "2026-01-02 03:{:02}:06,007 - INFO - VAE Training Started"
    begun = [first.format(4), "2026-01-02 03:04:06,008 - INFO - Loading", first.format(minute)]
    assert rule([*begun, *FAILED, first.format(7), "loaded"])[0] == failure_class


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ("INFO - Attempting to launch with: a.fbx (headless=False)", "INFO - Attempting to launch with: b.ttt"),
        ("nav - INFO - Initializing Simulation...", "nav - INFO - Initializing Simulation..."),
    ],
)  # fmt: skip
def test_a_program_may_begin_with_another_input_after_a_pause(first: str, again: str) -> None:
    """Logs to which runs were appended, in JACarrilloDev/Thesis-Framework."""
    end = "2026-01-02 03:04:07,007 - INFO - ended"
    failed = ["2026-01-02 03:04:07,006 - ERROR - The scene did not load", *FAILED, end]
    lines = [f"2026-01-02 03:04:05,006 - {first}", *failed]
    assert rule(lines)[0] == "user_code"
    assert rule([*lines, f"2026-01-02 03:05:07,007 - {again}", "started"])[0] == "none"
    assert rule([*lines, f"2026-01-02 03:05:06,006 - {again}", "started"])[0] == "user_code"
    assert rule([*lines, f"{again}", "started"])[0] == "user_code"
    assert rule([*lines[:-1], f"2026-01-02 03:05:07,007 - {again}", "started"])[0] == "user_code"
    assert rule([*lines, "2026-01-03 03:04:05,006 - INFO - Attempting to save", "saved"])[0] == "user_code"


@pytest.mark.parametrize("size", [97, 1 << 20])
def test_what_a_program_warns_of_as_it_begins_may_be_long_before_the_end_of_a_log(size: int) -> None:
    """https://github.com/awohns/relative-allele-age"""
    warning = "/opt/h5py/__init__.py:36: FutureWarning: Conversion of the second argument"
    interrupted = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in <module>',
        "KeyboardInterrupt",
    ]
    bar = "  0%|          | 0/200 [00:00<?, ?it/s]"
    assert rule([*interrupted, warning], size=size) == ("cancelled", 3)
    assert rule([*interrupted, warning, *[bar] * 3], size=size) == ("none", None)
    assert rule([*interrupted, warning, "x" * 200_000, "y"], size=size) == ("none", None)
