"""Reports what scans for checkpoints find: only what changed since the last report."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple

from prefect_ft.worker.checkpoint_watch import Answer
from prefect_ft.worker.checkpoints import Checkpoint


class Announcements:
    """The checkpoints that the attached orchestrator knows to be verified."""

    def __init__(self) -> None:
        self._announced: List[Dict[str, Any]] = []
        self._has_reported_unrecognised = False

    def forget(self) -> None:
        """Report everything again: another orchestrator is attached."""
        self._announced = []

    def know(self, verified: Iterable[Mapping[str, Any]]) -> None:
        """Note what the orchestrator knows to be verified: only changes are reported."""
        known = {item["step"] for item in self._announced}
        self._announced += [dict(item) for item in verified if item["step"] not in known]

    def of(self, answer: Answer) -> Iterator[Tuple[str, Dict[str, Any]]]:
        """Yield the events for an answer: checkpoints that are newly verified, and those no longer verified.

        Also, once, the unrecognised names that look like checkpoints, if there are at least two.
        """
        found = [_described(item) for item in answer.found]
        before = {item["step"]: item for item in self._announced}
        new = [item for item in found if before.get(item["step"]) != item]
        gone = sorted(before.keys() - {item["step"] for item in found})
        self._announced = found
        if new or gone:
            yield "checkpoints", {"new": new, "gone": gone, "last": found[-1]["step"] if found else None}
        if len(answer.unrecognised) > 1 and not self._has_reported_unrecognised:
            self._has_reported_unrecognised = True
            yield "unrecognised", {"names": dict(answer.unrecognised)}


def _described(item: Checkpoint) -> Dict[str, Any]:
    """Return a checkpoint as events contain it."""
    known = item.known
    part = {} if item.part is None else {"needs": list(item.part.needs), "has": list(item.part.has)}
    return {"step": item.step, "path": item.path, "counted": known.counted, **known.mark._asdict(), **part}
