"""What must hold on NFS: who may act on a model directory, and what is read and written there, with a real server."""

from __future__ import annotations

import json
import os
import sys

import nfs_machine
import pytest

from tests.conftest import need

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LIMIT_S = 1500.0
FILES = (
    "tests/run/test_lease.py", "tests/run/test_run.py", "tests/journal", "tests/pool/test_quarantine.py",
    "tests/test_files.py",
)  # fmt: skip
"""Tests that touch nothing but files of model directories; the locks of systems are in the run-time directory."""


@pytest.fixture(autouse=True)
def machine() -> None:
    need("nfs", nfs_machine.why_not() is None, str(nfs_machine.why_not()))


@pytest.mark.parametrize("options", ["vers=4.2", "vers=3", "vers=4.2,actimeo=600"])
def test_the_lease_holds_between_two_clients(options: str) -> None:
    code, output = nfs_machine.run([options], LIMIT_S)
    assert code == 0, output
    told = json.loads(output.splitlines()[-1])
    assert told["first"] == "held 1"
    for said, _ in told["second while the first lives"]:
        assert said.startswith("refused run run-1 is held by process ")
    for who, epoch in (("second while the first is stopped", 2), ("first while the second is cut off", 3)):
        said, silent_s = told[who]
        assert (said, silent_s >= told["lease_s"]) == (f"held {epoch}", True)
    for who, epoch in (("first that goes on", 2), ("second that is back", 3)):
        said, _ = told[who]
        assert (
            said
            == f"lost an orchestrator of epoch {epoch} has taken over from this one, of epoch {epoch - 1}"
        )


def test_files_of_a_run_lie_on_nfs() -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp={0}/base", "--timeout=600", *FILES)
    env = [f"{name}={os.environ[name]}" for name in ("PREFECT_FT_REQUIRE",) if name in os.environ]
    code, output = nfs_machine.run(["vers=4.2", "env", *env, sys.executable, *words], LIMIT_S)
    assert code == 0, output
