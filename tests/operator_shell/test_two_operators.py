"""Two operators that serve the same job, or one whose answers get lost, leave few Secrets and write its status seldom."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from longboat_crds.status import DRIVER_FIELDS
from longboat_operator.apply import Applier
from longboat_operator.controller import Controller
from longboat_operator.dry_runs import AcceptedDryRuns
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TransportError,
)
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import BY_KIND, EVENT, POD, RL_JOB, SECRET, Resource
from longboat_operator.lookups import LookUps
from longboat_operator.model import FIELD_MANAGER, JobKey, Key, Object
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.pod_warnings import PodWarnings
from longboat_operator.queue import WorkQueue
from longboat_operator.watch.cache import Cache
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.trim import trim
from tests.operator_plan.simulated_cluster import runtime_of, spec_of

KEY = JobKey("a", "sums")
# How long each case lasts, and how often operators get a turn, in seconds of the simulated clock.
SECONDS, TURN = 150.0, 0.1


class Server:
    """An API server that refuses pods. It tells every operator each change; the answer to the creation of a Secret may get lost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.version = 0
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.operators: list[Operator] = []
        self.writes: list[str] = []
        self.loses_secrets = False

    def store(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        stored = copy.deepcopy(dict(body))
        metadata = {"namespace": KEY.namespace, "uid": f"uid-{self.version}"} | stored["metadata"]
        stored["metadata"] = metadata | {"resourceVersion": str(self.version)}
        self.objects[stored["kind"], metadata["name"]] = stored
        if stored["kind"] not in (SECRET.kind, EVENT.kind):
            for operator in self.operators:
                operator.see(stored)
        return copy.deepcopy(stored)

    def names(self, kind: str) -> list[str]:
        return [name for each, name in self.objects if each == kind]

    async def create(self, resource: Resource, body: Object, *, dry_run: bool = False) -> dict[str, Any]:
        name = body["metadata"]["name"]
        if resource is POD:
            raise ForbiddenError(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: none')
        if (resource.kind, name) in self.objects:
            raise AlreadyExistsError(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        if dry_run:
            return dict(body)
        stored = self.store(body)
        if resource is SECRET and self.loses_secrets:
            raise TransportError("no answer in time")
        return stored

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        if (resource.kind, name) not in self.objects:
            raise NotFoundError(404, "NotFound", f'{resource.plural} "{name}" not found')
        return copy.deepcopy(self.objects[resource.kind, name])

    async def apply_new(self, resource: Resource, body: Object) -> dict[str, Any]:
        return await self.apply(resource, body)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Object, *_: Any) -> dict[str, Any]:
        return self.store(self.objects[resource.kind, name] | {"kind": resource.kind})

    async def apply(
        self, resource: Resource, body: Object, *, subresource: str = "", manager: str = FIELD_MANAGER
    ) -> dict[str, Any]:
        if subresource != "status":
            return self.store(self.objects.get((resource.kind, body["metadata"]["name"]), {}) | dict(body))
        job = self.objects[resource.kind, body["metadata"]["name"]]
        if body["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "the object has been modified")
        before, status = job["status"], copy.deepcopy(dict(body["status"]))
        grant = before.get("allocation", {}).get("grant")
        if manager == FIELD_MANAGER:
            self.writes.append("status")
            status |= {name: before[name] for name in DRIVER_FIELDS & before.keys()}
        else:
            grant = status.get("allocation", {}).get("grant")
            status = before
        allocation = status.get("allocation", {}) | ({"grant": grant} if grant is not None else {})
        return self.store(job | {"status": status | {"allocation": allocation}})


class Operator:
    """One operator's process: all of it but its watches and its lease."""

    def __init__(self, server: Server, name: str) -> None:
        self.cache: Cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue(clock=lambda: server.now)
        client: Any = server
        clock = ServerClock()
        recorder = EventRecorder(client, clock, name)
        applier = Applier(client, self.cache, recorder, AcceptedDryRuns(lambda: server.now))
        look_ups = LookUps(client, PodWarnings(client, lambda: server.now), clock, lambda: server.now)
        self.controller = Controller(
            self.cache,
            self.queue,
            observe,
            plan,
            look_ups,
            applier,
            Freshness([], []),
            clock,
            clock=lambda: server.now,
        )
        for stored in server.objects.values():
            if stored["kind"] not in (SECRET.kind, EVENT.kind):
                self.see(stored)
        self.controller.lead()
        server.operators.append(self)

    def see(self, stored: Mapping[str, Any]) -> None:
        change = self.cache.put(trim({**stored, "apiVersion": BY_KIND[stored["kind"]].api_version}))
        if change is not None:
            self.controller.changed(change)

    async def turn(self, now: float) -> None:
        """Makes one plan of each key that is due."""
        due = []
        while (key := self.queue._schedule.take(now)) is not None:
            due.append(key)
        for key in due:
            await self.controller.reconcile(key)
            self.queue.done(key)


@pytest.fixture
def server() -> Server:
    made = Server()
    metadata = {
        "namespace": KEY.namespace,
        "name": KEY.name,
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    made.store(
        {"apiVersion": RL_JOB.api_version, "kind": RL_JOB.kind, "metadata": metadata, "spec": spec_of(), "status": {}}
    )
    runtime = runtime_of()
    made.store({**runtime, "metadata": {"namespace": "", **runtime["metadata"]}})
    return made


async def run(server: Server, operators: int) -> None:
    made = [Operator(server, f"operator-{number}") for number in range(operators)]
    while server.now < SECONDS:
        for operator in made:
            await operator.turn(server.now)
        server.now += TURN


async def test_two_operators_leave_few_secrets_and_statuses_of_a_job_whose_pods_are_refused(server: Server) -> None:
    await run(server, 2)
    assert server.names("Secret")
    assert len(server.names("Secret")) <= 16
    assert len(server.writes) <= 60


async def test_one_operator_does_so_too(server: Server) -> None:
    await run(server, 1)
    assert len(server.names("Secret")) == 1
    assert 1 <= len(server.writes) <= 10


async def test_secrets_whose_creation_is_never_answered_are_few(server: Server) -> None:
    server.loses_secrets = True
    await run(server, 1)
    assert server.names("Secret")
    assert len(server.names("Secret")) <= 8
    assert len(server.writes) <= 20
