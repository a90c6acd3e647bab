"""One server for all tests of a deployment: to start it takes as long as they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sites import Site, arm


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A deployed train-flow with its automations; no worker runs."""
    site = Site(tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("rt"))
    arm(site)
    try:
        site.start_server()
        site.prefect("work-pool", "create", "training", "--type", "process")
        site.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        yield site
    finally:
        site.close()
