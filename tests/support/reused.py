"""Process numbers that are given to strangers on purpose, in a PID namespace of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import prefect_ft

ROOT = Path(prefect_ft.__file__).parents[1]
_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

PRELUDE = f"""
import json, os, select, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})

def started_as(pid, *words):
    'Start a process that gets this number, which has to be free.'
    with open('/proc/sys/kernel/ns_last_pid', 'w') as file:
        file.write(str(pid - 1))
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.pid == pid, (process.pid, pid)
    return process

def stranger(pid):
    return started_as(pid, 'cat')

def was_killed(process):
    'End a stranger; say whether a signal had before.'
    try:
        process.stdin.write(b'alive')  # a signal that was sent is taken before this is read
        process.stdin.close()
    except BrokenPipeError:
        pass
    said = process.stdout.read()
    process.stdout.close()
    process.wait()
    return said != b'alive'
"""


@cache
def _why_not() -> str:
    """Why numbers cannot be chosen here; empty: they can."""
    code = "open('/proc/sys/kernel/ns_last_pid', 'w').write('1000')"
    try:
        tried = subprocess.run([*_UNSHARE, sys.executable, "-c", code], capture_output=True, check=False)
    except FileNotFoundError:
        return "there is no unshare (util-linux)"
    return "" if tried.returncode == 0 else "PID namespaces need root"


def run_with_chosen_numbers(code: str, cwd: Path) -> dict[str, Any]:
    """Run a program as the first process of a namespace, and return what it prints as JSON."""
    if why := _why_not():
        pytest.skip(why)
    program = cwd / "program.py"
    program.write_text(PRELUDE + code)
    done = subprocess.run(
        [*_UNSHARE, sys.executable, str(program)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
