"""A kind of infrastructure: all that the rest of the program asks that is not the same for each.

A kind is a folder here, or a package of its own with an entry point in the group `prefect_ft.backends`: its section of
a job file (`config`, an `Infrastructure`), its workers (`backend`), what is looked at before they are created, and
what is removed after them. docs/backends.md says how one is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from prefect_ft.backends.base import AgentSettings, Backend
from prefect_ft.config import Infrastructure, Phase
from prefect_ft.config.kinds import kind_named, usable_kinds
from prefect_ft.journal.records import Line
from prefect_ft.model import FailureClass
from prefect_ft.model import Kind as IncidentKind

SUCCESSOR_OF = "PREFECT_FT_SUCCESSOR_OF"
"""With this variable, `prefect-ft run` resumes the run of this id if that has not ended, and begins no other."""

_Config = TypeVar("_Config", bound=Infrastructure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers(Generic[_Config]):
    """What a backend is made of, for one phase of a run.

    `directory` is the run's on a local disk, short enough for the paths of sockets; `run_root` is where the run keeps
    its key, its certificates and its job: no rank may see the directory that it is in. `env` is the environment of
    the phase's ranks, `system_env` what a system adds to it; null unsets a variable. `system_locks` are files of which
    the agents on a system hold a shared lock. `checkpoints` is the directory to which the ranks save, and `files` are
    those of this machine that they read, each by the path that they get.
    """

    settings: AgentSettings
    infrastructure: _Config
    directory: Path
    run_root: Path
    env: Mapping[str, str | None]
    system_env: Mapping[str, Mapping[str, str | None]]
    system_locks: Mapping[str, Path]
    checkpoints: str | None
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One run, to a kind that gets systems for it.

    `run_root` outlives an allocation, and every machine of the run sees it; `directory` is the run-time directory of
    this machine. `key` is the run's.
    """

    run_id: str
    key: str = field(repr=False)
    job: str
    model_dir: Path
    run_root: Path
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """The systems that a run has for a time: one allocation of a scheduler, in one of its lives.

    No two tenures of a run have the same `name`. `systems` are in the order of placement, `ends_s` is when the
    scheduler takes them away, in seconds since the epoch; None: it does not. The run is handed over so early that ranks
    can save and end, and `reserve_s` are left. `contains_us`: this process ends with it.
    """

    name: str
    systems: tuple[str, ...]
    ends_s: float | None
    contains_us: bool = False
    reserve_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenureEnd:
    """How a tenure ended: the kind of the incident, with the class of an `exit` and the systems of a `system_lost`."""

    kind: IncidentKind
    reason: str
    failure_class: FailureClass | None = None
    systems: tuple[str, ...] = ()


class Kind(ABC, Generic[_Config]):
    """One kind of infrastructure. Its module is loaded with every job: clients are imported where they are used."""

    config: type[_Config]
    """Its section of a job file, with the fields of its own."""

    block: ClassVar[str | None] = None
    """The Prefect block that keeps such a section, as MODULE:CLASS; None: it has none."""

    @abstractmethod
    def check(self, infrastructure: _Config, field: str) -> None:
        """Raise ConfigError for the first thing by which no worker could be created; get images where they are wanted.

        `field` is the infrastructure's own. Asked before a new run, of each infrastructure once.
        """

    def check_phase(
        self,
        infrastructure: _Config,
        phase: Phase,
        env: Mapping[str, str | None],
        field: str,
        *,
        is_first: bool,
    ) -> None:
        """Raise ConfigError for what cannot work of a phase on this machine; `field` is the phase's.

        `is_first`: no earlier phase makes what this one needs.
        """
        del infrastructure, phase, env, field, is_first

    @abstractmethod
    def ranks_per_worker(self, infrastructure: _Config, env: Mapping[str, str | None]) -> int:
        """Return how many ranks `nproc_per_worker: auto` means: as many as a worker has accelerators, else 1."""

    def tenure(self, infrastructure: _Config, place: Place, is_stopped: Callable[[], bool]) -> Tenure | None:
        """Return the systems of a run where the job does not name them; None: the job does, or `is_stopped` says so.

        Waits until they can be used, for hours where a scheduler has a queue; another life of the orchestrator finds
        what this one waits for. Raises ConfigError for what the scheduler refuses, TenureCancelledError where a person
        has cancelled what was waited for, BackendError for what else fails.
        """
        del infrastructure, place, is_stopped
        return None

    def renewed(self, infrastructure: _Config, place: Place, tenure: Tenure) -> Tenure:
        """Return a tenure as it is now: its end may have been moved. What cannot be known stays as it was."""
        del infrastructure, place
        return tenure

    def end_of_tenure(self, infrastructure: _Config, place: Place, name: str) -> TenureEnd:
        """Return how an earlier tenure of a run ended; where that is not known, it was handed over."""
        del infrastructure, place
        return TenureEnd(kind="handed_over", reason=f"{name} has ended")

    def release(self, infrastructure: _Config, place: Place, tenure: Tenure) -> None:
        """Give the systems of a tenure back, and what was asked for to be added: the run waits for the next tenure.

        Of one that contains this process, only what was added. Idempotent; raises nothing.
        """
        del infrastructure, place, tenure

    def succeed(self, infrastructure: _Config, place: Place, tenure: Tenure) -> str | None:
        """Queue what follows a tenure, and return its name; None: nothing follows. Idempotent.

        What runs there finds the run by the variable `SUCCESSOR_OF`. Raises BackendError.
        """
        del infrastructure, place, tenure
        return None

    def growing(
        self,
        infrastructure: _Config,
        place: Place,
        tenure: Tenure,
        workers: Callable[[], int | None],
        grown: Callable[[str], None],
    ) -> AbstractContextManager[None]:
        """Ask, while entered, for the systems that a run lacks, if it is to grow.

        `workers` are those of the last attempt, None: there was none. Calls `grown` in a thread, once, with what has
        come: after `join` the next tenure has it too.
        """
        del infrastructure, place, tenure, workers, grown
        return nullcontext()

    def join(self, infrastructure: _Config, place: Place, tenure: Tenure) -> bool:
        """Have the next tenure be what is left of this one, with what has come. No worker may run.

        Return whether that is so; False: the tenure itself ends.
        """
        del infrastructure, place, tenure
        return False

    @abstractmethod
    def backend(self, workers: Workers[_Config]) -> Backend:
        """Return what creates and destroys workers. Nothing is created yet."""

    def isolating(
        self,
        infrastructure: _Config,
        run_id: str,
        directory: Path,
        lines: Callable[[], Sequence[Line]],
        *,
        ends_with_the_run: bool,
    ) -> AbstractContextManager[None]:
        """Have others know, while entered, which systems the run has isolated; `lines` are its phase's journal."""
        del infrastructure, run_id, directory, lines, ends_with_the_run
        return nullcontext()

    @abstractmethod
    def clear(self, directory: Path) -> None:
        """End and remove what a run has left of its workers, whichever orchestrator made them. Idempotent.

        `directory` is the run's run-time directory, of a run of any kind.
        """

    def standing(self, run_root: Path) -> Sequence[str]:
        """Return lines about what a run that has not ended has of its scheduler, by its files alone.

        `run_root` is the directory of a run of any kind.
        """
        del run_root
        return ()

    def shared_fate(self) -> str | None:
        """Return whose end would end the workers together with the orchestrator, in words; None: nobody's."""
        return None


def kind_of(infrastructure: Infrastructure) -> Kind[Any]:
    """Return the kind of an infrastructure."""
    return cast("Kind[Any]", kind_named(infrastructure.type))


def all_kinds() -> Iterator[Kind[Any]]:
    """Return every kind that there is, but those of other packages that cannot be loaded: the log says which."""
    return cast("Iterator[Kind[Any]]", usable_kinds())
