"""Where an agent's reports go: to the attached peer. Without one they are dropped: a peer that attaches asks."""

from __future__ import annotations

from typing import Any, Optional

from prefect_ft.worker.peer import Peer
from prefect_ft.worker.protocol import NO_TOKEN, Token


class Reporter:
    """`peer` is the attached one; `token` is that of the last start, and goes with every report."""

    def __init__(self) -> None:
        self.peer: Optional[Peer] = None
        self.token: Token = NO_TOKEN

    def send(self, event: str, **fields: Any) -> None:
        """Report to the attached peer, if there is one."""
        if self.peer is not None:
            self.peer.send({"ev": event, "token": self.token, **fields})

    @property
    def has_room(self) -> bool:
        """Whether a peer is attached and keeps up; otherwise, less urgent reports wait."""
        return self.peer is not None and not self.peer.congested
