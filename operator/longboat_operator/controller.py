"""Responds to changes: queue -> observe -> plan -> apply, one plan at a time per key."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime

import structlog

from longboat_operator.apply import Applied, Applier
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import KubeError, TooManyRequestsError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME, CORDONED_NODE, RL_JOB
from longboat_operator.lease import LeadershipLostError
from longboat_operator.lookups import LookUps
from longboat_operator.metrics import RECONCILE_SECONDS
from longboat_operator.model import (
    CapacityKey,
    EmitEvent,
    JobKey,
    Key,
    Object,
    Observed,
    Plan,
    PublishGrant,
    PublishStatus,
    Target,
)
from longboat_operator.overwrites import Overwrites
from longboat_operator.queue import WorkQueue
from longboat_operator.rejections import Rejections
from longboat_operator.releases import Releases
from longboat_operator.schedule import LONGEST_BACKOFF_SECONDS
from longboat_operator.watch.cache import RUNTIME_KINDS, Cache, Change, Source, job_of, version_of
from longboat_operator.watch.expectations import Expectations
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.wakes import (
    tells_of_resize,
    wakes_capacity,
    wakes_its_grantor,
    wakes_its_writer,
    wakes_job,
)

# A held key is woken by what it waits for or, if that is missed, after this time.
HELD_SECONDS = 10.0
# How often a job of another release is checked again: that release may be gone.
OTHER_RELEASE_SECONDS = 30.0
# Changes to a job and its children come in bursts (a pod that ends is five of them): one plan answers all that come within this time.
# Plans of capacities are cheap and drivers wait for them, so they aren't delayed. Nor is what nodes say about moving CPUs.
BURST_SECONDS = 0.05
# The actions of a plan that changes only what people and drivers read.
_PUBLISHED = (PublishStatus, PublishGrant, EmitEvent)

Observe = Callable[[Cache, Key], Observed]
MakePlan = Callable[[Observed, datetime], Plan]

log = structlog.get_logger(__name__)


class Controller:
    """Decides which keys to plan for, and when to plan again."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue[Key],
        observe: Observe,
        plan: MakePlan,
        look_ups: LookUps,
        applier: Applier,
        freshness: Freshness,
        server_clock: ServerClock,
        releases: Releases | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`freshness` tells which namespaces are served, and `releases` which jobs another release serves: those aren't planned."""
        self.expectations = Expectations(cache)
        # The newer versions because of which a key's last writes failed: they seldom call for a plan by themselves.
        self._newer = Expectations(cache)
        self._cache = cache
        self._queue = queue
        self._observe = observe
        self._plan = plan
        self._look_ups = look_ups
        self._applier = applier
        self._freshness = freshness
        self._releases = releases
        self._server_clock = server_clock
        self._clock = clock
        self._rejections: dict[Key, Rejections] = {}
        self._overwrites = Overwrites(clock)
        self._turn = asyncio.Lock()
        self._held: set[Key] = set()
        # Keys to be planned once their namespace is served, by namespace.
        self._unserved: defaultdict[str, set[Key]] = defaultdict(set)
        # The version of each job after the last plan, its own or its capacity's, that only published and reported.
        self._published_versions: dict[Key, int] = {}
        self._leading = False

    def changed(self, change: Change) -> None:
        """Wakes the keys for which a change of the cache calls for a plan, or ends their wait for it to catch up; none on a standby."""
        if not self._leading:
            return
        job_woken, capacity_woken = wakes_job(change.old, change.new), wakes_capacity(change.old, change.new)
        if change.key.kind == CORDONED_NODE.kind and not job_woken:
            return
        urgent = tells_of_resize(change.old, change.new)
        for job in self._cache.disturbed_by(change):
            self._queue.add_within(job, BURST_SECONDS)
        for job in self._affected_jobs(change):
            if job_woken and self._is_own_publication(job, change):
                job_woken = wakes_its_writer(change.old, change.new)
            if capacity_woken and self._is_own_publication(job.capacity, change):
                capacity_woken = wakes_its_grantor(change.old, change.new)
            for key, woken in ((job, job_woken), (job.capacity, capacity_woken)):
                caught_up = self._newer.waits(key) and self._newer.met(key)
                if woken or caught_up or (key in self._held and self.expectations.met(key)):
                    if isinstance(key, JobKey) and not urgent:
                        self._queue.add_within(key, BURST_SECONDS)
                    else:
                        self._queue.add(key)

    def listed(self, source: Source) -> None:
        """Wakes the keys of namespaces that are served from now on, and those that wait to see a write.

        The stream started over, so an object that a plan created may be gone unseen.
        """
        for namespace in [*self._unserved] if source.namespace is None else [source.namespace]:
            if self._freshness.serves(namespace):
                for key in self._unserved.pop(namespace, ()):
                    self._queue.add(key)
        for key in self.expectations.waiting():
            self._queue.add(key)
        # After the first list of nodes, differences come as changes, until the right to watch them is gone.
        if source.kind == CORDONED_NODE.kind and self._leading and self._cache.cordoned(()) is None:
            self._plan_all()

    def lead(self) -> None:
        """Starts to plan, beginning with the capacity of every existing job: a job's status can't be written beside its grant."""
        self._leading = True
        self._plan_all()

    def _plan_all(self) -> None:
        for job, _ in self._cache.jobs():
            self._queue.add(job.capacity)
            self._queue.add_within(job, BURST_SECONDS)

    async def work(self) -> None:
        """Reconciles keys from the queue until it is closed. Raises LeadershipLostError; other errors of a pass end only that pass."""
        while (key := await self._queue.get()) is not None:
            started = self._clock()
            try:
                result = await self.reconcile(key)
            finally:
                self._queue.done(key)
            RECONCILE_SECONDS.labels(result).observe(self._clock() - started)

    async def reconcile(self, key: Key) -> str:
        """Makes one pass for one key; returns a word for the outcome, for the metric. Raises LeadershipLostError."""
        await self._take_turn()
        if not self._freshness.serves(key.namespace):
            self._unserved[key.namespace].add(key)
            return "unserved"
        if not self.expectations.met(key):
            self._held.add(key)
            self._queue.add_after(key, HELD_SECONDS)
            return "held"
        self._held.discard(key)
        self._newer.forget(key)
        rejections = self._rejections.setdefault(key, Rejections(self._clock))
        try:
            if await self._is_of_another_release(key):
                self._queue.add_after(key, OTHER_RELEASE_SECONDS)
                return "other release"
            observed = self._observe(self._cache, key)
            if isinstance(key, JobKey) and observed.job and (wait := self._overwrites.wait(key, observed.job)):
                self._queue.add_after(key, wait)
                return "overwritten"
            observed, plan = await self._plan_with_answers(observed, rejections)
            if plan.empty and observed.job is None:
                self._forget(key)
                return "gone"
            applied = await self._applier.apply(plan, observed, rejections)
        except LeadershipLostError:
            raise
        except KubeError as error:
            log.warning("look-up failed", key=str(key), error=str(error))
            self._queue.add_after(key, self._wait_after(key, error))
            return "unanswered"
        except Exception:
            # One key's plan that can't be made or carried out must not stop the others'.
            log.exception("reconcile failed", key=str(key))
            self._queue.add_after(key, self._queue.failed(key))
            return "error"
        self._expect(key, plan, applied)
        if applied.published or applied.unanswered:
            self._overwrites.published(key, applied.published)
        again = [plan.look_again_seconds, rejections.next_seconds()]
        if applied.unanswered is not None or applied.newer:
            again.append(self._wait_after(key, applied.unanswered))
        else:
            self._queue.succeeded(key)
        self._queue.add_after(key, min((seconds for seconds in again if seconds is not None), default=None))
        self._newer.expect(key, applied.newer)
        if applied.newer and self._newer.met(key):
            self._queue.add(key)
        return _word(plan, applied)

    async def _is_of_another_release(self, key: Key) -> bool:
        job = key.job if isinstance(key, CapacityKey) else key
        return self._releases is not None and await self._releases.leave(job, self._cache.job(job))

    def _wait_after(self, key: Key, error: KubeError | None) -> float:
        """Returns how long the key waits after another failure.

        A server that has too much to do gets no request for any key meanwhile, for at most LONGEST_BACKOFF_SECONDS. The word of an
        admission webhook is about this key alone.
        """
        wait = (error.retry_after_seconds if error else None) or 0.0
        if isinstance(error, TooManyRequestsError) and not error.message.startswith("admission webhook"):
            self._queue.hold_back(min(wait, LONGEST_BACKOFF_SECONDS))
        return max(self._queue.failed(key), wait)

    def _expect(self, key: Key, plan: Plan, applied: Applied) -> None:
        """Notes what the cache is to show before the key is planned again.

        A job waits for its capacity's writes too: its plan would otherwise publish over an outdated status.
        """
        self.expectations.expect(key, applied.expectations)
        if isinstance(key, CapacityKey):
            self.expectations.expect(key.job, applied.expectations)
        if applied.expectations and all(isinstance(action, _PUBLISHED) for action in plan.actions):
            self._published_versions[key] = applied.expectations[-1].version

    def _is_own_publication(self, key: Key, change: Change) -> bool:
        """Whether the change is what a plan of the key published, and that plan did nothing else but send events."""
        new = change.new
        return new is not None and new["kind"] == RL_JOB.kind and self._published_versions.get(key) == version_of(new)

    async def _plan_with_answers(self, observed: Observed, rejections: Rejections) -> tuple[Observed, Plan]:
        """Plans until the plan has the answers it asks for, but for those that the server refuses; returns its snapshot and the plan.

        Raises:
            KubeError: the server gave no answer, or one that isn't final.
            LeadershipLostError: this process may not write any more, which some look-ups need.
        """
        random = secrets.token_hex(4)
        requested: set[Target] = set()
        while True:
            observed = dataclasses.replace(observed, random=random, rejections=rejections.by_name())
            plan = self._plan(observed, self._server_clock.now())
            unknown = tuple(target for target in plan.look_up if target not in requested)
            if not unknown:
                return observed, plan
            requested |= set(unknown)
            answers = await self._look_ups.answers(unknown, observed, rejections)
            await self._take_turn()
            observed = dataclasses.replace(observed, looked_up={**observed.looked_up, **answers})

    async def _take_turn(self) -> None:
        """Returns when a plan may be made: one at most each time that all other tasks have had their turn.

        Many workers with plans of big jobs would otherwise hold up the lease's renewal until it is lost.
        """
        async with self._turn:
            await asyncio.sleep(0)

    def _forget(self, key: Key) -> None:
        self._rejections.pop(key, None)
        self._overwrites.forget(key)
        self._published_versions.pop(key, None)
        self._queue.succeeded(key)
        self._queue.add_after(key, None)

    def _affected_jobs(self, change: Change) -> set[JobKey]:
        """Returns the jobs that a change concerns.

        A child concerns its job before and after the change, a runtime all jobs that refer to it, and a node all jobs with a driver or
        trainer pod there.
        """
        if change.key.kind == CORDONED_NODE.kind:
            return self._cache.jobs_on(change.key.name)
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
    if applied.newer:
        return "stale"
    return "empty" if plan.empty else "applied"


def _runtime_of(job: Object) -> tuple[str, str]:
    reference = job.get("spec", {}).get("runtimeRef", {})
    return reference.get("kind", CLUSTER_RL_RUNTIME.kind), reference.get("name", "")
