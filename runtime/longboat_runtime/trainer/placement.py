"""Decides in which pods the ranks of a trainer run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# The resource that the Ray node of a trainer pod offers, one for each rank, and the label with the pod's name.
RESOURCE = "longboat-trainer"
POD_LABEL = "longboat.dev/pod"
# The end of the name that the operator gives a trainer pod: its place, and the attempt at it.
_PLACE = re.compile(r"-trainer-(\d+)-a(\d+)$", re.ASCII)

Node = Mapping[str, Any]


def pod_nodes(nodes: Iterable[Node], pods: int, devices: int, resource: str = RESOURCE) -> list[str] | None:
    """Returns the id of each pod's node among `ray.nodes()`, by the pods' places; None until all of the `pods` are there.

    Rule: a place's pod is its newest attempt, by the names of all nodes that Ray lists. An older one may live on for a while, as far as
    Ray knows, and so may an earlier node of the same pod: the pod counts once exactly one of its nodes lives and offers a resource for each
    of its `devices`. A node without the name of a trainer pod is a machine that stands for all pods (`longboat run`).
    """
    attempts: dict[int, dict[int, list[Node]]] = {}
    for node in nodes:
        match = _PLACE.search(node.get("Labels", {}).get(POD_LABEL, ""))
        if match is not None:
            place, attempt = int(match[1]), int(match[2])
            attempts.setdefault(place, {}).setdefault(attempt, []).append(node)
        elif _offers(node, resource) >= pods * devices:
            return [node["NodeID"]] * pods
    ids = []
    for place in range(pods):
        by_attempt = attempts.get(place) or {0: []}
        living = [node for node in by_attempt[max(by_attempt)] if _offers(node, resource) >= devices]
        if len(living) != 1:
            return None
        ids.append(living[0]["NodeID"])
    return ids


def has_gpus(nodes: Iterable[Node], ids: Sequence[str]) -> bool:
    """Whether any of these nodes has GPUs."""
    return any(node["Resources"].get("GPU") for node in nodes if node["NodeID"] in ids)


def _offers(node: Node, resource: str) -> int:
    """Returns how much a living node offers of the resource; 0 if it is dead."""
    return int(node["Resources"].get(resource, 0)) if node["Alive"] else 0
