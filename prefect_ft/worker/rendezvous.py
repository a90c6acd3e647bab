"""Where the ranks of an attempt meet: a port, with a store behind it or free for rank 0 to listen on.

Each attempt gets another port and, where the agent serves, a store of its own.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from prefect_ft.worker.command import program_of, talks_to_store
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.port import ReservedPort
from prefect_ft.worker.store import TORCH_VERSIONS, StoreServer

USES_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""By this variable torch.distributed knows that no rank has to listen."""


class Rendezvous:
    """One worker's. `open` and `close` go with the attempts; ranks are told what `describe` says."""

    def __init__(self, loop: Loop, wanted: Optional[Dict[str, Any]]) -> None:
        """`wanted`: by whom (`auto`, `agent`, `ranks`) and for which command; None: never by this agent."""
        self._loop = loop
        self._port = ReservedPort()
        self._serves = wanted is not None and _serves(wanted)
        self._store: Optional[StoreServer] = None

    def describe(self) -> Dict[str, Any]:
        """Give the port, or None, and whether the agent will listen there if it is told so."""
        return {"port": self._port.number, "store": self._serves and self._port.number is not None}

    def open(self, env: Dict[str, str]) -> None:
        """Serve the store if the ranks are told that it is here, else let rank 0 have the port.

        Raises OSError.
        """
        if env.get(USES_STORE) == "True" and env.get("MASTER_PORT") == str(self._port.number):
            bound = self._port.hand_over()
            if bound is not None:
                self._store = StoreServer(bound, self._loop)
        self._port.give_away()

    def close(self) -> None:
        """Close the store, and keep another port for the next attempt. Idempotent."""
        if self._store is not None:
            self._store.close()
            if self._store.is_foreign:
                self._serves = False
            self._store = None
        self._port.keep()


def _serves(wanted: Dict[str, Any]) -> bool:
    """Say whether an agent is to serve; where it cannot be told whether the ranks know how, not."""
    if wanted["by"] != "auto":
        return bool(wanted["by"] == "agent")
    env = {**os.environ, **wanted["env"]}
    program = program_of(wanted["command"], wanted["cwd"], env)
    return program is not None and talks_to_store(program, env, TORCH_VERSIONS)
