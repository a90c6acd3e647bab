"""A training by a foreign trainer below `prefect-ft run`, disturbed from outside, and what came of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import preloaded
import psutil
from foreign_trainers import OUTSIDE, SCRIPTS, Trainer

from prefect_ft.backends.clearing import clear_directory
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine, IncidentLine, Line

ABORTS = "terminate called without an active exception"
"""What PyTorch may print as a rank exits that has trained to its end."""

DEADLINE_S = 300.0
"""What must come comes within this, on the slowest machine."""

HANG_S = 20.0
"""Above what XLA compiles in silence, also where other work is on the machine."""


@dataclass
class Run:
    """One run of a trainer's job in a directory of its own."""

    trainer: Trainer
    directory: Path
    python: Path
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the job, over those that all have."""
    orchestrator: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.work.mkdir()
        self.job.write_text(json.dumps(self._document()))  # which is YAML

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def job(self) -> Path:
        return self.directory / "job.yaml"

    def _document(self) -> dict[str, Any]:
        trainer = self.trainer
        checkpoints = {**trainer.checkpoints, "path": str(self.work / trainer.checkpoints["path"])}
        phase = {
            "name": "train",
            "command": trainer.command(self.python, self.work),
            "cwd": str(self.work),
            "checkpoints": checkpoints,
            "env": {"PYTHONPATH": str(OUTSIDE), "OMP_NUM_THREADS": "1", **trainer.environment()},
            **trainer.phase,
        }
        systems = [f"s{number}" for number in range(trainer.workers)]
        return {
            "name": trainer.name,
            "model_dir": str(self.directory / "model"),
            "infrastructure": {"systems": systems, "workers": trainer.workers},
            "autorestart": {"max_num_restarts": 3},
            "sample_period_s": 0.5,
            "phases": [phase],
            **self.fields,
        }

    def begin(self, *words: str) -> None:
        """Start `prefect-ft` with these words, against the session's server."""
        from prefect.settings import PREFECT_API_URL

        with (self.directory / "orchestrator.log").open("ab") as log:
            self.orchestrator = preloaded.started(
                [sys.executable, "-m", "prefect_ft.cli", *words],
                env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )

    def done(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `prefect-ft` with these words to its end."""
        command = [sys.executable, "-m", "prefect_ft.cli", *words]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)

    def has_ended(self) -> bool:
        assert self.orchestrator is not None
        return self.orchestrator.poll() is not None

    def end(self) -> int:
        """Wait until the orchestrator ends by itself; return its exit code."""
        assert self.orchestrator is not None
        return self.orchestrator.wait(DEADLINE_S)

    def wait_for(self, pattern: str) -> None:
        """Wait for a line in what the ranks print."""
        self.wait_until(lambda: re.search(pattern, self.log()) is not None, pattern)

    def wait_until(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_there():
            assert not self.has_ended(), f"it ended before there was {what}:\n{self.told()}"
            assert time.monotonic() < deadline, f"there was no {what}:\n{self.told()}"
            time.sleep(0.02)

    def log(self) -> str:
        paths = sorted((self.directory / "model").glob("*_restartable/run.log"))
        return "".join(path.read_text(errors="replace") for path in paths)

    def journal(self) -> list[Line]:
        (path,) = (self.directory / "model").glob("*_restartable/journal.jsonl")
        return read_lines(path)

    def rules(self) -> list[str]:
        """Return the rule of each decision but the last, which completes, and but those about PyTorch's own aborts.

        On a busy machine a rank that has trained to its end may abort as it exits, by torchrun alone as well.
        """
        aborts = self.aborts()
        decisions = [
            line for line in self.journal() if isinstance(line, DecisionLine) and line.n not in aborts
        ]
        return [line.decision.rule for line in decisions][:-1]

    def aborts(self) -> set[int]:
        """Return the numbers of the incidents in which a rank that had trained to its end aborted as it exited."""
        ends = [line for line in self.journal() if isinstance(line, IncidentLine)]
        return {line.n for line in ends if line.incident.signal == signal.SIGABRT and ABORTS in self.log()}

    def told(self) -> str:
        """Return what explains a run that did not go as it should."""
        return f"{(self.directory / 'orchestrator.log').read_text()[-3000:]}\n{self.log()[-3000:]}"

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the ranks that live, by number; what they have started themselves is none."""
        mine = {}
        for process in psutil.process_iter(["environ"]):
            env = process.info["environ"] or {}
            if env.get("PREFECT_FT_HEARTBEAT", "").startswith(os.environ["PREFECT_FT_RUNTIME_DIR"]):
                mine[process.pid] = (int(env["RANK"]), process)
        with suppress(psutil.NoSuchProcess):
            return {rank: process for rank, process in mine.values() if process.ppid() not in mine}
        return self.ranks()

    def newest(self) -> Path:
        """Return the largest file of the newest checkpoint."""
        whole = [path for path in self.work.glob(self.trainer.saved) if "tmp" not in path.name]
        checkpoint = max(whole, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
        files = [path for path in checkpoint.rglob("*") if path.is_file()] or [checkpoint]
        return max(files, key=lambda path: path.stat().st_size)

    def result(self) -> dict[str, Any]:
        """Return what the training came to, as its own files say."""
        reader = [str(self.python), str(SCRIPTS / "result.py")]
        words = [*reader, self.trainer.result or self.trainer.name, str(self.work)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def close(self) -> None:
        """End whatever still runs."""
        if self.orchestrator is not None:
            self.orchestrator.kill()
            self.orchestrator.wait()
        for process in self.ranks().values():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        for path in Path(os.environ["PREFECT_FT_RUNTIME_DIR"]).glob("20*-*-*"):
            clear_directory(path)


@dataclass(frozen=True)
class Fault:
    """What is done to a run that is under way, and what is to be decided about it."""

    name: str
    inject: Callable[[Run], None]
    rules: tuple[tuple[str, ...], ...]
    """The decisions before the last: one of these lists."""
    fields: dict[str, Any] = field(default_factory=dict)
    restarts: bool = True
    """Whether ranks are started again."""


def _nothing(run: Run) -> None:
    del run


def _exception(run: Run) -> None:
    rank = run.ranks()[1]
    while rank.is_running():
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            rank.send_signal(signal.SIGUSR1)  # outside/sitecustomize.py raises
            rank.wait(2)  # an exception below native code may get lost there


def _killed(run: Run) -> None:
    run.ranks()[0].kill()


def _stopped(run: Run) -> None:
    run.ranks()[1].suspend()


def _orchestrator(run: Run) -> None:
    assert run.orchestrator is not None
    run.orchestrator.kill()
    run.orchestrator.wait()
    run.begin("resume", str(run.directory / "model"))


def _copied(run: Run) -> None:
    """Neither while the original is watched nor while it is not does a copy of it get at its ranks."""
    assert run.orchestrator is not None
    model, copy = run.directory / "model", run.directory / "copy"
    subprocess.run(["cp", "-a", model, copy], check=True)
    ranks = run.ranks()
    for process in ranks.values():
        process.suspend()  # else a quick trainer is at its end before the last command
    run.orchestrator.kill()
    run.orchestrator.wait()
    for words in (
        ["resume"],
        ["resume", "--moved"],
        ["cancel"],
        ["run", str(run.job), "--fresh", "--model-dir"],
    ):
        refused = run.done(*words, str(copy))
        assert (refused.returncode, f"is a copy of {model}" in refused.stderr) == (2, True), refused.stderr
    assert run.ranks().keys() == ranks.keys()
    for process in ranks.values():
        process.resume()
    run.begin("resume", str(model))


def _cut(run: Run) -> None:
    with _held(run):
        path = run.newest()
        os.truncate(path, path.stat().st_size // 2)


def _damaged(run: Run) -> None:
    with _held(run), run.newest().open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(size // 4)
        file.write(b"\xa5" * (size // 2))


@contextmanager
def _held(run: Run) -> Iterator[None]:
    """Keep ranks from saving; then kill one."""
    ranks = run.ranks()
    for process in ranks.values():
        process.suspend()
    yield
    ranks[0].kill()


_HANGS = {"suspension": {"restart": True, "hang_detect_time_s": HANG_S, "grace_s": 1}}

FAULTS = (
    Fault("none", _nothing, ((),), restarts=False),
    Fault("exception", _exception, (("confirm-once",),)),
    Fault("sigkill", _killed, (("transient",),)),
    Fault("sigstop", _stopped, (("suspended",),), _HANGS),
    Fault("orchestrator", _orchestrator, ((),), restarts=False),
    Fault("copied", _copied, ((),), restarts=False),
    Fault("cut", _cut, (("transient",),)),
    Fault("damaged", _damaged, (("transient",), ("transient", "checkpoint-unreadable"))),
)
