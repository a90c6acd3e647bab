"""Journals of runs that are over, made by the decision core itself: one each that came through, hung, and gave up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from prefect_ft.decide import decide, limits_of
from prefect_ft.journal.lines import Journal, MemoryJournal
from prefect_ft.journal.records import HangLine, Line, read_line
from prefect_ft.model import Decision, Entry, Evidence, Incident, Policy

BEGAN = datetime(2026, 3, 1, 22, 0, tzinfo=timezone.utc)
STACKS = """rank 0, pid 4711, state S
  File "train.py", line 88 in step
  File "torch/distributed/distributed_c10d.py", line 2806 in all_reduce

rank 3, pid 4714, state S
  File "data.py", line 31 in read
  File "loader.py", line 102 in next_batch
"""


BAD_RECORD = "ValueError: shard-0017.tar: record 88 is truncated"


@dataclass
class Telling:
    """Writes one phase's journal, minute by minute."""

    policy: Policy
    phase: str = "pretrain"
    job: str = "char-lm"
    index: int = 0
    began_s: float = 0.0
    target_step: int | None = None
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    number: int = 0
    placement: tuple[str, ...] = ()
    step_s: float = 3.0
    """Seconds that a step takes."""

    def __post_init__(self) -> None:
        self.placement = self.policy.systems[: self.policy.workers]
        self.append(
            "phase", 0.0, run="20260301-220000-c0ffee", job=self.job, phase=self.phase, index=self.index,
            mode=self.policy.mode, systems=list(self.policy.systems), isolated=[], workers=self.policy.workers,
            target_step=self.target_step, limits=limits_of(self.policy),
        )  # fmt: skip

    def append(self, kind: str, t: float, **fields: Any) -> None:
        utc = (BEGAN + timedelta(seconds=self.began_s + t)).isoformat(timespec="milliseconds")
        stamp = {"t": t, "utc": utc.replace("+00:00", "Z")}
        self.journal.append(read_line({"type": kind, **stamp, **fields}), **stamp)

    def attempt(
        self, t: float, *, saved_every: int, until: float, passed_over: dict[str, str] | None = None
    ) -> int:
        """Run an attempt until a time; return the step that it reached."""
        history = self.journal.history()
        decision = history[-1].decision if history else None
        first = decision.resume_step if decision is not None else None
        self.placement = decision.placement if decision is not None else self.placement
        self.number += 1
        self.append(
            "attempt", t, attempt=self.number, placement=list(self.placement), resume_step=first,
            passed_over=passed_over or {},
        )  # fmt: skip
        reached = (first or 0) + int((until - t) / self.step_s)
        for step in range(((first or 0) // saved_every + 1) * saved_every, reached + 1, saved_every):
            written = t + (step - (first or 0)) * self.step_s
            self.append(
                "checkpoint",
                written + 2,
                step=step,
                written_t=written,
                attempt=self.number,
                path=f"ck/{step}",
            )
        return reached

    def end_attempt(
        self,
        t: float,
        *,
        step: int | None,
        reached: int | None,
        noticed_s: float = 0.2,
        is_told: bool = False,
        **fields: Any,
    ) -> Decision:
        """End it by an incident and have the core decide; `is_told`: a rank told the step that it reached."""
        known: dict[str, Any] = {"kind": "exit", "attempt": self.number, "step": step, **fields}
        if is_told:
            known |= {"reached": reached, "reached_every": 1}
        history = self.journal.history()
        incident = Incident(t=t + noticed_s, **known)
        self.journal.append_incident(
            incident,
            n=len(history) + 1,
            utc=self._utc(t),
            ended_t=t,
            first_step=1,
            last_step=reached,
            deaths=(),
        )
        decision = decide(self.policy, (*history, Entry(incident=incident)))
        self.journal.append_decision(decision, t=t + noticed_s + 0.1, utc=self._utc(t))
        return decision

    def _utc(self, t: float) -> str:
        return (
            (BEGAN + timedelta(seconds=self.began_s + t))
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )

    @property
    def lines(self) -> Sequence[Line]:
        return self.journal.lines


def came_through() -> Telling:
    """Six hours on three systems of four: a crash, a broken checkpoint, a lost node; it completes."""
    policy = Policy(systems=("node-a", "node-b", "node-c", "node-d"), workers=3, max_num_restarts=3)
    run = Telling(policy, target_step=6000)
    reached = run.attempt(40, saved_every=300, until=4400)
    run.end_attempt(
        4400, step=1200, reached=reached, worker=1, signal=11, failure_class="crash",
        evidence=Evidence(rule="signal", text="Fatal Python error: Segmentation fault", file="rank1", line=812),
    )  # fmt: skip
    reached = run.attempt(4401, saved_every=300, until=9100)
    run.end_attempt(
        9100, step=2400, reached=reached, worker=2, blame="node", failure_class="hardware",
        evidence=Evidence(
            rule="xid-79", text="NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus", file="rank2",
            hint="the device is gone until the node is power-cycled",
        ),
    )  # fmt: skip
    reached = run.attempt(
        9160, saved_every=300, until=9160 + (6000 - 2400) * run.step_s,
        passed_over={"step-2700.pt": "cut off at 1048576 of 8388608 bytes"},
    )  # fmt: skip
    end = 9160 + (6000 - 2400) * run.step_s
    run.append("pace", end, attempt=3, pauses={"checkpoint": [11.5, 12.0, 12.5, 13.0]})
    run.end_attempt(end, step=6000, reached=6000, kind="completed", exit_code=0)
    run.append("end", end + 3, status="completed", reason="completed: the phase is complete")
    return run


def hung() -> Telling:
    """A run that hung, whose ranks were ended after half an hour, and that still runs."""
    policy = Policy(systems=("node-a", "node-b"), workers=2, max_num_restarts=3, suspension_restart=True)
    run = Telling(policy, job="vision")
    reached = run.attempt(20, saved_every=200, until=2500)
    run.append(
        "hang", 4300, n=1, attempt=1, response="restart", scope="all-workers", ranks=[0, 1, 2, 3], blamed=3, worker=1,
        limit_s=1800, evidence=[{"kind": "progress", "rank": 3, "text": "no step for 1800 s", "lasted_s": 1800}],
        where="3 ranks in all_reduce, rank 3 in read() of data.py", diagnosis="hang-1.txt",
    )  # fmt: skip
    run.end_attempt(
        2500, step=800, reached=reached, kind="suspended", worker=1, noticed_s=1802,
        evidence=Evidence(rule="all-workers", text="no step for 1800 s; 3 ranks in all_reduce, rank 3 in read()"),
    )  # fmt: skip
    run.attempt(4303, saved_every=200, until=6000)
    return run


def gave_up() -> Telling:
    """A run that fails three times at the same step with the same error."""
    policy = Policy(systems=("node-a",), workers=1, max_num_restarts=3)
    run = Telling(policy, job="tabular")
    t = 5.0
    for _ in range(3):
        reached = run.attempt(
            t, saved_every=50, until=t + 3.0 * 140 if not run.journal.history() else t + 120.0
        )
        t += 3.0 * 140 if len(run.journal.history()) == 0 else 120.0
        decision = run.end_attempt(
            t, step=100, reached=reached, worker=0, exit_code=1, failure_class="data", signature="5ca1ab1e",
            blame="none", evidence=Evidence(rule="bad-record", text=BAD_RECORD, file="rank0"),
        )  # fmt: skip
        t += 1.0
    assert decision.action == "fail", decision
    run.append("end", t, status="failed", reason=decision.reason)
    return run


PAST_RUNS: dict[str, Callable[[], Telling]] = {"came-through": came_through, "hung": hung, "gave-up": gave_up}


def write(directory: Path, run: Telling) -> Path:
    """Leave a run's files as it would have left them; return the phase's directory."""
    directory.mkdir(parents=True)
    journal = Journal(directory / "journal.jsonl")
    for line in run.lines:
        journal.append(line, t=line.t, utc=line.utc)
    journal.close()
    if any(isinstance(line, HangLine) for line in run.lines):
        (directory / "hang-1.txt").write_text(STACKS)
    return directory


__all__ = ["BEGAN", "PAST_RUNS", "Telling", "came_through", "gave_up", "hung", "write"]
