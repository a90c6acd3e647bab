"""From the name of a saved block to the infrastructure that it holds, for `{block: docker-training/gpu-box}`."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from prefect.blocks.core import Block

from prefect_ft.backends.kind import all_kinds
from prefect_ft.errors import ConfigError
from prefect_ft.prefect_edge.embedded import own_server

if TYPE_CHECKING:
    from prefect_ft.blocks.training import TrainingBlock


def infrastructure_of_block(name: str) -> Mapping[str, Any]:
    """Return the infrastructure in a saved block, by TYPE/NAME; raises ConfigError."""
    slug, _, document = name.partition("/")
    slugs = _slugs()
    if slug not in slugs or not document:
        wanted = " or ".join(f"{each}/NAME" for each in slugs)
        raise ConfigError(f"must be {wanted}, got {name!r}")
    own_server()
    try:
        load: Any = Block.load  # its types have neither the kind of block nor `_sync`
        block: TrainingBlock = load(name, _sync=True)
    except ValueError as exc:
        message = f"no block {name!r} can be loaded from Prefect's API: save one under this name ({_first_line(exc)})"
        raise ConfigError(message) from exc
    except (RuntimeError, OSError) as exc:
        raise ConfigError(f"block {name!r} cannot be loaded: {_first_line(exc)}") from exc
    found = block.infrastructure()
    return {field: getattr(found, field) for field in {"type", *found.model_fields_set}}


def _slugs() -> list[str]:
    """Return Prefect's names for the blocks of all kinds, which it knows once they are loaded."""
    return [resolve_name(kind.block).get_block_type_slug() for kind in all_kinds() if kind.block is not None]


def _first_line(exc: Exception) -> str:
    return str(exc).strip().partition("\n")[0] or type(exc).__name__
