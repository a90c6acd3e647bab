"""Whatever happens to a rank, the function is entered again by all that live, or all give up."""

from __future__ import annotations

import signal
from pathlib import Path

import inprocess_ranks
import pytest

QUICK = "soft_timeout=0.6, hard_timeout=1.2"
LESS_QUICK = "soft_timeout=4, hard_timeout=8"
"""For 8 ranks: those that are not meant must get on too, also where they share a processor."""

FAULTY = """
def train(call: CallWrapper):
    entered(call)
    if call.iteration == 1:
        return "done"
    all_are_in(call)
    if ME == 1:
        FAULT
    wait()

go(Wrapper(OPTIONS), train)
"""


def faulty(fault: str, options: str = "", size: int = 2) -> str:
    if size == 8:
        options = options.replace(QUICK, LESS_QUICK)
    return FAULTY.replace("FAULT", fault).replace("OPTIONS", options)


def everybody(size: int, kind: str, rank: int = 1) -> list[list[list[object]]]:
    """The places of ranks of which none is lost."""
    return [[[0, number, size, None, None], [1, number, size, kind, rank]] for number in range(size)]


FOUR = pytest.param(4, marks=pytest.mark.long)
EIGHT = pytest.param(8, marks=pytest.mark.long)
ASYNC = (
    "import ctypes; ctypes.pythonapi.PyThreadState_SetAsyncExc("
    "ctypes.c_ulong(threading.get_ident()), ctypes.py_object(RuntimeError)); [None for _ in range(1000)]"
)


@pytest.mark.parametrize("size", [2, FOUR, EIGHT])
@pytest.mark.parametrize(
    ("fault", "options", "kind"),
    [
        pytest.param('raise RuntimeError("boom")', "", "exception", id="exception"),
        pytest.param(ASYNC, "", "exception", id="asynchronous-exception"),
        pytest.param("time.sleep(60)", QUICK, "hang", id="asleep-without-progress"),
        pytest.param(
            "call.ping(1)\n        while True: call.ping(1)",
            QUICK,
            "hang",
            id="live-lock-pings-the-same-step",
        ),
    ],
)
def test_all_ranks_enter_again(tmp_path: Path, size: int, fault: str, options: str, kind: str) -> None:
    others = (
        "" if kind == "exception" else "if ME != 1:\n        while True: call.ping(); time.sleep(0.05)\n    "
    )
    body = faulty(fault, options, size).replace("    wait()", f"    {others}wait()")
    outcome = inprocess_ranks.run(tmp_path, size, body)
    assert [outcome.places(rank) for rank in range(size)] == everybody(size, kind), outcome.output
    assert outcome.codes == [0] * size, outcome.output
    assert outcome.noted("end") == [[{"how": "returned", "value": "done"}]] * size


LOSSES = [
    pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "", "lost", -signal.SIGKILL, id="killed"),
    pytest.param("os.kill(os.getpid(), signal.SIGTERM)", "", "lost", -signal.SIGTERM, id="terminated"),
    pytest.param("os.abort()", "", "lost", -signal.SIGABRT, id="aborted"),
    pytest.param("import ctypes; ctypes.string_at(0)", "", "lost", -signal.SIGSEGV, id="segfault"),
    pytest.param("os._exit(0)", "", "lost", 0, id="gone-without-a-word"),
    pytest.param("sys.exit(3)", "", "exit", 3, id="system-exit"),
    pytest.param("raise KeyboardInterrupt", "", "exit", -signal.SIGINT, id="keyboard-interrupt"),
    pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", QUICK, "lost", -signal.SIGKILL, id="stopped"),
    pytest.param(
        "import ctypes; ctypes.PyDLL(None).sleep(60)",
        QUICK,
        "lost",
        -signal.SIGKILL,
        id="in-c-with-the-interpreter",
    ),
]


def losing(fault: str, options: str, size: int, assignment: str = "shift_ranks") -> str:
    """Rank 1 is lost; where that takes time-outs the others say that they get on."""
    others = "if ME != 1:\n        while True: call.ping(); time.sleep(0.02)\n    " if options else ""
    body = faulty(fault, f"rank_assignment={assignment}, {options}", size)
    return body.replace("    wait()", f"    {others}wait()")


ORDINARY = ("killed", "system-exit", "stopped")
"""How a rank is lost in the ordinary run where no spare is there; with a spare, in all ways."""


@pytest.mark.parametrize(
    ("fault", "options", "kind", "code"),
    [
        pytest.param(*each.values, id=each.id, marks=() if each.id in ORDINARY else pytest.mark.long)
        for each in LOSSES
    ],
)
@pytest.mark.parametrize("size", [3, EIGHT])
def test_the_others_go_on_without_a_rank_that_is_lost(
    tmp_path: Path, size: int, fault: str, options: str, kind: str, code: int
) -> None:
    outcome = inprocess_ranks.run(tmp_path, size, losing(fault, options, size))
    left = [0, *range(2, size)]
    assert [outcome.places(rank) for rank in left] == [
        [[0, rank, size, None, None], [1, max(0, rank - 1), size - 1, kind, 1]] for rank in left
    ], outcome.output
    assert outcome.codes == [code if rank == 1 else 0 for rank in range(size)], outcome.output


@pytest.mark.parametrize(("fault", "options", "kind", "code"), LOSSES)
def test_a_spare_takes_the_place_however_the_rank_is_lost(
    tmp_path: Path, fault: str, options: str, kind: str, code: int
) -> None:
    body = losing(fault, options, 3, "compose(fill_gaps, max_active(2))")
    outcome = inprocess_ranks.run(tmp_path, 3, body)
    assert [outcome.places(rank) for rank in (0, 2)] == [
        [[0, 0, 2, None, None], [1, 0, 2, kind, 1]],
        [[1, 1, 2, kind, 1]],
    ], outcome.output
    assert outcome.codes == [0, code, 0], outcome.output


def test_what_cannot_be_interrupted_in_c_is_killed(tmp_path: Path) -> None:
    """A hang in C that releases the interpreter: interrupted in vain, then killed."""
    fault = "import ctypes; [ctypes.CDLL(None).sleep(60) for _ in range(9)]"
    body = faulty(fault, QUICK).replace("    wait()", "    while True: call.ping(); time.sleep(0.02)")
    outcome = inprocess_ranks.run(tmp_path, 2, body)
    assert outcome.codes[0] == 0, outcome.output
    assert outcome.places(0)[-1][:3] == [1, 0, outcome.places(0)[-1][2]]


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["the-one-that-started-the-store", "the-middle", "the-last"])
@pytest.mark.parametrize("_repeat", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_spare_takes_the_place_of_a_lost_rank(tmp_path: Path, lost: int, _repeat: int) -> None:
    options = "rank_assignment=compose(fill_gaps, max_active(3))"
    body = faulty("os.kill(os.getpid(), 9)", options).replace("ME == 1", f"ME == {lost}")
    outcome = inprocess_ranks.run(tmp_path, 4, body)
    stay = [number for number in range(3) if number != lost]
    assert [outcome.places(number)[-1] for number in stay] == [
        [1, number, 3, "lost", lost] for number in stay
    ]
    assert outcome.places(3) == [[1, lost, 3, "lost", lost]], outcome.output
    assert [outcome.codes[number] for number in (*stay, 3)] == [0, 0, 0]


def test_a_spare_that_is_not_needed_ends_with_the_others(tmp_path: Path) -> None:
    body = "go(Wrapper(rank_assignment=compose(shift_ranks, max_active(2))), lambda: 5)"
    outcome = inprocess_ranks.run(tmp_path, 3, body)
    assert [end[0]["value"] for end in outcome.noted("end")] == [5, 5, None], outcome.output


def test_two_ranks_that_fail_at_once_are_one_restart(tmp_path: Path) -> None:
    body = faulty('raise RuntimeError("boom")').replace("ME == 1", "ME in (1, 2)")
    outcome = inprocess_ranks.run(tmp_path, 4, body)
    assert [[place[0] for place in outcome.places(rank)] for rank in range(4)] == [[0, 1]] * 4, outcome.output
    assert outcome.codes == [0] * 4


def test_where_the_kernel_does_not_signal_the_watch_does(tmp_path: Path) -> None:
    refused = "from prefect_ft.inprocess import interrupt; interrupt._F_SETSIG = 1 << 20\n"
    outcome = inprocess_ranks.run(tmp_path, 2, refused + faulty('raise RuntimeError("boom")'))
    assert [outcome.places(rank) for rank in range(2)] == everybody(2, "exception"), outcome.output


def test_restarts_may_follow_each_other_at_once(tmp_path: Path) -> None:
    """Alerts of iterations that are over are still unread then: nobody leaves a later one because of them."""
    body = """
def train(call: CallWrapper):
    entered(call)
    if call.iteration == 30:
        return call.iteration
    if call.iteration % 3 == ME:
        raise RuntimeError("boom")
    wait()

go(Wrapper(max_restarts_without_progress=None), train)
"""
    outcome = inprocess_ranks.run(tmp_path, 3, body)
    assert outcome.noted("end") == [[{"how": "returned", "value": 30}]] * 3, outcome.output
    assert {place[3] for rank in range(3) for place in outcome.places(rank)} <= {None, "exception"}


def test_a_rank_killed_while_the_others_wait_for_it_is_left_out(tmp_path: Path) -> None:
    options = "finalize=lambda state: ME == 2 and os.kill(os.getpid(), 9)"
    outcome = inprocess_ranks.run(tmp_path, 3, faulty('raise RuntimeError("boom")', options))
    assert [outcome.places(rank)[-1] for rank in (0, 1)] == [
        [1, 0, 2, "exception", 1],
        [1, 1, 2, "exception", 1],
    ]
    assert outcome.codes == [0, 0, -9]


def test_a_rank_that_completed_enters_again_when_another_fails(tmp_path: Path) -> None:
    body = """
def train(call: CallWrapper):
    entered(call)
    if call.iteration == 0 and ME == 1:
        call.store().get("first")
        raise RuntimeError("boom")
    if call.iteration == 0:
        call.store().set("first", "")
    return call.iteration

go(Wrapper(), train)
"""
    outcome = inprocess_ranks.run(tmp_path, 2, body)
    assert [outcome.places(rank) for rank in range(2)] == everybody(2, "exception"), outcome.output
    assert outcome.noted("end") == [[{"how": "returned", "value": 1}]] * 2


@pytest.mark.parametrize(
    ("options", "end"),
    [
        pytest.param("finalize=lambda state: ME == 2 and 1 / 0", "ZeroDivisionError", id="finalize-fails"),
        pytest.param("health_check=lambda state: ME == 2 and 1 / 0", "ZeroDivisionError", id="unfit"),
        pytest.param(
            "finalize=lambda state: ME == 2 and time.sleep(60), soft_timeout=0.5, hard_timeout=9",
            "HookTimeoutError",
            id="finalize-hangs",
        ),
    ],
)
def test_a_rank_that_is_not_fit_leaves_and_the_others_go_on(tmp_path: Path, options: str, end: str) -> None:
    outcome = inprocess_ranks.run(tmp_path, 3, faulty('raise RuntimeError("boom")', options))
    assert outcome.ends() == ["returned", "returned", end], outcome.output
    assert outcome.codes == [0, 0, 1]


def test_abort_hooks_run_in_order_and_one_that_hangs_or_fails_holds_up_nothing(tmp_path: Path) -> None:
    first = """lambda s: note("abort", n=1)"""
    hooks = f"""abort=[{first}, lambda s: time.sleep(60), lambda s: 1 / 0, lambda s: note("abort", n=2)]"""
    outcome = inprocess_ranks.run(
        tmp_path, 2, faulty('raise RuntimeError("boom")', f"{hooks}, soft_timeout=0.4, hard_timeout=9")
    )
    assert outcome.noted("abort") == [[{"n": 1}, {"n": 2}]] * 2, outcome.output
    assert outcome.codes == [0, 0]


def test_hooks_are_called_in_their_order(tmp_path: Path) -> None:
    names = ("initialize", "abort", "finalize", "health_check", "completion", "terminate")
    options = ", ".join(f'{name}=lambda s: note("hook", name="{name}", n=s.iteration)' for name in names)
    outcome = inprocess_ranks.run(tmp_path, 2, faulty('raise RuntimeError("boom")', options))
    order = [
        ("initialize", 0),
        ("abort", 0),
        ("finalize", 0),
        ("health_check", 0),
        ("initialize", 1),
        ("completion", 1),
    ]
    assert outcome.noted("hook") == [[{"name": name, "n": n} for name, n in order]] * 2, outcome.output


ALWAYS = """
def train(call: CallWrapper):
    entered(call)
    all_are_in(call)
    if ME == 1:
        STEP
        raise RuntimeError("boom")
    wait()

go(Wrapper(OPTIONS), train)
"""


@pytest.mark.parametrize(
    ("step", "options", "entries"),
    [
        pytest.param("", "", 4, id="three-without-progress"),
        pytest.param("call.ping(7)", "", 4, id="the-same-step-is-no-progress"),
        pytest.param("call.ping(call.iteration)", "max_restarts=6", 7, id="progress-up-to-max-restarts"),
        pytest.param("", "max_restarts=0", 1, id="no-restart-at-all"),
        pytest.param("call.ping(min(call.iteration, 2))", "", 6, id="progress-begins-anew"),
    ],
)
def test_giving_up_ends_all_ranks_each_with_its_own_reason(
    tmp_path: Path, step: str, options: str, entries: int
) -> None:
    outcome = inprocess_ranks.run(tmp_path, 2, ALWAYS.replace("STEP", step).replace("OPTIONS", options))
    assert [len(outcome.places(rank)) for rank in range(2)] == [entries, entries], outcome.output
    assert outcome.ends() == ["RestartAbort", "RuntimeError"]
    assert outcome.codes == [1, 1]


@pytest.mark.parametrize(
    ("fault", "options", "ends"),
    [
        pytest.param("os.kill(os.getpid(), 9)", "min_world_size=2", ["RestartAbort", None], id="too-few"),
        pytest.param('raise RestartAbort("no more")', "", ["RestartAbort"] * 2, id="the-function-says-so"),
    ],
)
def test_nobody_goes_on_alone(tmp_path: Path, fault: str, options: str, ends: list[str | None]) -> None:
    outcome = inprocess_ranks.run(tmp_path, 2, faulty(fault, options))
    assert outcome.ends() == ends, outcome.output


def test_the_users_condition_ends_all_ranks(tmp_path: Path) -> None:
    condition = """
def stop_it(state):
    if state.iteration == 1 and ME == 0:
        raise RestartAbort("enough")
"""
    outcome = inprocess_ranks.run(
        tmp_path,
        2,
        condition
        + faulty('raise RuntimeError("boom")', "initialize=stop_it").replace('return "done"', "wait()"),
    )
    assert outcome.ends() == ["RestartAbort", "RestartAbort"], outcome.output
    assert "enough" in outcome.noted("end")[1][0]["text"]


def test_an_atomic_block_is_left_only_at_its_end(tmp_path: Path) -> None:
    body = """
def train(call: CallWrapper):
    entered(call)
    if call.iteration == 1:
        return
    store = call.store()
    if ME == 0:
        with call.atomic():
            store.set("inside", "")
            time.sleep(0.5)
            note("whole")
        note("never")
    store.get("inside")
    raise RuntimeError("boom")

go(Wrapper(), train)
"""
    outcome = inprocess_ranks.run(tmp_path, 2, body)
    assert (outcome.noted("whole"), outcome.noted("never")) == ([[{}], []], [[], []]), outcome.output
    assert outcome.codes == [0, 0]


def test_what_swallows_the_interruption_is_interrupted_again(tmp_path: Path) -> None:
    body = faulty('raise RuntimeError("boom")').replace(
        "    wait()", "    try:\n        wait()\n    except BaseException:\n        wait()"
    )
    outcome = inprocess_ranks.run(tmp_path, 2, body)
    assert [outcome.places(rank) for rank in range(2)] == everybody(2, "exception"), outcome.output


@pytest.mark.parametrize(
    "last_words",
    [
        pytest.param('raise ValueError("not closed")', id="raises"),
        pytest.param("time.sleep(0.3)", id="takes-its-time"),
        pytest.param("return 1", id="returns"),
    ],
)
def test_what_a_finally_does_while_the_function_is_left_changes_nothing(
    tmp_path: Path, last_words: str
) -> None:
    leaving = f"    try:\n        wait()\n    finally:\n        {last_words}"
    outcome = inprocess_ranks.run(
        tmp_path, 3, faulty('raise RuntimeError("boom")').replace("    wait()", leaving)
    )
    assert [outcome.places(rank) for rank in range(3)] == everybody(3, "exception"), outcome.output
    assert outcome.codes == [0, 0, 0]


def test_who_does_not_come_in_time_is_left_out_and_ends(tmp_path: Path) -> None:
    options = "finalize=lambda state: ME == 2 and time.sleep(3), barrier_timeout=1"
    outcome = inprocess_ranks.run(tmp_path, 3, faulty('raise RuntimeError("boom")', options))
    assert [outcome.places(rank)[-1] for rank in (0, 1)] == [
        [1, 0, 2, "exception", 1],
        [1, 1, 2, "exception", 1],
    ], outcome.output
    assert outcome.ends()[2] in ("ExcludedError", "StoreLostError")


def test_calls_may_follow_each_other(tmp_path: Path) -> None:
    outcome = inprocess_ranks.run(tmp_path, 2, "for n in range(3):\n    go(Wrapper(), lambda: n)")
    assert outcome.noted("end") == [[{"how": "returned", "value": n} for n in range(3)]] * 2, outcome.output


def test_not_enabled_it_is_the_bare_function(tmp_path: Path) -> None:
    body = """
def train(call: CallWrapper):
    entered(call)
    call.ping(3)
    with call.atomic():
        raise RuntimeError("boom")

go(Wrapper(enabled=False), train)
"""
    outcome = inprocess_ranks.run(tmp_path, 1, body)
    assert (outcome.places(0), outcome.ends()) == ([[0, 0, 1, None, None]], ["RuntimeError"]), outcome.output


def test_a_stranger_without_the_key_is_not_heard(tmp_path: Path) -> None:
    body = """
from prefect_ft.inprocess.client import Address, Connection
from prefect_ft.inprocess.session import address
def train(call: CallWrapper):
    entered(call)
    if call.iteration == 0 and ME == 0:
        stranger = Connection(call._address._replace(key="guessed"), 1.0)
        try:
            stranger.ask(1.0, op="get", keys=["k"], iteration=0)
        except Exception as exc:
            note("refused", how=type(exc).__name__)

go(Wrapper(), train)
"""
    outcome = inprocess_ranks.run(tmp_path, 2, body, env={"PREFECT_FT_INPROCESS_KEY": "secret"})
    assert outcome.noted("refused") == [[{"how": "StoreLostError"}], []], outcome.output
    assert [len(outcome.places(rank)) for rank in range(2)] == [1, 1]


LEFT = """
def process(pid):
    status = open(f"/proc/{pid}/status").read()
    threads, kib = (int(status.split(name)[1].split()[0]) for name in ("Threads:", "VmRSS:"))
    return {"threads": threads, "kib": kib, "open": len(os.listdir(f"/proc/{pid}/fd"))}

def store():
    for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split():
        if b"inprocess.server" in open(f"/proc/{pid}/cmdline", "rb").read():
            return [process(pid)]
    return []

def train(call: CallWrapper):
    if call.iteration in (EARLY, LATE):
        all_are_in(call)
        note("left", of=[process("self"), *store()])
        all_are_in(call, "and have looked")
    if call.iteration == LATE:
        return
    call.store().set(f"key of {ME} in {call.iteration}", "x" * 100)
    if ME == call.iteration % WORLD:
        note("fail", iteration=call.iteration)
        raise RuntimeError("boom" * 10)
    wait()

import logging; logging.disable()
WORLD = int(os.environ["WORLD_SIZE"])
go(Wrapper(max_restarts_without_progress=None), train)
"""


@pytest.mark.parametrize(
    ("size", "early", "late"),
    [
        pytest.param(2, 10, 110, id="100-of-2"),
        pytest.param(4, 10, 110, id="100-of-4", marks=pytest.mark.long),
        pytest.param(4, 50, 1050, id="1000-of-4", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_many_restarts_leave_nothing_behind(tmp_path: Path, size: int, early: int, late: int) -> None:
    """In the ranks and in the store: threads, descriptors, memory, and the keys that it is made of."""
    body = LEFT.replace("EARLY", str(early)).replace("LATE", str(late))
    outcome = inprocess_ranks.Ranks(tmp_path, size, body).wait(timeout_s=500)
    assert outcome.codes == [0] * size, outcome.output
    pairs = [
        (before, after)
        for first, last in outcome.noted("left")
        for before, after in zip(first["of"], last["of"], strict=True)
    ]
    assert len(pairs) == size + 1
    assert [before["threads"] for before, _ in pairs] == [after["threads"] for _, after in pairs]
    # The store may not have heard yet that some have hung up.
    assert max(after["open"] - before["open"] for before, after in pairs) <= size
    assert max(after["kib"] - before["kib"] for before, after in pairs) < 300
