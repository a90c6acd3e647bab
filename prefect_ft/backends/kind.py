"""A kind of infrastructure: everything that differs between kinds, as the rest of the program asks for it.

A kind is a folder here, or a package of its own with an entry point in the group `prefect_ft.backends`: its section of
a job file (`config`, an `Infrastructure`), its workers (`backend`), the checks before they are created, and the
clean-up after them. docs/backends.md says how to write one.
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
"""With this variable set, `prefect-ft run` resumes the run of this id if it has not ended, and begins no other."""

_Config = TypeVar("_Config", bound=Infrastructure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers(Generic[_Config]):
    """What a backend is built from, for one phase of a run.

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
    scheduler takes them away, in seconds since the epoch; None: it does not. The run is handed over early enough for
    ranks to save and end with `reserve_s` left. `contains_us`: this process ends with it.
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
        """Return the systems of a run whose job does not name them; None: the job does, or `is_stopped` returned True.

        Waits until they can be used, for hours if the scheduler has a queue; a later orchestrator finds the request
        that this one waits for. Raises ConfigError for a request that the scheduler refuses, TenureCancelledError where
        a person has cancelled it, BackendError for other failures.
        """
        del infrastructure, place, is_stopped
        return None

    def renewed(self, infrastructure: _Config, place: Place, tenure: Tenure) -> Tenure:
        """Return a tenure with its present end, which may have been moved; unchanged where that is unknown."""
        del infrastructure, place
        return tenure

    def end_of_tenure(self, infrastructure: _Config, place: Place, name: str) -> TenureEnd:
        """Return how an earlier tenure of a run ended; by default, it was handed over."""
        del infrastructure, place
        return TenureEnd(kind="handed_over", reason=f"{name} has ended")

    def release(self, infrastructure: _Config, place: Place, tenure: Tenure) -> None:
        """Release the systems of a tenure, and drop requests for more: the run waits for the next tenure.

        For a tenure that contains this process, only drop the requests. Idempotent; raises nothing.
        """
        del infrastructure, place, tenure

    def succeed(self, infrastructure: _Config, place: Place, tenure: Tenure) -> str | None:
        """Queue the successor of a tenure, and return its name; None: there is none. Idempotent.

        The process started there finds the run by the variable `SUCCESSOR_OF`. Raises BackendError.
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
        """Ask, while entered, for the systems that a run lacks, if it is configured to grow.

        `workers` returns those of the last attempt, None: there was none. Calls `grown` once, in a thread, with a
        description of the new systems: after `join` the next tenure includes them.
        """
        del infrastructure, place, tenure, workers, grown
        return nullcontext()

    def join(self, infrastructure: _Config, place: Place, tenure: Tenure) -> bool:
        """Make the next tenure from the rest of this one and the new systems. No worker may run.

        Return whether it worked; False: the tenure itself ends.
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
        """Announce, while entered, which systems the run has isolated; `lines` are its phase's journal."""
        del infrastructure, run_id, directory, lines, ends_with_the_run
        return nullcontext()

    @abstractmethod
    def clear(self, directory: Path) -> None:
        """End and remove what is left of a run's workers, whichever orchestrator created them. Idempotent.

        `directory` is the run's run-time directory, of a run of any kind.
        """

    def standing(self, run_root: Path) -> Sequence[str]:
        """Return lines about what an unfinished run holds at its scheduler, from its files alone.

        `run_root` is the directory of a run of any kind.
        """
        del run_root
        return ()

    def shared_fate(self) -> str | None:
        """Describe what would kill the workers together with the orchestrator when it ends; None: nothing."""
        return None


def kind_of(infrastructure: Infrastructure) -> Kind[Any]:
    """Return the kind of an infrastructure."""
    return cast("Kind[Any]", kind_named(infrastructure.type))


def all_kinds() -> Iterator[Kind[Any]]:
    """Return every kind, without those of other packages that fail to load, which are logged."""
    return cast("Iterator[Kind[Any]]", usable_kinds())
