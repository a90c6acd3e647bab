"""Prefect's temporary server, where no API is configured: it ends with the process that started it, and not before.

Prefect starts it as a plain child: Ctrl-C ends it before its owner has ended the run, and it outlives an owner that
is killed.
"""

from __future__ import annotations

from prefect.settings import get_current_settings


def own_server() -> None:
    """Make the temporary server that this process may start end with it.

    Idempotent. A server that already runs stays as it is.
    """
    if get_current_settings().api.url is not None:
        return
    from prefect_ft.prefect_edge.embedded.owned import OwnedServer  # noqa: PLC0415  (loads the server: costs seconds)

    OwnedServer()  # Prefect keeps one for each process, and this is the first use
