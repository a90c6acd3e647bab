"""Every victim that Slurm has at every moment: `python tests/kill_matrix_slurm.py --times 3`, as root.

Prints the second table of docs/kill-matrix.md. A cell is how many of the runs ended right: completed, no rank started
while another process of it lived, nothing in the queue, no process left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

from agents import processes_of
from slurm import Slurm, slurm
from slurm_runs import Run

MOMENTS = {
    "queue": "in the queue",
    "beginning": "as the nodes begin",
    "training": "in training",
    "restart": "as a rank has failed",
    "end": "at the end",
}
VICTIMS = {
    "orchestrator": "orchestrator on a login node, resumed",
    "slurmctld": "slurmctld, away for 10 s",
    "slurmd": "slurmd of a node",
    "slurmstepd": "slurmstepds of a node",
    "batch": "batch step",
    "node": "a node",
    "batch-host": "the batch host",
}
IN_THE_QUEUE = ("orchestrator", "slurmctld")
"""What there is before there are nodes."""

AWAY_S = 10.0
START_TIMEOUT_S = 20
"""A node whose slurmd is killed as it begins is waited for so long; the default is 300."""


def bring(run: Run, moment: str) -> Callable[[], None]:
    """Bring a run to a moment; return what has to be done for its way on."""
    if moment == "queue":
        blocker = run.cluster.run(
            "sbatch", "--parsable", "-N4", "-o", "/dev/null", "--wrap", "sleep 600"
        ).strip()
        run.until(lambda: run.cluster.jobs() == {blocker: "RUNNING"})
        run.begin()
        run.until(lambda: "submitted job" in run.output())
        return lambda: _cancel(run.cluster, blocker)
    run.begin()
    if moment == "beginning":
        run.until(lambda: bool([*(run.place / "model").glob(".prefect-ft/*/slurm/slurm-*/allocation.json")]))
        return _nothing
    run.reach(12)
    if moment == "restart":
        os.kill(next(each.pid for each in reversed(run.told("step")) if each.rank == 1), signal.SIGKILL)
    if moment == "end":
        run.finish_soon()
        run.until(lambda: bool(run.told("end")))
    return _nothing


def _cancel(cluster: Slurm, job: str) -> None:
    cluster.run("scancel", job)


def _nothing() -> None:
    """All goes on by itself."""


def kill(run: Run, victim: str) -> None:
    """Kill it, and start again what a site, or a person, would start again."""
    cluster = run.cluster
    if victim == "orchestrator":
        run.kill()
        if not has_ended(run):
            run.begin("resume")
    elif victim == "slurmctld":
        with cluster.controller_away():
            time.sleep(AWAY_S)
    elif victim == "batch":
        for job, state in cluster.jobs().items():
            if state == "RUNNING":
                cluster.run("scancel", "--batch", "--signal=KILL", job)
    elif victim in ("node", "batch-host"):
        cluster.lose("n1" if victim == "node" else "n0")
    else:
        cluster.kill(victim, "n1")


def has_ended(run: Run) -> bool:
    return any(
        '"status": "completed"' in path.read_text() for path in run.place.glob("model/.prefect-ft/*/run.json")
    )


def cell(cluster: Slurm, place: Path, victim: str, moment: str) -> None:
    """Run one cell; raises AssertionError."""
    given = {"nodes": 2, "spares": 1, "start_timeout_s": START_TIMEOUT_S}
    run = Run(cluster, place, infrastructure=given)
    try:
        go_on = bring(run, moment)
        kill(run, victim)
        go_on()
        if moment != "end":
            begun = len(run.told("step"))
            run.until(lambda: len(run.told("step")) > begun + 20 or not is_running(run))
            run.finish_soon()
        assert run.process is not None
        code = run.process.wait(120)
        assert has_ended(run), f"{code}: {run.output()}"
        assert run.incidents()[-1] == ("completed", "completed"), run.incidents()
        assert not run.is_doubled()
        _until(lambda: not {*cluster.jobs().values()} - {"COMPLETING"})
        _until(lambda: not processes_of(place))
    finally:
        run.close()
        cluster.clean()


def is_running(run: Run) -> bool:
    return run.process is not None and run.process.poll() is None


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, "it is left"
        time.sleep(0.1)


def main() -> None:
    """Print the table, row by row; what went wrong goes to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--victims", nargs="*", default=[*VICTIMS])
    parser.add_argument("--moments", nargs="*", default=[*MOMENTS])
    arguments = parser.parse_args()
    runtime = tempfile.mkdtemp(prefix="pft-rt-")
    os.environ |= {"PREFECT_FT_RUNTIME_DIR": runtime, "XDG_STATE_HOME": f"{runtime}/state"}
    print(f"| killed | {' | '.join(MOMENTS[each] for each in arguments.moments)} |")
    print(f"|---|{'---|' * len(arguments.moments)}", flush=True)
    with slurm(accounting=True) as cluster:
        for victim in arguments.victims:
            row = [VICTIMS[victim]]
            for moment in arguments.moments:
                if moment == "queue" and victim not in IN_THE_QUEUE:
                    row.append("none yet")
                    continue
                right = sum(ends_right(cluster, victim, moment) for _ in range(arguments.times))
                row.append(f"{right}/{arguments.times}")
            print(f"| {' | '.join(row)} |", flush=True)
    shutil.rmtree(runtime, ignore_errors=True)


def ends_right(cluster: Slurm, victim: str, moment: str) -> bool:
    """Run a cell; say on standard error what was wrong with it."""
    place = Path(tempfile.mkdtemp(prefix="pft-cell-"))
    began = time.monotonic()
    try:
        cell(cluster, place / "run", victim, moment)
    except Exception:
        sys.stderr.write(f"== {victim}, {moment}, in {place}\n{traceback.format_exc()}\n")
        return False
    sys.stderr.write(f"== {victim}, {moment}: {time.monotonic() - began:.0f} s\n")
    shutil.rmtree(place, ignore_errors=True)
    return True


if __name__ == "__main__":
    main()
