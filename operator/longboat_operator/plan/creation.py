"""What a running job has to make, in start order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_operator.model import Action, ApplyObject, CreateObject
from longboat_operator.plan.backoff import wait_seconds
from longboat_operator.plan.records import RoleCount, remembered
from longboat_operator.plan.refusals import refusal_finding
from longboat_operator.plan.surroundings import foreign_claim, needed
from longboat_operator.plan.templates import NoTemplate, Template, template_of
from longboat_operator.plan.view import ROLES, JobView
from longboat_operator.pods.claim import pins_to_one_node
from longboat_operator.pods.merge import TemplateInvalid
from longboat_operator.pods.pod import build_pod
from longboat_operator.pods.revision import runtime_revision
from longboat_operator.pods.token import TOKEN_KEY, ray_token
from longboat_operator.status.conditions import Finding
from longboat_operator.status.times import seconds_until


@dataclass(frozen=True, slots=True)
class Creation:
    """What to make. `obstacle` says what keeps it from being made; `wait` is the time until more may be made."""

    actions: tuple[Action, ...] = ()
    obstacle: Finding | None = None
    template: Template | None = None
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class Vacancy:
    """An index without a pod, and in how many seconds it may get one."""

    role: Role
    index: int
    attempt: int
    wait: float


def creation_of(view: JobView, counts: Mapping[Role, RoleCount], now: datetime) -> Creation:
    """What is missing, in start order.

    Rule: account, service, policies, claim and token come before pods; the driver's pod comes first, the others follow
    at once, since they wait for the head themselves. Before the first pod by a template, its revision and the first pod
    of each role are checked by a dry run: a job whose template is refused has no revision, so it takes the template as
    it is when it is next looked at. A role whose pod was refused asks for no further pods until that one is let in.
    """
    template = template_of(view)
    if isinstance(template, NoTemplate):
        return Creation(obstacle=Finding(ConditionType.RUNTIME_RESOLVED, False, template.reason, template.message))
    if claim := foreign_claim(view):
        return Creation(obstacle=_claim_taken(claim), template=template)
    open_places = list(vacancies(view, counts, now))
    places = [place for place in open_places if place.wait <= 0]
    actions: list[Action] = [*needed(view)]
    try:
        pods = list(_pods(view, template, places))
    except TemplateInvalid as error:
        return Creation(
            obstacle=Finding(ConditionType.RUNTIME_RESOLVED, False, Reason.POD_TEMPLATE_INVALID, str(error)),
            template=template,
        )
    if pods and not view.all_pods and view.child("Secret", view.job.ray_token) is None:
        actions.append(CreateObject(ray_token(view.job), random_key=TOKEN_KEY))
    if template.is_new:
        actions.append(CreateObject(runtime_revision(view.job, template.number, template.runtime), dry_run=True))
    actions += pods
    waits = [place.wait for place in open_places if place.wait > 0]
    return Creation(tuple(actions), _obstacle(view, actions), template, min(waits, default=None))


def vacancies(view: JobView, counts: Mapping[Role, RoleCount], now: datetime) -> Iterator[Vacancy]:
    """Indices that should have a pod and have none.

    Rules: an index gets a pod only when no pod of it exists any more, so two never live at once; one whose pod was lost
    waits for the back-off, and until its loss stands in the status, so it can't be forgotten.
    """
    for role in ROLES:
        published = remembered(view.published(role))
        taken = {pod.index for pod in view.pods[role]}
        for index in range(view.desired(role)):
            if index in taken:
                continue
            if index not in counts[role].records:
                yield Vacancy(role, index, counts[role].next_attempt, 0.0)
            elif (lost := published.records.get(index)) and lost.lost_time:
                wait = wait_seconds(lost.losses, view.spec.failure_policy)
                yield Vacancy(role, index, lost.attempt + 1, max(0.0, seconds_until(lost.lost_time, wait, now)))


def _pods(view: JobView, template: Template, places: list[Vacancy]) -> Iterator[CreateObject]:
    checkpoint = view.spec.checkpoint
    claim = view.child("PersistentVolumeClaim", checkpoint.claim_name or view.job.checkpoint_claim)
    one_node = pins_to_one_node(checkpoint, claim)
    revision = view.job.revision(template.number)
    checked: set[Role] = set()
    refused: set[Role] = set()
    for place in places:
        role = place.role
        if role in refused:
            continue
        body = build_pod(
            view.job, view.spec, template.runtime, revision, role, place.index, place.attempt, one_node=one_node
        )
        yield CreateObject(body, dry_run=template.is_new and role not in checked)
        checked.add(role)
        if body["metadata"]["name"] in view.observed.refusals:
            refused.add(role)


def _obstacle(view: JobView, actions: list[Action]) -> Finding | None:
    """What the API server said of something that is still wanted."""
    for action in actions:
        if isinstance(action, ApplyObject | CreateObject):
            name = action.body["metadata"]["name"]
            if name in view.observed.refusals:
                return refusal_finding(action.body["kind"], view.observed.refusals[name])
    return None


def _claim_taken(name: str) -> Finding:
    message = (
        f"PersistentVolumeClaim {name} was left by an earlier job of this name: to go on from its checkpoints, create a "
        f"job of another name with checkpoint.resumeFrom.claimName: {name}; to start anew, delete the claim"
    )
    return Finding(ConditionType.SCHEDULED, False, Reason.NAME_TAKEN, message)
