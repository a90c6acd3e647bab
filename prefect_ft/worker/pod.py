"""The agent's first and last steps in a pod, where nothing that it needs is there before, and nothing stays.

It makes the agent's directory, and says on standard output, which is kept for as long as the pod is, what an
agent has left behind that leaves by itself.
"""

from __future__ import annotations

import json
import os
from typing import List

from prefect_ft.worker import agent

LEFT_MARK = "prefect-ft left "
"""Begins the line with the content of the file that an agent leaves."""


def main(argv: List[str]) -> int:
    """Be the agent; `argv[0]` is the path of its configuration, wherever that is."""
    with open(argv[0], encoding="utf-8") as file:
        directory = json.load(file)["directory"]
    os.makedirs(directory, mode=0o700)
    code = agent.main(argv)
    try:
        with open(os.path.join(directory, agent.LEFT), encoding="utf-8") as file:
            print(LEFT_MARK + file.read().strip(), flush=True)  # noqa: T201  (it is what is read of a pod)
    except FileNotFoundError:
        pass  # it was told to leave
    return code
