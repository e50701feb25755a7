"""Decides in which pods the ranks of a trainer run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import ray

from longboat_crds.base import Role
from longboat_crds.trainer import TrainerSpec
from longboat_runtime.ray_nodes import POD_LABEL, POLL_SECONDS, ROLE_LABEL, TRAINER_RESOURCE, Node

# The end of the name that the operator gives a pod: its place, and the attempt at it.
_PLACE = re.compile(r"-(\d+)-a(\d+)$", re.ASCII)


async def placed(trainer: TrainerSpec) -> list[Node]:
    """Waits for the nodes of the trainer's pods (see `pod_nodes`) and returns them: rank r belongs on node r // devicesPerPod."""
    while True:
        nodes = pod_nodes(ray.nodes(), trainer.replicas, trainer.devices_per_pod)
        if nodes is not None:
            return nodes
        await asyncio.sleep(POLL_SECONDS)


def pod_nodes(nodes: Iterable[Node], pods: int, devices: int) -> list[Node] | None:
    """Returns each pod's node among `ray.nodes()`, by the pods' places; None until all of the `pods` are there. Pure.

    Rule: a place's pod is its newest attempt, by the names of all nodes that Ray lists. An older one may live on for a while, as far as
    Ray knows, and so may an earlier node of the same pod: the pod counts once exactly one of its nodes lives and offers to run a rank on
    each of its `devices`. A node that offers to run all ranks without being a trainer pod is a machine that stands for all (`longboat run`).
    """
    attempts: dict[int, dict[int, list[Node]]] = {}
    for node in nodes:
        labels = node.get("Labels", {})
        if labels.get(ROLE_LABEL) == Role.TRAINER and (match := _PLACE.search(labels.get(POD_LABEL, ""))):
            place, attempt = int(match[1]), int(match[2])
            attempts.setdefault(place, {}).setdefault(attempt, []).append(node)
        elif _offers(node) >= pods * devices:
            return [node] * pods
    ordered = []
    for place in range(pods):
        by_attempt = attempts.get(place) or {0: []}
        living = [node for node in by_attempt[max(by_attempt)] if _offers(node) >= devices]
        if len(living) != 1:
            return None
        ordered.append(living[0])
    return ordered


def _offers(node: Node) -> int:
    """Returns how many ranks a living node offers to run; 0 if it is dead."""
    return int(node["Resources"].get(TRAINER_RESOURCE, 0)) if node["Alive"] else 0
