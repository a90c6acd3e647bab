"""A gang of pods is there whole or not at all, and what keeps one from it is told with what helps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from agents import settings
from eventual import eventually
from kube import Target

from prefect_ft.backends.base import Worker
from prefect_ft.backends.clearing import clear_directory
from prefect_ft.backends.kubernetes.backend import KubernetesBackend
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.errors import BackendError
from prefect_ft.run import certificates_of

pytestmark = pytest.mark.timeout(120)

GANG = [Worker(number=number, system=f"s{number}", epoch=1, decision=0) for number in (0, 1)]


@pytest.fixture
def make(target: Target, tmp_path: Path) -> Iterator[Callable[..., KubernetesBackend]]:
    """Makes backends; what they have made is removed at the end."""
    made = []

    def make(directory: Path = tmp_path / "run-1", **fields: Any) -> KubernetesBackend:
        infrastructure = KubernetesInfrastructure.model_validate(target.infrastructure(**fields))
        told = settings(certificates=certificates_of(directory))
        made.append(KubernetesBackend(told, directory, infrastructure))
        return made[-1]

    (tmp_path / "run-1").mkdir()
    yield make
    for backend in made:
        backend.destroy(GANG)
        backend.close()
    delete = target.core.delete_collection_namespaced_config_map
    delete(target.namespace, label_selector="prefect-ft/run")


@contextmanager
def cordoned(target: Target, system: str) -> Iterator[None]:
    target.cordon(system)
    try:
        yield
    finally:
        target.uncordon(system)


@contextmanager
def room_for_one(target: Target) -> Iterator[None]:
    """A quota of one pod."""
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    target.core.create_namespaced_resource_quota(target.namespace, quota)
    target.until(lambda: target.core.read_namespaced_resource_quota("one", target.namespace).status.hard)
    try:
        yield
    finally:
        target.core.delete_namespaced_resource_quota("one", target.namespace)


Trouble = Callable[[Target], AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("fields", "trouble", "said", "on_any_system"),
    [
        pytest.param(
            {"resources": {"requests": {"cpu": "1000"}}, "start_timeout_s": 5},
            nullcontext,
            r"2 of 2 pods do not run after 5 s: its pod is not scheduled: .*Insufficient cpu.*ask for less in",
            False,
            id="unschedulable",
        ),
        pytest.param(
            {},
            lambda target: cordoned(target, "s1"),
            r"worker 1 on s1: its node is cordoned: .*`kubectl uncordon` it",
            False,
            id="cordoned",
        ),
        pytest.param(
            {},
            room_for_one,
            r"refused: .* exceeded quota: one.*have the namespace's quota raised",
            True,
            id="quota",
        ),
        pytest.param(
            {"image": "not-there:1", "pull": "never"},
            nullcontext,
            r"ErrImageNeverPull: .*not-there:1.*`pull: missing` would have it pulled",
            False,
            id="no-image",
        ),
        pytest.param(
            {"volumes": [{"path": "/c", "config_map": "not-there"}], "start_timeout_s": 8},
            nullcontext,
            r'its pod still waits: FailedMount: .*configmap "not-there" not found \(make it, or name one',
            True,
            id="volume-not-mounted",
        ),
        pytest.param(
            {"volumes": [{"path": "/c", "claim": "not-there"}], "start_timeout_s": 5},
            nullcontext,
            r'persistentvolumeclaim "not-there" not found\.? \(make the claim, or',
            True,
            id="no-claim",
        ),
        pytest.param(
            {"python": "no-such-python"},
            nullcontext,
            r"executable file not found.*name its interpreter in `python`",
            True,
            id="no-python",
        ),
    ],
)
def test_a_gang_that_is_not_whole_is_none(
    target: Target,
    make: Callable[..., KubernetesBackend],
    fields: dict[str, Any],
    trouble: Trouble,
    said: str,
    on_any_system: bool,
) -> None:
    backend = make(**fields)
    with trouble(target), pytest.raises(BackendError) as caught:
        backend.create(GANG)
    assert re.search(said, str(caught.value)), str(caught.value)
    assert caught.value.on_any_system is on_any_system
    assert backend.find() == []
    assert eventually(lambda: target.names("secret"), []) == []


def test_streams_that_end_every_second_are_taken_up(
    target: Target, make: Callable[..., KubernetesBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.backends.kubernetes.listing.WATCH_S", 1)
    backend = make()
    backend.create(GANG)
    (name,) = [name for name in target.names("pod") if name.endswith("-1-1-0")]
    target.core.delete_namespaced_pod(name, target.namespace, grace_period_seconds=0)
    evidence = backend.evidence(GANG[1], is_gone=True)
    assert evidence is not None
    assert evidence.rule == "pod-removed"
    assert backend.evidence(GANG[0], is_gone=False) is None
    backend.destroy(GANG)
    assert backend.find() == []


def test_an_orchestrator_on_another_machine_clears_what_no_pod_is_left_of(
    target: Target, make: Callable[..., KubernetesBackend], tmp_path: Path
) -> None:
    first = make()
    first.create(GANG)
    first.destroy(GANG)
    assert {kind for kind, _ in target.objects()} == {"config_map"}
    elsewhere = tmp_path / "elsewhere" / "run-1"
    elsewhere.mkdir(parents=True)
    assert make(elsewhere).find() == []
    clear_directory(elsewhere)
    assert target.objects() == set()
