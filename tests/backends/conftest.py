"""These tests start agents and ranks; none of them may leave a process behind."""

import pytest
from agent_fixtures import agent, client, make_worker, nobody_left, start_agent

__all__ = ["agent", "client", "make_worker", "nobody_left", "start_agent"]

ON_CLUSTERS = {
    "test_each_worker_has_an_agent_that_knows_who_it_is",
    "test_workers_reach_each_other_at_the_master",
    "test_destroying_a_worker_ends_all_that_runs_in_it",
    "test_creating_is_idempotent",
    "test_what_is_exchanged_is_gone_and_there",
    "test_another_life_of_the_orchestrator_can_end_what_it_finds",
    "test_another_life_of_the_orchestrator_finds_what_is_there",
}
"""What the ordinary run asks of clusters and engines, which take seconds; the long mode asks all of the contract."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, backend = item.name.partition("[")
        is_short = name in ON_CLUSTERS or backend not in ("kubernetes]", "slurm]", "docker]")
        if item.nodeid.startswith("tests/backends/test_contract.py") and not is_short:
            item.add_marker(pytest.mark.long)
