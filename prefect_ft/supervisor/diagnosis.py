"""Diagnoses of hanging ranks, before they are ended: gathered from agents, grouped, stored in a file.

Bounded in time; agents that do not answer by then are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_ft.decide.hang import Hang, RankStack, described
from prefect_ft.decide.hang.stacks import parsed
from prefect_ft.supervisor.attempt import Attempt
from prefect_ft.supervisor.event_parts import Diagnosed
from prefect_ft.supervisor.room import Room

TIMEOUT_S = 5.0
"""How long a diagnosis may take, with the round trip to the agents."""

_STOPPED = {"T": "stopped", "t": "stopped by a tracer", "Z": "ended but for threads"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`stacks` say where each rank is; `found` is the agents' report on each."""

    stacks: Mapping[int, RankStack]
    found: Mapping[int, Diagnosed]

    @property
    def where(self) -> str | None:
        """Where each rank is, in one line; None: no agent answered."""
        return described(self.stacks) if self.stacks else None


def diagnosis_of(answers: Mapping[int, Mapping[int, Diagnosed]], attempt: Attempt) -> Diagnosis:
    """Return the agents' reports on each rank; `answers` are by worker, and only its own ranks count."""
    found = {
        rank: each
        for worker, ranks in answers.items()
        for rank, each in ranks.items()
        if attempt.has(worker, rank)
    }
    return Diagnosis({rank: _stack(diagnosed) for rank, diagnosed in found.items()}, found)


def _stack(diagnosed: Diagnosed) -> RankStack:
    if not diagnosed.processes:
        return RankStack()
    main = diagnosed.processes[0]
    note = _STOPPED.get(main.state[:1], f"in {main.waits_in or main.name}")
    return parsed(diagnosed.stacks.get(str(main.pid), ""), note)


def write(directory: Path, number: int, hang: Hang, diagnosis: Diagnosis, attempt: Attempt) -> str | None:
    """Store a diagnosis in a file of its own; return its name, None if there is no space."""
    name = f"hang-{number}.txt"
    if Room(directory).why_none() is not None:
        return None
    with suppress(OSError):
        (directory / name).write_text(_text(hang, diagnosis, attempt), encoding="utf-8", errors="replace")
        return name
    return None


def _text(hang: Hang, diagnosis: Diagnosis, attempt: Attempt) -> str:
    parts = [hang.text, diagnosis.where or "no agent said where the ranks are"]
    for rank, diagnosed in sorted(diagnosis.found.items()):
        state = attempt.ranks[rank]
        parts.append(f"\n== rank {rank}, worker {state.worker}: step {state.step}, stage {state.stage}")
        parts += [sign.text for sign in hang.signs if sign.rank == rank]
        for each in diagnosed.processes:
            what = f"{each.state}, {each.threads} threads, waits in {each.waits_in}"
            parts.append(f"-- process {each.pid} {each.name}: {what}")
            parts += [text for text in (each.kernel_stack, diagnosed.stacks.get(str(each.pid))) if text]
    return "\n".join(parts) + "\n"
