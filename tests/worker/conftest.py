"""These tests start agents and ranks; none of them may leave a process behind.

PREFECT_FT_WORKER_PYTHON names an interpreter for agents and ranks in the place of the tests' own: an older one.
"""

import os
import sys

sys.executable = os.environ.get(
    "PREFECT_FT_WORKER_PYTHON", sys.executable
)  # before what starts them reads it

from agent_fixtures import agent, client, make_worker, nobody_left, start_agent  # noqa: E402

__all__ = ["agent", "client", "make_worker", "nobody_left", "start_agent"]
