"""The kind `kubernetes`: workers are pods of a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from prefect_ft.backends.base import Backend
from prefect_ft.backends.kind import Kind, Workers
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.kept import CLUSTER, CORDONS
from prefect_ft.errors import BackendError, ConfigError
from prefect_ft.journal.records import Line
from prefect_ft.run import certificates_of

DEVICE = re.compile("/.*(gpu|npu|ascend)", re.IGNORECASE)
"""Names of resources that are accelerators, like nvidia.com/gpu and huawei.com/Ascend910."""


class KubernetesKind(Kind[KubernetesInfrastructure]):
    """A system is a node."""

    config = KubernetesInfrastructure
    block = "prefect_ft.blocks.training:KubernetesTraining"

    def check(self, infrastructure: KubernetesInfrastructure, field: str) -> None:
        """Look for the nodes, and have the cluster validate the first worker's pod."""
        try:
            from prefect_ft.backends.kubernetes.checks import check_cluster  # noqa: PLC0415  (its client costs a second)
        except BackendError as exc:  # its client is not installed
            raise ConfigError(str(exc), field=f"{field}.type") from exc
        check_cluster(infrastructure, field)

    def ranks_per_worker(
        self, infrastructure: KubernetesInfrastructure, env: Mapping[str, str | None]
    ) -> int:
        """Return how many accelerators a pod requests, by the names of vendors' devices, or 1."""
        del env
        limits = infrastructure.resources.limits
        asked = (int(count) for name, count in limits.items() if DEVICE.search(name) and count.isdecimal())
        return sum(asked) or 1

    def backend(self, workers: Workers[KubernetesInfrastructure]) -> Backend:
        """Return the backend that uses the cluster; agents are reached over its network, with certificates."""
        from prefect_ft.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415  (its client costs a second)

        settings = replace(workers.settings, certificates=certificates_of(workers.run_root))
        return KubernetesBackend(settings, workers.directory, workers.infrastructure, files=workers.files)

    def isolating(
        self,
        infrastructure: KubernetesInfrastructure,
        run_id: str,
        directory: Path,
        lines: Callable[[], Sequence[Line]],
        *,
        ends_with_the_run: bool,
    ) -> AbstractContextManager[None]:
        """Cordon isolated nodes, where the job says so."""
        if not infrastructure.cordon:
            return nullcontext()
        from prefect_ft.backends.kubernetes.cordon import Cordons  # noqa: PLC0415  (its client costs a second)

        cordons = Cordons(infrastructure, run_id, directory)
        return cordons.keeping(lines, ends_with_the_run=ends_with_the_run)

    def clear(self, directory: Path) -> None:
        """Remove a run's pods, and uncordon what it has cordoned."""
        if (directory / CLUSTER).exists():
            from prefect_ft.backends.kubernetes.removal import remove_pods  # noqa: PLC0415  (its client costs a second)

            remove_pods(directory)
        if (directory / CORDONS).exists():
            from prefect_ft.backends.kubernetes.cordon import lift_all  # noqa: PLC0415  (as above)

            lift_all(directory)


KIND = KubernetesKind()
