"""The orchestrator in a pod itself: ended there, it comes back on another node, and no rank notices."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kube_cluster
import pytest
import yaml
from deaths import journals, of_type
from kube import Target
from kube_image import FLOW_IMAGE, write_flow_image
from kube_rights import RIGHTS, allowed
from sites import Site

from prefect_ft.run import latest_run
from tests.conftest import need

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FILES = Path(__file__).parents[2] / "deployments" / "kubernetes"
NAME = "char-lm"
COMES_BACK_WITHIN_S = 180.0
"""Kubernetes waits before it starts what failed again, and Prefect takes its time to be loaded."""

_HOST, _PORT = kube_cluster.API.removeprefix("https://").split(":")
ENV = {
    "KUBERNETES_SERVICE_HOST": _HOST,
    "KUBERNETES_SERVICE_PORT": _PORT,
    "HOME": "/tmp",
    "PYTHONPYCACHEPREFIX": "/runs/pycache",
}
"""This cluster has nobody who makes services reachable by their addresses, and its image nothing compiled."""

TRAIN = """
import os, time
with open(f"/runs/rank-{os.environ['RANK']}", "a") as file:
    file.write(f"{os.environ['PREFECT_FT_ATTEMPT']}\\n")
while not os.path.exists("/runs/go"): time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def target(kubernetes_cluster: Target, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The cluster, its nodes with the image of orchestrators."""
    if kubernetes_cluster.own is None:
        pytest.skip("needs a cluster of the tests' own: the volume is a directory of this machine")
    images = tmp_path_factory.mktemp("flow") / "images.tar"
    write_flow_image(images)
    kubernetes_cluster.own.import_images(images)
    images.unlink()
    return kubernetes_cluster


@pytest.fixture
def volume() -> Iterator[Path]:
    """What is mounted as /runs, at the orchestrator and at the workers."""
    directory = Path(tempfile.mkdtemp(prefix="pft-runs-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def job_file(target: Target, volume: Path) -> dict[str, Any]:
    infrastructure = target.infrastructure(workers=2, volumes=[{"path": "/runs", "host_path": str(volume)}])
    del infrastructure["kubeconfig"]  # a pod's account says how the cluster is reached
    return {
        "name": NAME,
        "model_dir": "/runs/model",
        "lease_s": 5,
        "stop_grace_s": 0,
        "infrastructure": infrastructure,
        "phases": [{"name": "train", "mode": "eval", "command": ["python", "-S", "-c", TRAIN]}],
    }


def job_of_the_cluster(target: Target, volume: Path) -> dict[str, Any]:
    """The job of deployments/kubernetes/run.yaml, with the tests' image, volume and way to the API."""
    _, job = yaml.safe_load_all((FILES / "run.yaml").read_text())
    job["metadata"]["namespace"] = target.namespace
    spec = job["spec"]["template"]["spec"]
    spec["volumes"][0] = runs_of(volume)
    (container,) = spec["containers"]
    container |= {"image": FLOW_IMAGE, "imagePullPolicy": "IfNotPresent"}
    assert container["command"][0] == "prefect-ft"
    container["command"][:1] = ["python", "-m", "prefect_ft.cli"]
    container["env"] = [{"name": name, "value": value} for name, value in ENV.items()]
    return dict(job)


def runs_of(volume: Path) -> dict[str, Any]:
    return {"name": "runs", "hostPath": {"path": str(volume)}}


def deleted(target: Target, pod: Any) -> None:
    """As a drain does."""
    target.core.delete_namespaced_pod(pod.metadata.name, target.namespace)


def killed(target: Target, pod: Any) -> None:
    """As the kernel does that is short of memory: nobody is told before."""
    assert target.own is not None
    target.own.kill_container(
        int(pod.spec.node_name.removeprefix("n")), pod.status.container_statuses[0].container_id
    )


def lost(target: Target, pod: Any) -> None:
    """With its whole node: nothing runs there any more, and nobody hears of it."""
    assert target.own is not None
    node = int(pod.spec.node_name.removeprefix("n"))
    target.own.cut(node)
    target.own.kill("kubelet", node)
    killed(target, pod)


@contextmanager
def nodes_of(target: Target) -> Iterator[None]:
    """However it ends, all nodes are there and take pods afterwards."""
    try:
        yield
    finally:
        for system, node in target.nodes.items():
            set_schedulable(target, node, True)
            conditions = target.core.read_node(node).status.conditions
            if any(each.type == "Ready" and each.status != "True" for each in conditions):
                target.join(system)


@contextmanager
def third_node_alone(target: Target, label: str) -> Iterator[None]:
    """Have the orchestrator that is begun meanwhile get onto the node of no worker: that may be lost alone."""
    for system in ("s0", "s1"):
        target.cordon(system)
    yield
    until(lambda: any(pod.spec.node_name for pod in orchestrators(target, label)), target, label)
    for system in ("s0", "s1"):
        target.uncordon(system)


@contextmanager
def jobs_of(target: Target) -> Iterator[Any]:
    """A client for jobs, of which none is left afterwards."""
    from kubernetes import client

    batch = client.BatchV1Api(target.core.api_client)
    try:
        yield batch
    finally:
        for job in batch.list_namespaced_job(target.namespace).items:
            batch.delete_namespaced_job(job.metadata.name, target.namespace, propagation_policy="Foreground")
        until(lambda: batch.list_namespaced_job(target.namespace).items == [], target)


ENDS = [deleted, killed, lost]


@pytest.mark.parametrize("end", ENDS)
def test_it_comes_back_on_another_node_and_no_rank_notices(
    target: Target, volume: Path, end: Callable[[Target, Any], None]
) -> None:
    (volume / "char-lm.yaml").write_text(yaml.safe_dump(job_file(target, volume)))
    with allowed(target, RIGHTS), jobs_of(target) as jobs, nodes_of(target):
        with third_node_alone(target, f"job-name={NAME}"):
            jobs.create_namespaced_job(target.namespace, job_of_the_cluster(target, volume))
        until(lambda: trains(volume), target)
        (first,) = orchestrators(target)
        set_schedulable(target, first.spec.node_name, False)
        end(target, first)
        until(lambda: bool(comebacks(volume)), target)
        (volume / "go").touch()
        until(lambda: jobs.read_namespaced_job(NAME, target.namespace).status.succeeded == 1, target)
        nodes = {pod.spec.node_name for pod in orchestrators(target)}
    assert nodes - {first.spec.node_name}
    assert_unnoticed(target, volume)


@pytest.fixture
def site(target: Target, volume: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that pods reach, with deployments/kubernetes/prefect.yaml and a worker for it."""
    present = importlib.util.find_spec("prefect_kubernetes") is not None
    need("prefect-kubernetes", present, "pip install prefect-kubernetes")
    site = Site(tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("rt"), host=kube_cluster.HOST)
    file = site.directory / "deployments" / "kubernetes" / "prefect.yaml"
    deployments = yaml.safe_load(file.read_text())
    variables = deployments["deployments"][0]["work_pool"]["job_variables"]
    variables["env"] |= {**ENV, "PREFECT_API_URL": site.api}
    variables |= {
        "image": FLOW_IMAGE,
        "namespace": target.namespace,
        "volume": runs_of(volume),
        "command": "python -m prefect flow-run execute",
    }
    file.write_text(yaml.safe_dump(deployments))
    template = "deployments/kubernetes/job-template.json"
    try:
        site.start_server()
        site.prefect(
            "work-pool", "create", "cluster", "--type", "kubernetes", "--base-job-template", template
        )
        site.prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(file))
        site.command("prefect_ft.cli", "install-automations", "--heartbeat-s", "5")
        site.start_worker("cluster", KUBECONFIG=target.kubeconfig)
        yield site
    finally:
        site.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_flow_run_of_the_deployment_comes_back_on_another_node(
    target: Target, volume: Path, site: Site, end: Callable[[Target, Any], None]
) -> None:
    (volume / "char-lm.yaml").write_text(yaml.safe_dump(job_file(target, volume)))
    with allowed(target, RIGHTS), jobs_of(target), nodes_of(target):
        with third_node_alone(target, "prefect.io/flow-run-id"):
            flow_run_id = site.begin(Path("/runs/char-lm.yaml"), "kubernetes")
        label = f"prefect.io/flow-run-id={flow_run_id}"
        until(lambda: trains(volume), target, label)
        (first,) = orchestrators(target, label)
        set_schedulable(target, first.spec.node_name, False)
        end(target, first)
        until(lambda: bool(comebacks(volume)), target, label)
        nodes = {pod.spec.node_name for pod in orchestrators(target, label)}
        (volume / "go").touch()
        site.wait_for(flow_run_id, "Completed")
    assert nodes - {first.spec.node_name}
    assert_unnoticed(target, volume)


def trains(volume: Path) -> bool:
    return all((volume / f"rank-{rank}").exists() for rank in (0, 1))


def assert_unnoticed(target: Target, volume: Path) -> None:
    """The run has completed, and its ranks were started once."""
    (comeback,) = comebacks(volume)
    assert (comeback["adopted"], comeback["goes_on"], comeback["attempt"]) == ([0, 1], True, 1)
    assert [(volume / f"rank-{rank}").read_text() for rank in (0, 1)] == ["1\n", "1\n"]
    run = latest_run(volume / "model")
    assert run is not None
    assert run.status == "completed"
    assert target.objects() == set()


def comebacks(volume: Path) -> list[Any]:
    return of_type(journals(volume / "model")["train"], "comeback")


def orchestrators(target: Target, label: str = f"job-name={NAME}") -> list[Any]:
    return list(target.core.list_namespaced_pod(target.namespace, label_selector=label).items)


def set_schedulable(target: Target, node: str, is_schedulable: bool) -> None:
    target.core.patch_node(node, {"spec": {"unschedulable": not is_schedulable}})


def until(holds: Callable[[], bool], target: Target, label: str = f"job-name={NAME}") -> None:
    """Wait; what orchestrators, the pods with this label, said is told where it does not come."""
    deadline = time.monotonic() + COMES_BACK_WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, said(target, label)
        time.sleep(0.2)


def said(target: Target, label: str) -> str:
    told = []
    for pod in orchestrators(target, label):
        states = json.dumps(pod.status.to_dict(), default=str)[-600:]
        try:
            log = target.core.read_namespaced_pod_log(pod.metadata.name, target.namespace)
        except Exception as error:
            log = str(error)
        told.append(f"{pod.metadata.name} on {pod.spec.node_name}: {states}\n{log[-2000:]}")
    return "\n".join(told)
