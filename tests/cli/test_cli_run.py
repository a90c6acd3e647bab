"""`prefect-ft run` as a user starts it: exit codes, errors of one line, Ctrl-C once and twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import preloaded
import psutil
import pytest

from prefect_ft.cli import main
from prefect_ft.journal.lines import read_lines
from prefect_ft.supervisor.stopping import ONE_REQUEST_S

JOB = """
name: test
model_dir: model
autorestart: {{max_num_restarts: 3}}
stop_grace_s: {grace}
phases:
  - name: train
    command: [{python}, -S, -c, {code}]
    checkpoints: {{path: ck}}
"""

UP = "import signal, sys, time; from prefect_ft.heartbeat import beat; "

Start = Callable[..., "subprocess.Popen[str]"]


def write_job(directory: Path, code: str, *, grace: float = 5) -> Path:
    path = directory / "job.yaml"
    path.write_text(JOB.format(python=sys.executable, code=json.dumps(code), grace=grace))
    return path


@pytest.fixture
def start(prefect_server: None, tmp_path: Path) -> Iterator[Start]:
    """Start `prefect-ft run`, against the session's server; end it, if the test does not."""
    from prefect.settings import PREFECT_API_URL

    processes = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = preloaded.started(
            [sys.executable, "-m", "prefect_ft.cli", "run", *arguments],
            env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read the run's messages until one holds `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"the run ended without saying {text!r}")


def ranks_of(runtime_dir: Path) -> list[int]:
    """Pids of everything that runs under the test's run-time directory."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if str(runtime_dir) in " ".join(process.info["cmdline"] or [])
        or str(runtime_dir) in (process.info["environ"] or {}).get("PREFECT_FT_HEARTBEAT", "")
    ]


def summary(directory: Path) -> dict[str, object]:
    path = next(directory.glob("model/*_restartable/summary.json"))
    return dict(json.loads(path.read_text()))


def test_a_completed_run_ends_with_0_and_a_table(start: Start, tmp_path: Path) -> None:
    out, err = start(str(write_job(tmp_path, "pass"))).communicate(timeout=60)
    assert "The run test completed" in out
    assert "attempt 1: 1 rank on localhost, from scratch" in err


def test_json_is_one_document_and_nothing_else(start: Start, tmp_path: Path) -> None:
    process = start(str(write_job(tmp_path, "pass")), "--json")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [phase["status"] for phase in json.loads(out)["phases"]] == ["completed"]


SAVES = "import json, os; print('from', os.environ['PREFECT_FT_RESUME_FROM'] or 'scratch'); "
SAVES += "os.makedirs('ck', exist_ok=True); json.dump({}, open('ck/step-7.json', 'w'))"


def test_a_new_run_says_whose_checkpoints_it_begins_with(start: Start, tmp_path: Path) -> None:
    job = str(write_job(tmp_path, SAVES))
    found = f"found 1 checkpoint of an earlier run in {tmp_path}/ck, newest step 7: "
    said = []
    for options in ((), (), ("--from-scratch",)):
        process = start(job, *options)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        said.append(next((line.partition(found)[2] for line in err.splitlines() if found in line), None))
    assert said == [
        None,
        "resuming from it; --from-scratch begins without them",
        "beginning without them; they stay where they are",
    ]
    logs = [path.read_text() for path in sorted(tmp_path.glob("model/*_restartable*/run.log"))]
    assert ["from scratch" in log for log in logs] == [True, False, True]


def test_what_is_gone_on_with_does_not_begin_from_scratch(tmp_path: Path) -> None:
    path = write_job(tmp_path, "pass")
    process = subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "run", str(path), "--from-scratch", "--resume"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = "begins a new run and cannot be combined with --resume; use --fresh instead"
    assert (process.returncode, process.stderr) == (2, f"error: --from-scratch: {said}\n")


def test_a_failed_run_ends_with_1_and_says_why_in_one_line(start: Start, tmp_path: Path) -> None:
    process = start(str(write_job(tmp_path, "assert 1 == 2, 'no'")))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("error: phase train: ")
    assert "Traceback" not in err


def test_ctrl_c_cancels_cleanly(start: Start, tmp_path: Path, runtime_dir: Path) -> None:
    code = UP + "signal.signal(15, lambda *_: (print('bye'), sys.exit(0))); beat(step=1); time.sleep(60)"
    process = start(str(write_job(tmp_path, code, grace=30)))
    wait_for(process, "step 1")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert summary(tmp_path)["status"] == "cancelled"
    assert "bye" in next(tmp_path.glob("model/*_restartable/run.log")).read_text()
    assert ranks_of(runtime_dir) == []


def test_a_second_ctrl_c_does_not_wait_for_the_grace(start: Start, tmp_path: Path, runtime_dir: Path) -> None:
    code = UP + "signal.signal(15, lambda *_: print('asked')); beat(step=1)\nwhile True: time.sleep(60)"
    process = start(str(write_job(tmp_path, code, grace=600)))
    wait_for(process, "step 1")
    process.send_signal(signal.SIGINT)
    log = next(tmp_path.glob("model/*_restartable/run.log"))
    while "asked" not in log.read_text():
        assert process.poll() is None
    time.sleep(ONE_REQUEST_S)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert ranks_of(runtime_dir) == []


def test_a_run_that_somebody_else_cancels_ends_as_with_ctrl_c(
    start: Start, tmp_path: Path, runtime_dir: Path
) -> None:
    code = UP + "signal.signal(15, lambda *_: (print('bye'), sys.exit(0))); beat(step=1); time.sleep(60)"
    process = start(str(write_job(tmp_path, code, grace=30)))
    wait_for(process, "step 1")
    assert main(["cancel", str(tmp_path / "model")]) == 0
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert summary(tmp_path)["status"] == "cancelled"
    assert "bye" in next(tmp_path.glob("model/*_restartable/run.log")).read_text()
    assert ranks_of(runtime_dir) == []


FILL_UP = """
import os
try:
    with open({filler!r}, "ab", buffering=0) as filler:
        while True: filler.write(b"x" * 512)
except OSError:
    pass
print("output for which there is no room", flush=True)
raise SystemExit({exit_code})
"""


def test_a_restart_that_is_due_happens_with_a_full_disk(
    start: Start, tmp_path: Path, small_disk: Path, runtime_dir: Path
) -> None:
    """Both attempts fill the disk; the second one completes."""
    exit_code = 'int(os.environ["PREFECT_FT_RESTART_COUNT"] == "0")'
    code = FILL_UP.format(filler=str(small_disk / "filler"), exit_code=exit_code)
    process = start(str(write_job(tmp_path, code)), "--model-dir", str(small_disk))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (directory,) = small_disk.glob("*_restartable")
    told = [line.type for line in read_lines(directory / "journal.jsonl")]
    assert [each for each in told if each in ("attempt", "incident", "decision", "end")] == [
        *("attempt", "incident", "decision") * 2,
        "end",
    ]
    assert "output is not written: " in err
    assert ranks_of(runtime_dir) == []


def test_a_journal_for_which_no_room_is_left_fails_the_run(
    start: Start, tmp_path: Path, small_disk: Path, runtime_dir: Path
) -> None:
    """It restarts until what was kept for the journal is used up."""
    code = FILL_UP.format(filler=str(small_disk / "filler"), exit_code=7)
    path = write_job(tmp_path, code)
    path.write_text(path.read_text().replace("max_num_restarts: 3", "max_num_restarts: 100"))
    process = start(str(path), "--model-dir", str(small_disk))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the journal cannot be written: No space left on device" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert ranks_of(runtime_dir) == []


BAD = {
    "missing-file": (None, "no such file"),
    "yaml-error": ("name: [\n", "job.yaml:2"),
    "unknown-key": ("name: x\nmodel_dir: m\nphase: []\n", "job.yaml:3: phase: unknown key"),
    "max-0": ("max_num_restarts: 0", "autorestart.max_num_restarts: "),
    "max-129": ("max_num_restarts: 129", "must be at most 128, got 129"),
    "max-3x": ('max_num_restarts: "3x"', "autorestart.max_num_restarts: "),
    "command-not-found": ("command: [no-such-program]", "phases[0].command: command not found"),
    "checkpoint-path": ("checkpoints: {path: /proc/nowhere}", "phases[0].checkpoints.path: "),
    "model-dir": ("model_dir: /proc/nowhere", "model_dir: "),
    "cwd": ("cwd: nowhere", "phases[0].cwd: "),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_said_in_one_line_before_anything_starts(
    tmp_path: Path, runtime_dir: Path, content: str | None, message: str
) -> None:
    path = write_job(tmp_path, "pass")
    lines = path.read_text().splitlines()
    key = (content or "").split(":")[0]
    if content is None:
        path.unlink()
    elif content.count("\n"):
        path.write_text(content)
    elif key == "max_num_restarts":
        path.write_text("\n".join(lines).replace("max_num_restarts: 3", content))
    else:
        kept = [line for line in lines if line.split(":")[0].strip(" -") != key]
        kept.insert(
            1 if key == "model_dir" else len(kept), content if key == "model_dir" else f"    {content}"
        )
        path.write_text("\n".join(kept))
    process = preloaded.completed(
        [sys.executable, "-m", "prefect_ft.cli", "run", "job.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: job.yaml")
    assert len(process.stderr.splitlines()) == 1
    assert message in process.stderr
    assert not list(tmp_path.glob("model/*"))
    # The workers' code lies there from the beginning, as a link.
    assert not [path for path in runtime_dir.glob("*") if path.name != "state" and not path.is_symlink()]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param("{", "quarantine.jsonl:1: is not JSON; ", id="damaged"),
        pytest.param(
            '{"system": "localhost", "since": "2026-01-02T03:04:05Z"}',
            "quarantine.jsonl: phase train needs 1 system, but 0 of its 1 are usable; in quarantine: localhost. ",
            id="too-few-systems",
        ),
    ],
)
def test_a_quarantine_that_refuses_the_run_is_said_before_anything_starts(
    tmp_path: Path, entry: str, message: str
) -> None:
    path = write_job(tmp_path, "pass")
    path.write_text(path.read_text() + "quarantine: quarantine.jsonl\n")
    (tmp_path / "quarantine.jsonl").write_text(entry)
    process = subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "run", "job.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout, process.stderr.count("\n")) == (2, "", 1)
    assert process.stderr.startswith(f"error: {tmp_path}/{message}")
    assert not list(tmp_path.glob("model/*"))
