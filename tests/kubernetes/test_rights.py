"""The rights in deployments/kubernetes: a run gets on with them, and uses each."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from agents import settings
from kube import SYSTEMS, Target
from kube_rights import ACCOUNT, CORDON, RIGHTS, allowed, kubeconfig_of_the_account, rules
from without_prefect import run_of_one_phase

from prefect_ft import JobConfig
from prefect_ft.backends.base import Worker
from prefect_ft.backends.clearing import clear_directory
from prefect_ft.backends.kubernetes.backend import KubernetesBackend
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.run import certificates_of

pytestmark = pytest.mark.timeout(300)

TOO_MUCH = {"requests": {"cpu": 1000}}
CRASH = "import os; os._exit(os.environ['PREFECT_FT_ATTEMPT'] == '1')"
FAULT = """
import os, time
from prefect_ft import report_fault
if os.environ["PREFECT_FT_ATTEMPT"] == "1" and os.environ["PREFECT_FT_WORKER"] == "1":
    report_fault(0, "E1", "critical")
    time.sleep(600)
"""
"""Its system is isolated, and so its node cordoned, as long as the run lasts."""


def job(directory: Path, infrastructure: dict[str, Any], code: str = CRASH, **autorestart: Any) -> JobConfig:
    document = {
        "name": "rights",
        "model_dir": "model",
        "stop_grace_s": 0,
        "infrastructure": infrastructure,
        "autorestart": {"max_num_restarts": 1, **autorestart},
        "phases": [{"name": "train", "mode": "eval", "command": ["python", "-S", "-c", code]}],
    }
    directory.mkdir()
    return JobConfig.model_validate(document).at(directory)


def find_what_an_agent_left(target: Target, place: dict[str, Any], directory: Path) -> None:
    """Nobody comes for it, so it leaves; what it left is in its pod's log."""
    directory.mkdir()
    told = settings(run_id=directory.name, orphan_timeout_s=5.0, certificates=certificates_of(directory))
    infrastructure = KubernetesInfrastructure.model_validate(place)
    with ExitStack() as stack:
        stack.callback(clear_directory, directory)
        backend = stack.enter_context(closing(KubernetesBackend(told, directory, infrastructure)))
        backend.create([Worker(number=0, system="s0", epoch=1, decision=0)])
        target.until(lambda: [found.result for found in backend.find()] != [None])


@pytest.mark.long  # half a minute
def test_a_run_gets_on_with_its_rights_and_uses_each(target: Target, tmp_path: Path) -> None:
    if target.own is None:
        pytest.skip("needs a cluster of the tests' own, that writes down what it is asked")
    with allowed(target, RIGHTS, CORDON):
        kubeconfig = str(kubeconfig_of_the_account(target, tmp_path))
        place = target.infrastructure(workers=2, kubeconfig=kubeconfig)
        jobs = [
            job(tmp_path / "in-place", place),
            job(tmp_path / "rebuilt", {**place, "reach": "api"}, rebuild_only=True),
            job(tmp_path / "cordoned", {**place, "systems": [*SYSTEMS], "cordon": True}, FAULT),
            job(tmp_path / "late", {**place, "resources": TOO_MUCH, "start_timeout_s": 2}),
        ]
        endings = [run_of_one_phase(each).status for each in jobs]
        find_what_an_agent_left(target, place, tmp_path / "left")
    assert endings == ["completed", "completed", "completed", "failed"]
    asked, allowed_for = f"{target.namespace}:{ACCOUNT}", rules(target.namespace, RIGHTS, CORDON)
    with suppress(AssertionError):  # what is asked is written down a little later
        target.until(lambda: target.own.asked(asked) >= allowed_for)
    assert target.own.asked(asked) == allowed_for
