"""Submits the jobs of one run, and starts the holder in an allocation of the user's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect_ft.amounts import count
from prefect_ft.backends.kind import SUCCESSOR_OF, Place
from prefect_ft.backends.slurm.allocations import Allocations
from prefect_ft.backends.slurm.commands import Slurm
from prefect_ft.backends.slurm.config import SlurmInfrastructure
from prefect_ft.backends.slurm.script import job_name, options, script
from prefect_ft.observe import Notice, tell
from prefect_ft.run import certificates_of

ORPHAN_S = 600.0
"""How long node servers without an agent wait for an orchestrator."""


class Submission:
    """Submits jobs, and records them before and after, so that none is forgotten."""

    def __init__(
        self, infrastructure: SlurmInfrastructure, place: Place, allocations: Allocations, slurm: Slurm
    ) -> None:
        self._infrastructure, self._place = infrastructure, place
        self._allocations, self._slurm = allocations, slurm

    def prepare(self) -> Path:
        """Write what nodes need to start; return the directory of their code."""
        place, certificates = self._place, certificates_of(self._place.run_root)
        self._allocations.point_from(place.directory, self.name)
        return self._allocations.prepare(
            self._infrastructure, certificates, run_id=place.run_id, key=place.key, orphan_timeout_s=ORPHAN_S
        )

    @property
    def name(self) -> str:
        """The name shared by all jobs of the run."""
        return job_name(self._place.job, self._place.run_id)

    def submit(
        self, payload: Path, *more: str, given: SlurmInfrastructure | None = None, more_for: str | None = None
    ) -> str:
        """Submit a job for `given`, by default the run's infrastructure; `more_for`: to add nodes to that job."""
        place, name = self._place, self.name
        given = given or self._infrastructure
        path = self._allocations.directory / "holder.sh"
        path.write_text(script(given.python, payload, self._allocations.directory))
        log = self._allocations.directory / "holder-%j.log"
        avoided = self._allocations.avoided
        words = options(given, name=name, log=log, cwd=place.model_dir, exclude=list(avoided))
        self._allocations.begin_submission(more_for=more_for)
        job = self._slurm.submit([*words, *more, str(path)])
        self._allocations.note(job)
        nodes = count((given.nodes or 1) + given.spares, "node")
        tell(Notice(text=f"submitted job {job} to Slurm: {nodes}"))
        return job

    def start_holder(self, payload: Path) -> None:
        """Start a holder, which outlives this process, for the allocation that this process is in."""
        words = (
            self._infrastructure.python,
            "-I",
            "-S",
            str(payload),
            "holder",
            str(self._allocations.directory),
        )
        with (self._allocations.directory / "holder.log").open("ab") as log:
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def submit_again(self, job: str, more: Sequence[str]) -> str:
        """Resubmit the batch script of the allocation that this process is in."""
        path = self._allocations.directory / f"again-{job}.sh"
        self._slurm.batch_script(job, str(path))
        exported = f"--export=ALL,{SUCCESSOR_OF}={self._place.run_id}"
        limit = self._slurm.time_limit(job)  # the script lacks one that was given on the command line
        words = [
            *([] if limit is None else [f"--time={limit}"]),
            f"--dependency=afterany:{job}",
            exported,
            "--open-mode=append",
            *more,
            *options_around(os.environ),
        ]
        later = self._slurm.submit([*words, str(path)])
        self._allocations.note(later)
        return later


def options_around(env: Mapping[str, str]) -> list[str]:
    """Return the sbatch options with which the allocation around was requested, as far as the environment has them."""
    names = {
        "SLURM_JOB_NUM_NODES": "--nodes", "SLURM_JOB_PARTITION": "--partition", "SLURM_JOB_ACCOUNT": "--account",
        "SLURM_JOB_QOS": "--qos", "SLURM_JOB_NAME": "--job-name",
    }  # fmt: skip
    found = [
        f"{option}={env[name]}" for name, option in names.items() if env.get(name) not in (None, "", "(null)")
    ]
    return [*found, f"--chdir={env.get('SLURM_SUBMIT_DIR', os.getcwd())}"]
