"""From the name of a saved block to the infrastructure that it holds, for `{block: docker-training/gpu-box}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect.blocks.core import Block

from prefect_ft.blocks.training import DockerTraining, KubernetesTraining, ProcessTraining, TrainingBlock
from prefect_ft.embedded import own_server
from prefect_ft.errors import ConfigError

SLUGS = tuple(kind.get_block_type_slug() for kind in (DockerTraining, KubernetesTraining, ProcessTraining))


def infrastructure_of_block(name: str) -> Mapping[str, Any]:
    """Give what a saved block says of an infrastructure, by TYPE/NAME; raises ConfigError."""
    kind, _, document = name.partition("/")
    if kind not in SLUGS or not document:
        wanted = " or ".join(f"{slug}/NAME" for slug in SLUGS)
        raise ConfigError(f"must be {wanted}, got {name!r}")
    own_server()
    try:
        load: Any = Block.load  # its types tell neither the kind of block nor of `_sync`
        block: TrainingBlock = load(name, _sync=True)
    except ValueError as exc:
        message = f"no block {name!r} can be loaded from Prefect's API: save one under this name ({_first_line(exc)})"
        raise ConfigError(message) from exc
    except (RuntimeError, OSError) as exc:
        raise ConfigError(f"block {name!r} cannot be loaded: {_first_line(exc)}") from exc
    found = block.infrastructure()
    return {field: getattr(found, field) for field in {"type", *found.model_fields_set}}


def _first_line(exc: Exception) -> str:
    return str(exc).strip().partition("\n")[0] or type(exc).__name__
