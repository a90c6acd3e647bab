"""Metrics as users describe them: where they are served."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_ft.config.fields import NotBool, Section, Text


class Metrics(Section):
    """Where a run serves its metrics to Prometheus while it lasts."""

    port: Annotated[int, Field(ge=1, le=65535), NotBool] = Field(
        description="TCP port; the path is /metrics", examples=[9464]
    )
    host: Text = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all of this machine's"
    )
