"""Many agents in one process: each the real one with a socket of its own; none may have ranks.

python -m benchmarks.scale_agents HOME …    # prints `up` once all of them listen
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
from pathlib import Path

from prefect_ft.backends.home import CONFIG
from prefect_ft.worker.agent import Agent

TIMERS_S = 1.0
"""How often it is looked whether an agent's timer is due."""


def main(homes: list[Path]) -> None:
    """Serve them until killed."""
    selector = selectors.DefaultSelector()
    loops = []
    for home in homes:
        config = json.loads((home / CONFIG).read_text())
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(config["socket"])
        listener.listen()
        loops.append(Agent(config, listener)._loop)
        selector.register(loops[-1]._selector.fileno(), selectors.EVENT_READ, loops[-1])
    print("up", flush=True)
    while True:
        ready = [key.data for key, _ in selector.select(TIMERS_S)]
        for loop in ready or [each for each in loops if each._until_next_timer() <= 0]:
            loop.step()


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
