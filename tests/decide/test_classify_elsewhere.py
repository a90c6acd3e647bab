"""Other languages than Python, other systems than Linux, and what reports a program's exit code."""

from __future__ import annotations

import json

import pytest

from prefect_ft.decide.classify import classify

STEPS = ["epoch 1 loss 0.5", "epoch 2 loss 0.4"]
STAGE = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times"
)


def told(lines):
    verdict = classify({"a.log": lines})
    return verdict.failure_class, verdict.evidence and verdict.evidence.text.strip()


@pytest.mark.parametrize(
    ("lines", "failure_class", "root"),
    [
        pytest.param(
            [
                "ERROR: LoadError: BoundsError: attempt to access 4-element Vector{Float64} at index [5]",
                "Stacktrace:",
            ],
            "user_code",
            0,
            id="julia",
        ),
        pytest.param(
            ["ERROR: LoadError: ArgumentError: Package Flux not found in current path.", "Stacktrace:"],
            "config",
            0,
            id="julia-package",
        ),
        pytest.param(
            ["Error in fit(model) : object 'model' not found", "Execution halted"], "user_code", 0, id="r"
        ),
        pytest.param(
            ["Error in library(xgboost) : there is no package called 'xgboost'", "Execution halted"],
            "config",
            0,
            id="r-package",
        ),
        pytest.param(
            ["Undefined function 'net'.", "", "Error in train (line 12)", "y = net(x);"],
            "user_code",
            0,
            id="matlab",
        ),
        pytest.param(
            [
                "{Error using load",
                "Unable to read file 'a.mat'. No such file or directory.",
                "",
                "Error in run (line 3)",
                "load(f)",
                "}",
            ],
            "config",
            1,
            id="matlab-file",
        ),
        pytest.param(
            [f'Exception in thread "main" {STAGE}', "\tat a.B.c(B.java:7)"], "user_code", 0, id="java"
        ),
        pytest.param(
            ["panic: runtime error: index out of range [5] with length 5", "", "goroutine 1 [running]:"],
            "user_code",
            0,
            id="go",
        ),
        pytest.param(["Fortran runtime error: End of file"], "user_code", 0, id="fortran"),
    ],
)
def test_what_ended_a_program_in_another_language(lines, failure_class, root):
    assert told([*STEPS, *lines]) == (failure_class, lines[root].strip())


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        (
            "F0829 12:02:31.1 4 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
            "oom_device",
        ),
        ("  what():  local.cc:166: Check failed: allow_null:  fail to open: No such file", "config"),
        ("F0829 12:02:31.1 4 net.cpp:56] Check failed: a == b (2 vs. 3)", "assertion"),
        (
            "2020-06-03 00:25:30: F ./op_gpu.h:232] Non-OK: GpuLaunchKernel(f) status: Internal: out of memory",
            "oom_device",
        ),
        ("F0829 12:02:31.1 4 net.cpp:56] Check failed: a == b (2 vs. 3) dimensions must match", "assertion"),
    ],
)
def test_a_failed_check_may_say_why(line, failure_class):
    assert told([*STEPS, line])[0] == failure_class


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("Process finished with exit code -1073741819 (0xC0000005)", "crash"),
        ("Process finished with exit code 1", "unknown"),
        ("[Done] exited with code=1 in 3.2 seconds", "unknown"),
        ("   Exit Status:        271 (Linux Signal 15 SIGTERM Termination)", "preempted"),
        ("   Exit Status:        137 (Linux Signal 9 SIGKILL Killed)", "unknown"),
        ("run.sh: 行 3: 12345 段错误               (核心已转储) python train.py", "crash"),
        ("forrtl: error (200): program aborting due to control-C event", "cancelled"),
        (
            "submitit WARNING (2026-01-09 10:12:03,000) - Caught signal SIGUSR2 on n1: this job is timed-out.",
            "cancelled",
        ),
        ("Handling auto-requeue signal: 10", "preempted"),
    ],
)
def test_what_reports_how_a_program_ended(line, failure_class):
    assert told([*STEPS, line])[0] == failure_class


@pytest.mark.parametrize(
    "line",
    [
        "Process finished with exit code 0",
        "[Done] exited with code=0 in 12.3 seconds",
        "   Exit Status:        0",
    ],
)
def test_an_exit_code_of_0_is_a_success_whatever_was_printed(line):
    failed = [
        "Traceback (most recent call last):",
        '  File "a.py", line 7, in <module>',
        "    f()",
        "KeyError: 1",
    ]
    assert told([*STEPS, *failed, line])[0] == "none"
    assert told([*STEPS, line, *failed])[0] == "user_code"


@pytest.mark.parametrize(
    "line",
    [
        "[W 2026-01-09 10:12:03,000] Trial 3 failed because of the following error: RuntimeError('CUDA out of memory')",
        "libEGL warning: failed to open /dev/dri/renderD128: Permission denied",
        "kernel.cu(12): warning #177-D: variable was declared but never referenced: no such file or directory",
    ],
)
def test_a_warning_is_one_in_any_form(line):
    assert told([*STEPS, line, "an answer"])[0] == "none"


def test_that_workers_died_says_nothing_of_why():
    failed = ["Traceback (most recent call last):", '  File "a.py", line 7, in <module>', "    f()"]
    died = "distributed.scheduler.KilledWorker: Attempted to run task 'sum' on 3 different workers, all of which died"
    assert told([*STEPS, *failed, died])[0] == "unknown"


def test_states_in_a_table_are_no_end():
    assert told([*STEPS, "| DQN_00000 | RUNNING | 8 |", "| DQN_00001 | TERMINATED | 7 |"])[0] == "none"
    assert told([*STEPS, "Killed by signal 15."])[0] == "none"  # by ssh, as it closes a connection


@pytest.mark.parametrize(
    "result", ["Test accuracy: 0.913", "final_avg_f1: 0.93", "Correct Percentage: 0.778", "mAP = 31.2"]
)
@pytest.mark.parametrize(
    "line",
    [
        "HTTP Error 429: Too Many Requests",
        "Failed to parse line 33: invalid literal",
        "libpng error: CRC error",
    ],
)
def test_a_result_after_a_line_shows_that_it_was_no_end(line, result):
    assert told([*STEPS, line])[0] != "none"
    assert told([*STEPS, line, result])[0] == "none"
    assert told([*STEPS, result, line])[0] != "none"


def test_an_indented_line_is_no_result():
    assert told([*STEPS, "HTTP Error 429: Too Many Requests", "    accuracy = 0.913"])[0] == "network"


def test_what_submitit_says_of_the_time_ends_what_was_said_before():
    said = "submitit WARNING (2026-01-09 10:12:03,000) - Caught signal SIGUSR2 on n1: this job is timed-out."
    assert told(["[Errno 2] No such file or directory: 'a.json'", "reading", said]) == ("cancelled", said)


def test_a_result_after_an_uncaught_exception_may_be_another_rank_s():
    failed = [
        "Traceback (most recent call last):",
        '  File "a.py", line 7, in <module>',
        "    f()",
        "KeyError: 1",
    ]
    assert told([*STEPS, *failed, "Test accuracy: 0.913"])[0] == "user_code"


def in_json(**said):
    return json.dumps({"time": "2026-01-09T10:12:03", **said})


def test_what_a_logger_writes_as_json():
    assert (
        told([*STEPS, in_json(level="ERROR", msg="Traceback", error="IndexError: list index out of range")])[
            0
        ]
        == "user_code"
    )
    steps = [in_json(level="INFO", message=f"step {number} loss 0.{number}") for number in range(1, 4)]
    trace = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
    failed = in_json(
        level="ERROR", message="Unhandled", exc_info=f"{trace}RuntimeError: CUDA out of memory. Tried"
    )
    assert told([*steps, failed]) == ("oom_device", failed)
    assert (
        told([*steps, in_json(levelname="ERROR", msg="saving failed: No space left on device")])[0]
        == "storage"
    )
    assert told([*steps, in_json(severity="WARNING", message="No space left on device"), "x"])[0] == "none"
    assert told([*steps, in_json(level="INFO", message="Handling auto-requeue signal: 10")])[0] == "preempted"
    assert told([*steps, '{"message": "broken'])[0] == "none"
    assert told([*steps, '{"message": ' + "[" * 3900])[0] == "none"


def test_ctrl_c_on_the_last_line_means_a_cancelled_run():
    assert told([*STEPS, "^C"]) == ("cancelled", "^C")
    assert told([*STEPS, " 10%|█         | 10/100 [00:10<01:30,  1.00s/it]^C"])[0] == "cancelled"
    assert told([*STEPS, "^C", "step 3 loss 0.3"])[0] == "none"


def test_a_process_whose_parent_has_ended_says_nothing_of_why():
    spawned = ["Traceback (most recent call last):", '  File "<string>", line 1, in <module>']
    spawned += [
        '  File "/usr/lib/python3.8/multiprocessing/spawn.py", line 116, in spawn_main',
        "    _main(fd)",
    ]
    assert told([*STEPS, *spawned, "_pickle.UnpicklingError: pickle data was truncated"])[0] == "unknown"
    assert told([*STEPS, *spawned, "KeyError: 'x'"])[0] == "user_code"


def test_where_a_platform_repeats_an_exception_in_a_line_its_name_tells():
    assert told([*STEPS, "ERROR User program failed with KeyError: 'x'"])[0] == "user_code"
    assert (
        told([*STEPS, "The replica workerpool0-0 ran out-of-memory and exited with a status of 137"])[0]
        == "oom_host"
    )


CONDOR = ["001 (1.0.0) 2026-01-09 10:12:03 Job executing on host: <10.0.0.9:9618>", "..."]


def test_a_job_that_condor_has_started_again_was_not_ended_by_its_eviction():
    evicted = ["004 (1.0.0) 2026-01-09 11:12:03 Job was evicted.", "..."]
    assert told([*CONDOR, *evicted])[0] == "preempted"
    assert told([*CONDOR, *evicted, *CONDOR])[0] == "none"
    removed = "009 (1.0.0) 2026-01-09 12:12:03 Job was aborted."
    assert told([*CONDOR, *evicted, *CONDOR, removed]) == ("cancelled", removed)


@pytest.mark.parametrize(
    "line",
    [
        "Error in run_batch: CUDA out of memory. Tried to allocate 3.17 GiB",
        "Exception while saving: No space left on device",
    ],
)
def test_a_report_counts_at_any_level_and_is_no_exception_s_name(line):
    assert told([*STEPS, line])[0] in ("oom_device", "storage")
    assert told([*STEPS, f"2026-01-09 12:43:00,493 - INFO - {line}"])[0] in ("oom_device", "storage")
    assert told([*STEPS, f"2026-01-09 12:43:00,493 - WARNING - {line}", "x"])[0] == "none"


def test_what_a_notebook_s_runner_reports_is_told_by_the_cell():
    shown = [
        "RuntimeError                              Traceback (most recent call last)",
        "Input In [3], in <cell line: 1>()",
    ]
    failed = ["Traceback (most recent call last):", '  File "/bin/jupyter", line 8, in <module>', "    run()"]
    failed += [
        "nbclient.exceptions.CellExecutionError: An error occurred while executing the following cell:",
        "-----",
        "f(x)",
        "-----",
        "",
    ]
    said = "RuntimeError: The size of tensor a (4) must match the size of tensor b (2)"
    assert told([*STEPS, *failed, *shown, "---> 13 f(x)", "", said]) == ("user_code", said)


def test_a_heading_is_told_by_the_line_below():
    failed = ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    f()"]
    failed += ["OSError: There was a specific connection error when trying to load a/model:"]
    assert (
        told([*STEPS, *failed, "401 Client Error: Unauthorized for url: https://hub/a/model"])[0] == "config"
    )
    assert told([*STEPS, *failed, "it did not answer"])[0] == "network"


@pytest.mark.parametrize(
    "form",
    [
        "Error: {}",
        "An error occurred: {}",
        "❌ Training failed: {}",
        "ERROR:root:{}",
        "2026-01-09 10:12:03 - ERROR - f: {}",
    ],
)
@pytest.mark.parametrize(
    ("said", "failure_class"),
    [
        ("unsupported operand type(s) for +: 'int' and 'str'", "user_code"),
        ("local variable 'x' referenced before assignment", "user_code"),
        ("'int' object is not subscriptable", "user_code"),
        ("[Errno 28] No space left on device", "storage"),
        ("[Errno 2] No such file or directory: 'data/train.json'", "config"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "oom_device"),
        ("loss is NaN", "numeric"),
    ],
)
def test_what_a_program_reports_of_an_exception_that_it_has_caught(form, said, failure_class):
    line = form.format(said)
    assert told([*STEPS, line])[0] == failure_class
    assert told([*STEPS, line, *[f"epoch {number} loss 0.{number}" for number in range(3, 6)]])[0] == "none"


@pytest.mark.parametrize(
    ("said", "failure_class"),
    [
        ("Error loading model: Connection error.", "network"),
        ("Error loading model: the header is wrong", "checkpoint"),
        ("ERROR: Training failed: Error code: 401 - {'error': {'message': 'Incorrect API key'}}", "config"),
        ("ERROR: Training failed: Error code: 503 - {'error': {'message': 'busy'}}", "network"),
        ("Error loading file: Expecting value: line 1 column 1 (char 0)", "data"),
        (
            "pandas.errors.ParserError: Error tokenizing data. C error: Expected 5 fields in line 3, saw 6",
            "data",
        ),
        ("Error loading model: 1 validation error for Config", "config"),
        ("Training failed: cannot convert float NaN to integer", "numeric"),
        ("OSError: cannot open resource", "config"),
        ("Training failed: PUGREST.ServerBusy", "network"),
        ("Error: /home/x/1byj is not a valid directory.", "config"),
        ("/home/x/1byj is not a valid directory, creating it", "none"),
        ("Error: prompt v1 not found in config/prompts/reasoning.yaml", "config"),
        ("Error: prompt v1 not found in the list", "unknown"),
        ("Failed nodes: ['node3'] unreachable: connection timed out", "network"),
        ("Failed ranks: [2, 5]", "unknown"),
        ("Stopping app - user stopped from CLI.", "cancelled"),
        ("Errors: 12", "none"),
        ("Failed: 3 of them", "none"),
    ],
)
def test_the_reason_in_a_line_counts_before_what_failed(said, failure_class):
    assert told([*STEPS, said])[0] == failure_class


def test_a_reason_may_stand_below_its_heading():
    """https://github.com/HectorFCardenas/llm.c"""
    heading = "[CUDA ERROR] at file train_gpt2.cu:754:"
    assert told([heading, "misaligned address"]) == ("crash", "misaligned address")
    assert told([heading, "out of memory"]) == ("oom_device", "out of memory")
    assert told([heading, "something else"]) == ("unknown", heading)
    assert told([heading, "out of memory", *["words of a run"] * 20])[0] == "none"


def test_moses_says_which_check_has_failed():
    """https://github.com/hgkumbhare/FYP"""
    checked = (
        "Exception: mert/BleuScorer.cpp:167 in void prepare(size_t) threw util::Exception because `sid >= n'."
    )
    assert told(["loading", checked, "Sentence id (51) not found in reference set"]) == ("user_code", checked)


@pytest.mark.parametrize(
    ("said", "failure_class"),
    [
        ("stack-buffer-overflow on address 0x7fffffffda98", "user_code"),
        ("attempting double-free on 0x602000000010", "user_code"),
        ("SEGV on unknown address 0x0", "crash"),
        ("out of memory: allocator is trying to allocate 0x10000000 bytes", "none"),
    ],
)
def test_a_sanitizer_s_long_report_ends_a_program(said, failure_class):
    """https://github.com/amkorousagi/trace_table_generator"""
    report = [
        f"==7==ERROR: AddressSanitizer: {said}",
        *[f"    #{n} 0x5555555566ae in main" for n in range(60)],
    ]
    found = told([*STEPS, *report, "==7==ABORTING"])
    assert found == (failure_class, None if failure_class == "none" else report[0])
    assert told([*STEPS, *report, *STEPS, *STEPS, *["words of a run"] * 60])[0] == "none"


def test_structlog_describes_an_exception_in_a_line():
    """A task's log of Airflow 3, in AnhDuybugde/Flood-Forecasting."""
    detail = [
        {"exc_type": "FileNotFoundError", "exc_value": "a.csv", "frames": [{"filename": "a.py", "lineno": 7}]}
    ]
    failed = {"level": "error", "event": "Task failed with exception", "error_detail": detail}
    after = json.dumps({"level": "info", "event": "Task instance in failure state"})
    assert told([json.dumps(failed), after]) == ("config", "FileNotFoundError: a.csv")
    dated = [f"2026-01-02T03:04:0{n}.000001Z {line}" for n, line in enumerate((json.dumps(failed), after))]
    assert told(dated) == ("config", "FileNotFoundError: a.csv")
    for unusual in ([], [7], [{"exc_value": "a.csv"}], "text"):
        assert told([json.dumps({**failed, "error_detail": unusual}), after])[0] == "none"


@pytest.mark.parametrize("head", ["", "2026-01-02T03:04:05.000001Z "])
def test_json_may_hold_what_is_no_text(head):
    line = head + json.dumps({"level": "error", "event": "cannot open a\udcff.csv"})
    assert told([line])[0] == "data"


def test_wandb_says_how_a_run_ended():
    """https://github.com/nurpax/context_enhancement"""
    head = "2022-03-15 00:35:32,247 INFO    MainThread:7132 [wandb_run.py:_atexit_cleanup():1780] "
    after = [
        f"2022-03-15 00:35:33,{n} INFO    SenderThread:7132 [sender.py:finish():1070] sent"
        for n in range(100, 140)
    ]
    assert told([f"{head}got exitcode: 1", *after])[0] == "unknown"
    assert told([f"{head}got exitcode: -1", *after])[0] == "unknown"
    assert told([f"{head}got exitcode: 255", *after])[0] == "cancelled"
    assert told([f"{head}got exitcode: 0", *after])[0] == "none"
