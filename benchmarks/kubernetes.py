"""What Kubernetes costs: a restart in a pod, a worker replaced, a node lost; each beside what it is to be held to.

In place: a rank ends with exit code 1, until the first line of the next attempt's script, in a pod and on the
process backend, in turn; the rank itself says when, so that one clock tells both. Replaced: a worker's pod is
exchanged until its new agent is attached to; beside it, through the same client, a bare pod of the same image
is deleted and created anew until it runs: under its own name, once the old one is gone, and under another, at
once, until the old one has ended. Lost: a node's network is cut, until its worker is told to be lost; beside it,
until the cluster says that the node is not ready.

    python -m benchmarks.kubernetes [--json FILE] [--quick] [--image IMAGE] [--systems n1 n2 …] [--namespace NAME]
        [--cut COMMAND --join COMMAND]

It needs a cluster (KUBECONFIG) whose nodes have an image with `python3`, and for the last commands that cut the
second system's node off and join it again.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.crew import Crew
from benchmarks.harness import OURS, Results, finish, options, row
from prefect_ft import JobConfig
from prefect_ft.backends.base import AgentSettings
from prefect_ft.backends.kubernetes.backend import KubernetesBackend
from prefect_ft.backends.kubernetes.cluster import Cluster, cluster_of
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.removal import REMOVAL_GRACE_S
from prefect_ft.run import certificates_of
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.enact import GangChange, first_gang
from prefect_ft.supervisor.events import Event, Lost
from prefect_ft.supervisor.stopping import StopRequest

IN_PLACE, REPLACED, LOST = "crash→first line, in place", "worker replaced→attached", "node cut→lost"
LOOK_S = 0.02
"""How often it is looked how a bare pod stands: more often than a user would."""

SCRIPT = """
import time
began = time.monotonic()
import os, zipfile
print("line", began, flush=True)
place, attempt = os.environ["PLACE"], int(os.environ["PREFECT_FT_ATTEMPT"])
if attempt > int(os.environ["CRASHES"]):
    for name in os.listdir(place):
        os.unlink(os.path.join(place, name))
else:
    with zipfile.ZipFile(place + "/.tmp", "w") as file:
        file.writestr("weights", "x" * 1000)
    os.replace(place + "/.tmp", f"{place}/step-{attempt}.npz")
    time.sleep(0.5)
    print("crash", time.monotonic(), flush=True)
    os._exit(1)
"""


def crashing(directory: Path, infrastructure: dict[str, Any], crashes: int) -> list[float]:
    """Run a job of one rank that crashes so often; return the milliseconds until the next line each time."""
    from prefect_ft import train_flow

    is_here = infrastructure["type"] == "process"
    python, place = (sys.executable, str(directory / "ck")) if is_here else ("python3", "/checkpoints")
    if not is_here:
        on_node = f"/var/tmp/prefect-ft-benchmark-{os.getpid()}"
        infrastructure = {**infrastructure, "volumes": [{"path": place, "host_path": on_node}]}
    job = JobConfig.model_validate(
        {
            "name": "benchmark",
            "model_dir": "model",
            "infrastructure": infrastructure,
            "autorestart": {"max_num_restarts": 128, "stop_on_repeat": 0},
            "env": {"CRASHES": str(crashes), "PLACE": place},
            "phases": [
                {
                    "name": "restart",
                    "command": [python, "-I", "-S", "-c", SCRIPT],
                    "checkpoints": {"path": place},
                }
            ],
        }
    )
    summary = train_flow(job.at(directory))[0]
    assert summary["restarts"] == {"restart_in_place": crashes}, summary["restarts"]
    log = next(directory.glob("model/*_restartable/run.log")).read_text()
    told = [line.split()[-2:] for line in log.splitlines() if line.split()[-2:-1] in (["line"], ["crash"])]
    times = [(what, float(at)) for what, at in told]
    return [
        1000 * (later - earlier)
        for (what, earlier), (next_what, later) in itertools.pairwise(times)
        if (what, next_what) == ("crash", "line")
    ]


Listener = Callable[[int, Event | Lost], None]


@contextmanager
def pods(
    directory: Path,
    infrastructure: KubernetesInfrastructure,
    listener: Callable[[int, Event | Lost], None] = lambda *_: None,
) -> Iterator[Crew]:
    """A gang of two pods without ranks; they end with it."""
    settings = AgentSettings(
        run_id=f"bench{os.getpid()}",
        key="key",
        phase_index=0,
        sample_period_s=10.0,
        orphan_timeout_s=3600.0,
        spool_bytes=1 << 20,
        checkpoints=None,
        certificates=certificates_of(directory),
    )
    backend = KubernetesBackend(settings, directory, infrastructure)
    with StopRequest() as stop:
        gang = Crew(
            backend,
            run_id=settings.run_id,
            phase_index=0,
            key=settings.key,
            epoch=1,
            stop=stop,
            calls=Calls(),
            listener=listener,
            mask=lambda event: event,
            check=lambda: None,
        )
        try:
            gang.change(first_gang(2), [each.name for each in infrastructure.systems[:2]], 0)
            yield gang
        finally:
            gang.close()


def replaced(gang: Crew, infrastructure: KubernetesInfrastructure, decision: int) -> float:
    """Replace worker 1; return the milliseconds until its new agent is attached to."""
    systems = [each.name for each in infrastructure.systems[:2]]
    began_s = time.monotonic()
    gang.change(GangChange(destroy=(1,), create=(1,)), systems, decision)
    return 1000 * (time.monotonic() - began_s)


class BarePod:
    """A pod of the same image on one node, that runs Python and nothing of ours."""

    def __init__(self, cluster: Cluster, infrastructure: KubernetesInfrastructure) -> None:
        self._cluster = cluster
        self._infrastructure = infrastructure
        self._name = self._create()
        self._await(lambda: self._runs(self._name))

    def again(self) -> float:
        """Delete it and, once it is gone, create it under its name; return the milliseconds until it runs."""
        began_s = time.monotonic()
        self._cluster.delete_pod(self._name, REMOVAL_GRACE_S)
        self._await(lambda: self._cluster.pod(self._name) is None)
        self._create(self._name)
        self._await(lambda: self._runs(self._name))
        return 1000 * (time.monotonic() - began_s)

    def another(self) -> float:
        """Delete it and create one under another name; return the milliseconds until that runs and it has ended."""
        began_s, old = time.monotonic(), self._name
        self._cluster.delete_pod(old, REMOVAL_GRACE_S)
        self._name = self._create()
        self._await(lambda: self._runs(self._name))
        self._await(lambda: self._has_ended(old))
        taken_s = time.monotonic() - began_s
        self._cluster.delete_pod(old, 0)
        return 1000 * taken_s

    def end(self) -> None:
        self._cluster.delete_pod(self._name, 0)

    def _create(self, name: str | None = None) -> str:
        name = name or f"bench-{os.getpid()}-{time.monotonic_ns()}"
        given = self._infrastructure
        wait = "import os, signal; signal.signal(15, lambda *_: os._exit(0)); signal.pause()"
        container = {
            "name": "worker",
            "image": given.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-I", "-S", "-c", wait],
        }
        self._cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "nodeSelector": {given.system_label: given.systems[1].name},
                    "containers": [container],
                },
            }
        )
        return name

    def _runs(self, name: str) -> bool:
        told = self._cluster.pod(name)
        return told is not None and told["status"].get("phase") == "Running"

    def _has_ended(self, name: str) -> bool:
        told = self._cluster.pod(name)
        return told is None or told["status"].get("phase") in ("Succeeded", "Failed")

    def _await(self, holds: Callable[[], bool]) -> None:
        while not holds():
            time.sleep(LOOK_S)


class NodeWatch(threading.Thread):
    """Looks again and again whether the cluster hears of a system's node, and notes since when it does not."""

    def __init__(self, cluster: Cluster, infrastructure: KubernetesInfrastructure) -> None:
        super().__init__(daemon=True)
        self._cluster, self._infrastructure = cluster, infrastructure
        self.lost_s = 0.0
        self.start()

    def run(self) -> None:
        while self.is_ready():
            time.sleep(LOOK_S)
        self.lost_s = time.monotonic()

    def is_ready(self) -> bool:
        label, system = self._infrastructure.system_label, self._infrastructure.systems[1].name
        nodes = [
            each for each in self._cluster.nodes(label) if each["metadata"]["labels"].get(label) == system
        ]
        conditions = [each for node in nodes for each in node["status"]["conditions"]]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def lost(infrastructure: KubernetesInfrastructure, cut: str, join: str) -> tuple[float, float, str]:
    """Cut the second system's node off; return the milliseconds until its worker was lost, and until the cluster knew.

    And by what evidence the worker was.
    """
    told: list[tuple[float, str]] = []

    def listener(worker: int, event: Event | Lost) -> None:
        if worker == 1 and isinstance(event, Lost):
            told.append((time.monotonic(), event.evidence.rule if event.evidence else "none"))

    cluster = cluster_of(infrastructure)
    directory = tempfile.TemporaryDirectory(prefix="pft-bench-")
    with directory as name, pods(Path(name), infrastructure, listener) as gang:
        watch = NodeWatch(cluster, infrastructure)
        began_s = time.monotonic()
        subprocess.run(cut, shell=True, check=True)
        try:
            gang.serve(lambda: bool(told))
            watch.join()
        finally:
            subprocess.run(join, shell=True, check=True)
        while not watch.is_ready():
            time.sleep(LOOK_S)
    (lost_s, rule) = told[0]
    return 1000 * (lost_s - began_s), 1000 * (watch.lost_s - began_s), rule


def main() -> None:
    """Measure all of it in turn, some rounds."""
    extra: list[tuple[str, dict[str, Any]]] = [
        ("--image", {"default": "docker.io/prefect-ft/test:latest", "help": "an image with python3"}),
        ("--systems", {"nargs": "+", "default": ["n1", "n2"], "help": "nodes, by their host names"}),
        ("--namespace", {"default": "default"}),
        ("--cut", {"help": "shell command that takes the second node's network away"}),
        ("--join", {"help": "shell command that gives it back"}),
    ]
    arguments = options("What Kubernetes costs, beside what it is held to.", extra)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    told = {
        "type": "kubernetes",
        "image": arguments.image,
        "systems": arguments.systems,
        "namespace": arguments.namespace,
    }
    infrastructure = KubernetesInfrastructure.model_validate(told)
    rounds, repeats = (1, 3) if arguments.quick else (3, 5)
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for side, where in ((OURS, told), ("process", {"type": "process"})):
            with tempfile.TemporaryDirectory(prefix="pft-bench-") as name:
                values[side, "default", IN_PLACE] += crashing(Path(name), dict(where), 4 * repeats)
    bare = BarePod(cluster_of(infrastructure), infrastructure)
    with (
        tempfile.TemporaryDirectory(prefix="pft-bench-") as name,
        pods(Path(name), infrastructure) as gang,
    ):
        for number in range(1, rounds * repeats + 1):
            values[OURS, "default", REPLACED].append(replaced(gang, infrastructure, number))
            values["bare pod", "same name", REPLACED].append(bare.again())
            values["bare pod", "new name", REPLACED].append(bare.another())
    bare.end()
    rules = set()
    for _ in range(rounds if arguments.cut else 0):
        ours_ms, clusters_ms, rule = lost(infrastructure, arguments.cut, arguments.join)
        values[OURS, "default", LOST].append(ours_ms)
        values["cluster", "not ready", LOST].append(clusters_ms)
        rules.add(rule)
    rows = [row(side, case, times, settings=settings) for (side, settings, case), times in values.items()]
    notes = [f"{LOST}: told by {', '.join(sorted(rules))}"] if rules else []
    finish(Results(rows=rows, notes=notes), arguments)


if __name__ == "__main__":
    main()
