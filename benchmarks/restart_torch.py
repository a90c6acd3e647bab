"""Crash of one rank until all are in `main()`, have met (gloo), and have taken an optimizer step: ours and launchers.

Ours goes the whole way: agent, supervisor, journal with fsync, decision, Prefect's retry, checkpoint choice,
start; warm (`warm: auto`) and cold. torchrun, ft_launcher (nvidia-resiliency-ext) and dlrover-run are started by
default and with the shortest monitor interval. All start the same script with the same interpreter, in turn; it is
that of a virtual environment which is made where `--venv` says.

    python -m benchmarks.restart_torch [--json FILE] [--svg FILE] [--quick] [--venv DIRECTORY]
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.drawing import drawn
from benchmarks.harness import OURS, Results, finish, options, row, workplace
from benchmarks.launchers import LAUNCHERS, VENV_OPTION, interpreter_of, launch

REQUIREMENTS = ("torch==2.13.0", "nvidia-resiliency-ext==0.4.1", "numpy")
EVENTS = {"main": "crash→main", "gloo": "crash→gloo ready", "step": "crash→first step"}
SCRIPT = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def log(what):
    line = f"{what} {attempt} {rank} {time.monotonic():.6f}\\n"
    with open(os.environ["EVENTS"], "a") as file:
        file.write(line)

def main():
    log("main")
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
    log("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    step()
    log("step")
    until = time.monotonic() + float(os.environ["FIRST_S" if attempt == 0 else "LATER_S"])
    number = 1
    while time.monotonic() < until:
        if beat:
            beat(step=number)
        number += 1
        time.sleep(0.05)
    if attempt >= int(os.environ["CRASHES"]):
        return
    if rank == 0:
        with open(f"checkpoints/.tmp-{attempt}", "wb") as file:
            torch.save(model.state_dict(), file)
        os.replace(f"checkpoints/.tmp-{attempt}", f"checkpoints/step-{attempt + 1}.pt")
    if rank == 1:
        time.sleep(0.2)
        log("crash")
        os._exit(1)
    time.sleep(60)

if __name__ == "__main__":
    try:
        from prefect_ft.heartbeat import beat
    except ImportError:
        beat = None
    main()
"""


def launcher(which: tuple[str, str | None], python: Path, directory: Path, ranks: int, crashes: int) -> None:
    """Run the script by a launcher; `which`: its name and monitor interval, None: its default."""
    env = own_environment(directory, crashes)
    launch(*which, python, directory, ranks, crashes=crashes, env=env)


def train_flow_run(python: Path, warm: str, directory: Path, ranks: int, crashes: int) -> None:
    """Run the script as a job of one phase."""
    from prefect_ft import JobConfig, train_flow

    job = JobConfig.model_validate(
        {
            "name": "benchmark",
            "model_dir": "model",
            "autorestart": {"max_num_restarts": 128, "stop_on_repeat": 0},
            "env": own_environment(directory, crashes),
            "phases": [
                {
                    "name": "restart",
                    "command": [str(python), "script.py"],
                    "nproc_per_worker": ranks,
                    "checkpoints": {"path": "checkpoints"},
                    "warm": warm,
                }
            ],
        }
    )
    summary = train_flow(job.at(directory))[0]
    assert summary["restarts"] == {"restart_in_place": crashes}, summary["restarts"]


def own_environment(directory: Path, crashes: int) -> dict[str, str]:
    """Return what the script wants to know."""
    return {
        "EVENTS": str(directory / "events"),
        "CRASHES": str(crashes),
        "FIRST_S": "12",
        "LATER_S": "1.5",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def times_ms(events: Path) -> dict[str, list[float]]:
    """Return, for each event and crash, the milliseconds until the last rank of the next attempt was there."""
    crashed: dict[int, float] = {}
    came: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in events.read_text().splitlines():
        what, attempt, _, at = line.split()
        if what == "crash":
            crashed[int(attempt)] = float(at)
        else:
            came[what, int(attempt)].append(float(at))
    return {
        what: [1000 * (max(came[what, attempt + 1]) - at) for attempt, at in crashed.items()]
        for what in EVENTS
    }


Side = Callable[[Path, int, int], None]


def measure(side: Side, ranks: int, crashes: int) -> dict[str, list[float]]:
    """Have one side crash and come back `crashes` times."""
    with workplace(SCRIPT) as directory:
        side(directory, ranks, crashes)
        return times_ms(directory / "events")


def main() -> None:
    """Measure all sides in turn, some rounds of some crashes each."""
    arguments = options(
        "Crash of one rank until all ranks are in main(), have met, and have taken a step.",
        [
            VENV_OPTION,
            ("--svg", {"type": Path, "metavar": "FILE", "help": "draw the rows there"}),
        ],
    )
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    python = interpreter_of(arguments.venv)
    sides: dict[tuple[str, str], Side] = {
        **{
            (name, settings): partial(launcher, (name, interval), python)
            for name in LAUNCHERS
            for settings, interval in (("default", None), ("interval .01", ".01"))
        },
        ("cold", "default"): partial(train_flow_run, python, "off"),
        (OURS, "warm: auto"): partial(train_flow_run, python, "auto"),
    }
    if arguments.no_peers:
        sides = {key: side for key, side in sides.items() if key[0] not in LAUNCHERS}
    rounds, crashes = (1, 3) if arguments.quick else (3, 5)
    results = Results()
    for ranks in (2, 4):
        values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for _ in range(rounds):
            for (name, settings), side in sides.items():
                for what, times in measure(side, ranks, crashes).items():
                    values[name, settings, what] += times
        results.rows += [
            row(name, EVENTS[what], times, ranks=ranks, settings=settings)
            for (name, settings, what), times in values.items()
        ]
    results.notes.append("cold is prefect-ft too, with warm: off and the rendezvous store")
    finish(results, arguments)
    if arguments.svg:
        arguments.svg.write_text(drawn(results.rows))


if __name__ == "__main__":
    main()
