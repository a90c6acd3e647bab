"""What stands before a message: taken off bit by bit, each time another view."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify.heads import Line, read_line, stamp_of

A_DAY_S = 24 * 3600


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(b"boom", Line("", ("boom",)), id="nothing"),
        pytest.param(b"bo\0om \r", Line("", ("boom",)), id="what-no-terminal-shows"),
        pytest.param(b"bo\xffm", Line("", ("bo\ufffdm",)), id="no-utf-8"),
        pytest.param(b"[rank3]: boom", Line("[rank3]:", ("boom",)), id="a-rank"),
        pytest.param(b"[default3]:[rank1]: boom", Line("[default3]:[rank1]:", ("boom",)), id="two-of-them"),
        pytest.param(b"12: boom", Line("12:", ("boom",)), id="a-number"),
        pytest.param(b"(worker pid=77) boom", Line("(worker pid=77)", ("boom",)), id="a-process"),
        pytest.param(b"worker-3 | boom", Line("worker-3 |", ("boom",)), id="a-service"),
        pytest.param(b"[1,7]<stderr>: boom", Line("[1,7]<stderr>:", ("boom",)), id="mpi"),
        pytest.param(b"[pod/train-0/main] boom", Line("[pod/train-0/main]", ("boom",)), id="a-pod"),
        pytest.param(b"gpu-07: boom", Line("gpu-07:", ("boom",)), id="a-host"),
        pytest.param(
            b"2026-01-02 03:04:05,678 boom", Line("", ("2026-01-02 03:04:05,678 boom", "boom")), id="a-time"
        ),
        pytest.param(b"ERROR: boom", Line("", ("ERROR: boom", "boom"), "E"), id="a-level"),
        pytest.param(b"Warning: boom", Line("", ("Warning: boom", "boom"), "W"), id="a-level-as-one-speaks"),
        pytest.param(
            b"2026-01-02T03:04:05Z libacme: Warning: boom",
            Line("", ("2026-01-02T03:04:05Z libacme: Warning: boom", "libacme: Warning: boom"), "W"),
            id="a-library-s-warning-behind-a-time",
        ),
        pytest.param(b"[warn] boom", Line("", ("[warn] boom", "boom"), "W"), id="a-level-in-brackets"),
        pytest.param(b"[skip] boom", Line("", ("[skip] boom", "boom"), "W"), id="what-was-skipped"),
        pytest.param(b"Warnings: boom", Line("", ("Warnings: boom",)), id="no-level"),
        pytest.param(b"NOTICE: boom", Line("", ("NOTICE: boom", "boom"), "I"), id="a-notice-informs"),
        pytest.param(b"CRITICAL: boom", Line("", ("CRITICAL: boom", "boom"), "E"), id="critical-is-an-error"),
        pytest.param(
            b"2026-01-02 03:04:05 [rank1]: WARNING: ERROR: boom",
            Line(
                "[rank1]:",
                (
                    "2026-01-02 03:04:05 [rank1]: WARNING: ERROR: boom",
                    "WARNING: ERROR: boom",
                    "ERROR: boom",
                    "boom",
                ),
                "W",
            ),
            id="the-first-level-counts-and-an-inner-rank",
        ),
        pytest.param(
            b"[rank0]: INFO: [rank1]: boom",
            Line("[rank0]:", ("INFO: [rank1]: boom", "boom"), "I"),
            id="the-outer-rank-counts",
        ),
        pytest.param(b"INFO:", Line("", ("INFO:",)), id="a-head-alone-is-the-message"),
        pytest.param(
            b" 40%|##  | 2/5 boom", Line("", (" 40%|##  | 2/5 boom", "boom")), id="a-bar-without-rates"
        ),
        pytest.param(
            b" 40%|##  | 2/5 [00:10<00:15, 5.1s/it] boom",
            Line("", (" 40%|##  | 2/5 [00:10<00:15, 5.1s/it] boom", "boom")),
            id="a-bar",
        ),
        pytest.param(b"9 [00:10, 2it/s] boom", Line("", ("9 [00:10, 2it/s] boom", "boom")), id="a-bare-rate"),
        pytest.param(
            b"9 [00:10, 2s/it] boom", Line("", ("9 [00:10, 2s/it] boom", "boom")), id="a-rate-below-one"
        ),
        pytest.param(b" 40%|##  | 2/5", Line("", (" 40%|##  | 2/5",)), id="a-bar-alone"),
        pytest.param(
            b"- " * 9 + b"boom",
            Line("", tuple("- " * left + "boom" for left in range(9, 0, -1))),
            id="eight-heads-at-most",
        ),
        pytest.param(
            b"[rank7]:" * 12 + b"boom",
            Line("[rank7]:" * 10, ("[rank7]:" * 2 + "boom",)),
            id="eighty-characters-of-rank",
        ),
    ],
)
def test_a_line_is_read(raw, expected):
    assert read_line(raw) == expected


@pytest.mark.parametrize(
    ("one", "later", "apart_s"),
    [
        pytest.param("2026-01-02 03:04:05", "2026-01-02 03:04:06", 1, id="a-second"),
        pytest.param("2026-01-02 03:04:05", "2026-01-02 03:05:05", 60, id="a-minute"),
        pytest.param("2026-01-02 03:04:05", "2026-01-02 04:04:05", 3600, id="an-hour"),
        pytest.param("2026-01-02 03:04:05", "2026-01-03 03:04:05", A_DAY_S, id="a-day"),
        pytest.param("2026-01-02 03:04:05", "2026-02-02 03:04:05", 31 * A_DAY_S, id="months-have-31-days"),
        pytest.param("2026-01-02 03:04:05", "2027-01-02 03:04:05", 372 * A_DAY_S, id="and-years-372"),
        pytest.param("2026/01/02T03:04:05", "2026-01-02 03:04:05,25", 0.25, id="a-fraction"),
        pytest.param("2026-01-02 03:04:05", "2020-01-01 00:00:00 2026-01-02 03:04:07", 2, id="the-last-one"),
    ],
)
def test_times_are_apart(one, later, apart_s):
    assert stamp_of(later) - stamp_of(one) == apart_s


def test_no_time_is_none():
    assert stamp_of("03:04:05 boom") is None
