"""These tests start agents and ranks; none of them may leave a process behind."""

from agent_fixtures import agent, client, make_worker, nobody_left, start_agent
from attempts import make
from frozen import frozen_files
from hanging import make_hanging, stop, workers_of_phase

__all__ = [
    "agent",
    "client",
    "frozen_files",
    "make",
    "make_hanging",
    "make_worker",
    "nobody_left",
    "start_agent",
    "stop",
    "workers_of_phase",
]
