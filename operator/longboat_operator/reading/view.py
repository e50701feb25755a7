"""Reads the snapshots of a job and of its capacity: spec, status, and pods by role. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from longboat_crds.base import FieldsModel, Role
from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.environments import EnvironmentPoolSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.quantities import millicores
from longboat_crds.reasons import ConditionType
from longboat_crds.rewards import RewardCpuSpec, RewardPoolSpec, default_pools
from longboat_crds.rounds import RoundsSpec
from longboat_crds.status import (
    PodsGrant,
    Problem,
    RewardGrant,
    RLJobStatus,
    RoleStatus,
    RolloutDemand,
    RolloutGrant,
    Training,
)
from longboat_crds.tolerance import read_known
from longboat_operator.model import (
    ANNOTATION_RAY_TOKEN,
    Object,
    Observed,
    belongs_to,
)
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.pods.roles import ROLES, SCALED_ROLES
from longboat_operator.reading.conditions import has_ended, holds
from longboat_operator.reading.status import (
    drained_pods,
    pods_granted,
    read_status,
    reward_grant,
    rollout_demand,
    rollout_grant,
)
from longboat_operator.reading.terminations import container_statuses, is_ready
from longboat_operator.reading.times import moment

_NOTHING: Mapping[str, Any] = {}

Part = TypeVar("Part", bound=FieldsModel)


class SpecUnreadable(ValueError):
    """This version can't read the job's spec; names the field."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod with its place in the job. `ready` is ready (`is_ready`) and not being deleted.

    `labelled`: it has the labels that the operator gave it. `unwatched`: only a look-up shows it. `own` are the names of its role's
    containers.
    """

    name: str
    uid: str
    place: Place
    attempt: int
    raw: Object
    labelled: bool = True
    unwatched: bool = False
    own: tuple[str, ...] = ()
    ready: bool = field(init=False)
    _conditions: Mapping[str, Mapping[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Read many times in a plan, and a class with slots can't have a cached_property.
        conditions = {c["type"]: c for c in self.raw.get("status", {}).get("conditions") or ()}
        object.__setattr__(self, "_conditions", conditions)
        object.__setattr__(self, "ready", self.deleted_at is None and is_ready(self.raw, self.own))

    @property
    def ray_token(self) -> str | None:
        """Secret with the Ray token that the pod has."""
        return (self.raw["metadata"].get("annotations") or {}).get(ANNOTATION_RAY_TOKEN)

    @property
    def deleted_at(self) -> datetime | None:
        """End of the pod's grace period, if it is being deleted."""
        text = self.raw["metadata"].get("deletionTimestamp")
        return moment(text) if text else None

    @property
    def own_statuses(self) -> list[Mapping[str, Any]]:
        """Statuses of the role's own containers, init containers first."""
        return [status for status in container_statuses(self.raw) if status["name"] in self.own]

    @property
    def foreign_statuses(self) -> list[Mapping[str, Any]]:
        """Statuses of all other containers, init containers first."""
        return [status for status in container_statuses(self.raw) if status["name"] not in self.own]

    @property
    def restarts(self) -> int:
        """Restarts of the role's own containers."""
        return sum([int(status.get("restartCount", 0)) for status in self.own_statuses])

    @property
    def finalizers(self) -> tuple[str, ...]:
        """Finalizers that have to be removed before the pod's object goes."""
        return tuple(self.raw["metadata"].get("finalizers") or ())

    @property
    def ended(self) -> bool:
        """Whether the pod is deleted, none of its containers runs any more, and only finalizers keep its object.

        Rule: its phase is final, or it was deleted without a grace period. A kubelet does that last; it also happens to pods that are
        deleted by force or never had a node.
        """
        if "deletionTimestamp" not in self.raw["metadata"] or not self.finalizers:
            return False
        return self.phase in {"Failed", "Succeeded"} or self.raw["metadata"].get("deletionGracePeriodSeconds") == 0

    @property
    def node(self) -> str | None:
        """The node that it was given."""
        return self.raw.get("spec", {}).get("nodeName") or None

    @property
    def gates(self) -> tuple[str, ...]:
        """Names of the scheduling gates that keep the pod from being scheduled; none once it has a node."""
        spec = self.raw.get("spec", {})
        return () if self.node else tuple(gate["name"] for gate in spec.get("schedulingGates") or ())

    @property
    def priority(self) -> int:
        """Its scheduling priority, 0 if it has none."""
        return int(self.raw.get("spec", {}).get("priority") or 0)

    @property
    def phase(self) -> str:
        """Pod phase."""
        return str(self.raw.get("status", {}).get("phase", "Pending"))

    def condition(self, kind: str) -> Mapping[str, Any]:
        """Returns the pod's condition of this type, empty when absent."""
        return self._conditions.get(kind, _NOTHING)


class _Published:
    """What both views read in the published status of a job."""

    __slots__ = ()
    status: RLJobStatus

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return has_ended(self.status.conditions)

    @property
    def suspended(self) -> bool:
        """Whether the job is suspended."""
        return holds(self.status.conditions, ConditionType.SUSPENDED)

    @property
    def releasing(self) -> bool:
        """Whether the job's pods are being released because its minimum didn't fit."""
        return self.status.placement is not None and self.status.placement.release_time is not None

    @property
    def released(self) -> bool:
        """Whether the job's pods were released because its minimum didn't fit, and it waits to try again."""
        return self.status.placement is not None and self.status.placement.retry_time is not None


@dataclass(frozen=True)
class JobView(_Published):
    """Holds what plans read of a job. What takes a look at every pod is computed once."""

    job: JobRef
    generation: int
    spec: RLJobSpec
    status: RLJobStatus
    pods: Mapping[Role, tuple[PodView, ...]]
    observed: Observed
    unplaced: tuple[PodView, ...] = ()

    def unwatched_places(self, role: Role) -> set[Place]:
        """Returns the places of pods that only a look-up shows, and that may still run."""
        return {pod.place for pod in self.pods[role] if pod.unwatched and not pod.ended}

    @cached_property
    def gone(self) -> frozenset[str]:
        """Names that no pod of the job has, according to a look-up, and names of `ended_pods`."""
        nowhere = (
            name
            for (kind, name), pod in self.observed.looked_up.items()
            if kind == "Pod" and not (pod and belongs_to(pod, self.job.uid))
        )
        return frozenset((*nowhere, *(pod.name for pod in self.ended_pods)))

    @property
    def last_states(self) -> Iterator[PodView]:
        """Yields the last states of pods that were looked up and are gone."""
        for name in self.gone & self.observed.last_states.keys():
            identity, pod = self.job.identity(name), self.observed.last_states[name]
            if identity is not None:
                own = ROLES[identity.role].containers
                yield PodView(name, pod["metadata"]["uid"], identity.place, identity.attempt, pod, own=own)

    @cached_property
    def all_pods(self) -> tuple[PodView, ...]:
        """Pods of all roles, in start order, then those without a place; all but `ended_pods`."""
        return tuple(pod for pod in self._every_pod() if not pod.ended)

    @cached_property
    def ended_pods(self) -> tuple[PodView, ...]:
        """Pods that have ended and that only finalizers keep (`PodView.ended`), in the same order."""
        return tuple(pod for pod in self._every_pod() if pod.ended)

    def _every_pod(self) -> Iterator[PodView]:
        for role in ROLES:
            yield from self.pods[role]
        yield from self.unplaced

    @property
    def training(self) -> Training | None:
        """The current driver's report, if there is one: a number below the granted one belongs to an earlier start."""
        training = self.status.training
        granted = self.status.allocation.incarnation if self.status.allocation else None
        return training if training and training.incarnation >= (granted.number if granted else 0) else None

    @property
    def problem(self) -> Problem | None:
        """The problem that the current driver reports; it comes with the number of whoever wrote it."""
        return self.status.problem if self.training else None

    @property
    def step(self) -> int:
        """Step that the newest report says is committed, by whichever driver; lower again after a return to an earlier checkpoint."""
        return self.status.training.step if self.status.training else 0

    @property
    def demand(self) -> RolloutDemand | None:
        """Rollout pods that the current driver asks for."""
        return rollout_demand(self.status)

    @property
    def grant(self) -> RolloutGrant | None:
        """Rollout pods that the job may have, and those that it has to give back; None while nothing is granted."""
        return rollout_grant(self.status)

    @cached_property
    def pods_granted(self) -> Mapping[tuple[Role, str], PodsGrant]:
        """Grants of pods by role and pool (empty for rollout pods)."""
        return {(role, pool): grant for role, pool, grant in pods_granted(self.status)}

    @property
    def drained_pods(self) -> frozenset[str]:
        """Pods in which nothing runs any more, as the current driver says."""
        return drained_pods(self.status)

    @property
    def reward_grant(self) -> RewardGrant | None:
        """CPUs that reward pools may have; None while none are granted, as without spec.rewardCpu."""
        return reward_grant(self.status)

    def published(self, role: Role) -> RoleStatus | None:
        """Returns the role's part of the published status; None if there is none."""
        return getattr(self.status.roles, role) if self.status.roles else None

    def child(self, kind: str, name: str) -> Object | None:
        """Returns a child in the snapshot; None if it has none of this name."""
        return self.observed.children.get(kind, {}).get(name)

    def is_known(self, kind: str, name: str) -> bool:
        """Whether it is known what has this name: the job's own, something else, or nothing."""
        return self.child(kind, name) is not None or (kind, name) in self.observed.looked_up

    def find(self, kind: str, name: str) -> Object | None:
        """Returns the object that has this name, as far as it is known."""
        return self.child(kind, name) or self.observed.looked_up.get((kind, name))


@dataclass(frozen=True, slots=True)
class CapacityView(_Published):
    """Holds what a capacity's plan reads of its job: rollout and environment pods, and of the `status` only the fields that it uses.

    `replicas`, `min_replicas` and `pods` are those of rollout pods.
    """

    job: JobRef
    replicas: int
    min_replicas: int
    suspend: bool
    status: RLJobStatus
    pods: tuple[PodView, ...]
    reward_cpu: int | None = None
    """Millicores of spec.rewardCpu."""
    reward_pools: tuple[RewardPoolSpec, ...] = ()
    environment_pools: tuple[EnvironmentPoolSpec, ...] = ()
    environment_pods: tuple[PodView, ...] = ()


_STATUS_OF_A_CAPACITY = ("demand", "allocation", "placement", "conditions", "suspendTime")


def read_capacity(observed: Observed, job: Object) -> CapacityView:
    """Reads the snapshot of a capacity.

    Raises:
        SpecUnreadable: the spec is of another version.
    """
    spec, status = job["spec"], job.get("status") or {}
    rollout = spec.get("rollout") or {}
    replicas, least = rollout.get("replicas", 1), rollout.get("minReplicas", 0)
    if not (isinstance(replicas, int) and isinstance(least, int)):
        raise SpecUnreadable("spec.rollout.replicas and spec.rollout.minReplicas: must be integers")
    total, pools = (
        _reward_pools(to_json(spec["rewardCpu"]), to_json(spec.get("rewardPools")))
        if "rewardCpu" in spec
        else (None, ())
    )
    used = {name: status[name] for name in _STATUS_OF_A_CAPACITY if name in status}
    roles = status.get("roles") or {}
    if scaled := {role: roles[role] for role in SCALED_ROLES if role in roles}:
        used["roles"] = scaled
    existing = pods_of(observed, job_ref(job))[0]
    return CapacityView(
        job=job_ref(job),
        replicas=replicas,
        min_replicas=least,
        suspend=bool(spec.get("suspend")),
        status=read_status(used),
        pods=tuple(pod for pod in existing[Role.ROLLOUT] if not pod.ended),
        reward_cpu=total,
        reward_pools=pools,
        environment_pools=_environment_pools(to_json(spec["environmentPools"])) if "environmentPools" in spec else (),
        environment_pods=tuple(pod for pod in existing[Role.ENVIRONMENT] if not pod.ended),
    )


@lru_cache(maxsize=4096)
def _reward_pools(cpu: bytes, pools: bytes) -> tuple[int, tuple[RewardPoolSpec, ...]]:
    """Reads the millicores of spec.rewardCpu, and spec.rewardPools (by default, one pool), from their JSON.

    Raises:
        SpecUnreadable: they don't fit this version's schema.
    """
    try:
        total = millicores(RewardCpuSpec.model_validate(from_json(cpu)).total)
        return total, tuple(map(RewardPoolSpec.model_validate, from_json(pools) or default_pools()))
    except ValidationError as error:
        raise SpecUnreadable(f"spec.rewardCpu, spec.rewardPools: {error.errors()[0]['msg']}") from error


@lru_cache(maxsize=4096)
def _environment_pools(pools: bytes) -> tuple[EnvironmentPoolSpec, ...]:
    """Reads spec.environmentPools from its JSON.

    Raises:
        SpecUnreadable: it doesn't fit this version's schema.
    """
    try:
        return tuple(map(EnvironmentPoolSpec.model_validate, from_json(pools)))
    except ValidationError as error:
        raise SpecUnreadable(f"spec.environmentPools: {error.errors()[0]['msg']}") from error


def job_ref(job: Object) -> JobRef:
    """Returns the job's identity."""
    metadata = job["metadata"]
    return JobRef(metadata["namespace"], metadata["name"], metadata["uid"])


def first_problem(root: str, error: ValidationError) -> str:
    """Names the first field that a model refused, below `root`, and says why."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, (root, *first['loc'])))}: {first['msg']}"


def read(observed: Observed, job: Object) -> JobView:
    """Reads the snapshot of a job.

    Raises:
        SpecUnreadable: the spec is of another version.
    """
    try:
        spec = _spec(to_json(job["spec"]))
    except ValidationError as error:
        raise SpecUnreadable(first_problem("spec", error)) from error
    return _job_view(observed, job, spec)


def read_for_release(observed: Observed, job: Object) -> JobView:
    """Reads the snapshot of a job whose spec this version can't read, as far as the release of its pods needs it.

    Rule: the parts of the spec that can't be read are dropped. If nothing is left, only `suspend`, `rounds` and `checkpoint` count.
    """
    stored = job["spec"]
    try:
        spec = read_known(RLJobSpec, stored)
    except ValidationError:
        spec = RLJobSpec.model_construct(  # type: ignore[call-arg]
            suspend=stored.get("suspend") is True,
            rounds=_readable(RoundsSpec, stored.get("rounds"), steps=0),
            rewards=[],
            checkpoint=_readable(CheckpointSpec, stored.get("checkpoint")),
        )
    return _job_view(observed, job, spec)


def _readable(model: type[Part], value: Any, **instead: Any) -> Part:
    try:
        return read_known(model, value or {})
    except ValidationError:
        return cast("Part", model.model_construct(**instead))


def _job_view(observed: Observed, job: Object, spec: RLJobSpec) -> JobView:
    ref = job_ref(job)
    pods, unplaced = pods_of(observed, ref)
    return JobView(
        job=ref,
        generation=int(job["metadata"].get("generation", 0)),
        spec=spec,
        status=read_status(job.get("status") or {}),
        pods=pods,
        observed=observed,
        unplaced=unplaced,
    )


@lru_cache(maxsize=4096)
def _spec(text: bytes) -> RLJobSpec:
    """Reads a spec from its JSON; cached, since specs rarely change and take long to check. Raises ValidationError."""
    return RLJobSpec.model_validate(from_json(text))


def pods_of(observed: Observed, job: JobRef) -> tuple[Mapping[Role, tuple[PodView, ...]], tuple[PodView, ...]]:
    """Returns the job's pods by role, in the order of place and attempt, and those whose name gives no place.

    Rule: a pod is the job's by its owner reference, and its name gives its place; labels don't matter.
    """
    by_role: dict[Role, list[PodView]] = {role: [] for role in ROLES}
    unplaced = []
    watched = observed.children.get("Pod", {})
    looked_up = {
        name: pod
        for (kind, name), pod in observed.looked_up.items()
        if kind == "Pod" and pod is not None and belongs_to(pod, job.uid)
    }
    for name, pod in {**looked_up, **watched}.items():
        uid, identity = pod["metadata"]["uid"], job.identity(name)
        if identity is None:
            # Others may own pods that go with the job; its controller is the operator alone.
            if any(
                owner.get("uid") == job.uid and owner.get("controller")
                for owner in pod["metadata"].get("ownerReferences") or ()
            ):
                unplaced.append(PodView(name, uid, Place("", 0), 0, pod))
            continue
        labels = pod["metadata"].get("labels") or {}
        labelled = job.pod_labels(*identity).items() <= labels.items()
        own = ROLES[identity.role].containers
        view = PodView(name, uid, identity.place, identity.attempt, pod, labelled, name not in watched, own)
        by_role[identity.role].append(view)
    placed = {role: tuple(sorted(pods, key=lambda p: (p.place, p.attempt))) for role, pods in by_role.items()}
    return placed, tuple(unplaced)
