"""Every victim at every moment, against a real server and worker: `python tests/kill_matrix.py --times 3`.

Prints the table of docs/kill-matrix.md. A cell is how many of the runs ended right: the same flow run
completed, with the result and the decisions of an undisturbed run, no process left behind.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

from deaths import assert_right, write_job
from sites import Site, arm

MOMENTS = {
    "before_start": "before the first attempt is up",
    "in_training": "in training",
    "before_journal": "between incident and journal",
    "before_action": "between fsync and action",
    "in_action": "during the action",
    "in_backoff": "in the backoff wait",
    "between_phases": "between phases",
    "at_the_end": "at the end",
}
VICTIMS = {
    "flow": "flow process",
    "worker": "worker",
    "flow+worker": "flow process + worker",
    "server": "server",
    "agent": "agent of worker 0",
    "power": "all of them",
}
WITHOUT_AGENTS = ("between_phases", "at_the_end")
HEARTBEAT_S = 5


def expected(victim: str, moment: str) -> tuple[int, int]:
    """Return how often workers have to be made anew, and how often the rank's failure is decided about."""
    if victim not in ("agent", "power") or moment in WITHOUT_AGENTS:
        return 0, 1
    if victim == "power" and moment == "before_start":
        return 0, 1
    if (victim, moment) == ("agent", "before_start"):
        return 1, 0  # its system is isolated, and the rank that would fail does not exist in the smaller gang
    return 1, 0 if (victim, moment) == ("power", "before_journal") else 1


class Matrix:
    """One site for all of it."""

    def __init__(self, site: Site, scratch: Path) -> None:
        self.site, self.scratch = site, scratch
        self.workers = 0
        site.start_server()
        site.prefect("work-pool", "create", "training", "--type", "process")
        site.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        site.command("prefect_ft.cli", "install-automations", "--heartbeat-s", str(HEARTBEAT_S))

    def run(self, victim: str, moment: str) -> None:
        """Run one cell; raises AssertionError."""
        directory = Path(tempfile.mkdtemp(dir=self.scratch))
        job = write_job(directory)
        (directory / "orchestrator.log").touch()
        mark = self.site.directory / "has-died"
        mark.unlink(missing_ok=True)
        self.start_worker(DEATH=f"{moment}/{victim}")
        flow_run_id = self.site.begin(job)
        deadline = time.monotonic() + 100
        while not mark.exists():
            assert time.monotonic() < deadline, "nobody died"
            time.sleep(0.05)
        self.raise_the_dead(victim)
        run = self.site.wait_for(flow_run_id, "Completed", "Failed", "Cancelled")
        assert run["state_name"] == "Completed", run["state"]
        losses, transient = expected(victim, moment)
        assert_right(job, losses, transient)

    def start_worker(self, **env: str) -> None:
        self.end_workers()
        self.site.start_worker(**env)

    def end_workers(self) -> None:
        for process in self.site.processes[1:]:
            self.site.stop(process)
        del self.site.processes[1:]

    def raise_the_dead(self, victim: str) -> None:
        """Start again what is no longer there, as an init system would."""
        if victim in ("server", "power"):
            self.site.processes[0].wait(60)
            self.site.processes.pop(0)
            self.site.start_server()
            self.site.processes.insert(0, self.site.processes.pop())
        if victim in ("flow+worker", "worker", "power"):
            self.site.processes[1].wait(60)
            self.start_worker()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--victims", default=",".join(VICTIMS))
    parser.add_argument("--moments", default=",".join(MOMENTS))
    arguments = parser.parse_args()
    victims, moments = arguments.victims.split(","), arguments.moments.split(",")
    scratch = Path(tempfile.mkdtemp())
    for name in ("checkout", "rt"):
        (scratch / name).mkdir()
    os.environ["PREFECT_FT_RUNTIME_DIR"] = str(scratch / "rt")
    site = Site(scratch / "checkout", scratch / "rt")
    arm(site)
    right: dict[tuple[str, str], str] = {}
    try:
        matrix = Matrix(site, scratch)
        for victim in victims:
            for moment in moments:
                right[victim, moment] = cell(matrix, victim, moment, arguments.times)
    finally:
        site.close()
    print_table(right, victims, moments)
    return 0 if all(told.split("/")[0] == told.split("/")[-1] for told in right.values()) else 1


def cell(matrix: Matrix, victim: str, moment: str, times: int) -> str:
    if victim == "agent" and moment in WITHOUT_AGENTS:
        return "none lives"
    count = 0
    for _ in range(times):
        began = time.monotonic()
        try:
            matrix.run(victim, moment)
            count += 1
        except Exception:
            traceback.print_exc()
        print(f"{victim} {moment}: {count}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return f"{count}/{times}"


def print_table(right: dict[tuple[str, str], str], victims: list[str], moments: list[str]) -> None:
    print("| killed | " + " | ".join(MOMENTS[moment] for moment in moments) + " |")
    print("|---" * (len(moments) + 1) + "|")
    for victim in victims:
        print(f"| {VICTIMS[victim]} | " + " | ".join(right[victim, moment] for moment in moments) + " |")


if __name__ == "__main__":
    sys.exit(main())
