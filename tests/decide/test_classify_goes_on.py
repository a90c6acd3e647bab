"""What a run survives, and what only follows from something else: judged by where it stands, not by its words."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import Catalogue, LogScanner, classify, judge
from prefect_ft.signatures import Signature

HEAD = "Traceback (most recent call last):"
LIB = "/opt/venv/lib/python3.12/site-packages/acme"
CLEANUP = "During handling of the above exception, another exception occurred:"
WELL = [f"step {number} loss 0.{number}" for number in range(1, 6)]
ANSWERS = ["an answer"] * 40


def threw(exception, *frames, prefix=""):
    """A traceback through these frames, each `FILE FUNCTION`."""
    lines = [HEAD]
    for frame in frames or ("/app/train.py <module>",):
        file, _, function = frame.partition(" ")
        lines += [f'  File "{file}", line 7, in {function}', "    call()"]
    return [prefix + line for line in [*lines, exception]]


def told(lines, exit_code=None):
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.text


# -- interruptions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "interruption", ["KeyboardInterrupt", "acme.SignalException: Process 7 got signal: 15"]
)
def test_what_follows_an_interruption_in_a_chain_is_clean_up(interruption):
    lines = [*threw(interruption, f"{LIB}/init.py start"), "", CLEANUP, "", *threw("AssertionError")]
    assert told([*WELL, *lines])[1] == interruption


def test_an_interruption_counts_more_than_what_a_library_was_handling():
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 1"
    inner = threw("KeyError: 30", "/usr/lib/python3.12/logging/__init__.py isEnabledFor")
    assert told([*WELL, *inner, "", CLEANUP, "", *threw(signal)]) == ("cancelled", signal)


def test_what_a_program_was_handling_was_no_end_unless_it_cleaned_up():
    inner = [*WELL, *threw("KeyError: 'part'", "/app/train.py step"), "", CLEANUP, ""]
    assert told([*inner, *threw("KeyboardInterrupt", "/app/train.py again")])[0] == "cancelled"
    assert told([*inner, *threw("KeyboardInterrupt", f"{LIB}/pool.py __exit__")])[0] == "user_code"


def test_words_about_an_exception_that_could_not_be_printed_are_not_the_cause():
    missing, printed = (
        "ModuleNotFoundError: No module named 'acme'",
        "UnicodeEncodeError: 'charmap' codec can't encode",
    )
    assert told([*threw(missing), "", CLEANUP, "", *threw(printed)]) == ("config", missing)
    assert told([*threw(printed), "", CLEANUP, "", *threw(f"{printed} twice")]) == (
        "user_code",
        f"{printed} twice",
    )


MISSING = "[Errno 2] No such file or directory: 'ck/last.pt'"


@pytest.mark.parametrize(
    "line",
    [f"no checkpoint yet: {MISSING}", f"FileNotFoundError: {MISSING}", "cat: ck/last.pt: No such file"],
)
@pytest.mark.parametrize("after", [[], WELL])
def test_a_line_about_a_missing_file_kills_no_process(line, after):
    verdict = classify({"a.log": [line, *after]}, signal=9)
    assert (verdict.failure_class, verdict.evidence.text) == ("unknown", "ended by SIGKILL")


EXITED, KILLED = "srun: error: n1: task 3: Exited with exit code 2", "srun: error: n0: tasks 0-2: Killed"
REFUSED = "train.py: error: unrecognized arguments: --learning-rte"


@pytest.mark.parametrize(
    ("ends", "failure_class"),
    [
        ([EXITED, KILLED], "config"),
        ([EXITED], "config"),
        ([KILLED, EXITED], "unknown"),
        ([KILLED], "unknown"),
        (["srun: error: n1: task 3: Exited with exit code 137", EXITED], "unknown"),
    ],
)
def test_a_launcher_that_kills_after_an_end_hides_no_line_about_that(ends, failure_class):
    assert classify({"a.log": [REFUSED, *ends]}, exit_code=137).failure_class == failure_class


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        (
            "Indexing.cu:7: select: block: [1,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
            "data",
        ),
        ("  what():  CUDA error: device-side assert triggered", "user_code"),
    ],
)
def test_an_assertion_on_a_device_explains_the_kill_of_its_process(line, failure_class):
    assert classify({"a.log": [*WELL, line]}, signal=9).failure_class == failure_class


def test_what_a_program_begins_without_is_not_why_it_ended():
    ended = threw("AttributeError: 'NoneType' object has no attribute 'fit'")
    for line in (f"no checkpoint yet: {MISSING}", f"{MISSING}, starting from scratch"):
        assert told([line, *ended], 1)[1] == ended[-1]
    assert told([f"cannot read settings: {MISSING}", *ended], 1)[0] == "config"


@pytest.mark.parametrize(
    "line",
    [
        f"error: no data yet: {MISSING}",
        "ERROR: tokenizer.json: No such file or directory: run from scratch is not supported",
    ],
)
def test_not_all_that_is_not_there_yet_or_made_from_scratch_is_gone_without(line):
    assert told([*WELL, line], 1) == ("config", line)


def test_a_terminal_interrupts_all_programs_at_once():
    other = threw("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/x/port'")
    assert told([*threw("KeyboardInterrupt"), *other])[0] == "cancelled"
    assert told([*threw("KeyboardInterrupt"), *ANSWERS, *other])[0] == "config"
    assert told([*other, *threw("KeyboardInterrupt")])[0] == "config"
    assert told(threw("RuntimeError: KeyboardInterrupt: "))[0] == "cancelled"


# -- exceptions that ended nothing ----------------------------------------------------------------------


def test_an_exception_that_a_function_printed_ended_nothing_if_much_follows():
    printed = threw("KeyError: 'part'", "/app/train.py evaluate")
    assert told([*printed, *ANSWERS[:30]])[0] == "user_code"
    assert told([*printed, *ANSWERS[:31]])[0] == "none"
    assert told([*printed, *ANSWERS], 1)[0] == "user_code"
    assert told([*threw("KeyError: 'part'"), *ANSWERS])[0] == "user_code"


def test_a_line_that_names_an_exception_ended_nothing_if_some_lines_follow():
    line = "TimeoutError: sample 7 took too long"
    assert told([*WELL, line])[0] == "network"
    assert told([*WELL, line, *ANSWERS[:11]])[0] == "none"


def test_lines_as_before_show_that_a_run_went_on():
    results = [f"Test accuracy of fold {number}: 0.9" for number in range(300)]
    failed = threw("KeyError: 'part'")
    assert told([*results[:20], *failed, *results[20:]])[0] == "none"
    assert told([*results[:20], *failed, *results[20:40]])[0] == "user_code"
    assert (
        told([*results[:20], *failed, *(f"other words {number} of a program" for number in range(300))])[0]
        != "none"
    )
    assert told([*results[:20], *failed, *results[20:]], 1)[0] == "user_code"


def test_what_logging_could_not_log_is_no_exception():
    lines = ["Call stack:", *threw("", "/app/train.py <module>")[1:-1], "Message: 'a: b'", "Arguments: (7,)"]
    assert told([*WELL, *lines])[0] == "none"


# -- ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", ["", "[default1]:", "3: "])
def test_what_other_ranks_print_as_they_are_ended_is_no_progress_of_the_one_that_failed(outer):
    failed = threw("ValueError: sample 7 has no label", prefix=f"{outer}[rank1]: ")
    late = [f"step    {number} | grad norm 3.6" for number in range(4)]
    reset = "[rank0]:[E1126 08:24:03.0 ProcessGroupNCCL.cpp:612] [Rank 0] NCCL error: remote process exited"
    assert told([*failed, *late, reset])[1] == "ValueError: sample 7 has no label"
    assert told([*failed, *late])[0] == "user_code"
    assert told([*failed, *(f"step {number} loss 0.5" for number in range(50))])[0] == "none"
    assert told([*failed, *(f"{outer}[rank1]: {line}" for line in late)])[0] == "none"


# -- what only tells of another failure ----------------------------------------------------------------


@pytest.mark.parametrize(
    "exception",
    [
        "RuntimeError: Executor failed.",
        "acme.EngineDead: The engine has an issue. See stack trace (above) for the root cause.",
        "SystemError: (Fatal) The queue is killed because the feeder raises an exception.",
        "exceptiongroup.ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "RuntimeError: Run task for graph:kernel_graph_37 error! The details refer to 'Acme Error Message'.",
    ],
)
def test_an_exception_that_only_tells_of_another_failure_says_nothing(exception):
    assert told(threw(exception))[0] == "unknown"
    cause = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    assert told([*threw(cause), *threw(exception)]) == ("numeric", cause)


def test_what_mindspore_says_of_a_kernel_that_failed_counts_more_than_its_exception():
    """As in https://github.com/mindspore-lab/mindaudio/issues/164."""
    kernel = "E39999  Aicpu kernel execute failed, device_id=0, stream_id=12, task_id=2."
    raised = threw("RuntimeError: Run task for graph:g error! The details refer to 'Ascend Error Message'.")
    assert told([kernel, *raised]) == ("crash", kernel)


@pytest.mark.parametrize(
    ("code", "expected"),
    [pytest.param(-6, "crash", id="signal"), pytest.param(1, "unknown", id="exception")],
)
def test_paddle_s_launcher_reports_how_a_rank_ended(code, expected):
    """As in https://github.com/PaddlePaddle/Paddle/issues/47326."""
    report = f"Container rank 0 status failed cmd ['python3', 'train.py'] code {code} log log/default.0.log"
    assert told(["LAUNCH INFO 2026-01-02 03:04:05,678 Pod failed", report]) == (expected, report)


def test_a_fatal_signal_is_no_warning_whatever_the_level():
    """As in https://github.com/PaddlePaddle/models/issues/4064."""
    signal = "W1212 04:02:33.403934 24044 init.cc:205] *** SIGSEGV (@0x0) received by PID 7; stack trace: ***"
    frames = [
        f"W1212 04:02:33.406607 24044 init.cc:205]     @     0x7f64067b55d{at} (unknown)" for at in range(9)
    ]
    assert told([*WELL, signal, *frames]) == ("crash", signal)


@pytest.mark.parametrize(
    "error",
    ["Admin.cpp:7: error: forward declaration of 'struct Admin'", "SendC.nc:234: syntax error before `int'"],
)
def test_older_compilers_name_no_column(error):
    """As in https://github.com/jverce/aednetsim and https://github.com/AlkylHalide/SEC_Algorithm."""
    assert told([error, "SendC.nc: At top level:", "make: *** [exe0] Error 1"]) == ("compile", error)


@pytest.mark.parametrize(
    "ended",
    ["TensorBoard caught SIGTERM; exiting...", "[C 00:16:56.375 NotebookApp] received signal 15, stopping"],
)
def test_a_server_that_was_asked_to_stop_had_handled_its_exceptions(ended):
    """As in https://github.com/daiwk/grace_t."""
    handled = [
        *threw("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x93 in position 296"),
        *ANSWERS[:9],
    ]
    assert told([*handled, ended]) == ("cancelled", ended)
    assert told(handled)[0] == "data"


def test_the_last_cause_that_java_names_counts():
    """As in https://github.com/Diluwas/Spark-ML-Song-classifier."""
    frames = ["\tat a.b.C.d(C.java:7)", "\t... 4 more"]
    thrown = ['Exception in thread "main" a.InvocationTargetException', *frames]
    cause = "Caused by: a.b.LoggingException: one logger sees another"
    assert told([*thrown, "Caused by: a.InitError", *frames, cause, *frames]) == ("user_code", cause)
    full = "Caused by: java.io.IOException: No space left on device"
    assert told([*thrown, full, *frames, cause, *frames]) == ("storage", full)
    peer = "Caused by: a.b.PeerException: the peer at n7 hung up"
    assert told([*thrown, peer, *frames, cause, *frames]) == ("network", peer)


def test_a_long_stack_of_julia_s_is_no_output():
    """As in https://github.com/pe1995/MUST.jl."""
    error = 'SystemError: opening file "/w/monitor.jl": No such file or directory'
    stack = [
        line
        for at in range(1, 12)
        for line in (f"{at:4}".replace(f"{at}", f"[{at}] f(x::Int)"), f"    @ Base ./error.jl:{at}")
    ]
    assert told([f"ERROR: {error}", "Stacktrace:", *stack]) == ("config", error)


def test_a_stack_at_the_end_is_not_of_what_stands_far_above():
    error = 'ERROR: SystemError: opening file "/w/monitor.jl": No such file or directory'
    stack = [line for at in range(1, 12) for line in (f"[{at}] f(x::Int)", f"    @ Base ./error.jl:{at}")]
    assert told([error, *stack])[0] == "config"
    assert told([error, "words " * 1500, *stack])[0] == "none"


def test_a_very_long_stack_of_julia_s_is_none_either():
    """As in https://github.com/pouyazia/HPCme."""
    error = "ERROR: LoadError: MethodError: Cannot `convert` an object of type Nothing to Float64"
    stack = [line for at in range(10, 70) for line in (f" [{at}] f(x::Int)", f"    @ Base ./error.jl:{at}")]
    assert told([error, "Stacktrace:", *stack, "in expression starting at /w/main.jl:29"])[0] == "user_code"


def test_a_binding_that_slurm_cannot_satisfy_is_no_fault_of_the_node():
    """It would be taken out of use."""
    failed = "srun: error: Task launch for StepId=6602862.0 failed on node gnode2: Unable to satisfy cpu bind request"
    assert told([failed, "srun: Job step aborted"]) == ("config", failed)


@pytest.mark.parametrize(
    "line",
    [
        "/spool/slurm_script: line 14: /home/me/alf2d: Is a directory",
        "[mpiexec@n7] match_arg (utils/args/args.c:163): unrecognized argument oversubscribe",
        "slurm_script: illegal option -- G",
    ],
)
def test_a_command_line_that_is_refused_is_the_set_up(line):
    assert told(["loading", line]) == ("config", line)


def test_r_says_in_the_line_below_why_it_stopped():
    """As in https://github.com/rswanwick/sesync_files."""
    why = "error in evaluating the argument 'x' in selecting a method for function 'f': nothing is left"
    assert told(["Error in h(simpleError(msg, call)) : ", f"  {why}", "Execution halted"]) == (
        "user_code",
        why,
    )
    assert told([f"  {why}", "Calls: do.call ... f", "Execution halted"])[1].strip() == why


def test_what_a_command_of_a_script_reports_is_over_when_the_job_is_cancelled():
    """A fault of a device would take the node out of use."""
    cancelled = "slurmstepd-guane01: error: *** JOB 2434 ON guane01 CANCELLED AT 2026-05-24T13:30:13 ***"
    assert told(["No devices were found", *ANSWERS[:9], cancelled]) == ("cancelled", cancelled)


def test_a_rank_that_aborts_all_is_the_cause_of_the_end_of_its_step():
    """As in https://github.com/FinnHeu/fesom2."""
    aborted = "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0"
    step = "slurmstepd: error: *** STEP 6640672.0 ON bcn1387 CANCELLED AT 2022-07-13T16:24:16 ***"
    assert told([aborted, step, "srun: error: bcn1710: tasks 1824-1919: Killed"]) == ("unknown", aborted)


def test_a_server_answers_after_an_exception_that_it_logs():
    """As in deepseek.log of https://github.com/adityatadimeti/reasoning-distillation."""
    head = "ERROR 07-22 23:00:16 [serving_chat.py:222] "
    failed = threw("ValueError: This model's maximum context length is 32768 tokens", prefix=head)
    answer = 'INFO:     127.0.0.1:45204 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request'
    assert told([*WELL, *failed, answer])[0] == "none"
    assert told([*WELL, answer, *failed])[0] == "user_code"


def test_open_mpi_says_that_it_cannot_be_started_by_slurm():
    """As in https://github.com/voidspiral/trans-tools."""
    said = "but OMPI was not built with SLURM's PMI support and therefore cannot"
    lines = [
        "[n:7] OPAL ERROR: Unreachable in file ext3x_client.c at line 112",
        said,
        "execute.",
        *ANSWERS[:9],
    ]
    assert told([*lines, "*** An error occurred in MPI_Init", "*** on a NULL communicator"]) == (
        "config",
        said,
    )


def test_an_io_error_of_the_network_card_is_none_of_a_disk():
    """As in https://github.com/rapidsai/rapidsmpf/issues/69."""
    chunk = (
        "[17.6] [dgx:7:0]  mpool.c:269  UCX  ERROR Failed to allocate memory pool chunk: Input/output error"
    )
    assert told([chunk]) == ("network", chunk)
    register = (
        "[17.6] [dgx:7:0]  ib_md.c:282  UCX  ERROR ibv_reg_mr(address=0x3, length=5) failed: Bad address"
    )
    assert told([register, chunk]) == ("config", register)


def test_an_exception_without_a_message_says_less_than_the_one_before_in_its_chain():
    inner = threw("ValueError: text must be of type str", "/app/data.py read")
    assert told([*inner, "", CLEANUP, "", *threw("ValueError")])[1] == "ValueError: text must be of type str"


def test_an_exception_within_the_message_is_the_one():
    graph = ['    File "/app/model.py", line 7, in call  *', "        return x + y", ""]
    inner = "    ValueError: Dimensions must be equal, but are 14 and 16"
    lines = [*threw("ValueError: in user code:"), "", *graph, inner]
    assert told(lines) == ("user_code", inner)


def test_of_programs_that_were_refused_one_after_the_other_the_last_counts():
    usage = "train.py: error: argument --update: expected one argument"
    assert told([*threw("ImportError: No module named torch"), usage])[1] == usage


# -- kinds that a message names -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exception", "failure_class"),
    [
        (
            "ValueError: Free memory on device cuda:0 (16/93 GiB) on startup is less than desired",
            "oom_device",
        ),
        ("ValueError: The longest request (131072) is larger than what the KV cache can hold", "oom_device"),
        ("acme.StatusError: Error code: 402 - {'detail': 'no balance'}", "config"),
        ("acme.StatusError: Error code: 503 - {'detail': 'overloaded'}", "network"),
        ("acme.CommError: Project a/b does not contain artifact: 'model'", "config"),
        ("ValueError: Please make sure you have `sentencepiece` installed", "config"),
        ("ValueError: This version does not recognize this architecture", "config"),
        ("struct.error: unpack_from requires a buffer of at least 4 bytes", "data"),
        ("acme.IOError: '/data/a.tif' not recognized as being in a supported file format", "data"),
        ("RuntimeError: Failed to read input data", "data"),
        ("RuntimeError: unexpected pos 228062784 vs 228062672", "storage"),
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_7>: unavailable (11)",
            "storage",
        ),
        ("acme.ResponseError: the store is currently not able to persist on disk", "storage"),
        (
            "ValueError: Target size (torch.Size([7])) must be the same as input size (torch.Size([9]))",
            "user_code",
        ),
        ("ValueError: matrix contains invalid numeric entries", "numeric"),
        ("acme.exceptions.APIError: The request took more than the time that it may, try again", "network"),
        ("acme.InvalidParameterError: 'max_features' must be an int in the range [1, inf)", "config"),
        ("ConnectionError: Caught ConnectionError in DataLoader worker process 8.", "network"),
        (
            "RuntimeError: stft input and window must be on the same device but got self on cuda:0",
            "user_code",
        ),
        ("ValueError: Invalid field type <class 'numpy.ndarray'>", "user_code"),
        ("acme.SSHException: Error reading SSH protocol banner", "network"),
        ("ValueError: Unrecognized configuration class 'X' for this AutoModel", "config"),
        ("OSError: [WinError 10048] Only one usage of each socket address is permitted", "port_in_use"),
        ("acme.InvalidArgumentError: Nan in summary histogram for: conv1/weights", "numeric"),
        ("Exception: POST 400 Model not supported", "config"),
        ("Exception: POST 503 Model not loaded", "network"),
        ("ValueError: The config file at /app/a.yaml had unknown keys (['tp_size'])", "config"),
        (
            "RuntimeError: Error in void f::C::g(int) at /w/f/C.cpp:261: Error: 'n >= k' failed: n is 4",
            "user_code",
        ),
        ("RuntimeError: /w/f/C.cpp:261: error: expected ';' before 'n'", "compile"),
    ],
)
def test_what_a_message_says_of_its_kind(exception, failure_class):
    assert told(threw(exception), 1)[0] == failure_class


def test_a_lost_pipe_to_a_process_of_the_same_program_is_no_network():
    pipe = ("/app/train.py <module>", "/usr/lib/python3.12/multiprocessing/connection.py _recv")
    assert told(threw("EOFError", *pipe), 1)[0] == "unknown"
    assert told(threw("EOFError"), 1)[0] == "network"
    peer = (
        "/usr/lib/python3.9/torch/utils/data/_utils/pin_memory.py do_one_step",
        "/usr/lib/python3.9/multiprocessing/connection.py SocketClient",
    )
    gone = "FileNotFoundError: [Errno 2] No such file or directory"
    assert told([*threw(gone, *peer), *threw("KeyboardInterrupt")])[0] == "cancelled"


def test_what_a_tracker_says_of_its_own_connection_ended_no_run():
    lines = ["wandb: <title>502 Server Error</title>", *WELL[:1], *threw("KeyError: 'part'")]
    assert told(lines) == ("user_code", "KeyError: 'part'")


@pytest.mark.parametrize(
    "prose",
    [
        '"Really nothing!" said my unknown hostess.',
        "a story predictable enough, its heartbeat is very much in the right place",
    ],
)
def test_what_a_model_reads_or_writes_is_no_failure(prose):
    assert told([*WELL, prose, *WELL[:1]])[0] == "none"


def test_a_host_may_be_unknown():
    assert told([*WELL, "ssh: n7: Unknown host"])[0] == "network"


def test_a_fit_that_stops_at_its_own_budget_goes_on():
    assert (
        told([*WELL, "  [fit hit 180s wall-clock budget; using best-so-far parameters]", *WELL[:1]])[0]
        == "none"
    )


def test_a_fatal_line_is_near_the_end_whatever_stack_is_below():
    fatal = "F0000 00:00:1750170647.707742 1097242 device_event_mgr.cc:226] Unexpected Event status: 1"
    stack = [f"    @     0x7efd8799b6{at}  tsl::Thread()" for at in range(10, 30)]
    assert told([*WELL, fatal, "*** Check failure stack trace: ***", *stack])[0] == "unknown"


def test_a_supposed_cause_is_not_stated_but_what_was_seen_is():
    line = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory."
    assert told([*WELL, line]) == ("storage", line)


def test_lines_of_other_ranks_do_not_show_that_a_rank_went_on():
    lines = [
        line
        for number in range(200)
        for line in ("[rank9]: I loader.py:7] prefetching", f"epoch ends {number}")
    ]
    failed = [
        line for each in threw("KeyError: 'part'") for line in ("[rank9]: I loader.py:7] prefetching", each)
    ]
    others = ["[rank9]: I loader.py:7] prefetching"] * 100
    assert told([*lines[:40], *failed, *others])[0] == "user_code"
    assert told([*lines[:40], *failed, *lines[40:]])[0] == "none"


def test_launchers_that_print_in_time_mark_each_start():
    head = (
        "W0102 torch.distributed.run] Setting OMP_NUM_THREADS environment variable for each process to be 1"
    )
    assert told([head, *threw("KeyError: 'part'"), head, "nothing is wrong"])[0] == "none"
    assert told([*WELL, "one", "two", *threw("KeyError: 'part'"), head])[0] == "user_code"


def test_a_shell_goes_on_with_the_next_line_of_its_script():
    missing = "train.sh: line 4: /tmp/venv/bin/activate: No such file or directory"
    assert told([missing, *ANSWERS[:3]])[0] == "config"
    assert told([missing, *ANSWERS[:4]])[0] == "none"
    assert told([missing, "Killed"]) == ("unknown", "Killed")
    assert told(["train.sh: 7: Bad substitution"])[0] == "config"


def test_a_script_s_later_complaint_counts_where_other_programs_printed_between():
    """As in slurm-2859.out of https://github.com/ILoveSorasakiHina/miles-credit."""
    missing = [
        f"job.sh: line {at}: {name}: command not found" for at, name in enumerate(("prepare", "train"), 4)
    ]
    assert told([*ANSWERS[:2], missing[0], *ANSWERS[:2], missing[1]]) == ("config", missing[0])
    assert told([missing[0], *ANSWERS[:3], missing[1]]) == ("config", missing[1])
    assert told(["No devices were found", *ANSWERS[:3], missing[1]]) == ("config", missing[1])


def test_a_script_that_a_shell_cannot_read_is_an_end_after_a_run_that_progressed():
    """As in https://github.com/Bznkxs/OpenNE."""
    missing = "bash: run_7.sh: No such file or directory"
    assert told([*WELL, missing]) == ("config", missing)
    assert told([*WELL, missing, *ANSWERS[:2]])[0] == "none"
    assert told([*WELL, "bash: line 7: run_7.sh: No such file or directory"])[0] == "none"


def test_what_other_processes_print_after_an_interruption_is_no_run_that_goes_on():
    frames = [f"Frame : {number}" for number in range(600)]
    assert told([*frames[:9], *threw("KeyboardInterrupt"), *frames])[0] == "cancelled"
    steps = [f"step {number} loss 0.5" for number in range(50)]
    assert told([*frames[:9], *threw("KeyboardInterrupt"), *steps])[0] == "none"


def test_consequences_and_ends_from_outside_far_above_the_end_are_over():
    failed = threw("KeyError: 'part'")
    lost = "[W socket.cpp:7] [c10d] recvValue failed on SocketImpl: Connection reset by peer"
    assert told([lost, *ANSWERS, *ANSWERS, *ANSWERS])[0] == "none"
    cancelled = "slurmstepd: error: *** JOB 7 ON n7 CANCELLED AT 2026-01-02T03:04:05 ***"
    assert told([cancelled, *ANSWERS])[0] == "cancelled"
    assert told([cancelled, *ANSWERS * 13])[0] == "none"
    assert told([*failed, lost])[0] == "user_code"


@pytest.mark.parametrize(
    "code",
    [
        "    # Needed to sync whether we've reached the wallclock cap.",
        '        raise RuntimeError("CUDA out of memory")',
        '    logger.error("Connection refused")',
    ],
)
def test_a_program_s_own_code_in_its_log_says_nothing_of_a_failure(code):
    assert told([code, *WELL[:1]])[0] == "none"


def test_a_run_went_on_within_one_epoch():
    line = "size mismatch for head.weight: copying a param with shape [3], the shape in current model is [8]."
    progress = [f"Epoch [1/70][{at}/2860]  lr: 0.0001, score: 0.1" for at in (10, 20)]
    assert told([line, *progress, *threw("RuntimeError: Mask shape should match input")])[1].startswith(
        "RuntimeE"
    )


def test_code_that_is_not_indented_is_no_exception():
    lines = ['File "/usr/lib/python3.12/queue.py", line 7, in get', "self.not_empty.wait(remaining)"]
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    assert told([*lines, killed])[0] == "unknown"


def test_a_loss_scale_that_is_gone_is_a_cause_where_the_run_is_known_to_fail():
    line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0"
    assert told([*WELL, line], 1) == ("numeric", line)
    assert told([*WELL, line, *WELL])[0] == "none"


def test_a_signature_of_ones_own_may_repeat_a_digit():
    own = Signature(id="mine", failure_class="storage", pattern="disk 0+ of 7 is gone")
    scanner = LogScanner("a.log", Catalogue([own]))
    scanner.feed(b"".join(b"disk 00 of 7 is gone\n" for _ in range(20)))
    assert judge([scanner.findings()], exit_code=1).failure_class == "storage"


def test_what_python_warns_of_is_a_remark_behind_any_prefix():
    line = "/opt/lib/python3.10/PIL/TiffImagePlugin.py:900: UserWarning: Truncated File Read"
    assert told([*WELL, f" 2: {line}"])[0] == "none"
    assert told([*WELL, line.replace("UserWarning: ", "")])[0] == "data"


def test_a_line_that_was_printed_long_before_as_well_does_not_explain_an_exception():
    missing = "[17:22:52] loader.cc:43: dlopen failed: /opt/x.so: cannot open shared object file"
    failed = threw("KeyError: 'part'")
    assert told([missing, *failed], 1)[0] == "config"
    assert told([missing, *ANSWERS, missing, *failed], 1)[0] == "user_code"


def test_a_crash_far_below_an_exception_is_another_program_s():
    crash = "SystemError: an extension returned NULL"
    assert told([*threw("KeyError: 'part'"), *threw(crash)], 1)[0] == "user_code"
    frames = [f"/app/m{number}.py f" for number in range(80)]
    assert told([*threw("KeyError: 'part'"), *threw("SystemExit: 1", *frames), *threw(crash)], 1) == (
        "crash",
        crash,
    )


def test_the_parts_of_a_chain_are_no_lines_as_before():
    frames = [f"{LIB}/layer{number}.py forward" for number in range(60)]
    name = "ValueError: x"
    inner, outer = (
        threw("KeyError: 'part'", "/app/a.py <module>", *frames),
        threw(name, "/app/a.py <module>", *frames),
    )
    answers = [f"layer {number} is left" for number in range(400)]
    assert told([*inner, "", CLEANUP, "", *outer, *answers])[0] == "user_code"
    code = ["    call()"] * 400
    assert told([*inner, "", CLEANUP, "", *outer, *code])[0] == "user_code"


def test_a_count_of_retries_is_no_word_of_going_on():
    line = "n7:9:13 [4] NCCL WARN NET/IB : Got completion from peer n1 with error 12, transport retry counter exceeded"
    assert told([*WELL, line], 1)[0] == "network"


SEVERAL = [
    "an answer",
    "a map",
    "names of files",
    "a table of words",
    "what was read",
    "a model's parts",
    "a list",
    "b",
]


@pytest.mark.parametrize(
    ("after", "is_over"),
    [
        pytest.param(SEVERAL * 8, True, id="lines of many forms"),
        pytest.param(SEVERAL * 7, False, id="too few of them"),
        pytest.param(SEVERAL[:2] * 40, False, id="lines of few forms"),
        pytest.param([f"{line}: cannot open it" for line in SEVERAL * 8], False, id="lines that complain"),
    ],
)
def test_much_from_another_program_shows_that_an_exception_was_of_an_earlier_one(after, is_over):
    lines = ["reading", *threw("KeyError: 'part'"), *after]
    assert told(lines)[0] == ("none" if is_over else "user_code")
    assert told(lines, exit_code=1)[0] == "user_code"


def test_an_exception_whose_traceback_is_torn_counts_just_before_its_launcher_s_report():
    """Ranks that wrap their lines print them into each other's."""
    said = "ValueError: f must be a name"
    report = "E0109 10:12:03.1 7 torch/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 12) of binary: /bin/python"
    torn = [HEAD, '  File "/a/trai', HEAD, '  File "/a/trai', 'n.py", line 7, in <module>', "    f(", said]
    table = ["train.py FAILED", *[f"  a line of the table {number}" for number in range(40)]]
    assert told(["reading", *torn, report, *table]) == ("user_code", said)
    assert told(["reading", *torn, *ANSWERS, report, *table])[0] == "unknown"


def test_a_short_log_goes_on_if_its_lines_are_as_before_the_exception():
    work = [f"reading the next part of the map: {number}" for number in range(16)]
    failed = threw("OSError: [Errno 2] No such file or directory: 'b.gz'", "/app/read.py <module>")
    assert told([*work, *failed, *work[:8], *work[:8], *work[:8], *work[:8]])[0] == "none"
    assert told([*work, *failed, *work])[0] == "config"


def test_further_lines_of_a_message_are_not_another_program_s():
    """Of a long message, one that XLA prints for each exception of a chain."""
    dump = [
        f"\t{word} of buffer {number}"
        for number in range(12)
        for word in ("size", "shape", "label", "op", "name", "b", "c")
    ]
    failed = threw(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7 bytes."
    )
    assert told(["reading", *dump, *failed, *dump])[0] == "oom_device"


def test_where_a_shell_or_a_table_of_times_speaks_of_a_failure_it_ended_nothing():
    assert told([*WELL, "Overall wall time  : 0h : 9m :51s"])[0] == "none"
    assert told([*WELL, "job exceeded wallclock limit"])[0] == "cancelled"
    assert told([*WELL, "similarity is var= nan", "training size 15564"])[0] == "none"
    smi = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure it is running."
    assert told([smi, *ANSWERS[:4]])[0] == "none"
    assert told([smi, *threw("RuntimeError: No CUDA GPUs are available")])[0] != "none"


def test_what_other_processes_print_between_the_lines_of_one_does_not_count_as_its_own():
    other = "[rank9]: I0102 03:04:05.678 loader.py:7] prefetching"
    lost = "Failed to reach the store: Connection refused"
    after = [f"  in state {at}" for at in range(9)]
    assert told([*WELL, lost, *after])[0] == "network"
    assert told([each for line in [*WELL, lost, *after] for each in (other, line)])[0] == "network"


def test_further_lines_of_a_message_are_indented_behind_their_time():
    buffers = [f"\t\tBuffer {at // 3} of size 82.41MiB" for at in range(90)]
    lines = [*buffers[:9], *threw("RuntimeError: RESOURCE_EXHAUSTED: out of memory"), *buffers]
    assert told([f"2026-01-02T03:04:05.{at:06}Z {line}" for at, line in enumerate(lines)])[0] == "oom_device"


def test_what_a_tracker_prints_of_the_last_step_is_no_progress_behind_its_time():
    summary = [
        f"wandb:         train/{name} step {at}" for at, name in enumerate(("loss", "reward", "epoch"))
    ]
    lines = [*threw("KeyError: 'part'"), *summary]
    assert told([f"2026-01-02T03:04:05.{at:06}Z {line}" for at, line in enumerate(lines)])[0] == "user_code"


def test_what_a_tracker_logs_of_itself_ended_no_run_behind_any_prefix():
    head = "2024-12-17 14:18:21,491 WARNING MainThread:8256 [wandb_init.py:init():1309] interrupted"
    lines = [head, *threw("KeyboardInterrupt")]
    assert told([f"3: {line}" for line in lines])[0] == "none"


def test_an_exception_that_only_follows_counts_where_it_ends_the_log():
    generating = "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset"
    assert told([*WELL, *threw(generating)]) == ("data", generating)
    assert told([*WELL, *threw(generating), *WELL])[0] == "none"


def test_a_process_that_was_started_by_another_may_be_ended_from_outside():
    name = "torch.multiprocessing.spawn.ProcessExitedException"
    assert told([*WELL, *threw(f"{name}: process 0 terminated with signal SIGTERM")])[0] == "preempted"


@pytest.mark.parametrize(
    "first", ["wandb: Tracking run with wandb version 0.17.0", "GPU available: True, used: True"]
)
def test_what_libraries_print_as_they_begin_is_of_another_run_than_what_failed_before(first):
    failed = [first, *threw("KeyError: 'part'")]
    assert told([*failed, first, "hello"])[0] == "none"
    assert told([*failed[1:], first, "hello"])[0] == "user_code", "it may have been buffered"
    assert told([*failed, first, "srun: error: n7: task 0: Exited with exit code 1"]) == (
        "user_code",
        "KeyError: 'part'",
    )
    assert told([*failed, first, *threw("ValueError: the next one")]) == (
        "user_code",
        "ValueError: the next one",
    )


@pytest.mark.parametrize(
    ("size", "is_over"),
    [pytest.param(30, False, id="what-was-buffered"), pytest.param(200, True, id="more-than-that")],
)
def test_a_run_that_was_interrupted_is_over_where_more_follows_than_processes_hold_back(size, is_over):
    interrupted = threw("KeyboardInterrupt")
    alike = [f"wrote {'x' * size} to out/{at}" for at in range(600)]
    losses = [f"{'x' * size} {{'loss': {at / 700:.4f}, 'epoch': 0.01}}" for at in range(600)]
    for lines in (alike, losses):
        assert (told([*interrupted, *lines])[0] == "none") is is_over


def test_what_follows_long_after_a_job_was_cancelled_is_another_job_s():
    cancelled = "slurmstepd: error: *** JOB 7 ON n7 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***"
    lines = [f"reading shard {at} of the data" for at in range(120)]
    assert told([cancelled, *lines[:60]])[0] == "preempted"
    assert told([cancelled, *lines])[0] == "none"


WARNING = "/opt/lib/python3.12/site-packages/acme/data.py:7: FutureWarning: use the other one"


@pytest.mark.parametrize("exception", ["KeyError: 'part'", "KeyboardInterrupt"])
def test_python_warns_as_another_program_begins(exception):
    more = [WARNING, "  warnings.warn(", *[f"state {at} of the program" for at in "abcd"]]
    ended = threw(exception)
    assert told([*ended, *more])[0] == "none"
    assert told([*ended, *more[:4]])[0] != "none", "it may exit"
    assert (
        told([*ended, WARNING.replace("acme/data", "multiprocessing/resource_tracker"), *more[2:]])[0]
        != "none"
    )
    assert told([*threw(exception, prefix="[rank3]: "), *more])[0] != "none", "another rank may warn"
    assert told([*ended, *more, "srun: error: n7: task 0: Exited with exit code 1"])[0] != "none"


@pytest.mark.parametrize(
    "said",
    [
        "Training interrupted by user",
        "Training interrupted, saving the state",
        "Interrupted! Saving the model",
        "Stopped by user",
        "User requested stop",
        "SIGINT received, stopping gracefully",
        "Caught signal 2 (Interrupt)",
        "Execution was manually stopped",
    ],
)
def test_a_program_says_at_any_level_that_it_was_interrupted_before_it_saves_its_state(said):
    lines = [*WELL, f"training.trainer - INFO - {said}", "training.trainer - INFO - Saved: a.pt"]
    assert told(lines)[0] == "cancelled"
    assert told([*WELL, "Interrupt signal received, trying to exit gracefully."])[0] == "cancelled"
    assert told([*WELL, "Training interrupted at epoch 20 by early stopping"])[0] == "none"


def test_further_lines_of_a_warning_are_a_warning():
    mismatch = (
        "\tsize mismatch for head.weight: copying a param with shape [3], the shape in current model is [8]."
    )
    head = "2025-07-22 10:09:30,399 - {} - Detection failed: Error(s) in loading state_dict for Net:"
    assert told([*WELL, head.format("WARNING"), mismatch])[0] == "none"
    assert told([*WELL, head.format("ERROR"), mismatch])[0] == "user_code"


def test_a_warning_of_python_s_may_come_from_what_is_frozen_into_it():
    frozen = (
        "<frozen importlib._bootstrap>:241: RuntimeWarning: numpy.ndarray size changed, may indicate binary "
        "incompatibility"
    )
    assert told([frozen, "root - ERROR - Error running A: name 'b' is not defined"])[0] == "user_code"


def test_lines_about_one_item_after_the_other_end_nothing():
    said = "The size of tensor a (882) must match the size of tensor b (512) at non-singleton dimension 1"
    assert told([*WELL, *[f"{at} {said}" for at in (3, 5, 14, 20)]])[0] == "none"
    assert told([*WELL, *[f"{at} {said}" for at in (3, 5, 5, 5)]])[0] == "user_code"


def test_a_kill_is_told_on_other_systems_too():
    kills = ["./run.sh: line 3: /env/bin/activate: No such file or directory"]
    kills += [f"./run.sh: line {at}: 7522{at} Killed: 9               python3 train.py" for at in (7, 9)]
    assert told(kills)[0] == "unknown"


def test_hardly_anything_follows_what_ended_a_program_as_it_was_loaded():
    frames = ("/app/train.py <module>", "/env/site-packages/acme/core.py <module>")
    missing = threw("ModuleNotFoundError: No module named 'scipy'", *frames)
    assert told([*missing, *missing, "day=0.05", "day=0.1", "day=0.2"])[0] == "config"
    assert told([*missing, *missing, "day=0.05", "day=0.1", "day=0.2", "day=0.3"])[0] == "none"
    assert told([*missing, "day=0.05", "day=0.1", "day=0.2", "Error: no day is left"])[0] == "config"


def test_what_a_server_s_client_prints_as_both_end_is_no_failure():
    assert (
        told([*WELL, "ERROR [core.py:598] Engine core died unexpectedly, shutting down client."])[0] == "none"
    )


# -- by time, warnings, and what a kernel says ------------------------------------------------------------------


def timed(minute, text):
    return f"2026-07-13 09:{minute:02}:23,041 - acme - INFO - {text}"


LEAVES = [
    "stopping the workers",
    "waiting for workers",
    "worker 0 left",
    "worker 1 left",
    "all have left",
    "bye",
]


@pytest.mark.parametrize(
    ("lines", "failure_class"),
    [
        pytest.param([timed(6 + at, f"fetched {at} entities") for at in range(3)], "none", id="goes-on"),
        pytest.param([timed(6 + at, f"fetched {at} entities") for at in range(2)], "port_in_use", id="fewer"),
        pytest.param([timed(5, f"fetched {at} entities") for at in range(6)], "port_in_use", id="at-once"),
        pytest.param([timed(6 + at, f"cannot fetch {at}") for at in range(6)], "port_in_use", id="complains"),
        pytest.param(
            [timed(6 + at, text) for at, text in enumerate(LEAVES)], "port_in_use", id="leaves-slowly"
        ),
    ],
)
def test_a_program_whose_lines_come_again_for_minutes_goes_on_after_a_line_that_names_a_failure(
    lines, failure_class
):
    """https://github.com/Gruffuss/ha-intent-predictor: one thread serves pages, the others predict."""
    begun = [timed(4, "models saved"), timed(5, "serving"), "Address already in use"]
    assert told([*begun, *lines])[0] == failure_class


def test_warnings_at_the_end_of_a_log_keep_nothing_that_is_over():
    stalled = "Stalled ranks: 4: [grads_0, grads_1]"
    noise = [
        f"libacme: Warning: couldn't load driver 'lib{at}.so': lib{at}.so: cannot open shared object file"
        for at in "abc"
    ]
    assert told([stalled, *ANSWERS, *ANSWERS, *ANSWERS, *noise])[0] == "none"
    assert told([stalled, *ANSWERS, *noise])[0] == "collective_timeout"


def test_an_import_that_failed_counts_more_than_an_exception_without_a_word_that_followed():
    inner = threw(
        f"ImportError: {LIB}/acme_torch.so: undefined symbol: _ZN5torch3jit", "/app/layers.py <module>"
    )
    outer = threw("NotImplementedError", "/app/train.py <module>", "/app/layers.py <module>")
    assert told([*inner, "", CLEANUP, "", *outer])[0] == "config"
    assert (
        told([*inner, "", CLEANUP, "", *outer[:-1], "NotImplementedError: no such layer"])[0] == "user_code"
    )


def test_an_assertion_in_a_kernel_counts_more_than_what_a_library_makes_of_it():
    asserted = (
        "/aten/Loss.cu:271: block: [0,0,0], thread: [1,0,0] Assertion `t >= 0 && t < n_classes` failed."
    )
    library = threw(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    )
    assert told([*WELL, *library, asserted]) == ("data", asserted)
    assert told([*WELL, asserted, *library]) == ("data", asserted)
    assert told([*WELL, *library])[0] == "oom_device"


def test_what_a_program_printed_and_went_on_after_is_over_when_it_is_interrupted():
    printed = threw("TypeError: 'Logger' object is not callable", "/app/log.py configure")
    end = ["acme - WARNING - User interrupted execution (Ctrl+C). Exiting.", "acme - INFO - --- Exiting ---"]
    assert told([*WELL, *printed, *ANSWERS[:9], *end])[0] == "cancelled"
    assert (
        told([*WELL, *threw("TypeError: 'Logger' object is not callable"), *ANSWERS[:9], *end])[0]
        == "user_code"
    )


def test_a_script_that_is_not_there_ended_its_own_program_only():
    missing = "python: can't open file '/app/combine.py': [Errno 2] No such file or directory"
    warning = "/opt/conda/lib/python3.12/site-packages/acme/box.py:305: UserWarning: Box has a low precision"
    assert (
        told([missing, warning, "  acme.warn(", warning, "  acme.warn(", warning, "  acme.warn(", "ready"])[0]
        == "none"
    )
    assert told([missing, *ANSWERS[:5]])[0] == "config"


def test_a_command_around_the_tasks_of_a_job_that_is_not_run_ends_none():
    """https://github.com/binchengecon/TwoCapital_Shrink"""
    hook = "slurmstepd: error: Could not run slurm task_prolog [/apps/taskprolog.sh]: Permission denied"
    assert told([hook, *threw("AttributeError: 'Axes' has no attribute 'grid'")])[0] == "user_code"
    assert told([hook, *WELL])[0] == "none"


def test_the_last_word_of_a_message_that_fills_the_log_says_why():
    source = [f"__device__ float f{at}(float x) {{ return x; }}" for at in range(200)]
    lines = [*WELL, *threw("RuntimeError"), *source]
    assert told([*lines, "nvrtc: error: invalid value for --gpu-architecture (-arch)"], 1)[0] == "compile"
    assert told(lines, 1)[0] == "user_code"


def test_a_log_that_ends_with_the_header_of_a_traceback_has_failed():
    assert told([*WELL, HEAD])[0] == "unknown"
    assert told([*WELL, HEAD, *WELL])[0] == "none"


def test_a_shell_that_stops_at_a_variable_that_is_not_set():
    assert told(["nohup: ignoring input", "run.sh: line 9: PYTHONPATH: unbound variable"])[0] == "config"


def test_who_interrupts_make_interrupts_what_it_runs():
    assert (
        told(["make[2]: *** [third_party/onnx/depend] Interrupt", "make[1]: *** [all] Interrupt"])[0]
        == "cancelled"
    )


def test_what_a_launcher_or_a_shell_reported_is_over_where_much_follows_that_complains_of_nothing():
    """https://github.com/Naichh/NExT-Mol-SBDD"""
    killed = "run.sh: line 106: 373 Killed                  torchrun train.py"
    missing = "run.sh: line 74: cho: command not found"
    pipe = threw("BrokenPipeError: [Errno 32] Broken pipe", f"{LIB}/exception_handler.py __call__")
    assert told([killed, *ANSWERS, missing, *pipe, *ANSWERS, *ANSWERS, *ANSWERS])[0] == "none"
    assert told([killed, *ANSWERS])[0] == "unknown"


def test_a_failed_attempt_to_save_is_over_where_it_was_saved():
    failed = "Failed to save to 'name.pth': File name.pth cannot be opened."
    assert (
        told([*WELL, failed, "Model saved successfully to '/work/name.pth'", "Generated text:"])[0] == "none"
    )
    assert told([*WELL, failed, "Generated text:"])[0] == "checkpoint"
    assert told([*WELL, failed, "Tokenizer saved successfully", "Generated text:"])[0] == "checkpoint"


def test_numbers_of_first_lines_may_be_aligned_to_a_column():
    def start(pid):
        return [
            "Warning: acme is imported from its sources",
            f"I0319 13:12:46.182863 {pid:>5} gen_comm_id_helper.cc:205] Server listening successful.",
            f"I0319 13:12:49.300383 {pid:>5} nccl_context.cc:83] init nccl context nranks: 8",
            f"W0319 13:12:50.845341 {pid:>5} gpu_resources.cc:61] Please NOTE: device: 1",
        ]

    ended = ["FatalError: `Termination signal` is detected by the operating system."]
    assert told([*start(20296), *WELL, *ended, *start(20311), *ended, *start(839)])[0] == "none"


def test_molecules_that_cannot_be_read_are_of_their_samples():
    lines = [
        "[13:31:49] SMILES Parse Error: unclosed ring for input: 'CCc1cc'",
        "[13:31:49] Can't kekulize mol.",
    ]
    assert told([*lines, "100 smiles have been generated in 38.54 s"])[0] == "none"
    assert told([*WELL, "*** TIMEOUT: Killing all remaining processes (97)", "Time taken: 0.0"])[0] == "none"


def test_a_program_that_was_interrupted_as_it_was_loaded_is_over_where_another_prints_on():
    """https://github.com/QianSilence/BackdoorToolbox"""
    loaded = threw(
        "KeyboardInterrupt", "/app/train.py <module>", f"{LIB}/pyplot.py <module>", f"{LIB}/book.py find"
    )
    assert told([*loaded, *ANSWERS])[0] == "none"
    assert told([*loaded, *ANSWERS[:20]])[0] == "cancelled"
    assert (
        told([*threw("KeyboardInterrupt", "/app/train.py <module>", "/app/train.py fit"), *ANSWERS])[0]
        == "cancelled"
    )


def test_a_bar_that_is_drawn_over_the_end_of_a_traceback_is_not_its_end():
    cut = threw("KeyError: 'a'")[:-1]
    assert told([*WELL, *cut, "Validation ━━━━━━━━━━━━━━ 8/8 0:00:01", "[?25h"])[0] == "unknown"
    assert told([*WELL, *cut, "Validation is through"])[0] == "none"


def test_boxes_may_be_drawn_in_ascii_and_be_too_narrow_for_a_frame():
    """As rich draws them in a Windows console without Unicode."""
    box = [
        "+--------------------- Traceback (most recent call last) ---------------------+",
        "| C:\\Users\\AR\\                                                              |",
        "| cp1252.py:19                                                                |",
        "| in encode                                                                   |",
        "| >  19         return codecs.charmap_encode(input)                           |",
        "+-----------------------------------------------------------------------------+",
    ]
    error = "UnicodeEncodeError: 'charmap' codec can't encode character"
    assert told([*WELL, *box, error], 1) == ("user_code", error)


def test_an_exception_that_comes_again_and_again_was_handled():
    """https://github.com/Adhityas1820/Static-delay-summation-network

    torchcodec tells for each video why it could not be loaded.
    """
    error = "OSError: [WinError 127] The specified procedure could not be found"
    printed = threw(error, f"{LIB}/utils.py load_libraries")
    video = ["FFmpeg version 4:", *printed, "[end of the traceback].); trying others", "pred 3", "gt 4"]
    assert told([*(video * 3), *ANSWERS[:20]])[0] == "none"
    ended = ["a rank", *threw(error), "a", "b", "c", "d"]
    assert told([*(ended * 3), *ANSWERS[:20]])[0] == "user_code"


def test_what_stands_far_above_a_program_that_could_not_start_is_over():
    """https://github.com/PedroHMenezes/NLPbot"""
    missing = "python: can't open file 'APS3.py': [Errno 2] No such file or directory"
    caught = threw("asyncio.exceptions.TimeoutError", "/app/bot.py on_message", f"{LIB}/tasks.py wait_for")
    assert told([*WELL, *caught, *ANSWERS * 3, missing]) == ("config", missing)
    assert told([*WELL, *threw("KeyError: 'a'"), *ANSWERS[:9], missing])[0] == "user_code"


def test_frames_of_a_crash_are_no_output_of_a_run_that_goes_on():
    """https://github.com/RazvanRanca/caffe"""
    check = "F1107 13:36:56.537518  9023 io.cpp:65] Check failed: proto.SerializeToOstream(&output)"
    frames = ["*** Check failure stack trace: ***", *["    @     0x7fd825eeff9d  google::Fail()"] * 20]
    assert told([*WELL, check, *frames])[0] == "assertion"
    assert told([*WELL, check, *ANSWERS[:20]])[0] == "none"


def test_a_run_without_progress_may_have_printed_its_last_words_too_early():
    """https://github.com/mt1516/MuXiT (a `finally` around the whole program)"""
    error = "RuntimeError: Socket Timeout"
    ended = threw(error, "/app/train.py <module>", f"{LIB}/distributed_c10d.py init_process_group")
    assert told(["Training completed, restored the devices", *ended]) == ("network", error)
    assert told([*WELL, "Training completed, restored the devices", *ended])[0] == "none"


def test_a_prompt_of_pdb_reports_what_a_person_typed():
    assert (
        told(
            [*WELL, "> /app/train.py(61)reward()", "(Pdb) *** NameError: name 'ls' is not defined", "(Pdb)"]
        )[0]
        == "none"
    )


def test_glib_s_critical_messages_are_warnings():
    said = "(nm-applet:11887): nm-applet-CRITICAL **: get_menu_item: assertion 'dup_data.hash != NULL' failed"
    assert told([*WELL, said])[0] == "none"
    denied = "(app:4034): Gtk-WARNING **: Failed to parse /etc/gtk-3.0/settings.ini: Permission denied"
    assert (
        told([denied, *WELL[:1], "[C 12:58:27.914 NotebookApp] received signal 15, stopping"])[0]
        == "cancelled"
    )
    assert told([denied], 1)[0] == "config"


def test_condor_reports_the_exit_code_in_its_own_log():
    """https://github.com/mab2zq/flow_trainer"""
    usage = ["\t\tUsr 0 00:00:04, Sys 0 00:00:03  -  Run Remote Usage", "\t   Cpus :  0  4  4", "..."]

    def log(code):
        return [
            "005 (15000009.000.000) 04/25 06:40:18 Job terminated.",
            f"\t(1) Normal termination (return value {code})",
            *usage,
        ]

    assert told(log(1)) == ("unknown", "\t(1) Normal termination (return value 1)")
    assert told(log(0))[0] == "none"


def test_one_of_several_root_errors_of_a_graph_tells_the_kind():
    """https://github.com/1eftone/EstraNet"""
    lines = threw("acme.InvalidArgumentError: Graph execution error:")
    roots = [
        "",
        "2 root error(s) found.",
        "  (0) INVALID_ARGUMENT:  Expected size[1] in [0, 14991], but got 15000",
    ]
    assert told([*lines, *roots, "\t [[{{node Slice}}]]", "0 successful operations."]) == (
        "user_code",
        roots[2],
    )


HYDRA = "Error executing job with overrides: ['+mpi.local_size=4']"
ADVICE = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."


@pytest.mark.parametrize(
    "advice",
    [ADVICE, "Please set the environment variable A_LOG_LEVEL=0 for more", "wandb: ERROR no config given"],
)
def test_advice_below_an_exception_is_no_part_of_its_message(advice):
    """https://github.com/argonne-lcf/dlio_ml_workloads"""
    error = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:46, unhandled cuda error, NCCL version 2.10.3"
    lines = [*threw(error), "ncclUnhandledCudaError: Call to CUDA function failed.", advice]
    crash = [
        "terminate called after throwing an instance of 'c10::CUDAError'",
        "  what():  CUDA error: uncorrectable ECC error encountered",
    ]
    assert told([*WELL, *lines, *crash]) == ("hardware", crash[1])
    assert told([*WELL, *threw("Exception"), "", advice]) == ("user_code", "Exception")


def test_hydra_reports_an_exception_as_the_end_without_its_own_frames():
    frames = [f"[frame {n}]: /opt/dali/lib.so(+0x{n * 7919:x}) [0x14d1e{n * 104729:06x}]" for n in range(79)]
    error = [
        "RuntimeError: Critical error when building pipeline:",
        "Error when constructing operator: readers",
    ]
    why = '[/opt/dali/loader.h:105] Assert on "fin.good()" failed: Failed to open file /dev/shm/a.idx'
    ended = threw(error[0], "./main.py main", f"{LIB}/pipeline.py build")
    assert told([*WELL, HYDRA, *ended, error[1], why, *frames]) == ("config", why)
    assert told([*WELL, *ended, error[1], why, *frames])[0] == "none"


def test_a_reader_of_dali_tells_why_in_a_further_line():
    why = (
        '[/opt/dali/loader.h:76] Assert on "p != nullptr" failed: Error reading from a file /data/a.tfrecord'
    )
    lines = [
        *threw("RuntimeError: Critical error in pipeline:"),
        "Error when executing CPU operator encountered:",
        why,
    ]
    assert told(lines) == ("data", why)


def test_an_interruption_ends_the_program_of_a_script_that_ran_then():
    """https://github.com/avinashbarnwal/AFTXGBoostPaper"""
    first = threw("FileNotFoundError: [Errno 2] No such file or directory: 'a.json'", "one.py <module>")
    second = threw("KeyboardInterrupt", "two.py <module>", f"{LIB}/core.py update")
    assert told([*first, *ANSWERS[:3], *second]) == ("cancelled", "KeyboardInterrupt")
    assert told([*first, *second])[0] == "config"
    same = threw("KeyboardInterrupt", "one.py <module>", f"{LIB}/core.py update")
    assert told([*first, *ANSWERS[:3], *same])[0] == "config"


def test_an_operator_that_does_not_compile_explains_the_abort_of_its_process():
    """https://github.com/Ascend/modelzoo"""
    head = "[ERROR] TEFUSION(146,python):2020-12-04-13:21:30.378.985 [te_fusion/fusion_op.cc:5720]"
    why = (
        f"{head}GetFinishedCompilationTask RuntimeError: ({{'errCode': 'E60024'}}, 'In op[None], Shape error"
    )
    ended = "[Service Log]2020-12-04 13:22:03,235 - ERROR - FMK of device1 has exited with non-zero code: -6"
    assert told([why, *ANSWERS[:9], ended, "[Service Log]Training completed."]) == ("compile", why)


def test_dot_net_reports_what_it_does_not_catch():
    """https://github.com/EvaluatedApplications/genesis-nova"""
    why = " ---> System.IO.FileNotFoundException: Training file not found: C:\\data\\simple_patterns.txt"
    lines = ["Unhandled exception. System.InvalidOperationException: Pipeline failed.", why]
    frames = [
        f"   at Nova.Train.Loader.<>c.<.ctor>b__12_{n}(Data data) in C:\\Loader.cs:line {n}"
        for n in range(15)
    ]
    assert told([*WELL, *lines, *frames])[0:2] == ("config", why)
    assert told([*WELL, lines[0], *frames]) == ("user_code", lines[0])


def test_a_shell_that_cannot_change_its_directory_says_so_in_any_language():
    assert told(["bash: cd: 参数太多"]) == ("config", "bash: cd: 参数太多")
    assert told(["bash: cd: 参数太多", *WELL])[0] == "none"


def test_a_checkpoint_that_cannot_be_opened_for_writing_is_a_matter_of_storage():
    error = "RuntimeError: File out/model_checkpoint_epoch_200.pt cannot be opened."
    frames = ("/app/train.py <module>", "/venv/lib/python3.12/site-packages/torch/serialization.py __init__")
    assert told([*WELL, *threw(error, *frames)]) == ("storage", error)


def test_a_server_that_was_asked_to_end_says_good_bye():
    said = "[2026-02-26 00:32:27 +0000] [1365087] [INFO] Handling signal: term"
    after = [
        "Error ins: 1205 (HY000): try restarting transaction",
        "Worker exiting (pid: 7)",
        "Shutting down: Master",
    ]
    assert told([*WELL, said, *after]) == ("preempted", said)
    assert told([*WELL, said, *after, *ANSWERS * 13])[0] == "none"


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ("Application 21745757 exit codes: 143", 143, "preempted"),
        ('service "1.preprocess" didn\'t complete successfully: exit 127', 127, "config"),
        ("the worker has exited with exit code 9", 9, "unknown"),
    ],
)
def test_the_line_that_states_the_exit_code_is_the_evidence_for_it(line, code, expected):
    assert told([*WELL, line, "bye"], code) == (expected, line)
    assert told([*WELL, line, *ANSWERS * 3], code)[1] != line


def test_a_file_that_could_not_be_loaded_is_skipped_by_what_prints_on():
    failed = "Failed to load 2024-03-07T20_54_29.919943.pkl"
    assert told([*WELL, failed, "loading 4-th data from ./split_data"])[0] == "none"
    assert told([*WELL, failed])[0] == "unknown"


@pytest.mark.parametrize(
    "warning",
    [
        "WARNING:tensorflow:From /app/brain.py:583: calling count_nonzero with keep_dims is deprecated",
        "[10:08:04] WARNING: /src/learner.cc:576: ",
    ],
)
def test_a_library_s_first_warning_after_an_exception_is_another_program_s(warning):
    """https://github.com/Fishee998/progSynthRL, https://github.com/tcoulvert/HHtobbyy"""
    error = threw("AttributeError: 'NoneType' object has no attribute 'predict'")
    assert told([*error, warning, *ANSWERS[:8]])[0] == "none"
    assert (
        told([*error, *ANSWERS[:8], "WARNING:tensorflow:Unresolved object in checkpoint"])[0] == "user_code"
    )


def test_a_rank_that_its_launcher_ended_only_follows_from_another_s_failure():
    """https://github.com/nicolas42/reinforcement_learning"""
    warning = "WARNING:tensorflow:From /app/utils.py:241: The name tf.get_default_session is deprecated"
    ended = "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 15 (Terminated)."
    error = "FileExistsError: [Errno 17] File exists: './tmp/20210913_124406/'"
    assert told([*threw(error), warning, *ANSWERS[:8], ended]) == ("user_code", error)
    assert told([warning, *WELL, ended])[0] == "preempted"


def test_what_a_program_could_not_even_start_with_is_the_last_one_s_failure():
    """https://github.com/Fl0972/What-Happens-Next-Video-Action-Prediction-on-Something-Something-V2"""
    missing = threw("ModuleNotFoundError: No module named 'hydra'")
    override = "LexerNoViableAltException:  training.checkpoint_path=../models/a.pt"
    assert told([*missing, *missing, override, "      ^", ADVICE]) == ("config", override)
    shell = "/spool/job325196/slurm_script: line 16: /miniconda3/etc/profile.d/conda.sh: No such file or directory"
    script = "python: can't open file '/app/train.py': [Errno 2] No such file or directory"
    assert told([shell, script]) == ("config", script)


def test_a_program_that_could_not_be_loaded_is_over_before_others_that_could_not_start():
    """https://github.com/avinashbarnwal/AFTXGBoostPaper"""
    missing = threw("ModuleNotFoundError: No module named 'xgboost'")
    script = "python3: can't open file 'xgboost_hyper_Py_5': [Errno 2] No such file or directory"
    assert told([*missing, "251.68", "615.52", *[script] * 2, *["248.8"] * 12])[0] == "none"
    assert told([*missing, script])[0] == "config"


def test_the_report_of_a_deadlock_leaves_the_cause_to_what_it_follows():
    """https://github.com/Arkadiy-Vladimirov/Chest-Xray-alignment-using-STN"""
    cause = "InterruptedError: [Errno 4] Interrupted system call"
    dead = "pytorch_lightning.utilities.exceptions.DeadlockDetectedException: DeadLock detected from rank: 0"
    assert told([*WELL, *threw(cause), "", CLEANUP, "", *threw(dead)]) == ("storage", cause)


def test_signals_and_crashes_of_other_runtimes_are_known():
    frames = [f"jl_apply_generic at /buildworker/src/gf.c:{n}" for n in range(30)]
    assert told(["signal (15): Terminated", *frames, "unknown function (ip: (nil))", "6"])[0] == "preempted"
    crash = "python.exe : Windows fatal exception: access violation"
    frames = [f'  File "<frozen importlib._bootstrap>", line {n} in _load_unlocked' for n in range(30)]
    assert told([crash, "Current thread 0x000075ac (most recent call first):", *frames]) == ("crash", crash)
    assert told(["Windows fatal exception: code 0x8001010d", *frames])[0] == "none"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ValueError: Expected a list or a dict for 'columns', got <class 'function'> instead.", "user_code"),
        ("ValueError: Cannot load file containing pickled data when allow_pickle=False", "data"),
        (
            "ValueError: The configured object store size (12.09 GB) exceeds /dev/shm size (12.09 GB).",
            "storage",
        ),
    ],
)
def test_what_a_library_says_counts_more_than_which_it_is(error, expected):
    frames = "/app/train.py <module>", "/venv/lib/python3.12/site-packages/pyarrow/dataset.py read"
    assert told([*WELL, *threw(error, *frames)])[0] == expected


def test_a_count_of_none_is_no_complaint():
    assert told([*WELL, "Bad samples: 0", "Bad ratio: 0.000", "Scan complete."])[0] == "none"
    assert told([*WELL, "Bad samples: 7"])[0] == "data"
    assert told([*WELL, "wandb: ERROR The nbformat package was not found. It is required"])[0] == "none"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
NO_SCRIPT = "python: can't open file 'eval.py': [Errno 2] No such file or directory"
QUIET = ["NCCL INFO comm 0x7f rank 0"] * 110


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([*WELL, *threw(OOM), *QUIET, NO_SCRIPT], "oom_device", id="an-uncaught-one"),
        pytest.param(
            [*WELL, "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus", *QUIET, NO_SCRIPT],
            "hardware",
            id="a-line",
        ),
    ],
)
def test_only_what_was_printed_is_over_far_above_a_program_that_could_not_start(lines, expected):
    assert told(lines)[0] == expected
    assert told(lines, 1)[0] == expected


@pytest.mark.parametrize("error", [OOM, "FileNotFoundError: [Errno 2] No such file or directory: 'a'"])
def test_a_rank_that_is_told_to_end_does_not_explain_what_another_printed(error):
    printed = threw(error, "/app/main.py main")
    ended = ["[rank: 1] Received SIGTERM: 15"] * 2
    assert told([*WELL, *printed, *ended])[1] == error
    assert told([*WELL, *printed, *ended], 1)[1] == error


def test_a_person_who_interrupts_a_launcher_did_not_end_what_it_started():
    inner = threw("KeyError: 'a'", "/app/train.py <module>")
    outer = threw("KeyboardInterrupt", "/opt/venv/bin/torchrun <module>")
    assert told([*WELL, *inner, "waiting", "waiting", "waiting", *outer])[0] == "user_code"
    other = threw("KeyboardInterrupt", "/app/launch.py <module>")
    assert told([*WELL, *threw(OOM, "/app/train.py <module>"), "a", "b", "c", *other])[0] == "oom_device"


def test_what_slurm_says_below_an_exception_without_a_message_explains_it():
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some have been OOM Killed."
    assert told([*WELL, *threw("RuntimeError"), killed])[0] == "oom_host"


def test_a_trainer_s_success_is_its_own_rank_s():
    trained = "{'train_runtime': 12.3, 'train_loss': 1.8, 'epoch': 1.0}"
    assert told([*WELL, *threw(OOM), trained])[0] == "none"
    rank = "(train pid=12) "
    assert told([*threw(OOM, prefix=rank), f"(train pid=13) {trained}"])[0] == "oom_device"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Lost connection to worker: 0", "network"),
        ("GPU lost on node: 0", "hardware"),
        ("FATAL: missing GPU device: 0", "unknown"),
    ],
)
def test_the_first_of_a_kind_is_no_count_of_none(line, expected):
    assert told([*WELL, line])[0] == expected


def test_bars_without_an_end_that_are_redrawn_at_exit_are_no_progress():
    bars = ["343it [00:00, 466.92it/s]", "4it [00:00, 5.44it/s]"]
    assert told([*WELL, *threw(OOM), *bars])[0] == "oom_device"
    assert told([*WELL, *threw(OOM), "gpu12 [10:12, down]", "gpu13 [10:12, down]"])[0] == "oom_device"
    assert told([*WELL, *threw(OOM), *[f"{n}it [00:0{n}, 5.44it/s]" for n in range(1, 6)]])[0] == "none"


def test_lines_with_an_address_are_no_frames():
    line = "torch reported CUDA out of memory for this sample"
    assert told([*WELL, line, *["Serving at http://h1:8000"] * 20])[0] == "none"
    assert told([*WELL, *["frame #0: c10::Error"] * 9, line, *["answer ok"] * 11])[0] == "none"


@pytest.mark.parametrize(
    "line",
    [
        "Phase 2: exit 3 classes early",
        "Known exit codes: 2 (usage), 3 (data)",
        " ---> sha256: abc",
        "pool: connection in use: (3 of 10)",
        "pedido 12: orden no encontrada",
        "Morto",
    ],
)
def test_what_only_looks_like_an_end_is_none(line):
    assert told([*WELL, line])[0] == "none"


def test_a_thread_s_full_disk_counts_where_the_log_then_ends_badly():
    """https://github.com/mr20010112/Diff_UAPA"""
    error = "OSError: [Errno 28] No space left on device"
    full = ["Exception in thread Thread-7:", *threw(error, f"{LIB}/serialization.py save")]
    ended = ["--- Logging error ---", "Exception in threading.excepthook:"]
    assert told([*WELL, *full, *ended])[0] == "storage"
    assert told([*WELL, "error: no metrics host", *full, *ANSWERS[:20]])[0] == "none"


def test_what_faulthandler_prints_of_a_handled_exception_is_over():
    crash = ["Windows fatal exception: access violation", '  File "C:\\\\a.py", line 7 in load']
    assert told([*crash, *ANSWERS[:35]])[0] == "none"
    assert told([*crash, *ANSWERS[:9]])[0] == "crash"


def test_a_printed_exception_right_above_a_program_that_could_not_start_counts():
    assert (
        told([*WELL, *threw("KeyError: 'a'", "/app/main.py run"), *ANSWERS[:5], NO_SCRIPT])[0] == "user_code"
    )


def test_what_is_before_a_start_known_by_first_lines_stays_over():
    start = ["acme trainer 1.2 on host n1", "reading the options of the run", "building the model of the run"]
    usage = "train.py: error: unrecognized arguments: --x"
    ended = "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 15 (Terminated)."
    assert told([*start, usage, *start, *["quiet"] * 50, ended])[0] == "preempted"


def test_of_a_job_that_is_known_to_have_failed_the_first_program_s_failure_counts():
    first = threw("FileNotFoundError: [Errno 2] No such file or directory: 'a.json'", "one.py <module>")
    second = threw("KeyboardInterrupt", "two.py <module>", f"{LIB}/core.py update")
    assert told([*first, *ANSWERS[:3], *second], 1)[0] == "config"


def test_what_a_tracker_says_last_is_no_message_of_an_exception():
    said = "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)"
    assert told([*WELL, *threw("RuntimeError"), said])[1] == "RuntimeError"


def test_a_child_that_loses_its_parent_as_it_exits_fails_nothing():
    lost = threw(
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "<string> <module>",
        f"{LIB}/spawn.py main",
    )
    assert told(["Fitting", "Training complete", *lost])[0] == "none"


def test_a_bar_that_names_its_epoch_is_progress_within_it():
    """Lightning's bars."""
    bars = [f"Epoch 0:  36%|###   | {n}/500 [00:1{n % 10}<00:20, 9.1it/s, v_num=3]" for n in range(180, 186)]
    assert told([*threw("KeyError: 'a'"), *bars])[0] == "none"
    assert told([*bars, *threw("KeyError: 'a'"), bars[-1]])[0] == "user_code"


def test_a_graph_s_exception_counts_though_its_message_says_nothing():
    error = "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:"
    assert told([*WELL, *threw(error), "", "acme is acme"])[0] == "user_code"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', "oom_host"),
        ("Error: cannot allocate vector of size 3.7 Gb", "oom_host"),
        ("fatal error: runtime: out of memory", "oom_host"),
        ("memory allocation of 8589934592 bytes failed", "oom_host"),
        (" *** caught segfault ***", "crash"),
        (
            "OSError: When reading 'a': AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 28",
            "network",
        ),
        ("sqlite3.OperationalError: database or disk is full", "storage"),
        ("torch._C._LinAlgError: linalg.svd: the input matrix contained non-finite values.", "numeric"),
    ],
)
def test_what_other_languages_and_libraries_say_of_known_kinds(line, expected):
    assert told([*WELL, line], 1)[0] == expected


@pytest.mark.parametrize(
    "line",
    [
        "job.sh: line 44: 22112 Terminated              nvidia-smi --query-gpu=utilization.gpu -l 5 > gpu.log",
        "slurmstepd: error: Unable to unlink domain socket: No such file or directory",
        "sudo: unable to resolve host abc: Name or service not known",
        "ALSA lib conf.c:4732:(snd_config_evaluate) function returned error: No such file or directory",
        "Passed: 12 Failed: 38 Error: 0",
        "Cannot initialize model with low memory because `accelerate` was not found. Defaulting to `low=False`.",
    ],
)
def test_what_is_said_around_a_run_that_is_through_is_none(line):
    assert told([*WELL, "saving the last checkpoint", line])[0] == "none"


TORCHRUN = (
    "E0102 elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: p"
)


def test_exceptions_that_a_launcher_reports_after_them_were_not_handled():
    printed = [
        "a",
        "b",
        *threw("RuntimeError: CUDA error: invalid device ordinal", "/app/main.py main"),
        "c",
        "d",
    ]
    assert told([*(printed * 3), *ANSWERS[:12], TORCHRUN])[0] == "config"


def test_frames_are_of_one_form():
    frames = [f"frame #{n}: {'abcdefghijklmnopqrst'[n % 20] * 9}::call + 0x{n:x}" for n in range(90)]
    assert told([*threw("KeyError: 'a'"), *frames])[0] == "user_code"


def test_a_critical_message_of_glib_s_is_a_warning_also_where_its_text_is_known():
    denied = "(app:4034): Gtk-CRITICAL **: Failed to parse /etc/gtk-3.0/settings.ini: Permission denied"
    assert (
        told([denied, *WELL[:1], "[C 12:58:27.914 NotebookApp] received signal 15, stopping"])[0]
        == "cancelled"
    )


def test_a_bar_at_its_beginning_is_no_place():
    bars = ["3it [00:31, 3.2it/s]", "4it [00:31, 3.2it/s]", "0it [00:00, ?it/s]", "1it [00:00, ?it/s]"]
    assert told([*WELL, *threw(OOM), *bars])[0] == "oom_device"


def test_a_message_ends_where_a_tracker_speaks():
    said = "wandb: ERROR The nbformat package was not found. It is required to save notebook history."
    for head in ("", "2026-01-02 03:04:05 "):
        assert told([head + line for line in [*threw("Exception"), "", said]])[1].endswith("Exception")


def test_the_inner_exception_of_a_graph_is_read_behind_times():
    inner = (
        "    ValueError: Input 0 of layer a is incompatible with the layer: expected ndim=3, found ndim=4."
    )
    lines = [
        *threw("ValueError: in user code:"),
        "",
        "    /app/tcn.py:344 call  *",
        "        x = layer(x)",
        inner,
    ]
    assert told(lines)[0] == "user_code"
    assert told(["2026-01-02 03:04:05 " + line for line in lines])[0] == "user_code"


def test_a_library_s_warning_later_in_a_run_is_no_start():
    warning = "WARNING:tensorflow:From /app/saver.py:9: remove_checkpoint (from tensorflow) is deprecated"
    assert told([*WELL, *threw("KeyboardInterrupt"), warning, *ANSWERS[:6]])[0] == "cancelled"


def test_a_plugin_that_jax_could_not_set_up_is_no_end():
    """https://github.com/m9h/dmipy"""
    head = "ERROR:2026-01-21 02:31:51,684:jax._src.xla_bridge:477: Jax plugin configuration error: it failed"
    printed = threw("RuntimeError: operation cuInit(0) failed", f"{LIB}/xla_bridge.py discover")
    assert told([head, *printed, *ANSWERS[:6]])[0] == "none"
    assert told([*printed, *ANSWERS[:6]])[0] != "none"


def test_a_message_is_not_read_on_behind_advice():
    error = "RuntimeError: it failed:"
    assert told([*WELL, *threw(error), ADVICE, "note: the input image is corrupted"])[1] == error


def test_a_program_that_could_not_be_loaded_counts_where_the_last_lines_complain():
    missing = threw("ModuleNotFoundError: No module named 'xgboost'")
    assert told([*missing, *ANSWERS[:5], "the input image is corrupted"])[0] == "config"


@pytest.mark.parametrize(
    "between",
    [[], ["[rank9]: prefetching"], ["", " 50%|#####     | 5/10 [00:01<00:01, 5.0it/s]"]],
    ids=["directly", "another-rank-s-line", "a-bar"],
)
def test_what_python_ignored_is_no_end_whatever_is_printed_between(between):
    """What a session of TensorFlow's raises as the interpreter ends."""
    notice = "Exception ignored in: <bound method Session.__del__ of <Session object at 0x7f>>"
    raised = [
        "Traceback (most recent call last):",
        f'  File "{LIB}/session.py", line 7, in __del__',
        "TypeError: x",
    ]
    assert told([*WELL, notice, *between, *raised])[0] == "none"
    assert told([*WELL, *between, *raised])[0] == "user_code"


@pytest.mark.parametrize(("times", "failure_class"), [(2, "config"), (3, "none")])
def test_what_a_run_went_on_after_three_times_does_not_end_it(times, failure_class):
    """https://github.com/wkdgnsgo/grpodiffimprove"""
    failed = "generator - ERROR - Image generation failed: Torch not compiled with CUDA enabled"
    lines = [
        line for at in range(times) for line in (failed, f"step {2 * at} well", f"step {2 * at + 1} well")
    ]
    assert told([*lines, failed])[0] == failure_class
    assert told([*lines, failed], exit_code=1)[0] == "config"
    assert told([*lines, "job 7 has been requeued", *lines[:3], failed])[0] == "config"
    first = ["Loading the data set", "Building the model", "Using two devices"]
    assert told([*first, *lines[1:3], failed] * (times + 1))[0] == "config"


def test_an_exception_that_ends_a_program_was_survived_by_no_other_one():
    caught = [*threw("ValueError: no such part", "/app/train.py evaluate"), *WELL[:2]] * 3
    assert told([*caught, *threw("ValueError: no such part", "/app/train.py evaluate")])[0] == "none"
    assert told([*caught, *threw("ValueError: no such part")])[0] == "user_code"


def test_a_faulty_device_may_be_reported_again_and_again():
    fault = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    places = [f"step {number} loss 0.{number}" for number in range(600)]
    assert told([fault, *places] * 3)[0] == "none"
    assert told([*[fault, *places] * 3, fault])[0] == "hardware"


def test_a_program_that_exits_with_code_0_has_not_failed():
    """As in https://github.com/srishverma/RestaurantRater---Predicting-Restaurant-Ratings."""
    frames = ("urldecode_invoker.py execute", "/envs/lib/python3.8/_sitebuiltins.py __call__")
    assert told([*WELL, "Cleanup took 0.06 seconds", *threw("SystemExit: 0", *frames)])[0] == "none"
    assert told([*WELL, *threw("SystemExit", *frames)])[0] == "none"
    assert told([*WELL, *threw("SystemExit: 2", *frames)]) == ("unknown", "SystemExit: 2")


def test_an_array_s_file_that_is_cut_off_is_unreadable():
    """As in https://github.com/amirveyseh/RE."""
    short = "ValueError: cannot reshape array of size 0 into shape (53953,300)"
    reads = "/opt/numpy/lib/npyio.py load", "/opt/numpy/lib/format.py read_array"
    assert told(threw(short, "train.py <module>", *reads)) == ("checkpoint", short)
    fetches = "/opt/torch/utils/data/dataloader.py __next__"
    assert told(threw(short, "train.py <module>", fetches, *reads)) == ("data", short)
    assert told(threw(short, "train.py <module>")) == ("user_code", short)


def test_azure_s_driver_says_with_which_code_its_program_ended():
    """As in https://github.com/csorgyu/uda_automl_project01."""
    upload = "2021/04/03 14:17:57 Attempt 1 of http call to http://10.0.0.8:16384/sendlogstoartifacts/status"
    code = "2021/04/03 14:18:20 Process Exiting with Code:  1"
    error = threw("ValueError: bad input shape (9885, 39)")
    exporter = [
        "2021/04/03 14:18:02 Not exporting to RunHistory as the exporter is stopped.",
        "Stopped: false",
    ]
    log = [upload, *exporter, *error, "", upload, *exporter, code]
    assert told(log) == ("user_code", error[-1])
    assert told(["Entering context manager", code]) == ("unknown", code)


def test_azure_s_log_shows_exceptions_by_their_types():
    """As in https://github.com/ons-cherif/Covid19-New-Cases-Classification."""
    shown = "2021-03-10 13:22:50,211|azureml.WorkerPool|ERROR|<class 'ModuleNotFoundError'>: No module named 'kaggle'"
    after = [
        "<traceback object at 0x7f434ea02148>",
        "2021-03-10 13:22:50,211|azureml.WorkerPool|DEBUG|[STOP]",
    ]
    assert told([shown, *after]) == ("config", shown)
    logger = "2021-03-10 13:22:48,766|azureml.history|DEBUG|"
    tried = f"{logger}Failed to import pyspark with error: No module named 'pyspark'"
    calls = [f"{logger}Calling {name}" for name in "abcdefghi"]
    assert told([tried, *calls, shown, shown])[0] == "config"
    for shown in (
        "DEBUG|Used <class 'azureml.queue.TaskQueue'> for use_batch",
        "INFO|<class 'torch.nn.Linear'>: 3 layers",
    ):
        assert told([f"2021-03-10 13:22:50,211|azureml.WorkerPool|{shown}", *after])[0] == "none"


def test_what_a_data_path_lacks_is_of_the_data():
    """As in https://github.com/EugeniaSilantjeva/nd00333-capstone."""
    message = "Message: Cannot load any data from the specified path. Make sure the path is accessible."
    assert told([*threw("UserScriptException: UserScriptException:"), f"\t{message}"])[0] == "data"
    assert told(threw("acme.DataflowError: The Dataflow produced no records."))[0] == "data"


def test_a_helper_that_is_asked_to_end_says_nothing_of_the_run():
    """As in https://github.com/LovepreetSinghGhuman/MLopsAutoencoder."""
    asked = "Received termination signal"
    assert told([*WELL, f"INFO {asked} to shut down output manager."])[0] == "none"
    for end in ("", ".", ", stopping", " 15", " to stop training"):
        assert told([*WELL, f"INFO {asked}{end}"])[0] == "preempted"


def test_a_job_that_finds_an_error_of_memory_blames_the_hardware():
    """As in https://github.com/pran872/Brain-Network."""
    assert told(["Detected ECC Error."]) == ("hardware", "Detected ECC Error.")
    assert told(["Detected ECC errors: 0"])[0] == "none"


def test_settings_on_a_line_of_progress_leave_it_one():
    memory = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    steps = [f"[step {number}/9] max_steps=9 loss 0.3" for number in range(1, 9)]
    assert told([memory, *steps])[0] == "none"
    assert told([memory, "max_steps=9", "num_train_epochs: 3", "warmup_steps = 100"])[0] == "oom_device"
    assert told([memory, "Num epochs = 3", "Total optimization steps = 600"])[0] == "oom_device"


def test_what_a_queue_s_thread_cannot_send_ends_nothing():
    """https://github.com/zhangrj91/darts"""
    queues = "/opt/conda/lib/python3.7/multiprocessing/queues.py _feed"
    broken = "BrokenPipeError: [Errno 32] Broken pipe"
    assert told([*WELL, *threw(broken, queues)])[0] == "none"
    assert told([*WELL, *threw(broken)])[0] == "network"
    assert told([*WELL, *threw(broken, queues.replace("_feed", "get"))])[0] == "network"
    assert told([*WELL, *threw(broken, queues.replace("multiprocessing", "acme"))])[0] == "network"
    assert told([*WELL, *threw("OSError: [Errno 28] No space left on device", queues)])[0] == "storage"
    assert told([*WELL, *threw("OSError: [Errno 24] Too many open files", queues)])[0] == "user_code"


def test_what_python_ignores_is_no_complaint():
    """https://github.com/roman91DE/kaggle_podcasts"""
    tracker = "Exception ignored in: <function ResourceTracker.__del__ at 0x102bc4f40>"
    raised = threw("ChildProcessError: [Errno 10] No child processes", "/lib/resource_tracker.py __del__")
    assert told([*WELL, tracker, *raised])[0] == "none"
    assert told([*WELL, tracker, "Error: the checkpoint is corrupt"])[0] == "checkpoint"
    assert told([*WELL, tracker, *raised, raised[-1]])[0] == "unknown"
    other = [tracker, *(f"[rank1]: {line}" for line in raised)]
    assert told([*WELL, *other])[0] == "unknown"


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("ERROR: the machine is about to be reclaimed", "preempted"),
        ("FATAL: the host memory is exhausted", "oom_host"),
        ("Fatal: kernel panic on node3", "hardware"),
    ],
)
def test_what_ends_all_ranks_explains_why_they_lose_each_other(line, failure_class):
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:26851"
    assert told([*WELL, *threw(lost), line]) == (failure_class, line)
