"""Explains why a pod has ended, or is about to, from its status and events. Pure.

The reasons are those of the Kubernetes API and its components, from version 1.20 on. What follows is up to the
supervisor: `base.TAKEN_AWAY` lists the ends that are preemptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect_ft.backends.base import USED_UP
from prefect_ft.backends.kubernetes.pod_state import is_leaving
from prefect_ft.model import Evidence

Json = Mapping[str, Any]

_DISRUPTED = {
    "PreemptionByScheduler": "pod-preempted",
    "PreemptionByKubeScheduler": "pod-preempted",  # in 1.25
    "EvictionByEvictionAPI": "pod-drained",
    "DeletionByTaintManager": "pod-drained",
}
"""By the reason of the condition DisruptionTarget, which clusters have from 1.26 on."""

_REASONS = {
    "Preempting": "pod-preempted",
    "Preempted": "pod-preempted",
    "Evicted": "pod-evicted",
    "Shutdown": "node-shutdown",  # up to 1.21
    "Terminated": "node-shutdown",
    "NodeShutdown": "node-shutdown",
    "NodeLost": "node-lost",
    "DeadlineExceeded": "pod-deadline",
    "UnexpectedAdmissionError": "pod-refused",
    "TopologyAffinityError": "pod-refused",
    "NodeAffinity": "pod-refused",
    "NodePorts": "pod-refused",
}
"""By the reason in the status of a pod that has failed as a whole."""

_NOTED = {"Preempted": "pod-preempted", "TaintManagerEviction": "pod-drained"}
"""By the reason of a pod's event: before 1.26 there is no other sign."""

_HINTS = {
    "pod-evicted": "have the node's memory and disk kept free: give `resources` requests, and limits that hold",
    "pod-deadline": "something sets activeDeadlineSeconds: see `pod`, and the cluster's admission rules",
    "pod-refused": "the node said it had room and had not, or its device plugin failed",
}


def end_of(
    pod: Json | None, *, is_there: bool, is_node_closed: bool, events: Sequence[Json] = ()
) -> Evidence | None:
    """Return the evidence of a pod's end; None: there is none.

    `pod` is its last known state, None where it was never seen; `is_there`: it still exists. `is_node_closed`: its
    node is cordoned. `events` are the cluster's events about it.
    """
    if pod is None:
        return Evidence(rule="pod-removed", text="its pod was removed from outside")
    ended = _disrupted(pod) or _failed(pod) or _killed_for_memory(pod)
    if ended is None and (is_leaving(pod) or not is_there):
        return _removed(is_node_closed=is_node_closed, events=events)
    return ended or _exited(pod)


def _disrupted(pod: Json) -> Evidence | None:
    for each in pod["status"].get("conditions", ()):
        if each["type"] == "DisruptionTarget" and each["status"] == "True":
            rule = _DISRUPTED.get(each.get("reason", ""))
            if rule is not None:
                return _evidence(rule, each["reason"], each.get("message"))
    return None


def _failed(pod: Json) -> Evidence | None:
    """Return why its node, or the cluster, has ended a pod as a whole."""
    status = pod["status"]
    if status.get("phase") != "Failed" or "reason" not in status:
        return None
    reason = status["reason"]
    rule = "pod-refused" if reason.startswith("OutOf") else _REASONS.get(reason, "pod-evicted")
    return _evidence(rule, reason, status.get("message"))


def _killed_for_memory(pod: Json) -> Evidence | None:
    if any(ended.get("reason") == "OOMKilled" for ended in _terminated(pod)):
        return USED_UP
    return None


def _removed(*, is_node_closed: bool, events: Sequence[Json]) -> Evidence:
    for each in events:
        if each.get("reason") in _NOTED:
            return _evidence(_NOTED[each["reason"]], each["reason"], each.get("message"))
    if is_node_closed:
        return Evidence(rule="pod-drained", text="its pod is removed from a node that was cordoned")
    return Evidence(rule="pod-removed", text="its pod was removed from outside")


def _exited(pod: Json) -> Evidence | None:
    for ended in _terminated(pod):
        text = f"its pod has ended with exit code {ended['exitCode']}"
        if ended.get("message"):  # it could not even be started
            text += f": {' '.join(ended['message'].split())}"
        return Evidence(rule="pod-ended", text=text)
    return None


def _evidence(rule: str, reason: str, message: str | None) -> Evidence:
    text = f"its pod has ended: {reason}: {' '.join((message or 'no more is known').split())}"
    return Evidence(rule=rule, text=text, hint=_HINTS.get(rule, ""))


def _terminated(pod: Json) -> list[Json]:
    states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", ())]
    return [state["terminated"] for state in states if "terminated" in state]
