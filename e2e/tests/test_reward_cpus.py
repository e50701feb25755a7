"""CPUs that move between reward pods while a job trains: real nodes change real pods, and a watcher sees every state of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest

from e2e import small_job
from e2e.cluster.binaries import KUBEBOX
from e2e.jobs import Job
from e2e.site import Site
from longboat_crds.quantities import millicores

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TOTAL = 1200
POOLS = ("code", "math")

# The pool that the file names has grades that compute, and the other's cost nothing.
BURN = '''"""Grades that compute for a while, if the file `heavy` names their pool."""

import pathlib
import time


def reward(sample, pool):
    if pathlib.Path("/data/heavy").read_text() == pool:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    letters = [c for c in sample.text if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / max(1, len(letters))
'''


class Watched:
    """Every state that the job's reward pods have been in: the sum of what each might have in force, and their restarts."""

    def __init__(self) -> None:
        self.sums: list[int] = []
        self.restarts = 0
        self.resized: set[str] = set()
        self._pods: dict[str, dict[str, Any]] = {}
        self._first: dict[str, int] = {}

    def follow(self, lines: Iterable[str]) -> None:
        """Events of a watch, a line each; the last line may be cut off."""
        for line in lines:
            if line.endswith("\n"):
                self.see(json.loads(line))

    def see(self, event: dict[str, Any]) -> None:
        """One event of the watch, in the order of the API server's writes."""
        pod = event["object"]
        uid = pod["metadata"]["uid"]
        if event["type"] == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
            cpu = _counted(pod)
            if self._first.setdefault(uid, cpu) != cpu:
                self.resized.add(uid)
            statuses = pod["status"].get("containerStatuses", ())
            self.restarts = max(self.restarts, *(status["restartCount"] for status in statuses), 0)
        self.sums.append(sum(map(_counted, self._pods.values())))


def _counted(pod: dict[str, Any]) -> int:
    """Most of what a pod's graders ask for, have been allocated and have in force."""
    containers = [*pod["spec"]["containers"], *pod["status"].get("containerStatuses", ())]
    found = [0]
    for container in containers:
        if container["name"] == "graders":
            resources = container.get("resources") or {}
            told = [*(resources.values()), container.get("allocatedResources") or {}]
            found += [millicores(each["cpu"]) for each in told if isinstance(each, dict) and "cpu" in each]
    return max(found)


@contextmanager
def watching(job: Job) -> Iterator[Watched]:
    """Follows the job's reward pods from before they exist."""
    selector = quote(f"longboat.dev/job={job.name},longboat.dev/role=reward")
    path = f"/api/v1/namespaces/{job.namespace}/pods?watch=1&labelSelector={selector}"
    argv = [str(KUBEBOX.path), "kubectl", "get", "--raw", path]
    seen = Watched()
    with subprocess.Popen(argv, env=job.cluster.environment, stdout=subprocess.PIPE, text=True) as following:
        lines = following.stdout
        assert lines is not None
        reader = Thread(target=seen.follow, args=(lines,), daemon=True)
        reader.start()
        try:
            yield seen
        finally:
            following.kill()
            reader.join()


def test_cpus_move_to_the_pool_that_waits_and_back_while_the_job_trains(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    (site.data / "burn.py").write_text(BURN)
    heavy = site.data / "heavy"
    heavy.write_text("code")
    for file in (heavy, site.data / "burn.py"):
        file.chmod(0o644)
    rewards = [
        {"name": name, "function": "/data/burn.py:reward", "pool": name, "parameters": {"pool": name}} for name in POOLS
    ]
    pools = [{"name": name, "gradersPerPod": 2, "cpu": {"min": "200m"}} for name in POOLS]
    rounds = {"steps": 100_000, "promptsPerRound": 4}
    job = new_job("reward-cpus")
    with watching(job) as seen:
        job.apply(small_job.spec(rounds=rounds, rewards=rewards, rewardPools=pools, rewardCpu={"total": f"{TOTAL}m"}))
        job.wait_for("Running", 300)
        job.wait_for_step(2)
        pods = job.pod_uids("reward")
        job.wait("CPUs for code", lambda: moved(job, "code"), 300)
        step = job.step()
        heavy.write_text("math")
        job.wait("CPUs for math", lambda: moved(job, "math"), 300)
        heavy.write_text("code")
        job.wait("CPUs for code again", lambda: moved(job, "code"), 300)
        job.wait_for_step(step + 3)
        assert job.pod_uids("reward") == pods
        shown = job.cluster.kubectl("-n", job.namespace, "get", "rljobs", job.name)
        assert f"{job.status()['rewardCpu']['used']}/{job.status()['rewardCpu']['total']}" in shown
        described = job.cluster.kubectl("-n", job.namespace, "describe", "rljob", job.name)
    assert "CPUsMoved" in described
    assert seen.resized == set(pods.values()), "both gave and got"
    assert seen.restarts == 0
    assert seen.sums
    assert max(seen.sums) <= TOTAL


def moved(job: Job, target: str) -> bool:
    """Whether the newest move that ended gave this pool CPUs, and the pool's pod has most of the total now."""
    ended = [move for move in job.status().get("rewardCpu", {}).get("moves", ()) if move["outcome"] == "Done"]
    pools = {pool["name"]: millicores(pool["cpu"]) for pool in job.status()["rewardCpu"].get("pools", ())}
    return bool(ended) and ended[-1]["target"] == target and pools[target] > TOTAL // 2
