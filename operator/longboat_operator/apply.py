"""Carries out a plan, action by action. It may stop after any of them: the next plan continues from there.

* A rejection (the server understood and said no) of anything but an event or the status is kept for the next plan. A rejected create or
  apply ends the plan's creates and applies, since later ones may depend on it. Nothing depends on a Pod or a PodDisruptionBudget, and
  everything else is still carried out.
* The dry runs a plan asks for are sent together, right before its first create that asks for one. If one is rejected, the
  plan creates and applies nothing more. An accepted one isn't repeated for an hour, whichever job needs it, unless a create is rejected
  in the namespace (`AcceptedDryRuns`).
* Nothing is created or applied any more for a job that is gone, is being deleted, or was replaced: the plan ends. Before the first create
  or apply for a started job, the server is asked too. The watch may show what the garbage collector deletes before it shows the job's own
  deletion.
* Resizes are sent together: each is of a pod of its own, and none depends on another.
* A resize of a pod that has changed meanwhile (409) is not a rejection: the key is planned again.
* Resizes and events follow what the status written before them says: if that write comes too late (the job has changed), the plan
  ends there.
* A write without a final answer (silence, 401, 429, 5xx) may or may not have been done. It ends the plan, except for the status and the
  events that follow. A status that is refused ends all of it. The key is planned again after a wait, and the next plan learns which writes
  have failed for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import structlog

from longboat_operator.dry_runs import AcceptedDryRuns
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import ConflictError, KubeError, NotFoundError, is_rejection
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import DISRUPTION_BUDGET, POD, RL_JOB, SECRET
from longboat_operator.metrics import ACTIONS, RESIZES
from longboat_operator.model import (
    LABEL_ROLE,
    Action,
    ApplyObject,
    CreateObject,
    EmitEvent,
    Object,
    Observed,
    Plan,
    PublishGrant,
    PublishStatus,
    ResizePod,
    target_of,
)
from longboat_operator.rejections import Rejections
from longboat_operator.watch.cache import Cache, ObjectKey, version_of
from longboat_operator.watch.expectations import Expectation
from longboat_operator.writes import Writes

# The actions that report to people and drivers.
_REPORTS = (PublishStatus, PublishGrant, EmitEvent)
# Kinds on which nothing else that a plan creates depends.
_WITHOUT_DEPENDENTS = frozenset({POD.kind, DISRUPTION_BUDGET.kind})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a plan: what the cache is to show, and the error that ended the plan, mostly that of a write without an answer.

    `newer` are versions of the job, or of pods that were to be resized, that came before the plan's writes of them, and are to be seen.
    `published` is the job as the server returned it when its plan published a status; None if the plan published none.
    """

    expectations: tuple[Expectation, ...]
    unanswered: KubeError | None = None
    newer: tuple[Expectation, ...] = ()
    published: Object | None = None


class Applier:
    """Carries out plans of any job or capacity."""

    def __init__(self, client: KubeClient, cache: Cache, events: EventRecorder, accepted: AcceptedDryRuns) -> None:
        self._client = client
        self._cache = cache
        self._events = events
        self._accepted = accepted

    async def apply(self, plan: Plan, observed: Observed, rejections: Rejections) -> Applied:
        """Executes the actions in order; rejections go into `rejections`."""
        writes = Writes(self._client, self._cache, self._events, observed)
        return await _Run(writes, plan, observed, rejections, self._accepted).execute()


class _Run:
    """One plan's execution."""

    def __init__(
        self, writes: Writes, plan: Plan, observed: Observed, rejections: Rejections, accepted: AcceptedDryRuns
    ) -> None:
        self._writes = writes
        self._plan = plan
        self._observed = observed
        self._rejections = rejections
        self._accepted = accepted
        self._namespace = observed.key.namespace
        self._building = True
        self._is_job_confirmed = not ((observed.job or {}).get("status") or {}).get("startTime")
        self._dry_runs_made = False
        self._dry_run_unanswered = False
        self._stale = False
        self._unanswered: KubeError | None = None
        self._newer: list[Expectation] = []

    async def execute(self) -> Applied:
        self._rejections.keep_only({*map(target_of, self._plan.actions), *self._plan.look_up})
        for resizes, actions in groupby(self._plan.actions, lambda action: isinstance(action, ResizePod)):
            if resizes:
                await asyncio.gather(*map(self._attempt, actions))
            else:
                await self._in_order(actions)
            if self._stale:
                break
        return Applied(tuple(self._writes.expectations), self._unanswered, tuple(self._newer), self._writes.published)

    async def _in_order(self, actions: Iterable[Action]) -> None:
        for action in actions:
            await self._attempt(action)
            if self._stale:
                break

    async def _attempt(self, action: Action) -> None:
        """Carries the action out; once a request got no answer, only those that report."""
        if self._unanswered and not isinstance(action, _REPORTS):
            self._count(action, "skipped")
            return
        try:
            await self._apply_action(action)
        except KubeError as error:
            self._count(action, "unanswered")
            log.warning("plan ended early", **self._words(action), error=str(error))
            if isinstance(action, _REPORTS):
                self._stale = True
            elif not self._dry_run_unanswered:
                self._rejections.note_unanswered(target_of(action), str(error))
            self._unanswered = self._unanswered or error

    async def _apply_action(self, action: Action) -> None:
        if isinstance(action, (CreateObject, ApplyObject)) and not await self._job_exists():
            self._end_plan()
            self._count(action, "skipped")
            return
        if isinstance(action, CreateObject) and action.dry_run and not self._dry_runs_made:
            await self._make_dry_runs()
        if self._rejections.waits(target_of(action)):
            self._end_building(action)
            self._count(action, "waiting")
        elif isinstance(action, (CreateObject, ApplyObject)) and not self._building:
            self._count(action, "skipped")
        elif (
            isinstance(action, CreateObject) and action.body["kind"] == SECRET.kind and self._rejections.secret_waits()
        ):
            self._end_building(action)
            self._count(action, "waiting")
        else:
            await self._try(action)

    async def _job_exists(self) -> bool:
        """Whether the job exists, as far as the cache shows; for one that was started, the server is asked once."""
        if not self._is_job_confirmed and self._writes.shows_job():
            self._is_job_confirmed = await self._writes.job_exists()
        return self._is_job_confirmed and self._writes.shows_job()

    async def _try(self, action: Action) -> None:
        try:
            outcome = await self._writes.execute(action)
        except KubeError as error:
            if not is_rejection(error):
                raise
            if isinstance(action, ResizePod) and isinstance(error, ConflictError):
                self._expect_newer(POD.kind, action.name, int(action.version))
                self._count(action, "outdated")
            else:
                self._rejected(action, error)
        else:
            self._rejections.clear(target_of(action))
            self._count(action, outcome)

    async def _make_dry_runs(self) -> None:
        self._dry_runs_made = True
        creates = [action for action in self._plan.actions if isinstance(action, CreateObject) and action.dry_run]
        due = [action for action in creates if not self._rejections.waits(target_of(action))]
        self._building = self._building and len(due) == len(creates)
        if error := next(filter(None, await asyncio.gather(*map(self._dry_run, due))), None):
            raise error

    async def _dry_run(self, action: CreateObject) -> KubeError | None:
        """Makes a dry run, unless one of the same shape was accepted; returns the error if there is no answer."""
        shape = action.dry_run or ""
        if self._accepted.has(self._namespace, shape):
            return None
        try:
            await self._writes.dry_run(action)
        except KubeError as error:
            if not is_rejection(error):
                self._dry_run_unanswered = True
                self._rejections.note_unanswered(target_of(action), str(error))
                return error
            self._rejected(action, error)
            self._building = False
        else:
            self._accepted.note(self._namespace, shape)
        return None

    def _rejected(self, action: Action, error: KubeError) -> None:
        self._count(action, "rejected")
        if isinstance(action, (PublishStatus, PublishGrant)):
            if not isinstance(error, (ConflictError, NotFoundError)):
                raise error  # a status that the schema rejects is our own error
            self._end_plan()
            return
        log.warning("rejected", **self._words(action), error=str(error))
        if isinstance(action, CreateObject):
            self._accepted.forget(self._namespace)
        if not isinstance(action, EmitEvent):
            self._rejections.note(target_of(action), str(error))
            self._end_building(action)

    def _end_plan(self) -> None:
        """Ends the plan because the job has changed, or is gone, since it was observed."""
        assert self._observed.job is not None
        self._stale = True
        self._expect_newer(RL_JOB.kind, self._observed.key.name, version_of(self._observed.job))

    def _expect_newer(self, kind: str, name: str, version: int) -> None:
        key = ObjectKey(kind, self._observed.key.namespace, name)
        self._newer.append(Expectation(key, version + 1))

    def _end_building(self, action: Action) -> None:
        if isinstance(action, (CreateObject, ApplyObject)) and action.body["kind"] not in _WITHOUT_DEPENDENTS:
            self._building = False

    def _count(self, action: Action, outcome: str) -> None:
        kind = target_of(action)[0]
        ACTIONS.labels(type(action).__name__, kind, outcome).inc()
        if isinstance(action, ResizePod):
            pod = self._observed.children.get(POD.kind, {}).get(action.name, {})
            role = ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL_ROLE, "")
            RESIZES.labels(role, outcome).inc()

    def _words(self, action: Action) -> dict[str, str]:
        kind, name = target_of(action)
        return {"key": str(self._observed.key), "action": type(action).__name__, "kind": kind, "name": name}
