"""Several jobs, and pods of others, on nodes of limited size: a scheduler, a quota, gates, and time that goes on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from longboat_crds.base import Role
from longboat_crds.status import Phase
from longboat_operator.model import LABEL_ENVIRONMENT_POOL, LABEL_POOL, LABEL_ROLE, JobKey, Plan
from longboat_operator.reading.times import stamp
from longboat_operator.watch.waiting import WaitingJobs
from tests.operator_plan.simulated_cluster import SimulatedCluster

START = datetime(2026, 1, 1, tzinfo=UTC)
# How often a job that a quota refuses tries again.
RETRY_SECONDS = 60.0
# How long a deleted pod takes to end.
END_SECONDS = 5.0


@dataclass
class SharingJob(SimulatedCluster):
    """One of the jobs: its own objects, in a namespace that all share."""

    serial: int = 0
    # What its pods ask for, by role, and how long it trains once rounds run.
    sizes: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 1))
    priority: int = 0
    seconds: float = 600.0
    gates: tuple[str, ...] = ()
    cluster: SharedCluster | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.job is not None
        self.key = JobKey("research", f"job{self.serial}")
        self.job["metadata"]["creationTimestamp"] = stamp(self.now)

    def uid(self) -> str:
        """A new uid, no other job's."""
        return f"{self.serial}-{super().uid()}"

    def is_quota_full(self) -> bool:
        """The quota is the namespace's."""
        assert self.cluster
        return (
            self.cluster.quota is not None and sum(len(job.pods()) for job in self.cluster.jobs) >= self.cluster.quota
        )

    def _assert_settled(self, made: Plan) -> None:
        """Other tests see to it."""

    @property
    def minimum(self) -> tuple[int, int]:
        """How many pods its minimum has, and how many of them have a node, counted from the pods alone."""
        spec = self.spec
        needed = placed = 0
        for role in Role:
            pods = [
                pod
                for pod in self.pods(role)
                if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            ]
            match role:
                case Role.DRIVER:
                    least = 1
                case Role.TRAINER:
                    least = spec["trainer"]["replicas"]
                case Role.ROLLOUT:
                    least = min(spec["rollout"]["replicas"], max(1, spec["rollout"].get("minReplicas", 0)))
                case Role.REWARD:
                    pools = {pool["name"] for pool in spec["rewardPools"]}
                    needed += len(pools)
                    placed += len(pools & {pod["metadata"]["labels"][LABEL_POOL] for pod in pods})
                    continue
                case Role.ENVIRONMENT:
                    pools = {pool["name"] for pool in spec.get("environmentPools", ())}
                    needed += len(pools)
                    placed += len(pools & {pod["metadata"]["labels"][LABEL_ENVIRONMENT_POOL] for pod in pods})
                    continue
            needed += least
            placed += min(least, len(pods))
        return needed, placed


@dataclass
class Foreign:
    """A pod of somebody else, which takes what is free when it comes, and goes after a while."""

    size: int
    seconds: float
    node: str | None = None


@dataclass
class SharedCluster:
    """Nodes, jobs and others. `run` lets time go on."""

    nodes: dict[str, int]
    quota: int | None = None
    now: datetime = START

    def __post_init__(self) -> None:
        self.jobs: list[SharingJob] = []
        self.foreign: list[Foreign] = []
        self.waiting = WaitingJobs()
        # The longest that any job held part of its minimum after the last newly placed pod of it.
        self.longest_hold = 0.0
        self._numbers = count()
        self._events: list[tuple[datetime, int, Callable[[], None]]] = []
        self._dirty: set[int] = set()
        self._wake: dict[int, datetime] = {}
        self._placed: dict[int, tuple[int, datetime]] = {}
        self._started: dict[int, int] = {}

    # Who comes when.

    def submit(self, spec: dict[str, Any], **more: Any) -> SharingJob:
        """A job is created now."""
        job = SharingJob(spec=spec, now=self.now, serial=len(self.jobs), cluster=self, **more)
        self.jobs.append(job)
        self._dirty.add(job.serial)
        return job

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Something happens in so many seconds."""
        heapq.heappush(self._events, (self.now + timedelta(seconds=seconds), next(self._numbers), what))

    def visit(self, size: int, seconds: float) -> None:
        """A pod of somebody else comes, and takes the first node that has room; if none has, it goes."""
        node = next((name for name in self.nodes if self.free(name) >= size), None)
        if node is not None:
            foreign = Foreign(size, seconds, node)
            self.foreign.append(foreign)
            self.at(seconds, lambda: self.foreign.remove(foreign))

    def touch(self, job: SharingJob) -> None:
        """The job is planned again."""
        self._dirty.add(job.serial)

    # The scheduler, kubelets and drivers.

    def free(self, node: str) -> int:
        """What a node has left."""
        used = sum(each.size for each in self.foreign if each.node == node)
        for job in self.jobs:
            used += sum(_size(job, pod) for pod in job.pods() if pod["spec"].get("nodeName") == node)
        return self.nodes.get(node, 0) - used

    def lose(self, node: str) -> None:
        """A node is gone, and what runs there."""
        del self.nodes[node]
        for job in self.jobs:
            for pod in job.pods():
                if pod["spec"].get("nodeName") == node:
                    job.delete_pod(pod["metadata"]["name"], grace=0)
                    self._dirty.add(job.serial)

    def _schedule(self) -> None:
        waiting = [
            (-job.priority, pod["metadata"]["creationTimestamp"], order, job.serial, job, pod)
            for job in self.jobs
            for order, pod in enumerate(job.pods())
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
        ]
        for *_, job, pod in sorted(waiting, key=lambda each: each[:4]):
            name, size = pod["metadata"]["name"], _size(job, pod)
            node = next((node for node in self.nodes if self.free(node) >= size), None)
            if node is None:
                if not pod["status"]["conditions"]:
                    job.unschedulable(name)
                    self._dirty.add(job.serial)
                continue
            job.schedule(name, node)
            job.start(name)
            self._dirty.add(job.serial)

    def _drive(self, job: SharingJob) -> None:
        """A driver starts once all of the minimum is ready, and trains to the end unless it loses a pod."""
        driver = job.pods(Role.DRIVER)
        if not driver or job.job is None or job.status.phase in {Phase.SUCCEEDED, Phase.FAILED}:
            return
        needed, placed = job.minimum
        uid = int(driver[0]["metadata"]["labels"]["longboat.dev/attempt"])
        if placed < needed or self._started.get(job.serial) == uid:
            return
        self._started[job.serial] = uid
        job.start_driver()
        job.train(1)
        self._dirty.add(job.serial)

        def finish() -> None:
            drivers = [pod for pod in job.pods(Role.DRIVER) if "deletionTimestamp" not in pod["metadata"]]
            if self._started[job.serial] != uid or not drivers:
                return
            needed, placed = job.minimum
            if placed < needed:
                self.at(job.seconds, finish)
                return
            job.train(job.spec["rounds"]["steps"] - job.status.training.step, "Succeeded")
            self._dirty.add(job.serial)

        self.at(job.seconds, finish)

    # Time.

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Lets so much time go by, or until something is true."""
        end = self.now + timedelta(seconds=seconds)
        while not until():
            self._settle()
            self._measure()
            following = [self._events[0][0]] if self._events else []
            following += self._wake.values()
            moment = min((max(each, self.now) for each in following), default=end)
            if moment >= end:
                self._pass(end)
                return
            self._pass(moment)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for number, when in list(self._wake.items()):
                if when <= self.now:
                    del self._wake[number]
                    self._dirty.add(number)

    def _pass(self, moment: datetime) -> None:
        self.now = moment
        for job in self.jobs:
            job.now = moment
        self._measure()

    def _measure(self) -> None:
        for job in self.jobs:
            needed, placed = job.minimum
            before, since = self._placed.get(job.serial, (0, self.now))
            if placed > before:
                since = self.now
            self._placed[job.serial] = (placed, since)
            status = job.job["status"] if job.job else {}
            holds = status.get("phase") == Phase.QUEUED and "releaseTime" not in status.get("placement", {})
            if holds and 0 < placed < needed:
                self.longest_hold = max(self.longest_hold, (self.now - since).total_seconds())

    def _settle(self) -> None:
        """Jobs are planned in turn, and pods scheduled, until nothing happens any more at this time."""
        for _ in range(200):
            self._schedule()
            for job in self.jobs:
                self._drive(job)
            if not self._dirty:
                return
            dirty, self._dirty = sorted(self._dirty), set()
            for number in dirty:
                self._plan(self.jobs[number])
        raise AssertionError("no end of plans")

    def _plan(self, job: SharingJob) -> None:
        if job.job is None:
            return
        job.contention = self.waiting.besides(job.key)
        before, pods = {**job.job, "metadata": dict(job.job["metadata"])}, _pods_and_their_ends(job)
        made = job.reconcile()
        self.waiting.note(job.key, job.job)
        others = self.waiting.disturbed_by(job.key, before, job.job)
        self._dirty.update(other.serial for other in self.jobs if other.key in others)
        for pod in job.pods():
            self._admit(job, pod)
        if _pods_and_their_ends(job) != pods:
            self.at(END_SECONDS, lambda: self._end(job))
            self._dirty.add(job.serial)
        elif job.job["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            self._dirty.add(job.serial)
        wakes = [made.look_again_seconds, RETRY_SECONDS if job.rejections else None]
        wait = min((each for each in wakes if each is not None), default=None)
        self._wake.pop(job.serial, None)
        if wait is not None:
            self._wake[job.serial] = self.now + timedelta(seconds=wait)

    def _admit(self, job: SharingJob, pod: dict[str, Any]) -> None:
        if "priority" not in pod["spec"]:
            pod["spec"]["priority"] = job.priority
            if job.gates:
                pod["spec"]["schedulingGates"] = [{"name": gate} for gate in job.gates]

    def _end(self, job: SharingJob) -> None:
        job.end_deleted()
        self._dirty.add(job.serial)


def _size(job: SharingJob, pod: dict[str, Any]) -> int:
    return job.sizes[Role(pod["metadata"]["labels"][LABEL_ROLE])]


def _pods_and_their_ends(job: SharingJob) -> set[tuple[str, bool]]:
    return {(pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]) for pod in job.pods()}
