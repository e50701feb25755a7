"""From the operator's decision to move CPUs until the receiving pods have them, as a watch tells; and their sum meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from bench.rewards import swaps
from bench.rewards.cpus import BEYOND_SECONDS, START_SECONDS
from bench.rewards.swaps import Trace
from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import wait_until
from e2e.jobs import Job, JobFailedError
from e2e.reward_cpus import reward_pods, watching
from e2e.site import Site
from e2e.watches import following
from longboat_crds.quantities import millicores
from longboat_operator.model import LABEL_POOL
from longboat_operator.reading.cpus import CONVERSION
from longboat_operator.reading.times import moment

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A reward pod as a watch told it `at` a Unix time: `spec` are the millicores asked for, `cpu` those in force, 0 while unknown.

    `settled` says that its node has carried out all that is asked of it.
    """

    at: float
    pod: str
    pool: str
    spec: int
    cpu: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """A move to a pool, `decided` at a Unix time by the operator's clock; after it each pod of the pool has `share` millicores."""

    decided: float
    source: str
    target: str
    share: int


@dataclass(frozen=True, slots=True)
class TimedMove:
    """`seconds` until the last receiver had its share, None if that was not seen before the next decision.

    `lowered`, `freed` and `raised` are the seconds until the last donor was asked for less, had less in force, and until the last receiver
    was given more in its spec. `receivers` and `donors` are how many pods of the target got more, and of the source less.
    """

    target: str
    decided: float
    seconds: float | None
    lowered: float | None
    freed: float | None
    raised: float | None
    receivers: int
    donors: int


@dataclass(slots=True)
class Seen:
    """What the watches of a job and its reward pods told: pods in order, and each decision with its newest outcome."""

    pods: list[PodSeen] = field(default_factory=list)
    decisions: dict[tuple[float, str], Decision] = field(default_factory=dict)
    outcomes: dict[tuple[float, str], str] = field(default_factory=dict)

    def pod(self, event: Object) -> None:
        """Records a pod that an event adds or modifies, as seen now."""
        if event["type"] in {"ADDED", "MODIFIED"}:
            self.pods.append(pod_seen(time.time(), event["object"]))

    def job(self, event: Object) -> None:
        """Records the moves between pools in the job's status: each decision once, with its newest outcome."""
        body = event["object"]
        status = body.get("status", {}).get("rewardCpu", {})
        pools = {pool["name"]: millicores(pool["cpu"]) for pool in status.get("pools") or ()}
        replicas = {pool["name"]: pool.get("replicas", 1) for pool in body["spec"]["rewardPools"]}
        for move in status.get("moves") or ():
            key = moment(move["time"]).timestamp(), move["target"]
            self.outcomes[key] = move["outcome"]
            if key not in self.decisions and "source" in move:
                share = pools[move["target"]] // replicas[move["target"]]
                self.decisions[key] = Decision(key[0], move["source"], move["target"], share)


def pod_seen(at: float, pod: Object) -> PodSeen:
    """Reads the CPUs asked for a reward pod's graders and those in force, and whether its node has carried out all that is asked."""
    metadata, status = pod["metadata"], pod.get("status", {})
    resizing = any(each["type"].startswith("PodResize") for each in status.get("conditions") or ())
    return PodSeen(
        at,
        metadata["name"],
        metadata["labels"][LABEL_POOL],
        _cpu(pod["spec"]["containers"]),
        _cpu(status.get("containerStatuses") or ()),
        not resizing and status.get("observedGeneration", 0) >= metadata.get("generation", 0),
    )


def _cpu(containers: Iterable[Object]) -> int:
    """Reads the graders' limit in millicores; 0 without one."""
    limits = [each.get("resources", {}).get("limits", {}) for each in containers if each["name"] == "graders"]
    return next((millicores(limit["cpu"]) for limit in limits if "cpu" in limit), 0)


def timed(decisions: Iterable[Decision], pods: Sequence[PodSeen]) -> list[TimedMove]:
    """Times each move, oldest first: how long it took and how many pods it changed. Pure."""
    ordered = sorted(decisions, key=lambda decision: decision.decided)
    ends = [*(decision.decided for decision in ordered[1:]), float("inf")]
    return [_timed(decision, end, pods) for decision, end in zip(ordered, ends, strict=True)]


def _timed(decision: Decision, end: float, pods: Sequence[PodSeen]) -> TimedMove:
    before = {pod.pod: pod for pod in pods if pod.at < decision.decided}
    during = [pod for pod in pods if decision.decided <= pod.at < end]
    receivers = {pod.pod for pod in pods if pod.pool == decision.target}
    donors = {pod.pod for pod in during if pod.pod in before and pod.spec < before[pod.pod].spec} - receivers
    more = {pod.pod for pod in during if pod.pod in receivers and pod.pod in before and pod.cpu > before[pod.pod].cpu}
    share = decision.share - CONVERSION

    def last(names: Collection[str], reached: Callable[[PodSeen], bool]) -> float | None:
        """Returns the seconds from the decision until all of these pods were seen to have `reached` it.

        None without pods, or if one wasn't seen to before the next decision.
        """
        first: dict[str, float] = {}
        for pod in during:
            if pod.pod in names and reached(pod):
                first.setdefault(pod.pod, pod.at)
        return round(max(first.values()) - decision.decided, 4) if names and len(first) == len(names) else None

    return TimedMove(
        target=decision.target,
        decided=decision.decided,
        seconds=last(receivers, lambda pod: pod.settled and pod.cpu >= share),
        lowered=last(donors, lambda pod: pod.spec < before[pod.pod].spec),
        freed=last(donors, lambda pod: pod.settled and pod.spec < before[pod.pod].spec),
        raised=last(receivers, lambda pod: pod.spec >= share),
        receivers=len(more),
        donors=len(donors),
    )


def measured(site: Site, trace: Trace, total: int, replicas: int) -> dict[str, Any]:
    """Runs the trace in two pools of `replicas` pods each; returns all that is recorded of it. `void` says why it doesn't count, if so."""
    swaps.write(trace, site.data)
    job = Job(site.cluster, site.namespace, f"moves-{trace.seed}")
    jobs = f"/apis/longboat.dev/v1alpha1/namespaces/{job.namespace}/rljobs?fieldSelector="
    jobs += quote(f"metadata.name={job.name}")
    watched, load, void = Seen(), os.getloadavg()[0], []
    seconds = START_SECONDS + trace.rounds * (2000 * trace.work / total + BEYOND_SECONDS)
    try:
        with (
            watching(job) as sums,
            following(job.cluster, reward_pods(job), watched.pod),
            following(job.cluster, jobs, watched.job),
        ):
            job.apply(dict(swaps.job_spec(trace, swaps.moving(total, replicas), total)))
            wait_until(job.has_succeeded, f"{job.name} has not succeeded", seconds, interval=0.5)
            step = job.step()
    except (ClusterError, JobFailedError) as error:
        step = job.step()
        void.append(str(error).split("\n", 1)[0])
    finally:
        job.delete()
    moves = timed(watched.decisions.values(), watched.pods)
    return {
        "seed": trace.seed,
        "load": load,
        "steps": step,
        "pods": 2 * replicas,
        "most": {"counted": max(sums.sums, default=0), "quotas": max(sums.quotas, default=0)},
        "looks": {"counted": len(sums.sums), "quotas": len(sums.quotas)},
        "container_restarts": sums.restarts,
        "moves": [{**asdict(move), "outcome": watched.outcomes[move.decided, move.target]} for move in moves],
        "wall": round(moves[-1].decided - moves[0].decided, 1) if moves else 0.0,
        "void": void,
    }
