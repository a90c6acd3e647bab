"""A run in a systemd unit that stops and starts again, below a real systemd: its agents are in scopes of their own."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import booted
import pytest
from deaths import journals, of_type

from prefect_ft.run import latest_run
from tests.conftest import need

# Half a minute each, as long as others leave the machine alone: Prefect's server starts each time.
pytestmark = [pytest.mark.long, pytest.mark.timeout(700)]

DEADLINE_S = 200.0
UNIT = "train.service"
RUNTIME = "/run/prefect-ft"

SCRIPT = """
import json, os, time
from pathlib import Path
from prefect_ft import heartbeat

rank, resume = os.environ["RANK"], os.environ["PREFECT_FT_RESUME_FROM"]
state = json.loads(Path(resume).read_text()) if resume else {"step": 0, "sum": 0}
with open("starts", "a") as starts:
    starts.write(f"{rank} {os.getpid()}\\n")
while state["step"] < 30:
    state = {"step": state["step"] + 1, "sum": state["sum"] + state["step"] + 1}
    heartbeat.beat(step=state["step"])
    with open(f"steps-{rank}", "a") as steps:
        steps.write(f"{state['step']}\\n")
    if rank == "0" and state["step"] % 10 == 0:
        Path("ck/.scratch").write_text(json.dumps(state))
        Path("ck/.scratch").rename(f"ck/step-{state['step']}.json")
    while state["step"] in (15, 20, 25) and not Path(f"go-{state['step']}").exists():
        time.sleep(0.02)
"""

JOB = """
name: in-a-unit
model_dir: model
sample_period_s: 0.5
orphan_timeout_s: 60
infrastructure: {type: process, systems: [s0, s1], workers: 2}
autorestart: {max_num_restarts: 5, restart_delay_s: 0.2}
phases:
  - {name: train, command: [python, -S, train.py], checkpoints: {path: ck, settle_s: 0.1}, target_step: 30}
"""

SERVICE = """
[Service]
ExecStart={python} -m prefect_ft.cli run {directory}/job.yaml --restartable
WorkingDirectory={directory}
Environment=PREFECT_HOME={directory}/home HOME={directory} DO_NOT_TRACK=1 PREFECT_SERVER_ANALYTICS_ENABLED=false
Environment=PATH={bin}:/usr/bin:/bin
Environment=PREFECT_FT_RUNTIME_DIR={runtime}
Restart=on-failure
RestartSec=0
StandardOutput=append:{directory}/said
StandardError=append:{directory}/said
"""


@dataclass
class Unit:
    """A service that runs the job; `as_user`: of the user's own manager."""

    machine: booted.Booted
    directory: Path
    as_user: bool

    def ctl(self, *words: str, check: bool = True) -> str:
        return self.machine.systemctl(*words, as_user=self.as_user, check=check)

    def prop(self, name: str) -> str:
        return self.ctl("show", "--value", f"--property={name}", UNIT)

    def said(self) -> str:
        return self.ctl("status", "--no-pager", UNIT, check=False) + self.log()

    def log(self) -> str:
        file = self.directory / "said"
        return file.read_text() if file.exists() else ""

    def ranks(self) -> dict[int, int]:
        """Return the process of each rank's latest start."""
        return {int(rank): int(pid) for rank, pid in self.starts()}

    def starts(self) -> list[list[str]]:
        file = self.directory / "starts"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def steps(self, rank: int) -> list[int]:
        file = self.directory / f"steps-{rank}"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def comebacks(self) -> int:
        found = journals(self.directory / "model").values()
        return sum(len(of_type(lines, "comeback")) for lines in found)

    def checkpoints(self) -> set[int]:
        """Return the steps that the journal knows to be verified."""
        found = journals(self.directory / "model").values()
        return {line["step"] for lines in found for line in of_type(lines, "checkpoint")}

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, self.said()
            assert self.prop("ActiveState") != "failed", self.said()
            time.sleep(0.1)

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: all(self.steps(rank)[-1:] == [step] for rank in (0, 1)))

    def wait_for_end(self) -> None:
        self.wait_until(lambda: self.prop("ActiveState") in ("inactive", "failed"))
        assert (self.prop("ActiveState"), self.prop("Result")) == ("inactive", "success"), self.said()

    def scopes(self) -> list[str]:
        """Return the scopes of systemd-run that there are."""
        listed = self.ctl("list-units", "--type=scope", "--all", "--plain", "--no-legend").split()
        return [word for word in listed if word.startswith("run-")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[booted.Booted]:
    why_not = booted.why_not()
    need("systemd", why_not is None, why_not or "")
    with booted.booted(tmp_path) as made:
        yield made


def unit(machine: booted.Booted, *options: str, as_user: bool = False) -> Unit:
    """Write job and service; what they write belongs to the user if that is who runs it."""
    directory = machine.shared / "job"
    (directory / "ck").mkdir(parents=True)
    (directory / "train.py").write_text(SCRIPT)
    (directory / "job.yaml").write_text(JOB)
    machine.run("mkdir", "--mode=700", RUNTIME)
    if as_user or f"User={booted.USER}" in options:
        machine.run("chown", "-R", f"{booted.USER}:", str(directory), RUNTIME)
    text = "\n".join((SERVICE, *options, "")).format(
        python=sys.executable,
        bin=Path(sys.executable).parent,
        directory=directory,
        runtime=RUNTIME,
    )
    machine.write_unit(UNIT, text, as_user=as_user)
    return Unit(machine, directory, as_user)


OF_THE_SYSTEM = r"/system\.slice/run-\w+\.scope"
OF_THE_USER = r"/user\.slice/user-1000\.slice/user@1000\.service/app\.slice/run-\w+\.scope"

PLACES = {
    "of-the-system": ([], False, OF_THE_SYSTEM),
    "of-a-user": ([], True, OF_THE_USER),
    "of-the-system-as-a-user-that-lingers": ([f"User={booted.USER}"], False, OF_THE_USER),
}


@pytest.mark.parametrize(("options", "as_user", "scope"), PLACES.values(), ids=PLACES)
def test_ranks_outlive_a_unit_that_is_restarted_or_killed(
    machine: booted.Booted, options: list[str], as_user: bool, scope: str
) -> None:
    machine.start_users_manager()
    run = unit(machine, *options, as_user=as_user)
    run.ctl("start", UNIT)
    run.wait_for_step(15)
    first = run.prop("MainPID")
    ranks = run.ranks()
    groups = {machine.cgroup(pid) or "" for pid in ranks.values()}
    assert len(groups) == 2, groups  # each worker has one of its own
    assert all(re.fullmatch(scope, group) for group in groups)
    assert (machine.cgroup(int(first)) or "").endswith(f"/{UNIT}")

    run.ctl("restart", UNIT)
    run.wait_until(lambda: run.comebacks() == 1)
    (run.directory / "go-15").touch()
    run.wait_for_step(20)
    second = run.prop("MainPID")
    run.ctl("kill", "--signal=KILL", UNIT)
    run.wait_until(lambda: run.comebacks() == 2)
    third = run.prop("MainPID")
    assert len({first, second, third}) == 3
    assert {machine.cgroup(pid) for pid in ranks.values()} == groups

    for step in (20, 25):
        (run.directory / f"go-{step}").touch()
    run.wait_for_end()
    assert len(run.starts()) == 2
    assert [run.steps(rank) for rank in (0, 1)] == [list(range(1, 31))] * 2
    assert_completed(run, {"completed": 1})
    assert "workers run inside" not in run.log()


def assert_completed(run: Unit, rules: dict[str, int]) -> None:
    """Hold that the run has completed as these decisions say, and that nothing of it is left."""
    latest = latest_run(run.directory / "model")
    assert latest is not None
    assert latest.status == "completed", run.said()
    (lines,) = journals(run.directory / "model").values()
    told = [line["rule"] for line in of_type(lines, "decision")]
    assert {rule: told.count(rule) for rule in told} == rules
    assert json.loads((run.directory / "ck" / "step-30.json").read_text()) == {"step": 30, "sum": 465}
    run.wait_until(lambda: run.scopes() == [])
    left = run.machine.run("ps", "-eo", "args")
    assert str(run.directory) not in left, left
    assert "train.py" not in left, left


def test_where_no_scope_can_be_made_ranks_end_with_the_unit_as_it_says(machine: booted.Booted) -> None:
    """A unit of the system's that runs as a user without a manager of its own: nobody makes scopes for it."""
    run = unit(machine, f"User={booted.USER}")
    run.ctl("start", UNIT)
    run.wait_for_step(15)
    ranks = run.ranks()
    assert f"workers run inside the systemd unit {UNIT}: stopping it as a whole will kill them" in run.log()
    assert {machine.cgroup(pid) for pid in ranks.values()} == {f"/system.slice/{UNIT}"}

    run.wait_until(lambda: run.checkpoints() == {10})
    run.ctl("restart", UNIT)
    run.wait_until(lambda: len(run.starts()) == 4)
    assert {machine.cgroup(pid) for pid in ranks.values()} == {None}
    for step in (15, 20, 25):
        (run.directory / f"go-{step}").touch()
    run.wait_for_end()
    assert run.steps(0) == [*range(1, 16), *range(11, 31)]  # from the last checkpoint on
    assert_completed(run, {"in-place-failed": 1, "completed": 1})
