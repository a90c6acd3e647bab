"""The owner's side: Prefect starts `python -m prefect_ft.prefect_edge.embedded` as its temporary server instead."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings


class OwnedServer(SubprocessASGIServer):
    """Prefect's temporary server, in a session of its own; Prefect starts, queries and stops it as usual."""

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect_ft.prefect_edge.embedded", str(os.getpid()), str(self.port)],
            env={**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)},
            start_new_session=True,
        )

    def stop(self) -> None:
        """Stop it, and stay the one of this process: another one, for what is still to be told, would outlive it."""
        super().stop()
        self._instances[self._instance_key] = self
