"""The manifest: a list of a checkpoint's files and sizes, for scripts whose format proves nothing itself.

    {"files": [{"path": "model.bin", "size": 4096, "sha256": "9f86d0…"}, …]}

It is `manifest.json` inside a checkpoint that is a directory, or `<name>.manifest.json` beside a
checkpoint of either kind; the one inside is preferred. `path` is relative to the checkpoint's
directory, with `/` and without `..`; where the checkpoint is one file, it is that file's name.
`size` is in bytes. `sha256` (hexadecimal) is optional: `Hashes` compares it once for each state of a checkpoint.
Other keys are ignored, and so are files that are not listed. Write the manifest last, under a
temporary name, and rename it.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Dict, NamedTuple, Optional, Tuple, Union

from prefect_ft.worker.checkpoints.entry import COMPLETE, Entry, Gap, Stat, Verdict, read_at, walk
from prefect_ft.worker.checkpoints.formats import MAX_JSON_BYTES, parsed
from prefect_ft.worker.checkpoints.marks import Mark

INSIDE = "manifest.json"
BESIDE = ".manifest.json"

_BLOCK_BYTES = 1 << 20


class Listed(NamedTuple):
    """One file of a manifest."""

    size: int
    sha256: Optional[str]


def claims(entry: Entry) -> bool:
    """Return whether the entry has a manifest of this format; a truncated one counts."""
    if INSIDE in entry.files:
        inside = parsed(_read(entry))
        return inside is None or (isinstance(inside, dict) and isinstance(inside.get("files"), list))
    return entry.manifest is not None


def check(entry: Entry) -> Verdict:
    """Check that every listed file exists with its listed size."""
    if INSIDE not in entry.files and entry.manifest is None:
        return Verdict(False, f"it has no {INSIDE}")
    listed = _listed(parsed(_read(entry)))
    if isinstance(listed, str):
        return Verdict(False, listed)
    missing = []
    for path, file in listed.items():
        seen = _seen(entry, path)
        if seen is None:
            missing.append(path)
        elif seen.size != file.size:
            return Verdict(False, f"{path} has {seen.size} of {file.size} bytes")
    return (
        Verdict(False, Gap(f"{missing[0]} is in the manifest and missing", missing)) if missing else COMPLETE
    )


class Hashes:
    """Results of hash checks, each made once as long as the checkpoint stays the same."""

    def __init__(self, *, is_local: bool = False) -> None:
        """`is_local`: files that are missing are on other machines."""
        self._is_local = is_local
        self.taken_s = 0.0
        """Seconds that reading has taken so far."""
        self._faults: Dict[str, Tuple[Mark, Optional[str]]] = {}

    def fault(self, path: str, mark: Mark) -> Optional[str]:
        """Return what differs from the manifest of a checkpoint in this state; None: nothing. Raises OSError."""
        if not self.knows(path, mark):
            began = time.monotonic()
            try:
                self._faults[path] = mark, _fault(path, is_local=self._is_local)
            finally:
                self.taken_s += time.monotonic() - began
        return self._faults[path][1]

    def knows(self, path: str, mark: Mark) -> bool:
        """Return whether a checkpoint has been read in this state."""
        return path in self._faults and self._faults[path][0] == mark


def hash_fault(path: str) -> Optional[str]:
    """Read a whole checkpoint and compare it with its manifest's hashes; return what differs, or `None`.

    `None` also where no hash is listed. Takes as long as reading the files takes.
    """
    try:
        return _fault(os.path.abspath(path))
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _fault(path: str, *, is_local: bool = False) -> Optional[str]:
    entry = _entry(path)
    if INSIDE not in entry.files and entry.manifest is None:
        return None
    listed = _listed(parsed(_read(entry)))
    if isinstance(listed, str):
        return listed
    here = [name for name in listed if not is_local or _seen(entry, name) is not None]
    return next((fault for name in here if (fault := _differs(entry, name, listed[name].sha256))), None)


def _differs(entry: Entry, name: str, sha256: Optional[str]) -> Optional[str]:
    if sha256 is None:
        return None
    if _seen(entry, name) is None:
        return f"{name} is in the manifest and missing"
    digest, place = hashlib.sha256(), 0
    with entry.open(name if entry.is_directory else "") as (file, size):
        while place < size:
            block = read_at(file, _BLOCK_BYTES, place)
            if not block:
                break
            digest.update(block)
            place += len(block)
    return (
        None if digest.hexdigest() == sha256.lower() else f"{name} does not have the sha256 of the manifest"
    )


def _entry(path: str) -> Entry:
    is_directory = os.path.isdir(path)
    files = walk(path) if is_directory else {"": Stat.of(os.stat(path))}
    beside = Stat.of(os.stat(path + BESIDE)) if os.path.exists(path + BESIDE) else None
    return Entry(os.path.basename(path), path, 0, is_directory, files, beside)


def _seen(entry: Entry, path: str) -> Optional[Stat]:
    if entry.is_directory:
        return entry.files.get(path)
    return entry.files[""] if path == os.path.basename(entry.name) else None


def _read(entry: Entry) -> bytes:
    """Return the manifest's text; empty if it is too large to be one."""
    inside = entry.files.get(INSIDE)
    state = inside or entry.manifest
    if state is None or state.size > MAX_JSON_BYTES:
        return b""
    path = os.path.join(entry.path, INSIDE) if inside else entry.path + BESIDE
    with entry.place.opened(path, state) as file:
        return read_at(file, state.size, 0)


def _listed(manifest: object) -> Union[Dict[str, Listed], str]:
    """Return the files of a manifest by their paths, or what is wrong with it."""
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, list) or not files:
        return "the manifest is cut off or lists no files"
    listed: Dict[str, Listed] = {}
    for number, file in enumerate(files):
        path, size = (file.get("path"), file.get("size")) if isinstance(file, dict) else (None, None)
        if not isinstance(path, str) or type(size) is not int or size < 0:
            return f"entry {number} of the manifest needs a path (text) and a size (bytes)"
        sha256 = file.get("sha256")
        if sha256 is not None and not isinstance(sha256, str):
            return f"the sha256 of {path} in the manifest is no text"
        listed[path] = Listed(size, sha256)
    return listed
