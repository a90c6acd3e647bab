"""Crash of a rank in a container until the first line of the next attempt: in place, rebuilt, and by hand.

Ours goes the whole way: agent, supervisor, journal with fsync, decision, Prefect's retry, checkpoint
choice, start. By hand is what a script around the `docker` command does at once when the command ends:
`docker restart -t 0`, and `docker rm -f` with `docker run`. All start the same script with the same cold
interpreter, in the same image, in turn.

    python -m benchmarks.docker [--json FILE] [--quick]

It needs an engine (DOCKER_HOST, else /var/run/docker.sock) with an image that has `python3`; see
`deployments/make_image.py`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import OURS, Results, Row, finish, options, row

IN_PLACE, REBUILT = "crash→first line, same container", "crash→first line, new container"
NAME = "prefect-ft-benchmark"
SCRIPT = """
import time
began = time.monotonic()
import os, zipfile
place = os.environ["PLACE"]

def log(what, at):
    with open(f"{place}/events", "a") as file:
        file.write(f"{what} {at:.6f}\\n")

log("line", began)
count = open(f"{place}/events").read().count("line")
if count <= int(os.environ["CRASHES"]):
    with zipfile.ZipFile(f"{place}/checkpoints/.tmp", "w") as file:
        file.writestr("weights", "x" * 1000)
    os.replace(f"{place}/checkpoints/.tmp", f"{place}/checkpoints/step-{count}.npz")
    time.sleep(0.5)
    log("crash", time.monotonic())
    os._exit(1)
"""


def ours(directory: Path, image: str, crashes: int, *, rebuild: bool) -> None:
    """Run the script as a job of one phase."""
    from prefect_ft import JobConfig, train_flow

    job = JobConfig.model_validate(
        {
            "name": "benchmark",
            "model_dir": "model",
            "infrastructure": {"type": "docker", "image": image, "volumes": [f"{directory}:{directory}"]},
            "autorestart": {"max_num_restarts": 128, "stop_on_repeat": 0, "rebuild_only": rebuild},
            "env": {"PLACE": str(directory), "CRASHES": str(crashes)},
            "phases": [
                {
                    "name": "restart",
                    "command": ["python3", f"{directory}/script.py"],
                    "checkpoints": {"path": "checkpoints"},
                }
            ],
        }
    )
    summary = train_flow(job.at(directory))[0]
    expected = "rebuild" if rebuild else "restart_in_place"
    assert summary["restarts"] == {expected: crashes}, summary["restarts"]


def by_restart(directory: Path, image: str, crashes: int) -> None:
    """Wait for the container's end and restart it, as often as it crashes."""
    _docker("run", "--detach", *_run_words(directory, image, crashes))
    try:
        for _ in range(crashes):
            assert _docker("wait", NAME) == "1"
            _docker("restart", "--time", "0", NAME)
        assert _docker("wait", NAME) == "0"
    finally:
        _docker("rm", "--force", NAME)


def by_run(directory: Path, image: str, crashes: int) -> None:
    """Run the container in the foreground; when it ends, remove it and run another one."""
    for _ in range(crashes + 1):
        subprocess.run(["docker", "run", *_run_words(directory, image, crashes)], check=False)
        _docker("rm", "--force", NAME)


def _run_words(directory: Path, image: str, crashes: int) -> list[str]:
    place = [
        "--env",
        f"PLACE={directory}",
        "--env",
        f"CRASHES={crashes}",
        "--volume",
        f"{directory}:{directory}",
    ]
    return ["--name", NAME, *place, image, "python3", f"{directory}/script.py"]


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def crash_to_line_ms(events: Path) -> list[float]:
    """Give, for each crash, the milliseconds until the next line was reached."""
    told = [(what, float(at)) for what, at in map(str.split, events.read_text().splitlines())]
    return [1000 * (after - at) for (what, at), (_, after) in pairwise(told) if what == "crash"]


Way = Callable[[Path, str, int], None]

WAYS: dict[tuple[str, str, str], Way] = {
    (OURS, "default", IN_PLACE): lambda *given: ours(*given, rebuild=False),
    ("docker", "restart -t 0", IN_PLACE): by_restart,
    (OURS, "rebuild_only", REBUILT): lambda *given: ours(*given, rebuild=True),
    ("docker", "rm -f, run", REBUILT): by_run,
}
"""Side, settings and case of everything that is measured, in turn."""


def measure(way: Way, image: str, crashes: int) -> list[float]:
    """Let one way crash and come back `crashes` times."""
    with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
        directory = Path(name)
        (directory / "script.py").write_text(SCRIPT)
        (directory / "checkpoints").mkdir()
        way(directory, image, crashes)
        return crash_to_line_ms(directory / "events")


def main() -> None:
    """Measure all ways in turn, some rounds of some crashes each."""
    image = ("--image", {"default": "prefect-ft/quickstart:latest", "help": "an image with python3"})
    arguments = options("Crash of a rank in a container until the next attempt's first line.", [image])
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    rounds, crashes = (1, 3) if arguments.quick else (6, 5)
    ways = {key: way for key, way in WAYS.items() if key[0] == OURS or not arguments.no_peers}
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for key, way in ways.items():
            values[key] += measure(way, arguments.image, crashes)
    rows: list[Row] = [
        row(side, case, values[side, settings, case], settings=settings) for side, settings, case in ways
    ]
    finish(Results(rows=rows), arguments)


if __name__ == "__main__":
    main()
