"""Hooks that log the state of the in-process restarter, in the form that NVRx's launcher and its log parsers read."""

from __future__ import annotations

import logging
from typing import Optional

from prefect_ft.compat.nvrx.abort import Abort
from prefect_ft.compat.nvrx.completion import Completion
from prefect_ft.compat.nvrx.initialize import Initialize
from prefect_ft.compat.nvrx.state import FrozenState
from prefect_ft.compat.nvrx.terminate import Terminate


class NestedRestarterLogger:
    """Where they log: `restarter_logger`, of the name `InprocessRestarter`."""

    def __init__(self) -> None:
        self.restarter_logger = logging.getLogger("InprocessRestarter")

    def log_for_restarter(self, text: str) -> None:
        """Log a line that the launcher reads."""
        self.restarter_logger.info(text)


class NestedRestarterCallback:
    """Log a state, and a stage of it, on one rank."""

    def __init__(
        self,
        restarter_state: str,
        restarter_stage: Optional[str] = None,
        logger: Optional[NestedRestarterLogger] = None,
        special_rank: int = 0,
    ) -> None:
        self.restarter_state, self.restarter_stage = restarter_state, restarter_stage
        self.logger, self.special_rank = logger or NestedRestarterLogger(), special_rank

    def __call__(self, state: FrozenState) -> FrozenState:
        """Log it where this is that rank."""
        if state.initial_rank == self.special_rank:
            stage = "" if self.restarter_stage is None else f" stage={self.restarter_stage}"
            text = f"[NestedRestarter] name=[InProcess] state={self.restarter_state}{stage}"
            self.logger.log_for_restarter(text)
        return state


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """At first `initialize`, later that a restart has been handled."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("initialize", special_rank=special_rank)

    def __call__(self, state: FrozenState) -> FrozenState:
        """Log it."""
        state = super().__call__(state)
        self.restarter_state, self.restarter_stage = "handling", "completed"
        return state


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """A restart begins."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("handling", "starting", special_rank=special_rank)


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """The function has been completed."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("finalized", special_rank=special_rank)


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """There is no further restart."""

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__("aborted", special_rank=special_rank)
