"""The simulated cluster with nodes that change pods' CPUs in place, or don't: what becomes of the sum is checked at every write."""

from __future__ import annotations

import json
from typing import Any

from longboat_crds.base import Role
from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.status import RewardCpuStatus
from longboat_operator.model import Key, Object, Observed, Plan, ResizePod
from longboat_operator.reading.status import reward_grant
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of

POOLS = [
    {"name": "code", "gradersPerPod": 2, "cpu": {"min": "500m"}},
    {"name": "math", "replicas": 2},
    {"name": "style", "replicas": 2, "cpu": {"max": "2"}},
]


def reward_spec(total: str = "6", pools: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """A job whose pools share CPUs."""
    made = POOLS if pools is None else pools
    rewards = [{"name": pool["name"], "kind": "ReasoningGym", "pool": pool["name"]} for pool in made]
    limits = {f"max{role}Restarts": 1000 for role in ("Driver", "Rollout", "Reward", "Trainer")}
    spec: dict[str, Any] = {"failurePolicy": {"backoffSeconds": 1, **limits}, **changes}
    return spec_of(rewards=rewards, rewardPools=made, rewardCpu={"total": total}, **spec)


class RewardCluster(SimulatedCluster):
    """Nodes report what they do only when told to (`node`); refusals of the API server are set by pod."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.refused: dict[str, str] = {}
        self.resized: list[ResizePod] = []
        self._digests: dict[str, str] = {}
        self._pod_version = 0
        super().__init__(spec or reward_spec())

    # The API server.

    def observed(self, key: Key | None = None) -> Observed:
        self._stamp_pods()
        return super().observed(key) if key else super().observed()

    def _stamp_pods(self) -> None:
        """A pod that has changed since has another resourceVersion."""
        for pod in self.children["Pod"].values():
            metadata = pod["metadata"]
            if "labels" not in metadata or metadata["labels"].get("longboat.dev/role") != Role.REWARD:
                continue
            metadata.setdefault("generation", 1)
            text = json.dumps({**pod, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}})
            if self._digests.get(metadata["uid"]) != text:
                self._pod_version += 1
                self._digests[metadata["uid"]] = text
                metadata["resourceVersion"] = str(self._pod_version)

    def resize(self, action: ResizePod) -> None:
        self._stamp_pods()
        pod = self.children["Pod"].get(action.name)
        if pod is None or pod["metadata"]["resourceVersion"] != action.version:
            return
        if answer := self.refused.get(action.name):
            self.rejections[action.name] = f"Pod {action.name}: {answer}"
            return
        self.resized.append(action)
        resources = graders(pod["spec"]["containers"])["resources"]
        resources["limits"]["cpu"], resources["requests"]["cpu"] = action.cpu_limit, action.cpu_request
        pod["metadata"]["generation"] += 1
        self.check()

    def _write(self, body: dict[str, Any], *, uid: str | None, dry: bool) -> None:
        super()._write(body, uid=uid, dry=dry)
        self.check()

    def _publish(self, status: Object) -> None:
        super()._publish(status)
        self.check()

    # Nodes.

    def start(self, name: str) -> None:
        super().start(name)
        pod = self.children["Pod"][name]
        if name in self.reward_pods() and pod["status"]["phase"] == "Running" and "cpu" not in pod:
            self.node(name)

    def node(self, name: str, answer: str = "done") -> None:
        """The pod's node looks at it: `done`, `allocated` (not yet in force), `in force` (and says nothing), or a word of trouble."""
        pod = self.children["Pod"][name]
        status, asked = pod["status"], self.asked(name)
        if status["phase"] != "Running" or pod.get("lost"):
            return
        held = pod.setdefault("cpu", {"allocated": 0, "actual": 0})
        statuses = status.setdefault(
            "containerStatuses",
            [{"name": c["name"], "restartCount": 0, "ready": True} for c in pod["spec"]["containers"]],
        )
        told = graders(statuses)
        if "resources" not in told:
            answer = "done"
        if answer in {"Deferred", "Infeasible"} and asked <= held["allocated"]:
            answer = "done"
        if answer not in {"Deferred", "Infeasible"}:
            held["allocated"] = asked
        if answer in {"done", "in force"}:
            held["actual"] = asked
        if answer == "in force":
            self.check()
            return
        quantity = cpu_quantity(held["actual"])
        told["resources"] = {"limits": {"cpu": quantity}, "requests": {"cpu": quantity}}
        told["allocatedResources"] = {"cpu": cpu_quantity(held["allocated"])}
        status["observedGeneration"] = pod["metadata"].setdefault("generation", 1)
        kept = [c for c in status["conditions"] if not c["type"].startswith("PodResize")]
        more = {
            "Deferred": {"type": "PodResizePending", "reason": "Deferred", "message": "no room"},
            "Infeasible": {"type": "PodResizePending", "reason": "Infeasible", "message": "never"},
            "Error": {"type": "PodResizeInProgress", "reason": "Error", "message": "cgroup"},
            "allocated": {"type": "PodResizeInProgress"},
        }
        began = self.node_time(name)
        for held in status["conditions"]:
            if answer in more and (held["type"], held.get("reason")) == (
                more[answer]["type"],
                more[answer].get("reason"),
            ):
                began = held["lastTransitionTime"]
        told_now = {"status": "True", "lastTransitionTime": began}
        status["conditions"] = [*kept, *([told_now | more[answer]] if answer in more else [])]
        self.check()

    def nodes(self) -> None:
        """All nodes carry everything out."""
        for name in self.reward_pods():
            self.node(name)

    # The driver.

    def ask_cpus(self, reason: str = "grades wait", **pools: str) -> None:
        """The driver that counts publishes its next demand for CPUs."""
        demand = self.status.demand.to_json() if self.status.demand else {}
        last = demand.get("reward", {})
        number = last.get("number", 0) + 1 if last.get("incarnation") == self.number else 1
        asks = [{"name": name, "cpu": cpu, "reason": f"{reason} in {name}"} for name, cpu in pools.items()]
        self.drive(demand=demand | {"reward": {"incarnation": self.number, "number": number, "pools": asks}})

    # What holds.

    def reward_pods(self) -> list[str]:
        """Names of the reward pods that are there."""
        return sorted(pod["metadata"]["name"] for pod in self.pods(Role.REWARD)) if self.job else []

    def asked(self, name: str) -> int:
        """Millicores that a pod's spec asks for."""
        resources = graders(self.children["Pod"][name]["spec"]["containers"])["resources"]
        assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
        return millicores(resources["limits"]["cpu"])

    def asks(self) -> dict[str, int]:
        """Millicores of all reward pods by what follows the job's name."""
        return {name.removeprefix("sums-reward-"): self.asked(name) for name in self.reward_pods()}

    @property
    def cpus(self) -> RewardCpuStatus:
        """The status of the CPUs."""
        found = self.status.reward_cpu
        assert found
        return found

    def total(self) -> int:
        """Most that all pods may have in force or be given: recorded, asked for, allocated, in force, said to be in force."""
        cpus = self.status.reward_cpu
        recorded = {r.pod: millicores(r.cpu) for r in (cpus.resizes if cpus else None) or ()}
        found = dict(recorded)
        for name in self.reward_pods():
            pod = self.children["Pod"][name]
            told = [
                millicores(quantities["cpu"])
                for status in pod["status"].get("containerStatuses", ())
                for quantities in (status.get("resources") or {}).values()
            ]
            found[name] = max(self.asked(name), *pod.get("cpu", {}).values(), *told, recorded.get(name, 0), 0)
        return sum(found.values())

    def check(self) -> None:
        """The sum is never exceeded."""
        if self.job is None or "rewardCpu" not in self.job["spec"]:
            return
        total = millicores(self.job["spec"]["rewardCpu"]["total"])
        assert self.total() <= total, f"{self.total()}m of {total}m: {self.asks()}, {self.status.reward_cpu}"

    def shares(self) -> dict[str, int]:
        """Millicores that each pool was granted."""
        granted = reward_grant(self.status)
        return {pool.name: millicores(pool.cpu) for pool in (granted.pools if granted else None) or ()}

    def up(self) -> None:
        super().up()
        self.nodes()
        self.settle()

    def swing(self, rounds: int = 30) -> None:
        """The operator and all nodes work until nothing is left to do now."""
        for _ in range(rounds):
            made = self.reconcile()
            self.nodes()
            if made.empty and self.planned()[1].empty:
                return
        raise AssertionError("no end")

    def late(self, made: Plan) -> list[ResizePod]:
        """A leader publishes what it has decided, and stops before it asks for it: what it will ask for when it goes on."""
        self.carry_out(Plan(tuple(a for a in made.actions if not isinstance(a, ResizePod))))
        return [action for action in made.actions if isinstance(action, ResizePod)]


def graders(containers: list[dict[str, Any]]) -> dict[str, Any]:
    """The graders among containers or their statuses."""
    return next(each for each in containers if each["name"] == "graders")
