"""A run's files beside its journals: identity, key, job, phase directories, a request to cancel it.

`<model_dir>/.prefect-ft/<run id>/` holds run.json, the job, its secrets and the key; each phase has
`<model_dir>/<YYYYmmdd_HHMMSS>_restartable/`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from prefect_ft.clock import utc_now
from prefect_ft.errors import ConfigError
from prefect_ft.files import read_json, write_json, write_yaml
from prefect_ft.formats import stamp
from prefect_ft.journal.forms import answer_from_json
from prefect_ft.model import Answer
from prefect_ft.run.machine import this_machine
from prefect_ft.worker.keys import SHARED_KEY_DIGITS

RUNS = ".prefect-ft"
JOURNAL = "journal.jsonl"
SUMMARY = "summary.json"
PARAMS = "phase-params.yaml"
"""The parameters that a phase passes to its command; params.yaml beside it is the whole job with all defaults."""

PROCESSES_ON = "processes_on"
"""The field of run.json with the machine of a run's worker processes; missing in runs without any."""

_RUN, _JOB, _KEY, _SECRETS, _CANCEL = "run.json", "job.json", "key", "secrets.json", "cancel.json"
_ANSWER, _SEALS = "answer.json", "seals.json"

_describing = threading.Lock()

_KEY_BYTES = 32
"""Longer than the shared keys of earlier versions, which tells them apart."""


class CancelWish(NamedTuple):
    """A request to end a run: its source, and whether to save a checkpoint first."""

    source: str
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job; `root` is its own directory below the model directory."""

    run_id: str
    model_dir: Path
    key: str

    @property
    def root(self) -> Path:
        return self.model_dir / RUNS / self.run_id

    def record(self) -> dict[str, Any]:
        """Return run.json: `run`, `job`, `started`, `status`, `phases`, `flow_run_id`, `runtime`, the versions.

        Raises ConfigError where the name of a phase's directory or of a system is not a plain name.
        """
        record = read_json(self.root / _RUN)
        try:
            names = [each["directory"] for each in record.get("phases", ())] + list(record.get("systems", ()))
            is_whole = all(type(each["index"]) is int for each in record.get("phases", ()))
        except (LookupError, TypeError):
            is_whole, names = False, []
        if not is_whole:
            raise self._damaged(_RUN, "is damaged: put it back from a copy")
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise self._damaged(_RUN, f"names {name!r} as a directory; put the file back from a copy")
        return record

    def describe(self, **fields: Any) -> None:
        """Merge `fields` into run.json. Safe in threads."""
        with _describing:
            write_json(self.root / _RUN, {**self.record(), **fields}, durable=True)

    def taken_up(self) -> None:
        """Record in run.json that this version resumes the run, and where; ignores a failure to write."""
        with contextlib.suppress(OSError):
            self.describe(**stamp(self.record()), **self.here())

    def here(self) -> dict[str, Any]:
        """Return the run's present location for run.json: its place, and this machine if it has processes.

        Raises OSError.
        """
        machine = {PROCESSES_ON: this_machine().to_json()} if PROCESSES_ON in self.record() else {}
        return {"place": self.place(), **machine}

    def place(self) -> dict[str, Any]:
        """Return where the run's own directory is: path, device and inode. Raises OSError."""
        status = self.root.stat()
        return {"root": str(self.root.absolute()), "device": status.st_dev, "inode": status.st_ino}

    def belongs_to(self, flow_run_id: str) -> None:
        """Add a flow run to those that have run it."""
        known = [each for each in self.record().get("flow_run_ids", []) if each != flow_run_id]
        self.describe(flow_run_id=flow_run_id, flow_run_ids=[*known, flow_run_id])
        _link(flow_runs() / flow_run_id, self.root)

    @property
    def status(self) -> str:
        """`running` until the run has ended, with or without an orchestrator."""
        return str(self.record().get("status", "running"))

    @property
    def job_path(self) -> Path:
        """Where the job stands."""
        return self.root / _JOB

    def job(self) -> dict[str, Any]:
        """Return the resolved job of the run's beginning; raises ConfigError if it was changed since."""
        self._check_seal(_JOB)
        return read_json(self.job_path)

    def secrets(self) -> dict[str, Any]:
        """Return the job's secrets; raises ConfigError if they were changed since."""
        self._check_seal(_SECRETS)
        return read_json(self.root / _SECRETS)

    def seal(self) -> None:
        """Record the present digests of the job and its secrets: a resumed run executes what they name."""
        names = (name for name in (_JOB, _SECRETS) if (self.root / name).exists())
        write_json(self.root / _SEALS, {name: self._seal_of(name) for name in names}, durable=True)

    def _seal_of(self, name: str) -> str:
        return hmac.digest(self.key.encode(), (self.root / name).read_bytes(), "sha256").hex()

    def _check_seal(self, name: str) -> None:
        if len(self.key) <= SHARED_KEY_DIGITS or not (self.root / name).exists():
            return  # runs of earlier versions have no seals
        kept = read_json(self.root / _SEALS).get(name)
        if not isinstance(kept, str) or not hmac.compare_digest(kept, self._seal_of(name)):
            remedy = "put it back, or change the job file and begin a new run with --fresh"
            raise self._damaged(name, f"was changed since the run began; {remedy}")

    def _damaged(self, name: str, what: str) -> ConfigError:
        return ConfigError(what, file=str(self.root / name))

    def forget_secrets(self) -> None:
        """Remove the secrets: the run has ended for good and cannot be resumed. Raises OSError."""
        (self.root / _SECRETS).unlink(missing_ok=True)

    def add_phase(self, name: str, index: int, params: Mapping[str, Any]) -> Path:
        """Make a new phase's directory, with its resolved configuration, and record it."""
        directory = _new_phase_directory(self.model_dir)
        write_yaml(directory / "params.yaml", params)
        known = self.record().get("phases", [])
        self.describe(phases=[*known, {"name": name, "index": index, "directory": directory.name}])
        return directory

    def directory_of(self, index: int) -> Path | None:
        """Return the last directory of a phase of the job; None: it has not begun."""
        names = [each["directory"] for each in self.record().get("phases", []) if each.get("index") == index]
        return self.model_dir / names[-1] if names else None

    # -- requests to cancel it --------------------------------------------------------------------

    def want_cancelled(self, source: str, checkpoint: bool = False) -> None:
        """Ask the present or the next orchestrator to end the run; the request survives a crash of either.

        `checkpoint`: save one first.
        """
        write_json(self.root / _CANCEL, {"source": source, "checkpoint": checkpoint, "utc": utc_now()})

    def cancel_wanted(self) -> CancelWish | None:
        """Return the request to end the run; None: there is none."""
        path = self.root / _CANCEL
        if not path.exists():
            return None
        request = read_json(path)
        return CancelWish(str(request.get("source", "a request")), request.get("checkpoint") is True)

    def forget_cancel(self) -> None:
        """Delete the request: it was carried out, or the run is to continue after all."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / _CANCEL).unlink()

    # -- answers to proposed decisions --------------------------------------------------------------

    def answer(self, directory: str, number: int, answer: Answer) -> None:
        """Answer the proposed decision of a phase; the present or the next orchestrator reads it."""
        write_json(self.root / _ANSWER, {"directory": directory, "n": number, **asdict(answer)})

    def answer_to(self, directory: str, number: int) -> Answer | None:
        """Return the answer to a decision. It stays until it is carried out; one to another decision is deleted."""
        path = self.root / _ANSWER
        if not path.exists():
            return None
        record = read_json(path)
        found = answer_from_json(record)
        if found is None or (record.get("directory"), record.get("n")) != (directory, number):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return found


def new_run_id() -> str:
    """Return a unique id for a run."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def new_run(model_dir: Path, job_name: str, *, run_id: str | None = None, **fields: Any) -> Run:
    """Begin a run; `job_config` in `fields` is the resolved job, `secrets` the values that it does not show.

    Raises ConfigError where nothing can be written.
    """
    run = Run(run_id or new_run_id(), model_dir, secrets.token_hex(_KEY_BYTES))
    job, hidden = fields.pop("job_config", None), fields.pop("secrets", None)
    try:
        run.root.mkdir(parents=True, mode=0o700)
        _write_private(run.root / _KEY, run.key)
        if hidden:
            _write_private(run.root / _SECRETS, json.dumps(hidden))
        if job is not None:
            write_json(run.root / _JOB, job, durable=True)
        run.seal()
        begun = {"run": run.run_id, "job": job_name, "started": utc_now(), "status": "running", "phases": []}
        run.describe(**begun, **stamp(), place=run.place(), **fields)
    except OSError as exc:
        raise ConfigError(f"{model_dir} cannot be written: {exc.strerror}", field="model_dir") from exc
    _register(run)
    return run


def read_run(root: Path) -> Run | None:
    """Return the run of a directory below `.prefect-ft`; None if none began there. Raises OSError."""
    if not (root / _RUN).is_file():
        return None
    return Run(root.name, root.parent.parent, (root / _KEY).read_text())


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _new_phase_directory(model_dir: Path) -> Path:
    """Make a directory named for this second; a suffix keeps two of one second apart."""
    stem = f"{datetime.now(timezone.utc):%Y%m%d_%H%M%S}_restartable"
    for number in count():
        directory = model_dir / (f"{stem}-{number}" if number else stem)
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise AssertionError("count() does not end")


# -- the user's runs ----------------------------------------------------------------------------------


def registry() -> Path:
    """Return the directory of links to the runs that this user began on this machine."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "prefect-ft" / "runs"


def _register(run: Run) -> None:
    """Let `status RUN_ID` find the run from anywhere; ignores a home that cannot be written."""
    _link(registry() / run.run_id, run.root)


def flow_runs() -> Path:
    """Return the directory of links from flow runs to the runs that they run, on this machine."""
    return registry().parent / "flow-runs"


def _link(link: Path, root: Path) -> None:
    with contextlib.suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root.absolute())
