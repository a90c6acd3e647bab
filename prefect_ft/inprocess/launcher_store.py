"""The rendezvous store that torchrun keeps for its ranks: rank 0 publishes there which port it has taken.

Without it the port must be one that all ranks know, and the application may need that one itself.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

_KEY = "prefect_ft/inprocess/%s/%d"
"""By torchrun's round and the number of the call."""


def is_there() -> bool:
    """Return whether a launcher keeps a store for these ranks, and they have a torch that can use it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "torch" in sys.modules


class LauncherStore:
    """The store, for one call. Only where `is_there()`."""

    def __init__(self, call: int, timeout_s: float) -> None:
        """Raises RuntimeError where the store is not reached, or has no port, within `timeout_s`."""
        from torch.distributed import TCPStore  # noqa: PLC0415  (only where a rank has imported torch)

        self._key = _KEY % (os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), call)
        self._store: Any = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )

    def tell(self, port: int) -> None:
        """Publish the port on which rank 0 listens."""
        self._store.set(self._key, str(port))

    def port(self) -> int:
        """Wait for the port that rank 0 publishes, and return it."""
        return int(self._store.get(self._key))
