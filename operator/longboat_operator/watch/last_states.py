"""The last states of pods that are gone. They say what removed the pod, and are often written just when it is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_crds.base import Role
from longboat_operator.model import JobKey, Object, belongs_to
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.reading.intact import stored_records


class LastStates:
    """Holds the last state of each pod that is gone, until its job's status says so. In memory; no awaits, no clock."""

    def __init__(self) -> None:
        self._pods: dict[JobKey, dict[str, Object]] = {}
        # The status is read once for all pods that go before it changes.
        self._unrecorded: dict[JobKey, UnrecordedLosses] = {}

    def of_job(self, key: JobKey) -> Mapping[str, Object]:
        """Returns those of one job, by name."""
        return dict(self._pods.get(key, {}))

    def add(self, key: JobKey, job: Object | None, pod: Object) -> None:
        """Takes the last state of a pod of the job; `job` is None if it is gone too."""
        if job is None:
            return
        unrecorded = self._unrecorded.get(key)
        if unrecorded is None or unrecorded.job is not job:
            unrecorded = UnrecordedLosses(job)
        if pod in unrecorded:
            self._unrecorded[key] = unrecorded
            self._pods.setdefault(key, {})[pod["metadata"]["name"]] = pod

    def review(self, key: JobKey, job: Object | None) -> None:
        """Drops the pods about which the job's current status says enough."""
        if key not in self._pods:
            return
        unrecorded, pods = self._unrecorded.pop(key), self._pods.pop(key)
        if job is None:
            return
        if unrecorded.job is not job:
            unrecorded = UnrecordedLosses(job)
        if pods := {name: pod for name, pod in pods.items() if pod in unrecorded}:
            self._pods[key], self._unrecorded[key] = pods, unrecorded


class UnrecordedLosses:
    """The set of pods whose loss the status of a job doesn't record yet. Pure.

    Rule: a pod is in it unless the status says that this attempt was lost or released, or knows a newer one. For a job that is being
    deleted it is empty.
    """

    def __init__(self, job: Object) -> None:
        self.job = job
        metadata = job["metadata"]
        self._ref = JobRef(metadata["namespace"], metadata["name"], metadata["uid"])
        self._roles: Mapping[str, Any] = (job.get("status") or {}).get("roles") or {}
        # By role and place: the least attempt that is unrecorded.
        self._attempts: dict[Role, dict[Place, int]] = {}

    def __contains__(self, pod: Object) -> bool:
        identity = self._ref.identity(pod["metadata"]["name"])
        if identity is None or "deletionTimestamp" in self.job["metadata"] or not belongs_to(pod, self._ref.uid):
            return False
        role = self._roles.get(identity.role) or {}
        if identity.role not in self._attempts:
            self._attempts[identity.role] = {
                Place(record.get("pool") or "", record["index"]): record["attempt"] + ("lostTime" in record)
                for record in stored_records(role)
            }
        least = self._attempts[identity.role].get(identity.place, role.get("nextAttempt", 0))
        return bool(identity.attempt >= least)
