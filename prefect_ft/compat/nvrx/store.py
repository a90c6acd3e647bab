"""Torch's stores with what rank assignments need; the wrapper itself uses its own store, and none of these."""

from __future__ import annotations

import datetime
import os
from typing import Any, Optional, Sequence

__all__ = ["FileStore", "StoreMixin", "TCPStore"]  # noqa: F822  (made on first use, below)

_DEFAULT = datetime.timedelta(seconds=300)


class StoreMixin:
    """What torch's stores lack: a barrier of some ranks."""

    def barrier(
        self: Any,
        ranks: Sequence[int],
        group_name: str,
        rendezvous_count: int,
        timeout: datetime.timedelta = _DEFAULT,
    ) -> None:
        """Wait until `rendezvous_count` ranks have come; `ranks` are those that this call brings."""
        arrived = self.add(f"{group_name}/arrived", len(ranks))
        round_number, missing = divmod(arrived, rendezvous_count)
        if missing:
            self.wait([f"{group_name}/open/{round_number}"], timeout)
        else:
            self.set(f"{group_name}/open/{round_number - 1}", "1")


def __getattr__(name: str) -> Any:
    """Make the classes of torch's stores on first use: importing torch takes seconds."""
    if name not in ("FileStore", "TCPStore"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch.distributed  # noqa: PLC0415  (as above)

    class TCPStore(StoreMixin, torch.distributed.TCPStore):  # type: ignore[misc]  # torch is not typed here
        """torch's, by default where the environment says; rank 0 hosts it."""

        def __init__(
            self,
            host_name: Optional[str] = None,
            port: Optional[int] = None,
            world_size: Optional[int] = None,
            timeout: datetime.timedelta = _DEFAULT,
            **further: Any,
        ) -> None:
            super().__init__(
                host_name or os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]) if port is None else port,
                int(os.environ["WORLD_SIZE"]) if world_size is None else world_size,
                int(os.environ["RANK"]) == 0,
                timeout=timeout,
                **further,
            )

    class FileStore(StoreMixin, torch.distributed.FileStore):  # type: ignore[misc]  # as above
        """torch's, in a file."""

    globals().update(TCPStore=TCPStore, FileStore=FileStore)
    return globals()[name]
