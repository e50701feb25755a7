"""Jobs whose CPUs for grading move between two reward pods; a watcher sees all their states in the API, and looks at the nodes often."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

from e2e import small_job
from e2e.cluster import Cluster, cgroups
from e2e.cluster.node import Node
from e2e.host_runtime import HOSTNAME
from e2e.jobs import Job
from e2e.site import Site
from e2e.watches import following
from longboat_crds.quantities import millicores

TOTAL = 1200
POOLS = ("code", "math")

# Seconds between two looks at the nodes' control groups.
LOOK_SECONDS = 0.05

# CPU seconds of a grade: a round of them lasts longer than an operator takes to start.
GRADE_SECONDS = 0.5

# Grades of the pool that the file names compute; those of the other pool cost nothing.
BURN = f'''"""Grades that compute for a while, if the file `heavy` names their pool."""

import os
import pathlib
import time


def reward(sample, pool, hold=None):
    """Waits while the file `hold` exists, so that no round ends."""
    while hold and os.path.exists(hold):
        time.sleep(0.05)
    if pathlib.Path("/data/heavy").read_text() == pool:
        end = time.process_time() + {GRADE_SECONDS}
        while time.process_time() < end:
            pass
    letters = [c for c in sample.text if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / max(1, len(letters))
'''


def write_data(folder: Path, heavy: str) -> None:
    """Writes the reward function of `spec`, and the pool whose grades compute."""
    (folder / "burn.py").write_text(BURN)
    (folder / "burn.py").chmod(0o644)
    load(folder, heavy)


def load(folder: Path, heavy: str) -> None:
    """Writes the name of the pool whose grades compute, or another word if those of neither do; a grade reads it once."""
    part = folder / "heavy.part"
    part.write_text(heavy)
    part.chmod(0o644)
    part.replace(folder / "heavy")


def spec(runtime: str = "host") -> dict[str, Any]:
    """Makes the spec of a job of two pools of one pod each, with more steps than any test waits for."""
    rewards = [
        {"name": name, "function": "/data/burn.py:reward", "pool": name, "parameters": {"pool": name}} for name in POOLS
    ]
    pools = [{"name": name, "gradersPerPod": 2, "cpu": {"min": "200m"}} for name in POOLS]
    rounds = {"steps": 100_000, "promptsPerRound": 4}
    return small_job.spec(runtime, rounds=rounds, rewards=rewards, rewardPools=pools, rewardCpu={"total": f"{TOTAL}m"})


def apply_runtime_apart(site: Site, name: str, node: Node) -> str:
    """Applies a runtime template that puts reward pods on this node, and all others on the other one of two. Returns its name."""
    (other,) = (each.name for each in site.cluster.nodes if each.name != node.name)

    def separate(specs: dict[str, Any]) -> None:
        for role, spec in specs.items():
            spec["nodeSelector"] = {HOSTNAME: node.name if role == "reward" else other}

    return site.apply_runtime(name, separate)


def requested(node: Node, cluster: Cluster) -> int:
    """Returns the sum of CPU requests of all containers, init containers too, of the pods bound to a node, in millicores."""
    listed = cluster.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName={node.name}") or {}
    return sum(
        millicores(container.get("resources", {}).get("requests", {}).get("cpu", "0"))
        for pod in listed["items"]
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    )


def reward_cpu(job: Job) -> dict[str, Any]:
    """Reads status.rewardCpu; empty if there is none."""
    status: dict[str, Any] = job.status().get("rewardCpu", {})
    return status


def moved(job: Job, target: str) -> bool:
    """Whether the newest move that is done gave this pool CPUs, and the grant gives it most of the total now."""
    status = reward_cpu(job)
    ended = [move for move in status.get("moves", ()) if move["outcome"] == "Done"]
    pools = {pool["name"]: millicores(pool["cpu"]) for pool in status.get("pools", ())}
    return bool(ended) and ended[-1]["target"] == target and pools[target] > TOTAL // 2


class Watched:
    """Records what a job's reward pods have, while it is watched.

    `sums` are millicores of all of them, each with the most that it might have in force by what the API says, after each event; `quotas`
    those that the nodes' control groups allowed all graders together, at each look that saw no change; `restarts` is the most often that
    a container was restarted. `resized` are uids of pods whose count has changed, `allowed` the quotas seen of a pod's graders, by uid.
    """

    def __init__(self, job: Job) -> None:
        self.sums: list[int] = []
        self.quotas: list[int] = []
        self.restarts = 0
        self.resized: set[str] = set()
        self.allowed: dict[str, set[int]] = defaultdict(set)
        self._job = job
        self._pods: dict[str, dict[str, Any]] = {}
        self._first: dict[str, int] = {}
        self._containers: dict[str, tuple[str, str]] = {}
        self._groups: dict[str, str] = {}

    def see(self, event: dict[str, Any]) -> None:
        """Takes in one event of a watch; they must come in the order of the API server's writes."""
        pod = event["object"]
        uid = pod["metadata"]["uid"]
        if event["type"] == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
            cpu = counted(pod)
            if self._first.setdefault(uid, cpu) != cpu:
                self.resized.add(uid)
            statuses = pod["status"].get("containerStatuses", ())
            self.restarts = max(self.restarts, *(status["restartCount"] for status in statuses), 0)
            for status in statuses:
                if status["name"] == "graders" and "containerID" in status:
                    self._containers[status["containerID"].partition("//")[2]] = (pod["spec"]["nodeName"], uid)
        self.sums.append(sum(map(counted, self._pods.values())))

    def look(self) -> None:
        """Reads the quotas of all graders, twice: what has changed between tells nothing of any one moment."""
        for container, (node, uid) in list(self._containers.items()):
            is_new = container not in self._groups and uid in self._pods
            if is_new and (group := self._job.cluster.node(node).group_of(container)):
                self._groups[container] = group
        first = self._quotas()
        if first and first == self._quotas():
            self.quotas.append(sum(first.values()))
            for container, quota in first.items():
                self.allowed[self._containers[container][1]].add(quota)

    def _quotas(self) -> dict[str, int]:
        quotas = {container: cgroups.cpu_quota(group) for container, group in self._groups.items()}
        return {container: quota for container, quota in quotas.items() if quota is not None}


def counted(pod: dict[str, Any]) -> int:
    """Returns the most of what a pod's graders ask for, have been allocated and have in force, in millicores."""
    containers = [*pod["spec"]["containers"], *pod["status"].get("containerStatuses", ())]
    counts = [0]
    for container in containers:
        if container["name"] == "graders":
            resources = container.get("resources") or {}
            amounts = [*(resources.values()), container.get("allocatedResources") or {}]
            counts += [millicores(each["cpu"]) for each in amounts if isinstance(each, dict) and "cpu" in each]
    return max(counts)


@contextmanager
def watching(job: Job) -> Iterator[Watched]:
    """Follows the job's reward pods until the end of the block."""
    watched, over = Watched(job), Event()
    with ThreadPoolExecutor(1) as pool, following(job.cluster, reward_pods(job), watched.see):
        looks = pool.submit(_poll_quotas, watched, over)
        try:
            yield watched
        finally:
            over.set()
        looks.result()


def reward_pods(job: Job) -> str:
    """Returns the API path of the job's reward pods."""
    selector = quote(f"longboat.dev/job={job.name},longboat.dev/role=reward")
    return f"/api/v1/namespaces/{job.namespace}/pods?labelSelector={selector}"


def _poll_quotas(watched: Watched, over: Event) -> None:
    while not over.wait(LOOK_SECONDS):
        watched.look()
