"""Every action of the ladder, on real processes: who was made anew, what the ranks were told, who still lives.

Systems are made to fail as they do: a rank reports a fault, a monitor does, or the whole system dies.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml

import prefect_ft
from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import RunFailedError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine

ROOT = Path(prefect_ft.__file__).parents[1]
Make = Callable[..., JobConfig]
Seen = Callable[..., list[dict[str, str]]]

SCRIPT = """
from prefect_ft import heartbeat, report_fault
worker, system = int(os.environ["PREFECT_FT_WORKER"]), os.environ["PREFECT_FT_SYSTEM"]
attempt = int(os.environ["PREFECT_FT_ATTEMPT"])

def lives(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

# Who of an earlier attempt lives? Nobody may.
for line in open(f"seen-{os.environ['PREFECT_FT_PHASE']}.jsonl"):
    before = json.loads(line)
    if int(before["PREFECT_FT_ATTEMPT"]) < attempt and lives(before["PID"]):
        open("alive", "a").write(f"{before['PID']} ")

def report(severity, device=0, code="E1"):
    report_fault(device, code, severity)
    wait()

def saved(step):
    while not os.path.exists(f"ck/step-{step}.npz"):
        time.sleep(0.001)

if attempt == 1:
    save(5)
"""

POOL = {"systems": ["s0", "s1", "s2"], "workers": 2}
FULL = {"systems": ["s0", "s1"], "workers": 2}
CODE = "if attempt == 1: saved(5)\n"

Row = tuple[int, str, str, str, str, str, str]
"""Worker, system, MA_SCHEDULE_CNT, MA_PROC_START_CNT, checkpoint, rule, action."""


def row(env: dict[str, str]) -> Row:
    return (
        int(env["PREFECT_FT_WORKER"]),
        env["PREFECT_FT_SYSTEM"],
        env["MA_SCHEDULE_CNT"],
        env["MA_PROC_START_CNT"],
        Path(env["PREFECT_FT_RESUME_FROM"]).name,
        env["PREFECT_FT_RESTART_REASON"],
        env["PREFECT_FT_RESTART_ACTION"],
    )


FIRST = [(0, "s0", "1", "1", "", "", ""), (1, "s1", "1", "1", "", "", "")]
FAULT = CODE + "if attempt == 1 and worker == 1: report('{}')\nif attempt == 1: wait()"


def after(rule: str, action: str, *workers: tuple[int, str, str, str]) -> list[Row]:
    return [(*worker, "step-5.npz", rule, action) for worker in workers]


Ladder = Callable[..., list[list[Row]]]


@pytest.fixture
def ladder(job: Make, seen: Seen, tmp_path: Path) -> Ladder:
    """Run a job of two workers; return what the ranks of each attempt were told."""

    def run(
        code: str, pool: dict[str, Any], policy: dict[str, Any] | None = None, **fields: Any
    ) -> list[list[Row]]:
        phase = {"nproc_per_worker": 1, **fields.pop("phase", {})}
        autorestart = {"max_num_restarts": 5, **(policy or {})}
        train_flow(job(SCRIPT + code, phase=phase, infrastructure=pool, autorestart=autorestart, **fields))
        rows = seen()
        assert not (tmp_path / "alive").exists()
        assert {env["WORLD_SIZE"] for env in rows if env["PREFECT_FT_ATTEMPT"] == "1"} == {"2"}
        attempts = sorted({int(env["PREFECT_FT_ATTEMPT"]) for env in rows})
        by_attempt = [
            [env for env in rows if int(env["PREFECT_FT_ATTEMPT"]) == number] for number in attempts
        ]
        for told in by_attempt:
            assert {int(env["WORLD_SIZE"]) for env in told} == {len(told)}
        return [[row(env) for env in told] for told in by_attempt]

    return run


CASES = [
    pytest.param(
        CODE + "if attempt == 1 and worker == 1: die(11)\nif attempt == 1: wait()",
        POOL,
        {},
        [FIRST, after("transient", "restart_in_place", (0, "s0", "1", "2"), (1, "s1", "1", "2"))],
        id="in-place",
    ),
    pytest.param(
        FAULT.format("critical"),
        POOL,
        {"max_worker_replacements": 1},
        [FIRST, after("fault-critical", "replace_workers", (0, "s0", "1", "2"), (1, "s2", "2", "1"))],
        id="replacement",
    ),
    pytest.param(
        CODE + "if attempt == 1 and worker == 1: die(11)\nif attempt == 1: wait()",
        POOL,
        {"rebuild_only": True},
        [FIRST, after("transient", "rebuild", (0, "s0", "2", "1"), (1, "s1", "2", "1"))],
        id="rebuild",
        marks=pytest.mark.long,
    ),
    pytest.param(
        FAULT.format("critical"),
        POOL,
        {},
        [FIRST, after("fault-critical", "isolate_and_rebuild", (0, "s0", "2", "1"), (1, "s2", "2", "1"))],
        id="isolation-with-spare",
        marks=pytest.mark.long,
    ),
    pytest.param(
        FAULT.format("critical"),
        FULL,
        {},
        [FIRST, after("fault-critical", "isolate_and_rebuild", (0, "s0", "2", "1"))],
        id="isolation-with-shrink",
    ),
    pytest.param(
        FAULT.format("critical") + "\nif attempt == 2: die(11)",
        FULL,
        {"isolation_ttl_s": 0.01, "rebuild_only": True},
        [
            FIRST,
            after("fault-critical", "isolate_and_rebuild", (0, "s0", "2", "1")),
            after("transient", "rebuild", (0, "s0", "3", "1"), (1, "s1", "2", "1")),
        ],
        id="growing-back",
        marks=pytest.mark.long,
    ),
    pytest.param(
        FAULT.format("critical")
        + "\nif attempt == 2 and worker == 0: die(11)\nif attempt == 3 and worker == 1: die(11)"
        + "\nif attempt in (2, 3): wait()",
        POOL,
        {"max_worker_replacements": 1},
        [
            FIRST,
            after("fault-critical", "replace_workers", (0, "s0", "1", "2"), (1, "s2", "2", "1")),
            after("transient", "restart_in_place", (0, "s0", "1", "3"), (1, "s2", "2", "2")),
            after("transient", "rebuild", (0, "s0", "2", "1"), (1, "s2", "3", "1")),
        ],
        id="one-after-the-other",
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize(("code", "pool", "policy", "expected"), CASES)
def test_who_is_made_anew_and_what_the_ranks_are_told(
    ladder: Ladder,
    code: str,
    pool: dict[str, Any],
    policy: dict[str, Any],
    expected: list[list[Row]],
) -> None:
    assert ladder(code, pool, policy) == expected


def test_below_the_fewest_systems_the_phase_fails_and_nobody_lives(
    job: Make, seen: Seen, tmp_path: Path
) -> None:
    config = job(
        SCRIPT + FAULT.format("critical"),
        phase={"nproc_per_worker": 1},
        infrastructure=FULL,
        autorestart={"max_num_restarts": 5, "min_num_systems": 2},
    )
    with pytest.raises(RunFailedError, match="s1 isolated"):
        train_flow(config)
    assert [row(env) for env in seen()] == FIRST
    assert decisions(tmp_path) == [("min-systems", "fail", ["s1"])]


def decisions(directory: Path) -> list[tuple[str, str, list[str]]]:
    """Rule, action and isolated systems of each decision."""
    (journal,) = directory.glob("model/*_restartable*/journal.jsonl")
    lines = [line for line in read_lines(journal) if isinstance(line, DecisionLine)]
    return [(line.decision.rule, line.decision.action, list(line.decision.isolate)) for line in lines]


def test_a_system_that_dies_is_left_out(ladder: Ladder) -> None:
    """From outside the run, as a machine dies: the rank only asks for it."""
    death = f"""
if attempt == 1 and worker == 1:
    import subprocess, glob
    runtime = json.load(open(glob.glob("model/.prefect-ft/*/run.json")[0]))["runtime"]
    told = "import sys; from pathlib import Path; from prefect_ft.backends.process.backend import take_down; "
    told += "take_down(Path(sys.argv[1]), 's1')"
    env = {{"PYTHONPATH": {str(ROOT)!r}, "PATH": os.environ["PATH"]}}
    quiet = {{"stdout": open("death.log", "w"), "stderr": subprocess.STDOUT}}
    subprocess.Popen([{sys.executable!r}, "-c", told, runtime], env=env, start_new_session=True, **quiet)
if attempt == 1: wait()
"""
    assert ladder(CODE + death, POOL) == [
        FIRST,
        after("node-lost", "isolate_and_rebuild", (0, "s0", "2", "1"), (1, "s2", "2", "1")),
    ]


COMPLETED = ("completed", "complete", [])
ISOLATED = after("fault-critical", "isolate_and_rebuild", (0, "s0", "2", "1"), (1, "s2", "2", "1"))


def test_a_monitor_tells_of_a_spare_of_others_and_of_a_loss(ladder: Ladder, tmp_path: Path) -> None:
    """What stood in its file before the run is not this run's; what nobody understands changes nothing."""
    told = [
        "no json",
        json.dumps({"system": "s9", "device": 0, "code": "E1", "severity": "critical"}),
        json.dumps({"system": "s2", "device": 0, "code": "E1", "severity": "critical"}),
        json.dumps({"kind": "system_lost", "system": "s1", "message": "the rack has no power"}),
    ]
    (tmp_path / "faults.jsonl").write_text(json.dumps({"kind": "system_lost", "system": "s0"}) + "\n")
    code = (
        f"if attempt == 1 and worker == 0: open('faults.jsonl', 'a').write({chr(10).join([*told, ''])!r})\n"
    )
    assert ladder(CODE + code + "if attempt == 1: wait()", POOL, faults={"file": "faults.jsonl"}) == [
        FIRST,
        after("node-lost", "isolate_and_rebuild", (0, "s0", "2", "1")),
    ]
    assert decisions(tmp_path) == [
        ("fault-critical", "continue", ["s2"]),
        ("node-lost", "isolate_and_rebuild", ["s1"]),
        COMPLETED,
    ]


def test_a_command_lists_what_there_is_now(ladder: Ladder, tmp_path: Path) -> None:
    """What it goes on listing is one fault; before it can be executed there is none."""
    (tmp_path / "now").write_text("")
    fault = json.dumps({"system": "s1", "device": 3, "code": "80E18402"})
    code = f"if attempt == 1 and worker == 0: open('now', 'w').write({fault!r})\nif attempt == 1: wait()"
    command = {"command": ["cat", "now"], "every_s": 0.5, "preset": "ascend", "same_s": 0}
    assert ladder(CODE + code, POOL, faults=command) == [FIRST, ISOLATED]
    assert decisions(tmp_path) == [("fault-critical", "isolate_and_rebuild", ["s1"]), COMPLETED]


def test_a_line_of_output_is_a_report_where_its_code_is_known(ladder: Ladder, tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:4f:00): {}, pid=1, name=python"
    code = f"if attempt == 1 and worker == 1: print({line.format(43)!r}, {line.format(79)!r}, sep='\\n', flush=True)\n"
    told = ladder(
        CODE + code + "if attempt == 1: wait()",
        POOL,
        faults={"logs": True, "preset": "nvidia", "severities": {"xid-43": "warning"}},
    )
    assert told == [FIRST, ISOLATED]
    assert decisions(tmp_path) == [
        ("fault-warning", "continue", []),
        ("fault-critical", "isolate_and_rebuild", ["s1"]),
        COMPLETED,
    ]


HEAL = "echo $PREFECT_FT_SYSTEM $PREFECT_FT_DEVICE $PREFECT_FT_CODE $PREFECT_FT_SEVERITY >> healed; exit {}"


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [
        pytest.param(
            0,
            after("fault-healed", "restart_in_place", (0, "s0", "1", "2"), (1, "s1", "1", "2")),
            id="healed",
        ),
        pytest.param(
            1,
            after("fault-heal-failed", "isolate_and_rebuild", (0, "s0", "2", "1"), (1, "s2", "2", "1")),
            id="not-healed",
        ),
    ],
)
def test_a_fault_is_healed_while_nobody_runs(
    ladder: Ladder, tmp_path: Path, exit_code: int, expected: list[Row]
) -> None:
    pool = {**POOL, "heal": ["sh", "-c", HEAL.format(exit_code)]}
    assert ladder(FAULT.format("major"), pool) == [FIRST, expected]
    assert (tmp_path / "healed").read_text() == "s1 0 E1 major\n"


@pytest.mark.parametrize(
    ("in_use", "expected"),
    [
        pytest.param(
            False,
            after("fault-healed", "restart_in_place", (0, "s0", "1", "2"), (1, "s1", "1", "2")),
            id="reset",
        ),
        pytest.param(
            True,
            after("fault-heal-failed", "isolate_and_rebuild", (0, "s0", "2", "1"), (1, "s2", "2", "1")),
            id="in-use",
        ),
    ],
)
def test_a_fault_that_no_rank_tells_of_is_found_and_the_device_is_reset(
    ladder: Ladder, tmp_path: Path, in_use: bool, expected: list[Row]
) -> None:
    """By a library that answers as NVIDIA's and a tool that is called as NVIDIA's; without a word in the job."""
    nvml = FakeNvml(tmp_path / "nvml")
    users = "echo 4242" if in_use else ":"
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\ncase "$*" in *query*) {users};; *) echo "$*" >> {tmp_path}/reset;; esac\n')
    tool.chmod(0o755)
    env = {**nvml.env, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    pool = {"systems": ["s0", {"name": "s1", "env": env}, "s2"], "workers": 2}
    code = (
        CODE + "if attempt == 1 and worker == 1: open('nvml/xid', 'w').write('95')\nif attempt == 1: wait()"
    )
    assert ladder(code, pool, faults={"detect": ["nvml"]}) == [FIRST, expected]
    assert in_use != (tmp_path / "reset").exists()
    if not in_use:
        assert (tmp_path / "reset").read_text() == "--gpu-reset -i 1\n"


def test_a_system_is_checked_before_it_is_used(ladder: Ladder, tmp_path: Path) -> None:
    """Also a spare that is to take a worker over; each system that is in use only once."""
    check = "echo $PREFECT_FT_SYSTEM >> checked; test $PREFECT_FT_SYSTEM != s1 -a $PREFECT_FT_SYSTEM != s2"
    pool = {"systems": ["s0", "s1", "s2", "s3"], "workers": 2, "check": ["sh", "-c", check]}
    first = [(0, "s0", "1", "1", "", "node-lost", "isolate_and_rebuild"),
             (1, "s3", "1", "1", "", "node-lost", "isolate_and_rebuild")]  # fmt: skip
    again = after("transient", "restart_in_place", (0, "s0", "1", "2"), (1, "s3", "1", "2"))
    assert ladder("if attempt == 1: saved(5)\nif attempt == 1: die(11)", pool) == [first, again]
    assert sorted((tmp_path / "checked").read_text().split()) == ["s0", "s1", "s2", "s3"]
    assert decisions(tmp_path)[:2] == [
        ("node-lost", "isolate_and_rebuild", ["s1"]),
        ("node-lost", "isolate_and_rebuild", ["s2"]),
    ]


def test_a_replacement_before_the_first_attempt_finds_nobody_who_could_stay(ladder: Ladder) -> None:
    pool = {**POOL, "check": ["sh", "-c", "test $PREFECT_FT_SYSTEM != s1"]}
    assert ladder("", pool, {"max_worker_replacements": 1}) == [
        [
            (0, "s0", "1", "1", "", "node-lost", "replace_workers"),
            (1, "s2", "1", "1", "", "node-lost", "replace_workers"),
        ]
    ]


def test_a_system_is_checked_again_once_it_is_suspected(ladder: Ladder, tmp_path: Path) -> None:
    """Its agent is gone, which blames it; what its check finds then is that it is not fit any more."""
    check = "echo $PREFECT_FT_SYSTEM >> checked; test ! -e bad-$PREFECT_FT_SYSTEM"
    code = (
        CODE
        + "if attempt == 1 and worker == 1: open('bad-s1', 'w'), os.kill(os.getppid(), 9)\nif attempt == 1: wait()"
    )
    assert ladder(code, {**POOL, "check": ["sh", "-c", check]}) == [
        FIRST,
        after("node-lost", "isolate_and_rebuild", (0, "s0", "3", "1"), (1, "s2", "3", "1")),
    ]
    assert decisions(tmp_path) == [
        ("in-place-failed", "rebuild", []),
        ("node-lost", "isolate_and_rebuild", ["s1"]),
        COMPLETED,
    ]
    assert sorted((tmp_path / "checked").read_text().split()) == ["s0", "s1", "s1", "s2"]


SAVES = """
if attempt == 1 and worker == 1:
    os.utime("ck/step-5.npz", (1e9, 1e9))  # one of this moment would do
    report_fault(0, "E1", "critical")
while attempt == 1:
    time.sleep(0.001)
    if heartbeat.should_checkpoint():
        save(7)
        {}
"""


@pytest.mark.parametrize("then", ["wait()", "sys.exit()"])
def test_who_still_works_saves_before_a_planned_stop(ladder: Ladder, then: str) -> None:
    """Whether it waits to be ended then or ends by itself, which completes nothing."""
    phase = {"checkpoints": {"path": "ck", "on_demand": {}}}
    _, second = ladder(CODE + SAVES.format(then), POOL, phase=phase)
    assert [told[4] for told in second] == ["step-7.npz"] * 2


def test_a_signal_asks_as_well_and_nobody_is_waited_for_longer_than_the_grace(ladder: Ladder) -> None:
    code = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: open(f"asked-{worker}", "w"))
open(f"ready-{worker}", "w")
while not os.path.exists("ready-0"): time.sleep(0.001)
if attempt == 1 and worker == 1: report_fault(0, "E1", "critical")
while attempt == 1: time.sleep(0.001)
if not (os.path.exists("asked-0") and os.path.exists("asked-1")): die()
"""
    phase = {"checkpoints": {"path": "ck", "on_demand": {"signal": "SIGUSR1", "grace_s": 1.0}}}
    assert ladder(CODE + code, POOL, phase=phase) == [FIRST, ISOLATED]


def test_a_notice_of_preemption_moves_nobody_to_another_system(ladder: Ladder, tmp_path: Path) -> None:
    notice = json.dumps({"kind": "preempted", "system": "s1"})
    code = f"if attempt == 1 and worker == 0: open('faults.jsonl', 'a').write({notice + chr(10)!r})\n"
    assert ladder(CODE + code + "if attempt == 1: wait()", POOL, faults={"file": "faults.jsonl"}) == [
        FIRST,
        after("preempted", "rebuild", (0, "s0", "2", "1"), (1, "s1", "2", "1")),
    ]
    assert decisions(tmp_path) == [("preempted", "rebuild", []), COMPLETED]
