"""These tests start agents and ranks; none of them may leave a process behind."""

from agent_fixtures import agent, client, make_worker, nobody_left, start_agent

__all__ = ["agent", "client", "make_worker", "nobody_left", "start_agent"]
