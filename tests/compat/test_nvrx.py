"""Scripts for nvidia-resiliency-ext with one import changed: real ranks, no torch."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import inprocess_ranks
import pytest

import prefect_ft.compat.nvrx as inprocess
from prefect_ft.compat.nvrx.state import State

HEAD = """
from datetime import timedelta
from typing import Optional
from prefect_ft.compat import nvrx as inprocess

PORT = int(os.environ["MASTER_PORT"]) + 1
KWARGS = {"store_kwargs": {"port": PORT}, "initialize": inprocess.initialize.RetryController(max_iterations=4)}

def placed(call):
    state = call.frozen_state
    note("enter", place=[state.iteration, state.rank, state.world_size, state.active_rank, state.active_world_size])

def noted(function):
    try:
        value = function()
    except BaseException as exc:
        note("end", how=type(exc).__name__, text=str(exc), cause=type(exc.__cause__).__name__)
        raise
    note("end", how="returned", value=value)

def together(call):
    store = call.store()
    store.barrier("in", call.world_size)
    store.close()
"""

pytestmark = pytest.mark.timeout(120)


def run(directory: Path, size: int, body: str) -> inprocess_ranks.Outcome:
    return inprocess_ranks.run(directory, size, HEAD + body)


def places(outcome: inprocess_ranks.Outcome) -> list[list[list[object]]]:
    return [outcome.places(rank) for rank in range(len(outcome.codes))]


@pytest.mark.parametrize(
    "annotation",
    ["inprocess.CallWrapper", "Optional[inprocess.CallWrapper]", '"Optional[inprocess.CallWrapper]"'],
)
def test_a_failing_function_is_restarted_on_all_ranks(tmp_path: Path, annotation: str) -> None:
    body = f"""
@inprocess.Wrapper(**KWARGS)
def main(call: {annotation} = None):
    placed(call)
    call.ping()
    together(call)
    if call.iteration < 2 and ME == 1:
        raise RuntimeError("boom")
    return call.iteration

noted(main)
"""
    outcome = run(tmp_path, 2, body)
    assert places(outcome) == [[[number, rank, 2, rank, 2] for number in range(3)] for rank in (0, 1)]
    assert outcome.noted("end") == [[{"how": "returned", "value": 2}]] * 2


@pytest.mark.parametrize("by_user", [False, True])
def test_a_restart_frees_what_the_failed_iteration_made_and_looks_at_nothing_older(
    tmp_path: Path, by_user: bool
) -> None:
    """What the script had frozen itself stays frozen."""
    body = f"""
import gc, weakref

class Model:
    def __init__(self):
        self.itself = self

models = []
gc.collect()
{"gc.freeze()" if by_user else "pass"}
before = gc.get_freeze_count()

@inprocess.Wrapper(**KWARGS)
def main(call: inprocess.CallWrapper = None):
    note("enter", living=[each() is not None for each in models], frozen=gc.get_freeze_count() > before)
    model = Model()
    models.append(weakref.ref(model))
    together(call)
    if call.iteration == 0 and ME == 1:
        raise RuntimeError("boom")
    while call.iteration == 0:
        call.ping()
    return 1

main()
note("end", frozen=gc.get_freeze_count() > 0)
"""
    outcome = run(tmp_path, 2, body)

    entered, ended = outcome.noted("enter"), outcome.noted("end")
    assert entered == [[{"living": [], "frozen": True}, {"living": [False], "frozen": True}]] * 2
    assert ended == [[{"frozen": by_user}]] * 2


def test_too_many_iterations_end_all_ranks_by_restart_abort(tmp_path: Path) -> None:
    """Which `except Exception` does not catch; what this rank failed with is its cause."""
    body = """
@inprocess.Wrapper(**KWARGS)
def main(call: inprocess.CallWrapper = None):
    placed(call)
    together(call)
    if ME == 1:
        raise ValueError("boom")
    wait()

noted(main)
"""
    outcome = run(tmp_path, 2, body)
    assert [len(each) for each in places(outcome)] == [4, 4]
    assert outcome.ends() == ["RestartAbort", "RestartAbort"]
    assert [found[0]["cause"] for found in outcome.noted("end")] == ["NoneType", "ValueError"]
    assert "iteration=4, max_iterations=4" in outcome.noted("end")[0][0]["text"]
    assert issubclass(inprocess.exception.RestartAbort, BaseException)
    assert not issubclass(inprocess.exception.RestartAbort, Exception)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        pytest.param("Compose(ActivateAllRanks(), ShiftRanks())", {0: 0, 2: 1, 3: 2}, id="shift"),
        pytest.param(
            "Compose(ActivateAllRanks(), FillGaps())", {0: 0, 2: 2, 3: 1}, id="fill", marks=pytest.mark.long
        ),
        pytest.param("Compose(MaxActiveWorldSize(2), ShiftRanks())", {0: 0, 2: 1}, id="a-spare"),
        pytest.param(
            "Compose(ActiveWorldSizeDivisibleBy(2), ShiftRanks())",
            {0: 0, 2: 1},
            id="divisible",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "Compose(ActivateAllRanks(), ShiftRanks(), pairs(lambda state: state.rank // 2))",
            {2: 0, 3: 1},
            id="whole-groups",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "Compose(ActivateAllRanks(), ShiftRanks(), pairs(lambda _: 'host%d' % (ME // 2)))",
            {2: 0, 3: 1},
            id="whole-hosts",
        ),
        pytest.param(
            "Tree([Layer(key_or_fn='root', max_ranks=3, flag=LayerFlag.RESERVE)])",
            {0: 0, 2: 2, 3: 1},
            id="tree-with-a-reserve",
        ),
    ],
)
def test_who_runs_when_a_rank_is_lost(tmp_path: Path, assignment: str, expected: dict[int, int]) -> None:
    body = f"""
from prefect_ft.compat.nvrx import Compose
from prefect_ft.compat.nvrx.rank_assignment import *

def pairs(key):
    return FilterCountGroupedByKey(key_or_fn=key, condition=lambda count: count == 2)

@inprocess.Wrapper(**KWARGS, rank_assignment={assignment})
def main(call: inprocess.CallWrapper = None):
    placed(call)
    together(call)
    if call.iteration == 0:
        if ME == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        wait()
    return os.environ["RANK"], os.environ["WORLD_SIZE"]

noted(main)
"""
    outcome = run(tmp_path, 4, body)
    assert outcome.codes == [0, -9, 0, 0]
    ends = {rank: found[0].get("value") for rank, found in enumerate(outcome.noted("end")) if found}
    ran = {rank: int(value[0]) for rank, value in ends.items() if value is not None}
    assert ran == expected
    assert {value[1] for value in ends.values() if value is not None} == {str(len(expected))}


def test_hooks_see_the_state_and_come_in_their_order(tmp_path: Path) -> None:
    body = """
def hook(base, name):
    class Hook(base):
        def __call__(self, state):
            note("hook", seen=[name, state.iteration, type(state.fn_exception).__name__])
            return state
    return Hook()

one, two = (hook(inprocess.finalize.Finalize, name) for name in ("finalize-1", "finalize-2"))

@inprocess.Wrapper(
    store_kwargs={"port": PORT},
    initialize=hook(inprocess.initialize.Initialize, "initialize"),
    abort=hook(inprocess.abort.Abort, "abort"),
    finalize=inprocess.Compose(one, two),
    health_check=hook(inprocess.health_check.HealthCheck, "health"),
    completion=hook(inprocess.completion.Completion, "completion"),
)
def main(call: inprocess.CallWrapper = None):
    if call.iteration == 0:
        raise KeyError("boom")

noted(main)
"""
    outcome = run(tmp_path, 1, body)
    assert [found["seen"] for found in outcome.noted("hook")[0]] == [
        ["initialize", 0, "NoneType"], ["health", 0, "NoneType"],
        ["abort", 0, "KeyError"], ["finalize-2", 0, "KeyError"], ["finalize-1", 0, "KeyError"],
        ["health", 0, "KeyError"],
        ["initialize", 1, "KeyError"], ["health", 1, "KeyError"], ["completion", 1, "NoneType"],
    ]  # fmt: skip


def test_an_unfit_rank_ends_and_the_others_go_on(tmp_path: Path) -> None:
    body = """
class Unfit(inprocess.health_check.HealthCheck):
    def __call__(self, state):
        if ME == 1 and state.fn_exception is not None:
            raise ZeroDivisionError
        return state

@inprocess.Wrapper(**KWARGS, health_check=Unfit())
def main(call: inprocess.CallWrapper = None):
    together(call)
    if call.iteration == 0 and ME == 1:
        raise RuntimeError("boom")
    if call.iteration == 0:
        wait()
    return call.world_size

noted(main)
"""
    outcome = run(tmp_path, 2, body)
    assert outcome.ends() == ["returned", "HealthCheckError"]
    assert outcome.noted("end")[0][0]["value"] == 1


def test_a_rank_that_cannot_be_interrupted_gets_sigterm_first(tmp_path: Path) -> None:
    body = """
import re
@inprocess.Wrapper(
    **KWARGS, soft_timeout=timedelta(seconds=0.3), hard_timeout=timedelta(seconds=0.8),
    monitor_process_interval=timedelta(milliseconds=10), monitor_thread_interval=timedelta(milliseconds=10),
    progress_watchdog_interval=timedelta(milliseconds=10), termination_grace_time=timedelta(seconds=5),
)
def main():
    re.match(r"(a?){40}a{40}", "a" * 40)

main()
"""
    assert run(tmp_path, 1, body).codes == [-signal.SIGTERM]


def test_no_timeout_holds_where_hang_protection_is_off(tmp_path: Path) -> None:
    body = """
@inprocess.Wrapper(
    **KWARGS, soft_timeout=timedelta(seconds=0.3), hard_timeout=timedelta(seconds=0.6),
    monitor_process_interval=timedelta(milliseconds=10), monitor_thread_interval=timedelta(milliseconds=10),
    progress_watchdog_interval=timedelta(milliseconds=10),
)
def main(call: inprocess.CallWrapper = None):
    call.ping()
    if call.iteration:
        return "restarted"
    with call.disable_hang_protection():
        time.sleep(1.0)
    call.ping()
    note("past")
    wait()

noted(main)
"""
    outcome = run(tmp_path, 1, body)
    assert len(outcome.noted("past")[0]) == 1
    assert outcome.noted("end") == [[{"how": "returned", "value": "restarted"}]]


def test_a_function_that_never_runs_does_not_restart_for_ever(tmp_path: Path) -> None:
    body = """
@inprocess.Wrapper(store_kwargs={"port": PORT})
def main():
    raise RuntimeError("at once")

noted(main)
"""
    outcome = run(tmp_path, 1, body)
    assert outcome.ends() == ["RestartAbort"]
    assert "max_restart_storm is 100" in outcome.noted("end")[0][0]["text"]


def test_a_wrapper_that_is_not_enabled_gives_the_function_back() -> None:
    def main() -> int:
        return 3

    assert inprocess.Wrapper(enabled=False)(main) is main


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param({"initialize": lambda state: state}, TypeError, id="a-hook-of-no-class"),
        pytest.param({"rank_assignment": 3}, TypeError, id="no-assignment"),
        pytest.param({"soft_timeout": 60}, TypeError, id="seconds"),
        pytest.param({"monitor_process_logfile": "relative"}, ValueError, id="a-relative-path"),
    ],
)
def test_what_is_refused(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        inprocess.Wrapper(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "state", "aborts"),
    [
        pytest.param({"max_iterations": 2}, {"iteration": 1}, False, id="below-max"),
        pytest.param({"max_iterations": 2}, {"iteration": 2}, True, id="at-max"),
        pytest.param({"min_world_size": 4}, {}, False, id="enough-ranks"),
        pytest.param({"min_world_size": 5}, {}, True, id="too-few-ranks"),
        pytest.param({"min_active_world_size": 2}, {}, False, id="enough-active"),
        pytest.param({"min_active_world_size": 3}, {}, True, id="too-few-active"),
    ],
)
def test_when_the_retry_controller_ends_all(
    limits: dict[str, int], state: dict[str, int], aborts: bool
) -> None:
    told = State(0, 4, 0, 2, **state).freeze()
    controller = inprocess.initialize.RetryController(**limits)
    if aborts:
        with pytest.raises(inprocess.exception.RestartAbort):
            controller(told)
    else:
        assert controller(told) is told


def test_a_rank_that_fails_too_often_ends() -> None:
    counter = inprocess.health_check.FaultCounter(max_rank_faults=1)
    failed = State(0, 1, fn_exception=RuntimeError()).freeze()
    counter(State(0, 1).freeze())
    counter(failed)
    with pytest.raises(inprocess.health_check.FaultCounterExceeded):
        counter(failed)


def test_the_shim_answers_for_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shims/nvidia_resiliency_ext`, which nothing installs by itself."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "shims" / "nvidia_resiliency_ext"))
    import nvidia_resiliency_ext.inprocess as theirs
    from nvidia_resiliency_ext.inprocess.rank_assignment import Tree
    from nvidia_resiliency_ext.shared_utils.inject_fault import Fault

    assert theirs is inprocess
    assert (Tree, Fault.SIGKILL.name) == (inprocess.rank_assignment.Tree, "SIGKILL")
    for name in [name for name in sys.modules if name.startswith("nvidia_resiliency_ext")]:
        monkeypatch.delitem(sys.modules, name)
