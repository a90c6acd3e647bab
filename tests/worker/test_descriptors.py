"""Connections have descriptors above the soft limit, which stays as it is for whatever is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import prefect_ft

ROOT = Path(prefect_ft.__file__).parents[1]

PRELUDE = f"""
import json, os, resource, socket, subprocess, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from prefect_ft.backends.base import Address
from prefect_ft.worker import descriptors

def limits():
    return resource.getrlimit(resource.RLIMIT_NOFILE)

def listening():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("listener")
    listener.listen(4096)
    return listener

address = Address(socket_path=Path("listener"), host="")
"""


def run(code: str, cwd: Path, soft: int = 64, hard: int = 512) -> dict[str, Any]:
    words = ["sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "sh"]
    done = subprocess.run(
        [*words, sys.executable, "-c", PRELUDE + code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


BOTH_ENDS = """
listener = listening()
theirs = [address.connect(5) for _ in range(%d)]
ours = [descriptors.accept(listener)[0] for _ in theirs]
numbers = [each.fileno() for each in ours + theirs]
child = subprocess.run(["sh", "-c", "ulimit -n; ulimit -Hn"], capture_output=True, text=True).stdout.split()
ours[-1].sendall(b"hello")
print(json.dumps({
    "lowest": min(numbers), "limits": limits(), "child": child, "says": theirs[-1].recv(5).decode(),
    "waits": theirs[0].gettimeout(), "inherited": any(map(os.get_inheritable, numbers)),
}))
"""


def test_connections_leave_the_numbers_below_the_soft_limit_free(tmp_path: Path) -> None:
    """Both ends of a hundred connections, of an orchestrator and of agents, where the soft limit is 64."""
    told = run(BOTH_ENDS % 100, tmp_path)
    assert told == {
        "lowest": 64, "limits": [64, 512], "child": ["64", "512"], "says": "hello", "waits": 5.0, "inherited": False,
    }  # fmt: skip


def test_where_the_limits_are_one_connections_are_taken_as_far_as_it_reaches(tmp_path: Path) -> None:
    told = run(BOTH_ENDS % 10, tmp_path, soft=64, hard=64)
    assert told["lowest"] < 64
    assert (told["limits"], told["says"]) == ([64, 64], "hello")


@pytest.mark.parametrize(("soft", "hard"), [(64, 64), (64, 128)])
def test_beyond_the_hard_limit_there_is_an_error_and_the_soft_one_stays(
    tmp_path: Path, soft: int, hard: int
) -> None:
    told = run(
        """
listener, connections = listening(), []
try:
    while True:
        connections.append(address.connect(5))
except OSError as exc:
    print(json.dumps({"error": exc.strerror, "limits": limits(), "count": len(connections)}))
""",
        tmp_path,
        soft,
        hard,
    )
    assert (told["error"], told["limits"]) == ("Too many open files", [soft, hard])
    assert told["count"] > hard - 16


def test_threads_that_connect_at_once_do_not_leave_the_limit_raised(tmp_path: Path) -> None:
    told = run(
        """
listener = listening()
found = [[] for _ in range(4)]
def connect(mine):
    mine.extend(address.connect(5) for _ in range(50))
threads = [threading.Thread(target=connect, args=(mine,)) for mine in found]
for thread in threads: thread.start()
for thread in threads: thread.join()
numbers = [each.fileno() for mine in found for each in mine]
print(json.dumps({"limits": limits(), "lowest": min(numbers), "count": len(set(numbers))}))
""",
        tmp_path,
    )
    assert told == {"limits": [64, 512], "lowest": 64, "count": 200}
