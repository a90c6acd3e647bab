"""The files of each version of a file that is overwritten, where others are overwritten with it at each save.

Between two files of a save, the second is still of the save before, and whole. Owns which belong to one save. Reads no
file.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional

from prefect_ft.worker.checkpoints.marks import Mark


class _Set(NamedTuple):
    own: Mark
    beside: Mapping[str, Mark]


class Sets:
    """Each version that counted last and the one before it, by name, with what was beside them then."""

    def __init__(self) -> None:
        self._last: Dict[str, _Set] = {}
        self._before: Dict[str, _Set] = {}

    def note(self, name: str, own: Mark, beside: Mapping[str, Mark]) -> None:
        """Note a version that counts, and what is beside it now."""
        last = self._last.get(name)
        if last is not None and last.own != own:
            self._before[name] = last
        self._last[name] = _Set(own, beside)

    def of(self, name: str) -> Optional[Mapping[str, Mark]]:
        """Return what is beside the version that counted last; None: some of it is of the save before.

        What stays the same for a whole version is not written at each save.
        """
        last, before = self._last.get(name), self._before.get(name)
        if last is None:
            return {}
        if before is not None and any(
            before.beside.get(each) == mark and _is_nearer(mark.mtime, before.own.mtime, last.own.mtime)
            for each, mark in last.beside.items()
        ):
            return None
        return last.beside


def _is_nearer(written: float, before: float, own: float) -> bool:
    """Return whether a file was written after the version before, and nearer to it than to the next one."""
    return 0 <= written - before < own - written
