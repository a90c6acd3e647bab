"""How long the first rank waits, and how long a comeback does, while Prefect is being loaded, silent or not there.

Each round starts, in turns: a process that only imports `prefect.flows`; torchrun; `prefect-ft run` with Prefect's own
temporary server, with an API that takes connections and never answers, and with one that refuses them; and, with the
latter two, `prefect-ft resume` after the orchestrator was killed. A start is over when a rank has executed its first
line, a comeback when the journal has it: then the agents have been attached to, and the next failure is answered.

    python -m benchmarks.first_start [--json FILE] [--quick] [--no-peers] [--venv DIRECTORY]
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import OURS, Results, finish, options, row, workplace
from benchmarks.launchers import VENV_OPTION, interpreter_of

SCRIPT = """
import pathlib, time
pathlib.Path("first").write_text(str(time.time()))
if pathlib.Path("stay").exists():
    time.sleep(600)
"""
TIMEOUT_S = 300
T = TypeVar("T")
IMPORT = "import prefect.flows"


def main() -> None:
    """Run all cases in turns, and print their figures and ratios."""
    arguments = options(__doc__.split("\n", maxsplit=1)[0], [VENV_OPTION])
    torch = None if arguments.no_peers else interpreter_of(arguments.venv)
    seconds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with _silent() as silent:
        apis = {"own server": "", "silent API": silent, "no API": "http://127.0.0.1:9/api"}
        for _ in range(3 if arguments.quick else 7):
            seconds[IMPORT, "default", "first rank"].append(_measured(_imported, ""))
            if torch is not None:
                seconds["torchrun", "default", "first rank"].append(_measured(_torchrun, torch))
            for name, api in apis.items():
                seconds[OURS, name, "first rank"].append(_measured(_first_rank, api))
                if api:
                    seconds[OURS, name, "comeback"].append(_measured(_comeback, api))
    _finish(seconds, arguments)


def _finish(seconds: dict[tuple[str, str, str], list[float]], arguments: object) -> None:
    results = Results()
    for (side, settings, case), values in seconds.items():
        results.rows.append(row(side, case, values, unit="s", settings=settings))
    base = next(each.median for each in results.rows if each.side == IMPORT)
    for each in results.rows:
        if each.side != IMPORT:
            what = f"{each.side}, {each.settings}, {each.case}"
            results.notes.append(f"{what}: {each.median / base:.2f} x {IMPORT}")
    finish(results, arguments)  # type: ignore[arg-type]


def _imported(directory: Path, api: str) -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORT], check=True, env=_environment(directory, api))
    return time.monotonic() - began_s


def _measured(measure: Callable[[Path, T], float], given: T) -> float:
    with workplace(SCRIPT) as directory:
        return measure(directory, given)


def _torchrun(directory: Path, python: Path) -> float:
    began_t = time.time()
    words = [str(python.parent / "torchrun"), "--standalone", "--nnodes=1", "--nproc-per-node=1", "script.py"]
    subprocess.run(
        words,
        cwd=directory,
        check=True,
        timeout=TIMEOUT_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return float((directory / "first").read_text()) - began_t


def _first_rank(directory: Path, api: str) -> float:
    began_t = time.time()
    with _running(directory, api, "run", str(_job(directory))):
        _wait_for(lambda: (directory / "first").exists() and (directory / "first").read_text() != "")
        return float((directory / "first").read_text()) - began_t


def _comeback(directory: Path, api: str) -> float:
    (directory / "stay").touch()
    with _running(directory, api, "run", str(_job(directory))) as first:
        _wait_for(lambda: "attempt" in _line_types(directory))
        first.send_signal(signal.SIGKILL)
        first.wait()
    began_s = time.monotonic()
    with _running(directory, api, "resume", str(directory / "model")):
        _wait_for(lambda: "comeback" in _line_types(directory))
        return time.monotonic() - began_s


def _line_types(directory: Path) -> list[str]:
    journals = (directory / "model").glob("*_restartable/journal.jsonl")
    lines = [line for journal in journals for line in journal.read_text().splitlines(keepends=True)]
    return [json.loads(line)["type"] for line in lines if line.endswith("\n")]


def _job(directory: Path) -> Path:
    job = {
        "name": "first-start",
        "model_dir": str(directory / "model"),
        "infrastructure": {"type": "process"},
        "phases": [{"name": "train", "command": ["python", "script.py"], "cwd": str(directory)}],
    }
    path = directory / "job.yaml"
    path.write_text(json.dumps(job))
    return path


def _environment(home: Path, api: str) -> dict[str, str]:
    own = {"PREFECT_HOME": str(home / "prefect"), "XDG_STATE_HOME": str(home / "state"), "DO_NOT_TRACK": "1"}
    env = {**os.environ, **own}
    env.pop("PREFECT_API_URL", None)
    return {**env, "PREFECT_API_URL": api} if api else env


@contextmanager
def _running(directory: Path, api: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`prefect-ft`; when left it is cancelled, and waits no longer for Prefect."""
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect_ft.cli", *words],
        env=_environment(directory, api),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            _pause()


def _pause() -> None:
    time.sleep(0.5)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.005)


@contextmanager
def _silent() -> Iterator[str]:
    """An API that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"


if __name__ == "__main__":
    main()
