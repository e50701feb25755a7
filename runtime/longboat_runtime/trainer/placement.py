"""Decides in which pods the ranks of a trainer run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

import ray

from longboat_crds.base import Role
from longboat_crds.trainer import TrainerSpec
from longboat_runtime.ray_nodes import POD_LABEL, POLL_SECONDS, ROLE_LABEL, TRAINER_RESOURCE, Node, have_gpus

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


def gpu_shortage(nodes: Sequence[Node], devices: int) -> str | None:
    """Says which pod has fewer GPUs than ranks, and what to do; None if none has, or if no pod has GPUs. Pure.

    `nodes` are as `pod_nodes` returns them, with `devices` ranks for each time that a node is listed. Ray would only say that a rank can't
    be placed.
    """
    if not have_gpus(nodes):
        return None
    for node in nodes:
        ranks, gpus = devices * nodes.count(node), int(node["Resources"].get("GPU", 0))
        if gpus < ranks:
            pod = node.get("Labels", {}).get(POD_LABEL, node["NodeID"])
            return (
                f"Ray finds {gpus} GPUs in the trainer pod {pod}, which has {ranks} ranks: see what `longboat doctor` says there, and delete "
                "the pod, after its node is cordoned, if a GPU has failed"
            )
    return None


def _offers(node: Node) -> int:
    """Returns how many ranks a living node offers to run; 0 if it is dead."""
    return int(node["Resources"].get(TRAINER_RESOURCE, 0)) if node["Alive"] else 0
