"""What Slurm says of jobs, read: lines as Slurm 22.05 printed them, or as its manual pages have them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from prefect_ft.backends.kind import TenureEnd
from prefect_ft.backends.slurm.commands import CommandResult, Slurm
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


# -- recorded ---------------------------------------------------------------------------------------

RECORDED = {
    "running": (
        (
            "JobId=5 JobName=wrap Priority=4294901754 JobState=RUNNING Reason=None Requeue=0 Restarts=0 "
            "ExitCode=0:0 TimeLimit=00:30:00 EndTime=2026-11-24T13:13:44 Deadline=N/A ReqNodeList=(null) "
            "ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2"
        ),
        "5|RUNNING|n[1-2]",
    ),
    "suspended": (
        (
            "JobId=2 JobName=wrap Priority=0 JobState=SUSPENDED Reason=None Requeue=0 Restarts=0 "
            "ExitCode=0:0 TimeLimit=00:30:00 EndTime=2026-11-24T13:13:02 Deadline=N/A SuspendTime=2026-11-24T12:43:05 "
            "NodeList=n1 BatchHost=n1 NumNodes=1"
        ),
        "2|SUSPENDED|n1",
    ),
    "resized": (
        (
            "JobId=6 JobName=wrap JobState=RUNNING Reason=None Requeue=0 Restarts=0 ExitCode=0:0 "
            "TimeLimit=00:30:00 ResizeTime=2026-11-24T12:44:37 EndTime=2026-11-24T13:14:34 Deadline=N/A NodeList=n0 "
            "BatchHost=n0 NumNodes=1"
        ),
        "6|RESIZING|n[0-1]\n6|RUNNING|n0",
    ),
    "requeued": (
        (
            "JobId=4 JobName=wrap JobState=PENDING Reason=BeginTime Requeue=1 Restarts=1 ExitCode=0:0 "
            "TimeLimit=00:30:00 StartTime=2026-11-24T12:45:27 EndTime=2026-11-24T13:15:27 Deadline=N/A "
            "ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1"
        ),
        "4|REQUEUED|n2\n4|PENDING|None assigned",
    ),
    "requeued-by-a-preemption": (
        (
            "JobId=2 JobName=wrap JobState=PENDING Reason=BeginTime Requeue=1 Restarts=1 ExitCode=0:0 "
            "TimeLimit=UNLIMITED EndTime=Unknown Deadline=N/A NodeList= NumNodes=2"
        ),
        "2|PREEMPTED|n[2-3]\n2|PENDING|None assigned",
    ),
    "launch-failed": (
        (
            "JobId=1 JobName=wrap JobState=PENDING Reason=launch_failed_requeued_held Dependency=(null) Requeue=1 "
            "Restarts=0 ExitCode=0:0 TimeLimit=UNLIMITED EndTime=Unknown Deadline=N/A NodeList= NumNodes=1"
        ),
        "1|REQUEUED|n0\n1|PENDING|None assigned",
    ),
    "deadline": (
        (
            "JobId=3 JobName=wrap JobState=DEADLINE Reason=DeadLine Requeue=1 Restarts=0 ExitCode=0:1 "
            "TimeLimit=00:01:00 StartTime=2026-11-24T12:43:18 EndTime=2026-11-24T12:43:18 Deadline=2026-11-24T12:44:17 "
            "ReqNodeList=(null) ExcNodeList=(null) NodeList= SchedNodeList=n[0-2] NumNodes=3"
        ),
        "3|DEADLINE|None assigned",
    ),
    "cancelled-in-the-queue": (
        (
            "JobId=4 JobName=wrap JobState=CANCELLED Reason=BeginTime Requeue=1 Restarts=0 ExitCode=0:0 "
            "TimeLimit=00:30:00 EndTime=2026-11-24T12:43:33 Deadline=N/A NodeList= NumNodes=1"
        ),
        "4|CANCELLED by 0|None assigned",
    ),
    "cancelled": (
        (
            "JobId=2 JobName=wrap JobState=CANCELLED Reason=None Requeue=0 Restarts=0 ExitCode=0:15 "
            "TimeLimit=00:30:00 EndTime=2026-11-24T12:43:38 Deadline=N/A NodeList=n1 BatchHost=n1 NumNodes=1"
        ),
        "2|CANCELLED by 0|n1",
    ),
    "node-fail": (
        (
            "JobId=5 JobName=wrap JobState=NODE_FAIL Reason=NodeDown Requeue=0 Restarts=0 ExitCode=0:15 "
            "TimeLimit=00:30:00 EndTime=2026-11-24T12:44:22 Deadline=N/A NodeList=n[1-2] BatchHost=n1 NumNodes=2"
        ),
        "5|NODE_FAIL|n[1-2]",
    ),
    "timeout": (
        (
            "JobId=1 JobName=wrap JobState=TIMEOUT Reason=TimeLimit Requeue=0 Restarts=0 ExitCode=0:15 "
            "TimeLimit=00:01:00 EndTime=2026-11-24T12:44:02 Deadline=N/A NodeList=n0 BatchHost=n0 NumNodes=1"
        ),
        "1|TIMEOUT|n0",
    ),
    "preempted": (
        (
            "JobId=5 JobName=wrap JobState=PREEMPTED Reason=None Requeue=0 Restarts=0 ExitCode=0:15 "
            "TimeLimit=UNLIMITED PreemptTime=2026-11-24T09:31:07 Deadline=N/A NodeList=n[2-3] BatchHost=n2 NumNodes=2"
        ),
        "5|PREEMPTED|n[2-3]",
    ),
    "a-step-out-of-memory": (
        (
            "JobId=1 JobName=wrap JobState=FAILED Reason=NonZeroExitCode Requeue=0 Restarts=0 "
            "ExitCode=1:0 TimeLimit=UNLIMITED Deadline=N/A NodeList=n0 BatchHost=n0 NumNodes=1"
        ),
        "1|FAILED|n0",
    ),
}
"""By what had happened: lines of `scontrol show job -o`, without fields that nobody reads, and `sacct -X -D` (22.05).

Of BOOT_FAIL as the state of a whole job there is no record.
"""

READ = {
    "running": ("handed_over", "it was requeued"),
    "suspended": ("handed_over", "it was requeued"),
    "resized": ("handed_over", "it was requeued"),
    "requeued": ("handed_over", "it was requeued"),
    "requeued-by-a-preemption": ("preempted", "PREEMPTED"),
    "launch-failed": ("rebuild_failed", "PENDING (launch_failed_requeued_held)"),
    "deadline": ("handed_over", "DEADLINE (DeadLine)"),
    "cancelled-in-the-queue": ("cancelled", "CANCELLED (BeginTime)"),
    "cancelled": ("cancelled", "CANCELLED"),
    "node-fail": ("system_lost", "NODE_FAIL (NodeDown)"),
    "timeout": ("handed_over", "TIMEOUT (TimeLimit)"),
    "preempted": ("preempted", "PREEMPTED"),
    "a-step-out-of-memory": ("handed_over", "FAILED (NonZeroExitCode)"),
}
"""What each is to a run in whose first life of the job it was, and in words."""


def slurm(scontrol: CommandResult, sacct: CommandResult) -> Slurm:
    def run(words: Sequence[str], timeout_s: float) -> CommandResult:
        return {"scontrol": scontrol, "sacct": sacct}[words[0]]

    return Slurm(run=run)


@pytest.mark.parametrize("what", READ)
def test_what_slurm_says_of_a_job_is_an_incident_of_its_run(what: str) -> None:
    line, rows = RECORDED[what]
    asked = slurm(CommandResult(True, line + "\n", ""), CommandResult(True, rows + "\n", ""))
    found = end_of(asked.last_known(rows.split("|")[0], 0), "slurm-1")
    assert (found.kind, found.reason) == (READ[what][0], f"slurm-1 ended: {READ[what][1]}")


@pytest.mark.parametrize("recorded", ["PENDING", "RUNNING"])
def test_an_accounting_that_is_behind_does_not_hide_an_end(recorded: str) -> None:
    line, rows = RECORDED["node-fail"]
    job = rows.split("|")[0]
    being_ended = line.replace("JobState=NODE_FAIL", "JobState=COMPLETING")
    asked = slurm(
        CommandResult(True, being_ended + "\n", ""), CommandResult(True, f"{job}|{recorded}|n0\n", "")
    )
    told = asked.last_known(job, 0)
    assert told is not None
    assert told.state == "COMPLETING"


FORGOTTEN = CommandResult(False, "", "slurm_load_jobs error: Invalid job id specified")


@pytest.mark.parametrize("what", sorted(READ.keys() - {"running", "suspended", "resized", "launch-failed"}))
def test_what_slurmctld_has_forgotten_the_accounting_knows(what: str) -> None:
    _, rows = RECORDED[what]
    asked = slurm(FORGOTTEN, CommandResult(True, rows + "\n", ""))
    assert end_of(asked.last_known(rows.split("|")[0], 0), "slurm-1").kind == READ[what][0]


def test_a_job_whose_memory_was_used_up() -> None:
    """State and node are a record of Rackham's, of 2024-07-16, in sacct's form: UPPMAX/ticket_296478, README.md."""
    asked = slurm(FORGOTTEN, CommandResult(True, "48767710|OUT_OF_MEMORY|r153\n", ""))
    found = end_of(asked.last_known("48767710", 0), "slurm-48767710")
    assert (found.kind, found.failure_class) == ("exit", "oom_host")


@pytest.mark.parametrize(
    "sacct", ["sacct: No such file or directory", "Slurm accounting storage is disabled"]
)
@pytest.mark.parametrize("scontrol", ["forgotten", "silent"])
def test_an_end_that_nobody_tells_of_is_unknown(sacct: str, scontrol: str) -> None:
    answer = FORGOTTEN if scontrol == "forgotten" else CommandResult(False, "", "no answer in 20 s")
    asked = slurm(answer, CommandResult(False, "", sacct))
    assert asked.last_known("1", 0) is None


@pytest.mark.parametrize(
    ("what", "never"),
    [
        ("deadline", True),
        ("cancelled-in-the-queue", True),
        ("cancelled", False),
        ("timeout", False),
        ("requeued", False),
    ],
)
def test_a_job_that_ended_without_nodes_never_began(what: str, never: bool) -> None:
    line, rows = RECORDED[what]
    told = read_scontrol(line)
    assert told is not None
    assert told.never_began is never
    of_sacct = read_sacct(rows, rows.split("|")[0])
    assert of_sacct is not None
    assert of_sacct.never_began is never


def test_each_life_of_a_job_has_its_end() -> None:
    rows = "9|RESIZING|n[0-1]\n9|PREEMPTED|n0\n9|NODE_FAIL|n[2-3]\n9|TIMEOUT|n1\n"
    ends = [read_sacct(rows, "9", life) for life in range(4)]
    assert [each and each.state for each in ends] == ["PREEMPTED", "NODE_FAIL", "TIMEOUT", None]
