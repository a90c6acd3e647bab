"""Why a run failed: from the last exception, the ranks' logs together, the exit code and the signal."""

from __future__ import annotations

import signal
import traceback
from dataclasses import replace
from typing import get_args

import pytest

from prefect_ft.decide.classify import RECOVERABLE, classify
from prefect_ft.model import Evidence, FailureClass, Verdict


def ending_in(line, *, function="step", file="/app/train.py"):
    """The traceback that ends in this line."""
    return [
        "Traceback (most recent call last):",
        '  File "/app/main.py", line 7, in <module>',
        "    run()",
        f'  File "{file}", line 31, in {function}',
        "    loss = model(batch)",
        "           ^^^^^^^^^^^^",
        line,
    ]


def classified(lines, **ended):
    return classify({"rank0.log": lines}, **ended)


def evidence(verdict):
    """What a verdict rests on: rule, file and line."""
    return verdict.evidence and (verdict.evidence.rule, verdict.evidence.file, verdict.evidence.line)


def printed_by(function):
    """The lines that Python prints when this function raises."""
    try:
        function()
    except BaseException as raised:  # a KeyboardInterrupt too
        return "".join(traceback.format_exception(raised)).splitlines()
    raise AssertionError("it must raise")


def test_every_class_says_whether_a_restart_helps():
    assert set(RECOVERABLE) == set(get_args(FailureClass))


@pytest.mark.parametrize(
    ("line", "failure_class", "recoverable"),
    [
        ("AssertionError", "assertion", False),
        ("AssertionError: shapes differ", "assertion", False),
        ("ModuleNotFoundError: No module named 'apex'", "config", False),
        ("ImportError: libcudart.so.12: undefined symbol: foo", "config", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'vocab.json'", "config", False),
        ("PermissionError: [Errno 13] Permission denied: '/data'", "config", False),
        ("NotADirectoryError: [Errno 20] Not a directory: '/data/x'", "config", False),
        ("IsADirectoryError: [Errno 21] Is a directory: '/data'", "config", False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "network", True),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "network", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", "network", True),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443)", "network", True),
        ("TimeoutError: timed out", "network", True),
        ("socket.timeout: timed out", "network", True),
        ("socket.gaierror: [Errno -2] Name or service not known", "network", True),
        ("OSError: [Errno 113] No route to host", "network", True),
        ("RuntimeError: Connection closed by peer [10.0.0.7]:41820", "network", True),
        ("EOFError", "network", True),
        ("OSError: [Errno 28] No space left on device", "storage", True),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt'", "storage", True),
        ("OSError: [Errno 30] Read-only file system: '/out'", "storage", True),
        ("OSError: [Errno 116] Stale file handle: '/nfs/x'", "storage", True),
        ("OSError: [Errno 5] Input/output error", "storage", True),
        ("RuntimeError: unable to write to file: No space left on device (28)", "storage", True),
        ("OSError: [Errno 98] Address already in use", "port_in_use", True),
        ("torch.distributed.DistNetworkError: failed to listen, EADDRINUSE", "port_in_use", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom_device", "confirm"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "oom_device", "confirm"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 20 MiB", "oom_device", "confirm"),
        ("MemoryError", "oom_host", "confirm"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 TiB", "oom_host", "confirm"),
        ("FloatingPointError: invalid value encountered in log", "numeric", True),
        ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", "numeric", True),
        ("ValueError: loss is NaN at step 40", "numeric", True),
        ("zipfile.BadZipFile: File is not a zip file", "checkpoint", True),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "checkpoint", True),
        ("RuntimeError: PytorchStreamReader failed reading zip archive", "checkpoint", True),
        ("_pickle.UnpicklingError: pickle data was truncated", "checkpoint", True),
        ("EOFError: Ran out of input", "checkpoint", True),
        ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", "compile", False),
        ("triton.compiler.errors.CompilationError: at 3:4", "compile", False),
        ("KeyboardInterrupt", "cancelled", True),
        ("RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ", "unknown", True),
        ("ValueError: not enough values to unpack", "user_code", "confirm"),
        ("KeyError: 'labels'", "user_code", "confirm"),
        ("EOFError: EOF when reading a line", "user_code", "confirm"),
        ("my_model.errors.Unhappy: no", "user_code", "confirm"),
        ("OSError: [Errno 24] Too many open files", "user_code", "confirm"),
        ("OSError: something that is no errno", "user_code", "confirm"),
    ],
)
def test_an_exception_has_a_class(line, failure_class, recoverable):
    lines = ending_in(line)
    verdict = classified(lines, exit_code=1)
    assert (verdict.failure_class, verdict.recoverable) == (failure_class, recoverable)
    assert evidence(verdict)[1:] == ("rank0.log", len(lines))
    assert verdict.evidence.text == line.rstrip()


def test_a_verdict_says_everything():
    verdict = classified(["starting", *ending_in("my.Unhappy: no labels")], exit_code=1)
    root = Evidence(rule="python-exception", text="my.Unhappy: no labels", file="rank0.log", line=8)
    expected = Verdict(
        failure_class="user_code", recoverable="confirm", blame="none", signature=None, evidence=root
    )
    assert replace(verdict, signature=None) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            [*ending_in("ValueError: first"), *ending_in("AssertionError: last")],
            ("assertion", 14),
            id="the-last-one-ended-it",
        ),
        pytest.param(
            [*ending_in("AssertionError: caught"), "step 10 loss 3", "step 20 loss 2"],
            ("unknown", None),
            id="caught-and-followed-by-progress",
        ),
        pytest.param(
            [*ending_in("AssertionError"), "epoch 1", "epoch 2", *ending_in("KeyError: 'a'")],
            ("user_code", 16),
            id="the-run-that-began-last",
        ),
        pytest.param(
            [*ending_in("AssertionError"), "saved the state of step 20 for you"],
            ("assertion", 7),
            id="one-line-is-no-progress",
        ),
        pytest.param(
            [*ending_in("AssertionError"), "wandb: step 10", "wandb: epoch 2", "wandb: step 11"],
            ("assertion", 7),
            id="a-tracker's-summary-is-no-progress",
        ),
        pytest.param(
            ["Exception ignored in: <function Pool.__del__ at 0x7f>", *ending_in("AssertionError")],
            ("unknown", None),
            id="an-ignored-exception",
        ),
        pytest.param(
            [f"[rank3]: {line}" for line in ending_in("AssertionError: x")],
            ("assertion", 7),
            id="prefixed-by-its-rank",
        ),
        pytest.param(
            [
                line
                for pair in zip(
                    (f"[rank0]: {line}" for line in ending_in("AssertionError: x")),
                    (f"[rank1]:   some other words of {number}" for number in range(7)),
                    strict=True,
                )
                for line in pair
            ],
            ("assertion", 13),
            id="mixed-with-another-rank",
        ),
        pytest.param(
            [*ending_in("")[:-1], " 40%|####      | 2/5\rAssertionError"],
            ("assertion", 7),
            id="over-a-progress-bar",
        ),
        pytest.param(
            [
                f" 40%|##  | 2/5 {line}" if not i else line
                for i, line in enumerate(ending_in("AssertionError"))
            ],
            ("assertion", 7),
            id="on-the-line-of-a-progress-bar",
        ),
        pytest.param(ending_in("AssertionError")[3:], ("assertion", 4), id="without-its-beginning"),
        pytest.param(
            [*ending_in("")[:-1], "\x1b[1;35mAssertionError\x1b[0m: \x1b[35mx\x1b[0m"],
            ("assertion", 7),
            id="in-colours",
        ),
        pytest.param(
            [
                "[rank0]: FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.",
                "[rank0]: Original Traceback (most recent call last):",
                *(f"[rank0]: {line}" for line in ending_in("FileNotFoundError: '7.png'")[1:]),
            ],
            ("config", 8),
            id="of-a-data-loader",
        ),
        pytest.param(
            [
                '  File "/app/train.py", line 3',
                "    loss = (",
                "           ^",
                "SyntaxError: '(' was never closed",
            ],
            ("user_code", 4),
            id="a-syntax-error",
        ),
        pytest.param(
            [
                *ending_in("RuntimeError: two lines"),
                "the second: line",
                "AssertionError: part of the message",
            ],
            ("user_code", 7),
            id="a-message-of-several-lines",
        ),
        pytest.param(["AssertionError: a word in a log"], ("unknown", None), id="no-traceback"),
    ],
)
def test_the_exception_that_ended_a_log(lines, expected):
    verdict = classified(lines, exit_code=1)
    assert (verdict.failure_class, verdict.evidence.line) == expected


def raise_from(last, cause):
    try:
        raise cause
    except type(cause) as error:
        raise last from error


def raise_while_handling(last, first):
    try:
        raise first
    except type(first):
        raise last  # noqa: B904  (that is what is tested)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(
            lambda: raise_from(RuntimeError("no batch"), OSError(28, "No space left on device")),
            ("storage", "OSError: [Errno 28] No space left on device"),
            id="a-cause-of-a-better-known-class",
        ),
        pytest.param(
            lambda: raise_from(ValueError("no config"), KeyError("lr")),
            ("user_code", "ValueError: no config"),
            id="a-cause-that-says-no-more",
        ),
        pytest.param(
            lambda: raise_from(AssertionError("two"), FileNotFoundError("one")),
            ("assertion", "AssertionError: two"),
            id="a-last-one-that-says-enough",
        ),
        pytest.param(
            lambda: raise_while_handling(RuntimeError("cannot load"), FileNotFoundError("a.bin")),
            ("config", "FileNotFoundError: a.bin"),
            id="a-wrapper-while-handling",
        ),
        pytest.param(
            lambda: raise_while_handling(NameError("fallback"), ImportError("fast path")),
            ("user_code", "NameError: fallback"),
            id="a-mistake-in-the-handler-ended-it",
        ),
        pytest.param(
            lambda: raise_while_handling(RuntimeError("outer"), RuntimeError("inner")),
            ("user_code", "RuntimeError: outer"),
            id="nothing-but-wrappers",
        ),
    ],
)
def test_a_chain_is_judged_by_what_matters(function, expected):
    verdict = classified(printed_by(function), exit_code=1)
    assert (verdict.failure_class, verdict.evidence.text) == expected


RESET = "ConnectionResetError: rank 1 is gone"
REPORT = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


@pytest.mark.parametrize(
    ("last_lines", "ended", "expected"),
    [
        pytest.param((RESET, "ValueError: x"), {"exit_code": 1}, ("user_code", 1, [0]), id="a-lost-peer"),
        pytest.param(("BrokenPipeError", "ValueError: x"), {}, ("user_code", 1, [0]), id="a-broken-pipe"),
        pytest.param(("EOFError", "ValueError: x"), {}, ("user_code", 1, [0]), id="an-end-of-file"),
        pytest.param(
            ("ConnectionRefusedError: [Errno 111] Connection refused", "ModuleNotFoundError: x"),
            {},
            ("config", 1, [0]),
            id="a-peer-that-never-listened",
        ),
        pytest.param(("KeyboardInterrupt", "ValueError: x"), {}, ("user_code", 1, [0]), id="interrupted"),
        pytest.param((RESET, "KeyboardInterrupt"), {}, ("cancelled", 1, [0]), id="a-person-interrupts"),
        pytest.param((REPORT, RESET, "ValueError: x"), {}, ("user_code", 2, [0, 1]), id="a-launcher"),
        pytest.param((REPORT, RESET), {"exit_code": 1}, ("network", 1, [0]), id="only-consequences"),
        pytest.param(("ValueError: a", "KeyError: b"), {}, ("user_code", 0, []), id="two-alike-the-first"),
        pytest.param((RESET, RESET), {"signal": 11}, ("crash", None, [0, 1]), id="peers-of-a-crashed-rank"),
        pytest.param((RESET,), {"signal": 9}, ("unknown", None, [0]), id="a-peer-of-a-killed-rank"),
        pytest.param((RESET,), {"exit_code": 137}, ("unknown", None, [0]), id="a-peer-of-a-killed-container"),
        pytest.param(
            ("ValueError: x", RESET), {"signal": 6}, ("user_code", 0, [1]), id="abort-after-it-raised"
        ),
    ],
)
def test_ranks_of_one_job(last_lines, ended, expected):
    logs = {f"rank{rank}.log": ending_in(line) for rank, line in enumerate(last_lines)}
    verdict = classify(logs, **ended)
    failure_class, rank, cascades = expected
    assert verdict.failure_class == failure_class
    assert verdict.evidence.file == (None if rank is None else f"rank{rank}.log")
    assert [(one.role, one.file) for one in verdict.cascades] == [
        ("cascade", f"rank{rank}.log") for rank in cascades
    ]


@pytest.mark.parametrize(
    ("ended", "lines", "expected"),
    [
        pytest.param({"exit_code": 0}, ending_in("ValueError: noise"), ("none", None), id="completed"),
        pytest.param({}, ["step 1", "step 2"], ("none", None), id="nothing-wrong-and-no-exit-code"),
        pytest.param({}, [], ("unknown", None), id="nothing-at-all"),
        pytest.param({"exit_code": 1}, ["step 1"], ("unknown", "exit code 1"), id="exit-1-alone"),
        pytest.param({"exit_code": 2}, [], ("unknown", "exit code 2"), id="exit-2-alone"),
        pytest.param({"signal": 11}, [], ("crash", "ended by SIGSEGV"), id="SIGSEGV"),
        pytest.param({"signal": 6}, [], ("crash", "ended by SIGABRT"), id="SIGABRT"),
        pytest.param({"signal": 7}, [], ("crash", "ended by SIGBUS"), id="SIGBUS"),
        pytest.param({"signal": 8}, [], ("crash", "ended by SIGFPE"), id="SIGFPE"),
        pytest.param({"signal": 4}, [], ("crash", "ended by SIGILL"), id="SIGILL"),
        pytest.param({"exit_code": 139}, [], ("crash", "ended by SIGSEGV"), id="128-plus-11"),
        pytest.param({"exit_code": -6}, [], ("crash", "ended by SIGABRT"), id="minus-6"),
        pytest.param({"signal": 9}, [], ("unknown", "ended by SIGKILL"), id="SIGKILL"),
        pytest.param({"exit_code": 137}, [], ("unknown", "ended by SIGKILL"), id="128-plus-9"),
        pytest.param({"signal": 15}, [], ("unknown", "ended by SIGTERM"), id="SIGTERM"),
        pytest.param({"signal": 2}, [], ("cancelled", "ended by SIGINT"), id="SIGINT"),
        pytest.param({"exit_code": 255}, [], ("unknown", "exit code 255"), id="255-is-no-signal"),
        pytest.param({"exit_code": 137}, ["Killed"], ("unknown", "Killed"), id="a-bare-kill"),
        pytest.param(
            {"exit_code": 137},
            ["Out of memory: Killed process 71 (python) total-vm:9kB", "Killed"],
            ("oom_host", "Out of memory: Killed process 71 (python) total-vm:9kB"),
            id="killed-by-the-kernel-for-memory",
        ),
        pytest.param(
            {"exit_code": 2},
            ["usage: train.py [-h] --data DATA", "train.py: error: unrecognized arguments: --dta"],
            ("config", "train.py: error: unrecognized arguments: --dta"),
            id="wrong-arguments",
        ),
        pytest.param(
            {"exit_code": 1},
            ["tool: error: recovered from it"],
            ("unknown", "exit code 1"),
            id="an-error-line-with-another-exit-code",
        ),
        pytest.param(
            {"exit_code": 2},
            ["python: can't open file '/app/trian.py': [Errno 2] No such file or directory"],
            (
                "config",
                "python: can't open file '/app/trian.py': [Errno 2] No such file or directory",
            ),
            id="a-script-that-is-not-there",
        ),
        pytest.param(
            {"exit_code": 127},
            ["bash: line 1: trochrun: command not found"],
            ("config", "bash: line 1: trochrun: command not found"),
            id="a-command-that-is-not-there",
        ),
        pytest.param({"exit_code": 127}, [], ("config", "exit code 127"), id="127-alone"),
        pytest.param({"exit_code": 126}, [], ("config", "exit code 126"), id="126-alone"),
        pytest.param(
            {"signal": 11},
            ["Fatal Python error: Segmentation fault", "", "Current thread 0x7f (most recent call first):"],
            ("crash", "Fatal Python error: Segmentation fault"),
            id="a-crash-with-its-message",
        ),
        pytest.param(
            {"exit_code": 1},
            ["[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"],
            (
                "collective_timeout",
                "[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
            ),
            id="nothing-but-a-watchdog",
        ),
    ],
)
def test_without_an_exception(ended, lines, expected):
    verdict = classified(lines, **ended)
    told = verdict.evidence.text if verdict.evidence else None
    assert (verdict.failure_class, told) == expected
    assert verdict.recoverable == RECOVERABLE[verdict.failure_class]


def signature(line, **ended):
    return classified(ending_in(line, **ended), exit_code=1).signature


@pytest.mark.parametrize(
    ("one", "another"),
    [
        pytest.param(
            "RuntimeError: rank 3 at 10.0.0.7:4711", "RuntimeError: rank 11 at 10.0.1.9:80", id="numbers"
        ),
        pytest.param("ValueError: <X at 0x7f3a2c>", "ValueError: <X at 0x55d01e4b>", id="addresses"),
        pytest.param(
            "OSError: pid 71: 2026-01-06T04:52:18", "OSError: pid 9: 2025-12-31T23:00:00", id="times"
        ),
        pytest.param("OSError: /tmp/tmpa8x_k/a.py", "OSError: /tmp/tmpq2/deep/b.py", id="temporary-paths"),
        pytest.param("OSError: '/runs/a/x.pt'", "OSError: '/data/other/x.pt'", id="folders"),
        pytest.param(
            "KeyError: '3f6c9a2e-1b2c-4d5e-8f90-a1b2c3d4e5f6'",
            "KeyError: 'deadbee1-ffff-4d5e-8f90-0123456789ab'",
            id="identifiers",
        ),
    ],
)
def test_the_same_failure_has_the_same_signature(one, another):
    assert signature(one) == signature(another)


@pytest.mark.parametrize(
    ("one", "another"),
    [
        pytest.param(signature("ValueError: a"), signature("ValueError: b"), id="message"),
        pytest.param(signature("ValueError: a"), signature("KeyError: a"), id="exception"),
        pytest.param(
            signature("KeyError", function="load"), signature("KeyError", function="save"), id="function"
        ),
        pytest.param(signature("KeyError", file="/a/x.py"), signature("KeyError", file="/a/y.py"), id="file"),
        pytest.param(
            classified([], exit_code=3).signature, classified([], exit_code=4).signature, id="exit-code"
        ),
        pytest.param(classified([], signal=9).signature, classified([], signal=15).signature, id="signal"),
    ],
)
def test_different_failures_have_different_signatures(one, another):
    assert one != another


def test_a_signature_never_changes():
    """Journals keep signatures: another value would make an old failure a new one."""
    assert signature("KeyError: 'labels'") == "eea03295975d"


def test_the_line_of_the_code_does_not_matter_for_the_signature():
    moved = [line.replace("line 31", "line 57") for line in ending_in("KeyError: 'a'")]
    assert classified(moved, exit_code=1).signature == signature("KeyError: 'a'")


def test_the_whole_of_a_long_log_is_looked_at():
    lines = [*ending_in("AssertionError"), *["words"] * 60_000, *ending_in("my.Unhappy: a")]
    assert evidence(classified(lines, exit_code=1)) == ("python-exception", "rank0.log", 60_014)
    assert classified(lines[:-7], exit_code=1).failure_class == "assertion"


def test_every_signal_of_this_machine_can_be_classified():
    assert {classified([], signal=number).failure_class for number in signal.Signals} == {
        "crash",
        "cancelled",
        "unknown",
    }
