"""Crash of a rank in a container until the next attempt's first line, and until it has imported what it needs.

Ours goes the whole way: agent, supervisor, journal with fsync, decision, Prefect's retry, checkpoint
choice, start; in place, warm (`warm: auto`) and cold, and rebuilt. By hand is what a script around the
`docker` command does at once when the command ends: `docker restart -t 0`, and `docker rm -f` with
`docker run`. All start the same script in the same image, in turn; it imports NumPy and scikit-learn, but
for the rows of a bare script, which imports nothing: there the kernel takes less time to end the process, too.

    python -m benchmarks.docker [--json FILE] [--quick]

It needs an engine (DOCKER_HOST, else /var/run/docker.sock) with an image that has `python3` and both; see
`deployments/make_image.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import OURS, Results, finish, options, row, workplace

EVENTS = {"line": "crash→first line", "imported": "crash→imported"}
BARE = "crash→first line, bare script"
IN_PLACE, REBUILT = "same container", "new container"
NAME = "prefect-ft-benchmark"
LATER_S = 2.0
"""How long an attempt lasts: when it crashes, what it costs to park ranks and to report the crash before is over."""
LEARNING_S = 15.0
"""How long the first attempt lasts of a job that learns what to keep ready, so that all is ready when it crashes."""

SCRIPT = """
import time
began = time.monotonic()
import os, zipfile
place = os.environ["PLACE"]

def log(what, at):
    with open(f"{place}/events", "a") as file:
        file.write(f"{what} {at:.6f}\\n")

log("line", began)
if os.environ["IMPORTS"]:
    import numpy, sklearn.linear_model
log("imported", time.monotonic())
count = open(f"{place}/events").read().count("line")
if count <= int(os.environ["CRASHES"]):
    with zipfile.ZipFile(f"{place}/checkpoints/.tmp", "w") as file:
        file.writestr("weights", "x" * 1000)
    os.replace(f"{place}/checkpoints/.tmp", f"{place}/checkpoints/step-{count}.npz")
    try:
        from prefect_ft.heartbeat import beat
    except ImportError:
        def beat(**_): pass
    until = time.monotonic() + float(os.environ["FIRST_S" if count == 1 else "LATER_S"])
    step = 0
    while time.monotonic() < until:
        step += 1
        beat(step=step)
        time.sleep(0.05)
    log("crash", time.monotonic())
    os._exit(1)
"""


def environment(directory: Path, crashes: int, imports: bool, first_s: float = LATER_S) -> dict[str, str]:
    """Return what the script wants to know; the first attempt lasts so long."""
    told = {
        "PLACE": directory,
        "CRASHES": crashes,
        "IMPORTS": "1" if imports else "",
        "FIRST_S": first_s,
        "LATER_S": LATER_S,
    }
    return {name: str(value) for name, value in told.items()} | {"OMP_NUM_THREADS": "1"}


def ours(
    directory: Path, image: str, crashes: int, imports: bool, *, rebuild: bool = False, warm: bool = False
) -> None:
    """Run the script as a job of one phase."""
    from prefect_ft import JobConfig, train_flow

    job = JobConfig.model_validate(
        {
            "name": "benchmark",
            "model_dir": "model",
            "infrastructure": {"type": "docker", "image": image, "volumes": [f"{directory}:{directory}"]},
            "autorestart": {"max_num_restarts": 128, "stop_on_repeat": 0, "rebuild_only": rebuild},
            "env": environment(directory, crashes, imports, first_s=LEARNING_S if warm else LATER_S),
            "phases": [
                {
                    "name": "restart",
                    "command": ["python3", f"{directory}/script.py"],
                    "checkpoints": {"path": "checkpoints"},
                    "warm": "auto" if warm else "off",
                }
            ],
        }
    )
    summary = train_flow(job.at(directory))[0]
    expected = "rebuild" if rebuild else "restart_in_place"
    assert summary["restarts"] == {expected: crashes}, summary["restarts"]


def by_restart(directory: Path, image: str, crashes: int, imports: bool) -> None:
    """Wait for the container's end and restart it, as often as it crashes."""
    _docker("run", "--detach", *_run_words(directory, image, crashes, imports))
    try:
        for _ in range(crashes):
            assert _docker("wait", NAME) == "1"
            _docker("restart", "--time", "0", NAME)
        assert _docker("wait", NAME) == "0"
    finally:
        _docker("rm", "--force", NAME)


def by_run(directory: Path, image: str, crashes: int, imports: bool) -> None:
    """Run the container in the foreground; when it ends, remove it and run another one."""
    for _ in range(crashes + 1):
        subprocess.run(["docker", "run", *_run_words(directory, image, crashes, imports)], check=False)
        _docker("rm", "--force", NAME)


def _run_words(directory: Path, image: str, crashes: int, imports: bool) -> list[str]:
    env = [f"--env={name}={value}" for name, value in environment(directory, crashes, imports).items()]
    return [
        "--name",
        NAME,
        *env,
        "--volume",
        f"{directory}:{directory}",
        image,
        "python3",
        f"{directory}/script.py",
    ]


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def times_ms(events: Path) -> dict[str, list[float]]:
    """Return, for each event and crash, the milliseconds until the next attempt was there."""
    told = [(what, float(at)) for what, at in map(str.split, events.read_text().splitlines())]
    crashes = [number for number, (what, _) in enumerate(told) if what == "crash"]
    return {
        what: [1000 * (told[number + later][1] - told[number][1]) for number in crashes]
        for later, what in enumerate(EVENTS, start=1)
    }


Way = Callable[[Path, str, int, bool], None]

WAYS: dict[tuple[str, str, str, bool], Way] = {
    ("cold", "default", IN_PLACE, True): ours,
    ("cold", "default", IN_PLACE, False): ours,
    (OURS, "warm: auto", IN_PLACE, True): partial(ours, warm=True),
    (OURS, "warm: auto", IN_PLACE, False): partial(ours, warm=True),
    ("docker", "restart -t 0", IN_PLACE, True): by_restart,
    ("docker", "restart -t 0", IN_PLACE, False): by_restart,
    (OURS, "rebuild_only", REBUILT, True): partial(ours, rebuild=True),
    ("docker", "rm -f, run", REBUILT, True): by_run,
}
"""Side, settings, place, and whether the script imports anything, of everything that is measured, in turn."""


def measure(way: Way, image: str, crashes: int, *, imports: bool) -> dict[str, list[float]]:
    """Let one way crash and come back `crashes` times; return the times by what they are of."""
    with workplace(SCRIPT) as directory:
        way(directory, image, crashes, imports)
        times = times_ms(directory / "events")
    return {EVENTS[what]: times[what] for what in EVENTS} if imports else {BARE: times["line"]}


def main() -> None:
    """Measure all ways in turn, some rounds of some crashes each."""
    image = (
        "--image",
        {"default": "prefect-ft/quickstart:latest", "help": "an image with NumPy and scikit-learn"},
    )
    about = "Crash of a rank in a container until the next attempt's first line, and its imports."
    arguments = options(about, [image])
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    rounds, crashes = (1, 3) if arguments.quick else (4, 5)
    ways = {key: way for key, way in WAYS.items() if key[0] != "docker" or not arguments.no_peers}
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for (side, settings, place, imports), way in ways.items():
            for what, times in measure(way, arguments.image, crashes, imports=imports).items():
                values[side, settings, f"{what}, {place}"] += times
    rows = [row(side, case, times, settings=settings) for (side, settings, case), times in values.items()]
    notes = ["cold is prefect-ft too, with warm: off"]
    finish(Results(rows=rows, notes=notes), arguments)


if __name__ == "__main__":
    main()
