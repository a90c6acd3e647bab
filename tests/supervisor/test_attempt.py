"""What agents report becomes one incident: who failed first, why, when, and what does not count."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace
from typing import Any

import pytest
from heard import heard

from prefect_ft.model import Evidence, Incident
from prefect_ft.supervisor.attempt import Attempt, Start
from prefect_ft.supervisor.events import Lost, Output
from prefect_ft.supervisor.incidents import incident_of

T = 9.5
WORKERS = {0: 0, 1: 0, 2: 1, 3: 1}
"""The worker of each rank."""

Event = tuple[int, Any]


def exited(rank: int, code: int | None = None, by: int | None = None, t_ns: int = 0) -> Event:
    return WORKERS[rank], heard("exited", rank=rank, code=code, signal=by, t_ns=t_ns)


def said(rank: int, *lines: str) -> Event:
    return WORKERS[rank], heard("output", rank=rank, text="".join(f"{line}\n" for line in lines))


def raised(rank: int, text: str) -> Event:
    return said(rank, "Traceback (most recent call last):", '  File "/a/train.py", line 3, in step', text)


def beat(
    rank: int,
    step: int | None,
    stage: str | None = None,
    stage_step: int | None = None,
    every: int | None = None,
) -> Event:
    fields = {"step": step, "stage": stage, "stage_step": stage_step, "every": every}
    return WORKERS[rank], heard("beat", rank=rank, **fields)


def start_failed(worker: int, number: int | None, what: str = "/bin/prog") -> Event:
    return worker, heard("start_failed", errno=number, error="so it says", what=what)


def lost(worker: int, system_answers: bool = True, evidence: Evidence | None = None) -> Event:
    return worker, Lost(system_answers=system_answers, evidence=evidence)


def call(inside: tuple[int, ...] = (), excused: tuple[int, ...] = (), worker: int = 0) -> Event:
    return worker, heard("call", inside=list(inside), excused=list(excused))


PEER_CLOSED = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:17284: Connection reset by peer"
)
"""What gloo has a rank raise whose peer is gone."""

CABLE = "mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error"
"""What blames the system where it is printed."""

ENDING: Event = (0, "ending")
"""Stands for the moment from which the supervisor ends the ranks."""


def attempt(*events: Event, resume_path: str | None = None) -> Attempt:
    made = Attempt(7, WORKERS, start=Start(None, resume_path))
    for worker, event in events:
        if event == "ending":
            made.ending = True
        elif isinstance(event, Output):
            made.take(worker, event.but(offset=made.ranks[event.rank].heard))
        else:
            made.take(worker, event)
    return made


def incident(**fields: Any) -> Incident:
    return Incident(**{"t": T, "kind": "exit", "attempt": 7, **fields})


def comparable(told: Incident) -> Incident:
    """Rule, signature and hint are the classifier's, and tested there; here a signature is there or not."""
    evidence = told.evidence and replace(told.evidence, hint="")
    if evidence is not None and evidence.line is not None:
        evidence = replace(evidence, rule="python-exception")
    return replace(told, signature=told.signature and "known", evidence=evidence)


def failed(failure_class: str, rank: int, text: str, line: int | None = 3, **fields: Any) -> Incident:
    evidence = Evidence(rule="python-exception", text=text, file=f"rank{rank}", line=line)
    return incident(
        failure_class=failure_class, worker=WORKERS[rank], exit_code=1, blame="none", signature="known",
        evidence=evidence, **fields,
    )  # fmt: skip


DONE = [exited(rank, 0, t_ns=100 + rank) for rank in WORKERS]

CASES = {
    "all-done": (DONE, incident(kind="completed", exit_code=0)),
    "one-fails": (
        [raised(2, "ConnectionResetError: gone"), exited(2, 1), ENDING, exited(0, by=9)],
        failed("network", 2, "ConnectionResetError: gone"),
    ),
    "what-is-told-again-to-a-new-connection-is-no-other-exit": (
        [raised(1, "ValueError: caught"), exited(1, 0), exited(2, 1), ENDING, exited(1, 0)],
        incident(
            failure_class="user_code", worker=1, exit_code=1, blame="none", signature="known",
            evidence=Evidence(rule="python-exception", text="ValueError: caught", file="rank1", line=3),
        ),
    ),
    "the-cause-is-where-its-traceback-is-not-where-the-first-exit-was": (
        [
            raised(1, "ValueError: shape"),
            raised(3, "ConnectionResetError: peer"),
            exited(3, 1),
            exited(1, 1),
            ENDING,
            exited(0, by=9),
        ],
        failed("user_code", 1, "ValueError: shape"),
    ),
    "the-cause-was-still-ending-when-its-peers-had-failed": (
        [raised(0, "ValueError: shape"), raised(3, "EOFError"), exited(3, 1), ENDING, exited(0, by=9)],
        failed("user_code", 0, "ValueError: shape"),
    ),
    "a-rank-that-succeeded-is-no-cause": (
        [raised(1, "ValueError: caught"), exited(1, 0), exited(2, 1)],
        incident(
            failure_class="user_code", worker=1, exit_code=1, blame="none", signature="known",
            evidence=Evidence(rule="python-exception", text="ValueError: caught", file="rank1", line=3),
        ),
    ),
    "killed": (
        [exited(3, by=signal.SIGSEGV)],
        incident(
            failure_class="crash", worker=1, signal=11, blame="none", signature="known",
            evidence=Evidence(rule="signal", text="ended by SIGSEGV"),
        ),
    ),
    "stage-of-the-cause": (
        [beat(2, 40, "validate", 38), beat(0, 41, "train", 0), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", stage="validate", stage_step=38),
    ),
    "the-step-of-the-rank-with-the-cause": (
        [beat(0, 44, every=1), beat(2, 43, every=2), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", reached=43, reached_every=2),
    ),
    "the-highest-step-where-that-rank-reported-none": (
        [beat(0, 44, every=1), beat(1, 45, every=1), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", reached=45, reached_every=1),
    ),
    "no-step-is-known-that-was-reported-once": (
        [beat(2, 43), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError"),
    ),
    "each-tenth-says-where-it-was": (
        [beat(2, 40, every=10), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", reached=40, reached_every=10),
    ),
    "each-eleventh-does-not": (
        [beat(2, 44, every=11), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError"),
    ),
    "steps-that-are-printed-where-none-are-reported": (
        [said(0, "iter 40: loss 2", "iter 42: loss 2"), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", reached=42, reached_every=2),
    ),
    "its-own-printed-step-before-another-rank's": (
        [
            said(0, "iter 40: loss 2", "iter 50: loss 2"),
            said(2, "iter 41: loss 2", "iter 42: loss 2"),
            raised(2, "EOFError"),
            exited(2, 1),
        ],
        failed("network", 2, "EOFError", line=5, reached=42, reached_every=1),
    ),
    "a-reported-step-before-printed-ones": (
        [said(2, "iter 98: loss 2", "iter 99: loss 2"), beat(0, 44, every=1), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", line=5, reached=44, reached_every=1),
    ),
    "the-distance-that-one-of-those-at-the-highest-step-knows": (
        [beat(0, 44), beat(1, 44, every=2), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError", reached=44, reached_every=2),
    ),
    "steps-that-are-printed-too-rarely": (
        [said(0, "iter 100: loss 2", "iter 200: loss 2"), raised(2, "EOFError"), exited(2, 1)],
        failed("network", 2, "EOFError"),
    ),
    "the-highest-step-of-a-lost-worker's-attempt": (
        [beat(0, 44, every=1), lost(1)],
        incident(kind="in_place_failed", worker=1, reached=44, reached_every=1),
    ),
    "its-line-counts-from-the-beginning-of-the-output": (
        [said(0, *["step"] * 1200), raised(0, "TypeError: no"), exited(0, 1)],
        failed("user_code", 0, "TypeError: no", line=1203),
    ),
    "what-is-no-utf-8-becomes-readable": (
        [raised(0, "TypeError: \udcff!"), exited(0, 1)],
        failed("user_code", 0, "TypeError: ?!"),
    ),
    "an-agent-goes-away": (
        [lost(1), ENDING, exited(0, by=9), exited(1, by=9)],
        incident(kind="in_place_failed", worker=1),
    ),
    **{
        f"its-end-was-{rule}": (
            [lost(1, evidence=Evidence(rule=rule, text="so it says"))],
            incident(kind=kind, worker=1, evidence=Evidence(rule=rule, text="so it says")),
        )
        for rule, kind in (
            ("pod-preempted", "preempted"),
            ("pod-drained", "preempted"),
            ("node-shutdown", "preempted"),
            ("pod-evicted", "in_place_failed"),
            ("container-oom", "in_place_failed"),
            ("pod-removed", "in_place_failed"),
        )
    },
    "a-system-goes-away": ([lost(1, system_answers=False), lost(0)], incident(kind="system_lost", worker=1)),
    "a-rank-fails-and-then-its-agent-goes-away": (
        [raised(2, "EOFError"), exited(2, 1), lost(1)],
        failed("network", 2, "EOFError"),
    ),
    "a-rank-misses-its-peer-whose-system-is-gone": (
        [beat(0, 44, every=1), said(0, PEER_CLOSED), exited(0, 1), ENDING, lost(1, system_answers=False)],
        incident(kind="system_lost", worker=1, reached=44, reached_every=1),
    ),
    "a-rank-misses-its-peer-whose-agent-is-gone": (
        [said(0, PEER_CLOSED), exited(0, 1), ENDING, exited(1, by=9), lost(1)],
        incident(kind="in_place_failed", worker=1),
    ),
    "a-rank-misses-its-peer-that-was-preempted": (
        [said(0, PEER_CLOSED), exited(0, 1), ENDING, lost(1, evidence=Evidence(rule="pod-preempted", text="so"))],
        incident(kind="preempted", worker=1, evidence=Evidence(rule="pod-preempted", text="so")),
    ),
    **{
        f"a-rank-misses-its-peer-and-says-{name}": (
            [said(0, line), exited(0, 1), ENDING, lost(1, system_answers=False)],
            incident(kind="system_lost", worker=1),
        )
        for name, line in {
            "reset": "ConnectionResetError: [Errno 104] Connection reset by peer",
            "refused": "torch.distributed.DistNetworkError: connect(): Connection refused",
            "timeout": "RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
        }.items()
    },
    "a-rank's-own-link-is-at-fault": (
        [said(0, CABLE, "EOFError"), exited(0, 1), ENDING, lost(1)],
        replace(failed("network", 0, CABLE, line=1), blame="node"),
    ),
    "a-rank-misses-its-peer-and-its-own-agent-goes-away": (
        [said(0, PEER_CLOSED), exited(0, 1), ENDING, lost(0)],
        replace(failed("network", 0, PEER_CLOSED, line=1), blame="peer"),
    ),
    "a-rank-fails-by-itself-while-another-agent-goes-away": (
        [raised(0, "TypeError: no"), exited(0, 1), ENDING, lost(1, system_answers=False)],
        failed("user_code", 0, "TypeError: no"),
    ),
    "no-such-command": (
        [start_failed(1, errno.ENOENT), ENDING, exited(0, by=9)],
        incident(
            failure_class="config", exit_code=127,
            evidence=Evidence(rule="start-failed", text="/bin/prog: so it says"),
        ),
    ),
    "no-process-to-spare": (
        [start_failed(0, errno.EAGAIN)],
        incident(
            failure_class="config", exit_code=127,
            evidence=Evidence(
                rule="start-failed",
                text="/bin/prog: so it says; write nproc_per_worker below 2, or raise the limit of processes "
                "(ulimit -u, pids.max, resources.pids)",
            ),
        ),
    ),
    "a-program-that-is-being-written": (
        [start_failed(0, errno.ETXTBSY)],
        incident(
            failure_class="unknown", exit_code=127,
            evidence=Evidence(rule="start-failed", text="/bin/prog: so it says"),
        ),
    ),
    "no-room-for-its-output": (
        [start_failed(0, errno.ENOSPC, "/run/\udcff")],
        incident(
            failure_class="storage", exit_code=127,
            evidence=Evidence(rule="start-failed", text="/run/?: so it says"),
        ),
    ),
    "a-command-that-is-no-command": (
        [start_failed(0, None)],
        incident(
            failure_class="config", exit_code=127,
            evidence=Evidence(rule="start-failed", text="/bin/prog: so it says"),
        ),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


@pytest.mark.parametrize(("events", "expected"), CASES.values(), ids=CASES.keys())
def test_what_ended_an_attempt(events: list[Event], expected: Incident) -> None:
    made = attempt(*events)
    assert made.over
    assert comparable(incident_of(made, T)) == expected


STEP_40 = "/ckpts/step-40"
TORN = [
    *("Traceback (most recent call last):", '  File "/a/train.py", line 3, in load_checkpoint'),
    *('  File "/a/own_format.py", line 7, in parse', "ValueError: the trailer is missing"),
]


@pytest.mark.parametrize(
    ("resume_path", "events", "expected"),
    [
        pytest.param(STEP_40, [said(2, *TORN)], ("checkpoint", "load"), id="before-its-first-step"),
        pytest.param(STEP_40, [beat(2, None, "load"), raised(2, "ValueError: x")], ("checkpoint", "load"), id="load"),
        pytest.param(STEP_40, [beat(2, 41, "load"), said(2, *TORN)], ("checkpoint", "load"), id="loading-once-more"),
        pytest.param(STEP_40, [raised(2, "ValueError: x")], ("user_code", None), id="nothing-was-being-read"),
        pytest.param(STEP_40, [beat(2, 41), said(2, *TORN)], ("user_code", None), id="after-its-first-step"),
        pytest.param(STEP_40, [beat(2, 41, "train"), said(2, *TORN)], ("user_code", "train"), id="in-training"),
        pytest.param(STEP_40, [beat(2, None, "compile"), said(2, *TORN)], ("user_code", "compile"), id="loaded"),
        pytest.param(None, [said(2, *TORN)], ("user_code", None), id="from-scratch"),
        pytest.param(None, [beat(2, None, "load"), said(2, *TORN)], ("user_code", "load"), id="loading-something-else"),
        pytest.param(
            STEP_40, [beat(0, None, "load"), beat(2, 41), raised(2, "ValueError: x")], ("user_code", None), id="another"
        ),
        pytest.param(
            STEP_40, [raised(2, "FileNotFoundError: '/ckpts/step-40/rank2.pt'")], ("checkpoint", "load"), id="a-part"
        ),
        pytest.param(
            STEP_40, [raised(2, "FileNotFoundError: '/ckpts/step-40'")], ("config", None), id="no-such-checkpoint"
        ),
        pytest.param(STEP_40, [raised(2, "FileNotFoundError: 'vocab.txt'")], ("config", None), id="another-file"),
        pytest.param(
            STEP_40, [raised(2, "zipfile.BadZipFile: File is not a zip file")], ("checkpoint", "load"), id="its-words"
        ),
        pytest.param(
            STEP_40, [beat(2, None, "load"), raised(2, "EOFError")], ("network", "load"), id="a-peer-that-was-lost"
        ),
        pytest.param(
            STEP_40,
            [beat(2, None, "load"), raised(2, "OSError: [Errno 28] No space left on device")],
            ("storage", "load"),
            id="what-says-why",
        ),
    ],
)  # fmt: skip
def test_a_rank_that_could_not_read_its_checkpoint(
    resume_path: str | None, events: list[Event], expected: tuple[str, str | None]
) -> None:
    told = incident_of(attempt(*events, exited(2, 1), resume_path=resume_path), T)
    assert (told.failure_class, told.stage) == expected


@pytest.mark.parametrize(("events", "_"), CASES.values(), ids=CASES.keys())
def test_a_cancel_that_races_something_else_is_a_cancel(events: list[Event], _: Incident) -> None:
    evidence = Evidence(rule="stop-request", text="SIGINT")
    assert incident_of(attempt(*events), T, cancelled_by="SIGINT") == incident(
        kind="cancelled", evidence=evidence
    )


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (errno.EAGAIN, "processes (ulimit -u, pids.max, resources.pids)"),
        (errno.ENOMEM, "memory"),
        (errno.EMFILE, "open files (ulimit -n)"),
        (errno.ENFILE, "open files (sysctl fs.file-max)"),
    ],
    ids=["processes", "memory", "own-files", "all-files"],
)
def test_more_ranks_than_fit_do_not_fit_the_next_time_unless_they_have_before(
    number: int, limit: str
) -> None:
    def ended(*, has_run_before: bool) -> tuple[object, ...]:
        made = Attempt(7, WORKERS, has_run_before=has_run_before)
        made.take(*start_failed(1, number))
        told = incident_of(made, T)
        assert told.evidence is not None
        assert told.evidence.text.endswith(f"; write nproc_per_worker below 2, or raise the limit of {limit}")
        return told.failure_class, told.worker, told.system, told.blame

    assert ended(has_run_before=False) == ("config", None, None, None)
    assert ended(has_run_before=True) == ("unknown", None, None, None)


def test_what_a_class_says_anyway_is_not_said_of_the_incident() -> None:
    """Else `config` would be final in an attempt that made progress, and `confirm` come before `restart_on`."""
    for text in ("FileNotFoundError: x", "ValueError: x"):
        assert incident_of(attempt(raised(0, text), exited(0, 1)), T).recoverable is None


@pytest.mark.parametrize(
    ("events", "is_over"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param(DONE[:3], False, id="one-still-runs"),
        pytest.param(DONE, True, id="all-done"),
        pytest.param([exited(0, 0), exited(1, 3)], True, id="one-failed"),
        pytest.param([lost(0)], True, id="agent-lost"),
        pytest.param([start_failed(1, 2)], True, id="not-started"),
        pytest.param([said(0, "x"), beat(0, 1)], False, id="signs-of-life"),
        pytest.param([(0, heard("warm"))], False, id="nothing-of-an-attempt"),
    ],
)
def test_when_an_attempt_is_over(events: list[Event], is_over: bool) -> None:
    assert attempt(*events).over == is_over


def test_whose_rank_ran_out_of_memory() -> None:
    worker, event = exited(2, by=signal.SIGKILL)
    told = worker, event.but(oom=True)
    made = attempt(exited(0, by=signal.SIGKILL), told)
    assert (made.has_run_out(0), made.has_run_out(worker)) == (False, True)
    assert not attempt(ENDING, told).has_run_out(worker)


@pytest.mark.parametrize(
    ("events", "ended_ns"),
    [
        pytest.param(DONE, 103, id="the-last-one-done"),
        pytest.param(
            [exited(0, 0, t_ns=50), exited(3, 1, t_ns=80), exited(2, 1, t_ns=70)], 80, id="the-first-failure"
        ),
        pytest.param(
            [exited(0, 0, t_ns=50), lost(1), ENDING, exited(1, by=9, t_ns=90)], None, id="agent-lost"
        ),
        pytest.param([start_failed(0, 2)], None, id="not-started"),
        pytest.param([ENDING, *DONE], None, id="we-ended-it"),
    ],
)
def test_when_it_ended(events: list[Event], ended_ns: int | None) -> None:
    assert attempt(*events).ended_ns() == ended_ns


@pytest.mark.parametrize(
    ("beats", "first_last"),
    [
        pytest.param([], (None, None), id="none"),
        pytest.param([beat(0, None, "load")], (None, None), id="stage-alone"),
        pytest.param([beat(0, 0)], (0, 0), id="step-0"),
        pytest.param([beat(0, 5), beat(1, 4), beat(2, 9), beat(3, 8)], (5, 9), id="the-highest-of-all-ranks"),
    ],
)
def test_first_and_last_step(beats: list[Event], first_last: tuple[int | None, int | None]) -> None:
    made = attempt(*beats)
    assert (made.first_step, made.last_step) == first_last


WATCHDOG = (
    "[rank{rank}]:[E1121 10:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600058 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("ranks", "reported"), [((0,), (0,)), ((2, 3), (1,)), ((0, 1, 2, 3), (0, 1))], ids=["one", "other", "all"]
)
def test_who_reports_that_a_collective_took_too_long_is_not_who_held_it_up(
    ranks: tuple[int, ...], reported: tuple[int, ...]
) -> None:
    told = [said(rank, WATCHDOG.format(rank=rank)) for rank in ranks]
    made = incident_of(attempt(*told, exited(ranks[0], by=signal.SIGABRT)), T)
    assert (made.failure_class, made.reported) == ("collective_timeout", reported)


def chosen(*parts: tuple[int, int, str], size: int, lines: int) -> Event:
    named = [dict(zip(("offset", "line", "text"), part, strict=True)) for part in parts]
    return 0, heard("excerpt", bytes=size, lines=lines, path="/io/7-0.log", parts=named)


FULL = "OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("events", "line"),
    [
        pytest.param([chosen((900, 91, FULL), size=5000, lines=400)], 91, id="alone"),
        pytest.param([chosen((900, 91, FULL), size=5000, lines=400)] * 2, 91, id="twice"),
        pytest.param([said(0, "up"), chosen((0, 1, "up\n" + FULL), size=99, lines=9)], 2, id="after-output"),
        pytest.param([chosen((0, 1, "up\n"), size=99, lines=9), said(0, FULL[:-1])], 10, id="before-output"),
        pytest.param(
            [chosen((0, 1, "up\n"), (60, 9, "OSError: [Errno 28] "), size=80, lines=8), said(0, FULL[20:-1])],
            9,
            id="in-the-middle-of-a-line",
        ),
    ],
)
def test_what_an_excerpt_says_stands_where_the_output_has_it(events: list[Event], line: int) -> None:
    evidence = incident_of(attempt(*events, exited(0, 1)), T).evidence
    assert evidence is not None
    assert (evidence.text, evidence.line) == (FULL[:-1], line)


ALL = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("events", "over", "complete"),
    [
        pytest.param([call(ALL), exited(1, by=9)], False, False, id="lost-inside"),
        pytest.param([exited(1, by=9), call(ALL)], False, False, id="told-in-the-other-order"),
        pytest.param([call(ALL), call((), worker=1), exited(1, by=9)], False, False, id="others-know-of-none"),
        pytest.param([call((0, 2, 3)), exited(1, by=9)], True, False, id="lost-outside"),
        pytest.param([call(ALL), exited(1, by=9), call()], True, False, id="the-call-gave-up"),
        pytest.param([call(ALL), *(exited(rank, by=9) for rank in ALL)], True, False, id="all-lost"),
        pytest.param([call(ALL), exited(1, by=9), call((), (1,))], False, False, id="the-call-is-completed"),
        pytest.param(
            [exited(1, 3), call((), (1,)), *(exited(rank, 0) for rank in (0, 2, 3))], True, True,
            id="the-others-succeed",
        ),
        pytest.param([exited(1, 3), call((), (1,)), exited(2, 1)], True, False, id="another-fails-afterwards"),
    ],
)  # fmt: skip
def test_a_rank_that_its_wrapped_call_does_without_ends_nothing(
    events: list[Event], over: bool, complete: bool
) -> None:
    made = attempt(*events)
    assert (made.over, made.is_complete) == (over, complete)


@pytest.mark.parametrize(
    ("standing", "blamed", "ended_ns"),
    [
        pytest.param(call(), signal.SIGSEGV, 5, id="it-could-not-be-done-without"),
        pytest.param(call((), (1,)), signal.SIGKILL, 70, id="it-could"),
    ],
)
def test_why_a_call_gave_up_is_not_who_it_has_done_without_for_long(
    standing: Event, blamed: int, ended_ns: int
) -> None:
    made = attempt(
        call(ALL), exited(1, by=signal.SIGSEGV, t_ns=5), standing, exited(2, by=signal.SIGKILL, t_ns=70)
    )
    assert (incident_of(made, T).signal, made.ended_ns()) == (blamed, ended_ns)


def test_what_an_excused_rank_said_is_not_why_another_failed() -> None:
    told = [
        raised(1, "ValueError: a bad batch"),
        exited(1, 1),
        call((), (1,)),
        raised(2, "KeyError: 'x'"),
        exited(2, 1),
    ]
    evidence = incident_of(attempt(call(ALL), *told), T).evidence
    assert evidence is not None
    assert evidence.text == "KeyError: 'x'"


# -- hangs, and values out of the usual --------------------------------------------------------------


ODD = incident(
    t=1.0, failure_class="numeric", worker=1, evidence=Evidence(rule="out-of-the-usual", text="loss")
)
HUNG = incident(
    t=1.0, kind="suspended", worker=0, evidence=Evidence(rule="all-workers", text="ranks 0 to 3 hang")
)


def with_odd(made: Attempt, *workers: int | None) -> Attempt:
    for worker in workers:
        made.found_odd(replace(ODD, worker=worker))
    return made


def test_values_out_of_the_usual_end_it_and_say_which_workers_have_them() -> None:
    made = with_odd(attempt(), 1, None, 0)
    assert made.over
    assert incident_of(made, T) == replace(ODD, t=T, attempt=7, reported=(0, 1))


def test_what_failed_goes_before_values_out_of_the_usual() -> None:
    made = with_odd(attempt(exited(0, 1)), 1)
    assert incident_of(made, T).failure_class == "unknown"


@pytest.mark.parametrize("events", [[ENDING], DONE], ids=["being-ended", "complete"])
def test_values_that_come_after_the_end_end_nothing(events: list[Event]) -> None:
    made = with_odd(attempt(*events), 1)
    assert made.odd is None


def test_a_hang_is_what_was_found_whatever_the_ranks_have_printed() -> None:
    made = attempt(raised(2, "ValueError: caught"))
    made.suspension = HUNG
    assert made.over
    assert incident_of(made, T) == replace(HUNG, t=T)


def test_a_hang_after_a_fault_of_the_hardware_is_that_fault() -> None:
    made = attempt(said(2, "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."))
    made.suspension = HUNG
    found = incident_of(made, T)
    assert (found.kind, found.failure_class, found.worker, found.t) == ("exit", "hardware", 1, T)
    assert found.evidence is not None
    assert "fallen off the bus" in found.evidence.text


def test_an_excerpt_of_what_has_been_heard_is_no_news() -> None:
    line = "ValueError: shape"
    size = len(raised(0, line)[1].text)
    made = attempt(raised(0, line), chosen((0, 0, "RuntimeError: no\n"), size=size, lines=3), exited(0, 1))
    assert (made.ranks[0].heard, incident_of(made, T).evidence.text) == (size, line)
