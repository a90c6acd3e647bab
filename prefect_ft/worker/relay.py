"""Relays between the agent's socket and standard input and output: reaches an agent in a container elsewhere.

Run by its path, in the container, by any client that may start processes there. With `wait` nothing is relayed:
exit code 0 says that the agent listens.
"""

import os
import select
import socket
import sys
import time
from typing import List, Optional

RETRY_S = 0.005
_PIECE = 1 << 16


def main(words: List[str]) -> int:
    """Relay until one side ends; `words` are the socket's path, how long to wait for it, and perhaps `wait`."""
    agent = _connected(words[0], time.monotonic() + float(words[1]))
    if agent is None:
        return 1
    if words[2:] != ["wait"]:
        _relay(agent)
    return 0


def _connected(path: str, deadline: float) -> Optional[socket.socket]:
    while True:
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            agent.connect(path)
            return agent
        except OSError:
            agent.close()
            if time.monotonic() > deadline:
                return None
            time.sleep(RETRY_S)


def _relay(agent: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([0, agent.fileno()], [], [])
        if 0 in ready:
            data = os.read(0, _PIECE)
            if not data:
                return
            agent.sendall(data)
        if agent.fileno() in ready:
            data = agent.recv(_PIECE)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
