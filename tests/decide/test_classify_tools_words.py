"""What programs around a training, and other languages, print of ends and of what they got over, in their formats."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import classify

PROGRESS = [f"step {number} loss 0.{number}" for number in range(1, 6)]
HEAD = "Traceback (most recent call last):"
FRAME = ['  File "/app/fit.py", line 7, in <module>', "    fit()"]


def told(lines, exit_code=None):
    """Class, and number of the root line."""
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("##[error]The operation was canceled.", "cancelled"),
        ("##[error]The runner has received a shutdown signal. This can happen when …", "preempted"),
        ("timeout: sending signal TERM to command 'python'", "cancelled"),
        ("\t diagnostics: Application application_17_0001 was killed by user alice at 10.0.0.1", "cancelled"),
        ("nbclient.exceptions.CellTimeoutError: A cell timed out while it was being executed.", "cancelled"),
    ],
)
def test_what_ends_a_program_from_outside_says_so(line, expected):
    assert told([*PROGRESS, line]) == (expected, 6)


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("30 fits failed with the following error:", "  warnings.warn(some_fits_failed_message)"),
        (
            "UserWarning: Scoring failed. The score on this train-test partition will be nan. Details: ",
            "  warnings.warn(",
        ),
    ],
)
def test_the_traceback_within_a_warning_of_scikit_learn_ended_nothing(above, below):
    lines = [above, HEAD, *FRAME, "ValueError: Solver lbfgs supports only 'l2' penalties", "", below]
    assert told([*PROGRESS, *lines])[0] == "none"
    assert told([*PROGRESS, *lines[1:5]])[0] == "user_code"


def test_a_connection_that_a_library_tries_again_is_no_failure():
    lines = [
        "'(ReadTimeoutError(\"Read timed out.\"))' thrown while requesting HEAD https://huggingface.co/gpt2",
        "Retrying in 1s [Retry 1/5].",
    ]
    assert told(lines)[0] == "none"
    assert told([*lines, HEAD, *FRAME, "requests.exceptions.ReadTimeout: timed out"])[0] == "network"


def test_condor_reports_a_job_that_it_has_found_again():
    """https://htcondor.readthedocs.io/en/latest/codes-other-values/job-event-log-codes.html"""
    lost = ["022 (7.000.000) 2026-01-01 11:01:00 Job disconnected, attempting to reconnect", "..."]
    failed = ["024 (7.000.000) 2026-01-01 11:02:00 Job reconnection failed", "..."]
    found = ["023 (7.000.000) 2026-01-01 11:02:00 Job reconnected to slot1@node", "..."]
    assert told([*lost, *failed]) == ("hardware", 3)
    assert told([*lost, *found])[0] == "none"


def test_a_detector_that_finds_nothing_yet_has_no_empty_data_set():
    lines = ["mmdet - ERROR - The testing results of the whole dataset is empty.", "Epoch(val) [1][500]"]
    assert told([*PROGRESS, *lines])[0] == "none"
    assert told([*PROGRESS, "ERROR: the validation dataset is empty"])[0] == "data"


@pytest.mark.parametrize(
    ("panic", "expected"),
    [
        (["thread 'main' panicked at src/main.rs:10:5:", "index out of bounds: the len is 3"], "user_code"),
        (
            ["thread 'main' panicked at 'called `unwrap()` on `Err`: Os { kind: NotFound }', main.rs:12:40"],
            "config",
        ),
        (["thread '<unnamed>' panicked at src/lib.rs:88:14:", "a library's own"], "crash"),
    ],
)
def test_a_rust_program_that_panics_fails_by_its_own_error(panic, expected):
    note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"
    assert told([*PROGRESS, *panic, note]) == (expected, 6)


@pytest.mark.parametrize(
    ("stopped", "reason", "expected"),
    [
        ("Error in readRDS(file = f) : ", "  cannot open the connection", ("config", 3)),
        ("Error in h5read(f, name) : ", "  unable to open file: No such file or directory", ("config", 3)),
        ("Error in read.table(file = file) : ", "  no lines available in input", ("user_code", 2)),
    ],
)
def test_r_gives_the_reason_in_the_next_line(stopped, reason, expected):
    assert told(["Loading", stopped, reason, "Execution halted"]) == expected
