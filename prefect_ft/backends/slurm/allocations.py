"""The records of a run's allocations, in the run's directory, which all of its machines share.

`<run root>/slurm/` has `jobs.json` (submitted jobs, recorded before they are waited for), `avoided.json` (isolated
nodes), `node.json` (the configuration of node servers), and a directory for each tenure: what its holder recorded, and
the ports of its node servers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_ft.backends.payload import payload_directory
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.files import read_json, write_json
from prefect_ft.run import Certificates
from prefect_ft.worker.holder import ALLOCATION, CONFIG, ENDED
from prefect_ft.worker.keys import verifiers_of
from prefect_ft.worker.node import KEY_NAME, RELEASED

POINTER = "slurm.json"
"""The file in the run-time directory that names the directory of these records."""

_JOBS, _CURRENT, _AVOIDED = "jobs.json", "current.json", "avoided.json"
_TENURE = re.compile(r"slurm-(\d+)(?:\.(\d+))?(?:\+\d+(?:\.\d+)?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One tenure as its holders recorded it: nodes in their order, and their addresses.

    `job` is the one that the tenure began with, and `ends_s` is its end.
    """

    name: str
    job: str
    nodes: tuple[str, ...]
    hosts: Mapping[str, str]
    ends_s: float | None


def job_of(tenure: str) -> str:
    """Return the job of a tenure, by its name."""
    found = _TENURE.fullmatch(tenure)
    return found[1] if found is not None else tenure


def parts_of(tenure: str) -> tuple[str, ...]:
    """Return the names of the allocations of a tenure, by its name: `slurm-17+23` is `slurm-17` and `slurm-23`."""
    first, *further = tenure.split("+")
    return first, *(f"slurm-{each}" for each in further)


class Allocations:
    """The allocations of one run. `run_root` is the run's directory."""

    def __init__(self, run_root: Path) -> None:
        self.directory = run_root / "slurm"
        self._ports: dict[str, dict[str, tuple[int, int]]] = {}
        self._pointer: tuple[Path, str] | None = None

    def prepare(
        self,
        infrastructure: SlurmInfrastructure,
        certificates: Certificates,
        *,
        run_id: str,
        key: str,
        orphan_timeout_s: float,
    ) -> Path:
        """Write the configuration of holders and node servers; return the directory of their code. Idempotent."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        path = self.directory / CONFIG
        if not path.exists():
            shown = certificates.worker(node_name(run_id))
            config = {
                "run": run_id,
                "verifiers": verifiers_of(key, KEY_NAME),
                "identity": {"own": shown.own, "trusts": shown.trusts},
                "silence_timeout_s": infrastructure.silence_timeout_s,
                "orphan_timeout_s": orphan_timeout_s,
            }
            new = path.with_name(f".{CONFIG}.{os.getpid()}")
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(json.dumps(config))
            new.replace(path)
        return payload_directory(self.directory)

    def point_from(self, directory: Path, name: str) -> None:
        """Record in a run-time directory where the run's allocations are recorded, and its jobs of that name.

        `clean` cancels these when the model directory has been removed.
        """
        self._pointer = directory / POINTER, name
        self._point()

    def _point(self) -> None:
        if self._pointer is not None:
            path, name = self._pointer
            write_json(path, {"directory": str(self.directory), "name": name, "jobs": self.submitted})

    # -- jobs ---------------------------------------------------------------------------------------

    @property
    def submitted(self) -> list[str]:
        """The jobs that the run has submitted, in their order."""
        return [str(job) for job in read_json(self.directory / _JOBS).get("submitted", ())]

    @property
    def is_submitting(self) -> bool:
        """Whether a job may have been submitted but not recorded: an orchestrator died in between."""
        return bool(read_json(self.directory / _JOBS).get("is_submitting"))

    @property
    def further(self) -> dict[str, str | None]:
        """The jobs that add nodes to another one, each with that job; None: no longer wanted."""
        return dict(read_json(self.directory / _JOBS).get("further", {}))

    def further_for(self, job: str) -> list[str]:
        """Return the jobs that add nodes to this one, in their order."""
        return [each for each, base in self.further.items() if base == job]

    @property
    def successive(self) -> list[str]:
        """The jobs of which each follows the one before it, in their order."""
        further = self.further
        return [job for job in self.submitted if job not in further]

    def begin_submission(self, *, more_for: str | None = None) -> None:
        """Record that a job is about to be submitted; `more_for`: to add nodes to that job."""
        record = {
            "submitted": self.submitted,
            "further": self.further,
            "is_submitting": True,
            "more_for": more_for,
        }
        write_json(self.directory / _JOBS, record, durable=True)

    def note(self, *jobs: str) -> None:
        """Record submitted jobs; then no submission is under way."""
        known = list(dict.fromkeys((*self.submitted, *jobs)))
        if known != self.submitted or self.is_submitting:
            more_for = read_json(self.directory / _JOBS).get("more_for")
            new = () if more_for is None else [job for job in jobs if job not in self.submitted]
            further = {**self.further, **dict.fromkeys(new, more_for)}
            write_json(self.directory / _JOBS, {"submitted": known, "further": further}, durable=True)
            self._point()

    def forget(self, job: str) -> None:
        """Record that a further job is no longer wanted."""
        record = {"submitted": self.submitted, "further": {**self.further, job: None}}
        write_json(self.directory / _JOBS, record, durable=True)

    @property
    def waiting(self) -> list[str]:
        """The jobs after the last one that has begun, and those that add nodes to it, as far as the files show."""
        begun = {job_of(path.parent.name) for path in self.directory.glob(f"slurm-*/{ALLOCATION}")}
        waiting: list[str] = []
        for job in reversed(self.successive):
            if job in begun:
                break
            waiting.insert(0, job)
        more = self.further_for(job_of(self.current)) if self.current is not None else []
        return [*waiting, *(job for job in more if job not in begun)]

    @property
    def avoided(self) -> dict[str, bool]:
        """The nodes that the run has isolated, in any of its tenures, and whether each is lost."""
        return {node: is_lost is True for node, is_lost in read_json(self.directory / _AVOIDED).items()}

    def avoid(self, node: str, *, is_lost: bool) -> None:
        """Record an isolated node. Idempotent."""
        write_json(self.directory / _AVOIDED, {**self.avoided, node: is_lost})

    # -- tenures ------------------------------------------------------------------------------------

    def of_job(self, job: str) -> Allocation | None:
        """Return the last life of a job that has begun; None: none has."""
        self._refresh_listing()
        names = [path.parent.name for path in self.directory.glob(f"slurm-*/{ALLOCATION}")]
        lives = [name for name in names if job_of(name) == job]
        return self.named(max(lives, key=life_of)) if lives else None

    def named(self, name: str) -> Allocation | None:
        """Return a tenure; None: its holder has recorded nothing yet."""
        records = [read_json(self.directory / part / ALLOCATION) for part in parts_of(name)]
        first = records[0]
        if not first:
            return None
        return Allocation(
            name=name,
            job=str(first["job"]),
            nodes=tuple(dict.fromkeys(node for each in records for node in each.get("nodes", ()))),
            hosts={node: host for each in records for node, host in each.get("hosts", {}).items()},
            ends_s=first.get("ends_s"),
        )

    def has_ended(self, name: str) -> bool:
        """Whether a tenure is over: its first holder has recorded the end, or the run has released it."""
        place = self.directory / parts_of(name)[0]
        return (place / ENDED).exists() or (place / RELEASED).exists()

    def ports(self, allocation: Allocation) -> dict[str, int]:
        """Return the ports of the node servers that have started, by node. A file is read again when replaced."""
        self._refresh_listing()
        places = [self.directory / part for part in parts_of(allocation.name)]
        there = {name: (inode, place) for place in places for name, inode in _files_in(place).items()}
        known = self._ports.setdefault(allocation.name, {})
        for node in allocation.nodes:
            inode, place = there.get(f"{node}.json", (None, self.directory))
            if inode is None:
                known.pop(node, None)
            elif known.get(node, (None, 0))[0] != inode:
                port = read_json(place / f"{node}.json").get("port")
                if isinstance(port, int):
                    known[node] = inode, port
        return {node: known[node][1] for node in allocation.nodes if node in known}

    def release(self, name: str) -> None:
        """Tell the holders of a tenure to end it. Idempotent."""
        for part in parts_of(name):
            if (place := self.directory / part).is_dir():
                (place / RELEASED).touch()

    def join(self, name: str) -> None:
        """Rebuild a tenure from its first allocation and the further ones that are usable.

        A further job that has ended, or has only isolated nodes, is released and forgotten.
        """
        there: list[str] = []
        for job in self.further_for(job_of(name)):
            begun = self.of_job(job)
            if begun is None:
                continue
            if self.has_ended(begun.name) or not {*begun.nodes} - {*self.avoided}:
                self.release(begun.name)
                self.forget(job)
            else:
                there.append(begun.name.removeprefix("slurm-"))
        self.choose("+".join([parts_of(name)[0], *there]))

    def choose(self, name: str) -> None:
        """Record the tenure that the run uses now."""
        write_json(self.directory / _CURRENT, {"name": name})

    @property
    def current(self) -> str | None:
        """The tenure that the run uses, or used last."""
        name = read_json(self.directory / _CURRENT).get("name")
        return name if isinstance(name, str) else None

    def last_log_lines(self, name: str) -> str:
        """Return the last log lines of srun and the node servers, which say why they did not start."""
        logs = [path for part in parts_of(name) for path in sorted((self.directory / part).glob("*.log"))]
        texts = [path.read_text(errors="replace").strip() for path in logs]
        return "; ".join(text.splitlines()[-1] for text in texts if text)[:1000]

    def _refresh_listing(self) -> None:
        """Make a network file system show other machines' files: a local change invalidates its cache."""
        probe = self.directory / f".look-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)


def _files_in(directory: Path) -> dict[str, int]:
    """Return the files of a directory with their inodes, which change when a file is replaced."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except FileNotFoundError:
        return {}


def life_of(tenure: str) -> int:
    """Return how often the job of a tenure had been requeued when the tenure began, by its name."""
    found = _TENURE.fullmatch(tenure)
    return int(found[2] or 0) if found is not None else 0


def node_name(run_id: str) -> str:
    """Return the name in the certificate of a run's node servers."""
    return f"node-{run_id}"


def recorded_in(directory: Path) -> Allocations | None:
    """Return the allocations of the run that a run-time directory belongs to; None: it has none."""
    recorded: Any = read_json(directory / POINTER).get("directory")
    return (
        Allocations(Path(recorded).parent) if isinstance(recorded, str) and Path(recorded).is_dir() else None
    )


def jobs_left(directory: Path) -> tuple[str, list[str]]:
    """Return the name and the ids of the jobs of a run whose directory was removed, by its run-time directory."""
    pointer: Any = read_json(directory / POINTER)
    return str(pointer.get("name", "")), [str(job) for job in pointer.get("jobs", ())]
