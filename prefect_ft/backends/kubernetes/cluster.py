"""The objects of a Kubernetes cluster that a run works with: pods, their files, nodes, events."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from prefect_ft.backends.kubernetes import pod_commands
from prefect_ft.backends.kubernetes.api import Api, Json
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.listing import Listing
from prefect_ft.backends.kubernetes.request import CONTAINER
from prefect_ft.backends.kubernetes.watch import Source
from prefect_ft.errors import BackendError
from prefect_ft.files import parse_json


class Cluster:
    """One namespace of one cluster. Thread-safe; its methods raise BackendError."""

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str) -> None:
        """Raises BackendError where no configuration is found; sends nothing yet."""
        self._api, self._namespace = Api(kubeconfig, context), namespace
        self._core = self._api.core

    @property
    def url(self) -> str:
        return self._api.url

    # -- objects of the namespace -----------------------------------------------------------------

    def create(self, whole: Json, *, dry_run: bool = False) -> Json | None:
        """Create an object, or only have it validated; return it. None: one of its name exists, and stays."""
        how = {"dry_run": "All"} if dry_run else {}
        calls = {
            "Pod": self._core.create_namespaced_pod,
            "Secret": self._core.create_namespaced_secret,
            "ConfigMap": self._core.create_namespaced_config_map,
        }
        return self._api.fetch(calls[whole["kind"]], self._namespace, whole, but=409, **how)

    def pod(self, name: str) -> Json | None:
        """Return a pod; None: there is none."""
        return self._api.fetch(self._core.read_namespaced_pod, name, self._namespace, but=404)

    def pods(self, selector: str) -> list[Json]:
        """Return the pods with these labels."""
        return self._api.listed(self._core.list_namespaced_pod, self._namespace, label_selector=selector)[0]

    def delete_pod(self, name: str, grace_s: int) -> Json | None:
        """Delete a pod; with 0 it is removed at once, whatever its node reports. Idempotent.

        Return its present state; None: there is none any more.
        """
        delete = self._core.delete_namespaced_pod
        answer = self._api.request(delete, name, self._namespace, but=404, grace_period_seconds=grace_s)
        # The answer to a removal at once is a Status, which is not an object.
        return None if answer is None or _kind_in(answer) != "Pod" else self._api.parsed(answer)

    def delete_secret(self, name: str) -> None:
        """Delete a secret. Idempotent."""
        self._api.request(self._core.delete_namespaced_secret, name, self._namespace, but=404)

    def delete_files(self, selector: str) -> None:
        """Delete the secrets and config maps with these labels. Idempotent."""
        for delete in (
            self._core.delete_collection_namespaced_secret,
            self._core.delete_collection_namespaced_config_map,
        ):
            self._api.request(delete, self._namespace, label_selector=selector)

    def log(self, name: str) -> str:
        """Return the output of a pod's first process; empty where it is not available."""
        read = self._core.read_namespaced_pod_log
        try:
            output = self._api.request(read, name, self._namespace, container=CONTAINER)
        except BackendError:
            return ""
        return (output or b"").decode(errors="replace")

    def events(self, uid: str) -> list[Json]:
        """Return the cluster's events about an object, the oldest first; none where it does not answer."""
        selector = f"involvedObject.uid={uid}"
        with suppress(BackendError):
            found, _ = self._api.listed(
                self._core.list_namespaced_event, self._namespace, field_selector=selector
            )
            return sorted(found, key=lambda each: each["metadata"].get("creationTimestamp") or "")
        return []

    # -- nodes ------------------------------------------------------------------------------------

    def nodes(self, label: str) -> list[Json]:
        """Return the nodes that have this label, or this label's value as in `label=value`."""
        return self._api.listed(self._core.list_node, label_selector=label)[0]

    def node(self, name: str) -> Json | None:
        """Return a node; None: there is none."""
        return self._api.fetch(self._core.read_node, name, but=404)

    def patch_node(self, name: str, patch: Json) -> bool:
        """Change a node; False: it has changed since the version that the patch names."""
        return self._api.request(self._core.patch_node, name, patch, but=409) is not None

    # -- watches and commands ---------------------------------------------------------------------

    def source_of_pods(self, selector: str) -> Source:
        """Return the source for a watch of the pods with these labels."""
        return Listing(self._api, self._core.list_namespaced_pod, (self._namespace,), selector)

    def source_of_nodes(self, label: str) -> Source:
        """Return the source for a watch of the nodes with this label."""
        return Listing(self._api, self._core.list_node, (), label)

    def execute(self, name: str, words: Sequence[str], timeout_s: float) -> bool:
        """Run a command in a pod; return whether it succeeded, and in time."""
        return pod_commands.execute(self._api, self._namespace, name, words, timeout_s)

    def open(
        self, name: str, words: Sequence[str], timeout_s: float, *, is_cut: Callable[[], bool]
    ) -> socket.socket:
        """Run a command in a pod and return a socket to its input and output; raises OSError.

        `is_cut` is called periodically: it returns whether the pod's node is lost, which the API does not report.
        """
        return pod_commands.connect(self._api, self._namespace, name, words, timeout_s, is_cut=is_cut)


def cluster_of(infrastructure: KubernetesInfrastructure) -> Cluster:
    """Return the cluster and namespace that an infrastructure names."""
    return Cluster(infrastructure.kubeconfig, infrastructure.context, infrastructure.namespace)


def _kind_in(answer: bytes) -> object:
    with suppress(ValueError):
        value = parse_json(answer)
        return value.get("kind") if isinstance(value, dict) else None
    return None
