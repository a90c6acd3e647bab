"""What the end of a process says by itself, and which findings are kept for it to be weighed against."""

from __future__ import annotations

import pytest

from prefect_ft.decide import with_verdict
from prefect_ft.decide.classify import classify
from prefect_ft.decide.classify.exits import (
    ExitFinding,
    asks_for_other_hardware,
    by_last_words,
    by_status,
    signal_of,
)
from prefect_ft.decide.classify.findings import WENT_ON, Finding, LogFindings, Store
from prefect_ft.decide.classify.progress import Progress, place_of
from prefect_ft.model import Evidence, Incident
from prefect_ft.signatures import Signature

SETUP = "a restart meets the same set-up: correct it and start again"
HOST = "a kill without a word is often the host's memory: look into its kernel log"
OUTSIDE = "somebody ended it from outside: the scheduler's log says who"


def ended_by(name, failure_class, hint=""):
    text = f"ended by {name}"
    return ExitFinding(failure_class, Evidence(rule="signal", text=text, hint=hint), text)


def ended_with(code, failure_class, hint, recoverable=None):
    text = f"exit code {code}"
    return ExitFinding(failure_class, Evidence(rule="exit-code", text=text, hint=hint), text, recoverable)


@pytest.mark.parametrize(
    ("exit_code", "signal", "had_progress", "expected"),
    [
        pytest.param(None, None, False, None, id="nothing-known"),
        pytest.param(0, None, False, None, id="zero"),
        pytest.param(1, None, False, ended_with(1, "unknown", ""), id="one"),
        pytest.param(
            93,
            None,
            False,
            ended_with(
                93, "config", "the program asks not to be started again: its own output says why", False
            ),
            id="do-not-requeue",
        ),
        pytest.param(
            126,
            None,
            False,
            ended_with(
                126, "config", "the command cannot be executed: look at its permissions and its first line"
            ),
            id="not-executable",
        ),
        pytest.param(
            127,
            None,
            False,
            ended_with(127, "config", "there is no such command: look at PATH and at the spelling"),
            id="no-command",
        ),
        pytest.param(139, None, False, ended_by("SIGSEGV", "crash"), id="a-shell's-segfault"),
        pytest.param(-6, None, False, ended_by("SIGABRT", "crash"), id="a-parent's-abort"),
        pytest.param(1, 11, False, ended_by("SIGSEGV", "crash"), id="the-signal-before-the-code"),
        pytest.param(None, 2, False, ended_by("SIGINT", "cancelled"), id="interrupted"),
        pytest.param(None, 9, True, ended_by("SIGKILL", "unknown", HOST), id="killed"),
        pytest.param(None, 15, True, ended_by("SIGTERM", "preempted", OUTSIDE), id="ended-while-it-got-on"),
        pytest.param(None, 15, False, ended_by("SIGTERM", "unknown", OUTSIDE), id="ended-before-that"),
        pytest.param(None, 1, False, ended_by("SIGHUP", "cancelled"), id="its-terminal-was-closed"),
        pytest.param(None, 10, False, ended_by("SIGUSR1", "unknown"), id="another-signal"),
        pytest.param(250, None, False, ended_with(250, "unknown", ""), id="no-signal-of-that-number"),
    ],
)
def test_what_a_status_says(exit_code, signal, had_progress, expected):
    assert by_status(exit_code, signal, had_progress=had_progress) == expected


@pytest.mark.parametrize(
    ("exit_code", "signal", "expected"),
    [
        (None, None, None),
        (None, 9, 9),
        (-9, None, 9),
        (137, None, 9),
        (1, None, None),
        (0, None, None),
        (1, 9, 9),
    ],
)
def test_the_signal_behind_a_code(exit_code, signal, expected):
    assert signal_of(exit_code, signal) == expected


USAGE = "train.py: error: the following arguments are required: --data"
MISSING = "sh: 1: trian: not found"
FORBIDDEN = "sh: ./x: Permission denied"


def setup(rule, text, line):
    return ExitFinding("config", Evidence(rule=rule, text=text, file="a", line=line, hint=SETUP), text)


AGAIN = (
    "WARNING:megatron.core.rerun_state_machine:Saving a checkpoint and exiting now. Please resume the job from the "
    "checkpoint to rerun the last iteration and establish a diagnostic"
)
SAME_DEVICE = "Exiting now. Please resume the job from the same checkpoint to rerun the last iteration"
REJECTED = "Exiting now. A checkpoint at the last iteration already exists if further examination is needed"


def megatron(rule, text, hint):
    return ExitFinding("numeric", Evidence(rule=rule, text=text, file="a", line=1, hint=hint), text)


ELSEWHERE = (
    "the result came again on this device: resume from the checkpoint on another one to see which is wrong"
)
NO_MORE = "the trainer has rejected a result after trying it again: its own output says what came of that"


@pytest.mark.parametrize(
    ("tail", "exit_code", "expected"),
    [
        pytest.param((AGAIN,), 16, megatron("megatron-resume-elsewhere", AGAIN, ELSEWHERE), id="elsewhere"),
        pytest.param(
            (SAME_DEVICE,), 16, megatron("megatron-resume-elsewhere", SAME_DEVICE, ELSEWHERE), id="was-the-same-device"
        ),
        pytest.param((REJECTED, "bye"), 17, megatron("megatron-result-rejected", REJECTED, NO_MORE), id="rejected"),
        pytest.param((AGAIN,), 17, None, id="the-words-with-the-other-code"),
        pytest.param((REJECTED,), 16, None, id="and-the-other-way-round"),
        pytest.param(("done",), 16, None, id="the-code-alone-says-nothing"),
    ],
)  # fmt: skip
def test_what_a_rerun_of_megatron_ends_with(tail, exit_code, expected):
    assert by_last_words([LogFindings(file="a", tail=tail)], exit_code) == expected


@pytest.mark.parametrize(
    ("lines", "exit_code", "failure_class", "rule"),
    [
        pytest.param(
            ["Unexpected result nan on rank 3 at iteration #150 invocation #1 (message='loss')", AGAIN], 16,
            "numeric", "num-megatron-nan", id="nan-that-came-again",
        ),
        pytest.param(
            ["Unexpected result 97.1 on rank 3 at iteration #150 invocation #1 (message='Spiky loss')", AGAIN], 16,
            "numeric", "megatron-resume-elsewhere", id="a-jump-that-came-again",
        ),
        pytest.param(
            [("Rank 3, node n, device 1, iteration #150: First rerun: unexpected result is not reproducible within the "
             "tolerance (nan != 3.2)!"), REJECTED], 17,
            "hardware", "megatron-transient-result", id="not-reproducible-on-its-device",
        ),
        pytest.param([REJECTED], 17, "numeric", "megatron-result-rejected", id="rejected-otherwise"),
        pytest.param([], 16, "unknown", "exit-code", id="another-program's-code"),
    ],
)  # fmt: skip
def test_what_megatrons_reruns_come_to(lines, exit_code, failure_class, rule):
    verdict = classify({"rank3": lines}, exit_code=exit_code)
    assert (verdict.failure_class, verdict.evidence.rule) == (failure_class, rule)
    incident = with_verdict(Incident(t=0, kind="exit", exit_code=exit_code), verdict)
    assert asks_for_other_hardware(incident) is (exit_code == 16 and failure_class == "numeric")


@pytest.mark.parametrize(
    ("tail", "exit_code", "expected"),
    [
        pytest.param((USAGE,), 2, setup("usage", USAGE, 1), id="usage"),
        pytest.param((f"{USAGE}  ",), 2, setup("usage", USAGE, 1), id="without-its-margin"),
        pytest.param((USAGE, "bye"), 2, setup("usage", USAGE, 1), id="not-the-very-last-line"),
        pytest.param((USAGE, USAGE), 2, setup("usage", USAGE, 2), id="the-last-of-two"),
        pytest.param((USAGE,), 1, None, id="another-code"),
        pytest.param(("hi", USAGE), None, setup("usage", USAGE, 2), id="code-unknown"),
        pytest.param((USAGE, "bye"), None, None, id="code-unknown-and-not-the-last-line"),
        pytest.param((), None, None, id="code-unknown-and-no-line"),
        pytest.param((), 2, None, id="no-line"),
        pytest.param(("srun: error: the following",), 2, None, id="a-launcher's-own-words"),
        pytest.param((MISSING,), 127, setup("no-such-command", MISSING, 1), id="no-command"),
        pytest.param((FORBIDDEN,), 126, setup("no-such-command", FORBIDDEN, 1), id="no-permission"),
        pytest.param((MISSING,), 2, None, id="no-command-with-the-code-of-usage"),
        pytest.param((f"{MISSING} here",), 127, None, id="more-words"),
    ],
)  # fmt: skip
def test_what_last_words_say(tail, exit_code, expected):
    assert by_last_words([LogFindings(file="a", tail=tail)], exit_code) == expected


def test_the_first_log_with_last_words_counts():
    logs = [
        LogFindings(file=file, tail=tail) for file, tail in (("b", ("hi",)), ("a", (USAGE,)), ("c", (USAGE,)))
    ]
    assert by_last_words(logs, 2) == setup("usage", USAGE, 1)


def finding(order, rule="r", failure_class="crash"):
    signature = Signature(id=rule, failure_class=failure_class, pattern="x")
    return Finding(signature=signature, text="x", line=order + 1, order=order)


def kept(store):
    return [one.order for one in store.in_order()]


def test_of_a_rule_the_first_and_the_last_four_are_kept():
    store = Store()
    for order in range(20):
        assert store.is_among_the_first("r") is (order < 4)
        store.add(finding(order))
    assert kept(store) == [0, 1, 2, 3, 16, 17, 18, 19]


def test_what_is_kept_comes_in_the_order_of_the_log():
    store = Store()
    for order, rule in ((3, "a"), (1, "b"), (2, "a")):
        store.add(finding(order, rule))
    assert kept(store) == [1, 2, 3]


def test_of_two_hundred_rules_each_is_kept_and_no_further_one():
    store = Store()
    for order in range(202):
        store.add(finding(order, f"r{order}"))
    store.add(finding(300, "r0"))
    assert kept(store) == [*range(200), 300]


def test_of_two_hundred_forms_it_is_counted_how_often_they_were_survived():
    store = Store()
    for _ in range(3):
        for order in range(202):
            store.add(finding(order, f"r{order}"))
            store.forget(lambda _: True, WENT_ON)
    assert len(store.survived()) == 200


def test_a_finding_is_dropped_and_nothing_that_equals_it():
    store = Store()
    one, same = finding(0), finding(0)
    store.add(one)
    store.drop(finding(1, "other"))
    store.drop(same)
    assert kept(store) == [0]
    store.drop(one)
    assert not store
    assert store.is_among_the_first("r")


def test_what_is_dropped_among_the_last_leaves_no_more_room_than_before():
    store, all_of_them = Store(), [finding(order) for order in range(12)]
    for one in all_of_them[:8]:
        store.add(one)
    store.drop(all_of_them[6])
    assert kept(store) == [0, 1, 2, 3, 4, 5, 7]
    for one in all_of_them[8:]:
        store.add(one)
    assert kept(store) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_what_is_over_is_forgotten():
    store = Store()
    store.add(finding(0, "a", "crash"))
    store.add(finding(1, "b", "config"))
    store.forget(lambda one: one.signature.failure_class == "crash", "why")
    assert kept(store) == [1]
    store.clear("why")
    assert kept(store) == []
    for order in range(12):
        store.add(finding(order))
    store.forget(lambda one: one.order in (1, 9), "some of a rule")
    assert kept(store) == [0, 2, 3, 8, 10, 11]
    assert [(one.order, why) for one, why in store.over()] == [(0, "why"), (1, "why"), (1, "some of a rule")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("step 10", "step 10", id="a-step"),
        pytest.param("epoch: 3, batch 7", "step 3 7", id="two-places"),
        pytest.param("global_step=12.5", "step 12.5", id="a-part-of-a-name"),
        pytest.param("3/9 [00:01<00:02, 1it/s]", "bar 3/9", id="a-bar"),
        pytest.param("loss = 0.25 at once", "loss 0.25", id="a-loss"),
        pytest.param("step 10 loss 0.25", "step 10", id="the-step-before-the-loss"),
        pytest.param("Collect Round:  12", "step 12", id="a-round"),
        pytest.param("Episode 7 reward -3.5", "step 7", id="an-episode"),
        pytest.param("|    total_timesteps      | 2048     |", "step 2048", id="a-table"),
        pytest.param("saved at step 10", None, id="a-checkpoint"),
        pytest.param("wandb: step 10", None, id="a-tracker"),
        pytest.param('  File "x.py" step 10', None, id="a-frame"),
        pytest.param("training", None, id="no-place"),
        pytest.param("x" * 400 + " step 10", None, id="the-first-columns"),
        pytest.param(
            "\r" + "x" * 400 + " step 10", "step 10", id="the-last-ones-where-a-line-was-overwritten"
        ),
    ],
)
def test_where_a_run_says_that_it_is(text, expected):
    assert place_of(text) == expected


def test_places_are_counted_once_and_up_to_a_bound():
    progress = Progress()
    assert [progress.see(text) for text in ("step 1", "step 1", "words", "step 2")] == [1, 1, 1, 2]
    for number in range(100):
        progress.see(f"step {number}")
    assert progress.places == 64
    progress.clear()
    assert progress.places == 0


def test_of_bars_the_one_counts_that_has_moved_most():
    progress = Progress()
    bars = (
        "2/20 [22:41<3:24",
        "230/445 [04:18<04:01",
        "step 1",
        "231/445 [04:19<04:00",
        "229/445 [04:17<04:02",
    )
    assert [progress.see(text) for text in bars] == [1, 1, 2, 3, 4]
    progress.clear()
    assert progress.see("3/20 [22:41<3:24") == 1
