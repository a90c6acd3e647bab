"""Checkpoints of which each worker has a part on a disk of its own, which no other worker sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import dcp_metadata

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.errors import ConfigError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import AttemptLine, CheckpointLine, DecisionLine

Make = Callable[..., JobConfig]
Seen = Callable[..., list[dict[str, str]]]

CODE = f"""
METADATA = {dcp_metadata("__0_0.distcp", "__1_0.distcp")!r}
disk = "disk-" + os.environ["PREFECT_FT_SYSTEM"]

def whole(path, data):
    with open(path + ".tmp", "wb") as file:
        file.write(data)
    os.replace(path + ".tmp", path)

def save_part(step):
    os.makedirs(f"{{disk}}/step-{{step}}", exist_ok=True)
    whole(f"{{disk}}/step-{{step}}/__{{rank}}_0.distcp", b"x" * 100)

def meet(what):
    open(f"met-{{restarts}}-{{what}}-{{rank}}", "x").close()
    while not all(os.path.exists(f"met-{{restarts}}-{{what}}-{{other}}") for other in range(2)):
        time.sleep(0.001)

def save_all(step):
    save_part(step)
    meet(f"saved-{{step}}")
    if rank == 0:
        whole(f"{{disk}}/step-{{step}}/.metadata", METADATA)
    meet(f"done-{{step}}")

if resume:
    assert os.path.exists(f"{{resume}}/__{{rank}}_0.distcp"), resume
"""


@pytest.fixture
def on_two_disks(job: Make) -> Make:
    """Return a job of two workers with one rank each, and a spare system; each system has a disk of its own."""

    def make(code: str, **fields: Any) -> JobConfig:
        checkpoints = {"path": "disk-{system}", "local": True, "settle_s": 0.2}
        return job(
            CODE + code,
            phase={"checkpoints": checkpoints, "nproc_per_worker": 1},
            infrastructure={"type": "process", "systems": ["s0", "s1", "s2"], "workers": 2},
            **fields,
        )

    return make


def journal(job: JobConfig) -> list[Any]:
    return list(read_lines(next(Path(job.model_dir).glob("*_restartable/journal.jsonl"))))


def test_a_checkpoint_counts_once_all_workers_have_their_parts(
    on_two_disks: Make, seen: Seen, tmp_path: Path
) -> None:
    """Step 30 is on one disk alone when its other writer dies: worker 0 by itself would have taken it."""
    config = on_two_disks(
        """
if not restarts:
    save_all(10); save_all(20)
    if rank == 0:
        save_part(30); whole(f"{disk}/step-30/.metadata", METADATA)
    meet("before")
    time.sleep(0.5)
    if rank == 1: die()
    wait()
"""
    )
    assert train_flow(config)[0]["status"] == "completed"
    lines = journal(config)
    saved = [line for line in lines if isinstance(line, CheckpointLine)]
    assert {line.step: line.path for line in saved} == {
        step: str(tmp_path / f"disk-s0/step-{step}") for step in (10, 20)
    }
    assert [env["PREFECT_FT_RESUME_FROM"] for env in seen()] == [
        "", "", str(tmp_path / "disk-s0/step-20"), str(tmp_path / "disk-s1/step-20")
    ]  # fmt: skip
    (second,) = [line for line in lines if isinstance(line, AttemptLine) and line.attempt == 2]
    assert second.passed_over == {"step-30": "worker 1 has no whole part of it on s1"}


def test_a_part_that_is_damaged_before_the_restart_is_not_resumed_from(
    on_two_disks: Make, seen: Seen, tmp_path: Path
) -> None:
    config = on_two_disks(
        """
if not restarts:
    save_all(10); save_all(20)
    time.sleep(0.6)
    meet("settled")
    if rank == 1:
        os.truncate(f"{disk}/step-20/__1_0.distcp", 0)
        time.sleep(0.6)
        die()
    wait()
"""
    )
    assert train_flow(config)[0]["status"] == "completed"
    assert [env["PREFECT_FT_RESUME_FROM"] for env in seen()][2:] == [
        str(tmp_path / f"disk-{system}/step-10") for system in ("s0", "s1")
    ]


def test_a_worker_on_a_spare_has_no_parts_so_all_begin_from_scratch(on_two_disks: Make, seen: Seen) -> None:
    config = on_two_disks(
        """
if not restarts:
    save_all(10)
    time.sleep(0.6)
    meet("settled")
    if rank == 1:
        from prefect_ft import report_fault
        report_fault(device="0", code="0x1", severity="critical", message="off the bus")
    wait()
"""
    )
    assert train_flow(config)[0]["status"] == "completed"
    lines = journal(config)
    (decided,) = [line.decision for line in lines if isinstance(line, DecisionLine)][:1]
    assert (decided.rule, decided.placement, decided.resume_step) == ("fault-critical", ("s0", "s2"), 10)
    assert [env["PREFECT_FT_RESUME_FROM"] for env in seen()] == [""] * 4
    (second,) = [line for line in lines if isinstance(line, AttemptLine) and line.attempt == 2]
    assert second.why == "step-10: worker 1 has no whole part of it on s2"


@pytest.mark.parametrize(
    ("checkpoints", "message"),
    [
        ({"path": "s3://bucket/ck", "local": True}, "cannot be combined with a URL"),
        ({"path": "ck", "local": True, "keep_copies": True}, "cannot be combined with keep_copies"),
    ],
)
def test_what_cannot_be_local_is_refused(job: Make, checkpoints: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job(phase={"checkpoints": checkpoints})


def test_a_disk_that_cannot_be_written_is_named(on_two_disks: Make, tmp_path: Path) -> None:
    (tmp_path / "disk-s2").write_text("in the way")
    with pytest.raises(ConfigError, match="disk-s2 is not a directory"):
        train_flow(on_two_disks(""))
