"""The interpreter whose torch the tests use: this one's, or that of PREFECT_FT_TORCH_PYTHON."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest


def torch_python() -> str | None:
    """None where there is no torch."""
    given = os.environ.get("PREFECT_FT_TORCH_PYTHON")
    return given or (sys.executable if importlib.util.find_spec("torch") else None)


@pytest.fixture(scope="session")
def torch() -> str:
    """The path of an interpreter with torch; tests that need one are skipped where there is none."""
    python = torch_python()
    if python is None and "torch" in os.environ.get("PREFECT_FT_REQUIRE", "").split(","):
        pytest.fail("torch is required here: install it, or name an interpreter in PREFECT_FT_TORCH_PYTHON")
    if python is None:
        pytest.skip("needs torch: install it, or name an interpreter in PREFECT_FT_TORCH_PYTHON")
    return python


@pytest.fixture(scope="session")
def cuda(torch: str) -> str:
    """The path of an interpreter whose torch finds a GPU; tests that need one are skipped elsewhere."""
    ask = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([torch, "-c", ask], capture_output=True, check=False).returncode == 0:
        return torch
    if "cuda" in os.environ.get("PREFECT_FT_REQUIRE", "").split(","):
        pytest.fail(f"cuda is required here: the torch of {torch} finds no GPU")
    pytest.skip(f"needs a GPU: the torch of {torch} finds none")


def skip_without(python: str, module: str) -> None:
    """Skip the test where an interpreter lacks a framework."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([python, "-c", look], check=False).returncode:
        pytest.skip(f"needs {module}: install it for {python}")
