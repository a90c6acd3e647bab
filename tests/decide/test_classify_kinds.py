"""What an exception is by its kind, what a run survived, and how sure a verdict is."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import LogScanner, classify, judge
from prefect_ft.decide.classify.reading import is_library
from prefect_ft.decide.incidents import with_verdict
from prefect_ft.model import Incident

LIBRARY = "/opt/venv/lib/python3.11/site-packages"
HEAD = "Traceback (most recent call last):"


def threw(exception, *frames):
    """A traceback through these frames, each `FILE FUNCTION`, below the user's own."""
    lines = [HEAD]
    for frame in ("/app/train.py <module>", *frames):
        file, _, function = frame.partition(" ")
        lines += [f'  File "{file}", line 7, in {function}', "    call()"]
    return [*lines, *exception.split("\n")]


def told(lines, exit_code=1):
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line, verdict.confidence


@pytest.mark.parametrize(
    ("exception", "frames", "failure_class"),
    [
        pytest.param("VaultError: write failed (os error 28)", (), "storage", id="errno"),
        pytest.param("VaultError: sync: No space left on device", (), "storage", id="words-of-an-errno"),
        pytest.param("OSError: Not found: x: No such file or directory Error #2", (), "config", id="no-such-file"),
        pytest.param("VaultError: errno: 99999", (), "user_code", id="no-errno"),
        pytest.param("VaultError: HTTP status 503", (), "network", id="a-service-that-fails"),
        pytest.param("VaultError: HTTP status 429", (), "network", id="one-that-is-asked-too-often"),
        pytest.param("VaultError: HTTP status 403", (), "config", id="one-that-refuses"),
        pytest.param("RuntimeError: HIP out of memory. Tried to allocate 2 GiB", (), "oom_device", id="device-memory"),
        pytest.param("VaultError: the shard is truncated", (), "data", id="a-sample"),
        pytest.param("VaultError: ptxas not found", (), "compile", id="a-compiler"),
        pytest.param("VaultError: version mismatch", (), "config", id="versions"),
        pytest.param("RuntimeError: requested 16 devices but only 12 exist", (), "config", id="too-few-devices"),
        pytest.param("RuntimeError: a batch of 16 devices", (), "user_code", id="devices-alone"),
        pytest.param("VaultError: please fix these configuration options first", (), "config", id="a-wrong-set-up"),
        pytest.param("acme.LinkTimeoutError: x", (), "network", id="name-of-a-connection"),
        pytest.param("acme.PlanConfigError: x", (), "config", id="name-of-a-configuration"),
        pytest.param("acme.FrameDecodeError: x", (), "data", id="name-of-data"),
        pytest.param("acme.KernelCompilationError: x", (), "compile", id="name-of-a-compiler"),
        pytest.param("acme.VaultError: x", (), "user_code", id="a-name-that-says-nothing"),
        pytest.param("ValueError: x", (f"{LIBRARY}/transformers/training_args.py __post_init__",), "config",
                     id="options"),
        pytest.param("ValueError: x", ("/app/argparse.py f",), "user_code", id="a-file-of-ones-own"),
        pytest.param("RuntimeError: x", (f"{LIBRARY}/soundfile.py _open",), "data", id="a-reader-of-data"),
        pytest.param("RuntimeError: x", (f"{LIBRARY}/triton/runtime/build.py _build",), "compile", id="a-build"),
        pytest.param("RuntimeError: x", (f"{LIBRARY}/httpx/_client.py send",), "network", id="a-client"),
        pytest.param("AttributeError: x", (f"{LIBRARY}/acme/__init__.py <module>",), "config", id="an-import"),
        pytest.param("AttributeError: x", ("/app/lib.py <module>",), "user_code", id="an-import-of-ones-own"),
        pytest.param("AttributeError: x", (f"{LIBRARY}/httpx/_client.py send",), "user_code",
                     id="a-mistake-in-a-client"),
        pytest.param("OSError: Unable to open file (truncated file: eof = 96)",
                     ("/app/d.py __getitem__", f"{LIBRARY}/h5py/files.py make"), "data", id="a-data-set-of-ones-own"),
    ],
)  # fmt: skip
def test_an_exception_is_known_by_its_kind(exception, frames, failure_class):
    assert told(threw(exception, *frames))[0] == failure_class


def test_further_lines_of_a_message_say_what_the_first_does_not():
    lines = threw("acme.VaultError: 2 root error(s) found.\n  (0) Not found: ./bin/ptxas not found\n  (1) x")
    assert told(lines)[:2] == ("compile", len(lines) - 1)
    assert told([*lines[:-2], *["more words"] * 8, lines[-2]])[0] == "user_code"
    assert told([f"[rank{number}]: {line}" for number in (0,) for line in lines])[0] == "compile"


def test_a_message_that_quotes_a_query_says_its_reason_below():
    query = [
        "            SELECT t.event_no",
        "            FROM truth t",
        "         WHERE x IN (" + "20007," * 9000 + ")",
    ]
    exception = "\n".join(
        ["pandas.errors.DatabaseError: Execution failed on sql '", *query, "': database or disk is full"]
    )
    lines = threw(exception, f"{LIBRARY}/pandas/io/sql.py execute")
    assert told(lines)[:2] == ("storage", len(lines))
    assert told(lines[:-1])[0] == "data"
    cited = threw("ValueError: couldn't parse 'abc'", f"{LIBRARY}/pandas/io/sql.py execute")
    assert told([*cited, *["cleaning up"] * 20, "sync: connection refused by peer"])[0] == "data"


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_further_lines_may_come_in_any_pieces(pieces):
    lines = threw("acme.VaultError: several errors:\n  (0) disk quota exceeded")
    data = "\n".join(lines).encode()
    scanner = LogScanner("a")
    size = len(data) // pieces + 1
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    assert judge([scanner.findings()], exit_code=1).failure_class == "storage"


LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
CANCEL = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***"
STEP = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***"
COMPILE = "nvcc fatal : Unsupported gpu architecture 'compute_120'"
WORDS = ["words that say nothing"] * 120


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([COMPILE, LIMIT], ("cancelled", 2), id="what-a-line-says-is-over-at-a-time-limit"),
        pytest.param(["run.sh: line 3: cd: /x: No such file or directory", CANCEL], ("cancelled", 2), id="a-script"),
        pytest.param([*threw("ValueError: x"), CANCEL], ("user_code", 4), id="an-exception-is-not"),
        pytest.param([*threw("ValueError: x"), STEP], ("user_code", 4), id="nor-before-a-step-that-srun-ends"),
        pytest.param([*threw("ValueError: x"), *WORDS, LIMIT], ("cancelled", 125), id="unless-it-is-long-ago"),
        pytest.param(
            ["NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus.", *WORDS, LIMIT], ("hardware", 1),
            id="a-lost-device-keeps-a-job-hanging",
        ),
        pytest.param(["Received 15 death signal, shutting down workers", STEP], ("cancelled", 2), id="who-sent-it"),
        pytest.param(["Received SIGTERM death signal", "Connection reset by peer"], ("preempted", 1), id="nobody-says"),
        pytest.param(
            ["Job deleted at request of root@n1", "MOAB_INFO:  job exceeded wallclock limit"], ("cancelled", 2),
            id="why-it-was-deleted",
        ),
        pytest.param(["module: command not found", "Killed"], ("unknown", 2), id="beside-the-run"),
    ],
)  # fmt: skip
def test_an_end_from_outside_beats_what_was_survived(lines, expected):
    assert told(lines, None)[:2] == expected


def test_an_exception_that_only_tells_of_the_one_above_is_none():
    lines = ["Exception in thread server:", *threw("KeyError: 'edge'")]
    assert told([*lines, *threw("RuntimeError: Exception in server thread")])[:2] == ("user_code", 5)
    assert told([*lines, *threw("RuntimeError: another")])[:2] == ("user_code", 9)


def test_a_log_that_breaks_off_in_a_traceback_has_failed():
    frames = threw("ValueError: x")[:-1]
    assert told(["step 1", "step 2", *frames], None)[0] == "unknown"
    assert (
        told(["W0102 03:04:05.678 a.cc:7] Resource exhausted: /x/model.ckpt-1", *frames], None)[0]
        == "storage"
    )
    assert told([*frames, "ValueError: x", "words"], None)[0] == "user_code"
    assert told(["Exception ignored in: <x>", *frames], None)[0] == "none"


def test_an_exception_that_is_only_named_counts_at_the_end_of_a_log():
    named = "tensorflow.errors.InvalidArgumentError: Invalid JPEG data, size 885566"
    assert told([named], None) == ("data", 1, "low")
    assert told([named, *[f"line {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]], None)[0] == "none"
    assert told([named, "step 1", "step 2", "step 3"], None)[0] == "none"


# -- how sure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "confidence"),
    [
        pytest.param(threw("ModuleNotFoundError: No module named 'x'"), "high", id="a-text-that-is-known"),
        pytest.param(threw("acme.PlanConfigError: x"), "low", id="a-kind-that-forbids-a-restart"),
        pytest.param(threw("acme.LinkTimeoutError: x"), "high", id="a-kind-that-does-not"),
        pytest.param(threw("acme.HTTPError: HTTP Error 404: gone"), "high", id="what-a-server-does-not-have"),
        pytest.param(threw("acme.HTTPError: HTTP Error 403: not now"), "low", id="what-it-refuses"),
        pytest.param(threw("VaultError: HTTP status 403"), "low", id="what-it-refuses-in-other-words"),
        pytest.param([COMPILE, "words"], "high", id="a-line-near-the-end"),
        pytest.param([COMPILE, *WORDS, *WORDS], "low", id="one-long-before-it"),
        pytest.param(
            [COMPILE, "OSError: [Errno 28] No space left on device"], "low", id="a-full-disk-can-look-like-it"
        ),
        pytest.param(
            [f"[rank0]: {line}" for line in threw("ModuleNotFoundError: x")]
            + [f"[rank1]: {line}" for line in threw("OSError: [Errno 113] No route to host")],
            "low", id="another-rank-says-otherwise",
        ),
    ],
)  # fmt: skip
def test_a_verdict_says_how_sure_it_is(lines, confidence):
    assert told(lines)[2] == confidence


def test_an_incident_keeps_a_low_confidence_alone():
    incident = Incident(t=0.0, kind="exit", exit_code=1)
    for exception, confidence in (("acme.PlanConfigError: x", "low"), ("ModuleNotFoundError: x", None)):
        verdict = classify({"a": threw(exception)}, exit_code=1)
        assert with_verdict(incident, verdict).confidence == confidence
    said = Incident(t=0.0, kind="exit", exit_code=1, confidence="high")
    assert (
        with_verdict(said, classify({"a": threw("acme.PlanConfigError: x")}, exit_code=1)).confidence
        == "high"
    )


def test_the_message_of_a_key_error_counts_if_it_is_a_sentence():
    assert told(threw("KeyError: 'the environment variable HOME7 must be set'"))[0] == "config"
    assert told(threw("KeyError: 'version mismatch'"))[0] == "user_code"


def test_what_ends_a_program_is_not_the_end_of_the_next_one():
    usage = "train.py: error: argument --steps: expected one argument"
    assert told([usage], None)[0] == "config"
    assert told([usage, *threw("KeyboardInterrupt")], None)[0] == "cancelled"
    assert told([usage, *threw("KeyError: 'x'")], None)[0] == "user_code"


FILLER = [f"word {chr(97 + number % 26)}" for number in range(120)]


def test_a_line_far_from_the_end_that_nothing_followed_from_was_no_end():
    full = "ERROR: write of /tmp/x failed: No space left on device"
    assert told([full, *FILLER], None)[0] == "none"
    assert told([full, *FILLER], 1)[0] == "storage"
    assert told([full, *FILLER[:10]], None)[0] == "storage"
    assert told([full, *FILLER, "Error: something"], None)[0] == "storage"
    assert told([full, *FILLER, *threw("SystemExit: 1")], None)[0] == "storage"


@pytest.mark.parametrize(
    "exception", ["ModuleNotFoundError: No module named 'x'", "SyntaxError: invalid syntax"]
)
def test_a_program_that_fails_as_it_begins_is_another_job_than_the_one_that_was_cancelled(exception):
    assert told([CANCEL, *threw(exception)], None)[0] != "cancelled"
    assert told([CANCEL, *threw("KeyError: 'x'")], None)[0] == "cancelled"


def test_a_rank_that_was_killed_is_told_by_the_line_that_says_so():
    report = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 7)"
    )
    wrapper = threw("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    verdict = classify(
        {"a.log": ["E0102 03:04:05.6 7 api.py:7] Sending process 7 closing signal SIGTERM", report, *wrapper]}
    )
    assert verdict.failure_class == "unknown"
    assert verdict.evidence is not None
    assert verdict.evidence.line == 2


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("died with <Signals.SIGKILL: 9>", "signal"),
        ("returned non-zero exit status 137", "signal"),
        ("returned non-zero exit status 1", "subprocess-failed"),
    ],
)
def test_a_kill_ends_what_a_launcher_had_started_only_where_it_ends_the_launcher(how, rule):
    steps = [f"step {step} loss 2.{step}" for step in range(40)]
    raised = threw(f"subprocess.CalledProcessError: Command '['python', 'train.py']' {how}.")

    def rule_of(lines):
        evidence = classify({"a.log": lines}, exit_code=1).evidence
        return evidence.rule if evidence is not None else None

    assert rule_of([*steps, *raised]) == rule
    assert rule_of([*raised, *steps]) != "signal"


@pytest.mark.parametrize(
    ("lines", "exit_code", "confidence"),
    [
        pytest.param(threw("ValueError: x", f"{LIBRARY}/acme/run.py f"), 1, "low", id="a-library-s-value"),
        pytest.param(threw("ValueError: x"), 1, "high", id="one-s-own"),
        pytest.param(["PORT 7: Address already in use", *FILLER, "[W] x", "Aborted (core dumped)"], 134, "low",
                     id="long-before-anything-else"),
        pytest.param(["step 7"], 134, "low", id="an-abort-without-a-word"),
        pytest.param(["step 7"], 139, "high", id="a-segmentation-fault"),
        pytest.param(["W0102 03:04:05.6 7 a.py:7] RuntimeError: x", "all is well"], None, "low", id="well-but"),
        pytest.param(["W0102 03:04:05.6 7 a.py:7] RuntimeError: x", "all is well"], 0, "high", id="well"),
    ],
)  # fmt: skip
def test_what_is_doubted(lines, exit_code, confidence):
    assert told(lines, exit_code)[2] == confidence


def test_an_assertion_may_tell_of_what_passes():
    assert told(threw("AssertionError: underflow in dt nan"))[0] == "numeric"
    assert told(threw("AssertionError: the batch size must be a multiple of 7"))[0] == "assertion"


def test_a_program_says_that_somebody_has_interrupted_it():
    said = "Keyboard interruption. Exiting from training"
    thread = ["Exception in thread Thread-1 (pin):", *threw("ConnectionResetError: [Errno 104] x")]
    assert told([*thread, said, "Training took 00:09:17"], None)[0] == "cancelled"
    assert told(["Uvicorn runs at :8000 (Press CTRL+C to quit)"], None)[0] == "none"


@pytest.mark.parametrize(
    ("exception", "frames", "failure_class"),
    [
        pytest.param("MemoryError: Error allocating 7 bytes of device memory (out of memory).", (), "oom_device",
                     id="memory-of-a-device"),
        pytest.param("MemoryError: x", (), "oom_host", id="memory-of-whatever"),
        pytest.param("cv2.error: OpenCV(4.12.0) /io/a.hpp:92: error: (-15:Bad number of channels) in function 'f'", (),
                     "user_code", id="opencv-is-no-compiler"),
        pytest.param("RuntimeError: jaxlib/cuda/helpers.cc:113: operation cuInit(0) failed: Unknown CUDA error 303",
                     (), "config", id="no-driver"),
        pytest.param("OSError: Unable to create file (errno = 17, error message = 'File exists')",
                     (f"{LIBRARY}/torch/utils/data/_utils/fetch.py fetch",), "user_code", id="a-file-that-is-written"),
        pytest.param("OSError: bad magic in a.h5", (f"{LIBRARY}/torch/utils/data/_utils/fetch.py fetch",), "data",
                     id="one-that-is-read"),
        pytest.param("RuntimeError: File out/ckpt.pt cannot be opened.", (), "storage", id="torch-opens-it-to-write"),
        pytest.param("RuntimeError: Timed out initializing process group in a barrier", (), "network", id="a-barrier"),
        pytest.param("ValueError: No runs present in the directory: 'x'", (), "config", id="nothing-there"),
        pytest.param("ValueError: acme supports device type cpu, but got device target GPU", (), "config",
                     id="another-device"),
        pytest.param("RuntimeError: f only supports boolean masks, but got dtype Long", (), "user_code", id="a-type"),
        pytest.param("RuntimeError: Internal Writer Error: Background writer channel closed",
                     (f"{LIBRARY}/transformers/modeling_utils.py load_state_dict",), "storage", id="a-writer"),
        pytest.param("RuntimeError: unable to write to file </torch_1_2>", (), "storage", id="shared-memory"),
        pytest.param("ValueError: Tokenizer class A does not exist or is not imported.", (), "config", id="a-class"),
        pytest.param("KeyError: 'llama'", (f"{LIBRARY}/transformers/models/auto/configuration_auto.py get",), "config",
                     id="a-name-of-a-model"),
        pytest.param("wandb.errors.CommError: Permission denied, ask the owner", (), "config", id="no-permission"),
        pytest.param("ValueError: The batch received was empty, so nothing is trained", (), "data", id="empty"),
    ],
)  # fmt: skip
def test_what_kind_a_message_tells(exception, frames, failure_class):
    assert told(threw(exception, *frames))[0] == failure_class


def test_where_a_logger_was_called_is_no_traceback():
    lines = [
        "Call stack:",
        '  File "/app/train.py", line 7, in f',
        "    log.info(x)",
        "Message: 'x'",
        "Arguments: (7,)",
    ]
    assert (
        told(["--- Logging error ---", *threw("TypeError: not all arguments converted"), *lines], None)[0]
        == "none"
    )


@pytest.mark.parametrize(
    "exception", ["FileNotFoundError: [Errno 2] No such file or directory: 'x'", "AssertionError"]
)
def test_what_was_right_when_the_run_began_is_doubted(exception):
    assert told(threw(exception))[2] == "high"
    assert told(["step 1 loss 0.3", "step 2 loss 0.2", "step 3 loss 0.1", *threw(exception)])[2] == "low"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run.sh: 行 10: ../kpLogo: 没有那个文件或目录", "config"),
        ("run.sh: 第 9 行\uff1apython3\uff1a未找到命令", "config"),
        ("run.sh: ligne 4: torchrun : commande introuvable", "config"),
        ("run.sh: Zeile 3: ./train: Datei oder Verzeichnis nicht gefunden", "config"),
        ("run.sh: línea 5: ./train: Permiso denegado", "config"),
        ("run.sh: 行 3: 12345 已杀死               python train.py", "unknown"),
        ("run.sh: Zeile 3: 12345 Beendet                 python train.py", "preempted"),
        ("已杀死", "unknown"),
        ("Tué", "none"),
        ("Violación de segmento (`core' generado)", "crash"),
        ("Ошибка сегментирования (стек памяти сброшен на диск)", "crash"),
        ("cp: 写入 'ckpt.pt' 时出错: 设备上没有空间", "storage"),
        (
            "tar: ckpt: Wrote only 4096 bytes: Der zugewiesene Plattenplatz (Quota) ist überschritten",
            "storage",
        ),
        ("Terminado", "none"),
        ("Завершено", "none"),
        ("终止训练", "none"),
        ("[2021-05-18 11:10:19 +0300] [13369] [ERROR] Connection in use: ('0.0.0.0', 443)", "port_in_use"),
    ],
)
def test_shells_and_the_system_speak_other_languages(line, expected):
    assert classify({"a.log": [line]}).failure_class == expected


@pytest.mark.parametrize(
    ("exception", "frame", "failure_class"),
    [
        (
            "OSError: Cannot save file into a non-existent directory: 'results/lr5e-6'",
            f"{LIBRARY}/pandas/io/common.py check_parent_directory",
            "config",
        ),
        ("OSError: Cannot read what is in here", f"{LIBRARY}/pandas/io/common.py get_handle", "data"),
        (
            "ValueError: dict contains fields not in fieldnames: 'train_loss'",
            "/usr/lib/python3.12/csv.py _dict_to_list",
            "user_code",
        ),
        (
            "ValueError: not enough values to unpack (expected 2, got 1)",
            "/usr/lib/python3.12/tarfile.py next",
            "data",
        ),
        (
            '_tkinter.TclError: couldn\'t connect to display "localhost:10.0"',
            "/usr/lib/python3.6/tkinter/__init__.py __init__",
            "config",
        ),
    ],
)
def test_where_a_program_writes_and_draws_does_not_make_it_data(exception, frame, failure_class):
    """HollyRiver/HFRL, JoshuaEng/GROUPED-FLASH, danielle-rothermel/dr-exp."""
    assert told(threw(exception, frame))[0] == failure_class


def test_a_library_s_thread_without_memory_ends_a_run_that_prints_nothing_more():
    """The thread of a pool that starts its processes: the program waits for ever (darren-tpk/enhance_catalog)."""
    lines = [
        "Exception in thread Thread-7:",
        HEAD,
        '  File "/opt/lib/python3.8/threading.py", line 9, in _bootstrap_inner',
        "    self.run()",
        '  File "/opt/lib/python3.8/multiprocessing/pool.py", line 9, in _handle_workers',
        "    cls._maintain_pool(ctx)",
        "OSError: [Errno 12] Cannot allocate memory",
    ]
    assert told(lines, None)[0] == "oom_host"
    assert told([*lines[:-1], "TypeError: not iterable"], None)[0] == "none"
    assert told([*lines, *(f"file {number} is written" for number in range(40))], None)[0] == "none"


@pytest.mark.parametrize(
    ("exception", "frame", "failure_class"),
    [
        ("EOFError: Ran out of input", "torch/serialization.py load", "checkpoint"),
        ("OSError: bad magic", "torch/utils/data/_utils/fetch.py fetch", "data"),
        ("OSError: handle is closed", "multiprocessing/queues.py _feed", "unknown"),
    ],
)
@pytest.mark.parametrize(
    "library",
    ["/opt/conda/lib/python3.11/site-packages/", r"C:\Users\A B\anaconda3\envs\x\Lib\site-packages" + "\\"],
)
def test_frames_of_windows_are_read_as_others(exception, frame, failure_class, library):
    own, here = (
        ("/home/x/train.py", frame) if library[0] == "/" else (r"D:\x\train.py", frame.replace("/", "\\"))
    )
    file, _, function = f"{library}{here}".rpartition(" ")
    lines = [
        HEAD,
        f'  File "{own}", line 7, in <module>',
        "    go()",
        f'  File "{file}", line 7, in {function}',
    ]
    assert told([*lines, "    call()", exception])[0] == failure_class


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("C:/Users/A B/AppData/Local/Programs/Python/Python39/lib/threading.py", True),
        (
            "C:/Users/x/AppData/Roaming/uv/python/cpython-3.11.13-windows-x86_64-none/Lib/asyncio/streams.py",
            True,
        ),
        ("C:/ProgramData/Anaconda3/lib/runpy.py", True),
        ("D:/envs/rl/Lib/socket.py", True),
        ("D:/python/projects/net/lib/data.py", False),
        ("/home/python/lib/data.py", False),
    ],
)
def test_where_windows_has_its_libraries(file, expected):
    assert is_library(file) is expected
