"""The snapshot holds what is the job's, and nothing of its namesakes."""

from collections.abc import Iterable

from longboat_operator.model import LABEL_JOB, LABEL_JOB_UID, Contention, JobKey, Object, Observed
from longboat_operator.observe import observe

KEY = JobKey("research", "sums")


def child(name: str, owner: str | None, **labels: str) -> dict:
    references = [{"uid": owner}] if owner else []
    metadata = {"name": name, "labels": {LABEL_JOB: "sums", **labels}, "ownerReferences": references}
    return {"metadata": metadata, "spec": {"nodeName": "node0"}}


class Cache:
    sees_cluster_runtimes = False

    def __init__(self, job: Object | None) -> None:
        self.kept = job
        self.asked: list[tuple[str, str, str]] = []

    def job(self, key: JobKey) -> Object | None:
        return self.kept

    def children(self, key: JobKey) -> dict[str, dict[str, Object]]:
        return {
            "Pod": {"mine": child("mine", "now"), "old": child("old", "before"), "free": child("free", None)},
            "PersistentVolumeClaim": {
                "sums-checkpoint": child("sums-checkpoint", None, **{LABEL_JOB_UID: "before"}),
            },
            "Service": {},
        }

    may_watch_nodes = True

    def cordoned(self, nodes: Iterable[str]) -> frozenset[str]:
        return frozenset({"node0", "node9"}.intersection(nodes))

    def last_states(self, key: JobKey) -> dict[str, Object]:
        return {"gone": child("gone", "now"), "older": child("older", "before")}

    def contention(self, key: JobKey) -> Contention:
        return Contention(quota_refuses=True)

    def runtime(self, kind: str, namespace: str, name: str) -> Object | None:
        self.asked.append((kind, namespace, name))
        return {"spec": {"image": "longboat-runtime:1"}}


def test_children_are_told_apart_by_uid() -> None:
    job = {"metadata": {"uid": "now"}, "spec": {"runtimeRef": {"kind": "RLRuntime", "name": "cpu"}}}
    cache = Cache(job)
    seen = observe(cache, KEY)
    assert set(seen.children["Pod"]) == {"mine"}
    assert not seen.children["PersistentVolumeClaim"]
    assert set(seen.last_states) == {"gone"}
    assert (seen.may_watch_nodes, seen.cordoned) == (True, {"node0"}), "of its own pods"
    assert cache.asked == [("RLRuntime", "research", "cpu")]
    assert seen.runtime
    assert not seen.sees_cluster_runtimes
    assert seen.contention.quota_refuses


def test_a_job_that_is_gone() -> None:
    assert observe(Cache(None), KEY) == Observed(KEY, None)
