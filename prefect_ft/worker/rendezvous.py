"""Where the ranks of an attempt meet: a port, with a store behind it or free for rank 0 to listen on.

Each attempt gets another port and, where the agent serves, a store of its own; and a second one where ranks
that restart within their processes coordinate.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional

from prefect_ft.worker import coordination
from prefect_ft.worker.command import program_of, talks_to_store
from prefect_ft.worker.coordination import Coordination, Standing, size_of
from prefect_ft.worker.lobby import max_strangers
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.port import ReservedPort
from prefect_ft.worker.store import TORCH_VERSIONS, StoreServer

USES_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that tells torch.distributed that no rank has to listen."""


class Rendezvous:
    """One worker's. `open` and `close` go with the attempts; ranks get what `describe` returns."""

    def __init__(
        self,
        loop: Loop,
        wanted: Optional[Dict[str, Any]],
        *,
        on_met: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`wanted`: what serves the store (`auto`, `agent`, `ranks`) and for which command; None: never this agent.

        `on_met()` is called when as many clients as there are ranks have come to the agent's store, and
        `on_change()` when `standing` has changed.
        """
        self._loop, self._on_met, self._on_change = loop, on_met, on_change
        self._port = ReservedPort()
        self._serves = wanted is not None and _serves(wanted)
        self._store: Optional[StoreServer] = None
        self._own_port = None if wanted is None else ReservedPort()
        """The port of in-process restarts."""
        self._coordination: Optional[Coordination] = None
        self._last_standing = Standing()

    def describe(self) -> Dict[str, Any]:
        """Return the ports, or None, and whether the agent will listen at the first on request."""
        own = self._own_port
        return {
            "port": self._port.number,
            "store": self._serves and self._port.number is not None,
            "in_process_port": own.number if own is not None else None,
        }

    @property
    def standing(self) -> Standing:
        """Return the ranks whose end does not end the attempt, for the current or last attempt."""
        return self._last_standing if self._coordination is None else self._coordination.standing

    def open(self, env: Dict[str, str]) -> None:
        """Serve the stores that the ranks expect here; else let rank 0 have the port.

        Raises OSError.
        """
        if env.get(USES_STORE) == "True" and env.get("MASTER_PORT") == str(self._port.number):
            bound = self._port.hand_over(env.get("MASTER_ADDR", ""))
            if bound is not None:
                size = size_of(env)
                self._store = StoreServer(
                    bound,
                    self._loop,
                    lambda count: self._on_met() if count == size else None,
                    max_strangers=max_strangers(size),
                )
        self._port.give_away()
        own, self._last_standing = self._own_port, Standing()
        served = env.get(coordination.STORE_VARIABLE)
        if own is not None and served == coordination.served_at(env.get("MASTER_PORT", ""), own.number):
            self._coordinate(own, env)

    def _coordinate(self, port: ReservedPort, env: Dict[str, str]) -> None:
        bound = port.hand_over(env.get("MASTER_ADDR", ""))
        if bound is not None:
            bound.listen(coordination.BACKLOG)
            coordination.tune(bound, coordination.HEARTBEAT_S)
            self._coordination = Coordination(
                bound,
                env.get(coordination.KEY_VARIABLE, ""),
                self._loop,
                on_change=self._on_change,
                max_strangers=max_strangers(coordination.CONNECTIONS * size_of(env)),
            )

    def close(self) -> None:
        """Close the stores, and reserve other ports for the next attempt. Idempotent."""
        if self._store is not None:
            self._store.close()
            if self._store.is_foreign:
                self._serves = False
            self._store = None
        if self._coordination is not None:
            self._last_standing = self._coordination.standing._replace(inside=())
            self._coordination.close()
            self._coordination = None
        self._port.keep()
        if self._own_port is not None:
            self._own_port.keep()


def _serves(wanted: Dict[str, Any]) -> bool:
    """Return whether an agent is to serve; not where it is unknown whether the ranks can use it."""
    if wanted["by"] != "auto":
        return bool(wanted["by"] == "agent")
    unset = wanted.get("unset", ())
    env = {name: value for name, value in {**os.environ, **wanted["env"]}.items() if name not in unset}
    program = program_of(wanted["command"], wanted["cwd"], env)
    return program is not None and talks_to_store(program, env, TORCH_VERSIONS)
