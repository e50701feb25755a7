"""Takes the snapshot from which a job or a capacity is planned. No awaits, no I/O: the cache is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from longboat_operator.model import (
    DNS_PEERS,
    LABEL_ROLE,
    REQUEST_TIMEOUT_SECONDS,
    CapacityKey,
    Contention,
    JobKey,
    Key,
    Object,
    Observed,
    belongs_to,
)
from longboat_operator.pods.roles import SCALED_ROLES


class Cache(Protocol):
    """Returns what is known about the API server's objects."""

    @property
    def sees_cluster_runtimes(self) -> bool:
        """Whether ClusterRLRuntimes are watched."""

    @property
    def may_watch_nodes(self) -> bool:
        """Whether the operator may watch nodes."""

    def cordoned(self, nodes: Iterable[str]) -> frozenset[str] | None:
        """Returns which of these nodes are unschedulable; None while that isn't known."""

    def job(self, key: JobKey) -> Object | None:
        """Returns the RLJob; None if there is none."""

    def children(self, key: JobKey) -> Mapping[str, Mapping[str, Object]]:
        """Returns the objects labelled with the job's name, by kind and name, whoever owns them."""

    def last_states(self, key: JobKey) -> Mapping[str, Object]:
        """Returns the last states, by name, of the job's pods that are gone, until its status says so."""

    def runtime(self, kind: str, namespace: str, name: str) -> Object | None:
        """Returns the live runtime template; None if there is none. `namespace` counts only for an RLRuntime."""

    def runtime_names(self, namespace: str) -> Mapping[str, tuple[str, ...]]:
        """Returns the names of all templates that jobs of the namespace can refer to, by kind."""

    def contention(self, key: JobKey) -> Contention:
        """Summarizes the other jobs that wait for nodes."""


def observe(
    cache: Cache,
    key: Key,
    dns_peers: tuple[Object, ...] = DNS_PEERS,
    release: str | None = None,
    request_seconds: float = REQUEST_TIMEOUT_SECONDS,
    may_delete: bool = False,
) -> Observed:
    """Takes the snapshot of a job or of a capacity, for an operator with these options.

    A child counts only if it belongs to this job's uid, so leftovers of an earlier job of the same name are not seen.
    """
    if isinstance(key, CapacityKey):
        return _observe_capacity(cache, key)
    job = cache.job(key)
    if job is None:
        return Observed(key, None)
    uid = job["metadata"]["uid"]
    children = {
        kind: {name: child for name, child in objects.items() if belongs_to(child, uid)}
        for kind, objects in cache.children(key).items()
    }
    nodes = {node for pod in children.get("Pod", {}).values() if (node := (pod.get("spec") or {}).get("nodeName"))}
    reference: Mapping[str, Any] = job.get("spec", {}).get("runtimeRef", {})
    kind, name = reference.get("kind", "ClusterRLRuntime"), reference.get("name", "")
    runtime = cache.runtime(kind, key.namespace, name)
    return Observed(
        key,
        job,
        children,
        last_states={name: pod for name, pod in cache.last_states(key).items() if belongs_to(pod, uid)},
        cordoned=cache.cordoned(nodes),
        may_watch_nodes=cache.may_watch_nodes,
        runtime=runtime,
        sees_cluster_runtimes=cache.sees_cluster_runtimes,
        dns_peers=dns_peers,
        release=release,
        request_seconds=request_seconds,
        may_delete=may_delete,
        runtime_names=cache.runtime_names(key.namespace) if runtime is None else {},
        contention=cache.contention(key),
    )


def _observe_capacity(cache: Cache, key: CapacityKey) -> Observed:
    job = cache.job(key.job)
    if job is None:
        return Observed(key, None)
    uid = job["metadata"]["uid"]
    pods = {
        name: pod
        for name, pod in cache.children(key.job).get("Pod", {}).items()
        if (pod["metadata"].get("labels") or {}).get(LABEL_ROLE) in SCALED_ROLES and belongs_to(pod, uid)
    }
    return Observed(key, job, {"Pod": pods})
