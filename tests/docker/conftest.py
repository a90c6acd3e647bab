"""Runs whose workers are containers; their orchestrators live in processes of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def api(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
