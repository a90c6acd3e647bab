"""What an agent takes for a rank that is parked."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from prefect_ft.worker.processes import Held
from prefect_ft.worker.zygote_process import Parked


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_who_lives_and_says_nothing_is_waiting(child, ends) -> None:
    assert Parked(Held(child.pid), ends[0]).is_waiting()


def test_who_is_dead_is_not_waiting_though_the_zygote_has_its_connection_still(child, ends) -> None:
    parked = Parked(Held(child.pid), ends[0])
    child.kill()
    assert parked.process.ends(10)
    assert not parked.is_waiting()


@pytest.mark.parametrize("says", [True, False], ids=["speaks", "hangs-up"])
def test_who_speaks_or_hangs_up_is_not_waiting(child, ends, says: bool) -> None:
    ours, theirs = ends
    theirs.send(b"x") if says else theirs.close()
    assert not Parked(Held(child.pid), ours).is_waiting()
