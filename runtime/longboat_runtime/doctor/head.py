"""Checks whether this container reaches the Ray head of its job."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from longboat_runtime.doctor.finding import Finding, ok, skipped, wrong
from longboat_runtime.doctor.place import Place

HEAD = "Ray head"


@dataclass(frozen=True, slots=True)
class Reached:
    """Says how far a request to the head came.

    `unresolved` is the error if its name has no address. The head `refused` a connection, or was `silent`. `cluster` is the id that it
    answered with, None without an answer. `joined` says whether it counts this pod's node.
    """

    unresolved: str | None = None
    refused: bool = False
    silent: bool = False
    cluster: str | None = None
    joined: bool = False


def judge_head(reached: Reached | None, place: Place) -> Finding:
    """Judges whether this container reaches its Ray head and belongs to its cluster. Pure."""
    if reached is None or place.head is None:
        return skipped(
            HEAD, "this is no pod of a job" if place.container is None else "nothing in this container uses Ray"
        )
    head, logs = place.head, "kubectl logs on the driver's pod, container ray-head"
    if reached.unresolved is not None:
        cure = "see the cluster's DNS (CoreDNS), and NetworkPolicies that keep this pod from it (dnsPeers of the chart)"
        return wrong(HEAD, f"{head} has no address: {reached.unresolved}", cure)
    if reached.refused:
        return wrong(HEAD, f"{head} refuses connections: no head runs there", f"see {logs}")
    if reached.silent:
        cure = "see NetworkPolicies of the namespace, and the network between this node and the driver's"
        return wrong(HEAD, f"{head} doesn't answer a connection", cure)
    if reached.cluster is None:
        return wrong(
            HEAD,
            f"{head} takes connections and answers no request",
            f"it hangs, or refuses this pod's Ray token: see {logs}",
        )
    if not reached.joined:
        return wrong(
            HEAD,
            f"{head} serves, and this pod hasn't joined",
            "see kubectl logs of this container for what its Ray node lacks",
        )
    return ok(HEAD, f"{head} serves, and counts this pod's node")


async def reach(place: Place) -> Reached | None:
    """Tries to reach the head of a place; None if it has none."""
    if place.head is None:
        return None
    host, _, port = place.head.rpartition(":")
    try:
        await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM), 5.0)
    except (OSError, TimeoutError) as error:
        return Reached(unresolved=str(error) or "no answer")
    from longboat_runtime.agent.head_probe import HeadProbe

    probe = HeadProbe(place.head)
    head = await probe.poll()
    if head.cluster is None:
        return Reached(refused=head.refused, silent=not head.refused and not await _connects(host, int(port)))
    return Reached(cluster=head.cluster, joined=await probe.joined(place.pod))


async def _connects(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 2.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
