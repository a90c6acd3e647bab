"""Why a pod does not begin, and what helps: statuses, notes and refusals as clusters give them."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.backends.kubernetes.pod_state import has_begun, is_running, stuck, trouble, waits_for


def pod(
    phase: str = "Pending", *, state: dict[str, Any] | None = None, unscheduled: str = ""
) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False" if unscheduled else "True"}
    if unscheduled:
        scheduled |= {"reason": "Unschedulable", "message": unscheduled}
    states = [{"name": "worker", "state": state}] if state else []
    return {
        "metadata": {"name": "w", "uid": "1"},
        "status": {"phase": phase, "conditions": [scheduled], "containerStatuses": states},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


CREATING = waiting("ContainerCreating")
NO_PYTHON = "the image has no such Python: name its interpreter in `python`"
NOT_MADE = "make it, or name one that is there in `volumes`"
LATE = 'MountVolume.SetUp failed for volume "c" : failed to sync configmap cache: timed out waiting for the condition'
CORDONED = "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match node affinity."


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param(pod("Running", state={"running": {}}), True, id="running"),
        pytest.param(pod("Running", state=CREATING), False, id="not-yet"),
        pytest.param(pod(state=CREATING), False, id="pending"),
        pytest.param({"metadata": {}, "status": {}}, False, id="nothing-is-known"),
    ],
)
def test_running(told: dict[str, Any], expected: bool) -> None:
    assert is_running(told) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(None, False, id="nothing-is-known"),
        pytest.param(waiting("ErrImageNeverPull"), False, id="waits"),
        pytest.param({"running": {}}, True, id="runs"),
        pytest.param({"terminated": {"exitCode": 0}}, True, id="has-run"),
    ],
)
def test_begun(state: dict[str, Any] | None, expected: bool) -> None:
    assert has_begun(pod(state=state)) is expected


@pytest.mark.parametrize(
    ("told", "is_node_closed", "expected"),
    [
        pytest.param(pod(state=CREATING), False, None, id="it-may-yet"),
        pytest.param(pod(unscheduled=CORDONED), False, None, id="there-may-be-room-yet"),
        pytest.param(
            pod(unscheduled=CORDONED),
            True,
            (
                f"its node is cordoned: {CORDONED} (`kubectl uncordon` it, or name another node in `systems`)",
                False,
            ),
            id="cordoned",
        ),
        pytest.param(pod(state=CREATING), True, None, id="cordoned-since"),
        pytest.param(
            pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "a:1"')),
            False,
            ('ImagePullBackOff: Back-off pulling image "a:1"', False),
            id="image-not-pulled",
        ),
        pytest.param(
            pod(state=waiting("InvalidImageName", 'Failed to apply default image tag "A:1"')),
            False,
            (
                'InvalidImageName: Failed to apply default image tag "A:1" (write `image` as REGISTRY/NAME:TAG)',
                True,
            ),
            id="image-name",
        ),
        pytest.param(
            pod(state=waiting("CreateContainerConfigError", 'configmap "c" not found')),
            False,
            (f'CreateContainerConfigError: configmap "c" not found ({NOT_MADE})', True),
            id="config-map-missing",
        ),
        pytest.param(
            pod(
                state=waiting(
                    "CreateContainerConfigError",
                    "failed to sync secret cache: timed out waiting for the condition",
                )
            ),
            False,
            None,
            id="secret-not-seen-yet",
        ),
        pytest.param(
            pod(state=waiting("RunContainerError", "python3: executable file not found")),
            False,
            (f"RunContainerError: python3: executable file not found ({NO_PYTHON})", True),
            id="no-python",
        ),
        pytest.param(
            pod(state=waiting("CreateContainerError")),
            False,
            ("CreateContainerError: no more is known", False),
            id="no-message",
        ),
    ],
)
def test_what_never_will_run(
    told: dict[str, Any], is_node_closed: bool, expected: tuple[str, bool] | None
) -> None:
    found = stuck(told, is_node_closed=is_node_closed)
    assert (found and tuple(found)) == expected


def event(reason: str, message: str, kind: str = "Warning") -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "metadata": {}}


SHORT = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match node affinity."
MOUNT = event(
    "FailedMount",
    'MountVolume.SetUp failed for volume "volume-0" : mount failed:\n  exit status 32 connection refused',
)
MISSING = event("FailedScheduling", 'persistentvolumeclaim "training" not found')


@pytest.mark.parametrize(
    ("told", "events", "expected"),
    [
        pytest.param(
            pod(unscheduled=SHORT),
            [event("FailedScheduling", SHORT)],
            f"its pod is not scheduled: {SHORT} (the node has not that much free: wait for what uses it, or ask for "
            "less in `resources`)",
            id="too-few-devices",
        ),
        pytest.param(
            pod(unscheduled=MISSING["message"]),
            [MISSING],
            'its pod is not scheduled: persistentvolumeclaim "training" not found (make the claim, or name one that '
            "is there in `volumes`)",
            id="no-such-claim",
        ),
        pytest.param(
            pod(
                unscheduled="0/3 nodes are available: 1 node(s) had taint {gpu: yes}, that the pod didn't tolerate."
            ),
            [],
            "its pod is not scheduled: 0/3 nodes are available: 1 node(s) had taint {gpu: yes}, that the pod didn't "
            "tolerate. (name the taint in `tolerations`, or another node in `systems`)",
            id="taint",
        ),
        pytest.param(
            pod(state=CREATING),
            [event("Scheduled", "Successfully assigned", "Normal"), event("FailedMount", "older"), MOUNT],
            'its pod still waits: FailedMount: MountVolume.SetUp failed for volume "volume-0" : mount failed: exit '
            "status 32 connection refused (the node does not reach the registry or the file server)",
            id="volume-not-mounted",
        ),
        pytest.param(
            pod(state=CREATING),
            [MOUNT, event("FailedMount", LATE)],
            'its pod still waits: FailedMount: MountVolume.SetUp failed for volume "volume-0" : mount failed: exit '
            "status 32 connection refused (the node does not reach the registry or the file server)",
            id="another-volume-is-only-late",
        ),
        pytest.param(
            pod(state=CREATING),
            [event("FailedMount", LATE)],
            f"its pod still waits: FailedMount: {LATE}",
            id="the-only-volume-is-late",
        ),
        pytest.param(
            pod(state=waiting("ErrImagePull", "rpc error: pull access denied for a")),
            [],
            "its pod still waits: ErrImagePull: rpc error: pull access denied for a (name a secret with the "
            "registry's credentials in `pull_secrets`)",
            id="no-events",
        ),
        pytest.param(
            {"status": {}}, [], "its pod still waits: nothing is known of why", id="nothing-is-known"
        ),
    ],
)
def test_what_is_waited_for(told: dict[str, Any], events: list[dict[str, Any]], expected: str) -> None:
    assert waits_for(told, events).text == expected


@pytest.mark.parametrize(
    ("said", "on_any_system", "remedy"),
    [
        pytest.param(
            'pods "w" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4',
            True,
            "ask for less in `resources`, or have the namespace's quota raised",
            id="quota",
        ),
        pytest.param(
            'pods "w" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
            True,
            "say under `pod` and `container` what the namespace's policy wants, or use another namespace",
            id="pod-security",
        ),
        pytest.param(
            'pods "w" is forbidden: no PriorityClass with name high was found',
            True,
            "name a class that `kubectl get priorityclasses` shows",
            id="priority-class",
        ),
        pytest.param(
            'pods "w" is forbidden: error looking up service account d/x: serviceaccount "x" not found',
            True,
            "make the service account, or name one that is there",
            id="service-account",
        ),
        pytest.param(
            'admission webhook "policy.example.com" denied the request: no',
            True,
            "the cluster's own rules refuse such pods",
            id="webhook",
        ),
        pytest.param(
            'failed to resolve reference "r.example.com/a:2": r.example.com/a:2: not found',
            True,
            "see whether `image` is the name of one that the registry has",
            id="no-such-tag",
        ),
        pytest.param(
            "dial tcp: lookup r.example.com: no such host",
            False,
            "the node does not reach the registry or the file server",
            id="registry-away",
        ),
    ],
)
def test_remedies(said: str, on_any_system: bool, remedy: str) -> None:
    assert trouble(said) == (f"{said} ({remedy})", on_any_system)


def test_what_nobody_knows_is_said_as_it_is() -> None:
    assert trouble("it is broken") == ("it is broken", False)
    assert trouble("it is broken", on_any_system=True) == ("it is broken", True)
