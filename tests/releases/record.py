"""Record a release: `record.py CHECKOUT PYTHON NAME` fills tests/releases/NAME from real runs of that checkout.

CHECKOUT is a working tree of the release, PYTHON an interpreter that has its dependencies. What is recorded:

- `release.zip`: the package itself, to be unpacked and put on PYTHONPATH.
- `train.py`: the training.
- `recorded/STORY/`: the job's directory of a run on the process backend, with `model/`, `checkpoints/` and, where
  workers left something behind, the run-time directory in `runtime/`. The stories:
  `completed`;
  `several-attempts`: rank 1 fails once, then it completes;
  `failed`: an assertion in each attempt, until the budget is used up;
  `cancelled`: by `prefect-ft cancel`, in step 15;
  `killed`: orchestrator, agents and ranks by SIGKILL, in step 15;
  `left`: the orchestrator by SIGKILL; a rank fails then, and the agents leave with their results;
  `proposed`: as `failed`, but the end has to be approved; orchestrator and agents by SIGKILL while that waits.
- `frames/N.orders`, `frames/N.events`: what orchestrator and agent N said in `several-attempts`, byte for byte but
  for the names below.

Paths, the host's name, its boot and its pid namespace are replaced by the neutral ones of `neutral`, in frames together
with their lengths. Keys are those of the runs, which are over. `releases.py` puts names of the place in again.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
BASE, RUNTIME, PYTHON = "/srv/train", "/run/prefect-ft", "/usr/bin/python3"
BOOT, PID_SPACE = "00000000-0000-4000-8000-000000000000", "pid:[4026531836]"

JOB = """name: recorded
model_dir: model
sample_period_s: 0.5
orphan_timeout_s: {orphan_s}
infrastructure: {{type: process, systems: [s0, s1], workers: 2, secret_env: {{TOKEN: no-secret}}}}
autorestart: {{max_num_restarts: 3{more}}}
phases:
  - name: pretrain
    command: [python, -S, train.py, {story}]
    checkpoints: {{path: checkpoints, settle_s: 0.1}}
    target_step: 30
"""
STORIES = ("completed", "several-attempts", "failed", "cancelled", "killed", "left", "proposed")
HELD = ("cancelled", "killed", "left")
TRAINING = "train.py"
DEADLINE_S = 120.0


class Recorder:
    """Plays the stories in a directory of its own."""

    def __init__(self, checkout: Path, python: Path, base: Path) -> None:
        self.checkout, self.python, self.base = checkout, python, base
        self.runtime = base / "rt"
        self.tapped = base / "tapped"
        self.tapped.mkdir()
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(base / "home"),
            "XDG_STATE_HOME": str(base / "state"),
            "PREFECT_HOME": str(base / "prefect"),
            "PREFECT_FT_RUNTIME_DIR": str(self.runtime),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": os.pathsep.join((str(HERE / "tap"), str(checkout))),
        }

    def command(self, *words: str, taps: bool = False) -> subprocess.Popen[bytes]:
        """Start `prefect-ft` of the release."""
        env = {**self._env, **({"PREFECT_FT_TAP": str(self.tapped)} if taps else {})}
        log = (self.base / "log").open("ab")
        return subprocess.Popen(
            [str(self.python), "-m", "prefect_ft.cli", *words], env=env, cwd=self.base, stdout=log, stderr=log
        )

    def play(self, story: str) -> Path:
        """Play a story to its end and return its directory."""
        place = self.base / story
        (place / "checkpoints").mkdir(parents=True)
        shutil.copy(HERE / TRAINING, place)
        more = ", ask_before: [fail]" if story == "proposed" else ""
        (place / "job.yaml").write_text(
            JOB.format(story=story, more=more, orphan_s=1 if story == "left" else 60)
        )
        if story in HELD:
            (place / "hold").touch()
        run = self.command("run", str(place / "job.yaml"), taps=story == "several-attempts")
        if story in HELD:
            _await(lambda: (place / "held-0").exists() and (place / "held-1").exists())
            _await(lambda: b'"checkpoint"' in _journal(place))
        {"cancelled": self._cancel, "killed": self._kill, "left": self._leave, "proposed": self._propose}.get(
            story, lambda *_: None
        )(place, run)
        run.wait(DEADLINE_S)
        for name in ("hold", "held-0", "held-1"):
            (place / name).unlink(missing_ok=True)
        return place

    def _cancel(self, place: Path, run: subprocess.Popen[bytes]) -> None:
        assert self.command("cancel", str(place / "model")).wait(DEADLINE_S) == 0

    def _kill(self, place: Path, run: subprocess.Popen[bytes]) -> None:
        run.kill()
        run.wait()
        for path in (*self.runtime.glob("*/*/agent.pid"), *place.glob("held-*")):
            os.kill(int(path.read_text().split()[0]), signal.SIGKILL)

    def _leave(self, place: Path, run: subprocess.Popen[bytes]) -> None:
        run.kill()
        run.wait()
        (place / "hold").unlink()
        _await(lambda: len(list(self.runtime.glob("*/*/left.json"))) == 2)

    def _propose(self, place: Path, run: subprocess.Popen[bytes]) -> None:
        _await(lambda: b'"proposed"' in _journal(place))
        self._kill(place, run)


def _journal(place: Path) -> bytes:
    return b"".join(path.read_bytes() for path in place.glob("model/*/journal.jsonl"))


def _await(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "what was to be recorded has not happened"
        time.sleep(0.02)


# -- what is kept of it -------------------------------------------------------------------------------


def neutral(recorder: Recorder) -> Callable[[bytes], bytes]:
    """Return what replaces this machine's names."""
    names = {
        str(recorder.runtime): RUNTIME,
        str(recorder.base): BASE,
        str(recorder.python): PYTHON,
        str(recorder.python.resolve()): PYTHON,
        f'"host": "{socket.gethostname()}"': '"host": "host"',
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(): BOOT,
        os.readlink("/proc/self/ns/pid"): PID_SPACE,
    }

    def replace(data: bytes) -> bytes:
        for name, other in names.items():
            data = data.replace(name.encode(), other.encode())
        return data

    return replace


def keep(place: Path, target: Path, replace: Callable[[bytes], bytes]) -> None:
    """Copy all regular files of a directory."""
    for path in sorted(place.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != TRAINING:
            kept = target / path.relative_to(place)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(replace(path.read_bytes()))


def frames(data: bytes) -> Iterator[bytes]:
    """Return the bodies of a stream of frames."""
    while data:
        (length,) = struct.unpack_from(">I", data)
        yield data[4 : 4 + length]
        data = data[4 + length :]


def keep_frames(tapped: Path, target: Path, replace: Callable[[bytes], bytes]) -> None:
    target.mkdir()
    for path in sorted(tapped.iterdir()):
        bodies = [replace(body) for body in frames(path.read_bytes())]
        (target / path.name).write_bytes(b"".join(struct.pack(">I", len(body)) + body for body in bodies))


def keep_release(checkout: Path, target: Path) -> None:
    """Pack the package, the same bytes for the same files."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted((checkout / "prefect_ft").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = zipfile.ZipInfo(str(path.relative_to(checkout)))
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def check(target: Path, recorder: Recorder) -> None:
    """Raise AssertionError where something of this machine is left in what was recorded."""
    this = [str(recorder.base), str(recorder.checkout), str(recorder.python), f'"{socket.gethostname()}"']
    for path in target.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        found = [name for name in this if name.encode() in content]
        assert not found, f"{path}: {found}"


def main(checkout: Path, python: Path, name: str) -> None:
    """Record all of it anew."""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shutil.copy(HERE / TRAINING, target)
    keep_release(checkout, target / "release.zip")
    with tempfile.TemporaryDirectory(prefix="rec-") as base:
        recorder = Recorder(checkout.absolute(), python.absolute(), Path(base))
        replace = neutral(recorder)
        for story in STORIES:
            keep(recorder.play(story), target / "recorded" / story, replace)
            for directory in sorted(recorder.runtime.glob("*-*-*")):
                keep(directory, target / "recorded" / story / "runtime" / directory.name, replace)
                shutil.rmtree(directory)
            print(story)
        keep_frames(recorder.tapped, target / "frames", replace)
        check(target, recorder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
