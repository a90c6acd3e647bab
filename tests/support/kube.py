"""The cluster that tests use: their own, or the one that KUBECONFIG names; a namespace of theirs in either."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import kube_cluster
from kube_image import IMAGE

LABEL = "prefect-ft-test/system"
SYSTEMS = ("s0", "s1", "s2")
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Target:
    """Where tests make pods. `own` is None where the cluster is somebody else's: that is not cut."""

    kubeconfig: str
    namespace: str
    own: kube_cluster.Cluster | None
    nodes: dict[str, str]
    """By system, the name of its node."""
    core: Any
    """A client of the API."""

    def infrastructure(self, **fields: Any) -> dict[str, Any]:
        """What a job file says of it."""
        place = {"kubeconfig": self.kubeconfig, "namespace": self.namespace, "system_label": LABEL}
        image = os.environ.get("PREFECT_FT_TEST_IMAGE", IMAGE)
        return {"type": "kubernetes", "image": image, "systems": ["s0", "s1"], **place, **fields}

    def cut(self, system: str) -> None:
        """Take the network of a system's node away."""
        assert self.own is not None
        self.own.cut(int(self.nodes[system].removeprefix("n")))

    def join(self, system: str) -> None:
        """Give it back, and wait until the cluster hears of the node."""
        assert self.own is not None
        self.own.join(int(self.nodes[system].removeprefix("n")))
        self.until(lambda: self._is_ready(self.nodes[system]))

    def _is_ready(self, node: str) -> bool:
        conditions = self.core.read_node(node).status.conditions
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def names(self, kind: str) -> list[str]:
        """The names of a kind's objects that runs have in the namespace."""
        listed = getattr(self.core, f"list_namespaced_{kind}")(
            self.namespace, label_selector="prefect-ft/run"
        )
        return sorted(item.metadata.name for item in listed.items)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def why_not() -> str | None:
    """Say why no cluster can be had; None: nothing that is known."""
    return None if os.environ.get("KUBECONFIG") else kube_cluster.why_not()


@contextmanager
def cluster_for_tests() -> Iterator[Target]:
    """Give a cluster whose nodes are systems, and a namespace in it that goes at the end."""
    from kubernetes import client, config

    with ExitStack() as stack:
        own = None
        kubeconfig = os.environ.get("KUBECONFIG")
        if kubeconfig is None:  # one of the tests' own
            own = stack.enter_context(kube_cluster.cluster())
            kubeconfig = str(own.kubeconfig)
        core = client.CoreV1Api(config.new_client_from_config(kubeconfig))
        names = [node.metadata.name for node in core.list_node().items]
        nodes = dict(zip(SYSTEMS, sorted(names), strict=False))
        namespace = f"prefect-ft-test-{secrets.token_hex(3)}"
        target = Target(kubeconfig, namespace, own, nodes, core)
        stack.callback(_leave, target)
        _enter(target)
        yield target


def _enter(target: Target) -> None:
    for system, node in target.nodes.items():
        target.core.patch_node(node, {"metadata": {"labels": {LABEL: system}}})
    target.core.create_namespace({"metadata": {"name": target.namespace}})
    accounts = target.core.list_namespaced_service_account
    target.until(lambda: bool(accounts(target.namespace).items))


def _leave(target: Target) -> None:
    target.core.delete_namespace(target.namespace)
    for node in target.nodes.values():
        target.core.patch_node(node, {"metadata": {"labels": {LABEL: None}}})
    target.core.api_client.rest_client.pool_manager.clear()
