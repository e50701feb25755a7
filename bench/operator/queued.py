"""Ten thousand keys that are queued at once, by this operator and by the first release's, in turn on the same machine.

This file runs in the tree of either: it uses what both have.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.operator import api_double
from bench.operator.api_double import ApiDouble
from longboat_operator import health
from longboat_operator.apply import Applier
from longboat_operator.controller import Controller
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import CHILDREN, CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME
from longboat_operator.lookups import LookUps
from longboat_operator.model import JobKey
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.queue import WorkQueue
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from tests.operator_plan.simulated_cluster import runtime_of, spec_of

FIRST_RELEASE = "904c2f0403026dad33e69714333cc60c383c10f4"
ROOT = Path(__file__).parents[2]
REQUEST_SECONDS = 0.03
SMALL = JobKey("small", "job")
SAMPLE_SECONDS = 0.05


def queued(keys: int, jobs: int) -> dict[str, Any]:
    """Measures both operators until so many of the jobs are planned: their rate, the state of health, and a small namespace's turn."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        archive = subprocess.run(
            ["git", "archive", FIRST_RELEASE, "bench", "crds", "operator", "runtime", "tests", "e2e"],
            cwd=ROOT, capture_output=True, check=True,
        )  # fmt: skip
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(tree, filter="data")
        (tree / "bench" / "operator" / Path(__file__).name).write_text(Path(__file__).read_text())
        before, now = (_run_in(each, keys, jobs) for each in (tree, ROOT))
    return {"before": before, "now": now, "ratio": now["jobs_per_second"] / before["jobs_per_second"]}


def _run_in(tree: Path, keys: int, jobs: int) -> dict[str, Any]:
    path = os.pathsep.join(str(tree / package) for package in ("crds", "operator", "runtime", "."))
    program = [sys.executable, "-m", f"bench.operator.{Path(__file__).stem}", str(keys), str(jobs)]
    done = subprocess.run(program, cwd=tree, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


async def _measure(keys: int, jobs: int) -> dict[str, Any]:
    api_double.ANSWER_SECONDS = REQUEST_SECONDS
    api, cache = ApiDouble(), Cache()
    planned: list[Any] = []

    def noted(cache: Any, key: Any) -> Any:
        planned.append(key)
        return observe(cache, key)

    seen_after: list[int] = []

    def changed(change: Any) -> None:
        """Notes after how many plans the small namespace's job is seen."""
        if change.new and change.new["metadata"].get("namespace") == SMALL.namespace and not seen_after:
            seen_after.append(len(planned))
        controller.changed(change)

    sources = [Source(kind.kind, None) for kind in (RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME, *CHILDREN)]
    freshness = Freshness(sources, bookmarked=[])
    queue, workers, controller, api.feed = _operator(api, cache, noted, changed, freshness)
    api.submit({"apiVersion": "longboat.dev/v1alpha1", **runtime_of()})
    names = [f"job-{number}" for number in range(keys // 2)]  # each has a key of its own and one of its capacity
    for name in names:
        _submit(api, JobKey("big", name))
    while sum(1 for _ in cache.jobs()) < len(names):  # noqa: ASYNC110
        await asyncio.sleep(SAMPLE_SECONDS)
    controller.lead()
    tasks = [asyncio.create_task(controller.work()) for _ in range(workers)]
    began, unhealthy, submitted = time.monotonic(), 0, False
    while (done := sum(bool(api.status("big", name).get("phase")) for name in names)) < jobs or not seen_after:
        await asyncio.sleep(SAMPLE_SECONDS)
        if not submitted and len(planned) > keys // 8:
            submitted = True
            _submit(api, SMALL)
        waited = getattr(queue, "stalled_seconds", queue.oldest_seconds)
        unhealthy += health.judge([], watch_dead=False, leading=True, **{_WAITED: waited}) != health.Health()
    elapsed, after = time.monotonic() - began, [key.namespace for key in planned[seen_after[0] :]]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "jobs_per_second": done / elapsed,
        "requests_per_second": api.requests / elapsed,
        "plans_before_the_small_namespace": after.index(SMALL.namespace) if SMALL.namespace in after else None,
        "plans_meanwhile": len(after),
        "unhealthy_samples": unhealthy,
    }


def _operator(api: Any, cache: Cache, observe: Any, changed: Any, freshness: Freshness) -> tuple[Any, int, Any, Any]:
    """Returns the queue, the number of workers, the controller and the feed."""
    try:
        from longboat_operator.dry_runs import AcceptedDryRuns
        from longboat_operator.kube.clock import ServerClock
        from longboat_operator.pod_warnings import PodWarnings
        from longboat_operator.shell import Options
    except ImportError:  # the first release
        queue: Any = WorkQueue()
        make: Any = {part.__name__: part for part in (Applier, Controller, EventRecorder, Feed, LookUps)}
        applier = make["Applier"](api, cache, make["EventRecorder"](api, "bench"))
        controller = make["Controller"](cache, queue, observe, plan, make["LookUps"](api), applier)
        return queue, 4, controller, make["Feed"](cache, freshness, changed, controller.listed)
    queue, clock = WorkQueue(group=lambda key: key.namespace), ServerClock()
    applier = Applier(api, cache, EventRecorder(api, clock, "bench"), AcceptedDryRuns(time.monotonic))
    look_ups = LookUps(api, PodWarnings(api, time.monotonic), clock, time.monotonic)
    served = Freshness([], [])
    controller = Controller(cache, queue, observe, plan, look_ups, applier, served, clock)
    return queue, Options().requests_in_flight, controller, Feed(cache, freshness, clock, changed, controller.listed)


_WAITED = "stalled_seconds" if hasattr(WorkQueue, "stalled_seconds") else "queue_oldest_seconds"


def _submit(api: ApiDouble, key: JobKey) -> None:
    metadata = {"namespace": key.namespace, "name": key.name}
    api.submit({"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec_of()})


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(int(sys.argv[1]), int(sys.argv[2])))))
