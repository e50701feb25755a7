"""All objects the operator knows, by name and by job. In memory; no awaits, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from longboat_operator.kube.resources import (
    CHILDREN,
    CLUSTER_RL_RUNTIME,
    CORDONED_NODE,
    POD,
    RL_JOB,
    RL_RUNTIME,
    SECRET,
)
from longboat_operator.model import LABEL_JOB, LABEL_ROLE, Contention, JobKey, Object
from longboat_operator.pods.budget import BUDGET_ROLES
from longboat_operator.watch.last_states import LastStates
from longboat_operator.watch.waiting import WaitingJobs

_CHILD_KINDS = (*(resource.kind for resource in CHILDREN), SECRET.kind)
RUNTIME_KINDS = (RL_RUNTIME.kind, CLUSTER_RL_RUNTIME.kind)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """Names an object; `namespace` is empty for a cluster-scoped one."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of events: one kind in one namespace, or in all (`namespace` None)."""

    kind: str
    namespace: str | None

    def __str__(self) -> str:
        return self.kind if self.namespace is None else f"{self.kind} in namespace {self.namespace}"


@dataclass(frozen=True, slots=True)
class Change:
    """An object that came (`old` None), changed, or went (`new` None)."""

    key: ObjectKey
    old: Object | None
    new: Object | None


def key_of(obj: Object) -> ObjectKey:
    """Returns the key of an object."""
    metadata = obj["metadata"]
    return ObjectKey(obj["kind"], metadata.get("namespace") or "", metadata["name"])


def version_of(obj: Object) -> int:
    """Returns the resourceVersion as a number, 0 without one: these grow with every write (comparable since Kubernetes 1.35, KEP-5504)."""
    return int(obj["metadata"].get("resourceVersion") or 0)


def job_of(obj: Object) -> JobKey | None:
    """Returns the job that an object is (RLJob) or is labelled with; None if neither."""
    metadata = obj["metadata"]
    name = metadata["name"] if obj["kind"] == RL_JOB.kind else (metadata.get("labels") or {}).get(LABEL_JOB)
    return JobKey(metadata["namespace"], name) if name else None


class BySource(Generic[T]):
    """Holds a value for each of some objects; those of one source are found without a look at the others."""

    def __init__(self) -> None:
        # By kind and namespace.
        self._values: dict[str, dict[str, dict[ObjectKey, T]]] = {}

    def get(self, key: ObjectKey) -> T | None:
        """Returns the object's value; None: it has none."""
        return self._values.get(key.kind, {}).get(key.namespace, {}).get(key)

    def put(self, key: ObjectKey, value: T) -> None:
        """Sets the object's value."""
        self._values.setdefault(key.kind, {}).setdefault(key.namespace, {})[key] = value

    def drop(self, key: ObjectKey) -> None:
        """Removes the object's value, if it has one."""
        namespaces = self._values.get(key.kind, {})
        values = namespaces.get(key.namespace, {})
        values.pop(key, None)
        if not values:
            namespaces.pop(key.namespace, None)

    def within(self, source: Source) -> Iterator[tuple[ObjectKey, T]]:
        """Yields the objects of a source and their values."""
        namespaces = self._values.get(source.kind, {})
        for values in namespaces.values() if source.namespace is None else [namespaces.get(source.namespace, {})]:
            yield from values.items()

    def all(self) -> Iterator[tuple[ObjectKey, T]]:
        """Yields all objects and their values."""
        for kind in self._values:
            yield from self.within(Source(kind, None))


class Cache:
    """Holds the newest version of each object: one older than what is held, or than its own deletion, is ignored.

    So events may come out of order (kopf keeps the order per object only) and from two sides (watch and repair).
    """

    def __init__(self, *, sees_cluster_runtimes: bool = True, may_watch_nodes: bool = False) -> None:
        """`sees_cluster_runtimes` is whether ClusterRLRuntimes are watched at all, and `may_watch_nodes` whether nodes are."""
        self.sees_cluster_runtimes = sees_cluster_runtimes
        self.may_watch_nodes = may_watch_nodes
        self._nodes_listed = False
        self._objects: BySource[Object] = BySource()
        self._children: dict[JobKey, dict[str, dict[str, Object]]] = {}
        # By node, the job and name of each pod that a budget protects.
        self._needed_pods: dict[str, set[tuple[JobKey, str]]] = {}
        self._last_states = LastStates()
        self._deleted: BySource[int] = BySource()
        self._seen: dict[Source, int] = {}
        self._waiting = WaitingJobs()

    # -- reading

    def job(self, key: JobKey) -> Object | None:
        """Returns the RLJob; None: the cache lacks it."""
        return self.get(ObjectKey(RL_JOB.kind, key.namespace, key.name))

    def jobs(self) -> Iterator[tuple[JobKey, Object]]:
        """Yields all RLJobs."""
        for key, obj in self._objects.within(Source(RL_JOB.kind, None)):
            yield JobKey(key.namespace, key.name), obj

    def children(self, key: JobKey) -> Mapping[str, Mapping[str, Object]]:
        """Returns the objects labelled with the job, by kind and name, whoever owns them; every kind of child is there, maybe empty."""
        children = self._children.get(key, {})
        return {kind: dict(children.get(kind, {})) for kind in _CHILD_KINDS}

    def cordoned(self, nodes: Iterable[str]) -> frozenset[str] | None:
        """Returns which of these nodes are unschedulable; None until nodes have been listed."""
        if not self._nodes_listed:
            return None
        return frozenset(node for node in nodes if self.get(ObjectKey(CORDONED_NODE.kind, "", node)))

    def jobs_on(self, node: str) -> set[JobKey]:
        """Returns the jobs with a pod on this node that rounds can't do without."""
        return {job for job, _ in self._needed_pods.get(node, ())}

    def last_states(self, key: JobKey) -> Mapping[str, Object]:
        """Returns the last states, by name, of the job's pods that are gone, until its status says so."""
        return self._last_states.of_job(key)

    def runtime(self, kind: str, namespace: str, name: str) -> Object | None:
        """Returns a runtime template; None: the cache lacks it. `namespace` is ignored for a ClusterRLRuntime."""
        return self.get(ObjectKey(kind, namespace if kind == RL_RUNTIME.kind else "", name))

    def runtime_names(self, namespace: str) -> dict[str, tuple[str, ...]]:
        """Returns the names of all templates that jobs of the namespace can refer to, by kind."""
        scopes = {RL_RUNTIME.kind: namespace, CLUSTER_RL_RUNTIME.kind: ""}
        return {
            kind: tuple(sorted(key.name for key, _ in self._objects.within(Source(kind, scope))))
            for kind, scope in scopes.items()
        }

    def contention(self, key: JobKey) -> Contention:
        """Summarizes the other jobs that wait for nodes."""
        return self._waiting.besides(key)

    def disturbed_by(self, change: Change) -> set[JobKey]:
        """Returns the other jobs that have to be planned because a change of a job affects their wait for nodes."""
        if change.key.kind != RL_JOB.kind:
            return set()
        return self._waiting.disturbed_by(JobKey(change.key.namespace, change.key.name), change.old, change.new)

    def get(self, key: ObjectKey) -> Object | None:
        """Returns an object of any kind; None: the cache lacks it."""
        return self._objects.get(key)

    def versions(self, source: Source) -> dict[ObjectKey, int]:
        """Returns the resourceVersion of every cached object of one source."""
        return {key: version_of(obj) for key, obj in self._objects.within(source)}

    def has_reached(self, key: ObjectKey, version: int) -> bool:
        """Whether the cache shows everything that happened to the object up to `version`."""
        cached = self.get(key)
        return (
            (cached is not None and version_of(cached) >= version)
            or self._deletion(key) >= version
            or self._seen.get(Source(key.kind, key.namespace), -1) >= version
            or self._seen.get(Source(key.kind, None), -1) >= version
        )

    # -- writing

    def put(self, obj: Object) -> Change | None:
        """Takes an object; None if what is held, or a deletion, is as new."""
        key, version = key_of(obj), version_of(obj)
        old = self.get(key)
        if old is not None and version_of(old) >= version > 0:
            return None
        if self._deletion(key) >= version > 0:
            return None
        self._deleted.drop(key)
        self._objects.put(key, obj)
        self._index(old, obj)
        if key.kind == RL_JOB.kind:
            self._last_states.review(JobKey(key.namespace, key.name), obj)
        return Change(key, old, obj)

    def remove(self, key: ObjectKey, version: int, last: Object | None = None) -> Change | None:
        """Takes a deletion as of `version`; None if there is nothing to remove, or something newer.

        `last` is the object's last state; if None, the cached one is taken for it.
        """
        old = self.get(key)
        if old is not None and version_of(old) > version:
            return None
        self._deleted.put(key, max(version, self._deletion(key)))
        if old is None:
            return None
        self._objects.drop(key)
        self._index(old, None)
        if key.kind == RL_JOB.kind:
            self._last_states.review(JobKey(key.namespace, key.name), None)
        elif key.kind == POD.kind and (job := job_of(old)) is not None:
            self._last_states.add(job, self.job(job), last or old)
        return Change(key, old, None)

    def note_nodes(self, *, listed: bool) -> None:
        """Notes that nodes have been listed, or that the API server forbids it."""
        self._nodes_listed = self.may_watch_nodes = listed

    def saw(self, source: Source, version: int) -> None:
        """Notes that an ordered source has delivered everything up to `version`."""
        self._seen[source] = max(version, self._seen.get(source, -1))

    def forget_deletions(self, source: Source, before: int) -> None:
        """Drops the memory of deletions older than `before`: no event that old is under way any more."""
        for key, version in list(self._deleted.within(source)):
            if version < before:
                self._deleted.drop(key)

    def _deletion(self, key: ObjectKey) -> int:
        """Returns the version as of which the object is known to have been deleted; -1 if it isn't."""
        version = self._deleted.get(key)
        return -1 if version is None else version

    def _index(self, old: Object | None, new: Object | None) -> None:
        changed = new if new is not None else old
        if changed is not None and changed["kind"] == RL_JOB.kind and (key := job_of(changed)):
            self._waiting.note(key, new)
        for obj in (old, new):
            if obj is None or obj["kind"] not in _CHILD_KINDS or (job := job_of(obj)) is None:
                continue
            kind, name = obj["kind"], obj["metadata"]["name"]
            if obj is new:
                self._children.setdefault(job, {}).setdefault(kind, {})[name] = obj
            else:
                kinds = self._children[job]
                del kinds[kind][name]
                if not kinds[kind]:
                    del kinds[kind]
                if not kinds:
                    del self._children[job]
            if kind == POD.kind:
                self._index_node(job, obj, remove=obj is old)

    def _index_node(self, job: JobKey, pod: Object, *, remove: bool) -> None:
        node, role = (pod.get("spec") or {}).get("nodeName"), pod["metadata"]["labels"].get(LABEL_ROLE)
        if not node or role not in BUDGET_ROLES:
            return
        pods = self._needed_pods.setdefault(node, set())
        if not remove:
            pods.add((job, pod["metadata"]["name"]))
            return
        pods.discard((job, pod["metadata"]["name"]))
        if not pods:
            del self._needed_pods[node]
