"""Finding checkpoints and proving them complete, without loading weights or unpickling anything.

`Finder.scan` lists the verified checkpoints of a directory, `Finder.why_not` says what is wrong with
the others, `choose` takes the one to resume from. `LAYOUTS` is the registry of what can be verified.
Time is an argument; nothing here keeps a clock, starts a thread or writes.
"""

from __future__ import annotations

from prefect_ft.worker.checkpoints.finder import ALL, CUT, NOTHING, Checkpoint, Finder, choose
from prefect_ft.worker.checkpoints.layouts import LAYOUTS
from prefect_ft.worker.checkpoints.manifest import hash_fault
from prefect_ft.worker.checkpoints.marks import Known, Mark, known_by_path
from prefect_ft.worker.checkpoints.proof import Moment

__all__ = [
    "ALL",
    "CUT",
    "LAYOUTS",
    "NOTHING",
    "Checkpoint",
    "Finder",
    "Known",
    "Mark",
    "Moment",
    "choose",
    "hash_fault",
    "known_by_path",
]
