"""Where the workers of a job run. A further `type` joins `Infrastructure` here."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag, model_validator
from typing_extensions import Self

from prefect_ft.config.container import (
    Create,
    DeviceMapping,
    DeviceRequest,
    EngineUrl,
    ImageName,
    Resources,
    Size,
    Ulimits,
    Volume,
)
from prefect_ft.config.fields import (
    DAY_S,
    HOUR_S,
    MAX_COUNT,
    Env,
    LocalFile,
    NotBool,
    Problems,
    RankEnv,
    Seconds,
    Section,
    Some,
    SystemName,
    Text,
    WholeNumber,
    Words,
    as_error,
    problem,
    shown,
)
from prefect_ft.config.pod import (
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
from prefect_ft.config.secret_env import SecretEnv

TYPES = ("process", "docker", "kubernetes")


class System(Section):
    """One machine of the pool, or a sandbox of this host that stands for one."""

    name: SystemName = Field(description="Its name, unique in the pool", examples=["s0"])
    env: RankEnv = Field(
        default={},
        description="Environment variables of its ranks; they win over the phase's and the job's, null unsets one",
        examples=[{"CUDA_VISIBLE_DEVICES": "0,1"}],
    )
    heal: Words | None = Field(default=None, description="Replaces the infrastructure's heal")
    check: Words | None = Field(default=None, description="Replaces the infrastructure's check")


class DockerSystem(System):
    """One engine of the pool, or a part of one's devices."""

    engine: EngineUrl | None = Field(
        default=None,
        description="Replaces the infrastructure's engine",
        examples=["unix:///run/docker-1.sock"],
    )
    device_requests: tuple[DeviceRequest, ...] | None = Field(
        default=None, description="Replaces the infrastructure's device_requests"
    )
    devices: tuple[DeviceMapping, ...] | None = Field(
        default=None, description="Replaces the infrastructure's devices"
    )


class KubernetesSystem(System):
    """One node of a cluster."""

    name: LabelValue = Field(
        description="The value of the node's system_label: with the default, its host name",
        examples=["node-0"],
    )


def _system(value: object) -> object:
    return value if isinstance(value, (dict, System)) else {"name": value}


NameOrSystem = Annotated[System, BeforeValidator(_system, json_schema_input_type=SystemName | System)]
NameOrDockerSystem = Annotated[
    DockerSystem, BeforeValidator(_system, json_schema_input_type=SystemName | DockerSystem)
]
NameOrKubernetesSystem = Annotated[
    KubernetesSystem, BeforeValidator(_system, json_schema_input_type=LabelValue | KubernetesSystem)
]


class _Pool(Section):
    """What all kinds of infrastructure have."""

    type: str
    systems: tuple[System, ...] = ()
    workers: WholeNumber = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        description="Workers of the gang, one on a system, at most as many as there are systems; "
        "the other systems are spares",
    )
    secret_env: SecretEnv = Field(
        default={},
        description="Environment variables of the ranks whose values are shown nowhere; those of job, phase and "
        "system win",
    )
    heal: Words | None = Field(
        default=None,
        description="Command that mends a device of a system after a minor or major fault; exit code 0: healed. "
        "It runs where the flow does, with the system and the fault in its environment",
        examples=[["./reset-device.sh"]],
    )
    heal_timeout_s: Seconds = Field(
        default=600.0, gt=0, le=DAY_S, description="Seconds after which healing has failed"
    )
    check: Words | None = Field(
        default=None,
        description="Command that tries a system before it is used and after it is suspected; any exit code "
        "but 0 takes it out of use. It runs where the flow does, with the system in its environment",
        examples=[["./check-node.sh"]],
    )
    check_timeout_s: Seconds = Field(
        default=120.0, gt=0, le=DAY_S, description="Seconds after which a check has failed"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_known_type(cls, value: Any) -> Any:
        """Judge the type alone: what stands beside an unknown one is not this section's to judge."""
        if isinstance(value, dict) and "block" in value:
            message = "is looked up in job files only; give train_flow the block itself, as infrastructure"
            raise problem(message, "block")
        given = value.get("type", "process") if isinstance(value, dict) else "process"
        if given not in TYPES:
            raise problem(f"unknown type {shown(given)}; known types: {', '.join(TYPES)}", "type")
        return value

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        first: dict[str, int] = {}
        found: Problems = []
        for index, system in enumerate(self.systems):
            if (other := first.setdefault(system.name, index)) != index:
                message = f"the name of a system must be unique; {system.name!r} is also systems[{other}]"
                found.append((("systems", index), message))
        if self.workers > (count := len(self.systems)):
            message = f"must be at most {count}, the number of systems, got {self.workers}; name more systems"
            found.append((("workers",), message))
        if found:
            raise as_error(found)
        return self


class ProcessInfrastructure(_Pool):
    """Workers are groups of processes on this host, one for each system that is used."""

    type: Literal["process"] = Field(default="process", description="What the workers are")
    systems: Some[tuple[NameOrSystem, ...]] = Field(
        default=(System(name="localhost"),),
        description="The pool, in the order in which workers are placed: names, or mappings {name, env}; "
        "default localhost alone",
        examples=[["s0", "s1"]],
    )


class DockerInfrastructure(_Pool):
    """Workers are containers, one for each system that is used."""

    type: Literal["docker"] = Field(description="What the workers are")
    image: ImageName = Field(
        description="The workers' image: with Python 3.9 or newer, and nothing of this package",
        examples=["my-training:latest"],
    )
    systems: Some[tuple[NameOrDockerSystem, ...]] = Field(
        default=(DockerSystem(name="localhost"),),
        description="The pool, in the order in which workers are placed: names, or mappings {name, engine, env, …}; "
        "default localhost alone",
        examples=[["s0", "s1"]],
    )
    engine: EngineUrl | None = Field(
        default=None,
        description="Engine of the systems that name none; absent: DOCKER_HOST, else /var/run/docker.sock",
        examples=["unix:///var/run/docker.sock"],
    )
    pull: Literal["missing", "always", "never"] = Field(
        default="missing",
        description="When the image is pulled: before the run begins, and on a system's first use",
    )
    volumes: tuple[Volume, ...] = Field(
        default=(),
        description="What is mounted, as HOST:CONTAINER or HOST:CONTAINER:ro; HOST is a path, relative to the job "
        "file's directory where it begins with a dot, or the name of a volume",
        examples=[["./data:/data:ro"]],
    )
    env: Env = Field(
        default={}, description="Environment variables of the containers; job, phase and system win"
    )
    network: Text | None = Field(
        default=None,
        description="Network that the workers join, or host, or none; absent: the engine's default",
    )
    user: Text | None = Field(
        default=None,
        description="User of the agent and the ranks, as UID, UID:GID or a name; absent: the image's",
    )
    resources: Resources = Field(default=Resources(), description="What a worker may use")
    shm_size: Size | None = Field(
        default=None,
        description="Size of /dev/shm: bytes, or a number with k, m or g; absent: the engine's default",
        examples=["8g"],
    )
    ulimits: Ulimits = Field(
        default={},
        description="Limits of a worker's processes by name, each a number or SOFT:HARD; -1: none",
        examples=[{"memlock": "-1", "nofile": "65536:65536"}],
    )
    device_requests: tuple[DeviceRequest, ...] = Field(
        default=(), description="Devices asked of the engine's drivers: GPUs"
    )
    devices: tuple[DeviceMapping, ...] = Field(
        default=(),
        description="Device files, as HOST, HOST:CONTAINER or HOST:CONTAINER:PERMISSIONS",
        examples=[["/dev/davinci0"]],
    )
    cap_add: tuple[Text, ...] = Field(
        default=(), description="Capabilities to add", examples=[["SYS_PTRACE"]]
    )
    cap_drop: tuple[Text, ...] = Field(default=(), description="Capabilities to drop", examples=[["ALL"]])
    no_new_privileges: StrictBool = Field(
        default=True, description="Let no process of a worker gain privileges, by setuid programs for one"
    )
    create: Create = Field(
        default={},
        description="More of the engine's request to create a container, under the names of its API; "
        "mappings are merged, lists appended",
        examples=[{"HostConfig": {"IpcMode": "host"}}],
    )


class KubernetesInfrastructure(_Pool):
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
        description="Seconds that a worker has which others have told to go, by a drain or a preemption: ranks save in "
        "them, where `checkpoints.on_demand` says how",
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


def in_a_volume(path: str, infrastructure: DockerInfrastructure | KubernetesInfrastructure) -> bool:
    """Whether a path of the workers is in what the user has mounted there."""
    if infrastructure.type == "docker":
        targets = [volume.partition(":")[2].partition(":")[0] for volume in infrastructure.volumes]
    else:
        targets = [volume.path for volume in infrastructure.volumes]
    return any(PurePath(path).is_relative_to(target) for target in targets)


def _type_of(value: Any) -> str:
    """Give the type of an infrastructure; what is none is the first one's to complain of."""
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return given if given in TYPES else TYPES[0]


Infrastructure = Annotated[
    Annotated[ProcessInfrastructure, Tag("process")]
    | Annotated[DockerInfrastructure, Tag("docker")]
    | Annotated[KubernetesInfrastructure, Tag("kubernetes")],
    Discriminator(_type_of),
]
