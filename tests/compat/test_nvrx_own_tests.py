"""The tests of nvidia-resiliency-ext itself, on our shim; docs/migrating.md lists those that fail, with reasons."""

from __future__ import annotations

import os
import re
import signal
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


IDS = """
import sys, unittest

def ids(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from ids(each)
        else:
            yield each.id()

print("\\n".join(ids(unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]))))
"""
WHOLE_S, ONE_S = 800.0, 40.0
"""How long those of a module may take that pass, and one that does not: it may restart for ever."""


def python(words: list[str], within_s: float) -> subprocess.CompletedProcess[str] | None:
    """Run the interpreter that has torch where their tests are, on our shim; None: it did not end in time."""
    place = program("nvidia-resiliency-ext/tests/inprocess/test_app.py", SOURCE).parents[2]
    interpreter = os.environ.get("PREFECT_FT_TORCH_PYTHON")
    if not interpreter:
        pytest.skip("needs an interpreter with torch: `make torch`")
    path = [place, ROOT / "shims" / "nvidia_resiliency_ext", ROOT, sysconfig.get_paths()["purelib"]]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [interpreter, *words],
        cwd=place,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def explained() -> set[str]:
    """The tests of which docs/migrating.md says why they fail."""
    found = re.findall(r"`(test_\w+)::(\w+\.\w+)`", (ROOT / "docs" / "migrating.md").read_text())
    return {f"tests.inprocess.{module}.{test}" for module, test in found}


@pytest.mark.parametrize("module", WITHOUT_CUDA)
def test_theirs_pass_but_for_those_that_are_explained(module: str) -> None:
    name = f"tests.inprocess.test_{module}"
    listed = python(["-c", IDS, name], ONE_S)
    assert listed is not None
    passing = [each for each in listed.stdout.split() if each not in explained()]
    assert passing, listed.stderr
    done = python(["-m", "unittest", *passing], WHOLE_S)
    assert done is not None, "did not end"
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Ran {len(passing)} tests" in done.stderr or len(passing) == 1


@pytest.mark.parametrize("test", sorted(explained()))
def test_those_that_are_explained_fail(test: str) -> None:
    done = python(["-m", "unittest", test], ONE_S)
    assert done is None or done.returncode != 0, f"{test} passes: docs/migrating.md says that it does not"
