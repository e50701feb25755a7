"""A small API server with kubelets, a driver and a user, in memory: enough of each to drive plans through a life."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from longboat_crds.base import Role
from longboat_crds.explanations import explain
from longboat_crds.job import RLJobSpec
from longboat_crds.phases import rule_of
from longboat_crds.reasons import Reason
from longboat_crds.status import DRIVER_FIELDS, OPERATOR_FIELDS, RLJobStatus
from longboat_operator.model import (
    LABEL_ENVIRONMENT_POOL,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_POOL,
    LABEL_ROLE,
    ApplyObject,
    Contention,
    CreateObject,
    DeleteObject,
    EmitEvent,
    JobKey,
    Key,
    Object,
    Observed,
    PatchMetadata,
    Plan,
    PublishGrant,
    PublishStatus,
    ResizePod,
    Target,
    belongs_to,
    belongs_to_earlier,
    target_of,
)
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.reading.status import environment_grant, read_status, rollout_grant
from longboat_operator.reading.times import stamp
from longboat_operator.rejections import OF_AN_EARLIER_JOB, OF_SOMETHING_ELSE, WITHOUT_ITS_LABEL
from longboat_operator.watch.last_states import UnrecordedLosses
from longboat_operator.watch.pod_times import with_server_times
from longboat_operator.watch.trim import trim
from longboat_operator.watch.wakes import wakes_its_grantor, wakes_its_writer

KEY = JobKey("research", "sums")
KINDS = (
    "Pod", "Service", "ServiceAccount", "Role", "RoleBinding", "Secret", "NetworkPolicy", "PersistentVolumeClaim",
    "ControllerRevision", "PodDisruptionBudget",
)  # fmt: skip


def spec_of(**changes: Any) -> dict[str, Any]:
    """A small job's spec as the API server keeps it; `changes` are laid over its sections."""
    spec: dict[str, Any] = {
        "runtimeRef": {"kind": "ClusterRLRuntime", "name": "cpu"},
        "model": {"path": "/models/tiny"},
        "dataset": {"reasoningGym": {"task": "chain_sum"}},
        "rounds": {"steps": 100, "promptsPerRound": 4},
        "rollout": {"replicas": 2, "sampling": {"maxTokens": 16}},
        "trainer": {"replicas": 2},
        "rewards": [{"name": "exact", "kind": "ReasoningGym"}],
        "failurePolicy": {"backoffSeconds": 10, "startDeadlineSeconds": 600},
    }
    for section, values in changes.items():
        spec[section] = spec.get(section, {}) | values if isinstance(values, dict) else values
    return RLJobSpec.model_validate(spec).to_json()


def with_environments(*pools: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The spec of a job with these environment pools (by default two, of three pods in all) and an environment in each."""
    pools = pools or ({"name": "games", "replicas": 2}, {"name": "tools"})
    environments = [
        {"name": f"in-{pool['name']}", "pool": pool["name"], "function": "games:play", "domains": [pool["name"]]}
        for pool in pools
    ]
    episodes: dict[str, Any] = {
        "environments": environments,
        "environmentPools": list(pools),
        "dataset": {"columns": {"domain": "topic"}},
        "model": {"maxLength": 512},
        "rewards": [{"name": "exact", "kind": "ReasoningGym"}, {"name": "episode", "kind": "Episode"}],
    }
    for section in episodes.keys() & changes.keys():
        if isinstance(episodes[section], dict):
            changes[section] = episodes[section] | changes[section]
    return spec_of(**episodes | changes)


def runtime_of(image: str = "longboat-runtime:1", **spec: Any) -> dict[str, Any]:
    """A runtime template."""
    return {"kind": "ClusterRLRuntime", "metadata": {"name": "cpu"}, "spec": {"image": image, **spec}}


class Rejected(Exception):
    """The API server says no."""


@dataclass
class SimulatedCluster:
    """One namespace with one job."""

    spec: dict[str, Any] = field(default_factory=spec_of)
    runtime: dict[str, Any] | None = field(default_factory=runtime_of)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    # By node: how far its clock is ahead.
    nodes_ahead: dict[str, timedelta] = field(default_factory=dict)
    pod_quota: int | None = None
    # The nodes that take no new pods, if the operator may watch nodes.
    cordoned: set[str] | None = None
    invalid_image: str | None = None
    may_delete: bool = True
    # What other jobs wait for.
    contention: Contention = field(default_factory=Contention)

    def __post_init__(self) -> None:
        self._uids = 0
        self._version = 0
        self._snapshots = 0
        self._cached: dict[str, dict[str, Any]] = {}
        self.last_states: dict[str, Object] = {}
        self.look_ups: list[Target] = []
        self.warnings: dict[str, Object] = {}
        self.secrets_made: set[str] = set()
        self.children: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.events: list[EmitEvent] = []
        self.created: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []
        self.rejections: dict[str, str] = {}
        self.writes = 0
        self.tokens = 0
        self.job: dict[str, Any] | None = {
            "kind": "RLJob",
            "metadata": {"namespace": KEY.namespace, "name": KEY.name, "uid": self.uid(), "generation": 1},
            "spec": self.spec,
            "status": {},
        }
        self._touch()

    def uid(self) -> str:
        """A new uid."""
        self._uids += 1
        return f"{self._uids:08d}-uid"

    # What observe reads.

    def observed(self, key: Key = KEY) -> Observed:
        """A snapshot of the job or of its capacity, as the shell takes it."""
        known = {
            kind: {name: trim(child) for name, child in found.items() if kind != "Secret" or name in self.secrets_made}
            for kind, found in copy.deepcopy(self.children).items()
            if kind != "Pod"
        }
        known["Pod"] = self._cached = {
            name: trim(with_server_times(pod, self._cached.get(name), self.now))
            for name, pod in copy.deepcopy(self.children["Pod"]).items()
        }
        if self.job is not None:
            unrecorded = UnrecordedLosses(self.job)
            self.last_states = {name: pod for name, pod in self.last_states.items() if pod in unrecorded}
        nodes = None if self.cordoned is None else frozenset(self.cordoned)
        cache = _Cache(
            copy.deepcopy(self.job), known, copy.deepcopy(self.runtime), dict(self.last_states), nodes, self.contention
        )
        seen = observe(cache, key, may_delete=self.may_delete)
        self._snapshots += 1
        return dataclasses.replace(seen, rejections=dict(self.rejections), random=f"{self._snapshots:08x}")

    def planned(self, key: Key = KEY) -> tuple[Observed, Plan]:
        """A plan with its questions answered, as the controller makes it, and what it was made from."""
        observed = self.observed(key)
        while look_up := (made := plan(observed, self.now)).look_up:
            assert not set(look_up) & set(observed.looked_up), "asks twice"
            self.look_ups += look_up
            answers = {target: self._answer(*target) for target in look_up}
            observed = dataclasses.replace(observed, looked_up={**observed.looked_up, **answers})
        return observed, made

    def _answer(self, kind: str, name: str) -> Object | None:
        if kind == "Event":
            assert self.children["Pod"][name]["metadata"]["labels"].get(LABEL_JOB) == KEY.name, "looked up by its uid"
            return self.warnings.get(name)
        found = self.children[kind].get(name)
        if found and kind == "Pod":
            found = with_server_times(found, None, self.now)
        return found and trim(found)

    def forget(self) -> None:
        """The operator starts anew: what it has made and can't read is forgotten, and when it first saw what."""
        self._cached.clear()
        self.secrets_made.clear()
        self.rejections.clear()

    @property
    def status(self) -> RLJobStatus:
        """The job's status."""
        assert self.job is not None
        return read_status(self.job["status"])

    def pods(self, role: Role | None = None, *, ours: bool = True) -> list[dict[str, Any]]:
        """Pods, of one role if given."""
        assert self.job is not None
        uid = self.job["metadata"]["uid"]
        return [
            pod
            for pod in self.children["Pod"].values()
            if (belongs_to(pod, uid) or not ours)
            and (role is None or pod["metadata"]["labels"].get(LABEL_ROLE) == role)
        ]

    # The shell.

    def reconcile(self, cut: int | None = None) -> Plan:
        """A plan of the job, carried out after one of its capacity; `cut` stops after so many actions, as a crash does."""
        self.grant()
        _, made = self.planned()
        told = (
            cut is None and made.actions and all(isinstance(each, (PublishStatus, EmitEvent)) for each in made.actions)
        )
        before = copy.deepcopy(self.job)
        self.carry_out(made, cut)
        if told and not wakes_its_writer(before, self.job):
            self._assert_settled(made)
        return made

    def _assert_settled(self, made: Plan) -> None:
        """The controller makes no plan of what a plan has only published, so that would have to be an empty one."""
        _, next_one = self.planned()
        assert next_one.empty
        if next_one.look_again_seconds is not None:
            assert made.look_again_seconds is not None
            assert made.look_again_seconds <= next_one.look_again_seconds

    def grant(self) -> Plan:
        """A plan of the job's capacity, carried out."""
        _, made = self.planned(KEY.capacity)
        kept = self.rejections  # those of the job are another key's
        before = copy.deepcopy(self.job)
        self.carry_out(made)
        self.rejections = kept
        if made.actions and not wakes_its_grantor(before, self.job):
            # The controller makes no plan of what the capacity's plan has only published either.
            assert self.planned(KEY.capacity)[1].empty
        return made

    def carry_out(self, made: Plan, cut: int | None = None, version: str | None = None) -> None:
        """As apply does: dry runs before the first create that asks for one; a status write is guarded by the version."""
        version = version or self.version
        asked = {target_of(action)[1] for action in made.actions}
        self.rejections = {name: text for name, text in self.rejections.items() if name in asked}
        held = checked = False
        for action in made.actions[:cut]:
            self.writes += 1
            if isinstance(action, CreateObject) and action.dry_run and not checked:
                checked = True
                dry = [a.body for a in made.actions if isinstance(a, CreateObject) and a.dry_run]
                answers = [self._tried(body, dry=True) for body in dry]
                held = held or any(answers)
            match action:
                case CreateObject(body=body) | ApplyObject(body=body):
                    uid = action.uid if isinstance(action, ApplyObject) else None
                    if not held and self._tried(body, uid=uid) and body["kind"] != "Pod":
                        held = True
                case PatchMetadata():
                    self._patch(action)
                case DeleteObject():
                    self._delete(action)
                case ResizePod():
                    self.resize(action)
                case PublishStatus(status=status):
                    if self.job is None or self.version != version:
                        return
                    self._publish(status)
                    version = self.version
                case PublishGrant(grant=grant):
                    if self.job is None or self.version != version:
                        return
                    self._publish_grant(grant)
                    version = self.version
                case EmitEvent():
                    self.events.append(action)

    def settle(self, limit: int = 60) -> None:
        """Reconciles until nothing is left to do now."""
        for _ in range(limit):
            if self.job is None or (self.reconcile().empty and self.planned(KEY.capacity)[1].empty):
                return
        raise AssertionError(f"no end after {limit} plans")

    @property
    def version(self) -> str:
        """The job's resourceVersion."""
        return str(self.job["metadata"]["resourceVersion"]) if self.job else ""

    def _touch(self) -> None:
        assert self.job is not None
        self._version += 1
        self.job["metadata"]["resourceVersion"] = str(self._version)

    def _publish(self, status: Object) -> None:
        assert self.job is not None
        assert set(status) <= OPERATOR_FIELDS, "writes what is the driver's"
        checked = RLJobStatus.model_validate(status)
        for condition in checked.conditions or ():
            if condition in (self.status.conditions or ()):
                continue  # another version may have written it
            meaning = explain(condition.reason)
            assert meaning, f"{condition.reason} is not documented"
            assert condition.type in meaning.conditions, f"{condition.reason} is not documented for {condition.type}"
        if checked.phase and checked.reason and checked.reason != Reason.SPEC_INVALID:
            told = rule_of(checked.phase).explained_by
            stands_in = [c.type for c in checked.conditions or () if c.reason == checked.reason]
            assert set(told) & set(stands_in), f"{checked.reason} explains {checked.phase} and stands in {stands_in}"
        assert "grant" not in (status.get("allocation") or {}), "writes what is its capacity's"
        kept = {k: v for k, v in self.job["status"].items() if k in DRIVER_FIELDS}
        grant = self.job["status"].get("allocation", {}).get("grant")
        self.job["status"] = kept | copy.deepcopy(dict(status))
        if grant is not None:
            self.job["status"].setdefault("allocation", {})["grant"] = grant
        self.statuses.append(copy.deepcopy(self.job["status"]))
        self._touch()

    def _publish_grant(self, grant: Object | None) -> None:
        """As server-side apply by a manager that has this field alone: what it leaves out is removed."""
        assert self.job is not None
        allocation = {k: v for k, v in self.job["status"].get("allocation", {}).items() if k != "grant"}
        if grant is not None:
            allocation["grant"] = copy.deepcopy(dict(grant))
        self.job["status"] = self.job["status"] | {"allocation": allocation}
        if not allocation:
            del self.job["status"]["allocation"]
        read_status(self.job["status"])
        self._touch()

    def _patch(self, action: PatchMetadata) -> None:
        metadata = self.children[action.kind][action.name]["metadata"]
        assert metadata["uid"] == action.uid
        for key, value in action.metadata.items():
            if key != "ownerReferences":
                metadata[key] = metadata.get(key, {}) | value
            elif value[0].get("$patch") == "delete":
                metadata[key] = [r for r in metadata[key] if r["uid"] != value[0]["uid"]]
            else:
                metadata[key] = [*metadata.get(key, []), *value]

    def resize(self, action: ResizePod) -> None:
        """Not of this cluster: `RewardCluster` has nodes that carry it out."""
        raise AssertionError(f"resizes {action.name}")

    def _tried(self, body: Object, *, uid: str | None = None, dry: bool = False) -> bool:
        """Whether the API server rejected it."""
        name = body["metadata"]["name"]
        try:
            self._write(copy.deepcopy(dict(body)), uid=uid, dry=dry)
        except Rejected as rejected:
            self.rejections[name] = f"{body['kind']} {name}: {rejected}"
            return True
        self.rejections.pop(name, None)
        return False

    def _write(self, body: dict[str, Any], *, uid: str | None, dry: bool) -> None:
        kind, name = body["kind"], body["metadata"]["name"]
        assert self.job is not None
        existing = self.children[kind].get(name)
        if existing and kind == "Secret":
            raise Rejected(f'secrets "{name}" already exists')
        if existing and not belongs_to(existing, self.job["metadata"]["uid"]):
            earlier = belongs_to_earlier(existing, KEY.name, self.job["metadata"]["uid"])
            raise Rejected(f"{kind} {name} {OF_AN_EARLIER_JOB if earlier else OF_SOMETHING_ELSE}")
        assert uid is None or (existing and uid == existing["metadata"]["uid"])
        if kind == "Secret":
            self.secrets_made.add(name)
        if kind == "Pod":
            if existing:
                if existing["metadata"]["labels"].get(LABEL_JOB) != KEY.name:
                    raise Rejected(f"{WITHOUT_ITS_LABEL} {LABEL_JOB}")
                return
            images = {c["image"] for c in body["spec"]["containers"]}
            if self.invalid_image in images:
                raise Rejected(f'Pod "{name}" is invalid: spec.containers[0].image: Invalid value')
            if self.is_quota_full():
                raise Rejected(f'pods "{name}" is forbidden: exceeded quota: pods')
        if dry:
            return
        if existing and kind == "PersistentVolumeClaim":
            existing["metadata"]["labels"] = existing["metadata"].get("labels", {}) | body["metadata"]["labels"]
            return
        if existing:
            body["metadata"]["uid"] = existing["metadata"]["uid"]
        else:
            body["metadata"] |= {"uid": self.uid(), "creationTimestamp": stamp(self.now)}
        if kind == "Pod":
            body["status"] = {"phase": "Pending", "conditions": []}
            self.created.append(body)
        self.children[kind][name] = body

    def is_quota_full(self) -> bool:
        """Whether the namespace's quota has no room for another pod."""
        return self.pod_quota is not None and len(self.pods()) >= self.pod_quota

    def _delete(self, action: DeleteObject) -> None:
        if action.kind == "RLJob":
            assert self.job is not None
            assert self.job["metadata"]["uid"] == action.uid
            self.delete_job()
            return
        if action.kind == "Secret":
            assert action.uid is None, "nobody can have read it"
            assert self.may_delete
            self.children["Secret"].pop(action.name, None)
            self.secrets_made.discard(action.name)
            return
        found = self.children[action.kind].get(action.name)
        if found is None or found["metadata"]["uid"] != action.uid:
            return
        assert belongs_to(found, self.job["metadata"]["uid"]) if self.job else False
        if action.kind != "Pod":
            assert self.may_delete
            del self.children[action.kind][action.name]
            return
        self.delete_pod(action.name, grace=30 if action.grace_seconds is None else action.grace_seconds)

    def delete_job(self) -> None:
        """The job and, by the garbage collector, what it owns."""
        assert self.job is not None
        uid = self.job["metadata"]["uid"]
        for kind, found in self.children.items():
            self.children[kind] = {
                name: child
                for name, child in found.items()
                if uid not in {r["uid"] for r in child["metadata"].get("ownerReferences", ())}
            }
        self.job = None

    # Kubelets and the scheduler.

    def node_time(self, name: str) -> str:
        """Returns what the pod's node takes for the time, and dates the status that it is about to write."""
        pod = self.children["Pod"][name]
        pod["metadata"]["managedFields"] = [{"subresource": "status", "time": stamp(self.now)}]
        return stamp(self.now + self.nodes_ahead.get(pod["spec"].get("nodeName", ""), timedelta()))

    def delete_pod(self, name: str, grace: int = 30, reason: str | None = None) -> None:
        """A pod with a node ends gracefully; one without, or by force, is gone at once."""
        pod = self.children["Pod"][name]
        if grace == 0 or "nodeName" not in pod["spec"]:
            self._end(name)
            return
        pod["metadata"].setdefault("deletionTimestamp", stamp(self.now + timedelta(seconds=grace)))
        pod["metadata"]["deletionGracePeriodSeconds"] = grace
        if reason:
            _set_condition(pod, "DisruptionTarget", "True", reason=reason)

    def lose_node_of(self, name: str) -> None:
        """Its kubelet is gone: the taint manager deletes the pod, and nobody ends it. Its node's fault, not the pod's."""
        self.children["Pod"][name]["lost"] = True
        _set_condition(self.children["Pod"][name], "Ready", "False")
        self.delete_pod(name, reason="DeletionByTaintManager")

    def delete_node_of(self, name: str) -> None:
        """Its Node object is gone: the pod garbage collector marks the pod and deletes it by force, before anybody can look."""
        pod = self.children["Pod"].pop(name)
        pod["status"]["phase"] = "Failed"
        _set_condition(
            pod, "DisruptionTarget", "True", reason="DeletionByPodGC", message="PodGC: node no longer exists"
        )
        self.last_states[name] = trim(with_server_times(pod, self._cached.get(name), self.now))

    def shut_down_node_of(self, name: str) -> None:
        """Its kubelet ends the pod because the node shuts down; the object stays."""
        pod = self.children["Pod"][name]
        text = "Pod was terminated in response to imminent node shutdown."
        pod["status"] |= {"phase": "Failed", "reason": "Terminated", "message": text}
        _set_condition(pod, "Ready", "False")
        _set_condition(pod, "DisruptionTarget", "True", reason="TerminationByKubelet", message=text)

    def schedule(self, name: str, node: str | None = None) -> None:
        """Gives the pod a node: this one, else node0 unless it has one."""
        pod = self.children["Pod"][name]
        pod["spec"]["nodeName"] = node or pod["spec"].get("nodeName", "node0")
        _set_condition(pod, "PodScheduled", "True")

    def unschedulable(self, name: str, message: str = "0/2 nodes are available: 2 Insufficient cpu.") -> None:
        """The scheduler finds no node."""
        pod = self.children["Pod"][name]
        _set_condition(pod, "PodScheduled", "False", reason="Unschedulable", message=message)

    def start(self, name: str) -> None:
        """The pod becomes ready."""
        pod = self.children["Pod"][name]
        if "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] == "Failed":
            return
        self.schedule(name)
        pod["status"]["phase"] = "Running"
        ready = next((c for c in pod["status"]["conditions"] if c["type"] == "Ready"), {})
        if ready.get("status") != "True":
            _set_condition(pod, "Ready", "True", lastTransitionTime=self.node_time(name))
        for status in pod["status"].get("containerStatuses", ()):
            if "running" not in (status.get("state") or {}):
                status["state"] = {"running": {"startedAt": self.node_time(name)}}
            status["ready"] = True

    def crash(self, name: str, container: int = 0, code: int = 1, reason: str = "Error", message: str = "boom") -> None:
        """A container ends and is started again in its place."""
        pod = self.children["Pod"][name]
        self.schedule(name)
        pod["status"]["phase"] = "Running"
        _set_condition(pod, "Ready", "False")
        statuses = pod["status"].setdefault(
            "containerStatuses", [{"name": c["name"], "restartCount": 0} for c in pod["spec"]["containers"]]
        )
        ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": self.node_time(name)}
        statuses[container]["restartCount"] += 1
        statuses[container]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
        statuses[container]["lastState"] = {"terminated": ended}

    def hang(self, name: str, container: str | None = None) -> None:
        """A process of the pod survives SIGKILL: its container (the first) is unhealthy, runs on, and can't be ended."""
        pod = self.children["Pod"][name]
        pod["lost"] = True
        started = {"running": {"startedAt": self.node_time(name)}}
        names = [c["name"] for c in pod["spec"]["containers"]]
        pod["status"].setdefault(
            "containerStatuses", [{"name": n, "restartCount": 0, "state": started, "ready": True} for n in names]
        )
        for status in pod["status"]["containerStatuses"]:
            status["ready"] = status["name"] != (container or names[0])
        _set_condition(pod, "Ready", "False", lastTransitionTime=self.node_time(name))

    def evict(self, name: str) -> None:
        """The kubelet gives the pod up."""
        status = self.children["Pod"][name]["status"]
        status |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        _set_condition(self.children["Pod"][name], "Ready", "False")

    def end_deleted(self) -> None:
        """Kubelets that answer end what is being deleted."""
        for name, pod in list(self.children["Pod"].items()):
            if "deletionTimestamp" in pod["metadata"] and not pod.get("lost"):
                self._end(name)

    def _end(self, name: str) -> None:
        """Nothing of the pod runs any more: its object goes, unless a finalizer keeps it."""
        metadata = self.children["Pod"][name]["metadata"]
        if metadata.get("finalizers"):
            metadata |= {"deletionTimestamp": stamp(self.now), "deletionGracePeriodSeconds": 0}
        else:
            del self.children["Pod"][name]

    def keep(self, *finalizers: str, role: Role | None = None) -> None:
        """Somebody puts finalizers on pods; none: takes them off, and what was deleted goes."""
        for pod in self.pods(role):
            pod["metadata"]["finalizers"] = [*finalizers]
            if not finalizers and pod["metadata"].get("deletionGracePeriodSeconds") == 0:
                self._end(pod["metadata"]["name"])

    def delete_kept_job(self, *finalizers: str) -> None:
        """Somebody deletes the job, which these finalizers keep."""
        assert self.job is not None
        self.job["metadata"] |= {"finalizers": [*finalizers], "deletionTimestamp": stamp(self.now)}
        self._touch()

    def inject(self, name: str, container: str, **status: Any) -> None:
        """The pod has a container that isn't Longboat's; of its status this is known, and that it runs and is ready if nothing else is."""
        pod = self.children["Pod"][name]
        statuses = pod["status"].setdefault("containerStatuses", [])
        for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            if each["name"] not in {known["name"] for known in statuses}:
                running = {"running": {"startedAt": self.node_time(name)}}
                statuses.append({"name": each["name"], "restartCount": 0, "ready": True, "state": running})
        if container not in {each["name"] for each in pod["spec"]["containers"]}:
            pod["spec"]["containers"].insert(0, {"name": container, "image": "log-shipper:1"})
            statuses.insert(0, {"name": container, "restartCount": 0})
        running = {"running": {"startedAt": self.node_time(name)}}
        next(each for each in statuses if each["name"] == container).update({"ready": True, "state": running} | status)
        if all(each["ready"] for each in statuses):
            _set_condition(pod, "Ready", "True", lastTransitionTime=self.node_time(name))
        else:
            more = {"reason": "ContainersNotReady", "lastTransitionTime": self.node_time(name)}
            _set_condition(pod, "Ready", "False", **more)

    @property
    def budget(self) -> int | None:
        """How many of the driver and trainer pods the budget keeps; None: there is no budget."""
        found = self.children["PodDisruptionBudget"].get(KEY.name)
        return found and found["spec"]["minAvailable"]

    def evictable(self, name: str) -> bool:
        """Whether the API server lets the pod be evicted, as its eviction API and the disruption controller decide it."""
        found = self.children["PodDisruptionBudget"].get(KEY.name)
        pods = [pod for pod in self.pods() if pod["metadata"]["labels"][LABEL_ROLE] in {Role.DRIVER, Role.TRAINER}]
        names = {pod["metadata"]["name"] for pod in pods if is_ready(pod)}
        return found is None or name not in names or len(names) > found["spec"]["minAvailable"]

    def start_all(self) -> None:
        """All pods become ready."""
        for pod in self.pods():
            self.start(pod["metadata"]["name"])

    def advance(self, seconds: float) -> None:
        """Time goes on."""
        self.now += timedelta(seconds=seconds)

    # The driver.

    def drive(self, **fields: Any) -> None:
        """The driver applies its part of the status, all of it every time."""
        assert self.job is not None
        rest = {k: v for k, v in self.job["status"].items() if k not in DRIVER_FIELDS}
        mine = {k: v for k, v in self.job["status"].items() if k in DRIVER_FIELDS} | fields
        status = rest | {k: v for k, v in mine.items() if v is not None}
        RLJobStatus.model_validate(status)
        self.job["status"] = status
        self._touch()

    def start_driver(self) -> None:
        """A driver begins: it asks for a number, gets it, and says Running."""
        self.tokens += 1
        self.drive(demand={"incarnationRequest": f"token-{self.tokens}"})
        self.reconcile()
        self.train(0)

    def ask(self, replicas: int, *, number: int | None = None, **more: Any) -> None:
        """The driver that counts publishes its next demand for rollout pods."""
        demand = self.status.demand.to_json() if self.status.demand else {}
        last = demand.get("rollout", {})
        follows = last.get("number", 0) + 1 if last.get("incarnation") == self.number else 1
        asked = {"incarnation": self.number, "number": number or follows, "replicas": replicas, **more}
        self.drive(demand=demand | {"rollout": asked})

    def ask_for_environments(self, *pools: dict[str, Any]) -> None:
        """The driver that counts publishes its next demand for environment pods."""
        demand = self.status.demand.to_json() if self.status.demand else {}
        last = demand.get("environment", {})
        number = last.get("number", 0) + 1 if last.get("incarnation") == self.number else 1
        asked = {"incarnation": self.number, "number": number, "pools": list(pools)}
        self.drive(demand=demand | {"environment": asked})

    @property
    def leaving(self) -> list[str]:
        """Names of the rollout pods that the job has to give back."""
        found = rollout_grant(self.status)
        return [leaving.pod for leaving in (found.leaving if found else None) or ()]

    @property
    def leaving_environments(self) -> list[str]:
        """Names of the environment pods that the job has to give back."""
        found = environment_grant(self.status)
        return [each.pod for pool in (found.pools if found else None) or () for each in pool.leaving or ()]

    def rollout_pods(self) -> list[str]:
        """Names of the rollout pods that are there and not being deleted."""
        pods = (pod["metadata"] for pod in self.pods(Role.ROLLOUT))
        return sorted(pod["name"] for pod in pods if "deletionTimestamp" not in pod)

    def train(self, steps: int = 1, state: str = "Running", **more: Any) -> None:
        """The driver that counts reports so many more steps."""
        step = (self.status.training.step if self.status.training else 0) + steps
        self.drive(training={"incarnation": self.number, "state": state, "step": step}, **more)

    @property
    def number(self) -> int:
        """The granted incarnation number."""
        allocation = self.status.allocation
        return allocation.incarnation.number if allocation and allocation.incarnation else 0

    # The user.

    def edit(self, **changes: Any) -> None:
        """Changes sections of the spec."""
        assert self.job is not None
        for section, values in changes.items():
            old = self.job["spec"].get(section)
            self.job["spec"][section] = old | values if isinstance(old, dict) else values
        self.job["metadata"]["generation"] += 1
        self._touch()

    def up(self) -> None:
        """Brings the job to Running."""
        self.settle()
        self.start_all()
        self.settle()
        self.start_driver()
        self.settle()


@dataclass(frozen=True)
class _Cache:
    kept: Any
    kinds: dict[str, dict[str, Any]]
    template: Any
    gone: dict[str, Object]
    cordoned_nodes: frozenset[str] | None
    others: Contention

    @property
    def may_watch_nodes(self) -> bool:
        return self.cordoned_nodes is not None

    def cordoned(self, nodes: Iterable[str]) -> frozenset[str] | None:
        return self.cordoned_nodes and self.cordoned_nodes.intersection(nodes)

    def job(self, key: JobKey) -> Any:
        return self.kept

    def children(self, key: JobKey) -> Any:
        return {
            kind: {n: c for n, c in found.items() if c["metadata"].get("labels", {}).get(LABEL_JOB) == key.name}
            for kind, found in self.kinds.items()
        }

    def last_states(self, key: JobKey) -> Any:
        return self.gone

    def contention(self, key: JobKey) -> Contention:
        return self.others

    sees_cluster_runtimes = True

    def runtime(self, kind: str, namespace: str, name: str) -> Any:
        return self.template if (kind, name) == ("ClusterRLRuntime", "cpu") else None

    def runtime_names(self, namespace: str) -> Any:
        return {"ClusterRLRuntime": ("cpu",) if self.template else (), "RLRuntime": ()}


def place(pod: Object) -> tuple[str, str, int]:
    """Role, pool (none: empty) and index of a pod."""
    labels = pod["metadata"]["labels"]
    pool = labels.get(LABEL_POOL) or labels.get(LABEL_ENVIRONMENT_POOL, "")
    return labels[LABEL_ROLE], pool, int(labels[LABEL_INDEX])


def is_ready(pod: Object) -> bool:
    """Whether the pod is ready and not being deleted."""
    conditions = pod["status"]["conditions"]
    return "deletionTimestamp" not in pod["metadata"] and any(
        (c["type"], c["status"]) == ("Ready", "True") for c in conditions
    )


def _set_condition(pod: dict[str, Any], kind: str, status: str, **more: str) -> None:
    conditions = [c for c in pod["status"]["conditions"] if c["type"] != kind]
    pod["status"]["conditions"] = [*conditions, {"type": kind, "status": status, **more}]
