"""Which Ray nodes may host engines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RESOURCE = "longboat-rollout"
POD_LABEL = "longboat.dev/pod"


@dataclass(frozen=True, slots=True)
class RolloutNode:
    """A living Ray node with slots for engines. `pod` is its pod's name, or the node's where there are no pods."""

    node_id: str
    pod: str
    slots: int
    accelerators: int


def rollout_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, RolloutNode]:
    """The rollout nodes among `ray.nodes()`, by node id."""
    found = {}
    for node in nodes:
        resources = node.get("Resources", {})
        slots = int(resources.get(RESOURCE, 0))
        if not node.get("Alive") or slots == 0:
            continue
        node_id = node["NodeID"]
        pod = node.get("Labels", {}).get(POD_LABEL) or node.get("NodeName") or node_id
        found[node_id] = RolloutNode(node_id, pod, slots, int(resources.get("GPU", 0)))
    return found
