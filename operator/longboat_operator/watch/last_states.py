"""The last states of pods that are gone: what removed a pod is written into it, often in the same moment in which it is deleted."""

from __future__ import annotations

from collections.abc import Mapping

from longboat_operator.model import JobKey, Object, belongs_to
from longboat_operator.pods.names import JobRef
from longboat_operator.reading.intact import stored_records


class LastStates:
    """Holds the last state of each pod that is gone, until the status of its job tells that it is. In memory; no awaits, no clock."""

    def __init__(self) -> None:
        self._pods: dict[JobKey, dict[str, Object]] = {}

    def of_job(self, key: JobKey) -> Mapping[str, Object]:
        """Returns those of one job, by name."""
        return dict(self._pods.get(key, {}))

    def add(self, key: JobKey, job: Object | None, pod: Object) -> None:
        """Takes the last state of a pod of the job, which is None if it is gone too."""
        if job is not None and is_awaited(job, pod):
            self._pods.setdefault(key, {})[pod["metadata"]["name"]] = pod

    def review(self, key: JobKey, job: Object | None) -> None:
        """Drops what the job's status, as it is now, no longer waits for."""
        if key not in self._pods:
            return
        pods = {name: pod for name, pod in self._pods[key].items() if job is not None and is_awaited(job, pod)}
        if pods:
            self._pods[key] = pods
        else:
            del self._pods[key]


def is_awaited(job: Object, pod: Object) -> bool:
    """Whether the status of a job may still have to say how this pod, which is gone, was lost. Pure.

    Rule: it does unless it says that a pod of this attempt was lost or released, or knows a newer one. A job that is being deleted needs none.
    """
    metadata = job["metadata"]
    identity = JobRef(metadata["namespace"], metadata["name"], metadata["uid"]).identity(pod["metadata"]["name"])
    if identity is None or "deletionTimestamp" in metadata or not belongs_to(pod, metadata["uid"]):
        return False
    role = ((job.get("status") or {}).get("roles") or {}).get(identity.role) or {}
    for record in stored_records(role):
        if (record.get("pool") or "", record["index"]) == identity.place:
            attempt: int = record["attempt"]
            return attempt < identity.attempt or (attempt == identity.attempt and "lostTime" not in record)
    return bool(identity.attempt >= role.get("nextAttempt", 0))
