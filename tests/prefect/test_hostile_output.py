"""What a rank printed stands in Prefect's states, log, table and page as text alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from prefect_ft import train_flow
from prefect_ft.config import JobConfig
from prefect_ft.prefect_edge.reporting import api as reporting_api

HOSTILE = r"\x1b\x1b[31m[2J\x1bc\u009b31m\u202eevil ![a](http://b.example/c.png)"
RAISE = f'raise ValueError("{HOSTILE}")'


def unseen(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n", "\t"}


def test_a_line_of_a_rank_plants_nothing_in_prefect(
    job: Callable[..., JobConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts: dict[str, Any] = {}
    put = reporting_api.OpenApi.put_artifact

    def noted(self: Any, key: str, kind: str, data: Any, description: str) -> None:
        artifacts[key] = data
        put(self, key, kind, data, description)

    monkeypatch.setattr(reporting_api.OpenApi, "put_artifact", noted)
    state = train_flow(job(RAISE, env={"PYTHONIOENCODING": "utf-8"}), return_state=True)
    assert state.is_failed()
    assert "evil" in state.message
    assert not unseen(state.message)
    assert not unseen(caplog.text)
    rows = json.loads(artifacts["restart-ledger"])
    for row in rows:
        cells = "".join(str(cell) for cell in row.values())
        assert r"evil \!\[a\](http\://b.example/c.png)" in cells
        assert "![" not in cells
        assert not unseen(cells)
    with get_client(sync_client=True) as client:
        logs = client._client.post("/logs/filter", json={"limit": 200, "sort": "TIMESTAMP_DESC"}).json()
    assert not [log for log in logs if unseen(log["message"])]
