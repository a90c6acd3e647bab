"""Ends an attempt for certain, and reports that once its output and checkpoints have been read."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Optional, Set

from prefect_ft.worker.checkpoint_watch import CheckpointWatch
from prefect_ft.worker.current import Current
from prefect_ft.worker.last_look import LastLook
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.processes import Held

KILL_SLICE_S = 0.5
"""How long the agent handles nothing else while it waits for killed processes to end."""

KILL_PAUSE_S = 0.1
"""How long it handles other events before it waits for them again."""

DEATH_GRAIN_HZ = 100
"""Times of death are rounded up to this grain: ranks that die together count as one death."""


class Termination:
    """Ends the ranks of one attempt after another."""

    def __init__(
        self,
        current: Current,
        loop: Loop,
        checkpoints: Optional[CheckpointWatch],
        *,
        on_killed: Callable[[bool], None],
        on_stopped: Callable[[Dict[str, Any]], None],
    ) -> None:
        """`on_killed(just_now)` is called when nothing of the attempt runs any more; False: nothing ran before.

        `on_stopped(fields)` follows, with the fields of `stopped`, when its output has been handed on and its
        checkpoints have been looked at, or that has timed out.
        """
        self._current, self._loop, self._checkpoints = current, loop, checkpoints
        self._on_killed, self._on_stopped = on_killed, on_stopped
        self._deaths: Set[float] = set()
        """When ranks of this attempt died without completing; seconds since the epoch."""
        self.is_complete = False
        """Whether the attempt is known to have completed in all workers."""
        self._awaited: Set[str] = set()
        """What `on_stopped` waits for: the end of the `output`, the last `look`."""
        self._outliving: Optional[Held] = None
        """A process with grace left that outlives all ranks, and whose end is waited for."""
        self._last_look = LastLook(checkpoints, loop, lambda: self.settle("look")) if checkpoints else None

    def forget(self) -> None:
        """Forget the attempt: another one starts."""
        self._awaited.clear()
        self._deaths.clear()

    @property
    def deaths(self) -> List[float]:
        """When ranks of this attempt died without completing; seconds since the epoch."""
        return sorted(self._deaths)

    @property
    def is_due(self) -> bool:
        """Whether the ranks have had SIGTERM, and SIGKILL is to follow."""
        return self._loop.is_set("kill")

    @property
    def is_idle(self) -> bool:
        """Whether no rank is running, and nothing that has outlived its rank has grace left."""
        return self._current.is_idle and self._outliving is None

    def writer_died(self) -> None:
        """Note that a rank has just died, perhaps while it was writing."""
        death = math.ceil(time.time() * DEATH_GRAIN_HZ) / DEATH_GRAIN_HZ
        self._deaths.add(death)
        if self._checkpoints is not None:
            self._checkpoints.writers_died(death)

    def stop(self, grace_s: float, complete: bool) -> None:
        """End the attempt, after `grace_s` of SIGTERM where that is above 0. Idempotent.

        `complete`: every rank of every worker has ended by itself, so no writer is left.
        """
        self.is_complete = complete
        self._loop.drop("kill")
        if self._current.gang is not None and grace_s > 0 and not self.is_idle:
            self._current.gang.terminate()
            self._loop.after("kill", grace_s, self._kill)
        else:
            self._kill()

    def hurry(self) -> None:
        """End the grace period once nothing is left of what got SIGTERM: all ranks have ended. Idempotent.

        A shell ends before the trainer that it has started, which may be saving.
        """
        if self._outliving is not None:
            return
        gang = self._current.gang
        self._outliving = gang.one_terminating() if gang is not None else None
        if self._outliving is None:
            self._kill()
        else:
            self._loop.watch(self._outliving, lambda _: self._outliving_ended())

    def _outliving_ended(self) -> None:
        self._let_go()
        self.hurry()

    def _let_go(self) -> None:
        """Stop waiting for the end of what outlives the ranks. Idempotent."""
        if self._outliving is not None:
            self._loop.forget(self._outliving)
            self._outliving.close()
            self._outliving = None

    def _kill(self) -> None:
        self._loop.drop("kill")
        self._let_go()
        living = None if self._current.is_over else self._current.gang
        if living is not None and not living.end(KILL_SLICE_S):
            self._loop.after("kill", KILL_PAUSE_S, self._kill)
            return
        self._awaited = {"output"}
        if self._last_look is not None:
            self._awaited.add("look")
            self._last_look.begin(complete=self.is_complete)
        self._on_killed(living is not None)

    def on_looked(self, number: int, skipped: Dict[str, str]) -> None:
        """Note that the answer to this question has been reported, and what could not be verified."""
        if self._last_look is not None:
            self._last_look.on_looked(number, skipped)

    def settle(self, what: str) -> None:
        """Remove one thing that `on_stopped` waits for."""
        if what not in self._awaited:
            return
        self._awaited.discard(what)
        if not self._awaited:
            stuck = self._current.gang.stuck if self._current.gang is not None else []
            skipped = self._last_look.skipped if self._last_look is not None else None
            self._on_stopped({"stuck": stuck, "deaths": self.deaths, "passed_over": skipped})

    def reader_gone(self) -> None:
        """Stop waiting: no orchestrator is attached. A stop that was ordered is still carried out."""
        self._awaited.clear()

    def close(self) -> None:
        """End the ranks and whatever they started, and wait for it. Idempotent."""
        while self._current.gang is not None and not self._current.gang.end(KILL_SLICE_S):
            pass
