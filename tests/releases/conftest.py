"""Versions that take up each other's runs share the session's server."""

from __future__ import annotations

import pytest
import releases


@pytest.fixture
def api(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))


@pytest.fixture(scope="session", params=releases.RELEASES)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> releases.Version:
    """An earlier release's package."""
    return releases.unpacked(request.param, tmp_path_factory.mktemp("release"))
