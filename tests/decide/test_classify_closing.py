"""What the last lines of a log complain of, in words of which the catalogue knows none."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import LogScanner, builtin_catalogue, classify, judge
from prefect_ft.decide.classify.closing import complaint_of, may_complain
from prefect_ft.decide.classify.heads import read_line
from prefect_ft.decide.classify.said import said_by, said_of_exception

WELL = [f"step {number} loss 0.{number}" for number in range(1, 6)]


def told(lines, exit_code=None):
    verdict = classify({"a.log": [*WELL, *lines]}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line, verdict.confidence


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        pytest.param("fatal error: the tile compiler crashed while lowering", "compile", id="compiler"),
        pytest.param("error: kernel build failed for gather_rows", "compile", id="kernel"),
        pytest.param("F0102 03:04:05.678901 7 jit.cc:7] ld returned 1 exit status", "compile", id="a-fatal-level"),
        pytest.param("main.hip:12: error: expected ';'", "compile", id="a-compiler-s-form"),
        pytest.param("ERROR: the volume /scratch7 is full", "storage", id="full"),
        pytest.param("Error: the peer at n7 hung up", "network", id="peer"),
        pytest.param("ERROR: cannot resolve the name of the parameter server", "network", id="name"),
        pytest.param("ERROR: LoadError: the archive is truncated", "data", id="julia"),
        pytest.param("lua: train.lua:7: out of GPU memory", "oom_device", id="lua"),
        pytest.param("ERROR in allocator: not enough memory on the device", "oom_device", id="device-memory"),
        pytest.param("FATAL: option --widht: unknown option", "config", id="option"),
        pytest.param("Error: the dataset of this name does not exist", "config", id="missing"),
        pytest.param("fatal: gradient is NaN at layer 7", "numeric", id="nan"),
        pytest.param("Error: cannot read the checkpoint of epoch 7", "checkpoint", id="checkpoint"),
        pytest.param("FATAL: GPU 3 is lost", "hardware", id="device"),
        pytest.param("error: matrices have incompatible shapes", "user_code", id="shapes"),
        pytest.param("Error: trial was cancelled", "cancelled", id="cancelled"),
        pytest.param("Fatal: this instance is being reclaimed", "preempted", id="reclaimed"),
        pytest.param(
            "/opt/torch/bin/luajit: train.lua:166: $ Torch: not enough memory: you tried to allocate 0GB. Buy new RAM!",
            "oom_host",
            id="host-memory",
        ),
        pytest.param("Error: Whatever", "unknown", id="nothing-that-is-known"),
        pytest.param("**Killed**", "unknown", id="a-kill-in-an-issue"),
        pytest.param("RNA pipeline failed: clusters are required for a dendrogram", "unknown", id="a-pipeline"),
        pytest.param("Training finished with exit code 3", "unknown", id="an-exit-code"),
        pytest.param("rc=2", "unknown", id="a-return-code"),
        pytest.param("pure virtual method called", "crash", id="a-virtual-method"),
        pytest.param("ibv_poll_cq: error, status 12 (transport retry counter exceeded)", "network", id="retries"),
        pytest.param("qmaster: job 7 exceeded hard h_vmem limit, sending SIGKILL", "oom_host", id="sge-memory"),
        pytest.param("flux-job: tasks exited with exit code 7: timelimit exceeded", "cancelled", id="flux-time"),
        pytest.param("flux-job: job fX exception: type=cancel severity=0", "cancelled", id="flux-cancel"),
        pytest.param("[FAIL] exit 1  (both attempts failed)", "unknown", id="an-exit-in-a-script"),
        pytest.param("[FAIL] SMOKE FAILED: a_notebook (exit 1)", "unknown", id="an-exit-in-brackets"),
        pytest.param("FAILED (exit 143) [2345.0s] scripts.train_model", "preempted", id="an-exit-by-sigterm"),
        pytest.param("[FAIL] exit 139", "crash", id="an-exit-by-a-crash"),
        pytest.param("the trainer ended, rc=-2", "cancelled", id="an-exit-by-ctrl-c"),
        pytest.param("[FAIL] exit 137", "unknown", id="an-exit-by-a-kill"),
        pytest.param("Error: hook post-run rc=7", "unknown", id="an-exit-by-no-signal"),
        pytest.param("Error: hook post-run rc=127", "config", id="an-exit-of-a-missing-command"),
        pytest.param("sweep failed, rc = -11", "crash", id="a-return-code-with-spaces"),
        pytest.param("ERROR - no inputs: you should supply input_ids, but you provided []", "user_code", id="provided"),
        pytest.param("[01/02/2026-15:11:31] &&&& FAILED Acme.exec [Acme v8] # ./exec", "unknown", id="tensorrt"),
        pytest.param("ERROR - Training failed: Found variables with inconsistent numbers of samples: [6, 7]",
                     "user_code", id="numbers-of-samples"),
        pytest.param("Error reading 7.png: 2 validation errors for SignalRule", "data", id="an-answer-of-another-form"),
        pytest.param("ValueError: Invalid CUDA 'device=7' requested", "config", id="a-device-that-is-not-there"),
        pytest.param("timeout : ERROR: Invalid syntax. Default option is not allowed more than '1' time(s).", "config",
                     id="a-command-of-windows"),
        pytest.param("Error: 1 validation error for TrainerConfig", "config", id="a-config-of-another-form"),
        pytest.param("ERROR [acme] [src\\main.rs:132] Server is shutting down: no peer answers", "unknown",
                     id="a-server-that-ends"),
        pytest.param("panic: invalid character '\\n' in string literal", "user_code", id="a-panic-of-go"),
        pytest.param("2026-01-02 03:04:05 KeyboardInterrupti/env/acme/trainer.py\", line 7", "cancelled",
                     id="an-interruption-over-another-line-behind-a-time"),
        pytest.param("KeyboardInterrupti/env/lib/python3.12/acme/trainer.py\", line 7, in step", "cancelled",
                     id="an-interruption-over-another-line"),
    ],
)  # fmt: skip
def test_what_a_log_ends_with_says_what_kind_it_is(line, failure_class):
    assert told([line]) == (failure_class, len(WELL) + 1, "low")
    assert told([line], 1)[:2] in ((failure_class, len(WELL) + 1), ("unknown", None))


@pytest.mark.parametrize(
    "line",
    [
        "test error: 0.0512",
        "Error 0.5 %",
        "Error: 1.4249672553034998e-09",
        "Max steps reached, exiting.",
        "Aborted trials: 0",
        "Failure rate 0.03 over 100 episodes",
        "terminated=True truncated=False reward=1.0",
        "Panic selling detected in the data: 3 events",
        "Terminating early because patience ran out",
        "Terminating all worker processes",
        "could not open /data/c.jpg; replaced by a blank image",
        "flash_attn is not installed; using sdpa",
        "nan encountered in grad, zeroing",
        "Network failure probability 0.1 (simulated)",
        "preempted low-priority requests: 3",
        "Cache miss; evicting entry",
        "libGL error: failed to load driver: swrast",
        "grep: missing.txt: No such file or directory",
        "Disk usage: 98% full",
        "fatal: detected dubious ownership in repository at '/w'",
        "All jobs finished, exiting now",
        "2024-07-30 17:02:02 | ERROR | stderr | INFO:     Application shutdown complete.",
        "Exit code: 0",
        "status: 200",
        "mean error = 0.25",
        "top-5 error: 7.1",
        "0 errors, 0 failed",
        "Error rate: 0.1",
        "ERROR: could not load the extension, falling back to python",
        "Error: connection lost, retrying",
        "WARNING: connection refused",
        "W0102 03:04:05.678901 7 net.cc:7] connection refused by peer",
        "I0102 03:04:05.678901 7 net.cc:7] the error handler is set",
        ">>> raise OSError  # Error: no space left on device",
        "+ echo Error: the disk is full",
        "# error bars are of three runs",
        "Exception in thread router:",
        "[skip] Failed to load model7.ckpt: no such layer",
        "*** Best metric: OrderedDict([('loss', 4.518), ('top1', 4.95)]) (epoch 110)",
        "03/23/2021 21:06:45 - INFO - __main__ -   *** Evaluate ***",
        "Failed this run (check error log) : 0",
        "CRITICAL:__main__:Starting finetuning",
        "slurmstepd: error: common_file_write: write pid 7 to /sys/fs/cgroup/x/cgroup.procs failed: Device busy",
        "slurmstepd: error: _cgroup_procs_check: failed on path (null)/cgroup.procs: No such file or directory",
        "slurmstepd: error: Unable to create TMPDIR [/scratch/7]: Permission denied",
        "slurmstepd: error: whatever it is",
        "wandb: ERROR something of its own",
        "Unable to open log file. Permission denied",
        "error: XDG_RUNTIME_DIR not set in the environment.",
        "fatal: not a git repository (or any of the parent directories): .git",
        "rm: cannot remove 'tmp/*': No such file or directory",
        "bash: /home/me/.bashrc: Permission denied",
        "sh: 1: nvidia-smi: not found",
        "job.sh: line 7: module: command not found",
        "ERROR: ld.so: object 'a.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
        "[Errno 2] No such file or directory: 'cache.pkl'; recomputing",
        "ModuleNotFoundError: No module named 'apex' - falling back to torch",
        "Failed to import flash_attn, using the default attention",
        "W0102 03:04:05.678901 7 data.cc:7] Error occurred when finalizing an iterator",
        "[2026-01-02 03:04:05,678][hub.http][WARNING] - '(MaxRetryError(\"HTTPSConnectionPool(host='x', port=443)\"))'",
        "/opt/lib/python3.10/PIL/TiffImagePlugin.py:900: UserWarning: Truncated File Read",
        "Failed cases: 12",
        "FAILED: 3/100 problems",
        "Crash rate: 0.12",
        "ERROR - Failed to send metrics to the server",
        'HTTP Request: POST https://api.acme/v1 "HTTP/1.1 500 Internal Server Error"',
        "Killed worker 3 after a timeout, restarting it",
        "The attention mask is not set. As a consequence, you may observe unexpected behavior.",
        '{"time":"2025-12-12T12:15:18.5Z","level":"ERROR","msg":"HTTP error","status":403,"method":"POST"}',
        "2024-11-09 02:30:14,629 ERROR   gpu       :356 [interfaces.py:monitor():144] Failed to sample: GPU is lost",
        "Checkpoint tracker file does not exist: /runs/7/latest_checkpointed_iteration.txt",
        "  Error: the disk is full",
        "[node-7:368188] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
        "/exit or Ctrl + C to leave",
        "使用 /exit 或 Ctrl + C 结束程序",
        "[DEBUG] acme.core.globals failed: cannot import name 'fluid' from 'acme'",
        "+++ exited with 0 +++",
        "INFO [acme] [src/main.rs:132] Server is shutting down: asked to",
        "Error in <TSystem::ExpandFileName>: input: $HOME/.root.mimes, output: $HOME/.root.mimes",
        'access("/etc/ld.so.preload", R_OK)      = -1 ENOENT (No such file or directory)',
        "rt_sigaction(SIGSEGV, NULL, {sa_handler=SIG_DFL, sa_mask=[], sa_flags=0}, 8) = 0",
    ],
)
def test_what_complains_of_no_end(line):
    assert told([line])[0] == "none"
    assert told([f"2026-01-02T03:04:05.678Z {line}"])[0] == "none"


def test_progress_after_a_complaint_shows_that_it_was_no_end():
    line = "Error: the peer at n7 hung up"
    assert told([line, "step 7", "step 8", "step 9"])[0] == "none"
    assert told([line, "Training complete"])[0] == "none"
    assert told([line, *["words"] * 3])[0] == "network"


def test_a_metric_may_be_named_like_an_end():
    assert told(["Model test error: 75.50789."])[0] == "none"
    rest = ["words"] * 3
    assert told(["***bus error@trans, scale | AP@0.5, 1.0", *rest])[0] == "none"
    assert told(["***bus error: address 7", *rest])[0] == "crash"


def test_a_complaint_of_no_known_kind_stands_at_the_very_end_of_a_log():
    assert told(["Error: Whatever", "wrote 7", "wrote 8"])[0] == "unknown"
    assert told(["Error: Whatever", "wrote 7", "wrote 8", "wrote 9"])[0] == "none"
    assert told(["Error: Whatever", "wrote 7", "wrote 8", "wrote 9"], 1)[0] == "unknown"
    assert told(["Error: the volume is full", "wrote 7", "wrote 8", "wrote 9"])[0] == "storage"


def test_work_that_is_saved_shows_that_a_complaint_in_unknown_words_was_no_end():
    line = "Error with mp-1342, confirm existence"
    assert told([line, "Done generating relatives", 'Saved data to "list.pkl"'])[0] == "none"
    assert told([line, "bye"])[0] == "unknown"
    assert told(["Error: the peer at n7 hung up", 'Saved data to "list.pkl"'])[0] == "network"


def test_of_a_job_that_has_failed_weak_words_count_too():
    line = "the peer at n7 is unreachable"
    assert told([line, *["words"] * 3])[0] == "none"
    assert told([line, *["words"] * 3], 1) == ("network", len(WELL) + 1, "low")


def test_weak_words_count_where_a_log_ends_with_them():
    assert told(["the peer at n7 is unreachable", *["words"] * 2]) == ("network", len(WELL) + 1, "low")
    assert told(["something unheard of"])[0] == "none"


def test_the_first_that_says_why_counts_among_those_that_stand_together():
    lines = ["Error: something", "Error: the volume /scratch7 is full", "Error: the peer at n7 hung up"]
    assert told(lines)[:2] == ("storage", len(WELL) + 2)
    assert told([lines[1], *["words"] * 30, lines[2]])[:2] == ("network", len(WELL) + 32)


def test_what_the_catalogue_knows_comes_first():
    assert told(
        ["Error: the peer at n7 hung up", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"]
    )[0] == ("oom_device")


def test_a_program_says_why_before_it_crashes():
    said = "F0102 03:04:05.678901 7 jit.cc:7] the shader compiler failed"
    assert told([said, "Aborted (core dumped)"], 134)[:2] == ("compile", len(WELL) + 1)
    assert told(["Aborted (core dumped)"], 134)[0] == "crash"
    assert told([said, *["words"] * 9, "Aborted (core dumped)"], 134)[0] == "crash"


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_complaints_are_the_same_in_any_pieces(pieces):
    data = "\n".join([*WELL, *["words"] * 3000, "Error: the volume /scratch7 is full", "bye"]).encode()
    scanner = LogScanner("a")
    size = len(data) // pieces + 1
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    verdict = judge([scanner.findings()])
    assert (verdict.failure_class, verdict.evidence.line) == ("storage", len(WELL) + 3001)


def test_of_several_logs_the_one_that_says_more_counts():
    verdict = classify({"a": ["Error: something"], "b": ["Error: the volume /scratch7 is full"]}, exit_code=1)
    assert (verdict.failure_class, verdict.evidence.file) == ("storage", "b")


@pytest.mark.parametrize(
    ("message", "failure_class"),
    [
        ("the plan index is malformed", None),
        ("the shard is malformed", "data"),
        ("shapes (3, 4) and (5, 6) must match", None),
        ("a device ran out of memory", "oom_device"),
        ("unable to contact the coordinator", "network"),
        ("the process was killed by its owner", None),
        ("kernel compilation failed", "compile"),
    ],
)
def test_what_the_message_of_an_exception_says(message, failure_class):
    assert said_of_exception(message) == failure_class


@pytest.mark.parametrize(
    ("text", "failure_class"),
    [
        ("worker ran out of the host memory", "oom_host"),
        ("node n7 has failed", "hardware"),
        ("uncorrectable error in HBM", "hardware"),
        ("port 29500 is already in use", "port_in_use"),
        ("panicked at src/main.rs:7", "crash"),
        ("assertion `a == b` failed", "assertion"),
        ("the weather is fine", None),
    ],
)
def test_what_a_line_says(text, failure_class):
    assert said_by(text) == failure_class


# -- runs, ends and tracebacks ------------------------------------------------------------------------

HEAD = "Traceback (most recent call last):"
USER = ['  File "/app/train.py", line 7, in <module>', "    main()"]
LIBRARY = "/opt/venv/lib/python3.11/site-packages"
LATE = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"


def plain(lines, exit_code=None):
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


def test_a_launcher_s_first_line_may_be_printed_last():
    failed = [HEAD, *USER, "ValueError: x"]
    assert plain([*failed, LATE, "*****"]) == ("user_code", 4)
    assert plain([*failed, LATE, "step 1", "step 2", "step 3"])[0] == "none"
    assert plain([*failed, LATE, *[f"words and words {number}" for number in range(200)]])[0] == "none"
    assert plain([*failed, LATE, *failed[:3], "KeyError: 'a'"]) == ("user_code", 9)


def test_whatever_complains_may_complain():
    """Lines in which one search finds nothing are not looked at further, so it must miss none that complains."""
    heads = (
        "",
        "  ",
        "ERROR: ",
        "[rank3]: ",
        "2026-01-02 03:04:05,678 - INFO - ",
        "10%|# | 1/9 [00:01<00:08, 1.0it/s] ",
    )
    examples = [one.example for one in builtin_catalogue().signatures]
    for text in [*examples, 'status = "x"', "giving up", "Aborting...", "x exiting!", "rc: 7"]:
        for line in (read_line((head + text).encode()) for head in heads):
            assert complaint_of(line) is None or may_complain(line), line


def test_colours_add_nothing_to_the_distance_between_two_lines():
    lines = [*[f"words and words {number}" for number in range(300)], HEAD, *USER, "ValueError: x", LATE]
    assert plain(lines) == ("user_code", 304)
    assert plain([f"\x1b[36m{line}\x1b[0m" for line in lines]) == ("user_code", 304)


@pytest.mark.parametrize(("prefix", "table"), [("[rank{}]: ", "rank      : 9 (local_rank: 1)"),
                                               ("[default{}]:", "rank      : 17 (local_rank: 9)")])  # fmt: skip
def test_of_several_ranks_that_which_torchrun_names_counts(prefix, table):
    def failed(rank, exception):
        return [prefix.format(rank) + line for line in (HEAD, *USER, exception)]

    lines = [*failed(1, "ValueError: x"), *failed(9, "KeyError: 'a'")]
    report = ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-01-02_03:04:05", f"  {table}",
              "  exitcode  : 1 (pid: 7)"]  # fmt: skip
    assert plain([*lines, *report], 1) == ("user_code", 8)
    assert plain(lines, 1) == ("user_code", 4)
    of_two = [f"{node}: {line}" for node in (0, 1) for line in report]
    assert plain([*lines, *of_two], 1) == ("user_code", 4)
    assert plain([*lines, *report[:1], *report[4:]], 1) == ("user_code", 4)
    assert plain([*lines, report[0], "  rank      : 7 (local_rank: 7)"], 1) == ("user_code", 4)


def test_a_report_of_a_batch_system_closes_a_run():
    report = ["TERM_OWNER: job killed by owner.", "Exited with exit code 143.",
              "The output (if any) is above this job summary."]  # fmt: skip
    failed = [HEAD, *USER, "ValueError: x", "Exited with exit code 1.", report[2]]
    assert plain([*failed, "Aborted!", *report], 143) == ("cancelled", 8)
    assert plain(failed, 1) == ("user_code", 4)


def test_of_two_jobs_in_one_log_the_last_counts():
    first, last = (
        f"slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT 2026-01-02T03:04:05 ***" for job in (7, 8)
    )
    assert plain([first, *["words"] * 40, last]) == ("cancelled", 42)
    assert plain([first, last]) == ("cancelled", 1)


def test_a_traceback_that_begins_within_a_library_was_caught_there():
    inner = [f'  File "{LIBRARY}/acme/native.py", line 7, in <module>', "    load()"]
    assert plain([HEAD, *inner, "AttributeError: x", "going on without it"])[0] == "none"
    assert plain([HEAD, *USER, *inner, "AttributeError: x"]) == ("config", 6)
    assert plain([HEAD, '  File "<string>", line 1, in <module>', "ValueError: x"]) == ("user_code", 3)


def test_a_process_dies_of_one_exception_only():
    one = [f"(Loop pid=7) {line}" for line in (HEAD, *USER, "ValueError: x")]
    several = [*one, "words", *one, "words", *one]
    assert plain([*several, "words", "more", "words"])[0] == "none"
    assert plain([*several, "words", "more", "words"], 1)[0] == "user_code"
    assert plain([*several, "words", "more"])[0] == "user_code"  # it may be the last one that it died of
    assert plain(one) == ("user_code", 4)


def test_code_says_what_is_raised_where_the_log_breaks_off():
    cut = [HEAD, *USER, '  File "/app/a.py", line 3, in f', '    raise FloatingPointError(f"x became nan']
    assert plain(cut) == ("numeric", 5)
    notebook = [
        "FloatingPointError                        Traceback (most recent call last)",
        "File ~/a.py:7, in f(x)",
        "      6 if bad:",
        '----> 7   raise FloatingPointError("nan in x',
    ]
    assert plain(notebook) == ("numeric", 4)


def test_a_bare_assertion_is_shown_with_its_code():
    lines = [
        HEAD,
        *USER,
        '  File "/app/a.py", line 3, in f',
        "    assert rows == columns",
        "           ^^^^",
        "AssertionError",
    ]
    verdict = classify({"a": lines}, exit_code=1)
    assert (verdict.evidence.text, verdict.evidence.line) == ("AssertionError: assert rows == columns", 7)
    assert (
        classify({"a": [*lines[:-1], "AssertionError: x"]}, exit_code=1).evidence.text == "AssertionError: x"
    )


def test_a_file_that_a_loader_misses_is_of_the_data():
    frames = [*USER, '  File "/app/data.py", line 7, in __getitem__', "    open(name)"]
    assert (
        plain([HEAD, *frames, "FileNotFoundError: [Errno 2] No such file or directory: 'a.jpg'"])[0] == "data"
    )
    assert (
        plain([HEAD, *USER, "FileNotFoundError: [Errno 2] No such file or directory: 'a.yaml'"])[0]
        == "config"
    )


def test_what_ends_another_program_does_not_explain_a_later_exception():
    shell = "/var/spool/job7/script: line 3: mdoule: command not found"
    assert plain([shell, HEAD, *USER, "ValueError: x"]) == ("user_code", 5)
    missing = "/usr/bin/python3: can't open file 'tarin.py': [Errno 2] No such file or directory"
    assert plain([missing, HEAD, *USER, "ValueError: x"]) == ("user_code", 5)


def test_a_warning_with_the_number_weighs_as_much_as_the_error_it_stands_for():
    lines = [
        "[W socket.cpp:400] [c10d] The server socket cannot bind to [::]:7777 (errno: 98 - Address already in use).",
        "[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.",
    ]
    assert told(lines) == ("port_in_use", len(WELL) + 1, "high")
    assert told([*lines, "/spool/job.sh: 7: --lr=0.1: not found"]) == ("port_in_use", len(WELL) + 1, "high")
    assert told(lines[:1]) == ("none", None, "low")


@pytest.mark.parametrize(
    "missing", ["/spool/job_7: 7: --lr=0.1: not found", "job.sh: line 7: --lr=0.1: not found"]
)
def test_a_command_that_a_script_does_not_find_is_a_later_line_of_it_where_a_run_progressed(missing):
    stuck = "[E ProcessGroupNCCL.cpp:70] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
    assert plain([stuck, missing]) == ("config", 2)
    assert plain([missing]) == ("config", 1)
    assert plain([missing, *["an answer"] * 11])[0] == "none"
    assert told([stuck, missing]) == ("collective_timeout", len(WELL) + 1, "high")
    assert told([missing])[0] == "none"
    assert told([missing], 127)[:2] == ("config", len(WELL) + 1)


def test_an_interruption_counts_in_the_last_lines_whatever_its_level():
    line = "[2026-01-02 03:04:05,678] [INFO] [spawn.py:7:on_signal] Parent received SIGINT, leaving"
    assert told([line]) == ("cancelled", len(WELL) + 1, "low")
    assert told([line, *WELL])[0] == "none"
    assert told([line, *["bye"] * 4])[0] == "cancelled"
    assert told([line, *["bye"] * 5])[0] == "none"


def test_a_run_has_failed_of_which_torchrun_has_a_table():
    caught = [
        f"[rank1]: {line}"
        for line in (
            "Traceback (most recent call last):",
            '  File "/opt/venv/lib/python3.11/site-packages/acme/cli.py", line 7, in <module>',
            "    kernel()",
            "RuntimeError: the kernel only supports heads of 64",
        )
    ]
    table = ["Root Cause (first observed failure):", "[0]:", "  rank      : 1 (local_rank: 1)",
             "  exitcode  : 1 (pid: 77)"]  # fmt: skip
    assert told(caught)[0] == "none"
    assert told([*caught, *table]) == ("config", len(WELL) + 4, "low")


def test_watches_that_run_out_are_no_full_disk():
    line = "[1.5] [n7:99:0]  vfs.c:70   UCX  ERROR inotify_add_watch(/run/x) failed: No space left on device"
    assert told([line])[0] == "none"
    raised = "OSError: [Errno 28] inotify_add_watch(/run/x) failed: No space left on device"
    head = ["Traceback (most recent call last):", '  File "/app/t.py", line 7, in <module>', "    watch()"]
    assert told([*head, raised], 1)[0] == "storage"
    assert told(["cp: error writing '/run/x': No space left on device"])[0] == "storage"


def test_no_device_may_be_the_set_up_or_a_lost_one():
    verdict = classify({"a": [HEAD, *USER, "RuntimeError: No CUDA GPUs are available"]}, exit_code=1)
    assert (verdict.failure_class, verdict.confidence) == ("config", "low")


def test_a_crash_within_a_compiler_is_of_the_compiler():
    frame = "    @     0x7f0a1b2c3d4e       1328  acme::gpu::TileCompiler::RunBackend()"
    assert (
        plain(["*** SIGABRT received by PID 7 (TID 7) on cpu 1 from PID 7; stack trace: ***", frame])[0]
        == "compile"
    )


def test_an_exception_that_says_nothing_is_told_by_the_line_above_it():
    raised = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 7, in f',
        "    g()",
        "Exception",
    ]
    assert told(["sweep7: Ctrl + C detected. Stopping."])[0] == "cancelled"
    assert told(["sweep7: Ctrl + C detected. Stopping.", *raised]) == ("cancelled", len(WELL) + 1, "low")
    assert told(["all is well", *raised])[0] == "user_code"
    raised[-1] = "KeyError: 'x'"
    assert told(["sweep7: Ctrl + C detected. Stopping.", *raised])[0] == "user_code"


def test_the_exception_counts_that_a_line_before_its_logged_traceback_tells_of():
    raised = ["Traceback (most recent call last):", '  File "/app/train.py", line 7, in f', "    g()"]
    full = "CUDA out of memory. Tried to allocate 2 GiB"
    logged = [
        f"ERROR:app:failed to load: {full}",
        *raised,
        *["    h()"] * 40,
        f"torch.OutOfMemoryError: {full}",
    ]
    assert told([*logged, *raised, f"RuntimeError: failed to load: {full}"])[1] == len(WELL) + 49


@pytest.mark.parametrize(
    ("last", "failure_class"),
    [
        pytest.param("epoch 7 - training loss: nan", "numeric", id="loss"),
        pytest.param("[INFO] ep=7 L=nan grad=0.1", "numeric", id="short"),
        pytest.param("perplexity = nan", "numeric", id="perplexity"),
        pytest.param("  perplexity    =     nan", "none", id="in-what-a-trainer-sums-up-at-its-end"),
        pytest.param("epoch 7 loss: 0.3 val_loss: nan", "none", id="one-of-two"),
        pytest.param("accuracy: nan", "none", id="not-a-loss"),
        pytest.param(
            "Train: [241/300][200/312] loss 10.3 (11.3) grad_norm 9.4 (inf)", "none", id="an-average"
        ),
    ],
)
def test_the_last_loss_is_no_number(last, failure_class):
    assert told([last])[0] == failure_class
    assert told([last, "epoch 8 loss: 0.2"])[0] == "none"
    assert told([last], 0)[0] == "none"


LOST = "Reason: Request timed out: HTTPSConnectionPool(host='api.acme', port=443): Read timed out."


@pytest.mark.parametrize(("after", "failure_class"), [(10, "network"), (11, "none")])
def test_a_run_survives_what_it_prints_and_then_goes_on(after, failure_class):
    lines = [LOST, *["an answer"] * after]
    assert plain(lines)[0] == failure_class
    assert plain(lines, 1)[0] == "network"


@pytest.mark.parametrize("last", ["step 7: gradient is nan", "loss 0.3, nan gradient, stopped at step 7"])
def test_a_gradient_that_is_no_number_is_a_complaint_without_a_loss_at_a_place(last):
    assert told([last])[0] == "numeric"


def test_what_wandb_sums_up_is_no_end():
    for head in ("", "2026-01-02 03:04:05 "):
        assert told([f"{head}wandb: train_batches/train_loss nan"])[0] == "none"


def test_an_exception_that_a_hook_could_not_show_has_ended_the_program():
    lines = [
        "Error in sys.excepthook:",
        "Traceback (most recent call last):",
        '  File "/app/hook.py", line 7, in f',
    ]
    assert told(lines)[0] == "unknown"
    assert (
        told(
            [
                *lines,
                "    g()",
                "KeyError: 'x'",
                "",
                "Original exception was:",
                *lines[1:],
                "    g()",
                "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
            ]
        )[0]
        == "oom_device"
    )


def test_further_lines_of_a_collective_s_error_say_why():
    raised = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 7, in f',
        "    g()",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:7, unhandled cuda error",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "Last error:",
    ]
    assert told(raised, 1)[0] == "crash"
    assert told([*raised, "Cuda failure 2 'out of memory'"], 1)[:2] == ("oom_device", len(WELL) + 7)


def test_the_message_of_a_crash_says_why():
    crash = "terminate called after throwing an instance of 'acme::Error'"
    assert told([crash, "  what():  link 7: uncorrectable ECC error"], 134)[:2] == ("hardware", len(WELL) + 2)
    assert told([crash, "  what():  x"], 134)[0] == "crash"


def test_what_a_library_runs_as_a_program_is_no_import():
    library = "/opt/venv/lib/python3.11/site-packages/acme/train.py"
    frames = [
        f'  File "{library}", line 7, in <module>',
        "    main()",
        f'  File "{library}", line 9, in main',
        "    f()",
    ]
    started = [
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "<frozen runpy>", line 88, in _run_code',
    ]
    imported = ['  File "/app/train.py", line 1, in <module>', "    import acme"]
    head, end = "Traceback (most recent call last):", "acme.VaultError: x"
    assert told([head, *imported, *frames, end], 1)[0] == "config"
    assert told([head, *started, *frames, end], 1)[0] == "user_code"


def test_complaints_about_one_item_after_the_other_are_about_no_end():
    """https://github.com/TheDingodile/ML_final"""
    items = [
        line
        for number in (5161, 5165, 5167, 5169)
        for line in (f"Error executing query {number}: Unexpected token", "select count(*) from t1")
    ]
    assert told([*items, "1158 queries"])[0] == "none"
    assert told([*items[:2], "1158 queries"])[0] == "unknown"
    assert told([f"Error of rank {rank}: Unexpected token" for rank in range(4)])[0] == "unknown"


def test_what_stands_above_many_empty_lines_is_the_end():
    """https://github.com/luo7297605/Eagle-YOLO"""
    assert told([""] * 9000)[0] == "none"
    assert told(["Error: the volume /scratch7 is full", *[""] * 9000])[:2] == ("storage", len(WELL) + 1)


def test_possible_causes_are_not_stated():
    died = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
    causes = (
        "Some common causes include: (1) the process was killed by the OOM killer, (2) it crashed by SIGSEGV."
    )
    assert plain([f"{died} {causes}"])[0] == "unknown"
    assert plain(["the process was killed by the OOM killer"])[0] == "oom_host"


def test_a_log_that_ends_within_a_thread_s_traceback_shows_no_end():
    frames = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.12/threading.py", line 7, in _bootstrap_inner',
        "    self.run()",
    ]
    assert told(["Exception in thread Thread-7:", *frames])[0] == "none"
    assert told(frames)[0] == "unknown"


@pytest.mark.parametrize("head", ["", "2026-01-02T03:04:05.000678Z "])
def test_a_complaint_of_no_known_kind_is_over_where_the_program_prints_as_before(head):
    item = ["Tools: [{'function': 'run'}]", "Enable thinking: None"]
    lines = [*item, "[root][ERROR] - Error applying chat template: none is set", "another message", *item]
    assert told([head + line for line in [*lines, "more"]])[0] == "none"
    assert told([head + line for line in lines[:4]])[0] == "unknown"


@pytest.mark.parametrize(
    ("times", "apart_minutes", "failure_class"), [(3, 0, "unknown"), (2, 1, "unknown"), (3, 1, "none")]
)
def test_what_a_program_logs_again_a_minute_later_ended_nothing(times, apart_minutes, failure_class):
    """A server's log in raoyun/yolo."""
    at = [f"[2026-01-02 03:{4 + each * apart_minutes:02}:05.25]" for each in range(times)]
    assert told([f"{time} ERROR: UserDao: registration failed" for time in at])[0] == failure_class
    assert told([f"{time} fatal: UserDao: registration failed" for time in at])[0] == "unknown"


@pytest.mark.parametrize(
    "advice",
    [
        "Important: You should give only the planning to solve the problem. Do not add words.",
        "`label` got an empty value. This is discouraged and may be disallowed by raising an exception.",
        "ERROR - tokenization_utils -   Using sep_token, but it is not set yet.",
        "Error while loading conda entry point: a-solver (libarchive.so.20: cannot open shared object file)",
    ],
)
def test_advice_at_the_end_is_no_failure(advice):
    assert told([advice])[0] == "none"


def test_a_line_at_the_level_of_errors_tells_a_kind_without_the_word_error():
    """TensorRT's trtexec, as in Key9x98/Stable-Diffusion."""
    ended = "&&&& FAILED TensorRT.trtexec [TensorRT v101200] # trtexec --onnx=net.onnx"
    assert told(["[01/02/2026-03:04:05] [E] Unknown option: --workspace 64", ended]) == ("config", 6, "low")
    assert told(["[01/02/2026-03:04:05] [I] Unknown option: --workspace 64", ended])[:2] == ("unknown", 7)


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("2026-01-02 03:04:05,006 - main.py[line:7] - ERROR: client 7 round 9 acc [0.25, 0.5]", "none"),
        ("2026-01-02 03:04:05,006 - main.py[line:7] - ERROR: client 7 round 9 acc: 0.25", "none"),
        ("2026-01-02 03:04:05,006 - main.py[line:7] - ERROR: acc: 0.25 is of no use", "unknown"),
        ("2026-01-02 03:04:05,006 - main.py[line:7] - ERROR: 2568", "none"),
        ("2026-01-02 03:04:05,006 - main.py[line:7] - ERROR: client 7 round 9 gave up", "unknown"),
        ("[2026-01-02 03:04:05,006] 0 picks discarded because of unavailable station information", "none"),
        (
            "[2026-01-02 03:04:05,006] 40 picks discarded because of unavailable station information",
            "network",
        ),
    ],
)
def test_results_and_counts_of_nothing_are_no_complaints(line, failure_class):
    """Of whuLames/FedGraph, which logs its results as errors, and darren-tpk/enhance_catalog."""
    assert told([line])[0] == failure_class


def test_lines_as_before_may_have_other_lists():
    """A program that goes on after an error of one item, for other tickers than before."""
    head = "2026-01-02 03:04:05,006 - "
    item = [f"{head}INFO - Sorted tickers by returns: ['A']", f"{head}INFO - Diversification check: limit 7%"]
    error = f"{head}ERROR - Error in prediction: pop from empty list"
    other = [item[0].replace("'A'", "'B', 'C'"), item[1]]
    assert told([*item, error, *item, error, *item, error, *other, *other])[0] == "none"
    assert told([*item, error, *item, error, *item, error, other[1], "Bye", "bye"])[0] == "user_code"
