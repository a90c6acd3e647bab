"""The root among findings: what explains most, what came first, what only followed, and whom it blames."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide.classify import classify, judge
from prefect_ft.decide.classify.chains import GENERIC, wraps
from prefect_ft.decide.classify.closing import Complaint
from prefect_ft.decide.classify.findings import Finding, LogFindings
from prefect_ft.decide.classify.tracebacks import Raised
from prefect_ft.model import Evidence, Verdict
from prefect_ft.signatures import Signature

ECC = Signature(id="ecc", failure_class="hardware", pattern="x", blame="device", hint="look at the device")
FULL = Signature(id="full", failure_class="storage", pattern="x")
CONFIG = Signature(id="config", failure_class="config", pattern="x")
WATCHDOG = Signature(
    id="watchdog", failure_class="collective_timeout", pattern="x", role="cascade", blame="none"
)
RESET = Signature(id="reset", failure_class="network", pattern="x", role="cascade")
ABORTED = Signature(id="aborted", failure_class="crash", pattern="x", role="cascade")
SEGFAULT = Signature(id="segfault", failure_class="crash", pattern="x")
UNKNOWN = Signature(id="killed", failure_class="unknown", pattern="x")
CANCEL = Signature(id="cancel", failure_class="cancelled", pattern="x")
EVICTED = Signature(id="evicted", failure_class="preempted", pattern="x")
USAGE = "train.py: error: the following arguments are required: --data"
MISSING = "sh: 1: trian: not found"
FINAL = Signature(id="final", failure_class="network", pattern="x", recoverable=False)


def said(signature, order, **fields):
    return Finding(signature=signature, text=f"{signature.id} {order}", line=order + 1, order=order, **fields)


def threw(
    signature, order, *, name="KeyError", text="x", is_cleanup=False, is_aside=False, begun=None, **fields
):
    raised = Raised(name, text, order - 5 if begun is None else begun, "a.py", "f", is_cleanup, is_aside)
    return said(signature, order, raised=raised, **fields)


def log(*findings, file="a", tail=("the end",), **fields):
    return LogFindings(file=file, findings=findings, tail=tail, **fields)


def rooted(logs, **ended):
    """The rule and the line of the root, and those of what only followed."""
    verdict = judge(logs, **ended)
    root = verdict.evidence and (verdict.evidence.rule, verdict.evidence.file, verdict.evidence.line)
    return root, [(one.rule, one.file, one.line) for one in verdict.cascades]


def test_a_verdict_whole():
    root = Evidence(rule="ecc", text="ecc 3", file="a", line=4, hint="look at the device")
    followed = Evidence(rule="watchdog", text="watchdog 7", role="cascade", file="a", line=8)
    assert judge([log(said(ECC, 3), said(WATCHDOG, 7))], exit_code=1) == Verdict(
        failure_class="hardware",
        recoverable=True,
        blame="device",
        signature="dc4230ef427b",
        evidence=root,
        cascades=(followed,),
    )


@pytest.mark.parametrize(
    ("logs", "ended", "expected"),
    [
        ([], {}, Verdict(failure_class="unknown", recoverable=True, blame="none", signature=None)),
        ([log()], {}, Verdict(failure_class="none", recoverable=None, blame="none", signature=None)),
        (
            [log(said(ECC, 1))],
            {"exit_code": 0},
            Verdict(failure_class="none", recoverable=None, blame="none", signature=None),
        ),
        (
            [],
            {"exit_code": 93},
            Verdict(
                failure_class="config",
                recoverable=False,
                blame="none",
                signature="2bdc632ea9d5",
                evidence=Evidence(
                    rule="exit-code",
                    text="exit code 93",
                    hint="the program asks not to be started again: its own output says why",
                ),
            ),
        ),
    ],
    ids=["nothing", "lines-alone", "completed", "told-by-its-code"],
)  # fmt: skip
def test_without_a_root(logs, ended, expected):
    assert judge(logs, **ended) == expected


@pytest.mark.parametrize(
    ("findings", "root"),
    [
        pytest.param([said(ECC, 5), said(FULL, 3)], ("full", 4), id="the-earlier-of-two"),
        pytest.param([said(RESET, 1), said(ECC, 5)], ("ecc", 6), id="what-explains-before-what-follows"),
        pytest.param([said(RESET, 1), said(SEGFAULT, 5)], ("reset", 2), id="a-bare-crash-only-if-it-was-first"),
        pytest.param([said(SEGFAULT, 1), said(RESET, 5)], ("segfault", 2), id="as-here"),
        pytest.param([said(ECC, 1, level="W"), said(RESET, 5)], ("reset", 6), id="a-warning-is-no-cause"),
        pytest.param([said(ECC, 1, level="I"), said(RESET, 5)], ("reset", 6), id="nor-is-what-informs"),
        pytest.param([said(ECC, 1, level="D"), said(RESET, 5)], ("reset", 6), id="nor-what-helps-to-debug"),
        pytest.param([said(ECC, 1, level="E"), said(RESET, 5)], ("ecc", 2), id="an-error-is"),
        pytest.param([threw(ECC, 6, is_aside=True), said(RESET, 9)], ("reset", 10), id="nor-is-a-thread's-end"),
        pytest.param([said(CONFIG, 1), threw(GENERIC, 37, begun=32)], ("python-exception", 38), id="a-later-exception"),
        pytest.param([said(CONFIG, 1), threw(GENERIC, 36, begun=31)], ("config", 2), id="what-was-said-just-before-it"),
        pytest.param([said(FULL, 1), threw(GENERIC, 37, begun=32)], ("full", 2), id="storage-is-not-outdone"),
        pytest.param([said(CONFIG, 1), threw(RESET, 37, begun=32)], ("config", 2), id="nor-anything-by-what-follows"),
        pytest.param([said(ECC, 1), threw(ECC, 151)], ("ecc", 152), id="the-exception-that-says-the-same"),
        pytest.param([said(ECC, 1), threw(ECC, 2)], ("ecc", 3), id="in-the-next-line-too"),
        pytest.param([said(ECC, 1), threw(FULL, 9)], ("ecc", 2), id="not-one-that-says-something-else"),
        pytest.param([said(CANCEL, 1), threw(CANCEL, 9)], ("cancel", 2), id="not-where-a-signal-came"),
        pytest.param([said(EVICTED, 1), threw(EVICTED, 9)], ("evicted", 2), id="from-whomever"),
        pytest.param([said(ECC, 1), threw(ECC, 152)], ("ecc", 2), id="not-one-far-below"),
        pytest.param([said(ECC, 1), threw(ECC, 9, rank="1")], ("ecc", 2), id="nor-of-another-rank"),
        pytest.param([threw(GENERIC, 6), said(ECC, 14)], ("ecc", 15), id="what-its-message-says"),
        pytest.param([threw(GENERIC, 6), said(ECC, 7)], ("ecc", 8), id="from-its-second-line-on"),
        pytest.param([threw(GENERIC, 6), said(ECC, 15)], ("python-exception", 7), id="of-eight-more"),
        pytest.param([threw(GENERIC, 6), said(ECC, 8, rank="1")], ("python-exception", 7), id="of-its-rank"),
        pytest.param([threw(FULL, 6), said(ECC, 8)], ("full", 7), id="where-its-first-line-says-nothing"),
        pytest.param([threw(ABORTED, 6), said(ABORTED, 8)], ("aborted", 7), id="which-the-same-again-does-not-either"),
        pytest.param([threw(ABORTED, 6), said(ECC, 8, level="W")], ("aborted", 7), id="nor-a-warning"),
        pytest.param([said(ABORTED, 6), said(RESET, 8)], ("aborted", 7), id="a-line-has-no-message"),
        pytest.param([threw(CONFIG, 6), threw(GENERIC, 16)], ("python-exception", 17), id="a-later-mistake-ended-it"),
        pytest.param([threw(ABORTED, 6), said(RESET, 8)], ("reset", 9), id="a-bare-consequence-says-nothing-either"),
        pytest.param([threw(GENERIC, 6), said(RESET, 8)], ("python-exception", 7), id="a-consequence-is-no-message"),
        pytest.param([threw(FULL, 6), threw(FULL, 16)], ("full", 7), id="what-is-full-shows-first-where-it-matters"),
        pytest.param([threw(CONFIG, 6), threw(CONFIG, 16)], ("config", 17), id="the-last-exception-ended-it"),
        pytest.param(
            [threw(CONFIG, 6), threw(CONFIG, 16, is_cleanup=True)], ("config", 7), id="not-the-one-while-cleaning-up"
        ),
        pytest.param([threw(FULL, 6), threw(GENERIC, 16, name="RuntimeError")], ("full", 7), id="nor-a-wrapper"),
        pytest.param([threw(CONFIG, 6), threw(RESET, 16)], ("config", 7), id="nor-what-follows"),
        pytest.param(
            [threw(GENERIC, 6, name="KeyboardInterrupt"), threw(RESET, 16)],
            ("python-exception", 7),
            id="nor-what-an-interrupt-brings",
        ),
    ],
)  # fmt: skip
def test_the_root_of_one_log(findings, root):
    rule, line = root
    assert rooted([log(*findings)], exit_code=1)[0] == (rule, "a", line)


@pytest.mark.parametrize(
    ("logs", "root"),
    [
        pytest.param([log(said(RESET, 1)), log(said(ECC, 9), file="b")], ("ecc", "b", 10), id="what-explains"),
        pytest.param([log(said(ABORTED, 1)), log(said(RESET, 9), file="b")], ("aborted", "a", 2), id="else-the-first"),
        pytest.param(
            [log(said(RESET, 1)), log(said(WATCHDOG, 9), file="b")], ("watchdog", "b", 10), id="a-time-out-first"
        ),
        pytest.param(
            [log(said(ECC, 1, stamp=7.0)), log(said(ECC, 9, stamp=5.0), file="b")], ("ecc", "b", 10), id="the-earlier"
        ),
        pytest.param(
            [log(said(ECC, 1, stamp=7.0)), log(said(ECC, 9), file="b")], ("ecc", "a", 2), id="if-all-say-when"
        ),
        pytest.param(
            [log(said(ECC, 1, stamp=7.0)), log(said(ECC, 9, stamp=5.0), file="b"), log(said(RESET, 1), file="c")],
            ("ecc", "b", 10),
            id="all-that-weigh-the-same",
        ),
    ],
)  # fmt: skip
def test_the_root_of_a_job(logs, root):
    assert rooted(logs, exit_code=1)[0] == root


@pytest.mark.parametrize(
    ("logs", "followed"),
    [
        pytest.param(
            [log(said(ECC, 1), said(RESET, 2), said(RESET, 3)), log(said(RESET, 4), file="b")],
            [("reset", "a", 3), ("reset", "b", 5)],
            id="the-first-of-each-rule-and-log",
        ),
        pytest.param([log(said(ECC, 1), said(FULL, 2), said(SEGFAULT, 3))], [("segfault", "a", 4)], id="no-other-root"),
        pytest.param([log(said(ECC, 1), said(FULL, 2, level="W"))], [], id="nothing-that-is-only-mentioned"),
        pytest.param([log(said(ECC, 1), said(UNKNOWN, 2))], [("killed", "a", 3)], id="a-bare-report"),
        pytest.param(
            [log(said(ECC, 1), threw(GENERIC, 9, name="KeyboardInterrupt"))],
            [("python-exception", "a", 10)],
            id="an-interrupt",
        ),
        pytest.param(
            [log(said(ECC, 1), *(said(replace(RESET, id=f"r{n}"), n + 2) for n in range(40)))],
            [(f"r{n}", "a", n + 3) for n in range(32)],
            id="thirty-two-at-most",
        ),
    ],
)  # fmt: skip
def test_what_only_followed(logs, followed):
    assert rooted(logs, exit_code=1)[1] == followed


@pytest.mark.parametrize(
    ("findings", "ended", "rule"),
    [
        pytest.param([said(WATCHDOG, 1)], {"signal": 6}, "watchdog", id="a-watchdog-aborts"),
        pytest.param([said(RESET, 1)], {"signal": 6}, "signal", id="a-lost-peer-does-not"),
        pytest.param([said(WATCHDOG, 1)], {"signal": 11}, "signal", id="nor-does-a-watchdog-crash"),
        pytest.param(
            [said(UNKNOWN, 1)], {"exit_code": 93}, "exit-code", id="a-code-tells-more-than-a-report"
        ),
        pytest.param([said(UNKNOWN, 1)], {"exit_code": 1}, "killed", id="one-without-meaning-does-not"),
        pytest.param([said(RESET, 1)], {"signal": 9}, "signal", id="a-kill-before-a-lost-peer"),
        pytest.param([said(RESET, 1)], {"exit_code": 93}, "reset", id="but-no-code"),
        pytest.param([said(WATCHDOG, 1)], {"exit_code": 93}, "exit-code", id="a-code-that-forbids-a-restart"),
        pytest.param([said(WATCHDOG, 1)], {"exit_code": 127}, "watchdog", id="one-that-does-not"),
        pytest.param([said(ECC, 1)], {"signal": 11}, "ecc", id="nothing-tells-more-than-a-cause"),
        pytest.param([said(ECC, 1, level="W")], {}, None, id="a-mention-alone-is-nothing"),
    ],
)
def test_whether_the_end_says_more(findings, ended, rule):
    verdict = judge([log(*findings)], **ended)
    assert (verdict.evidence and verdict.evidence.rule) == rule


@pytest.mark.parametrize(
    ("logs", "blame"),
    [
        pytest.param([log(said(WATCHDOG, 1))], "none", id="one-log"),
        pytest.param([log(said(WATCHDOG, 1)), log(file="b")], "peer", id="some-are-silent"),
        pytest.param([log(said(WATCHDOG, 1)), log(said(WATCHDOG, 1), file="b")], "none", id="none-is-silent"),
        pytest.param([log(said(ECC, 1)), log(file="b")], "device", id="the-entry-s-own"),
    ],
)
def test_who_is_blamed(logs, blame):
    assert judge(logs, exit_code=1).blame == blame


@pytest.mark.parametrize(
    ("findings", "failure_class"),
    [
        pytest.param([said(ECC, 5)], "hardware", id="a-cause-after-it-was-through"),
        pytest.param([said(RESET, 5)], "none", id="what-follows-from-others"),
        pytest.param([said(RESET, 3)], "network", id="what-followed-before"),
        pytest.param([said(RESET, 4)], "none", id="at-that-very-line"),
    ],
)
def test_what_is_said_once_a_run_is_through(findings, failure_class):
    assert judge([log(*findings, completed=4)]).failure_class == failure_class


@pytest.mark.parametrize("ended", [{"exit_code": 1}, {"signal": 1}])
def test_who_is_known_to_have_failed_was_not_through(ended):
    assert judge([log(said(FULL, 2), said(WATCHDOG, 5), completed=4)], **ended).cascades != ()
    assert judge([log(said(WATCHDOG, 5), completed=4)], **ended).failure_class == "collective_timeout"


def test_a_signal_without_a_name_is_no_good_end():
    assert judge([log()], signal=40).failure_class == "unknown"


@pytest.mark.parametrize(
    ("findings", "tail", "exit_code", "rule"),
    [
        pytest.param([said(WATCHDOG, 1)], USAGE, 2, "usage", id="a-parser-s-last-words"),
        pytest.param([said(WATCHDOG, 1)], MISSING, 127, "no-such-command", id="a-shell-s-last-words"),
        pytest.param([said(ECC, 1)], MISSING, 127, "ecc", id="not-beside-a-cause"),
        pytest.param([said(RESET, 1)], MISSING, 127, "reset", id="nor-beside-a-lost-peer"),
        pytest.param([said(ECC, 1, level="W")], MISSING, None, "no-such-command", id="but-beside-a-mention"),
    ],
)
def test_whether_the_last_words_say_more(findings, tail, exit_code, rule):
    assert judge([log(*findings, tail=(tail,))], exit_code=exit_code).evidence.rule == rule


@pytest.mark.parametrize(
    ("last", "cause", "direct", "meanwhile"),
    [
        pytest.param(threw(RESET, 9), threw(ECC, 1), True, True, id="what-follows-from-what-explains"),
        pytest.param(threw(ECC, 9), threw(RESET, 1), False, False, id="but-not-the-other-way-round"),
        pytest.param(threw(GENERIC, 9), threw(GENERIC, 1), False, False, id="two-that-say-as-little"),
        pytest.param(threw(GENERIC, 9), threw(ECC, 1), True, False, id="one-that-says-little"),
        pytest.param(threw(GENERIC, 9, name="RuntimeError"), threw(ECC, 1), True, True, id="by-its-name-a-wrapper"),
        pytest.param(threw(GENERIC, 9, name="RuntimeError"), threw(GENERIC, 1), False, False, id="of-nothing"),
        pytest.param(threw(FULL, 9), threw(ECC, 1), False, False, id="one-that-says-enough"),
        pytest.param(threw(FULL, 9, name="RayTaskError"), threw(ECC, 1), True, False, id="a-teller"),
        pytest.param(threw(FULL, 9, text="x exited unexpectedly"), threw(ECC, 1), True, False, id="by-its-message"),
        pytest.param(threw(FULL, 9, is_cleanup=True), threw(ECC, 1), False, True, id="while-cleaning-up"),
        pytest.param(
            threw(FULL, 9, is_cleanup=True), threw(ECC, 1, is_cleanup=True), False, False, id="both-while-cleaning-up"
        ),
        pytest.param(said(GENERIC, 9), threw(ECC, 1), False, False, id="no-exception"),
        pytest.param(threw(RESET, 9), said(ECC, 1), False, False, id="of-no-exception"),
    ],
)  # fmt: skip
def test_what_only_wraps(last, cause, direct, meanwhile):
    assert wraps(last, cause, is_direct=True) is direct
    assert wraps(last, cause, is_direct=False) is meanwhile


def test_an_entry_narrows_what_its_class_says():
    assert judge([log(said(FINAL, 1))], exit_code=1).recoverable is False


def test_a_hint_of_the_class_stands_where_the_entry_has_none():
    assert judge([log(said(FULL, 1))], exit_code=1).evidence.hint == (
        "look at space, quota and state of the file system; /dev/shm is one too"
    )


REPORTED = Signature(id="reported", failure_class="unknown", pattern="x", role="cascade")
UNREACHED = Signature(id="unreached", failure_class="network", pattern="x")
TABLE = "Root Cause (first observed failure):"


def reported(order, exit_code, **fields):
    """What torchrun says as a rank fails."""
    return replace(
        said(REPORTED, order, **fields), text=f"failed (exitcode: {exit_code}) local_rank: 1 (pid: 7)"
    )


def table(order, *exit_codes, **fields):
    """The end of torchrun's table: other failures, and the one that it observed first."""
    *others, first = (f"exitcode  : {code} (pid: 7)" for code in exit_codes)
    texts = (*others, TABLE, first)
    return [replace(said(REPORTED, order + at, **fields), text=text) for at, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        pytest.param([log(said(RESET, 3), reported(5, -9))], ("unknown", "signal", 6), id="a-lost-peer-follows"),
        pytest.param([log(said(RESET, 3), reported(5, -11))], ("crash", "signal", 6), id="from-a-crash-too"),
        pytest.param([log(said(RESET, 3), *table(5, -15, -9))], ("unknown", "signal", 8), id="by-the-table-alone"),
        pytest.param([log(said(RESET, 3), reported(5, 3))], ("unknown", "exit-code", 6), id="an-exit-code-alone"),
        pytest.param([log(said(RESET, 3), reported(5, 127))], ("config", "exit-code", 6), id="or-one-that-says-why"),
        pytest.param([log(said(RESET, 3), reported(5, 1))], ("network", "reset", 4), id="an-exception-was-printed"),
        pytest.param([log(said(WATCHDOG, 3), reported(5, -9))], ("unknown", "signal", 6), id="a-time-out-follows"),
        pytest.param(
            [log(said(WATCHDOG, 3), reported(5, -6))], ("collective_timeout", "watchdog", 4), id="or-aborts-its-rank"
        ),
        pytest.param([log(threw(ECC, 3), reported(5, -9))], ("hardware", "ecc", 4), id="what-explains-stands"),
        pytest.param([log(reported(5, -7), said(UNREACHED, 9))], ("crash", "signal", 6), id="then-it-was-unreachable"),
        pytest.param([log(said(UNREACHED, 3), reported(5, -7))], ("network", "unreached", 4), id="it-was-so-before"),
        pytest.param(
            [log(said(RESET, 3), reported(5, -9), said(RESET, 8), reported(9, 1))],
            ("network", "reset", 4),
            id="an-earlier-gang-is-over",
        ),
        pytest.param(
            [log(reported(5, -9, rank="0"), said(RESET, 8, rank="1"), reported(9, 1, rank="1"))],
            ("unknown", "signal", 6),
            id="not-that-of-another-launcher",
        ),
        pytest.param(
            [log(reported(5, -11, stamp=7.0)), log(said(RESET, 2), reported(5, -9, stamp=5.0), file="b")],
            ("unknown", "signal", 6),
            id="the-launcher-that-noticed-first",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("exit_code", [1, None])
def test_a_launcher_reports_which_rank_failed_first(logs, expected, exit_code):
    verdict = judge(logs, exit_code=exit_code)
    assert (verdict.failure_class, verdict.evidence.rule, verdict.evidence.line) == expected
    assert verdict.blame == ("device" if verdict.failure_class == "hardware" else "none")


def test_what_a_launcher_reports_is_the_same_failure_as_if_its_rank_had_been_watched():
    assert judge([log(reported(5, -9))], exit_code=1).failure_class == "unknown"
    with_peer = judge([log(said(RESET, 3), reported(5, -9))], exit_code=1)
    assert with_peer.signature == judge([log()], signal=9).signature
    assert [one.rule for one in with_peer.cascades] == ["reset"]


def test_the_launchers_own_end_by_a_signal_counts_before_what_it_reports():
    assert judge([log(reported(5, -9))], signal=11).evidence.text == "ended by SIGSEGV"


ARGPARSE = Signature(id="cfg-argparse", failure_class="config", pattern="x")
INTERRUPT = Signature(id="interrupt-keyboard", failure_class="cancelled", pattern="x")
COMPLAINT = Complaint("Error with 7", line=499, after=1, failure_class=None, is_strong=True)


def test_of_several_usage_errors_of_one_rank_the_last_counts():
    assert rooted([log(said(ARGPARSE, 1), said(ARGPARSE, 9))])[0] == ("cfg-argparse", "a", 10)
    both = [said(ARGPARSE, 1, rank="0:"), said(ARGPARSE, 9, rank="1:")]
    assert rooted([log(*both)])[0] == ("cfg-argparse", "a", 2)


def test_a_usage_error_long_before_the_end_was_of_an_earlier_program():
    long = {"tail": ("the end",), "complaints": (COMPLAINT,), "number_of_tail": lambda index: 500}
    assert judge([log(said(ARGPARSE, 1), **long)]).failure_class == "unknown"
    assert judge([log(said(ARGPARSE, 450), **long)]).failure_class == "config"
    assert judge([log(said(ARGPARSE, 1), **long)], exit_code=2).failure_class == "config"


def test_what_fails_as_an_interrupted_process_cleans_up_only_follows():
    interrupted = threw(INTERRUPT, 20, name="KeyboardInterrupt", text="", rank="0:")
    cleanup = threw(CONFIG, 60, name="RuntimeError", is_cleanup=True, rank="1:")
    assert rooted([log(interrupted, cleanup)])[0] == ("interrupt-keyboard", "a", 21)
    assert rooted([log(interrupted, threw(CONFIG, 60, rank="1:"))])[0] == ("config", "a", 61)
    assert rooted([log(threw(CONFIG, 10, is_cleanup=True, rank="1:"), interrupted)])[0] == ("config", "a", 11)


TRACKER = """\
2025-04-11 01:54:20,779 ERROR   MsgRouterThr:2134484 [router.py:message_loop():77] message_loop has been closed
Traceback (most recent call last):
  File "/env/lib/python3.10/site-packages/wandb/sdk/lib/sock_client.py", line 270, in _read_packet_bytes
    raise SockClientClosedError
wandb.sdk.lib.sock_client.SockClientClosedError

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/env/lib/python3.10/site-packages/wandb/sdk/interface/router.py", line 70, in message_loop
    msg = self._read_message()
OSError: [Errno 122] Disk quota exceeded
2025-04-11 01:54:20,794 INFO    MsgRouterThr:2134484 [mailbox.py:close():115] Closing mailbox
"""


def test_what_a_tracker_s_own_processes_caught_ended_no_training():
    """https://github.com/cpu095/IPA_easycontrol"""
    lines = TRACKER.splitlines()
    assert classify({"debug.log": lines}).failure_class == "none"
    info = lines[0].replace("ERROR  ", "INFO   ")
    assert classify({"debug.log": [info, *lines[1:]]}).failure_class == "none"
    assert classify({"debug.log": lines[1:]}).failure_class == "storage"


LOST_STORE = (
    "[rank4]:[W410 16:32:58 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=1): Connection reset"
)
ENDED_WELL = "[2026-03-12 11:54:24,450] [INFO] [launch.py:367:main] Process 195465 exits successfully."


@pytest.mark.parametrize(
    ("lines", "failure_class"),
    [
        pytest.param([LOST_STORE, ENDED_WELL], "none", id="before"),
        pytest.param([ENDED_WELL, LOST_STORE], "none", id="after"),
        pytest.param([LOST_STORE], "network", id="nothing-else"),
        pytest.param(
            [
                "Traceback (most recent call last):",
                '  File "train.py", line 7, in <module>',
                "KeyError: 'a'",
                ENDED_WELL,
            ],
            "user_code",
            id="another-process-raised",
        ),
    ],
)
def test_a_process_that_ended_well_shows_what_was_only_said_to_have_ended_nothing(lines, failure_class):
    """https://github.com/stark-sim/megatron-deepspeed-lock-clock"""
    assert classify({"run.log": lines}).failure_class == failure_class


MODULE = 'File "train.py", line 3, in <module>'
FAR = [f"instance {number} took a while" for number in range(600)]


@pytest.mark.parametrize(
    ("lines", "failure_class"),
    [
        pytest.param(
            [
                "Traceback (most recent call last):",
                f"  {MODULE}",
                "ImportError: No module named pathlib",
                *FAR[:120],
            ],
            "none",
            id="another-program-was-loaded",
        ),
        pytest.param(
            [
                "Traceback (most recent call last):",
                f"  {MODULE}",
                "ImportError: No module named pathlib",
                *FAR[:2],
            ],
            "config",
            id="a-few-lines",
        ),
        pytest.param(
            ["Traceback (most recent call last):", f"  {MODULE}", "KeyError: 'a'", *FAR], "none", id="went-on"
        ),
        pytest.param(
            ["Traceback (most recent call last):", f"  {MODULE}", "KeyError: 'a'", *FAR[:400]],
            "user_code",
            id="less-far",
        ),
        pytest.param(
            [
                "Traceback (most recent call last):",
                f"  {MODULE}",
                "KeyError: 'a'",
                *FAR,
                "srun: error: n1: task 0: Exited",
            ],
            "user_code",
            id="reported-in-the-end",
        ),
        pytest.param(
            [
                *(
                    "Traceback (most recent call last):",
                    f"  {MODULE}",
                    "ModuleNotFoundError: No module named 'torch'",
                ),
                "wandb: Tracking run",
                *(
                    "Traceback (most recent call last):",
                    '  File "/env/torch/nn/conv.py", line 7, in _conv_forward',
                ),
                "RuntimeError: Input type (double) and weight type (float) should be the same",
            ],
            "user_code",
            id="a-later-one-that-says-what-it-is",
        ),
        pytest.param(
            ["step 1", "step 2", "^CTraceback (most recent call last):"], "cancelled", id="by-a-key"
        ),
        pytest.param(
            [
                *("Traceback (most recent call last):", '  File "train.py", line 7, in step'),
                "RuntimeError: CUDA out of memory. Tried to allocate 646.00 MiB",
                "epoch:  10%|#         | 2/20 [22:41<3:24:13, 680.75s/it]",
                "batch:  52%|#####     | 230/445 [04:18<04:01,  1.12s/it]",
            ],
            "oom_device",
            id="each-bar-is-shown-once-more",
        ),
        pytest.param(
            ["step 1", "Episode 30/30, Avg Score: 44.80, Avg TD Error: 414.078789, Alpha: 0.09"],
            "none",
            id="an-error-that-is-measured",
        ),
    ],
)
def test_what_a_log_of_unknown_end_comes_to(lines, failure_class):
    assert classify({"run.log": lines}).failure_class == failure_class
