"""What an agent was told opens no agent: not another one, and not itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agents import AgentClient, settings

from prefect_ft.backends.base import Worker, place_of
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.worker.agent import MAX_EPOCH_STEP
from prefect_ft.worker.keys import fits, verifier_of, worker_key

RUN_KEY = "5f" * 32
WORKERS = [Worker(number=number, system="localhost", epoch=7, decision=0) for number in range(2)]


def test_a_key_for_each_worker() -> None:
    names = ["0-0-1-0", "0-1-1-0", "0-0-2-0", "1-0-1-0"]
    made = {worker_key(RUN_KEY, name) for name in names}
    assert len(made | {RUN_KEY}) == len(names) + 1
    assert made == {worker_key(RUN_KEY, name) for name in names}


def test_a_run_of_an_earlier_version_keeps_the_key_that_its_agents_have() -> None:
    assert worker_key("ab" * 16, "0-0-1-0") == "ab" * 16


@pytest.mark.parametrize("other", ["", "5f", "é", "\ud800", RUN_KEY])
def test_only_the_key_fits(other: str) -> None:
    key = worker_key(RUN_KEY, "0-0-1-0")
    assert (fits(key, [verifier_of(key)]), fits(other, [verifier_of(key)])) == (True, False)


def test_what_an_agent_was_told_opens_none(runtime_dir: Path) -> None:
    """Real agents, attached to by one that has read all that is in both directories."""
    backend = ProcessBackend(settings(key=RUN_KEY), runtime_dir / "run", {})
    addresses = backend.create(WORKERS)
    clients: list[AgentClient] = []
    try:
        told = [json.loads(each.socket_path.with_name("agent.json").read_text()) for each in addresses]
        keys = [worker_key(RUN_KEY, place_of(0, worker)) for worker in WORKERS]
        assert [key for key in (RUN_KEY, *keys) if key in json.dumps(told)] == []
        stolen = {verifier for each in told for verifier in each["verifiers"]} | {keys[1]}
        for key in stolen:
            clients.append(AgentClient(addresses[0], 7))
            assert clients[-1].attach(key=key)["why"] == "wrong key"
        for key in (keys[0], RUN_KEY):  # the latter is what an orchestrator of an earlier version shows
            clients.append(AgentClient(addresses[0], 7))
            assert clients[-1].attach(key=key)["ev"] == "attached"
    finally:
        for client in clients:
            client.close()
        backend.destroy(WORKERS)


@pytest.mark.parametrize(
    ("epoch", "why"),
    [
        pytest.param(6, "fenced: an orchestrator of epoch 7 has taken over", id="before-the-agent-began"),
        pytest.param(7, None, id="the-one-that-made-it"),
        pytest.param(7 + MAX_EPOCH_STEP, None, id="the-last-that-may-be"),
        pytest.param(
            8 + MAX_EPOCH_STEP, f"epoch {8 + MAX_EPOCH_STEP} is too far above 7, the last one", id="a-jump"
        ),
    ],
)
def test_epochs(runtime_dir: Path, epoch: int, why: str | None) -> None:
    backend = ProcessBackend(settings(), runtime_dir / "run", {})
    (address,) = backend.create(WORKERS[:1])
    client = AgentClient(address, epoch)
    try:
        assert client.attach().get("why") == why
    finally:
        client.close()
        backend.destroy(WORKERS[:1])
