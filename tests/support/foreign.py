"""Where frameworks and programs are that are not this project's, and tests that need one are skipped without it."""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

PYTHON, PROGRAMS, GPU = "PREFECT_FT_FOREIGN_PYTHON", "PREFECT_FT_FOREIGN", "PREFECT_FT_FOREIGN_GPU"


def on_one_gpu() -> bool:
    """Return whether ranks are to share a GPU, over NCCL, instead of the CPU."""
    return bool(os.environ.get(GPU))


def interpreter(*packages: str) -> Path:
    """Return the interpreter that has these packages, by the names of their distributions."""
    given = os.environ.get(PYTHON)
    if not given:
        pytest.skip(
            f"needs an interpreter with {', '.join(packages)}: `make foreign`, or name one in {PYTHON}"
        )
    missing = [package for package in packages if not version(given, package)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: install it for {given}")
    return Path(given).absolute()  # ranks run elsewhere


def program(path: str, source: str) -> Path:
    """Return a file of a program that is no package, below the directory that PREFECT_FT_FOREIGN names."""
    directory = os.environ.get(PROGRAMS)
    if not directory:
        pytest.skip(f"needs {path}: clone {source} into a directory and name that in {PROGRAMS}")
    if not (Path(directory) / path).is_file():
        pytest.skip(f"needs {path}: clone {source} into {directory}")
    return (Path(directory) / path).absolute()


@lru_cache
def version(python: str, package: str) -> str:
    """Return the version of a distribution that an interpreter has; empty: it has none."""
    ask = f"import importlib.metadata as metadata; print(metadata.version({package!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.strip()


def commit(path: str) -> str:
    """Return the commit of the clone that has a program."""
    directory = (Path(os.environ[PROGRAMS]) / path).parent
    ask = ["git", "-C", str(directory), "log", "-1", "--format=%h (%cs)"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
