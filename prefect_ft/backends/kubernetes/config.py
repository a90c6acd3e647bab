"""A job's infrastructure of type `kubernetes`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool
from typing_extensions import Self

from prefect_ft.backends.kubernetes.fields import (
    ContainerPatch,
    LabelKey,
    Labels,
    LabelValue,
    Namespace,
    ObjectName,
    PodPatch,
    PodResources,
    PodVolume,
    Toleration,
)
from prefect_ft.config.fields import (
    DAY_S,
    HOUR_S,
    Env,
    LocalFile,
    NotBool,
    Seconds,
    Some,
    Text,
    WholeNumber,
    absolute,
)
from prefect_ft.config.images import ImageName, Size
from prefect_ft.config.infrastructure import Infrastructure, System, named

END_OF_RANKS_S = 10.0
"""How long it may take to end ranks, with the skew of two machines' clocks."""


class KubernetesSystem(System):
    """One node of a cluster."""

    name: LabelValue = Field(
        description="The value of the node's system_label: with the default, its host name",
        examples=["node-0"],
    )


NameOrKubernetesSystem = Annotated[
    KubernetesSystem, BeforeValidator(named, json_schema_input_type=LabelValue | KubernetesSystem)
]


class KubernetesInfrastructure(Infrastructure):
    """Workers are pods, one on a node for each system that is used."""

    type: Literal["kubernetes"] = Field(description="What the workers are")
    image: ImageName = Field(
        description="The workers' image: with Python 3.9 or newer, and nothing of this package",
        examples=["registry.example.com/my-training:1"],
    )
    systems: Some[tuple[NameOrKubernetesSystem, ...]] = Field(
        description="The pool, in the order in which workers are placed: names of nodes, or mappings {name, env, …}",
        examples=[["node-0", "node-1"]],
    )
    system_label: LabelKey = Field(
        default="kubernetes.io/hostname", description="The nodes' label whose value is the name of a system"
    )
    namespace: Namespace = Field(default="default", description="Where the pods are made")
    kubeconfig: LocalFile | None = Field(
        default=None,
        description="File that tells how the cluster is reached; absent: KUBECONFIG, ~/.kube/config, or in a pod its "
        "service account",
    )
    context: Text | None = Field(
        default=None, description="Context of that file; absent: its current one", examples=["gpu-cluster"]
    )
    pull: Literal["missing", "always", "never"] = Field(
        default="missing", description="When a node pulls the image"
    )
    pull_secrets: tuple[ObjectName, ...] = Field(
        default=(), description="Names of the secrets that the image is pulled with"
    )
    python: Text = Field(
        default="python3", description="The agent's interpreter in the image: a name on its PATH, or a path"
    )
    volumes: tuple[PodVolume, ...] = Field(
        default=(),
        description="What is mounted into every worker",
        examples=[[{"path": "/checkpoints", "claim": "training"}]],
    )
    env: Env = Field(default={}, description="Environment variables of the pods; job, phase and system win")
    resources: PodResources = Field(
        default=PodResources(), description="What a worker asks for, and what it may use"
    )
    shm_size: Size | None = Field(
        default=None,
        description="Size of /dev/shm: bytes, or a number with k, m or g; it counts as the worker's memory; absent: "
        "the node's default, 64m as a rule",
        examples=["8g"],
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(), description="Taints of nodes on which workers may run", examples=[[{"key": "gpu"}]]
    )
    service_account: ObjectName | None = Field(
        default=None, description="As whom the pods run; absent: the namespace's default, without its token"
    )
    priority_class: ObjectName | None = Field(default=None, description="Class of the pods' priority")
    labels: Labels = Field(default={}, description="Further labels of the pods", examples=[{"team": "nlp"}])
    annotations: Env = Field(default={}, description="Annotations of the pods")
    start_timeout_s: Seconds = Field(
        default=300.0,
        gt=0,
        le=DAY_S,
        description="Seconds after which a pod that does not run has failed: its image is pulled in them, and devices "
        "become free",
    )
    reach: Literal["auto", "direct", "api"] = Field(
        default="auto",
        description="How agents are reached: at the addresses of their pods, or through the cluster's API; auto: at "
        "their addresses, and where that cannot be from where the flow runs, through the API",
    )
    agent_port: WholeNumber = Field(
        default=17733, ge=1, le=65535, description="TCP port at which agents listen in their pods"
    )
    silence_timeout_s: Seconds = Field(
        default=10.0,
        ge=1,
        le=DAY_S,
        description="Seconds without a sign of life after which a connection to a pod's address is over; who answers "
        "nothing then is lost, with its node",
    )
    partition_timeout_s: Seconds = Field(
        default=60.0,
        ge=1,
        le=DAY_S,
        description="Seconds after which an agent ends its ranks that hears neither of an orchestrator nor of the "
        "cluster's API nor of another worker's agent: they may have been started again elsewhere",
    )
    cordon: StrictBool = Field(
        default=False,
        description="Cordon the nodes of systems that the run isolates, and uncordon them when it uses them again, or "
        "at its end where there is no quarantine; needs the right to patch nodes",
    )
    termination_grace_s: Annotated[int, Field(ge=5, le=HOUR_S), NotBool] = Field(
        default=30,
        description="Seconds that a worker has left after a drain or a preemption has begun: ranks save in them, where "
        "`checkpoints.on_demand` says how",
    )
    pod: PodPatch = Field(
        default={},
        description="More of the pod, under the names of the API, as a JSON merge patch: mappings are merged, null "
        "takes away, anything else replaces",
        examples=[{"spec": {"hostNetwork": True}}],
    )
    container: ContainerPatch = Field(
        default={},
        description="More of the worker's container, in the same way",
        examples=[{"securityContext": {"runAsUser": 1000}}],
    )

    def keeps(self, path: str) -> bool:
        """Whether a file survives the pod that wrote it: in a volume."""
        return self.mounts(path)

    def mounts(self, path: str) -> bool:
        """Whether a worker's path is in a volume of the user's."""
        return any(PurePath(path).is_relative_to(volume.path) for volume in self.volumes)

    def refusal_of_ranks(self, ranks: int) -> str | None:
        """Return why a worker cannot have that many ranks: None, the cluster enforces its own limits."""
        del ranks
        return None

    def lost_ranks_last_s(self) -> float | None:
        """Return how long ranks keep running when their node is lost: until their agent detects the partition."""
        return self.silence_timeout_s + self.partition_timeout_s + END_OF_RANKS_S

    def at(self, base: str) -> Self:
        """Return it with absolute paths; relative ones start at `base`."""
        return self.model_copy(update={"kubeconfig": absolute(self.kubeconfig, base)})
