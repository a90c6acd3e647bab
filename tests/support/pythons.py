"""The interpreters of this machine, by version; as a script, the tests on each: `python tests/support/pythons.py`.

PREFECT_FT_PYTHONS names interpreters that lie elsewhere than on PATH or below pyenv's directory, with colons between.
Each version gets an environment of its own, `.venv-VERSION`. On Python 3.9 that is the worker's side alone: tests that
need nothing of the orchestrator, and those of agents with agents and ranks on that Python. `--all` runs all tests.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKER, VERSIONS = "3.9", ("3.10", "3.11", "3.12", "3.13", "3.14")

PURE = (
    "tests/config", "tests/decide", "tests/journal", "tests/pool", "tests/report", "tests/run", "tests/test_console.py",
    "tests/test_gate.py", "tests/test_preflight.py", "tests/test_replay.py", "tests/test_stages.py",
    "tests/test_summary.py", "tests/test_wire.py",
)  # fmt: skip
AGENTS = ("tests/worker",)
ON_THE_WORKER_ALONE = (
    "callbacks", "checkpoints_finder", "checkpoints_names", "command", "faults", "frames", "heartbeat", "loop",
    "protocol", "spool", "store", "versions",
)  # fmt: skip
"""Files of tests/worker, without `test_`, that import nothing of the orchestrator's side."""


def found(version: str) -> str | None:
    """Return an interpreter of a version, `MAJOR.MINOR`; None: this machine has none that starts."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [
        *os.environ.get("PREFECT_FT_PYTHONS", "").split(":"),
        shutil.which(f"python{version}") or "",
        *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python{version}")),
    ]
    return next((path for path in candidates if path and _version_of(path) == version), None)


def _version_of(python: str) -> str | None:
    """Return what an interpreter says of itself; None: it does not start."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run(
            [python, "-I", "-S", "-c", ask], capture_output=True, text=True, check=False, timeout=30
        )
    except OSError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


# -- the script ---------------------------------------------------------------------------------------


def environment(version: str, python: str) -> str:
    """Make the environment of a version, if it is not there whole; return its interpreter."""
    directory = ROOT / f".venv-{version}"
    inside, mark = str(directory / "bin" / "python"), directory / ".whole"
    if mark.exists():
        return inside
    subprocess.run([python, "-m", "venv", str(directory)], check=True)
    install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if version == WORKER:
        subprocess.run([*install, "pytest", "pytest-timeout", "hypothesis"], check=True)
    else:
        pinned = [*install, "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pinned, "hatchling", "editables"], check=True)
        subprocess.run([*pinned, "--no-build-isolation", "-e", f"{ROOT}[quickstart,dev]"], check=True)
    mark.touch()
    return inside


def runs_of(version: str, python: str, *, is_all: bool, jobs: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands that test a version, each with its environment."""
    inside = environment(version, python)
    if version == WORKER:
        alone = [f"tests/worker/test_{name}.py" for name in ON_THE_WORKER_ALONE]
        return [
            ([inside, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", *alone], {}),
            ([sys.executable, "-m", "pytest", *AGENTS], {"PREFECT_FT_WORKER_PYTHON": python}),
        ]
    tests = () if is_all else (*PURE, *AGENTS)
    return [([inside, "-m", "pytest", "-n", str(jobs), "--dist", "loadfile", *tests], {})]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on each Python that this machine has.")
    parser.add_argument("versions", nargs="*", default=[WORKER, *VERSIONS], metavar="VERSION")
    parser.add_argument(
        "--all", action="store_true", help="all tests, not the pure ones and those of agents alone"
    )
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    outcomes = {}
    for version in arguments.versions:
        python = found(version)
        if python is None:
            outcomes[version] = "skipped: this machine has no such Python"
            continue
        runs = runs_of(version, python, is_all=arguments.all, jobs=arguments.jobs)
        codes = [
            subprocess.run(words, cwd=ROOT, env={**os.environ, **env}, check=False).returncode
            for words, env in runs
        ]
        outcomes[version] = "passed" if not any(codes) else "FAILED"
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome}")
    return int("FAILED" in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
