"""The agent's first and last steps in a pod, where nothing that it needs is there before, and nothing stays.

It makes the agent's directory, and says on standard output, which is kept for as long as the pod is, what an
agent has left behind that leaves by itself.
"""

from __future__ import annotations

import json
import os

from prefect_ft.worker import agent

LEFT_MARK = "prefect-ft left "
"""Begins the line with the content of the file that an agent leaves."""


TOLD = "PREFECT_FT_AGENT"
"""The variable with the agent's configuration. No rank inherits it, and no other user can read it in /proc.

A file would have to be readable for all: those of a secret belong to root, whichever user an image has.
"""


def main() -> int:
    """Be the agent."""
    config = json.loads(os.environ.pop(TOLD))
    directory = config["directory"]
    os.makedirs(directory, mode=0o700)
    agent.serve(config)
    try:
        with open(os.path.join(directory, agent.LEFT), encoding="utf-8") as file:
            print(LEFT_MARK + file.read().strip(), flush=True)  # noqa: T201  (it is what is read of a pod)
    except FileNotFoundError:
        pass  # it was told to leave
    return 0
