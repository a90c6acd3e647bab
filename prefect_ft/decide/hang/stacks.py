"""Stacks of the ranks of a hanging gang, grouped: which wait where, and which is not where the others are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_ft.decide.hang.facts import who

_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)$')
_THREAD = re.compile(r"^(?P<current>Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):$")

COLLECTIVES = frozenset(
    (
        "all_reduce", "allreduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
        "all_to_all_single", "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "gather",
        "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "recv", "isend", "irecv",
        "batch_isend_irecv", "synchronize", "init_process_group", "rendezvous",
    )
)  # fmt: skip
"""Functions in which a rank waits for others, by the names that torch.distributed gives them."""

WAITS = frozenset(("wait", "acquire", "select", "poll", "join", "result", "get", "_wait_for_tstate_lock"))
"""Functions that say less than their callers."""


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where a rank's main thread is: function, file and line of each frame, innermost first.

    `note` says where a rank without such a stack is, or its state in /proc.
    """

    frames: tuple[tuple[str, str, int], ...] = ()
    note: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other ranks."""
        return any(name in COLLECTIVES for name, _, _ in self.frames)

    @property
    def place(self) -> str:
        """Where it is in a few words; ranks at the same place have the same text."""
        waiting = next((name for name, _, _ in self.frames if name in COLLECTIVES), None)
        if waiting is not None:
            return f"in {waiting}"
        telling = [frame for frame in self.frames if frame[0] not in WAITS] or list(self.frames)
        if not telling:
            return self.note or "at an unknown place"
        name, file, line = telling[0]
        return f"in {name} ({file.rpartition('/')[2]}:{line})"


def parsed(dump: str, note: str = "") -> RankStack:
    """Read what faulthandler wrote: the thread that took the signal, which is the main one, else the last."""
    threads: list[tuple[bool, list[tuple[str, str, int]]]] = []
    for line in dump.splitlines():
        if thread := _THREAD.match(line):
            threads.append((thread["current"] != "T", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append((frame["name"], frame["file"], int(frame["line"])))
    current = next((frames for is_current, frames in threads if is_current), None)
    frames = current if current is not None else (threads[-1][1] if threads else [])
    return RankStack(tuple(frames), note)


def grouped(stacks: Mapping[int, RankStack]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the places with their ranks, the fullest first."""
    places: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        places.setdefault(stack.place, []).append(rank)
    return [(place, tuple(ranks)) for place, ranks in sorted(places.items(), key=lambda each: -len(each[1]))]


def described(stacks: Mapping[int, RankStack]) -> str:
    """Return in one line which ranks are where."""
    return ", ".join(f"{who(ranks)} {place}" for place, ranks in grouped(stacks))


def odd_rank(stacks: Mapping[int, RankStack], among: Sequence[int]) -> int | None:
    """Return the rank that the others wait for: alone outside of a collective, or alone where all others are not."""
    known = {rank: stacks[rank] for rank in among if rank in stacks}
    if len(known) < len(among) or len(known) < 2:
        return None
    working = [rank for rank, stack in known.items() if not stack.is_waiting]
    if len(working) == 1:
        return working[0]
    groups = grouped(known)
    if len(known) > 2 and len(groups) == 2 and len(groups[1][1]) == 1:
        return groups[1][1][0]
    return None
