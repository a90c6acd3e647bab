"""The end of an attempt waits while a rank that still runs may report why others lost it."""

from __future__ import annotations

import pytest
from attempts import Make
from heard import heard

from prefect_ft.model import Incident
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.cause_wait import CAUSE_WAIT_S, MAX_JUDGED, CauseWait
from prefect_ft.supervisor.events import Lost

PEER_LOST = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:26851",
    "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:17284: Connection reset by peer",
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
)
ABORTED = (
    """terminate called after throwing an instance of 'gloo::IoException'
  what():  [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:17284: Connection reset by peer""",
    "[rank0]:[E ProcessGroupNCCL.cpp:1970] NCCL error: remote process exited or there was a network error",
)
OTHERS = (
    "KeyError: 'label_17'",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded",
)
RAISED = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n    step()\n'


def attempt(ranks: int = 3) -> Attempt:
    return Attempt(1, dict.fromkeys(range(ranks), 0))


def fails(made: Attempt, rank: int, text: str, code: int | None = 1, by: int | None = None) -> None:
    made.take(0, heard("output", rank=rank, text=f"{RAISED}{text}\n"))
    made.take(0, heard("exited", rank=rank, code=code, signal=by, t_ns=0))


@pytest.mark.parametrize("text", PEER_LOST)
def test_it_goes_on_after_the_loss_of_a_peer_until_it_takes_too_long(text: str) -> None:
    made = attempt()
    fails(made, 0, text)
    wait = CauseWait(made, 7.0)
    assert wait.due_s == 7.0 + CAUSE_WAIT_S
    assert wait.goes_on(7.0)
    assert wait.goes_on(wait.due_s - 0.1)
    assert not wait.goes_on(wait.due_s)


@pytest.mark.parametrize("text", OTHERS)
def test_another_failure_is_a_cause_at_once(text: str) -> None:
    made = attempt()
    fails(made, 0, text)
    assert not CauseWait(made, 7.0).goes_on(7.0)


@pytest.mark.parametrize(("number", "waits"), [(9, False), (11, False), (6, True)])
def test_of_signals_only_an_abort_may_follow_from_a_lost_peer(number: int, waits: bool) -> None:
    for lost in (f"{RAISED}{PEER_LOST[0]}", *ABORTED):
        made = attempt()
        made.take(0, heard("output", rank=0, text=f"{lost}\n"))
        made.take(0, heard("exited", rank=0, code=None, signal=number, t_ns=0))
        assert CauseWait(made, 7.0).goes_on(7.0) is waits


def test_it_does_not_go_on_for_ranks_that_are_excused() -> None:
    made = attempt(2)
    made.take(0, heard("call", inside=[], excused=[1]))
    fails(made, 0, PEER_LOST[0])
    assert not CauseWait(made, 7.0).goes_on(7.0)


def test_of_thousands_only_the_first_are_judged() -> None:
    made = attempt(MAX_JUDGED + 2)
    wait = CauseWait(made, 7.0)
    for rank in range(MAX_JUDGED):
        fails(made, rank, PEER_LOST[0])
    assert wait.goes_on(7.0)
    fails(made, MAX_JUDGED, OTHERS[0])
    assert wait.goes_on(7.0)
    fails(made, MAX_JUDGED + 1, PEER_LOST[0])
    assert not wait.goes_on(7.0)


def test_it_ends_once_a_rank_fails_of_something_else() -> None:
    made = attempt()
    wait = CauseWait(made, 7.0)
    fails(made, 0, PEER_LOST[0])
    assert wait.goes_on(7.0)
    fails(made, 2, PEER_LOST[1])
    assert wait.goes_on(7.1)
    fails(made, 1, OTHERS[0])
    assert not wait.goes_on(7.2)


def test_it_ends_when_no_rank_is_left() -> None:
    made = attempt(2)
    wait = CauseWait(made, 7.0)
    fails(made, 0, PEER_LOST[0])
    fails(made, 1, PEER_LOST[0])
    assert not wait.goes_on(7.1)


def test_it_ends_where_a_report_says_why() -> None:
    made = attempt()
    wait = CauseWait(made, 7.0)
    fails(made, 0, PEER_LOST[0])
    made.report = Incident(t=1.0, kind="fault", attempt=1)
    assert not wait.goes_on(7.1)
    made.report = None
    assert wait.goes_on(7.1)
    made.take(0, Lost(system_answers=False, evidence=None))
    assert not wait.goes_on(7.1)


LEAVES_FIRST = f"""
if restarts: sys.exit()
if rank == 0:
    open("pid", "w").write(str(os.getpid())); os.rename("pid", "first")
    raise RuntimeError({PEER_LOST[0].removeprefix("RuntimeError: ")!r})
while not os.path.exists("first"): time.sleep(0.01)
pid = int(open("first").read())
while os.path.exists(f"/proc/{{pid}}"): time.sleep(0.01)
raise KeyError("label_17")
"""
"""Rank 1 leaves the process group and raises only after rank 0 has failed and ended."""


@pytest.mark.parametrize("workers", [2, 1])
def test_the_exception_of_the_rank_that_others_lost_is_the_cause(make: Make, workers: int) -> None:
    phase = make(LEAVES_FIRST, workers=workers, plan_fields={"ranks_per_worker": 2 // workers})
    assert phase.run() == ["confirm-once: restart_in_place", "completed: complete"]
    incident = phase.journal.history()[0].incident
    assert incident.evidence is not None
    assert (incident.evidence.text, incident.worker) == ("KeyError: 'label_17'", workers - 1)


def test_a_rank_that_reports_nothing_delays_the_restart_no_longer_than_the_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.supervisor.cause_wait.CAUSE_WAIT_S", 0.1)
    phase = make(LEAVES_FIRST.replace('raise KeyError("label_17")', "signal.pause()"), workers=2)
    assert phase.run() == ["transient: restart_in_place", "completed: complete"]


def test_a_report_of_a_fault_ends_the_wait(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_ft.supervisor.cause_wait.CAUSE_WAIT_S", 600.0)
    report = "from prefect_ft import report_fault; report_fault(0, 'E1', 'critical'); signal.pause()"
    code = LEAVES_FIRST.replace('raise KeyError("label_17")', report)
    phase = make(code, workers=2, systems=("s0", "s1", "s2"))
    assert phase.run() == ["fault-critical: isolate_and_rebuild", "completed: complete"]
