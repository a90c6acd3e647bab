"""What a watchdog of collectives has aborted, whatever other ranks of the same log still print."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import LogScanner, classify, judge, lost

WATCHDOG = [
    "[E ProcessGroupNCCL.cpp:700] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
    "terminate called after throwing an instance of 'std::runtime_error'",
]
OTHERS = [f"[rank0]: pack shards: {part}/90 [00:0{part}<01:00, 1.5 shards/s]" for part in range(1, 7)]
ABORTED = "failed (exitcode: -6) local_rank: 5 (pid: 77) of binary: /usr/bin/python"
FIRST_LINE = "Starting elastic_operator with launch configs"
PORT = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 3, in <module>',
    "    join()",
    "RuntimeError: bind: errno: 98 - Address already in use",
]


def told(lines, **ended):
    verdict = classify({"a.log": lines}, **ended)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


@pytest.mark.parametrize(
    ("lines", "ended", "expected"),
    [
        pytest.param([*WATCHDOG, *OTHERS, ABORTED], {}, ("collective_timeout", 1), id="a-launcher-says-so"),
        pytest.param([*WATCHDOG, *OTHERS, ABORTED], {"exit_code": 1}, ("collective_timeout", 1), id="and-ends"),
        pytest.param([*WATCHDOG, *OTHERS], {"exit_code": -6}, ("collective_timeout", 1), id="its-own-end"),
        pytest.param([*WATCHDOG, *OTHERS], {"signal": 6}, ("collective_timeout", 1), id="by-a-signal"),
        pytest.param([*WATCHDOG, *OTHERS], {"signal": 11}, ("crash", None), id="another-signal"),
        pytest.param([*WATCHDOG, *OTHERS], {}, ("none", None), id="no-abort-is-known"),
        pytest.param([*WATCHDOG, *OTHERS * 30, ABORTED], {}, ("crash", 183), id="long-before-it"),
        pytest.param([*WATCHDOG, *OTHERS, FIRST_LINE, ABORTED], {}, ("crash", 10), id="in-an-earlier-run"),
        pytest.param([*WATCHDOG, *OTHERS, ABORTED.replace("-6", "-11")], {}, ("crash", 9), id="a-segfault"),
        pytest.param([*PORT, *WATCHDOG, ABORTED], {}, ("collective_timeout", 5), id="its-group-was-set-up"),
        pytest.param([*PORT, ABORTED], {}, ("port_in_use", 4), id="one-that-was-not"),
        pytest.param([*WATCHDOG, *PORT, ABORTED], {}, ("port_in_use", 6), id="one-that-came-later"),
    ],
)  # fmt: skip
def test_a_watchdog_ends_its_process_though_others_get_on(lines, ended, expected):
    assert told(lines, **ended) == expected


def scanned(lines, file):
    scanner = LogScanner(file)
    scanner.feed_lines(lines)
    return scanner.findings()


def test_of_several_logs_the_one_with_the_report_is_read_so():
    logs = [scanned(OTHERS, "other"), scanned([*WATCHDOG, *OTHERS, ABORTED], "launcher")]
    verdict = judge(logs)
    assert (verdict.failure_class, verdict.evidence.file) == ("collective_timeout", "launcher")
    assert verdict.blame == "peer"
    aside = [scanned([*WATCHDOG, *OTHERS], "other"), scanned([*OTHERS, ABORTED], "launcher")]
    assert judge(aside).failure_class == "crash"


def test_the_root_is_not_said_to_be_over():
    log = scanned([*WATCHDOG, *OTHERS, ABORTED], "a")
    others = {one.finding.line: one.why for one in lost([log], judge([log]))}
    assert 1 not in others
    assert others[9] == "came after line 1"
