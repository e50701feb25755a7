"""Which reward worker grades next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RESOURCE = "longboat-reward"


@dataclass(slots=True)
class Slots:
    """A worker's node, how many grades it takes at once, and how many it has."""

    node: str
    slots: int
    running: int = 0


def reward_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Node id -> grading slots of the living reward nodes in `ray.nodes()`."""
    return {
        node["NodeID"]: int(node["Resources"][RESOURCE])
        for node in nodes
        if node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1
    }


def choose(workers: Collection[Slots], tried: Collection[str]) -> Slots | None:
    """The worker with the largest free share, on a node not `tried` yet as long as there is one; None if it is full.

    A retried grade waits for another worker rather than go back to the one that failed it.
    """
    others = [worker for worker in workers if worker.node not in tried]
    free = [worker for worker in (others or workers) if worker.running < worker.slots]
    return max(free, key=lambda worker: (worker.slots - worker.running) / worker.slots, default=None)
