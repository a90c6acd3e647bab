"""The store in a process of its own, where no agent hosts it: it outlives the rank that started it.

It ends when it has no rank left to serve, so nothing has to stop it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from prefect_ft.worker.coordination import BACKLOG, CONNECTIONS, KEY_VARIABLE, Coordination, size_of, tune
from prefect_ft.worker.lobby import max_strangers
from prefect_ft.worker.loop import Loop

NO_RANK_CAME_S = 600.0
"""How long a store without any rank lives."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from prefect_ft.inprocess.server import main
main(*map(int, sys.argv[2:]))
"""


def listener(host: str, port: int, heartbeat_s: float) -> socket.socket:
    """Bind the port; raises OSError where it is not free. Accepted connections inherit its options."""
    listening = socket.create_server((host, port), backlog=BACKLOG)
    tune(listening, heartbeat_s)
    return listening


def start(listening: socket.socket, call: int) -> "subprocess.Popen[bytes]":
    """Start the store of a call behind a listening socket, which is closed here.

    Connections wait until it is up.
    """
    with listening:
        number = listening.fileno()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, _ROOT, str(number), str(call)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(number,),
            start_new_session=True,  # Ctrl-C ends the ranks, and so the store
        )


def main(descriptor: int, call: int) -> None:
    """Serve until the last rank has gone; the listener's descriptor is inherited."""
    loop = Loop()
    with socket.socket(fileno=descriptor) as listening:
        coordination = Coordination(
            listening,
            os.environ.get(KEY_VARIABLE, ""),
            loop,
            first_call=call,
            max_strangers=max_strangers(CONNECTIONS * size_of(os.environ)),
        )
        loop.after("first-rank", NO_RANK_CAME_S, coordination.stop_listening)
        has_come = False
        while coordination.is_used or (loop.is_set("first-rank") and not has_come):
            loop.step()
            has_come = has_come or coordination.is_used
            if coordination.has_ended_one:  # the next call of the wrapper wants the port
                coordination.stop_listening()
