"""What is left of a run's workers, of whatever kind: ended and removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from prefect_ft.backends.home import CLUSTER, CORDONS, ENGINES
from prefect_ft.backends.strays import end_strays


def clear_directory(directory: Path) -> None:
    """End what is left of a run's workers, whoever's they were, and remove its run-time directory.

    Also where somebody has removed it already, with the workers' sockets in it.
    """
    if (directory / ENGINES).exists():
        from prefect_ft.backends.docker.backend import remove_containers  # noqa: PLC0415  (its client costs 0.1 s)

        remove_containers(directory)
    if (directory / CLUSTER).exists():
        from prefect_ft.backends.kubernetes.backend import remove_pods  # noqa: PLC0415  (its client costs a second)

        remove_pods(directory)
    if (directory / CORDONS).exists():
        from prefect_ft.backends.kubernetes.cordon import lift_all  # noqa: PLC0415  (as above)

        lift_all(directory)
    end_strays(directory)
    shutil.rmtree(directory, ignore_errors=True)
