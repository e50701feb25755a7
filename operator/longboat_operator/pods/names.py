"""Names of a job's objects, and the metadata that all of them carry. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from longboat_crds.base import API_VERSION, Role
from longboat_crds.job import RLJobSpec
from longboat_crds.metadata import MANAGED_BY
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.model import (
    LABEL_ATTEMPT,
    LABEL_ENVIRONMENT_POOL,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_POOL,
    LABEL_ROLE,
)

MANAGER = "longboat-operator"

_POOL_LABELS = {Role.REWARD: LABEL_POOL, Role.ENVIRONMENT: LABEL_ENVIRONMENT_POOL}

_POD = re.compile(rf"(?P<role>{'|'.join(Role)})-(?:(?P<pool>.+)-)?(?P<index>\d+)-a(?P<attempt>\d+)", re.ASCII)


class Place(NamedTuple):
    """Names a pod's place within its role, or its pool if the role has pools, by a number. Places order by pool and number."""

    pool: str
    index: int  # type: ignore[assignment]  # hides the method of tuples

    def __str__(self) -> str:
        return f"{self.pool}-{self.index}" if self.pool else str(self.index)


class PodIdentity(NamedTuple):
    """What the name of a pod says."""

    role: Role
    place: Place
    attempt: int


def numbered(count: int, pool: str = "") -> tuple[Place, ...]:
    """Returns the first `count` places, of a pool if one is named."""
    return tuple(Place(pool, index) for index in range(count))


@dataclass(frozen=True, slots=True)
class JobRef:
    """The job that objects are made for, and the labels and annotations that all of them get.

    No two jobs share the name of an object of the same kind. Rule: no suffix of a kind ends with another one, whatever pools are called
    (`PoolSpec.rules`). So if A + s = B + t, the suffixes s and t are the same, and so are the jobs A and B.
    """

    namespace: str
    name: str
    uid: str
    common_labels: tuple[tuple[str, str], ...] = ()
    common_annotations: tuple[tuple[str, str], ...] = ()

    def with_common(self, spec: RLJobSpec, runtime: RLRuntimeSpec | None) -> Self:
        """Returns the job with the labels and annotations of its spec and of the runtime template, if any, which take precedence."""
        labels, annotations = {**(spec.labels or {})}, {**(spec.annotations or {})}
        if runtime:
            labels |= runtime.labels or {}
            annotations |= runtime.annotations or {}
        return replace(
            self, common_labels=tuple(sorted(labels.items())), common_annotations=tuple(sorted(annotations.items()))
        )

    @property
    def head(self) -> str:
        """Service in front of the Ray head."""
        return f"{self.name}-head"

    @property
    def head_address(self) -> str:
        """Host and port of the Ray head as pods reach it."""
        return f"{self.head}.{self.namespace}.svc:6379"

    @property
    def driver_account(self) -> str:
        """ServiceAccount, Role and RoleBinding of the driver."""
        return f"{self.name}-driver"

    @property
    def network(self) -> str:
        """NetworkPolicy of all its pods. Up to 0.2.0 it had the job's own name (`plan.surroundings`)."""
        return f"{self.name}-job"

    @property
    def reward_network(self) -> str:
        """NetworkPolicy of its reward pods."""
        return f"{self.name}-reward"

    @property
    def environment_network(self) -> str:
        """NetworkPolicy of its environment pods."""
        return f"{self.name}-environment"

    def ray_token(self, random: str) -> str:
        """Names a Secret with Ray's token.

        The operator can't read Secrets, so it could not tell one that somebody else created from its own: hence the name is
        random.
        """
        return f"{self.name}-ray-token-{random}"

    @property
    def checkpoint_claim(self) -> str:
        """Claim that the operator creates."""
        return f"{self.name}-checkpoint"

    def revision(self, number: int) -> str:
        """Names the ControllerRevision that stores the runtime template."""
        return f"{self.name}-runtime-{number}"

    def pod(self, role: Role, place: Place, attempt: int) -> str:
        """Names a pod; every attempt has a name of its own, so that an old one is never taken for a new one."""
        return f"{self.name}-{role}-{place}-a{attempt}"

    def identity(self, pod: str) -> PodIdentity | None:
        """Returns what a pod's name says; None if this version gives no pod such a name."""
        match = _POD.fullmatch(pod.removeprefix(f"{self.name}-"))
        if match is None or Role(match["role"]).has_pools is (match["pool"] is None):
            return None
        place = Place(match["pool"] or "", int(match["index"]))
        identity = PodIdentity(Role(match["role"]), place, int(match["attempt"]))
        return identity if self.pod(*identity) == pod else None

    def labels(self, role: Role | None = None) -> dict[str, str]:
        """Returns the labels of a child, of one role if given."""
        labels = {MANAGED_BY: MANAGER, LABEL_JOB: self.name}
        return labels if role is None else labels | {LABEL_ROLE: str(role)}

    def pod_labels(self, role: Role, place: Place, attempt: int) -> dict[str, str]:
        """Returns the labels that say which pod of the job it is."""
        labels = {
            LABEL_JOB: self.name,
            LABEL_ROLE: str(role),
            LABEL_INDEX: str(place.index),
            LABEL_ATTEMPT: str(attempt),
        }
        return labels | {_POOL_LABELS[role]: place.pool} if place.pool else labels

    def selector(self, *roles: Role) -> dict[str, Any]:
        """Returns the LabelSelector of the job's pods, of some roles if given."""
        selector: dict[str, Any] = {"matchLabels": {LABEL_JOB: self.name}}
        if roles:
            selector["matchExpressions"] = [{"key": LABEL_ROLE, "operator": "In", "values": [str(r) for r in roles]}]
        return selector

    def metadata(self, name: str, labels: Mapping[str, str] | None = None, *, owned: bool = True) -> dict[str, Any]:
        """Returns the metadata of a child; an owned one is deleted with the job."""
        all_labels = dict(self.common_labels) | dict(labels or self.labels())
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace, "labels": all_labels}
        if self.common_annotations:
            metadata["annotations"] = dict(self.common_annotations)
        return metadata | {"ownerReferences": [self.owner]} if owned else metadata

    @property
    def owner(self) -> dict[str, Any]:
        """Owner reference to the job."""
        return {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
