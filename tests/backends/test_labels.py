"""A run's containers and pods are found again by their labels, by whatever version made them."""

from __future__ import annotations

import pytest

from prefect_ft.backends.base import Worker
from prefect_ft.backends.docker.request import LABELS as OF_CONTAINERS
from prefect_ft.backends.kubernetes.request import LABELS as OF_PODS
from prefect_ft.backends.labels import Labels, name_of

WORKER = Worker(number=1, system="s1", epoch=3, decision=2)
GIVEN = {"x.run": "run-1", "x.phase": "0", "x.worker": "1", "x.system": "s1", "x.token": "3.2"}


def test_labels_lead_back_to_the_worker() -> None:
    assert Labels("x.").of("run-1", 0, WORKER) == GIVEN
    assert Labels("x.").worker(GIVEN) == WORKER


def test_they_and_names_stay_as_they_are() -> None:
    assert (OF_CONTAINERS.run, OF_CONTAINERS.phase) == ("prefect-ft.run", "prefect-ft.phase")
    assert (OF_PODS.run, OF_PODS.phase) == ("prefect-ft/run", "prefect-ft/phase")
    assert name_of("run-1", 0, WORKER) == "prefect-ft-run-1-0-1-3-2"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="somebody-elses"),
        *(
            {name: text for name, text in GIVEN.items() if name != lost}
            for lost in ("x.worker", "x.system", "x.token")
        ),
        pytest.param({**GIVEN, "x.token": "3"}, id="half-a-token"),
        pytest.param({**GIVEN, "x.worker": "first"}, id="no-number"),
    ],
)
def test_labels_that_are_no_workers(given: dict[str, str]) -> None:
    assert Labels("x.").worker(given) is None
