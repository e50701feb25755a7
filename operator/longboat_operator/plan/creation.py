"""Decides what has to be created for a running job, in start order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from longboat_crds.base import Role
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.quantities import cpu_quantity
from longboat_crds.reasons import ConditionType, Reason
from longboat_operator.model import (
    Action,
    CreateObject,
    DeleteObject,
    Target,
    digest,
    target_of,
)
from longboat_operator.plan.places import Places
from longboat_operator.plan.records import Memories
from longboat_operator.plan.reward_cpus import RewardCpus
from longboat_operator.plan.starts import says_missing
from longboat_operator.plan.surroundings import LOOK_AGAIN_SECONDS, ClaimsInUse, claims_in_use, surroundings_of
from longboat_operator.plan.templates import Template, runtime_revision
from longboat_operator.pods.access import TOKEN_KEY, ray_token
from longboat_operator.pods.merge import TemplateInvalid
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.pods.pod import build_pod
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import Finding
from longboat_operator.reading.times import seconds_until
from longboat_operator.reading.view import JobView
from longboat_operator.rejections import OF_AN_EARLIER_JOB, OF_SOMETHING_ELSE, UNANSWERED


@dataclass(frozen=True, slots=True)
class Creation:
    """Lists what to create. `finding` says what prevents it; `wait` is the time until more may be created.

    `ray_token` is the Secret that gives pods Ray's token; `look_up` is what has to be known before more is created.
    """

    actions: tuple[Action, ...] = ()
    finding: Finding | None = None
    template: Template | None = None
    wait: float | None = None
    ray_token: str | None = None
    look_up: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A place without a pod, and in how many seconds it may get one."""

    role: Role
    place: Place
    attempt: int
    wait: float


def creation_of(
    view: JobView, template: Template | Finding, vacant: Sequence[Vacancy], cpus: RewardCpus, now: datetime
) -> Creation:
    """Plans to create what is missing.

    `vacant` are the places without a pod, once the job has a grant, in the order in which they get one.

    Rules:
    * account, service, policies, claim and token come before pods, and so does the job's grant. All pods are created at once, the driver's
      first: the others wait for the head themselves;
    * before the first pod from a template, dry runs check its revision and the first pod of each role and pool. Shapes that were
      accepted lately are left out. A rejected template gets no revision, so the next plan takes the template as it then is;
    * a role or pool whose pod was rejected asks for no pods of later places until that one is accepted;
    * with spec.rewardCpu a reward pod is created with the CPUs that the published status promises it. While the template has no revision,
      those that this plan's status promises count too.
    """
    if isinstance(template, Finding):
        return Creation(finding=template)
    to_fill = [vacancy for vacancy in vacant if vacancy.wait <= 0]
    job = view.job.with_common(view.spec, template.runtime)
    name = view.status.ray_token_secret
    token = ray_token_of(view, job) if to_fill or says_missing(view, name) else RayToken(name)
    for_driver = token.may_be_used and any(vacancy.role is Role.DRIVER for vacancy in to_fill)
    around = surroundings_of(view, job, template.runtime, for_driver=for_driver)
    claims = claims_in_use(view) if to_fill else ClaimsInUse()
    if look_up := (*around.look_up, *claims.look_up, *token.look_up):
        return Creation(finding=_rejected(view, look_up), template=template, ray_token=token.name, look_up=look_up)
    if finding := around.finding or claims.finding:
        return Creation(around.actions, finding, template, LOOK_AGAIN_SECONDS, token.name)
    actions: list[Action] = [*around.actions]
    try:
        pods = (
            list(_pods(view, job, template, to_fill, token, cpus, one_node=claims.one_node))
            if token.may_be_used
            else []
        )
    except TemplateInvalid as error:
        return Creation(
            finding=Finding(ConditionType.RUNTIME_RESOLVED, False, Reason.POD_TEMPLATE_INVALID, str(error)),
            template=template,
            ray_token=token.name,
        )
    if pods:
        actions += token.actions
    if template.is_new and token.may_be_used:
        shape = digest(runtime_revision(_nameless(job), 0, template.runtime))
        actions.append(CreateObject(runtime_revision(job, template.number, template.runtime), dry_run=shape))
    actions += pods
    waits = [vacancy.wait for vacancy in vacant if vacancy.wait > 0]
    written = [target_of(action) for action in actions if not isinstance(action, DeleteObject)]
    return Creation(tuple(actions), _rejected(view, written), template, min(waits, default=None), token.name)


@dataclass(frozen=True, slots=True)
class RayToken:
    """The Secret that gives new pods Ray's token, and what to create or look up before they may use it."""

    name: str | None
    may_be_used: bool = False
    actions: tuple[CreateObject, ...] = ()
    look_up: tuple[Target, ...] = ()


def ray_token_of(view: JobView, job: JobRef) -> RayToken:
    """Plans the Secret with Ray's token for pods that are created now.

    Rules: its name is random, and in the status before it is used. While no pod uses it and it isn't known to exist, it is created; if
    the name is taken, its owner is uncertain, and another name is chosen. From then on it has to exist for the next pods too: if somebody
    has deleted it, another is created, and the pods with the lost token, which no new pod can join, are replaced. A job that resumes
    gets a new one.
    """
    name = view.status.ray_token_secret
    if name is None:
        return _another(view)
    if "already exists" in view.observed.rejections.get(name, ""):
        return _another(view)
    in_use = any(pod.ray_token == name for pod in view.all_pods)
    if not in_use and view.child("Secret", name) is None:
        return RayToken(name, True, (CreateObject(ray_token(job, name), random_key=TOKEN_KEY),))
    secret: Target = ("Secret", name)
    if secret not in view.observed.looked_up:
        return RayToken(name, look_up=(secret,))
    return RayToken(name, True) if view.observed.looked_up[secret] else _another(view)


def _another(view: JobView) -> RayToken:
    return RayToken(view.job.ray_token(view.observed.random))


def vacancies(view: JobView, memories: Memories, places: Places, counts: Memories, now: datetime) -> Iterator[Vacancy]:
    """Yields the places that should get a pod, now or later; `memories` are as published, `counts` after this look.

    Rules: a place gets a pod only when none of its pods is left in the snapshot, apart from those that only finalizers keep. A place whose
    pod was lost waits for the back-off. It is left out until the status says that the pod was lost, so that the loss can't be forgotten,
    and that it is gone.
    """
    for role in ROLES:
        taken = {pod.place for pod in view.pods[role] if not pod.ended}
        for place in places[role]:
            if place in taken:
                continue
            if place not in counts[role].records:
                yield Vacancy(role, place, counts[role].next_attempt, 0.0)
            elif (lost := memories[role].records.get(place)) and lost.lost_time and lost.gone:
                wait = wait_seconds(lost.losses, view.spec.failure_policy)
                yield Vacancy(role, place, lost.attempt + 1, max(0.0, seconds_until(lost.lost_time, wait, now)))


def pods_to_create(view: JobView, vacant: Sequence[Vacancy]) -> dict[str, Place]:
    """Returns the place of each reward pod that may be created now, by the pod's name."""
    return {
        view.job.pod(vacancy.role, vacancy.place, vacancy.attempt): vacancy.place
        for vacancy in vacant
        if vacancy.role is Role.REWARD and vacancy.wait <= 0
    }


def wait_seconds(losses: int, policy: FailurePolicySpec) -> float:
    """Returns the least seconds from noticing a pod's loss to its replacement, after `losses` at its place since the last new step.

    Rule: `backoffSeconds` after the first, doubled with each further loss, at most `maxBackoffSeconds`.
    """
    doubled = policy.backoff_seconds * 2.0 ** min(max(losses - 1, 0), 32)
    return min(doubled, float(policy.max_backoff_seconds))


def _pods(
    view: JobView,
    job: JobRef,
    template: Template,
    vacancies: list[Vacancy],
    token: RayToken,
    cpus: RewardCpus,
    *,
    one_node: bool,
) -> Iterator[CreateObject]:
    revision = job.revision(template.number)
    checked: set[tuple[Role, str]] = set()
    rejected: set[tuple[Role, str]] = set()
    for vacancy in vacancies:
        alike = vacancy.role, vacancy.place.pool
        if alike in rejected:
            continue
        cpu = None
        if vacancy.role is Role.REWARD and view.spec.reward_cpu:
            name = view.job.pod(vacancy.role, vacancy.place, vacancy.attempt)
            cpu = cpus.promised.get(name) or (cpus.promises.get(name) if template.is_new else None)
            if cpu is None:
                continue
        build = partial(build_pod, one_node=one_node, graders_cpu=cpu_quantity(cpu) if cpu else None)
        spec, runtime, (role, place) = view.spec, template.runtime, (vacancy.role, vacancy.place)
        body = build(job, spec, runtime, revision, role, place, vacancy.attempt, token=token.name or "")
        shape = None
        if template.is_new and alike not in checked:
            shape = digest(build(_nameless(job), spec, runtime, "", role, Place(place.pool, 0), 0, token=""))
        yield CreateObject(body, dry_run=shape)
        checked.add(alike)
        if body["metadata"]["name"] in view.observed.rejections:
            rejected.add(alike)


def _nameless(job: JobRef) -> JobRef:
    """Returns a stand-in for the job, without a name: an object that is built for it shows only its shape."""
    return replace(job, name="", uid="")


def _rejected(view: JobView, targets: Iterable[Target]) -> Finding | None:
    """Returns the condition that shows the first rejection among these targets; None if none was rejected."""
    for kind, name in targets:
        if name in view.observed.rejections:
            return finding_of_rejection(kind, view.observed.rejections[name])
    return None


def finding_of_rejection(kind: str, answer: str) -> Finding:
    """Returns the condition that shows a rejected look-up or write; `answer` names the object and has the server's text.

    Rule: an invalid pod is the template's fault (the text names the field); anything else is told by the condition Scheduled.
    """
    if UNANSWERED in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.REQUEST_FAILED, answer)
    if kind == "Pod" and "is invalid" in answer:
        return Finding(ConditionType.RUNTIME_RESOLVED, False, Reason.POD_TEMPLATE_INVALID, answer)
    if "exceeded quota" in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.QUOTA_EXCEEDED, answer)
    if OF_SOMETHING_ELSE in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.NAME_TAKEN, answer)
    if OF_AN_EARLIER_JOB in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.PODS_STARTING, answer)
    return Finding(ConditionType.SCHEDULED, False, Reason.POD_REFUSED, answer)
