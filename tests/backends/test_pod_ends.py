"""What a pod's last status says of its end: statuses as clusters of 1.20 and of the newest versions give them."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.backends.kubernetes.pod_ends import end_of

LEAVING = {"deletionTimestamp": "2026-11-21T17:00:00Z", "deletionGracePeriodSeconds": 30}


def pod(
    phase: str = "Running",
    *,
    state: dict[str, Any] | None = None,
    disrupted: tuple[str, str] | None = None,
    metadata: dict[str, Any] | None = None,
    **status: str,
) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if disrupted is not None:
        reason, message = disrupted
        conditions.insert(
            0, {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        )
    states = [{"name": "worker", "state": state or {"running": {"startedAt": "2026-11-21T16:00:00Z"}}}]
    return {
        "metadata": {"name": "w", "uid": "1", **(metadata or {})},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": states, **status},
    }


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


def event(reason: str, message: str) -> dict[str, Any]:
    return {"type": "Normal", "reason": reason, "message": message, "metadata": {}}


USED_UP = "the kernel ended a process of its container that had used up the container's memory"
PREEMPTED = event("Preempted", "Preempted by other/urgent on node n1")

STATUSES = [
    pytest.param(pod(), {}, None, id="it-runs"),
    pytest.param(
        pod(
            metadata=LEAVING,
            disrupted=("PreemptionByScheduler", "default-scheduler: preempting to accommodate"),
        ),
        {},
        (
            "pod-preempted",
            "its pod has ended: PreemptionByScheduler: default-scheduler: preempting to accommodate",
        ),
        id="preempted-by-the-scheduler",
    ),
    pytest.param(
        pod(metadata=LEAVING, disrupted=("PreemptionByKubeScheduler", "Kube-scheduler: preempting")),
        {},
        ("pod-preempted", "its pod has ended: PreemptionByKubeScheduler: Kube-scheduler: preempting"),
        id="preempted-by-the-scheduler-1.25",
    ),
    pytest.param(
        pod(metadata=LEAVING),
        {"events": [event("Scheduled", "…"), PREEMPTED]},
        ("pod-preempted", "its pod has ended: Preempted: Preempted by other/urgent on node n1"),
        id="preempted-by-the-scheduler-1.20",
    ),
    pytest.param(
        pod("Failed", reason="Preempting", message="Preempted in order to admit critical pod"),
        {},
        ("pod-preempted", "its pod has ended: Preempting: Preempted in order to admit critical pod"),
        id="preempted-by-the-node",
    ),
    pytest.param(
        pod(metadata=LEAVING, disrupted=("EvictionByEvictionAPI", "Eviction API: evicting")),
        {"is_node_closed": True},
        ("pod-drained", "its pod has ended: EvictionByEvictionAPI: Eviction API: evicting"),
        id="drained",
    ),
    pytest.param(
        pod(metadata=LEAVING),
        {"is_node_closed": True},
        ("pod-drained", "its pod is removed from a node that was cordoned"),
        id="drained-1.20",
    ),
    pytest.param(
        pod(metadata=LEAVING, disrupted=("DeletionByTaintManager", "Taint manager: NoExecute taint")),
        {},
        ("pod-drained", "its pod has ended: DeletionByTaintManager: Taint manager: NoExecute taint"),
        id="driven-out-by-a-taint",
    ),
    pytest.param(
        pod(metadata=LEAVING),
        {"events": [event("TaintManagerEviction", "Marking for deletion Pod default/w")]},
        ("pod-drained", "its pod has ended: TaintManagerEviction: Marking for deletion Pod default/w"),
        id="driven-out-by-a-taint-1.20",
    ),
    pytest.param(
        pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
        {},
        ("pod-evicted", "its pod has ended: Evicted: The node was low on resource: memory."),
        id="node-pressure",
    ),
    pytest.param(
        pod(
            "Failed",
            reason="Evicted",
            message="The node was low on resource: ephemeral-storage.",
            disrupted=("TerminationByKubelet", "The node was low on resource: ephemeral-storage."),
            state=ended(137),
        ),
        {},
        ("pod-evicted", "its pod has ended: Evicted: The node was low on resource: ephemeral-storage."),
        id="node-pressure-newest",
    ),
    pytest.param(
        pod("Failed", reason="Evicted", message='Usage of EmptyDir volume "shm" exceeds the limit "8Gi". '),
        {},
        (
            "pod-evicted",
            'its pod has ended: Evicted: Usage of EmptyDir volume "shm" exceeds the limit "8Gi".',
        ),
        id="shared-memory-used-up",
    ),
    pytest.param(
        pod("Failed", reason="Shutdown", message="Node is shutting, evicting pods"),
        {},
        ("node-shutdown", "its pod has ended: Shutdown: Node is shutting, evicting pods"),
        id="node-shutdown-1.20",
    ),
    pytest.param(
        pod(
            "Failed",
            reason="Terminated",
            message="Pod was terminated in response to imminent node shutdown.",
            disrupted=("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."),
        ),
        {},
        (
            "node-shutdown",
            "its pod has ended: Terminated: Pod was terminated in response to imminent node shutdown.",
        ),
        id="node-shutdown-newest",
    ),
    pytest.param(
        pod("Failed", reason="NodeLost", message="Node n1 which was running pod w is unresponsive"),
        {},
        ("node-lost", "its pod has ended: NodeLost: Node n1 which was running pod w is unresponsive"),
        id="node-lost",
    ),
    pytest.param(
        pod("Failed", reason="DeadlineExceeded", message="Pod was active longer than the deadline"),
        {},
        ("pod-deadline", "its pod has ended: DeadlineExceeded: Pod was active longer than the deadline"),
        id="deadline",
    ),
    pytest.param(
        pod(
            "Failed", reason="UnexpectedAdmissionError", message="Allocate failed: no healthy devices present"
        ),
        {},
        (
            "pod-refused",
            "its pod has ended: UnexpectedAdmissionError: Allocate failed: no healthy devices present",
        ),
        id="devices-refused",
    ),
    pytest.param(
        pod("Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
        {},
        ("pod-refused", "its pod has ended: OutOfcpu: Node didn't have enough resource: cpu"),
        id="node-has-no-room",
    ),
    pytest.param(
        pod("Failed", reason="SomethingNew"),
        {},
        ("pod-evicted", "its pod has ended: SomethingNew: no more is known"),
        id="a-reason-that-is-not-known",
    ),
    pytest.param(
        pod("Failed", state=ended(137, "OOMKilled")),
        {},
        ("container-oom", USED_UP),
        id="memory-used-up",
    ),
    pytest.param(
        pod("Running", state=ended(137, "OOMKilled"), metadata=LEAVING),
        {},
        ("container-oom", USED_UP),
        id="memory-used-up-and-removed-since",
    ),
    pytest.param(
        pod(
            "Failed",
            state={"terminated": {"exitCode": 128, "reason": "StartError", "message": 'exec: "python3"\n'}},
        ),
        {},
        ("pod-ended", 'its pod has ended with exit code 128: exec: "python3"'),
        id="it-was-never-started",
    ),
    pytest.param(
        pod("Failed", state=ended(1)), {}, ("pod-ended", "its pod has ended with exit code 1"), id="it-ended"
    ),
    pytest.param(
        pod("Succeeded", state=ended(0, "Completed")),
        {},
        ("pod-ended", "its pod has ended with exit code 0"),
        id="it-left",
    ),
    pytest.param(
        pod("Failed", state=ended(137), metadata=LEAVING),
        {},
        ("pod-removed", "its pod was removed from outside"),
        id="removed",
    ),
    pytest.param(
        pod(), {"is_there": False}, ("pod-removed", "its pod was removed from outside"), id="removed-by-force"
    ),
    pytest.param(
        None, {"is_there": False}, ("pod-removed", "its pod was removed from outside"), id="nobody-saw-it"
    ),
    pytest.param({"metadata": {"name": "w", "uid": "1"}, "status": {}}, {}, None, id="nothing-is-known-yet"),
]


@pytest.mark.parametrize(("told", "how", "expected"), STATUSES)
def test_ends(told: dict[str, Any] | None, how: dict[str, Any], expected: tuple[str, str] | None) -> None:
    found = end_of(told, **{"is_there": True, "is_node_closed": False, **how})
    assert (found and (found.rule, found.text)) == expected


def test_what_can_be_helped_has_a_hint() -> None:
    found = end_of(pod("Failed", state=ended(137, "OOMKilled")), is_there=True, is_node_closed=False)
    assert found is not None
    assert found.hint == "raise the container's limit in `resources`; /dev/shm counts as its memory"
