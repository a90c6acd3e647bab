"""The state of the systems' nodes: ready, lost or cordoned. One watch of the nodes serves all callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prefect_ft.backends.kubernetes.cluster import Cluster
from prefect_ft.backends.kubernetes.watch import View, Watch
from prefect_ft.errors import BackendError

SETTLE_S = 30.0
"""How long nodes may seem lost after the cluster's API was unreachable: it may not have heard of them yet."""

NEWS_TIMEOUT_S = 10.0
"""How long a change may take to be reported."""

Json = Mapping[str, Any]


class Nodes:
    """Nodes whose `label` has the name of a system as its value belong to that system."""

    def __init__(self, cluster: Cluster, label: str, news: threading.Condition) -> None:
        self._label = label
        self._watch = Watch(cluster.source_of_nodes(label), news)
        self._away_at = -SETTLE_S
        """When the cluster was last found unreachable."""

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._watch.close()

    def answers(self, system: str) -> bool:
        """Whether a system's node is ready; raises BackendError where the cluster does not answer."""
        return any(map(_is_ready, self._of(system, self._watch.now())))

    def is_cut(self, system: str) -> bool:
        """Whether the cluster has lost a system's node, or has none; False where that is unknown now."""
        try:
            return not self.answers(system) and time.monotonic() - self._away_at >= SETTLE_S
        except BackendError:
            self._away_at = time.monotonic()
            return False

    def is_closed(self, system: str) -> bool:
        """Whether all nodes of a system are cordoned; False where the cluster does not answer."""
        try:
            nodes = self._of(system, self._watch.now())
        except BackendError:
            return False
        return _are_closed(nodes)

    def await_open(self, system: str) -> None:
        """Wait until the watch shows that a node that was just uncordoned takes pods again."""
        self._watch.until(lambda view: not _are_closed(self._of(system, view)) or None, NEWS_TIMEOUT_S)

    def _of(self, system: str, view: View) -> Sequence[Json]:
        return [
            node for node in view.objects.values() if node["metadata"]["labels"].get(self._label) == system
        ]


def _is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _are_closed(nodes: Sequence[Json]) -> bool:
    return bool(nodes) and all(node.get("spec", {}).get("unschedulable") for node in nodes)
