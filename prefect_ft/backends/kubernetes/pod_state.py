"""Reads a pod's status while it starts: whether it runs, or why it does not, and what to do. Pure.

`pod_ends` is about how pods end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Json = Mapping[str, Any]

NOT_YET = "timed out waiting for the condition"
"""The message of a node that has not yet seen an existing secret or config map; it retries."""

HOPELESS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)
"""Reasons for which a container will wait forever."""


class Trouble(NamedTuple):
    """Why a pod cannot start. `on_any_system`: it could not on any other system either."""

    text: str
    on_any_system: bool


class Remedy(NamedTuple):
    """What to do about a message that matches `words`, and whether it concerns all systems."""

    words: str
    helps: str
    on_any_system: bool = False


REMEDIES = (
    Remedy("exceeded quota", "ask for less in `resources`, or have the namespace's quota raised", True),
    Remedy(r"violates PodSecurity|security context constraint|unable to validate against any pod security",
           "say under `pod` and `container` what the namespace's policy wants, or use another namespace", True),
    Remedy("no PriorityClass with name", "name a class that `kubectl get priorityclasses` shows", True),
    Remedy(r"error looking up service account|serviceaccount .* not found",
           "make the service account, or name one that is there", True),
    Remedy(r"admission webhook|denied the request|is forbidden", "the cluster's own rules refuse such pods", True),
    Remedy(r"persistentvolumeclaim .* (not found|is being deleted)",
           "make the claim, or name one that is there in `volumes`", True),
    Remedy("unbound immediate PersistentVolumeClaims", "the claim has no volume yet: see `kubectl describe pvc`", True),
    Remedy("had volume node affinity conflict", "the claim's volume can be mounted on other nodes only"),
    Remedy(r"(configmap|secret) .*not found", "make it, or name one that is there in `volumes`", True),
    Remedy(r"Insufficient (?P<what>\S+?)[,.]?(\s|$)",
           "the node has not that much free: wait for what uses it, or ask for less in `resources`"),
    Remedy(r"were unschedulable|is cordoned", "`kubectl uncordon` it, or name another node in `systems`"),
    Remedy(r"had (untolerated )?taints?\b", "name the taint in `tolerations`, or another node in `systems`"),
    Remedy(r"pull access denied|unauthorized|authentication required|403 Forbidden",
           "name a secret with the registry's credentials in `pull_secrets`", True),
    Remedy(r"manifest (for \S+ )?(unknown|not found)|not found: manifest|repository does not exist|\S+: not found",
           "see whether `image` is the name of one that the registry has", True),
    Remedy("InvalidImageName", "write `image` as REGISTRY/NAME:TAG", True),
    Remedy("ErrImageNeverPull", "the node has no such image: `pull: missing` would have it pulled"),
    Remedy(r"executable file not found|no such file or directory",
           "the image has no such Python: name its interpreter in `python`", True),
    Remedy(r"no such host|i/o timeout|connection refused", "the node does not reach the registry or the file server"),
)  # fmt: skip
"""In order: the first that matches counts."""


def trouble(text: str, *, on_any_system: bool = False) -> Trouble:
    """Return a message together with what to do about it; `on_any_system` counts where no remedy matches."""
    for each in REMEDIES:
        if re.search(each.words, text, re.IGNORECASE):
            return Trouble(f"{text} ({each.helps})", each.on_any_system)
    return Trouble(text, on_any_system)


def is_running(pod: Json) -> bool:
    """Whether its container runs."""
    return pod["status"].get("phase") == "Running" and any("running" in each for each in _states(pod))


def has_ended(pod: Json) -> bool:
    """Whether all containers of a pod have ended."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def has_begun(pod: Json) -> bool:
    """Whether its container runs or has run, as far as its node has reported."""
    return any(state.keys() & {"running", "terminated"} for state in _states(pod))


def is_leaving(pod: Json) -> bool:
    """Whether it has been deleted; its processes may still run for a while."""
    return "deletionTimestamp" in pod["metadata"]


def stuck(pod: Json, *, is_node_closed: bool) -> Trouble | None:
    """Return why a pod will never run; None: it may. `is_node_closed`: its node is cordoned."""
    for state in _states(pod):
        waiting = state.get("waiting", {})
        if waiting.get("reason") in HOPELESS and NOT_YET not in waiting.get("message", ""):
            return trouble(f"{waiting['reason']}: {waiting.get('message', 'no more is known')}")
    unscheduled = _unscheduled(pod)
    if unscheduled is not None and is_node_closed:
        return trouble(f"its node is cordoned: {unscheduled}")
    return None


def waits_for(pod: Json, events: Sequence[Json]) -> Trouble:
    """Return what a pod that is late waits for, from its status and its events."""
    warnings = [each for each in events if each.get("type") == "Warning" and each.get("message")]
    if (unscheduled := _unscheduled(pod)) is not None:
        return trouble(f"its pod is not scheduled: {_one_line(unscheduled)}")
    if warnings:
        last = sorted(warnings, key=lambda each: NOT_YET not in each["message"])[-1]
        return trouble(f"its pod still waits: {last['reason']}: {_one_line(last['message'])}")
    for state in _states(pod):
        if "waiting" in state:
            waiting = state["waiting"]
            words = filter(None, (waiting.get("reason"), waiting.get("message")))
            return trouble(f"its pod still waits: {': '.join(words) or 'nothing is known of why'}")
    return Trouble("its pod still waits: nothing is known of why", on_any_system=False)


def _unscheduled(pod: Json) -> str | None:
    """Return why a pod could not be scheduled; None: it was, or scheduling has not been tried yet."""
    for each in pod["status"].get("conditions", ()):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return str(each.get("message") or each.get("reason") or "no more is known")
    return None


def _states(pod: Json) -> Iterator[Json]:
    for each in pod["status"].get("containerStatuses", ()):
        yield each.get("state", {})


def _one_line(text: str) -> str:
    return " ".join(text.split())
