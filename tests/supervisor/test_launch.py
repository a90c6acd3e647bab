"""The script's contract: what every rank of every attempt is told, as whole environments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import beside

from prefect_ft.model import Action, Counters, Decision, Policy, Window
from prefect_ft.supervisor.launch import (
    Launch,
    PhasePlan,
    rank_environments,
    start_orders,
    worker_environment,
)


def plan(**fields: Any) -> PhasePlan:
    known: dict[str, Any] = {
        "run_id": "r1", "phase": "train", "phase_index": 0, "phases": 1, "command": ("true",), "cwd": "/",
        "inherited": frozenset(), "env": {}, "system_env": {}, "ranks_per_worker": 1, "has_checkpoints": True,
        "hang_detect_time_s": 1800.0, "stop_grace_s": 0.0, "policy": Policy(systems=("s0", "s1"), workers=2),
        **beside(Path("/"), ("s0", "s1")),
    }  # fmt: skip
    return PhasePlan(**{**known, **fields})


def launch(**fields: Any) -> Launch:
    known: dict[str, Any] = {
        "attempt": 1, "restarts": 0, "decision": None, "placement": ("s0", "s1"), "start_counts": ((1, 1), (1, 1)),
        "master": ("127.0.0.1", 29500), "has_store": False, "in_process_port": None, "in_process_key": "k",
        "resume_step": None, "resume_path": None, "skipped": {}, "skip_eval_at_step": None,
    }  # fmt: skip
    return Launch(**{**known, **fields})


def decision(rule: str, action: Action) -> Decision:
    return Decision(n=1, rule=rule, action=action, reason="", placement=(), counters=Counters())


FIRST = {
    "MA_SCHEDULE_CNT": "1",
    "MA_PROC_START_CNT": "1",
    "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "-1",
    "MA_HANG_DETECT_TIME": "30",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "ROLE_NAME": "default",
    "ROLE_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "1",
    "TORCHELASTIC_RUN_ID": "r1",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "PREFECT_FT_RUN_ID": "r1",
    "PREFECT_FT_PHASE": "train",
    "PREFECT_FT_ATTEMPT": "1",
    "PREFECT_FT_WORKER": "1",
    "PREFECT_FT_SYSTEM": "s1",
    "PREFECT_FT_RESTART_COUNT": "0",
    "PREFECT_FT_RESTART_REASON": "",
    "PREFECT_FT_RESTART_ACTION": "",
    "PREFECT_FT_RESUME_FROM": "",
}
"""What worker 1 is told in the first attempt."""


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


@pytest.mark.parametrize(
    ("about", "changed"),
    [
        pytest.param(launch(), {}, id="first-attempt"),
        pytest.param(
            launch(
                attempt=2,
                restarts=1,
                decision=decision("transient", "restart_in_place"),
                start_counts=((1, 2), (1, 2)),
                master=("127.0.0.1", 29501),
                resume_step=100,
                resume_path="/ck/step-100",
            ),
            {
                "MA_PROC_START_CNT": "2",
                "MASTER_PORT": "29501",
                "TORCHELASTIC_RESTART_COUNT": "1",
                "PREFECT_FT_ATTEMPT": "2",
                "PREFECT_FT_RESTART_COUNT": "1",
                "PREFECT_FT_RESTART_REASON": "transient",
                "PREFECT_FT_RESTART_ACTION": "restart_in_place",
                "PREFECT_FT_RESUME_FROM": "/ck/step-100",
            },
            id="in-place",
        ),
        pytest.param(
            launch(
                attempt=3,
                restarts=2,
                decision=decision("transient", "rebuild"),
                start_counts=((2, 1), (2, 1)),
                master=("10.0.0.7", 29502),
            ),
            {
                "MA_SCHEDULE_CNT": "2",
                "MASTER_ADDR": "10.0.0.7",
                "MASTER_PORT": "29502",
                "TORCHELASTIC_RESTART_COUNT": "2",
                "PREFECT_FT_ATTEMPT": "3",
                "PREFECT_FT_RESTART_COUNT": "2",
                "PREFECT_FT_RESTART_REASON": "transient",
                "PREFECT_FT_RESTART_ACTION": "rebuild",
            },
            id="rebuild-from-scratch",
        ),
        pytest.param(
            launch(
                attempt=2,
                restarts=1,
                decision=decision("node-lost", "replace_workers"),
                placement=("s0", "s2"),
                start_counts=((1, 2), (2, 1)),
            ),
            {
                "MA_SCHEDULE_CNT": "2",
                "TORCHELASTIC_RESTART_COUNT": "1",
                "PREFECT_FT_ATTEMPT": "2",
                "PREFECT_FT_SYSTEM": "s2",
                "PREFECT_FT_RESTART_COUNT": "1",
                "PREFECT_FT_RESTART_REASON": "node-lost",
                "PREFECT_FT_RESTART_ACTION": "replace_workers",
            },
            id="replaced",
        ),
        pytest.param(
            launch(
                attempt=2,
                decision=replace(
                    decision("skip-steps", "restart_in_place"), skip_steps=((195, 234), (301, 310))
                ),
            ),
            {
                "PREFECT_FT_ATTEMPT": "2",
                "PREFECT_FT_RESTART_REASON": "skip-steps",
                "PREFECT_FT_RESTART_ACTION": "restart_in_place",
                "PREFECT_FT_SKIP_STEPS": "195-234,301-310",
            },
            id="with-steps-to-be-skipped",
        ),
        pytest.param(
            launch(skip_eval_at_step=40), {"PREFECT_FT_SKIP_EVAL_AT_STEP": "40"}, id="failed-in-a-validation"
        ),
        pytest.param(
            launch(skip_eval_at_step=0),
            {"PREFECT_FT_SKIP_EVAL_AT_STEP": "0"},
            id="in-the-validation-of-step-0",
        ),
    ],
)
def test_what_worker_1_is_told(about: Launch, changed: dict[str, str]) -> None:
    assert worker_environment(plan(), about, 1) == {**FIRST, **changed}


def test_what_torchrun_calls_a_place_in_the_gang() -> None:
    policy = Policy(systems=("s0", "s1"), workers=2, max_num_restarts=5)
    named = plan(
        policy=policy,
        env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        ranks_per_worker=2,
        role="trainer",
        elastic_id="job7",
    )
    env = worker_environment(named, launch(), 1)
    assert {name: value for name, value in env.items() if FIRST.get(name) != value} == {
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "ROLE_NAME": "trainer",
        "ROLE_WORLD_SIZE": "4",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "job7",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "WORLD_SIZE": "4",
    }
    unrestarted = plan(policy=Policy(systems=("s0",), workers=1, autorestart=False))
    assert worker_environment(unrestarted, launch(), 0)["TORCHELASTIC_MAX_RESTARTS"] == "0"


def test_a_gang_that_shrank_counts_its_ranks_anew() -> None:
    shrunk = launch(placement=("s1",), start_counts=((2, 1),))
    env = worker_environment(plan(ranks_per_worker=4), shrunk, 0)
    told = {
        name: env[name]
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "PREFECT_FT_WORKER", "PREFECT_FT_SYSTEM")
    }
    assert told == {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "PREFECT_FT_WORKER": "0",
        "PREFECT_FT_SYSTEM": "s1",
    }


def test_ranks_are_numbered_through_the_gang() -> None:
    assert rank_environments(plan(ranks_per_worker=2), 1) == {
        2: {"RANK": "2", "LOCAL_RANK": "0", "ROLE_RANK": "2"},
        3: {"RANK": "3", "LOCAL_RANK": "1", "ROLE_RANK": "3"},
    }


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        pytest.param({"env": {"A": "job"}}, "A", "job", id="what-the-job-says"),
        pytest.param({"env": {"A": "job"}, "system_env": {"s0": {"A": "s"}}}, "A", "job", id="not-of-another-system"),
        pytest.param({"env": {"A": "job"}, "system_env": {"s1": {"A": "s"}}}, "A", "s", id="the-system-is-narrower"),
        pytest.param({"env": {"PREFECT_FT_SYSTEM": "x"}}, "PREFECT_FT_SYSTEM", "s1", id="the-contract-is-the-runs"),
        pytest.param({"system_env": {"s1": {"MASTER_PORT": "1"}}}, "MASTER_PORT", "29500", id="the-port-is-the-runs"),
        pytest.param({"env": {"NODE_RANK": "7"}}, "NODE_RANK", "1", id="the-place-is-the-runs"),
        pytest.param({}, "OMP_NUM_THREADS", None, id="one-rank-may-have-all-threads"),
        pytest.param({"ranks_per_worker": 2}, "OMP_NUM_THREADS", "1", id="several-ranks-share"),
        pytest.param(
            {"ranks_per_worker": 2, "env": {"OMP_NUM_THREADS": "8"}}, "OMP_NUM_THREADS", "8", id="threads-by-the-job"
        ),
        pytest.param(
            {"ranks_per_worker": 2, "inherited": frozenset(("OMP_NUM_THREADS",))}, "OMP_NUM_THREADS", None,
            id="threads-by-the-users-environment",
        ),
        pytest.param({"hang_detect_time_s": 61}, "MA_HANG_DETECT_TIME", "2", id="minutes-are-rounded-up"),
        pytest.param(
            {"env": {"MA_HANG_DETECT_TIME": "15"}}, "MA_HANG_DETECT_TIME", "15", id="hang-detection-by-the-job"
        ),
        pytest.param(
            {"env": {"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "60"}},
            "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS", "60",
            id="grace-is-passed-on",
        ),
    ],
)  # fmt: skip
def test_who_has_the_last_word(fields: dict[str, Any], name: str, value: str | None) -> None:
    assert worker_environment(plan(**fields), launch(), 1).get(name) == value


@pytest.mark.parametrize(
    ("fields", "unset"),
    [
        pytest.param({}, [[], []], id="nothing"),
        pytest.param({"env": {"RANK": None, "A": "x", "B": None}}, [["B", "RANK"]] * 2, id="by-job-or-phase"),
        pytest.param({"system_env": {"s1": {"RANK": None}}}, [[], ["RANK"]], id="on-one-system"),
        pytest.param(
            {"env": {"A": None}, "system_env": {"s1": {"A": "x"}}}, [["A"], []], id="the-system-is-narrower"
        ),
        pytest.param({"secret_env": {"A": "x"}, "env": {"A": None}}, [["A"]] * 2, id="a-secret-gives-way"),
    ],
)
def test_what_is_unset_is_said_to_each_worker(fields: dict[str, Any], unset: list[list[str]]) -> None:
    orders = start_orders(plan(**fields), launch(), {})
    assert [orders[worker]["unset"] for worker in range(2)] == unset
    assert all(None not in order["env"].values() for order in orders.values())


def test_each_worker_is_told_what_nobody_is_to_read() -> None:
    orders = start_orders(plan(secret_env={"A": "x", "B": "y"}), launch(), {})
    assert [orders[worker]["secrets"] for worker in range(2)] == [["x", "y"]] * 2


def test_ranks_are_told_of_a_store_where_there_is_one() -> None:
    told = {**FIRST, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert worker_environment(plan(), launch(has_store=True), 1) == told


def test_ranks_are_told_where_they_agree_on_restarts_within_their_processes() -> None:
    told = {
        **FIRST,
        "PREFECT_FT_INPROCESS_STORE": "29500:4000",
        "PREFECT_FT_INPROCESS_KEY": "k",
    }
    assert worker_environment(plan(), launch(in_process_port=4000), 1) == told


def test_what_is_kept_for_a_comeback_is_sent_to_the_first_worker_alone() -> None:
    orders = start_orders(plan(), launch(), {"attempt": 1})
    assert {worker: order["note"] for worker, order in orders.items()} == {0: {"attempt": 1}, 1: {}}


SKIP_ARGS = ("--skip", "{steps}", "--list={steps}", "{windows}")


@pytest.mark.parametrize(
    ("windows", "more"),
    [
        pytest.param((), (), id="none"),
        pytest.param(((7, 7),), ("--skip", "7", "--list=7", "7-7"), id="one-step"),
        pytest.param(
            ((3, 5), (9, 10)),
            ("--skip", "3", "4", "5", "9", "10", "--list=3,4,5,9,10", "3-5,9-10"),
            id="two-windows",
        ),
    ],
)
def test_an_attempt_that_skips_steps_has_more_words(
    windows: tuple[Window, ...], more: tuple[str, ...]
) -> None:
    asked = plan(command=("train", "{steps}"), skip_args=SKIP_ARGS)
    skipping = replace(decision("skip-steps", "restart_in_place"), skip_steps=windows)
    orders = start_orders(asked, launch(decision=skipping), {})
    assert {order["command"] for order in orders.values()} == {("train", "{steps}", *more)}


ARGS = ("--checkpoint_path", "{resume_from}", "--from={resume_from}", "{step}")


@pytest.mark.parametrize(
    ("resume_path", "more"),
    [
        pytest.param(None, (), id="from-scratch"),
        pytest.param(
            "/ck/step {resume_from}",
            ("--checkpoint_path", "/ck/step {resume_from}", "--from=/ck/step {resume_from}", "{step}"),
            id="from-a-checkpoint",
        ),
    ],
)
def test_an_attempt_that_resumes_has_more_words(resume_path: str | None, more: tuple[str, ...]) -> None:
    asked = plan(command=("train", "{resume_from}"), resume_args=ARGS)
    orders = start_orders(asked, launch(resume_path=resume_path), {})
    assert {order["command"] for order in orders.values()} == {("train", "{resume_from}", *more)}
