"""What all agents of a phase are ordered at once, and what their answers come to. Pure: orders out.

Which workers there are, and the connections to them, are the roster's.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prefect_ft.supervisor.event_parts import Diagnosed
from prefect_ft.supervisor.events import Attached, Diagnosis, Stopped
from prefect_ft.supervisor.roster import Roster, WorkerGoneError
from prefect_ft.worker.protocol import Token

MOST_PEERS = 8
"""How many other workers each worker watches for partitions."""


class Halt(NamedTuple):
    """What all agents said when an attempt had ended.

    `deaths` are when writers died, in seconds since the epoch. `passed_over` is what worker 0's agent could not verify
    when it looked for the last time; None: it has not. `is_alone`: no other agent's ranks can have written since.
    """

    deaths: list[float]
    passed_over: Mapping[str, str] | None
    is_alone: bool


class Gang:
    """The workers of a phase as one."""

    def __init__(self, roster: Roster, key: str) -> None:
        """`key` is the run's."""
        self._roster = roster
        self.in_process_key = hmac.digest(key.encode(), b"in-process", "sha256").hex()
        """Shown by ranks to each other's store; who knows it does not know the run's key."""

    @property
    def _meeting(self) -> Attached | Stopped:
        meeting = self._roster.members[0].meeting
        assert meeting is not None
        return meeting

    @property
    def master(self) -> tuple[str, int]:
        """Host and port for the next attempt's rendezvous, which worker 0's agent keeps free for it.

        Raises WorkerGoneError.
        """
        self._roster.require(0)
        if self._meeting.port is None:
            raise WorkerGoneError(0, "it has no free port for the rendezvous")
        return self._roster.host(0), self._meeting.port

    @property
    def has_store(self) -> bool:
        """Whether worker 0's agent itself serves the next attempt's rendezvous, if its ranks use that."""
        return self._meeting.store

    @property
    def in_process_port(self) -> int | None:
        """The port at which worker 0's agent coordinates restarts within the processes; None: it does not."""
        return self._meeting.in_process_port

    @property
    def diagnosed(self) -> dict[int, Mapping[int, Diagnosed]]:
        """What agents have answered to `diagnose`, by worker and rank."""
        return {number: each.ranks for number, each in self._roster.answers(Diagnosis).items()}

    def choose(self, token: Token, criteria: Mapping[int, Mapping[str, Any]]) -> None:
        """Have the agents of these workers choose the checkpoint to resume from, among what is there now."""
        for number in criteria:
            self._roster.require(number)
        self._roster.knows_checkpoints = True
        for number, fields in criteria.items():
            self._roster.ask(number, "choose", {"token": token, **fields})

    def start(self, orders: Mapping[int, Mapping[str, Any]], token: Token) -> None:
        """Start an attempt's ranks; raises WorkerGoneError."""
        peers = self._peers(orders)
        for number in orders:
            self._roster.require(number)
        for number, fields in orders.items():
            self._roster.ask(number, "start", {"token": token, "peers": peers[number], **fields})

    def _peers(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """Return for each worker the hosts of those that follow it, in a ring."""
        ring = sorted(numbers)
        hosts = [self._roster.host(number) for number in ring]
        following = [
            (hosts[at + 1 : at + 1 + MOST_PEERS] + hosts[:MOST_PEERS])[:MOST_PEERS] for at in range(len(ring))
        ]
        return {number: sorted({*following[at]} - {hosts[at]}) for at, number in enumerate(ring)}

    def ask_checkpoint(self, token: Token, signal: int | None) -> None:
        """Have all ranks asked for a checkpoint; `signal` says so besides."""
        for number in self._roster.reached:
            self._roster.ask(number, "checkpoint", {"token": token, "signal": signal})

    def sample_every(self, token: Token, period_s: float) -> None:
        """Have all ranks sampled that often, where agents take samples."""
        for number in self.sampling:
            self._roster.ask(number, "watch", {"token": token, "period_s": period_s})

    def diagnose(self, token: Token, timeout_s: float) -> None:
        """Have found out where the ranks are."""
        for number in self.sampling:
            self._roster.ask(number, "diagnose", {"token": token, "timeout_s": timeout_s})

    @property
    def sampling(self) -> list[int]:
        """The workers whose agents take samples: those of earlier versions do not, and know no such orders."""
        return [number for number in self._roster.reached if self._roster.members[number].is_sampling]

    def stop(self, token: Token, grace_s: float, *, complete: bool) -> None:
        """End every process of the attempt in every worker that answers. `complete`: it came to its own good end."""
        fields = {"token": token, "grace_s": grace_s, "complete": complete}
        for number in self._roster.reached:
            member = self._roster.members[number]
            if not member.is_ending:
                self._roster.ask(number, "stop", fields)
            elif member.answer(Stopped) is None:
                member.expect("stop", fields)

    def halt(self) -> Halt:
        """Return what all agents said to `stop`, and take note of those that cannot be used any more."""
        stopped = self._roster.answers(Stopped)
        for number, each in stopped.items():
            if each.stuck:
                self._roster.mark_unusable(number, f"processes {list(each.stuck)} hang in the kernel")
        return Halt(
            sorted({death for each in stopped.values() for death in each.deaths}),
            stopped[0].passed_over if 0 in stopped else None,
            [*self._roster.members] == [*stopped] == [0],
        )
