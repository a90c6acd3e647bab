"""What a run keeps on disk beside its journals: identity, key, phase directories, run-time directory.

`<model_dir>/.prefect-ft/<run id>/` holds run.json and the key; each phase has
`<model_dir>/<YYYYmmdd_HHMMSS>_restartable/`; sockets and ranks' output lie below the run-time directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from prefect_ft.clock import utc_now
from prefect_ft.errors import ConfigError

RUNS = ".prefect-ft"
JOURNAL = "journal.jsonl"
SUMMARY = "summary.json"
PARAMS = "phase-params.yaml"
"""What a phase hands to its command; params.yaml beside it is the whole job with all defaults."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job; `root` is its own directory below the model directory."""

    run_id: str
    model_dir: Path
    key: str

    @property
    def root(self) -> Path:
        return self.model_dir / RUNS / self.run_id

    def describe(self, **fields: Any) -> None:
        """Merge `fields` into run.json."""
        path = self.root / "run.json"
        write_json(path, {**read_json(path), **fields})

    def add_phase(self, name: str, params: Mapping[str, Any]) -> Path:
        """Make a new phase's directory, with its resolved configuration, and remember it."""
        directory = _new_phase_directory(self.model_dir)
        write_yaml(directory / "params.yaml", params)
        phases = read_json(self.root / "run.json").get("phases", [])
        self.describe(phases=[*phases, {"name": name, "directory": directory.name}])
        return directory


def new_run(model_dir: Path, job_name: str) -> Run:
    """Begin a run; raises ConfigError where the model directory cannot be written."""
    run = Run(
        run_id=f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        model_dir=model_dir,
        key=secrets.token_hex(16),
    )
    try:
        run.root.mkdir(parents=True, mode=0o700)
        key = os.open(run.root / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(key, "w") as file:
            file.write(run.key)
        run.describe(run=run.run_id, job=job_name, started=utc_now(), status="running", phases=[])
    except OSError as exc:
        raise ConfigError(f"{model_dir} cannot be written: {exc.strerror}", field="model_dir") from exc
    _register(run)
    return run


def _new_phase_directory(model_dir: Path) -> Path:
    """Make a directory named for this second; a suffix keeps two of one second apart."""
    stem = f"{datetime.now(timezone.utc):%Y%m%d_%H%M%S}_restartable"
    for number in count():
        directory = model_dir / (f"{stem}-{number}" if number else stem)
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise AssertionError("count() does not end")


# -- finding runs again -----------------------------------------------------------------------------


def phase_directories(run: str) -> list[Path]:
    """Give the phase directories that RUN names: a run id, a model directory (its latest run) or a phase.

    Raises ConfigError with what was looked for.
    """
    path = Path(run)
    try:
        if (path / JOURNAL).is_file():
            return [path]
        root = _latest_run(path) if (path / RUNS).is_dir() else _registered(run)
    except OSError as exc:
        raise ConfigError(f"cannot be looked at: {exc.strerror}", file=run) from exc
    if root is None:
        raise ConfigError("no such run: give a run id, a model directory or a phase directory", file=run)
    return [
        root.parent.parent / phase["directory"] for phase in read_json(root / "run.json").get("phases", [])
    ]


def _latest_run(model_dir: Path) -> Path | None:
    roots = [path for path in (model_dir / RUNS).iterdir() if (path / "run.json").is_file()]
    return max(roots, key=lambda root: str(read_json(root / "run.json").get("started")), default=None)


def _registry() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "prefect-ft" / "runs"


def _register(run: Run) -> None:
    """Let `status RUN_ID` find the run from anywhere; a home that cannot be written costs only that."""
    with contextlib.suppress(OSError):
        _registry().mkdir(parents=True, exist_ok=True)
        (_registry() / run.run_id).symlink_to(run.root.absolute())


def _registered(run_id: str) -> Path | None:
    link = _registry() / Path(run_id).name
    return link.resolve() if (link / "run.json").is_file() else None


# -- the run-time directory -------------------------------------------------------------------------


def runtime_directory(run_id: str) -> Path:
    """Make and give the run's directory for sockets and output: on a local disk, for this user only.

    Below PREFECT_FT_RUNTIME_DIR, else the directory for temporary files. Raises ConfigError.
    """
    base = os.environ.get("PREFECT_FT_RUNTIME_DIR")
    root = Path(base) if base else Path(tempfile.gettempdir()) / f"prefect-ft-{os.getuid()}"
    directory = root / run_id
    try:
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        status = root.stat()
    except OSError as exc:
        raise ConfigError(f"{directory}: {exc.strerror}", field="PREFECT_FT_RUNTIME_DIR") from exc
    if status.st_uid != os.getuid():
        raise ConfigError(f"{root} belongs to somebody else", field="PREFECT_FT_RUNTIME_DIR")
    root.chmod(stat.S_IRWXU)
    if len(os.fsencode(directory)) > MAX_RUNTIME_PATH:
        raise ConfigError(
            f"{directory} is too long for sockets; name a shorter directory", field="PREFECT_FT_RUNTIME_DIR"
        )
    return directory


MAX_RUNTIME_PATH = 80
"""Bytes; a socket's path has 107 and the rest is the worker's."""


# -- small files ------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """Give a JSON object, an empty one where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole or not at all."""
    _replace(path, json.dumps(content, indent=2) + "\n")


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole or not at all."""
    import yaml  # noqa: PLC0415  (only runs write YAML; `status` need not load it)

    _replace(path, yaml.safe_dump(dict(content), sort_keys=False))


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.replace(path)
