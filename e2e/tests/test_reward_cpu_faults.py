"""Faults in the middle of a move of CPUs between reward pods, on a real node: it converges, the sum holds, nothing is lost, the loss is shown."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from e2e import reward_cpus, small_job
from e2e import site as sites
from e2e.chaos.faults import kill_operator
from e2e.cluster import cluster as clusters
from e2e.cluster.images import pause
from e2e.cluster.node import Node
from e2e.cluster.timings import PATIENT
from e2e.harm import api_server_frozen
from e2e.host_runtime import HOSTNAME
from e2e.installation import NAMESPACE as SYSTEM
from e2e.installation import RELEASE, await_operator, scale_operator
from e2e.jobs import Job, Object
from e2e.prompts import nothing_is_lost
from e2e.reward_cpus import POOLS, TOTAL, Watched, apply_runtime_apart, moved, requested, reward_cpu, watching
from e2e.site import Site
from e2e.volumes import apply
from longboat_crds.quantities import millicores
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(1800)]

# The waiting pool has at least this many of the total in the end: the driver asks for no more if a pod's loss has left grades of the
# other pool to do. The next move is still worthwhile.
LEAST_MILLICORES = 450
# Left free on a node that another owner's pod has filled.
SPARE_MILLICORES = 50


class Phase(StrEnum):
    """Names the phases of a move of CPUs."""

    LOWERED = "lowered"
    """The donor asks for less, and its node has not said that it has less."""
    CONFIRMED = "confirmed"
    """Its node has said so, and the receiver doesn't ask for more yet."""
    RAISED = "raised"
    """The receiver asks for more, and its node has not said that it has more."""


@dataclass(frozen=True)
class Cpus:
    """Millicores of a reward pod's graders."""

    pool: str
    requested: int
    in_force: int
    ready: bool


@dataclass
class Moving:
    """A job that trains while tests move its CPUs. Its reward pods are alone on `node`; `heavy` is the pool that waits for CPUs."""

    site: Site
    job: Job
    node: Node
    watched: Watched
    heavy: str

    def cpus(self) -> dict[str, Cpus]:
        """Reads the CPUs of all reward pods, by name."""
        return {
            name: _cpus(pod)
            for name, pod in self.job.pods().items()
            if pod["metadata"]["labels"]["longboat.dev/role"] == "reward"
        }

    def turn(self) -> tuple[str, str]:
        """Makes the other pool wait for CPUs from now on; returns the pod of the pool that has them and that of the one to get them."""
        pods = {cpus.pool: name for name, cpus in self.cpus().items()}
        donor, self.heavy = self.heavy, next(pool for pool in POOLS if pool != self.heavy)
        reward_cpus.load(self.site.data, self.heavy)
        return pods[donor], pods[self.heavy]

    @contextmanager
    def hold(self, phase: Phase) -> Iterator[tuple[str, str]]:
        """Keeps a move in this phase until the end of the block; yields donor and receiver.

        Nothing comes out of LOWERED and RAISED while the node's kubelet is frozen, nor out of CONFIRMED while there is no operator.
        There is none before the driver has asked either: until then a frozen node could be given up as lost.
        """
        cluster = self.job.cluster
        scale_operator(cluster, 0)
        try:
            donor, receiver = self.turn()
            self.job.wait(f"the driver asks for CPUs for {self.heavy}", self._asks_for_more)
            with self._act_while_frozen():
                self.job.wait("the donor asks for less", lambda: self._differs(donor, -1))
                if phase is Phase.LOWERED:
                    yield donor, receiver
                    return
                scale_operator(cluster, 0)
            self.job.wait("it has less", lambda: self._differs(donor, 0))
            assert self._differs(receiver, 0), "its turn has not come"
            if phase is Phase.CONFIRMED:
                yield donor, receiver
                return
            with self._act_while_frozen():
                self.job.wait("the receiver asks for more", lambda: self._differs(receiver, 1))
                yield donor, receiver
        finally:
            scale_operator(cluster, 1)

    @contextmanager
    def _act_while_frozen(self) -> Iterator[None]:
        """Starts an operator while the kubelet of the reward pods' node is frozen, which it is until the end of the block."""
        self.node.signal_kubelet(signal.SIGSTOP)
        try:
            scale_operator(self.job.cluster, 1)
            yield
        finally:
            self.node.signal_kubelet(signal.SIGCONT)

    def _asks_for_more(self) -> bool:
        """Whether the driver asks for more for the pool that waits than it was granted."""
        status = self.job.status()
        demand = status.get("demand", {}).get("reward", {})
        demanded, granted = (
            {pool["name"]: millicores(pool["cpu"]) for pool in source.get("pools", ())}
            for source in (demand, status.get("rewardCpu", {}))
        )
        return demanded.get(self.heavy, 0) > granted.get(self.heavy, 0)

    def _differs(self, pod: str, sign: int) -> bool:
        """Whether it asks for less than it has in force (-1), as much (0) or more (1)."""
        cpus = self.cpus()[pod]
        return ((cpus.requested > cpus.in_force) - (cpus.requested < cpus.in_force)) == sign

    def settle(self) -> None:
        """Waits until all is as it was granted, with enough for the pool that waits; nothing is lost, and the sum has held."""
        self.job.wait(f"CPUs for {self.heavy}", self._is_settled)
        self.job.wait_for_step(self.job.step() + 2)
        nothing_is_lost(self.job)
        assert max(self.watched.sums) <= TOTAL
        assert max(self.watched.quotas) <= TOTAL

    def _is_settled(self) -> bool:
        status = reward_cpu(self.job)
        granted = {pool["name"]: millicores(pool["cpu"]) for pool in status.get("pools", ())}
        wanted = [Cpus(name, granted.get(name, 0), granted.get(name, 0), True) for name in POOLS]
        return (
            granted.get(self.heavy, 0) >= LEAST_MILLICORES
            and sum(granted.values()) == TOTAL
            and sorted(self.cpus().values(), key=lambda cpus: cpus.pool) == wanted
            and "resizes" not in status
            and all(move["outcome"] != "UnderWay" for move in status.get("moves", ()))
        )

    def refused(self, outcome: str, pod: str) -> dict[str, Any]:
        """Waits until the status says that this pod could not be given its CPUs, and returns that refusal."""

        def refusal() -> dict[str, Any]:
            refusals = reward_cpu(self.job).get("refusals", ())
            return next((item for item in refusals if (item["pod"], item["outcome"]) == (pod, outcome)), {})

        refused: dict[str, Any] = self.job.wait(f"{pod} is {outcome}", refusal)
        return refused

    def not_given(self, outcome: str, receiver: str) -> str:
        """Waits until status and events say that the receiver could not be given its CPUs, and returns the message."""
        refused = self.refused(outcome, receiver)
        self.job.wait("the move is over", lambda: reward_cpu(self.job)["moves"][-1]["outcome"] == "Incomplete")
        (other,) = set(POOLS) - {self.heavy}
        for reason, words in {
            "CPUsRefused": f"Pod {receiver} on node {self.node.name} can't have {refused['cpu']} CPUs ({outcome}",
            "CPUsNotMoved": f"CPUs could be moved from reward pool {other} to {self.heavy}",
        }.items():
            self.job.wait(f"event {reason}", lambda r=reason, w=words: self._has_event(r, w))  # type: ignore[misc]
        assert refused["node"] == self.node.name
        assert [source["name"] for source in refused["sources"]] == [other]
        return str(refused["message"])

    def _has_event(self, reason: str, words: str) -> bool:
        """Returns whether the job has an event with these words."""
        selector = f"involvedObject.name={self.job.name},reason={reason}"
        path = f"/api/v1/namespaces/{self.job.namespace}/events?fieldSelector={selector}"
        return any(words in event["message"] for event in (self.job.cluster.api.get(path) or {})["items"])


def _is_ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def _cpus(pod: Object) -> Cpus:
    (requested_resources,) = (c["resources"] for c in pod["spec"]["containers"] if c["name"] == "graders")
    statuses = [s for s in pod["status"].get("containerStatuses", ()) if s["name"] == "graders"]
    limits = [s["resources"]["limits"]["cpu"] for s in statuses if "limits" in s.get("resources", {})]
    ready = bool(statuses) and all(s["ready"] for s in statuses) and "deletionTimestamp" not in pod["metadata"]
    assert requested_resources["limits"]["cpu"] == requested_resources["requests"]["cpu"]
    pool = pod["metadata"]["labels"]["longboat.dev/reward-pool"]
    return Cpus(pool, millicores(requested_resources["limits"]["cpu"]), millicores(limits[0]) if limits else 0, ready)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Yields Longboat on a cluster of these tests' own, which takes a node for lost only after 20 minutes of silence."""
    with clusters.own("e2e-cpu-faults", nodes=2, timings=PATIENT) as cluster:
        prepared = sites.prepare(cluster, "e2e")
        small_job.write_data(prepared.data)
        yield prepared


@pytest.fixture(scope="module")
def node(site: Site) -> Node:
    """Moves the operator to one node, and returns the other: its kubelet can be frozen while the operator goes on."""
    operators, apart = site.cluster.nodes
    patch = {"spec": {"template": {"spec": {"nodeSelector": {HOSTNAME: operators.name}}}}}
    site.cluster.kubectl("-n", SYSTEM, "patch", "deployment", RELEASE, "-p", json.dumps(patch))
    await_operator(site.cluster)
    return apart


@pytest.fixture(scope="module")
def moving(site: Site, node: Node) -> Iterator[Moving]:
    """Yields one job for all tests of this module, so that it starts only once; each leaves it settled."""
    runtime = apply_runtime_apart(site, "rewards-apart", node)
    reward_cpus.write_data(site.data, heavy=POOLS[0])
    job = Job(site.cluster, site.namespace, "cpu-faults")
    with watching(job) as watched:
        try:
            job.apply(reward_cpus.spec(runtime))
            job.wait_for("Running")
            job.wait(f"CPUs for {POOLS[0]}", lambda: moved(job, POOLS[0]))
            yield Moving(site, job, node, watched, heavy=POOLS[0])
        finally:
            job.delete()


@pytest.mark.parametrize("phase", [Phase.LOWERED, Phase.RAISED])
def test_the_operator_is_killed(moving: Moving, phase: Phase) -> None:
    with moving.hold(phase):
        kill_operator(moving.job.cluster)
    moving.settle()


@pytest.mark.parametrize("victim", ["donor", "receiver"])
@pytest.mark.parametrize("phase", Phase)
def test_a_reward_pod_is_killed(moving: Moving, phase: Phase, victim: str) -> None:
    """Its successor gets the share, of which nothing is given away as long as the pod is there."""
    with moving.hold(phase) as (donor, receiver):
        gone = donor if victim == "donor" else receiver
        options = ("--grace-period=1", "--wait=false")
        moving.job.cluster.kubectl("-n", moving.job.namespace, "delete", "pod", gone, *options)
    moving.settle()
    assert gone not in moving.cpus()


def test_the_api_server_is_gone_in_the_middle_of_a_move(moving: Moving) -> None:
    with moving.hold(Phase.LOWERED), api_server_frozen(moving.job):
        moving.node.signal_kubelet(signal.SIGCONT)
    moving.settle()


@pytest.fixture
def no_more_cpus(moving: Moving) -> Iterator[Callable[[], None]]:
    """Puts into force a quota of the namespace under which no pod's CPUs may grow; yields a function that removes it."""
    job = moving.job
    metadata = {"name": "no-more-cpus", "namespace": job.namespace}
    spec = {"hard": {"requests.cpu": "1m"}}
    apply(job.cluster, [{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}])
    path = f"/api/v1/namespaces/{job.namespace}/resourcequotas/no-more-cpus"
    job.wait("the quota", lambda: (job.cluster.api.get(path) or {}).get("status", {}).get("used"))

    def remove() -> None:
        job.cluster.kubectl("-n", job.namespace, "delete", "resourcequota", "no-more-cpus", "--ignore-not-found")

    yield remove
    remove()


def test_the_api_server_refuses(moving: Moving, no_more_cpus: Callable[[], None]) -> None:
    _, receiver = moving.turn()
    assert "exceeded quota: no-more-cpus" in moving.not_given("Refused", receiver)
    no_more_cpus()
    moving.settle()


@pytest.fixture
def filler(moving: Moving) -> Iterator[Callable[[bool], None]]:
    """Yields a function that fills the node with another owner's pod, all but SPARE_MILLICORES, or deletes that pod."""
    cluster = moving.job.cluster

    def fill(full: bool) -> None:
        if not full:
            cluster.kubectl("-n", "default", "delete", "pod", "filler", "--ignore-not-found")
            return
        node_object = cluster.api.get(f"/api/v1/nodes/{moving.node.name}") or {}
        cpu = f"{millicores(node_object['status']['allocatable']['cpu']) - requested(moving.node, cluster) - SPARE_MILLICORES}m"
        container = {
            "name": "pause", "image": pause.NAME, "imagePullPolicy": "Never", "resources": {"requests": {"cpu": cpu}},
        }  # fmt: skip
        spec = {
            "nodeSelector": {HOSTNAME: moving.node.name},
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": "filler", "namespace": "default"}
        apply(cluster, [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}])
        eventually(lambda: _is_ready(cluster.api.get("/api/v1/namespaces/default/pods/filler") or {}))

    yield fill
    fill(False)


def test_the_node_has_no_room_for_now(moving: Moving, filler: Callable[[bool], None]) -> None:
    """Somebody else has taken what the donor has given: the receiver can't have it, and neither can the donor have it back."""
    with moving.hold(Phase.CONFIRMED) as (donor, receiver):
        had = {name: cpus.requested for name, cpus in moving.cpus().items()}
        filler(True)
    assert "enough resource: cpu" in moving.not_given("Deferred", receiver)
    moving.refused("Deferred", donor)
    moving.job.wait("both are set back", lambda: {name: cpus.requested for name, cpus in moving.cpus().items()} == had)
    filler(False)
    moving.settle()
