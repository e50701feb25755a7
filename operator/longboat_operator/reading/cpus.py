"""Reads a reward pod's CPUs for grading: what it asks for, what its node gave it, and what its node says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longboat_crds.quantities import millicores
from longboat_operator.pods.workers import GRADERS
from longboat_operator.reading.view import PodView

# A node keeps a CPU request as shares of 1024 a core, so what it reports back may be off by this much.
CONVERSION = 2


@dataclass(frozen=True, slots=True)
class PodCpu:
    """Millicores of a pod's graders.

    `spec` is the most that they ask for, as request or limit; `actual` the most that its node has allocated or put in force, as it says.
    `settled`: the node has carried out what `spec` says and nothing is left to do, or there is no node yet. `trouble` is the node's word
    for why it has not (`Deferred`, `Infeasible`, `Error`), about this very `spec`, and `trouble_since` when that condition became True.
    """

    pod: PodView
    spec: int
    actual: int
    settled: bool
    trouble: str | None = None
    message: str = ""
    trouble_since: str | None = None

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.pod.name

    @property
    def pool(self) -> str:
        """Pool of the pod."""
        return self.pod.place.pool

    @property
    def version(self) -> int:
        """The pod's resourceVersion; these grow with every write."""
        return int(self.pod.raw["metadata"].get("resourceVersion") or 0)

    @property
    def counted(self) -> int:
        """Millicores that the pod may have in force now."""
        return self.spec if self.settled else max(self.spec, self.actual)


def pod_cpu(pod: PodView) -> PodCpu | None:
    """Reads a pod; None if its graders have no CPU limit.

    Rule: a pod is settled when it is Running with what `spec` says in `containerStatuses[].resources`, give or take `CONVERSION`, allocated
    too (`allocatedResources` has requests alone), no condition tells of a resize, and `observedGeneration` has caught up (KEP-1287:
    what a status says of an earlier generation says nothing about this one). So is one that has no node yet, where nothing can be
    in force: it will get what `spec` says then.
    """
    requested = _cpus(_named(pod.raw.get("spec", {}).get("containers")).get("resources"))
    if "limits" not in requested:
        return None
    spec = max(requested.values())
    status = pod.raw.get("status") or {}
    container = _named(status.get("containerStatuses"))
    in_force = _cpus(container.get("resources"))
    allocated = (container.get("allocatedResources") or {}).get("cpu")
    if allocated is not None:
        in_force["allocated"] = millicores(str(allocated))
    pending, ongoing = pod.condition("PodResizePending"), pod.condition("PodResizeInProgress")
    busy = "True" in {pending.get("status"), ongoing.get("status")}
    caught_up = int(status.get("observedGeneration") or 0) >= int(pod.raw["metadata"].get("generation") or 0)
    unscheduled = pod.node is None and pod.phase == "Pending"
    settled = unscheduled or (
        caught_up
        and not busy
        and pod.phase == "Running"
        and "limits" in in_force
        and spec - CONVERSION <= min(in_force.values())
        and max(in_force.values()) <= spec + CONVERSION
    )
    trouble = _trouble(pending, ongoing) if caught_up else {}
    return PodCpu(
        pod,
        spec,
        max(in_force.values(), default=0),
        settled,
        trouble.get("reason"),
        str(trouble.get("message", "")),
        trouble.get("lastTransitionTime"),
    )


def _trouble(pending: Mapping[str, Any], ongoing: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the condition that says why a resize is delayed or has failed; empty if none does."""
    if pending.get("status") == "True" and pending.get("reason"):
        return pending
    if ongoing.get("status") == "True" and ongoing.get("reason") == "Error":
        return ongoing
    return {}


def _named(containers: Any) -> Mapping[str, Any]:
    for each in containers or ():
        if each["name"] == GRADERS:
            graders: Mapping[str, Any] = each
            return graders
    return {}


def _cpus(resources: Any) -> dict[str, int]:
    """Returns the millicores of `limits` and `requests`, where they are given."""
    cpus: dict[str, int] = {}
    for kind in ("limits", "requests") if resources else ():
        if cpu := (resources.get(kind) or {}).get("cpu"):
            cpus[kind] = millicores(str(cpu))
    return cpus
