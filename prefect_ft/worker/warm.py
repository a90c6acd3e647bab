"""Warm start: the zygote of this worker's ranks, and the ranks that are forked and wait for the next attempt.

Owns both and everything that decides whether a start can be warm. When in doubt, ranks start cold: just as
correct, only slower. A problem is reported once, with its reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Set, Tuple

from prefect_ft.worker import zygote
from prefect_ft.worker.command import program_of, written_out
from prefect_ft.worker.learner import Learner
from prefect_ft.worker.loop import Loop
from prefect_ft.worker.processes import descendants
from prefect_ft.worker.zygote_process import (
    ANSWER_TIMEOUT_S,
    Environment,
    Parked,
    Wanted,
    Zygote,
    send,
)

PARK_DELAY_S = 0.5
"""How long after a start the next ranks are forked: not while those that have started need the cores."""

MAX_TRIES = 5
"""How many zygotes to try because modules turn out to be unfit."""


class Process(Protocol):
    """A rank's process, executed or forked."""

    pid: int
    returncode: Optional[int]


Starter = Callable[[Environment, int], Process]
"""Starts one rank, with its environment and the descriptor that its output goes to; raises OSError."""


class Forked:
    """A rank that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: Optional[int] = None


class WarmStart:
    """One worker's warm start. `report(...)` gets the fields of the event `warm` whenever they have changed."""

    def __init__(
        self, directory: str, settings: Optional[Dict[str, Any]], loop: Loop, report: Callable[..., None]
    ) -> None:
        """`directory` is for what the zygote prints. `settings`: `modules` and `memory_mb`; None: always cold."""
        self._log = os.path.join(directory, "zygote.log")
        is_auto = settings is not None and settings["modules"] == "auto"
        self._learner = Learner(directory, loop, self._learned) if is_auto else None
        """None once everything is known, or where there is nothing to learn."""
        self._is_auto = is_auto
        self._modules: List[str] = list(settings["modules"]) if settings and not is_auto else []
        self._memory_kb = settings["memory_mb"] << 10 if settings else 0
        self._loop = loop
        self._report = report
        self._zygote: Optional[Zygote] = None
        self._parked: List[Parked] = []
        self._left_out: Dict[str, str] = {}
        self._tries = 0
        self._count = 0
        """How many ranks are to be parked."""
        self._next: Optional[Tuple[Sequence[str], str, Environment, int]] = None
        """What was started last."""
        self._why: Optional[str] = None
        """Why ranks start cold; None: they start warm, or warm starts are off."""
        self._last_sent: Dict[str, Any] = {}

    @property
    def spared(self) -> Set[int]:
        """The processes that outlive an attempt."""
        pids = {each.pid for each in self._parked if not each.process.ends(0)}
        if self._zygote is not None and not self._zygote.process.ends(0):
            pids |= {self._zygote.pid, *descendants(self._zygote.pid)}
        return pids

    def describe(self) -> Dict[str, Any]:
        """Return the fields of the event `warm`."""
        return {
            "ready": self._zygote is not None and self._zygote.is_ready,
            "modules": self._zygote.modules if self._zygote is not None else 0,
            "parked": len(self._parked),
            "memory_kb": self._used_kb(),
            "left_out": self._left_out,
            "why_cold": self._why,
        }

    # -- starting ---------------------------------------------------------------------------------

    def starter(
        self, command: Sequence[str], cwd: str, env: Environment, count: int, cold: Starter
    ) -> Starter:
        """Return what starts the ranks of an attempt: parked ones, where they fit the command.

        `env` is the ranks' common environment.
        """
        if self._learner is not None and program_of(command, cwd, env) is not None:
            return _once(self._learner.watched, cold)
        wanted = self._wanted(command, cwd, env)
        ready = self._zygote is not None and self._zygote.is_ready and self._zygote.wanted == wanted
        if not ready or not _is_startable(wanted):
            return cold
        self._loop.drop("park")
        self._fill(count)
        if len(self._parked) < count:
            return cold

        def start(rank_env: Environment, output: int) -> Process:
            parked = self._parked.pop(0)
            order = {"command": written_out(command, cwd), "cwd": cwd, "env": rank_env}
            try:
                with parked.connection as connection:
                    connection.settimeout(ANSWER_TIMEOUT_S)
                    send(connection, order, [output])
            except OSError:  # it has not received the whole order, and so has not started
                parked.process.send(signal.SIGKILL)
                return cold(rank_env, output)
            finally:
                parked.process.close()
            return Forked(parked.pid)  # it was alive when it took the order, and nothing is reaped meanwhile

        return start

    def started(self, command: Sequence[str], cwd: str, env: Environment, count: int) -> None:
        """Prepare the next start, which will most likely be like this one."""
        self._next = command, cwd, env, count
        wanted = self._wanted(command, cwd, env)
        if wanted is None:
            return
        if self._zygote is not None and self._zygote.wanted != wanted:
            self._end_zygote()
            self._tries = 0
        if self._zygote is None and self._tries < MAX_TRIES:
            self._start_zygote(wanted)
        self._count = count
        self._park_soon()

    def ended(self) -> None:
        """The ranks have ended."""
        if self._learner is not None:
            self._learner.ended()

    def _learned(self, modules: List[str]) -> None:
        if not modules:
            self._starts_cold(
                "nothing is known of what ranks import; Python's options -S, -I and -E prevent it"
            )
            return
        self._learner = None
        self._modules = modules
        if self._next is not None:
            self.started(*self._next)

    def _wanted(self, command: Sequence[str], cwd: str, env: Environment) -> Optional[Wanted]:
        """Return the zygote that this command needs; None where there can be none."""
        if not self._modules and self._learner is None:
            return None
        program = program_of(command, cwd, env)
        if program is None:
            self._starts_cold("the command is not Python with a script, a module or code")
            return None
        if not self._modules:
            return None
        shared = {name: value for name, value in env.items() if not zygote.is_ranks_own(name)}
        return Wanted(program, cwd, shared)

    def _starts_cold(self, why: str) -> None:
        self._why = why
        self._report_changes()

    def report_to_newcomer(self) -> None:
        """Send all fields, unless no warm start was ever tried."""
        self._last_sent = {}
        if self._tries or self._why is not None:
            self._report_changes()

    def _report_changes(self) -> None:
        fields = {name: value for name, value in self.describe().items() if name != "memory_kb"}
        if fields != self._last_sent:
            self._last_sent = fields
            self._report(**self.describe())

    # -- the zygote -------------------------------------------------------------------------------

    def _start_zygote(self, wanted: Wanted) -> None:
        self._tries += 1
        modules = [name for name in self._modules if not self._is_left_out(name)]
        try:
            self._zygote = Zygote(wanted, modules, self._log, are_learned=self._is_auto)
        except OSError as exc:
            self._starts_cold(f"no zygote can be started: {exc.strerror or exc}")
            return
        self._loop.watch(self._zygote, lambda _: self._hear_zygote())

    def _is_left_out(self, name: str) -> bool:
        return any(name == each or name.startswith(each + ".") for each in self._left_out)

    def _hear_zygote(self) -> None:
        assert self._zygote is not None
        answer = self._zygote.hear()
        if answer is None:
            self._end_zygote()
            self._starts_cold("the zygote has died; zygote.log may say why")
            return
        if unfit := answer["unfit"]:
            if self._is_auto:  # whole packages: whatever imports the module would not be fit either
                unfit = {name.partition(".")[0]: why for name, why in unfit.items()}
            self._left_out.update(unfit)
            wanted = self._zygote.wanted
            self._end_zygote()
            if self._tries < MAX_TRIES:
                self._start_zygote(wanted)
            else:
                self._starts_cold("too many modules cannot be shared")
            return
        self._left_out.update({name: f"{kind} at its import" for name, kind in answer["failed"].items()})
        self._why = None
        self._report_changes()
        self._park_soon()

    def _end_zygote(self) -> None:
        """End the zygote and the parked ranks that it forked. Idempotent."""
        self._loop.drop("park")
        while self._parked:
            self._discard(self._parked.pop())
        if self._zygote is not None:
            self._loop.forget(self._zygote)
            self._zygote.end()
            self._zygote = None

    # -- parking ----------------------------------------------------------------------------------

    def _park_soon(self) -> None:
        self._loop.after("park", PARK_DELAY_S, self._park)

    def _park(self) -> None:
        if self._zygote is None or not self._zygote.is_ready:
            return
        self._fill(self._count)
        if (used_kb := self._used_kb()) > self._memory_kb:
            self._tries = MAX_TRIES
            self._end_zygote()
            self._starts_cold(f"{used_kb >> 10} MB are more than warm_memory_mb allows")
        self._report_changes()

    def _fill(self, count: int) -> None:
        """Have ranks forked until `count` are parked."""
        for parked in [each for each in self._parked if not each.is_waiting()]:
            self._parked.remove(parked)
            self._discard(parked)
        while self._zygote is not None and len(self._parked) < count:
            parked_rank = self._zygote.fork()
            if parked_rank is None:
                return
            self._parked.append(parked_rank)

    def _discard(self, parked: Parked) -> None:
        parked.connection.close()
        parked.process.send(signal.SIGKILL)
        parked.process.close()

    def _used_kb(self) -> int:
        """Return how much memory zygote and parked ranks use; what they share counts once."""
        return sum(map(_pss_kb, self.spared))

    def close(self) -> None:
        """End the zygote and what is parked. Idempotent."""
        self._end_zygote()
        self._modules, self._learner = [], None


def _once(change: Callable[[Environment], Environment], starter: Starter) -> Starter:
    """Change the environment of the first rank that is started."""
    changes = [change]

    def start(env: Environment, output: int) -> Process:
        return starter(changes.pop()(env) if changes else env, output)

    return start


def _is_startable(wanted: Optional[Wanted]) -> bool:
    """Whether directory and script exist; if not, Python and the kernel report that best in a cold start."""
    if wanted is None or not os.path.isdir(wanted.cwd):
        return False
    if wanted.program.kind != "script":
        return True
    path = os.path.join(wanted.cwd, wanted.program.target)
    return os.path.isfile(path) and os.access(path, os.R_OK) and not path.endswith((".pyc", ".pyz", ".zip"))


def _pss_kb(pid: int) -> int:
    """Return a process's share of the memory in KiB; 0 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


__all__: Tuple[str, ...] = ("Forked", "Process", "Starter", "WarmStart")
