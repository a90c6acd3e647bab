"""Reading a log in pieces: what is kept of it, whatever it holds, and where a line's message begins."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_ft.decide.classify import LogScanner, classify, judge, with_own
from prefect_ft.decide.classify.heads import read_line
from prefect_ft.decide.classify.progress import place_of
from prefect_ft.signatures import EntryError, read_entry

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TRACEBACK = ["Traceback (most recent call last):", '  File "/a/t.py", line 3, in step', "    f()"]


@pytest.mark.parametrize(
    "before",
    [
        "[rank3]: ",
        "[default0]:",
        "12: ",
        "[1,3]<stderr>:",
        "(RayTrainWorker pid=77, ip=10.0.0.4) ",
        "(worker pid=77) ",
        "worker-3 | ",
        "2026-03-02 11:00:10,123 - trainer - ERROR - ",
        "[2026-03-02 11:00:10,123] [ERROR] [engine.py:31:step] ",
        "2026-03-02T11:00:10.123Z ",
        "[rank1]: 2026-03-02 11:00:10 ERROR ",
        "E0302 11:00:10.123456 771 worker.cc:31] ",
        "ERROR:root:",
        "Mar  2 11:00:10 gpu-07 python[771]: ",
        "\x1b[31m",
        " 40%|####      | 2/5 [00:10<00:15,  5.1s/it]",
        "Epoch 3:  99%|#########9| 310/311 [01:10<00:00,  4.4it/s, loss=0.1]",
        "\0\0\0",
    ],
)
def test_nothing_that_stands_before_a_message_hides_it(before: str) -> None:
    own = with_own([read_entry({"id": "mine", "class": "config", "pattern": "^The licence has run out"})])
    verdict = classify({"log": [f"{before}The licence has run out"]}, exit_code=1, catalogue=own)
    assert verdict.evidence is not None
    assert (verdict.evidence.rule, verdict.failure_class) == ("mine", "config")


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: x", "[rank3]:"),
        ("[default0]:x", "[default0]:"),
        ("3: x", "3:"),
        ("[1,2]<stdout>:x", "[1,2]<stdout>:"),
        ("x", ""),
    ],
)
def test_the_rank_of_a_line(line: str, rank: str) -> None:
    assert read_line(line.encode()).rank == rank


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("step 40 loss 2.1", "step 40"),
        ("Epoch: [3][10/200]", "step 3 10"),
        ("Epoch [1/70][2760/2860]  lr: 0.0001", "step 1 70 2760"),
        ("Train Epoch: 1 [640/60000 (1%)]", "step 1 640"),
        ("| epoch:                               2 |", "step 2"),
        (" iteration       10/  500 | consumed samples", "step 10"),
        (" 40%|####  | 17/44 [00:10<00:15, 5.1s/it]", "bar 17/44"),
        ("{'loss': 0.51, 'epoch': 1.25}", "step 1.25"),
        ("wandb: step 40", None),
        ("saved step 40", None),
        ("out of memory at step 40", None),
        ("hello", None),
    ],
)
def test_where_a_run_says_that_it_is(line: str, place: str | None) -> None:
    assert place_of(line) == place


def test_a_line_of_ten_megabytes_is_read() -> None:
    scanner = LogScanner("log")
    for piece in (
        b"x" * 10_000_000,
        b" torch.OutOfMemoryError: CUDA out of memory. ",
        b"y" * 10_000_000,
        b"\n",
    ):
        scanner.feed(piece)
    scanner.feed(b"bye\n")
    verdict = judge([scanner.findings()], exit_code=1)
    assert verdict.failure_class == "oom_device"
    assert verdict.evidence is not None
    assert verdict.evidence.line == 1
    assert len(verdict.evidence.text) < 10_000


def test_memory_is_bounded_whatever_the_log() -> None:
    scanner = LogScanner("log")
    line = "\n".join([*TRACEBACK, OOM, "NVRM: Xid (PCI:0000:4f:00): 79, x", ""]).encode()
    scanner.feed(line)
    tracemalloc.start()
    try:
        for _ in range(2000):
            scanner.feed(line)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert len(scanner.findings().findings) < 100


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"Traceback (most recent call last)", id="a-line-without-end"),
        pytest.param(b"uncorrectable ECC error encountered ", id="the-same-with-findings"),
        pytest.param(b"CUDA error: uncorrectable ECC\r" + b" 1%| | 1/9 [00:01<00:31]\r" * 50, id="a-bar"),
    ],
)
def test_what_is_eight_times_as_long_costs_eight_times_as_much(text: bytes) -> None:
    def cost_s(size: int) -> float:
        scanner, log = LogScanner("log"), text * (size // len(text)) + b"\n"
        began = time.thread_time()
        scanner.feed(log)
        return time.thread_time() - began

    cost_s(1 << 17)  # patterns are compiled when they are first used
    assert any(cost_s(1 << 20) < 16 * cost_s(1 << 17) for _ in range(3))


@pytest.mark.parametrize("step", ["step 1", "\x1b[36mstep 1\x1b[0m"], ids=["plain", "coloured"])
def test_lines_are_counted_again_where_that_is_possible(step: str) -> None:
    log = (f"{step}\n" * 999 + OOM + "\n").encode() * 2
    asked: list[tuple[int, int]] = []

    def count(start: int, end: int) -> int:
        asked.append((start, end))
        return log.count(b"\n", start, end)

    plain, lazy = LogScanner("log"), LogScanner("log", count=count)
    for start in range(0, len(log), 500):
        plain.feed(log[start : start + 500])
        lazy.feed(log[start : start + 500])
    assert [each.line for each in lazy.findings().findings] == [1000, 2000]
    assert lazy.findings().findings == plain.findings().findings
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(asked))


def test_lines_are_counted_after_a_piece_of_colours_alone() -> None:
    scanner = LogScanner("log")
    scanner.feed(b"\x1b[0m\n\x1b[0m\n")
    scanner.feed(f"{OOM}\n".encode())
    assert [each.line for each in scanner.findings().findings] == [3]


def test_the_first_and_the_last_of_a_rule_are_kept() -> None:
    lines = [f"{OOM} {number}" for number in range(1, 101)]
    scanner = LogScanner("log")
    scanner.feed_lines(lines)
    numbers = [each.line for each in scanner.findings().findings]
    assert (numbers[0], numbers[-1]) == (1, 100)
    assert len(numbers) < 20


def test_a_line_that_is_given_whole_stays_one_line() -> None:
    scanner = LogScanner("log")
    scanner.feed_lines(["two\nin one", OOM])
    assert [each.line for each in scanner.findings().findings] == [2]


def test_a_run_that_got_on_has_got_on_whatever_comes_later() -> None:
    scanner = LogScanner("log")
    scanner.feed_lines([OOM, *(f"step {number} loss 2.1" for number in range(50)), *["some words"] * 500])
    assert scanner.findings().had_progress


@pytest.mark.parametrize(
    ("lines", "is_aside"),
    [
        pytest.param(["Exception in thread Thread-7 (read):"], True, id="the-line-above-says-so"),
        pytest.param(
            ["Exception in thread Thread-7 (read):", "", "bye"], True, id="a-line-soon-above-says-so"
        ),
        pytest.param(
            ["Exception in thread Thread-7 (read):", *["boom: CUDA out of memory"] * 3],
            False,
            id="not-one-far-above",
        ),
    ],
)
def test_what_makes_a_traceback_one_of_a_thread(lines: list[str], *, is_aside: bool) -> None:
    scanner = LogScanner("log")
    scanner.feed_lines([*lines, *TRACEBACK, "KeyError: 'x'"])
    (finding,) = (one for one in scanner.findings().findings if one.raised is not None)
    assert finding.raised is not None
    assert finding.raised.is_aside is is_aside


def test_tracebacks_of_threads_may_be_printed_into_each_other() -> None:
    threads = [f"Exception in thread Thread-{number}:" for number in (1, 3)]
    library = [line.replace("/", "/lib/python3.12/", 1) for line in TRACEBACK]
    frames = [line for line in library for _ in threads]
    lines = [
        "step 1",
        "step 2",
        *threads,
        "",
        "End training....",
        *frames,
        *["OSError: handle is closed"] * 2,
    ]
    assert classify({"log": lines}).failure_class == "none"
    assert classify({"log": [*lines, *TRACEBACK, "KeyError: 'x'"]}).failure_class == "user_code"


def test_a_thread_of_the_user_s_own_that_fails_last_has_ended_the_run() -> None:
    lines = ["step 1", "step 2", "Exception in thread feeder:", *TRACEBACK, "KeyError: 'x'"]
    assert classify({"log": lines}).failure_class == "user_code"
    assert classify({"log": [*lines, "one", "two", "three"]}).failure_class == "none"


def test_who_is_told_twice_is_told_by_its_id() -> None:
    entry = read_entry({"id": "mine", "class": "config", "pattern": "licence"})
    with pytest.raises(EntryError, match="mine") as caught:
        with_own([entry, entry])
    assert caught.value.field == "id"


def test_what_ranks_wait_for_is_the_silent_one() -> None:
    timeout = "[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    logs = {"rank0": [timeout], "rank1": ["step 1"], "rank2": [timeout]}
    assert classify(logs, exit_code=1).blame == "peer"
    assert classify({key: [timeout] for key in logs}, exit_code=1).blame != "peer"


def test_the_earliest_of_several_logs_by_their_own_times() -> None:
    def failing(second: int, error: str) -> list[str]:
        return [f"2026-03-02 11:00:{second} INFO begun", *TRACEBACK, error]

    logs = {"a": failing(40, "KeyError: 'late'"), "b": failing(20, "ValueError: early")}
    verdict = classify(logs, exit_code=1)
    assert verdict.evidence is not None
    assert verdict.evidence.file == "b"


PIECES = st.sampled_from(
    [
        b"\n", b"\r", b"\r\n", b"\0", b"\x1b[31m", b"\xff\xfe", b" ", b": ", b"|", b"[rank3]: ",
        b"2026-03-02 11:00:10 ",
        b"Traceback (most recent call last):\n", b'  File "/a.py", line 3, in f\n', b"    x()\n", OOM.encode(),
        b"KeyError: 'a'\n", b"Original ", b"During handling of the above exception, another exception occurred:\n",
        b"The above exception was the direct cause of the following exception:\n", b"step 10\n", b"step 20\n",
        b"Restarting worker group\n", b"  + Exception Group ", b"  | ", b"Killed\n", b" 40%|#| 2/5 [00:10<00:15]",
        b"NVRM: Xid (PCI:0000:4f:00): 79, x\n", b"Watchdog caught collective operation timeout\n",
    ]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=60), st.integers(1, 50))
def test_no_log_breaks_it_and_pieces_do_not_matter(parts: list[bytes], size: int) -> None:
    log = b"".join(parts)
    whole, pieces = LogScanner("log"), LogScanner("log")
    whole.feed(log)
    for start in range(0, len(log), size):
        pieces.feed(log[start : start + size])
    verdict = judge([whole.findings()], exit_code=1)
    assert judge([pieces.findings()], exit_code=1) == verdict


@settings(max_examples=100, deadline=None)
@given(
    st.text(max_size=300),
    st.one_of(st.none(), st.integers(-70, 300)),
    st.one_of(st.none(), st.integers(0, 70)),
)
def test_no_text_and_no_end_breaks_it(text: str, exit_code: int | None, signal: int | None) -> None:
    verdict = classify({"a": text.splitlines(), "b": [text]}, exit_code=exit_code, signal=signal)
    assert (verdict.failure_class == "none") == (verdict.recoverable is None)


def test_the_last_words_of_a_line_that_was_blanked_out_are_those_before() -> None:
    scanner = LogScanner("a.log")
    scanner.feed(b"Extracting a.conda: 97%\rExtracting b.conda: 98%\r" + b" " * 300 + b"\r")
    assert scanner.findings().tail == ("Extracting b.conda: 98%",)
