"""Workers get the worker's part of this package, whole, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_ft.backends.payload import payload_directory


def test_it_holds_the_worker_side_and_nothing_else(tmp_path: Path) -> None:
    payload = payload_directory(tmp_path)
    top = {path.name for path in payload.iterdir()} - {"__pycache__"}
    inside = {path.name for path in (payload / "prefect_ft").iterdir()} - {"__pycache__"}
    assert (top, inside) == (
        {"__main__.py", "prefect_ft"},
        {"__init__.py", "callbacks", "compat", "heartbeat.py", "inprocess", "worker"},
    )


def test_it_is_made_once(tmp_path: Path) -> None:
    first = payload_directory(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert payload_directory(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [first]


@pytest.mark.parametrize("lost", ["__main__.py", "prefect_ft/worker/agent.py"])
def test_a_ruin_is_made_whole_again(tmp_path: Path, lost: str) -> None:
    payload = payload_directory(tmp_path)
    (payload / lost).unlink()
    assert payload_directory(tmp_path) == payload
    assert (payload / lost).is_file()
    assert list(tmp_path.iterdir()) == [payload]


def test_every_user_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        payload = payload_directory(tmp_path)
    finally:
        os.umask(before)
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (payload, *payload.rglob("*"))}
    assert modes == {(True, 0o755), (False, 0o644)}


def test_several_may_make_it_at_once_and_whoever_has_it_mounted_keeps_it(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def make(_: int) -> int:
        start.wait()
        return os.open(payload_directory(tmp_path), os.O_DIRECTORY)  # a mount stays with the directory too

    with ThreadPoolExecutor(8) as pool:
        mounted = list(pool.map(make, range(8)))
    try:
        assert len(list(tmp_path.iterdir())) == 1
        for fd in mounted:
            assert {"__main__.py", "prefect_ft"} <= set(os.listdir(fd))
    finally:
        for fd in mounted:
            os.close(fd)


def test_the_heartbeat_is_found_there_without_anything_installed(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from prefect_ft import heartbeat; print(heartbeat.__file__)"
    payload = payload_directory(tmp_path)
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(payload)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(payload / "prefect_ft" / "heartbeat.py")


def test_the_agent_imports_the_standard_library_alone(tmp_path: Path) -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import prefect_ft.worker.agent
print(sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""
    payload = payload_directory(tmp_path)
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(payload)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "['__main__', 'prefect_ft']" or found.stdout.strip() == "['prefect_ft']"
