"""The server itself: `python -m prefect_ft.prefect_edge.embedded OWNER_PID PORT`."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from functools import partial

GRACE_S = 5.0
"""How long the server may take to store what it has received, as in Prefect."""


def main(owner: int, port: int) -> None:
    """Serve until the owner stops this process, or ends."""
    try:
        pidfd = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    if os.getppid() != owner:  # it has ended as well, and its pid has been reused
        return
    threading.Thread(target=_end_with, args=(pidfd,), daemon=True).start()

    import uvicorn  # noqa: PLC0415  (loading takes seconds, in which the owner may end)
    from prefect.server.api.server import create_app  # noqa: PLC0415

    app = partial(create_app, ephemeral=True, final=True)
    uvicorn.run(app, factory=True, host="127.0.0.1", port=port, log_level="error", lifespan="on")


def _end_with(pidfd: int) -> None:
    select.select([pidfd], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
