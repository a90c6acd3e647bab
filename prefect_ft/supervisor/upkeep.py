"""The user's commands that test systems (`check`) and repair their devices (`heal`), and which to test again.

Owns which commands run for which system, and their outcomes; what follows is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from prefect_ft.model import History, Incident
from prefect_ft.supervisor.command import Command, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPlan:
    """One system's commands, and their complete environment."""

    env: Mapping[str, str]
    heal: tuple[str, ...] | None = None
    check: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepPlan:
    """The commands of all systems, and the settings that they share."""

    systems: Mapping[str, SystemPlan]
    cwd: str
    heal_timeout_s: float
    check_timeout_s: float


class Checks:
    """Checks of systems that run in parallel."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands

    @property
    def are_over(self) -> bool:
        """Whether all have ended."""
        return all(command.outcome is not None for command in self._commands.values())

    @property
    def failed(self) -> dict[str, str]:
        """The systems that did not pass, with the reasons."""
        outcomes = {system: command.outcome for system, command in self._commands.items()}
        return {
            system: outcome.problem
            for system, outcome in outcomes.items()
            if outcome is not None and not outcome.succeeded
        }


class Upkeep:
    """`wake` is called, in another thread, whenever a command has ended."""

    def __init__(self, plan: UpkeepPlan, wake: Callable[[], None]) -> None:
        self._plan = plan
        self._wake = wake
        self._fit: set[str] = set()
        """Systems that passed their check and were not suspected since."""
        self._running: list[Command] = []

    # -- healing ----------------------------------------------------------------------------------

    def can_heal(self, fault: Incident) -> bool:
        """Whether a fault can be healed, has not been yet, and there is a command for it."""
        is_open = fault.kind == "device_fault" and fault.healed is None
        return is_open and fault.severity in ("minor", "major") and self._heal_of(fault) is not None

    def heal(self, fault: Incident, on_end: Callable[[bool], None] | None = None) -> Command:
        """Start to heal a device; `on_end` gets the outcome, in another thread."""
        words, system = self._heal_of(fault), fault.system
        assert words is not None
        assert system is not None
        about = {
            "PREFECT_FT_DEVICE": fault.device or "",
            "PREFECT_FT_CODE": fault.code or "",
            "PREFECT_FT_SEVERITY": fault.severity or "",
        }
        return self._start(words, system, about, self._plan.heal_timeout_s, on_end)

    def _heal_of(self, fault: Incident) -> tuple[str, ...] | None:
        plan = self._plan.systems.get(fault.system or "")
        return plan.heal if plan is not None else None

    # -- checking ---------------------------------------------------------------------------------

    def suspect(self, history: History) -> None:
        """Require a new check of systems whose suspicion grew with the last decision."""
        counts = [entry.decision.counters.suspects for entry in history[-2:] if entry.decision is not None]
        before, now = ([{}, {}, *counts])[-2:]
        self._fit -= {system for system, count in now.items() if count > before.get(system, 0)}

    def trust(self, systems: Collection[str]) -> None:
        """Count systems as fit on which an attempt runs."""
        self._fit |= set(systems)

    def check(self, systems: Collection[str]) -> Checks:
        """Start the checks that are due of `systems`, in parallel."""
        return Checks(
            {
                system: self._start(words, system, {}, self._plan.check_timeout_s)
                for system in systems
                if system not in self._fit and (words := self._plan.systems[system].check) is not None
            }
        )

    # -- both -------------------------------------------------------------------------------------

    def _start(
        self,
        words: tuple[str, ...],
        system: str,
        about: Mapping[str, str],
        timeout_s: float,
        on_end: Callable[[bool], None] | None = None,
    ) -> Command:
        env = {**self._plan.systems[system].env, "PREFECT_FT_SYSTEM": system, **about}

        def ended(outcome: Outcome) -> None:
            if on_end is not None:
                on_end(outcome.succeeded)
            self._wake()

        command = Command(words, cwd=self._plan.cwd, env=env, timeout_s=timeout_s, on_end=ended)
        self._running = [each for each in self._running if each.outcome is None] + [command]
        return command

    def close(self) -> None:
        """End the commands that still run. Idempotent."""
        for command in self._running:
            command.end()
