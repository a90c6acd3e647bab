"""What Slurm says of jobs, read: lines as Slurm 22.05 printed them, or as its manual pages have them."""

from __future__ import annotations

from datetime import datetime

import pytest

from prefect_ft.backends.kind import TenureEnd
from prefect_ft.backends.slurm.states import JobState, end_of, read_sacct, read_scontrol

SCONTROL = (
    "JobId=1 JobName=pft-x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts={restarts} BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 TimeLimit={limit} StartTime=2026-11-24T09:19:37 EndTime={end} Deadline=N/A SecsPreSuspend=0 "
    "Partition=main ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=n0 NumNodes=3 Command=/t.sh "
)


def scontrol(
    state: str,
    reason: str = "None",
    end: str = "Unknown",
    nodes: str = "n[0-2]",
    restarts: int = 0,
    limit: str = "UNLIMITED",
) -> str:
    return (
        SCONTROL.format(state=state, reason=reason, end=end, nodes=nodes, restarts=restarts, limit=limit)
        + "\n"
    )


def test_a_job_without_a_limit_is_read() -> None:
    assert read_scontrol(scontrol("RUNNING")) == JobState(job="1", state="RUNNING", nodes="n[0-2]")


def test_the_end_of_a_job_without_a_limit_is_none_though_slurm_may_name_one() -> None:
    """A year from its start, with a limit of a year, as 22.05 printed it."""
    told = read_scontrol(scontrol("RUNNING", end="2027-11-24T09:19:37", limit="365-00:00:00"))
    assert told is not None
    assert told.ends_s is None


def test_a_job_with_a_limit_is_read_in_the_zone_of_this_machine() -> None:
    told = read_scontrol(scontrol("RUNNING", end="2026-11-24T10:19:37", limit="01:00:00"))
    assert told is not None
    assert told.ends_s == datetime(2026, 11, 24, 10, 19, 37).timestamp()  # noqa: DTZ001  (as Slurm prints it)


def test_a_job_that_waits_has_no_nodes() -> None:
    told = read_scontrol(scontrol("PENDING", reason="Dependency", nodes="(null)"))
    assert told == JobState(job="1", state="PENDING", reason="Dependency")
    assert (told.is_pending, told.has_ended) == (True, False)


def test_the_lives_of_a_job_are_told() -> None:
    told = read_scontrol(scontrol("RUNNING", restarts=2))
    assert told is not None
    assert told.restarts == 2


def test_what_is_no_job_is_none() -> None:
    assert read_scontrol("slurm_load_jobs error: Invalid job id specified") is None
    assert read_scontrol("") is None


def test_the_last_life_of_a_job_is_read_of_sacct() -> None:
    said = "17|NODE_FAIL|n[0-1]\n17|RESIZING|n0\n17|CANCELLED by 1000|n[2-3]\n17.0|COMPLETED|n2\n170|TIMEOUT|n9\n"
    assert read_sacct(said, "17") == JobState(
        job="17", state="CANCELLED", reason="CANCELLED by 1000", nodes="n[2-3]"
    )
    assert read_sacct(said, "18") is None
    assert read_sacct("", "17") is None


ENDS = {
    "NODE_FAIL": ("system_lost", None),
    "PREEMPTED": ("preempted", None),
    "TIMEOUT": ("handed_over", None),
    "DEADLINE": ("handed_over", None),
    "COMPLETED": ("handed_over", None),
    "FAILED": ("handed_over", None),
    "OUT_OF_MEMORY": ("exit", "oom_host"),
    "BOOT_FAIL": ("rebuild_failed", None),
    "CANCELLED": ("cancelled", None),
}


@pytest.mark.parametrize("state", ENDS)
def test_an_end_is_an_incident(state: str) -> None:
    kind, failure_class = ENDS[state]
    told = read_scontrol(scontrol(state))
    assert told is not None
    assert told.has_ended
    expected = TenureEnd(kind=kind, reason=f"slurm-1 ended: {state}", failure_class=failure_class)  # type: ignore[arg-type]
    assert end_of(told, "slurm-1") == expected


@pytest.mark.parametrize(
    "state", ["PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "CONFIGURING", "REQUEUE_HOLD"]
)
def test_what_is_on_its_way_has_not_ended(state: str) -> None:
    told = read_scontrol(scontrol(state))
    assert told is not None
    assert not told.has_ended


@pytest.mark.parametrize("reason", ["launch_failed_requeued_held", "JobLaunchFailure"])
def test_a_launch_that_failed_is_no_working_allocation(reason: str) -> None:
    told = read_scontrol(scontrol("PENDING", reason=reason, nodes="(null)"))
    assert end_of(told, "slurm-1") == TenureEnd(
        kind="rebuild_failed", reason=f"slurm-1 ended: PENDING ({reason})"
    )


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "REQUEUED"])
def test_a_job_that_is_there_again_was_requeued(state: str) -> None:
    """It is asked of a tenure that has ended: the job lives in another one."""
    told = read_scontrol(scontrol(state))
    assert end_of(told, "slurm-1") == TenureEnd(kind="handed_over", reason="slurm-1 ended: it was requeued")


def test_what_nobody_knows_was_handed_over() -> None:
    assert end_of(None, "slurm-1").kind == "handed_over"
