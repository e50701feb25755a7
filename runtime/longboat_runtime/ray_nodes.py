"""Names what the nodes of a job's Ray cluster offer and are labelled with, and finds nodes by what they offer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from longboat_crds.base import Role

# The resources that the nodes of trainer and rollout pods offer, one for each device.
TRAINER_RESOURCE, ROLLOUT_RESOURCE = "longboat-trainer", "longboat-rollout"
# The labels with the role and the name of a node's pod.
ROLE_LABEL, POD_LABEL = "longboat.dev/role", "longboat.dev/pod"
# How often Ray is asked for nodes, in seconds.
POLL_SECONDS = 0.5

Node = Mapping[str, Any]


def pool_resource(role: Role, pool: str) -> str:
    """Names Ray's resource that the nodes of a pool offer: as much of it as runs there at once at most. Pure."""
    return f"longboat-{role}-{pool}"


async def offering(resource: str, least: float) -> list[Node]:
    """Waits until all nodes together offer at least `least` of a resource; returns those that offer it, ordered by their ids."""
    while True:
        nodes = [node for node in ray.nodes() if node["Alive"] and resource in node["Resources"]]
        if sum(node["Resources"][resource] for node in nodes) >= least:
            return sorted(nodes, key=lambda node: str(node["NodeID"]))
        await asyncio.sleep(POLL_SECONDS)


def have_gpus(nodes: Sequence[Node]) -> bool:
    """Returns whether any of the nodes has a GPU. Pure."""
    return any(node["Resources"].get("GPU") for node in nodes)
