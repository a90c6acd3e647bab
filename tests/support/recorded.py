"""Samples of real ranks, kept: PREFECT_FT_RECORD_TRACES=FILE has the tests with hanging or quiet ranks write theirs.

A line is a trace: its name, the limits, the worker of each rank, whether ranks hang in it, and what the agents told
of the first attempt. `tests/decide/traces.jsonl.zst` is such a file, packed by `python tests/support/recorded.py FILE`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard
from heard import heard

from prefect_ft.decide.hang import GangWatch, Hang, Limits, Pace
from prefect_ft.supervisor.events import Sampled
from prefect_ft.supervisor.hangs import Hangs, sample_of

TRACES = Path(__file__).parents[1] / "decide" / "traces.jsonl.zst"
_TOLD = ("watched_s", "devices", "past", "ranks")


@contextmanager
def recording(name: str, hangs: Hangs, limits: Limits) -> Iterator[None]:
    """Write a trace when left; nothing where nobody wants it."""
    path = os.environ.get("PREFECT_FT_RECORD_TRACES")
    if not path:
        yield
        return
    samples: list[Any] = []
    hangs.hear = _listening(hangs.hear, samples)  # type: ignore[method-assign]
    yield
    ranks = {rank: worker for worker, told in samples for rank in told["ranks"]}
    trace = {"name": name, "limits": asdict(limits), "ranks": ranks, "samples": samples}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(trace, separators=(",", ":")) + "\n")


def _listening(hear: Callable[[int, Any], None], samples: list[Any]) -> Callable[[int, Any], None]:
    def listen(worker: int, event: Any) -> None:
        if isinstance(event, Sampled) and event.token[2] == 1:
            told = event.write()
            samples.append((worker, {name: told[name] for name in _TOLD}))
        hear(worker, event)

    return listen


def traces() -> dict[str, dict[str, Any]]:
    """Return all that is kept, by name."""
    lines = zstandard.decompress(TRACES.read_bytes(), max_output_size=1 << 30).splitlines()
    return {trace["name"]: trace for trace in map(json.loads, lines)}


def verdict_of(trace: dict[str, Any]) -> Hang | None:
    """Play a trace until somebody is said to hang."""
    limits = Limits(
        **{name: tuple(value) if name == "logs" else value for name, value in trace["limits"].items()}
    )
    watch = GangWatch({int(rank): worker for rank, worker in trace["ranks"].items()}, limits, Pace())
    for worker, told in trace["samples"]:
        if watch.take(worker, sample_of(heard("sample", **told))) and (found := watch.verdict()):
            return found
    return None


if __name__ == "__main__":
    TRACES.write_bytes(zstandard.compress(Path(sys.argv[1]).read_bytes(), 19))
