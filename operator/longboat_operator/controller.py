"""From a change to the response to it: queue -> observe -> plan -> apply, one job at a time per key."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from longboat_operator.apply import Applied, Applier
from longboat_operator.kube.errors import KubeError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME
from longboat_operator.lease import LeadershipLostError
from longboat_operator.lookups import LookUps
from longboat_operator.metrics import RECONCILE_SECONDS
from longboat_operator.model import JobKey, Object, Observed, Plan, Target
from longboat_operator.queue import WorkQueue
from longboat_operator.rejections import Rejections
from longboat_operator.watch.cache import RUNTIME_KINDS, Cache, Change, job_of
from longboat_operator.watch.expectations import Expectations
from longboat_operator.watch.trim import wakes

# A held job is woken by what it waits for or, should that go unseen, after this time.
HELD_SECONDS = 10.0

Observe = Callable[[Cache, JobKey], Observed]
MakePlan = Callable[[Observed, datetime], Plan]

log = structlog.get_logger(__name__)


class Controller:
    """Decides which keys to plan for, and when to plan again."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue[JobKey],
        observe: Observe,
        plan: MakePlan,
        look_ups: LookUps,
        applier: Applier,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.expectations = Expectations(cache)
        self._cache = cache
        self._queue = queue
        self._observe = observe
        self._plan = plan
        self._look_ups = look_ups
        self._applier = applier
        self._clock = clock
        self._rejections: dict[JobKey, Rejections] = {}
        self._held: set[JobKey] = set()
        self._leading = False

    def changed(self, change: Change) -> None:
        """The cache has changed: wakes the jobs it concerns and those that waited for exactly this; none on a standby."""
        if not self._leading:
            return
        woken = wakes(change.old, change.new)
        for key in self._concerned(change):
            if woken or (key in self._held and self.expectations.met(key)):
                self._queue.add(key)

    def listed(self) -> None:
        """A stream has started over with a list: an object that a job created may be gone without ever having been seen."""
        for job in self.expectations.waiting():
            self._queue.add(job)

    def lead(self) -> None:
        """Starts to plan, with every existing job."""
        self._leading = True
        for job, _ in self._cache.jobs():
            self._queue.add(job)

    async def work(self) -> None:
        """A worker: takes keys until the queue is closed. Only what ends the process (lost leadership) is raised."""
        while (job := await self._queue.get()) is not None:
            started = self._clock()
            try:
                result = await self.reconcile(job)
            finally:
                self._queue.done(job)
            RECONCILE_SECONDS.labels(result).observe(self._clock() - started)

    async def reconcile(self, job: JobKey) -> str:
        """One pass for one job; returns a word for the outcome, for the metric."""
        if not self.expectations.met(job):
            self._held.add(job)
            self._queue.add_after(job, HELD_SECONDS)
            return "held"
        self._held.discard(job)
        rejections = self._rejections.setdefault(job, Rejections(self._clock))
        try:
            observed, plan = await self._informed(self._observe(self._cache, job), rejections)
            if plan.empty and observed.job is None:
                self._forget(job)
                return "gone"
            applied = await self._applier.apply(plan, observed, rejections)
        except LeadershipLostError:
            raise
        except KubeError as error:
            log.warning("look-up failed", job=str(job), error=str(error))
            self._queue.add_after(job, max(self._queue.failed(job), error.retry_after_seconds or 0.0))
            return "unanswered"
        except Exception:
            # One job's plan that can't be made or carried out must not stop the others'.
            log.exception("reconcile failed", job=str(job))
            self._queue.add_after(job, self._queue.failed(job))
            return "error"
        self.expectations.expect(job, applied.expectations)
        again = [plan.look_again_seconds, rejections.next_seconds()]
        if applied.unanswered is not None or applied.stale:
            retry_after = (applied.unanswered.retry_after_seconds if applied.unanswered else None) or 0.0
            again.append(max(self._queue.failed(job), retry_after))
        else:
            self._queue.succeeded(job)
        self._queue.add_after(job, min((seconds for seconds in again if seconds is not None), default=None))
        return _word(plan, applied)

    async def _informed(self, observed: Observed, rejections: Rejections) -> tuple[Observed, Plan]:
        """A plan that has the answers it asked for, and its snapshot; answers that the server refuses are left out."""
        observed = dataclasses.replace(observed, random=secrets.token_hex(4))
        asked: set[Target] = set()
        while True:
            observed = dataclasses.replace(observed, rejections=rejections.by_name())
            plan = self._plan(observed, datetime.now(UTC))
            unknown = tuple(target for target in plan.look_up if target not in asked)
            if not unknown:
                return observed, plan
            asked |= set(unknown)
            answers = await self._look_ups.answers(unknown, observed, rejections)
            observed = dataclasses.replace(observed, looked_up={**observed.looked_up, **answers})

    def _forget(self, job: JobKey) -> None:
        self._rejections.pop(job, None)
        self._queue.succeeded(job)
        self._queue.add_after(job, None)

    def _concerned(self, change: Change) -> set[JobKey]:
        """The job itself, or that of a child, before and after the change; all jobs that refer to a runtime."""
        if change.key.kind not in RUNTIME_KINDS:
            return {job for obj in (change.old, change.new) if obj is not None and (job := job_of(obj)) is not None}
        # Runtimes change rarely: looking through all jobs is cheap enough.
        kind, namespace, name = change.key.kind, change.key.namespace, change.key.name
        return {
            key
            for key, job in self._cache.jobs()
            if _runtime_of(job) == (kind, name) and namespace in ("", key.namespace)
        }


def _word(plan: Plan, applied: Applied) -> str:
    if applied.unanswered is not None:
        return "unanswered"
    if applied.stale:
        return "stale"
    return "empty" if plan.empty else "applied"


def _runtime_of(job: Object) -> tuple[str, str]:
    reference = job.get("spec", {}).get("runtimeRef", {})
    return reference.get("kind", CLUSTER_RL_RUNTIME.kind), reference.get("name", "")
