"""The agent's first and last steps in a pod, whose file system is empty before and gone afterwards.

It makes the agent's directory, and prints the file that an agent that leaves by itself has written: standard
output is kept as long as the pod.
"""

from __future__ import annotations

import json
import os

from prefect_ft.worker import agent

LEFT_MARK = "prefect-ft left "
"""Marks the line with the content of that file."""


CONFIG_VARIABLE = "PREFECT_FT_AGENT"
"""The variable with the agent's configuration. No rank inherits it, and no other user can read it in /proc.

A file would have to be world-readable: files of a secret belong to root, whichever user an image has.
"""


def main() -> int:
    """Run the agent."""
    config = json.loads(os.environ.pop(CONFIG_VARIABLE))
    directory = config["directory"]
    os.makedirs(directory, mode=0o700)
    agent.serve(config)
    try:
        with open(os.path.join(directory, agent.LEFT), encoding="utf-8") as file:
            print(LEFT_MARK + file.read().strip(), flush=True)  # noqa: T201  (it is what is read of a pod)
    except FileNotFoundError:
        pass  # it was ordered to leave
    return 0
