"""What can be known to be wrong before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.backends.process.capacity import Limit, Machine, most_ranks
from prefect_ft.clock import utc_now
from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.orchestrate.preflight import check, quarantined
from prefect_ft.run.quarantine import Quarantined, add


def job(tmp_path: Path, *, phase: dict[str, Any] | None = None, **fields: Any) -> JobConfig:
    document = {
        "name": "test",
        "model_dir": "model",
        "phases": [{"name": "train", "command": ["true"], **(phase or {})}],
    }
    return JobConfig.model_validate({**document, **fields}).at(tmp_path)


def test_a_job_that_can_run_leaves_only_directories(tmp_path: Path) -> None:
    check(job(tmp_path, phase={"checkpoints": {"path": "ck"}}, journal_dir="journals"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["ck", "journals", "model"]


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        pytest.param({"model_dir": "/proc/x"}, "model_dir", "/proc/x cannot be written", id="model-dir"),
        pytest.param(
            {"journal_dir": "/proc/x"}, "journal_dir", "/proc/x cannot be written", id="journal-dir"
        ),
        pytest.param({"phase": {"cwd": "gone"}}, "phases[0].cwd", "gone is not a directory", id="cwd"),
        pytest.param(
            {"phase": {"checkpoints": {"path": "/proc/x"}}},
            "phases[0].checkpoints.path",
            "/proc/x cannot be written",
            id="checkpoints",
        ),
        pytest.param(
            {"phase": {"command": ["no-such-program"]}},
            "phases[0].command",
            "command not found: 'no-such-program'",
            id="command-on-path",
        ),
        pytest.param(
            {"phase": {"command": ["/nowhere/torchrun", "t.py"], "rewrite_launcher": True}},
            "phases[0].command",
            "command not found: '/nowhere/python'",
            id="beside-torchrun",
        ),
        pytest.param(
            {"phase": {"command": ["true"], "env": {"PATH": "/nowhere"}}},
            "phases[0].command",
            "command not found: 'true'",
            id="on-the-ranks-path",
        ),
        pytest.param(
            {"phase": {"command": ["./program"]}},
            "phases[0].command",
            "command not found: './program'",
            id="command",
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_field(
    tmp_path: Path, fields: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(job(tmp_path, **fields))
    assert caught.value.field == field
    assert message in caught.value.message


def test_a_program_in_the_directory_of_the_phase_is_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program").write_text("#!/bin/sh\n")
    (tmp_path / "sub" / "program").chmod(0o755)
    check(job(tmp_path, phase={"command": ["./program"], "cwd": "sub"}))


def said_of(configured: JobConfig) -> tuple[str | None, str]:
    with pytest.raises(ConfigError) as caught:
        check(configured)
    return caught.value.field, caught.value.message


@pytest.mark.parametrize(
    ("name", "words"), [("run.sh", '["bash", "./run.sh"]'), ("run.py", '["python", "./run.py"]')]
)
def test_a_program_that_nobody_may_execute_is_no_missing_one(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).touch(mode=0o644)
    remedy = f"chmod +x {tmp_path}/./{name}, or write command: {words} with the words that follow"
    said = f"'./{name}' is not executable; {remedy}"
    assert said_of(job(tmp_path, phase={"command": [f"./{name}"]})) == ("phases[0].command", said)


def test_a_program_on_path_that_nobody_may_execute(tmp_path: Path) -> None:
    (tmp_path / "mine").touch(mode=0o644)
    configured = job(tmp_path, phase={"command": ["mine"], "env": {"PATH": str(tmp_path)}})
    assert said_of(configured)[1].startswith(f"'mine' is not executable; chmod +x {tmp_path}/mine, or write")


def test_a_program_beside_the_job_is_not_on_path(tmp_path: Path) -> None:
    (tmp_path / "mine").touch(mode=0o755)
    said = f"command not found: 'mine'; it is not on PATH, and lies in {tmp_path}: write ./mine"
    assert said_of(job(tmp_path, phase={"command": ["mine"]}))[1] == said


def test_a_directory_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    said = "'./sub' is a directory; write a program that is in it"
    assert said_of(job(tmp_path, phase={"command": ["./sub"]})) == ("phases[0].command", said)


@pytest.mark.parametrize("field", ["model_dir", "journal_dir"])
def test_a_file_is_no_directory(tmp_path: Path, field: str) -> None:
    (tmp_path / "file").touch()
    said = f"{tmp_path}/file is not a directory; set the path of one"
    assert said_of(job(tmp_path, **{field: "file"})) == (field, said)


DEEP = "/".join(["d" * 250] * 16)
"""Short enough to be a path, and too long below any directory."""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"model_dir": DEEP}, "model_dir", id="model-dir"),
        pytest.param({"journal_dir": DEEP}, "journal_dir", id="journal-dir"),
        pytest.param({"phase": {"cwd": DEEP}}, "phases[0].cwd", id="cwd"),
        pytest.param(
            {"phase": {"checkpoints": {"path": DEEP}}}, "phases[0].checkpoints.path", id="checkpoints"
        ),
        pytest.param({"phase": {"command": [f"{DEEP}/x"]}}, "phases[0].command", id="command"),
        pytest.param({"phase": {"command": ["x" * 5000]}}, "phases[0].command", id="name-of-a-command"),
    ],
)
def test_a_path_that_is_too_long_where_it_leads(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    below = tmp_path / ("e" * 100)
    below.mkdir()
    assert said_of(job(below, **fields))[0] == field


# -- how many ranks ---------------------------------------------------------------------------------------


def refused(tmp_path: Path, ranks: int, which: str, most: int, workers: int = 1) -> str:
    """What is said of so many ranks by a process whose limit is `most`."""
    systems = [f"s{number}" for number in range(workers)]
    configured = job(
        tmp_path,
        phase={"nproc_per_worker": ranks},
        infrastructure={"type": "process", "systems": systems, "workers": workers},
    )
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED, which, str(most), configured.model_dump_json()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ended.stdout.strip()


REFUSED = """
import resource, sys
from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.orchestrate.preflight import check
_, which, most, job = sys.argv
resource.setrlimit(getattr(resource, which), (int(most), int(most)))
try:
    check(JobConfig.model_validate_json(job))
except ConfigError as error:
    print(error)
"""


def test_more_ranks_than_descriptors_are_refused_before_anything_starts(tmp_path: Path) -> None:
    said = refused(tmp_path, 35, "RLIMIT_NOFILE", 100)
    assert said == (
        "phases[0].nproc_per_worker: 35 ranks cannot be started here: the limit of open files (ulimit -n) is 100, "
        "and an agent needs 2 for a rank; write 34 or fewer, or raise it"
    )
    assert refused(tmp_path, 34, "RLIMIT_NOFILE", 100) == ""


def machine(folder: Path, **files: str) -> Machine:
    """A machine whose kernel says what these files hold."""
    for name, content in {"proc/self/cgroup": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return Machine(proc=folder / "proc", cgroups=folder / "cgroup")


GROUP_2 = {"proc/self/cgroup": "0::/outer/inner\n"}
GROUP_1 = {"proc/self/cgroup": "9:name=systemd:/\n8:pids:/outer/inner\n4:cpu,memory:/outer/inner\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "ranks", "why"),
    [
        pytest.param({}, None, None, id="nothing-is-known"),
        pytest.param(
            {"proc/sys/kernel/pid_max": "32768\n", "proc/sys/kernel/threads-max": "1000"},
            248, "kernel.threads-max (sysctl) leaves 1,000 processes", id="kernel",
        ),
        pytest.param(
            {**GROUP_2, "cgroup/outer/pids.max": "200\n", "cgroup/outer/pids.current": "100\n",
             "cgroup/outer/inner/pids.max": "max\n"},
            23, "pids.max of the control group HERE/cgroup/outer leaves 100 processes", id="group-around-it",
        ),
        pytest.param(
            {**GROUP_1, "cgroup/pids/outer/inner/pids.max": "40\n"},
            8, "pids.max of the control group HERE/cgroup/pids/outer/inner leaves 40 processes", id="version-1",
        ),
        pytest.param(
            {"proc/meminfo": "MemTotal:      1048576 kB\nMemFree:   1 kB\n"},
            256, "the machine's memory is 1024 MiB, and a process takes one or more", id="memory",
        ),
        pytest.param(
            {**GROUP_2, "cgroup/memory.max": "max", "cgroup/outer/inner/memory.max": str(512 << 20)},
            128, "memory.max of the control group HERE/cgroup/outer/inner is 512 MiB, and a process takes one or more",
            id="memory-of-a-group",
        ),
        pytest.param(
            {**GROUP_1, "cgroup/memory/outer/inner/memory.limit_in_bytes": str((1 << 63) - 4096)},
            None, None, id="no-limit-of-version-1",
        ),
        pytest.param(
            {**GROUP_2, "cgroup/pids.max": "4", "cgroup/pids.current": "9"},
            -2, "pids.max of the control group HERE/cgroup leaves 0 processes", id="nothing-is-left",
        ),
    ],
)  # fmt: skip
def test_the_least_limit_decides(
    tmp_path: Path, files: dict[str, str], ranks: int | None, why: str | None
) -> None:
    found = most_ranks(machine(tmp_path, **files), workers=4)
    expected = None if ranks is None else Limit(ranks, str(why).replace("HERE", str(tmp_path)))
    assert found == expected


def test_groups_that_agents_leave_do_not_count(tmp_path: Path) -> None:
    here = machine(tmp_path, **GROUP_2, **{"cgroup/pids.max": "4"})
    assert most_ranks(here._replace(is_grouped=False), 1) is None


def test_limits_of_the_process_itself() -> None:
    here = Machine(proc=Path("/nowhere"), cgroups=Path("/nowhere"), processes=100, files=1024)
    assert most_ranks(here, 1) == Limit(98, "the user's limit of processes (ulimit -u) leaves 100 processes")
    assert most_ranks(here._replace(processes=1), 1) == Limit(
        -1, "the user's limit of processes (ulimit -u) leaves 1 process"
    )
    assert most_ranks(here._replace(processes=None), 50) == Limit(
        496, "the limit of open files (ulimit -n) is 1024, and an agent needs 2 for a rank"
    )


def written(tmp_path: Path, *systems: str) -> str:
    path = tmp_path / "quarantine.jsonl"
    add(path, [Quarantined(system=system, since=utc_now()) for system in systems])
    return str(path)


POOL = {"type": "process", "systems": ["s0", "s1", "s2"], "workers": 2}


@pytest.mark.parametrize(
    ("out", "fields", "found"),
    [
        pytest.param([], {}, (), id="none"),
        pytest.param(["s2", "s1", "elsewhere"], {}, ("s1", "s2"), id="an-elastic-phase-begins-smaller"),
        pytest.param(["s1"], {"phase": {"elastic": False}}, ("s1",), id="a-spare-takes-its-place"),
        pytest.param(
            ["s0", "s1"],
            {"phase": {"elastic": False}},
            "needs 2 systems, but 1 of its 3 are usable; in quarantine: s0, s1",
            id="too-few-for-one-that-is-not-elastic",
        ),
        pytest.param(
            ["s0", "s1"],
            {"autorestart": {"max_num_restarts": 1, "min_num_systems": 2}, "phase": {"mode": "eval"}},
            "needs 2 systems, but 1 of its 3 are usable; in quarantine: s0, s1",
            id="fewer-than-min-num-systems",
        ),
    ],
)  # fmt: skip
def test_systems_in_quarantine(
    tmp_path: Path, out: list[str], fields: dict[str, Any], found: tuple[str, ...] | str
) -> None:
    configured = job(tmp_path, infrastructure=POOL, quarantine=written(tmp_path, *out), **fields)
    if isinstance(found, tuple):
        assert quarantined(configured) == found
    else:
        with pytest.raises(ConfigError, match=f"quarantine.jsonl: phase train {found}"):
            quarantined(configured)


def test_a_quarantine_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        quarantined(job(tmp_path, quarantine="/proc/x/quarantine.jsonl"))
    assert (caught.value.field, "/proc/x cannot be written" in str(caught.value)) == ("quarantine", True)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param("directory", "cannot be read: Is a directory", id="a-directory"),
        pytest.param(b"\xff", "is not UTF-8 text; put the quarantine back", id="no-text"),
    ],
)
def test_a_quarantine_that_cannot_be_read_is_the_fault_of_its_field(
    tmp_path: Path, made: str | bytes, said: str
) -> None:
    path = tmp_path / "quarantine.jsonl"
    path.write_bytes(made) if isinstance(made, bytes) else path.mkdir()
    with pytest.raises(ConfigError) as caught:
        quarantined(job(tmp_path, quarantine=str(path)))
    assert str(caught.value).startswith(f"quarantine: {path} {said}")
