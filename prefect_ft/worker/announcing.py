"""Reports what scans for checkpoints find: only what changed since the last report."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple

from prefect_ft.worker.checkpoint_watch import Answer
from prefect_ft.worker.checkpoints import Checkpoint


class Announcements:
    """What whoever listens takes for verified, as far as is known here."""

    def __init__(self) -> None:
        self._announced: List[Dict[str, Any]] = []
        self._has_told_unrecognised = False

    def forget(self) -> None:
        """Tell everything again: somebody else listens now."""
        self._announced = []

    def know(self, verified: Iterable[Mapping[str, Any]]) -> None:
        """Take note of what the listener knows to be verified: changes are reported."""
        known = {item["step"] for item in self._announced}
        self._announced += [dict(item) for item in verified if item["step"] not in known]

    def of(self, answer: Answer) -> Iterator[Tuple[str, Dict[str, Any]]]:
        """Yield the events that an answer results in: what is verified now and was not, and what is no longer.

        Also, once, what looks like checkpoints where nothing is one, if there are two.
        """
        found = [_described(item) for item in answer.found]
        before = {item["step"]: item for item in self._announced}
        new = [item for item in found if before.get(item["step"]) != item]
        gone = sorted(before.keys() - {item["step"] for item in found})
        self._announced = found
        if new or gone:
            yield "checkpoints", {"new": new, "gone": gone, "last": found[-1]["step"] if found else None}
        if len(answer.unrecognised) > 1 and not self._has_told_unrecognised:
            self._has_told_unrecognised = True
            yield "unrecognised", {"names": dict(answer.unrecognised)}


def _described(item: Checkpoint) -> Dict[str, Any]:
    """Return a checkpoint as it stands in events."""
    known = item.known
    part = {} if item.part is None else {"needs": list(item.part.needs), "has": list(item.part.has)}
    return {"step": item.step, "path": item.path, "counted": known.counted, **known.mark._asdict(), **part}
