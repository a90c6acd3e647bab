"""Earlier releases, as tests/releases/record.py recorded them: their package, their runs, their frames."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import preloaded

from prefect_ft.worker.frames import FrameReader

RECORDED = Path(__file__).parents[1] / "releases"
RELEASES = sorted(path.name for path in RECORDED.iterdir() if (path / "release.zip").is_file())
STORIES = ("completed", "several-attempts", "failed", "cancelled", "killed", "left", "proposed")
ROOT = Path(__file__).parents[2]
"""Where this version's package lies."""

_BASE, _RUNTIME, _PYTHON = "/srv/train", "/run/prefect-ft", "/usr/bin/python3"


@dataclass(frozen=True)
class Version:
    """A package of prefect_ft, this one or an earlier one, of which `path` goes on PYTHONPATH."""

    path: Path

    def command(self, *words: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
        """Start its `prefect-ft`; what it prints and its errors come in one stream."""
        is_this = self.path == ROOT
        path = {} if is_this else {"PYTHONPATH": str(self.path)}
        return (preloaded.started if is_this else subprocess.Popen)(
            [sys.executable, "-m", "prefect_ft.cli", *words],
            env={**os.environ, **path, "COLUMNS": "1000", **env},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def done(self, *words: str, cwd: Path) -> tuple[int, str]:
        """Run its `prefect-ft` to the end; return the exit code and what it said."""
        process = self.command(*words, cwd=cwd)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said


def this() -> Version:
    return Version(ROOT)


def unpacked(name: str, directory: Path) -> Version:
    """Unpack a release's package."""
    with zipfile.ZipFile(RECORDED / name / "release.zip") as archive:
        archive.extractall(directory)
    return Version(directory)


def laid_out(name: str, story: str, place: Path) -> Path:
    """Put a recorded run where it might have been made, at `place`/STORY; return its model directory.

    Its run-time directory lies where PREFECT_FT_RUNTIME_DIR says.
    """
    runtime = Path(os.environ["PREFECT_FT_RUNTIME_DIR"])
    shutil.copytree(RECORDED / name / "recorded" / story, place / story)
    shutil.copy(RECORDED / name / "train.py", place / story)
    names = {_BASE: str(place), _RUNTIME: str(runtime), _PYTHON: sys.executable}
    for path in (place / story).rglob("*"):
        if path.suffix in (".json", ".jsonl", ".yaml"):
            text = path.read_text()
            for recorded, here in names.items():
                text = text.replace(recorded, here)
            path.write_text(text)
    if (place / story / "runtime").exists():
        shutil.copytree(place / story / "runtime", runtime, dirs_exist_ok=True)
        shutil.rmtree(place / story / "runtime")
    model = place / story / "model"
    _restore_times(model)
    _release(model)
    return model


def _restore_times(model: Path) -> None:
    for line in lines_of(model):
        if line["type"] == "checkpoint" and Path(line["path"]).exists():
            os.utime(line["path"], (line["mtime"], line["mtime"]))


def _release(model: Path) -> None:
    """Have the lease's holder be known as dead, as it would be on its own machine."""
    for path in model.glob(".prefect-ft/*/lease.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "released": True}))


def lines_of(model: Path) -> list[dict[str, Any]]:
    """All lines of all journals of a model directory."""
    texts = [path.read_text() for path in sorted(model.glob("*_restartable*/journal.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def frames_of(name: str, number: int, direction: str) -> Iterator[dict[str, Any]]:
    """What was said in one direction: `orders` or `events`."""
    return FrameReader().feed((RECORDED / name / "frames" / f"{number}.{direction}").read_bytes())
