"""The cluster that tests use: their own, or the one that KUBECONFIG names; a namespace of theirs in either."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
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
        self._await_ready(system)

    @contextmanager
    def without(self, program: str, system: str) -> Iterator[None]:
        """Have a system's node without its `kubelet` or `containerd` while entered; what runs there goes on."""
        assert self.own is not None
        node = int(self.nodes[system].removeprefix("n"))
        self.own.kill(program, node)
        try:
            yield
        finally:
            begin = {"kubelet": self.own.begin_kubelet, "containerd": self.own.begin_containerd}
            begin[program](node)
            self._await_ready(system)

    def pod_of(self, worker: int) -> str:
        """The name of the pod of a run's worker; there is one run."""
        label = f"prefect-ft/worker={worker}"
        (pod,) = self.core.list_namespaced_pod(self.namespace, label_selector=label).items
        return str(pod.metadata.name)

    def drain(self, system: str, worker: int) -> None:
        """Have a system's node take no new pods, and a worker's pod there removed, as `kubectl drain` does."""
        self.cordon(system)
        name = self.pod_of(worker)
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        self.core.create_namespaced_pod_eviction(name, self.namespace, eviction)

    def cordoned(self) -> dict[str, str | None]:
        """The systems whose nodes are cordoned, each with the reason that a run gives."""
        nodes = {system: self.core.read_node(node) for system, node in self.nodes.items()}
        because = "prefect-ft/cordoned-because"
        return {
            system: (node.metadata.annotations or {}).get(because)
            for system, node in nodes.items()
            if node.spec.unschedulable
        }

    def cordon(self, system: str) -> None:
        """Have a system's node take no new pods."""
        self.core.patch_node(self.nodes[system], {"spec": {"unschedulable": True}})

    def uncordon(self, system: str) -> None:
        """Have it take pods again, and wait until the scheduler would give it some."""
        self.core.patch_node(self.nodes[system], {"spec": {"unschedulable": False}})
        self.until(lambda: not self.core.read_node(self.nodes[system]).spec.taints)

    @contextmanager
    def api_away(self) -> Iterator[None]:
        """The API does not answer while this is entered."""
        assert self.own is not None
        self.own.stop_api()
        try:
            yield
        finally:
            self.own.start_api()

    def _await_ready(self, system: str) -> None:
        """Wait until a system's node says that it is ready, from now on: what it said before may stand there yet."""
        now = datetime.now(timezone.utc)

        def is_ready() -> bool:
            conditions = self.core.read_node(self.nodes[system]).status.conditions
            (ready,) = (each for each in conditions if each.type == "Ready")
            return bool(ready.status == "True" and ready.last_heartbeat_time > now)

        self.until(is_ready)

    def names(self, kind: str) -> list[str]:
        """The names of a kind's objects that runs have in the namespace."""
        listed = getattr(self.core, f"list_namespaced_{kind}")(
            self.namespace, label_selector="prefect-ft/run"
        )
        return sorted(item.metadata.name for item in listed.items)

    def objects(self) -> set[tuple[str, str]]:
        """All objects that runs have in the namespace, as kind and name."""
        return {(kind, name) for kind in ("pod", "secret", "config_map") for name in self.names(kind)}

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
    """Return a cluster whose nodes are systems, and a namespace in it that goes at the end."""
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
