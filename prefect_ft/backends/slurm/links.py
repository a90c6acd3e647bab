"""Links to the node servers of an allocation, and what many of them are asked in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prefect_ft.backends.direct import DirectWay
from prefect_ft.backends.slurm.allocations import Allocation, Allocations, node_name
from prefect_ft.backends.slurm.nodes import NodeLink

MAX_CONCURRENT = 64
"""How many node servers are called in parallel: ending workers takes as long as their agents do."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def links_to(
    allocation: Allocation, allocations: Allocations, way: DirectWay, *, run_id: str, key: str
) -> dict[str, NodeLink]:
    """Return links to the node servers of an allocation that have started, by node."""
    return {
        node: NodeLink(
            way, node, allocation.hosts.get(node, node), port, run_id=run_id, key=key, name=node_name(run_id)
        )
        for node, port in allocations.ports(allocation).items()
    }


def answering(links: Mapping[str, NodeLink]) -> set[str]:
    """Return the nodes whose servers answer and are not shutting down; all are asked in parallel."""
    answers = in_parallel(lambda link: link.answers(), list(links.values()))
    return {node for node, answers_now in zip(links, answers, strict=True) if answers_now}


def is_any_going(links: Iterable[NodeLink]) -> bool:
    """Whether one of these node servers is shutting down; all are asked in parallel."""
    return any(in_parallel(lambda link: link.is_going() is True, list(links)))


def in_parallel(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Call for all items in parallel; raises the first exception once all calls are done."""
    if not items:
        return []
    with ThreadPoolExecutor(min(len(items), MAX_CONCURRENT)) as pool:
        return list(pool.map(call, items))
