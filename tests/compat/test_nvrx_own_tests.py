"""The tests and examples of nvidia-resiliency-ext itself; docs/migrating.md lists the tests that fail, with reasons."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from foreign import program
from ports import free_port

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


EXAMPLES = {
    "basic-2": ("HEAD", "basic", (), 2),
    "basic-4": ("HEAD", "basic", (), 4),
    "advanced-2": ("HEAD", "advanced", (), 2),
    "advanced-4": ("HEAD", "advanced", (), 4),
    "advanced-nested": ("HEAD", "advanced", ("--nested-restarter",), 2),
    "basic-0.2": ("v0.2.0", "basic", (), 2),
    "optimal-0.2": ("v0.2.0", "optimal", (), 2),
    "basic-0.4": ("v0.4.1", "basic", (), 2),
    "optimal-0.4": ("v0.4.1", "optimal", (), 2),
}
"""Release, name, more arguments and ranks. `optimal` is what `advanced` was called."""


def example_of(release: str, name: str) -> str:
    """Return an example as it was in a release of theirs."""
    place = program("nvidia-resiliency-ext/tests/inprocess/test_app.py", SOURCE).parents[2]
    words = ["git", "-C", str(place), "show", f"{release}:examples/inprocess/{name}_example.py"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        pytest.skip(f"the clone has no {release}: {shown.stderr.strip()}")
    return shown.stdout


@pytest.mark.parametrize(("release", "example", "more", "ranks"), EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_of_theirs_runs_to_its_end_with_one_changed_line(
    release: str, example: str, more: tuple[str, ...], ranks: int, tmp_path: Path
) -> None:
    """With random faults on all ranks, each of which restarts all; and from its own checkpoints."""
    theirs = example_of(release, example)
    changed = theirs.replace(
        "import nvidia_resiliency_ext.inprocess as inprocess",
        "from prefect_ft.compat import nvrx as inprocess",
    )
    assert changed.count("\n") == theirs.count("\n")
    assert changed != theirs
    (tmp_path / "example.py").write_text(changed)
    words = [
        "example.py",
        "--device=cpu",
        "--total-iterations=600",
        "--chkpt-interval=20",
        "--fault-prob=0.004",
        *more,
    ]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_paths()["purelib"]]),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    interpreter = os.environ.get("PREFECT_FT_TORCH_PYTHON")
    if not interpreter:
        pytest.skip("needs an interpreter with torch: `make torch`")
    with (tmp_path / "log").open("w") as log:
        started = [
            subprocess.Popen(
                [interpreter, *words, f"--path={tmp_path}"],
                cwd=tmp_path,
                env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=log,
                stderr=log,
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(300) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    said = (tmp_path / "log").read_text()
    assert codes == [0] * ranks, said[-3000:]
    assert "iteration=599" in said
    assert "example fault" in said
