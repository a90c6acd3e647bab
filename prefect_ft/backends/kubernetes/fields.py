"""The values that describe a pod: names, labels, quantities, mounts, and patches.

They are those of the Kubernetes API, and are checked here only where that gives a better message.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator
from typing_extensions import Self

from prefect_ft.config.fields import YEAR_S, Env, NotBool, Section, Text, as_error, problem, shown

_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?"
_OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"({_OBJECT_NAME}/)?{_LABEL_VALUE}"

OWN_PREFIX = "prefect-ft/"
"""The prefix of labels that name a pod's owner."""

OWNED_OF_POD = ("apiVersion", "kind", "status")
OWNED_OF_METADATA = ("name", "namespace", "generateName", "labels", "annotations")
OWNED_OF_SPEC = (
    "restartPolicy", "containers", "nodeName", "affinity", "volumes", "tolerations", "terminationGracePeriodSeconds",
)  # fmt: skip
OWNED_OF_CONTAINER = ("name", "image", "command", "args", "volumeMounts", "resources", "env")
"""Parts that have fields of their own, or belong to the agent."""


def _fits(pattern: str, says: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise problem(f"must be {says}, got {shown(value)}")
        return value

    return AfterValidator(check)


ObjectName = Annotated[Text, _fits(_OBJECT_NAME, "the name of an object: a-z 0-9 - . and no capitals")]
Namespace = Annotated[Text, _fits(_NAMESPACE, "the name of a namespace: 1 to 63 of a-z 0-9 -")]
LabelKey = Annotated[Text, _fits(_LABEL_KEY, "the key of a label, like kubernetes.io/hostname")]
LabelValue = Annotated[Text, _fits(_LABEL_VALUE, "the value of a label: 1 to 63 of A-Z a-z 0-9 - _ .")]
Quantity = Annotated[Text, _fits(_QUANTITY, "a quantity, like 4, 500m or 64Gi")]
AbsolutePath = Annotated[Text, _fits(r"/[^:]*", "a path of the pod that begins with /, like /data")]


def _quantities(value: dict[str, str]) -> dict[str, str]:
    for name, quantity in value.items():
        if not re.fullmatch(_QUANTITY, quantity):
            raise problem(f"must be a quantity, like 4, 500m or 64Gi, got {shown(quantity)}", name)
    return value


def _labels(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if name.startswith(OWN_PREFIX):
            raise problem("must not be set here: it marks the owner of a pod", name)
        if not re.fullmatch(_LABEL_KEY, name):
            raise problem("must be the key of a label, like team or example.com/team", name)
        if not re.fullmatch(_LABEL_VALUE, text):
            raise problem(
                f"must be the value of a label: 1 to 63 of A-Z a-z 0-9 - _ ., got {shown(text)}", name
            )
    return value


def _pod(value: dict[str, Any]) -> dict[str, Any]:
    _refuse(value, (), OWNED_OF_POD)
    for part, owned in (("metadata", OWNED_OF_METADATA), ("spec", OWNED_OF_SPEC)):
        inner = value.get(part, {})
        if not isinstance(inner, dict):
            raise problem(f"must be a mapping of keys to values, got {shown(inner)}", part)
        _refuse(inner, (part,), owned)
    return value


def _container(value: dict[str, Any]) -> dict[str, Any]:
    _refuse(value, (), OWNED_OF_CONTAINER)
    return value


def _refuse(given: dict[str, Any], at: tuple[str, ...], owned: tuple[str, ...]) -> None:
    for name in owned:
        if name in given:
            raise problem("must not be set here: a field of its own says it, or it is the agent's", *at, name)


Quantities = Annotated[Env, AfterValidator(_quantities)]
Labels = Annotated[Env, AfterValidator(_labels)]
PodPatch = Annotated[dict[str, Any], AfterValidator(_pod)]
ContainerPatch = Annotated[dict[str, Any], AfterValidator(_container)]


class PodResources(Section):
    """What one worker asks for and what it may use, by the resource's name."""

    requests: Quantities = Field(
        default={},
        description="What its node must have free; absent: as much as the limits",
        examples=[{"cpu": "8", "memory": "64Gi"}],
    )
    limits: Quantities = Field(
        default={},
        description="What it may use, devices among it",
        examples=[{"memory": "64Gi", "nvidia.com/gpu": "8"}],
    )


class Toleration(Section):
    """A taint of nodes on which workers may run all the same."""

    key: LabelKey | None = Field(default=None, description="The taint's key; absent: every key")
    operator: Literal["Equal", "Exists"] = Field(
        default="Exists", description="Whether the taint must have the value, or any"
    )
    value: Text | None = Field(default=None, description="The taint's value, with operator Equal")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect; absent: every one"
    )
    toleration_s: Annotated[int, Field(ge=0, le=YEAR_S), NotBool] | None = Field(
        default=None, description="Seconds for which it is tolerated, with NoExecute; absent: for ever"
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.operator == "Equal" and (self.key is None or self.value is None):
            raise problem(
                "needs key and value with operator Equal; write both, or operator: Exists", "operator"
            )
        if self.operator == "Exists" and self.value is not None:
            raise problem("is ignored with operator Exists; write operator: Equal", "value")
        return self


SOURCES = ("claim", "host_path", "config_map", "secret")


class PodVolume(Section):
    """One thing that is mounted into every worker: exactly one of claim, host_path, config_map and secret."""

    path: AbsolutePath = Field(description="Where in the workers", examples=["/checkpoints"])
    claim: ObjectName | None = Field(
        default=None, description="Name of a persistent volume claim", examples=["training"]
    )
    host_path: AbsolutePath | None = Field(default=None, description="Directory of each node")
    config_map: ObjectName | None = Field(default=None, description="Name of a config map")
    secret: ObjectName | None = Field(default=None, description="Name of a secret")
    sub_path: Text | None = Field(default=None, description="Directory in it; absent: all of it")
    read_only: StrictBool = Field(default=False, description="Let the workers only read")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise as_error(
                [((), f"must have exactly one of {', '.join(SOURCES)}, got {got}; like claim: training")]
            )
        return self
