"""An orchestrator that dies at a chosen moment: `python mortal.py JOB.yaml [as-command]`.

It is the real one, in a process of its own; only at the moment itself somebody is killed, once. A file
beside the job says that it has happened, so that whoever comes back lives.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents import processes_of

from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import AttemptLine
from prefect_ft.model import RESTARTS
from prefect_ft.observe import Decided, Fact, PhaseEnded, StepReached, observed_by
from prefect_ft.orchestrate import phase as phases
from prefect_ft.supervisor.beginning import Beginning
from prefect_ft.supervisor.driver import Driver
from prefect_ft.supervisor.launch import Launch
from prefect_ft.supervisor.member import Send

Deed = Callable[[], None]


def once(deed: Deed, mark: Path) -> Deed:
    """Do it the first time that anybody comes by."""

    def do() -> None:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        deed()

    return do


# -- moments ----------------------------------------------------------------------------------------


def before_start(deed: Deed) -> None:
    """The workers are there and have been told nothing."""
    _before(Driver, "_connect", deed)


def in_training(deed: Deed) -> None:
    _on(lambda fact: isinstance(fact, StepReached) and fact.step >= 12, deed)


def before_journal(deed: Deed) -> None:
    """Something has happened, and the ranks have been ended; no line says so."""
    _before(MemoryJournal, "append_incident", deed)


def before_decision(deed: Deed) -> None:
    """What has happened is in the journal, what is done about it not."""
    _before(MemoryJournal, "append_decision", deed)


def before_action(deed: Deed) -> None:
    """The decision is on disk and nothing of it is done."""
    _after(MemoryJournal, "append_decision", deed)


def in_action(deed: Deed) -> None:
    """One of two workers has been told to start the second attempt."""
    _at_the_start(3, deed)


def after_action(deed: Deed) -> None:
    """The second attempt runs and the journal does not know of it."""
    original = Beginning.line

    def line(self: Beginning, launch: Launch, token: Any) -> AttemptLine:
        told = original(self, launch, token)
        lines.append(launch.attempt)
        if lines.count(2) == 2:  # the first is what agents keep
            deed()
        return told

    lines: list[int] = []
    Beginning.line = line  # type: ignore[method-assign]


def _at_the_start(number: int, deed: Deed) -> None:
    """Do it when so many workers have been told to start ranks."""
    original, starts = Driver._send, []

    def send(self: Driver, order: Send) -> None:
        original(self, order)
        starts.append(order.worker) if order.op == "start" else None
        if len(starts) == number:
            deed()

    Driver._send = send  # type: ignore[method-assign]


def in_backoff(deed: Deed) -> None:
    def later() -> None:
        time.sleep(0.2)
        deed()

    def waits(fact: Fact) -> bool:
        return isinstance(fact, Decided) and fact.decision.action in RESTARTS

    _on(waits, lambda: threading.Thread(target=later).start())


def between_phases(deed: Deed) -> None:
    _on(lambda fact: isinstance(fact, PhaseEnded) and fact.phase == "one", deed)


def at_the_end(deed: Deed) -> None:
    """The last decision is made; the journal has no end yet."""
    original = phases.PhaseExecution._close

    def close(self: phases.PhaseExecution, *arguments: Any) -> Any:
        if self.plan.phase == "two":
            deed()
        return original(self, *arguments)

    phases.PhaseExecution._close = close  # type: ignore[method-assign]


MOMENTS: dict[str, Callable[[Deed], None]] = {
    each.__name__: each
    for each in (
        before_start, in_training, before_journal, before_decision, before_action, in_action, after_action,
        in_backoff, between_phases, at_the_end,
    )
}  # fmt: skip


def before_following(deed: Deed) -> None:
    """Ranks run, Prefect's API answers and has a flow run; its flow has not been entered."""
    from prefect_ft import flows  # loads Prefect, for which `run` does not wait

    original = flows._follow

    def follow(begun: Any) -> Any:
        deed()
        return original(begun)

    flows._follow = follow


def before_showing(deed: Deed) -> None:
    """The flow has been entered; nothing of the run has been shown."""
    from prefect_ft.prefect_edge.reporting.reporter import Reporter

    _before(Reporter, "_show", deed)


VIEW_MOMENTS = {each.__name__: each for each in (before_following, before_showing)}
"""Moments of `prefect-ft run` alone, which Prefect follows."""

_watchers: list[Callable[[Fact], None]] = []


def _on(is_it: Callable[[Fact], bool], deed: Deed) -> None:
    _watchers.append(lambda fact: deed() if is_it(fact) else None)


def _before(owner: Any, name: str, deed: Deed) -> None:
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any, **fields: Any) -> Any:
        deed()
        return original(self, *arguments, **fields)

    setattr(owner, name, method)


def _after(owner: Any, name: str, deed: Deed) -> None:
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any, **fields: Any) -> Any:
        result = original(self, *arguments, **fields)
        deed()
        return result

    setattr(owner, name, method)


# -- victims ----------------------------------------------------------------------------------------


def killing(*pids: Callable[[], int]) -> Deed:
    def deed() -> None:
        for pid in [find() for find in pids]:
            os.kill(pid, signal.SIGKILL)

    return deed


def pid_in(path: Path) -> Callable[[], int]:
    return lambda: int(path.read_text().split()[0])


def power(runtime: Path) -> Deed:
    """Kill agents, ranks and this process: as the machine's power would, for what is ours."""

    def deed() -> None:
        for pid in processes_of(runtime):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    return deed


def deed_of(victim: str, site: Path) -> Deed:
    """`site` holds the pids of the server and the worker, where they are victims."""
    runtime = Path(os.environ["PREFECT_FT_RUNTIME_DIR"])
    worker, server, flow = pid_in(site / "worker.pid"), pid_in(site / "server.pid"), os.getpid

    def agent_of_worker_0() -> int:
        while not list(runtime.glob("*/*-0-*-*/agent.pid")):
            time.sleep(0.01)  # it is just starting
        return pid_in(next(runtime.glob("*/*-0-*-*/agent.pid")))()

    deeds: dict[str, Deed] = {
        "flow": killing(flow),
        "worker": killing(worker),
        "flow+worker": killing(worker, flow),
        "server": killing(server),
        "agent": killing(agent_of_worker_0),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "power": power(runtime),
    }
    return deeds[victim]


def arm(job: Path) -> None:
    """Prepare the death that DEATH names, `MOMENT/VICTIM`; none if it is not set."""
    moment, _, victim = os.environ.get("DEATH", "").partition("/")
    if moment:
        {**MOMENTS, **VIEW_MOMENTS}[moment](once(deed_of(victim, job.parent), job.parent / "has-died"))


def watch(fact: Fact) -> None:
    for watcher in _watchers:
        watcher(fact)


def main(job: Path, *, as_command: bool) -> int:
    from prefect_ft import cli, train_flow

    arm(job)
    with observed_by(watch):
        if as_command:
            return cli.main(["run", str(job), "--resume"])
        train_flow(job, "resume")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), as_command="as-command" in sys.argv))
