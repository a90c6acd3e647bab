"""One server for all tests of a deployment: to start it takes as long as they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import postgres
import pytest
from sites import Site, arm

from tests.conftest import need


@contextmanager
def deployed(
    factory: pytest.TempPathFactory, database: str | None = None, prepared: Path | None = None
) -> Iterator[Site]:
    """A deployed train-flow; no worker runs."""
    site = Site(factory.mktemp("site"), factory.mktemp("rt"), database, prepared=prepared)
    arm(site)
    try:
        site.start_server()
        site.prefect("work-pool", "create", "training", "--type", "process")
        site.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        yield site
    finally:
        site.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Site]:
    """A site whose server stores in SQLite."""
    with deployed(tmp_path_factory, prepared=prefect_home) as site:
        yield site


@pytest.fixture(scope="session")
def site_on_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose server stores in a PostgreSQL of its own."""
    why_not = postgres.why_not()
    need("postgres", why_not is None, why_not or "")
    with postgres.postgres() as database, deployed(tmp_path_factory, database.url) as site:
        yield site
