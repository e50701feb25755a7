"""Reports how ready each role is, and its CPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from longboat_crds.base import Role
from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.status import PoolStatus, RewardCpuStatus, RolesStatus, RoleStatus
from longboat_operator.model import Object
from longboat_operator.plan.losses import Loss
from longboat_operator.plan.places import Places
from longboat_operator.plan.pod_problems import PodProblem, problem_of, scheduling_problem
from longboat_operator.plan.records import Memories, RoleCount, published_records
from longboat_operator.pods.names import Place
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.times import stamp
from longboat_operator.reading.view import JobView, PodView


@dataclass(frozen=True)
class RoleSurvey:
    """A role's pods at a glance, or those of one pool; `ready` is how many are ready.

    Pods that leave count neither in `pods` nor in `places`.
    """

    role: Role
    places: tuple[Place, ...]
    pods: tuple[PodView, ...]
    lost: Mapping[str, Loss] = field(default_factory=dict)
    ready: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ready", sum(pod.ready for pod in self.pods))

    @property
    def desired(self) -> int:
        """Counts the places, each of which is for one pod."""
        return len(self.places)

    @property
    def scheduled(self) -> int:
        """Pods that have a node."""
        return sum(bool(pod.raw.get("spec", {}).get("nodeName")) for pod in self.pods)

    @cached_property
    def pools(self) -> Mapping[str, RoleSurvey]:
        """The survey of each pool that has places, by name; a role without pools has one under an empty name, if it has places."""
        names = dict.fromkeys(place.pool for place in self.places)
        if len(names) == 1:
            return dict.fromkeys(names, self)
        return {
            name: RoleSurvey(
                self.role,
                tuple(place for place in self.places if place.pool == name),
                tuple(pod for pod in self.pods if pod.place.pool == name),
                self.lost,
            )
            for name in names
        }

    @property
    def text(self) -> str:
        """`ready/desired`."""
        return f"{self.ready}/{self.desired}"

    @property
    def by_pool(self) -> str:
        """`ready/desired`, and that of each pool if there are several."""
        pools = ", ".join(f"{name} {pool.text}" for name, pool in self.pools.items())
        return f"{self.text} ({pools})" if len(self.pools) > 1 else self.text

    @property
    def all_ready(self) -> bool:
        """Whether every place has a ready pod."""
        return self.ready >= self.desired

    @property
    def serves(self) -> bool:
        """Whether every place has a ready pod or, if rounds don't need all of the role's pods, each pool with places has one."""
        if ROLES[self.role].every_pod_needed:
            return self.all_ready
        return all(pool.ready for pool in self.pools.values())


Survey = Mapping[Role, RoleSurvey]

# The places of a job that wants no pods.
NOWHERE: Places = dict.fromkeys(ROLES, ())


def survey(view: JobView, places: Places, lost: Mapping[str, Loss]) -> Survey:
    """Surveys the job's roles, whose pods are wanted at `places`; pods in `lost` (by uid) can't serve any more.

    A role of pools is left out if the spec has no pool of it, and there never was one.
    """
    surveys = {}
    for role, traits in ROLES.items():
        if traits.pools and not (traits.pool_specs(view.spec) or view.pods[role] or view.published(role)):
            continue
        wanted = frozenset(places[role])
        newest = {pod.place: pod for pod in view.pods[role] if pod.place in wanted}
        surveys[role] = RoleSurvey(role, places[role], tuple(newest.values()), lost)
    return surveys


def summary(roles: Survey) -> str:
    """Writes how many pods of each role are ready: `driver 1/1, rollout 2/3, …`."""
    return ", ".join(f"{role} {role_survey.by_pool}" for role, role_survey in roles.items())


def first_problem(roles: Survey) -> PodProblem | None:
    """Returns the problem of the first pod that has one, in start order; None if none has."""
    pods = ((pod, role_survey.lost.get(pod.uid)) for role_survey in roles.values() for pod in role_survey.pods)
    return next((problem for pod, loss in pods if (problem := problem_of(pod, loss))), None)


def blocked_by_finalizers(ended_pods: Sequence[PodView]) -> str:
    """Returns what blocks the removal of pods that have ended: the first one's name and finalizers; empty if there are none."""
    if not ended_pods:
        return ""
    first, *others = ended_pods
    more = f" ({len(others)} more pods are blocked too)" if others else ""
    return f"pod {first.name} has ended, but its finalizers block its removal: {', '.join(first.finalizers)}{more}"


def first_unscheduled(roles: Survey) -> PodProblem | None:
    """Returns the scheduling problem of the first pod that has one, in start order; None if none has."""
    pods = (pod for role_survey in roles.values() for pod in role_survey.pods)
    return next((problem for pod in pods if (problem := scheduling_problem(pod))), None)


def roles_status(roles: Survey, counts: Memories, reward_cpu: RewardCpuStatus | None = None) -> RolesStatus:
    """Returns the roles as the status shows them."""
    return RolesStatus(
        **{
            str(role): role_status(role_survey, counts[role], reward_cpu if role is Role.REWARD else None)
            for role, role_survey in roles.items()
        }
    )


def role_status(role_survey: RoleSurvey, count: RoleCount, reward_cpu: RewardCpuStatus | None = None) -> RoleStatus:
    """Returns one role as the status shows it."""
    cpus = {name: _cpu(pool) for name, pool in role_survey.pools.items()}
    cpu = _total([cpus[name] for name, pool in role_survey.pools.items() if pool.pods])
    return RoleStatus(
        desired=role_survey.desired,
        ready=role_survey.ready,
        ready_text=role_survey.text,
        restarts=count.restarts,
        recent_restarts=len(count.incidents.times),
        incidents=list(map(stamp, count.incidents.times)) or None,
        restart_step=count.restart_step,
        next_attempt=count.next_attempt,
        pools=[
            PoolStatus(name=name, ready_text=pool.text, cpu=cpus[name])
            for name, pool in role_survey.pools.items()
            if name
        ]
        or None,
        **published_records(count),
        cpu=cpu,
        cpu_text=f"{reward_cpu.used}/{reward_cpu.total}" if reward_cpu else cpu,
    )


def _cpu(role_survey: RoleSurvey) -> str | None:
    container = ROLES[role_survey.role].cpu_container
    return cpu_limits((pod.raw for pod in role_survey.pods), container) if container else None


def cpu_limits(pods: Iterable[Object], container: str) -> str | None:
    """Sums the CPU limits of one container over pods; None if one of them has no limit, or no pod has that container."""
    limits = [
        (c.get("resources") or {}).get("limits", {}).get("cpu")
        for pod in pods
        for c in pod.get("spec", {}).get("containers") or ()
        if c["name"] == container
    ]
    return _total([str(cpu) if cpu else None for cpu in limits])


def _total(quantities: Sequence[str | None]) -> str | None:
    """Sums the quantities; None when one is missing, or there are none."""
    cpus = [millicores(cpu) for cpu in quantities if cpu]
    return cpu_quantity(sum(cpus)) if cpus and len(cpus) == len(quantities) else None
