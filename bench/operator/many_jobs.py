"""A thousand jobs that change their demand: the operator's CPU, and the longest that a key waits or is in work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from bench.operator.api_double import ApiDouble
from bench.record import loop_seconds
from longboat_operator.apply import Applier
from longboat_operator.controller import Controller
from longboat_operator.dry_runs import AcceptedDryRuns
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import CHILDREN, CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME
from longboat_operator.lookups import LookUps
from longboat_operator.model import JobKey, Key
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.pod_warnings import PodWarnings
from longboat_operator.queue import WorkQueue
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from tests.operator_plan.simulated_cluster import runtime_of, spec_of

NAMESPACE = "bench"
WORKERS = 4
SAMPLE_SECONDS = 0.05
# Samples between two looks at the machine's speed, and additions of one.
SPEED_SAMPLES, SPEED_ADDITIONS = 20, 10**5
REPLICAS = 3
# Longer than a burst of changes is gathered, and than the wait before a second try. A key that has missed what it waits for has a timer of
# 10 s as a last resort, which must not hide that.
REST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Slice:
    """A second of the run: the operator's CPU, and milliseconds of a million additions right before and after it.

    Machines that share their processors change their speed by half within seconds.
    """

    cores: float
    loop_ms_before: float
    loop_ms_after: float


def many_jobs(jobs: int, period_seconds: float, seconds: float) -> dict[str, Any]:
    """Measures jobs of seven pods whose drivers ask in turn for two and three of their rollout pods, evenly spread over each period.

    `unsettled` counts jobs that lack what they asked for, or that a plan would still change, once nothing calls for a plan any more.
    """
    return asyncio.run(_run([f"job-{number}" for number in range(jobs)], period_seconds, seconds))


async def _run(names: list[str], period_seconds: float, seconds: float) -> dict[str, Any]:
    api, queue = ApiDouble(), WorkQueue[Key]()
    cache = Cache()
    kinds = (RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME, *CHILDREN)
    client: Any = api
    clock = ServerClock()
    applier = Applier(client, cache, EventRecorder(client, clock, "bench"), AcceptedDryRuns(time.monotonic))
    look_ups = LookUps(client, PodWarnings(client, time.monotonic), clock, time.monotonic)
    controller = Controller(cache, queue, observe, plan, look_ups, applier, Freshness([], []), clock)
    freshness = Freshness([Source(kind.kind, None) for kind in kinds], bookmarked=[])
    api.feed = Feed(cache, freshness, clock, controller.changed, controller.listed)
    api.submit({"apiVersion": "longboat.dev/v1alpha1", **runtime_of()})
    controller.lead()
    workers = [asyncio.create_task(controller.work()) for _ in range(WORKERS)]
    spec = spec_of(rollout={"replicas": REPLICAS})
    for name in names:
        metadata = {"namespace": NAMESPACE, "name": name}
        api.submit({"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec})
    await _all(api, names, lambda status: (status.get("roles") or {}).get("rollout", {}).get("ready") == REPLICAS)
    for name in names:
        api.drive(NAMESPACE, name, demand={"incarnationRequest": "token"})
    await _all(api, names, lambda status: status["allocation"].get("incarnation"))
    for name in names:
        api.drive(NAMESPACE, name, training={"incarnation": 1, "state": "Running", "step": 1})
    await _all(api, names, lambda status: status["phase"] == "Running")
    await _rest(api, queue)
    results = await _measure(api, queue, names, period_seconds, seconds)
    await _rest(api, queue)
    queue.close()
    await asyncio.gather(*workers)
    return {**results, "unsettled": len([name for name in names if not _settled(api, cache, name)])}


async def _measure(
    api: ApiDouble, queue: WorkQueue[Key], names: list[str], period_seconds: float, seconds: float
) -> dict[str, Any]:
    changes = round(seconds / period_seconds * len(names))
    began, cpu, requests, oldest = time.monotonic(), time.process_time() - api.own_seconds, api.requests, 0.0
    made = samples = 0
    slices: list[Slice] = []
    speed, since, used = loop_seconds(SPEED_ADDITIONS), began, cpu
    api.own_seconds += speed
    while made < changes:
        due = min(changes, int((time.monotonic() - began) / period_seconds * len(names)) + 1)
        for number in range(made, due):
            _ask(api, names[number % len(names)], number // len(names) + 1)
        made = due
        await asyncio.sleep(SAMPLE_SECONDS)
        oldest = max(oldest, queue.oldest_seconds)
        samples += 1
        if samples % SPEED_SAMPLES == 0:
            now, total = time.monotonic(), time.process_time() - api.own_seconds
            before, speed = speed, loop_seconds(SPEED_ADDITIONS)
            api.own_seconds += speed
            slices.append(Slice((total - used) / (now - since), _loop_ms(before), _loop_ms(speed)))
            since, used = now, total
    wall = time.monotonic() - began
    return {
        "demands": changes,
        "wall_seconds": wall,
        "cores": (time.process_time() - api.own_seconds - cpu) / wall,
        "oldest_seconds": oldest,
        "requests_per_second": (api.requests - requests) / wall,
        "loop_ms": median(each.loop_ms_after for each in slices) if slices else None,
        "slices": [[round(value, 3) for value in astuple(each)] for each in slices],
    }


def _loop_ms(seconds: float) -> float:
    """Converts the seconds of SPEED_ADDITIONS additions to the milliseconds of a million."""
    return 1e3 * seconds * 10**6 / SPEED_ADDITIONS


def _ask(api: ApiDouble, name: str, number: int) -> None:
    rollout = {"incarnation": 1, "number": number, "replicas": REPLICAS - number % 2, "reason": "as many as it can use"}
    api.drive(NAMESPACE, name, demand={"incarnationRequest": "token", "rollout": rollout})


def _settled(api: ApiDouble, cache: Cache, name: str) -> bool:
    """Whether the newest demand is answered, the job has the pods, and a plan would find nothing to do."""
    job = JobKey(NAMESPACE, name)
    status = api.status(NAMESPACE, name)
    demand, grant = status["demand"]["rollout"], status["allocation"].get("grant", {}).get("rollout", {})
    return (
        demand["number"] == grant.get("answers")
        and demand["replicas"] == status["roles"]["rollout"]["ready"]
        and all(plan(observe(cache, key), datetime.now(UTC)).empty for key in (job, job.capacity))
    )


async def _all(api: ApiDouble, names: list[str], true: Any) -> None:
    """Returns once it is true of every job's status."""
    waiting = list(names)
    while waiting := [name for name in waiting if not true(api.status(NAMESPACE, name))]:  # noqa: ASYNC110
        await asyncio.sleep(SAMPLE_SECONDS)


async def _rest(api: ApiDouble, queue: WorkQueue[Key]) -> None:
    """Returns once nothing calls for a plan: no event is to come, no key waits or is in work, and no timer ends within REST_SECONDS."""
    while api.pending or not queue.idle(REST_SECONDS):  # noqa: ASYNC110
        await asyncio.sleep(SAMPLE_SECONDS)
