"""The tests of nvidia-resiliency-ext itself, on our shim; docs/migrating.md lists those that fail, with reasons."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from foreign import program

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/NVIDIA/nvidia-resiliency-ext"
WITHOUT_CUDA = (
    "app",
    "compose",
    "hang_protection_disabler",
    "nested_restarter",
    "rank_assignment",
    "timeout",
    "wrap",
)


@pytest.mark.parametrize("module", WITHOUT_CUDA)
def test_theirs_pass_but_for_those_that_are_explained(module: str) -> None:
    tests = program(f"nvidia-resiliency-ext/tests/inprocess/test_{module}.py", SOURCE)
    python = os.environ.get("PREFECT_FT_TORCH_PYTHON")
    if not python:
        pytest.skip("needs an interpreter with torch: `make torch`")
    path = [
        tests.parents[2],
        ROOT / "shims" / "nvidia_resiliency_ext",
        ROOT,
        sysconfig.get_paths()["purelib"],
    ]
    done = subprocess.run(
        [python, "-m", "unittest", f"tests.inprocess.test_{module}"],
        cwd=tests.parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    failed = set(
        re.findall(r"^(?:FAIL|ERROR): (\w+) \(tests\.inprocess\.\w+\.(\w+)", done.stderr, re.MULTILINE)
    )
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None, done.stderr[-2000:]
    explained = (ROOT / "docs" / "migrating.md").read_text()
    assert {f"{case}.{name}" for name, case in failed} == {
        f"{case}.{name}" for case, name in re.findall(rf"`test_{module}::(\w+)\.(\w+)`", explained)
    }
