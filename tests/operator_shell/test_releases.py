"""A job is left to the release that its status names while that release holds its Lease, as far as can be known."""

from __future__ import annotations

from typing import Any

import pytest

from longboat_operator.kube.errors import ForbiddenError, NotFoundError, TransportError
from longboat_operator.model import JobKey
from longboat_operator.releases import READ_SECONDS, Releases

KEY = JobKey("a", "x")
OWN, OTHER = "mine/longboat", "theirs/longboat"


class World:
    """The Lease of another release, and the Events that were sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lease: Any = {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": "first"}
        self.reads: list[tuple[str, str]] = []
        self.events: list[str] = []
        itself: Any = self
        self.releases = Releases(itself, itself, OWN, lambda: self.now)

    async def get(self, _: Any, namespace: str, name: str) -> dict[str, Any]:
        self.reads.append((namespace, name))
        if isinstance(self.lease, Exception):
            raise self.lease
        return {"spec": dict(self.lease)}

    async def record(self, _: Any, event: Any) -> None:
        self.events.append(event.reason)

    async def leaves(self, operator: str | None, after: float = 0.0) -> bool:
        self.now += after
        return await self.releases.leave(KEY, {"metadata": {}, "status": {"operator": operator} if operator else {}})


@pytest.mark.parametrize("operator", [None, OWN])
async def test_a_job_of_no_other_release_costs_no_request(operator: str | None) -> None:
    world = World()
    assert not await world.leaves(operator)
    assert world.reads == []


async def test_a_job_is_left_alone_while_the_lease_is_renewed_and_that_is_said_once() -> None:
    world = World()
    for renewal in range(5):
        world.lease["renewTime"] = str(renewal)
        assert await world.leaves(OTHER, after=READ_SECONDS)
        assert await world.leaves(OTHER)
    assert world.reads == [("theirs", "longboat")] * 5
    assert world.events == ["ServedByAnotherRelease"]
    assert world.releases.jobs == {KEY: OTHER}


async def test_a_lease_that_is_no_longer_renewed_is_taken_for_expired_by_the_own_clock() -> None:
    world = World()
    assert await world.leaves(OTHER)
    assert await world.leaves(OTHER, after=READ_SECONDS)
    assert not await world.leaves(OTHER, after=READ_SECONDS)
    assert world.releases.jobs == {}


async def test_a_lease_is_not_taken_for_expired_before_it_was_read_again() -> None:
    world = World()
    world.lease["leaseDurationSeconds"] = 5
    for renewal in range(5):
        world.lease["renewTime"] = str(renewal)
        assert await world.leaves(OTHER, after=READ_SECONDS - 1.0)


@pytest.mark.parametrize("lease", [NotFoundError(404, "NotFound", "none"), {"holderIdentity": ""}])
async def test_an_absent_lease_or_one_that_was_given_up_is_free(lease: Any) -> None:
    world = World()
    world.lease = lease
    assert not await world.leaves(OTHER)
    assert world.events == []


@pytest.mark.parametrize("error", [ForbiddenError(403, "Forbidden", "no"), TransportError("silence")])
async def test_a_lease_that_cannot_be_read_counts_as_held(error: Exception) -> None:
    world = World()
    world.lease = error
    for _ in range(5):
        assert await world.leaves(OTHER, after=10 * READ_SECONDS)
    world.lease = {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": "first"}
    assert await world.leaves(OTHER, after=READ_SECONDS)
    assert not await world.leaves(OTHER, after=2 * READ_SECONDS)


async def test_a_lease_whose_read_takes_long_is_not_read_for_each_job() -> None:
    world = World()
    read = world.get

    async def slow(*arguments: Any) -> dict[str, Any]:
        world.now += READ_SECONDS
        return await read(*arguments)

    world.get = slow  # type: ignore[method-assign]
    world.lease = TransportError("silence")
    assert [await world.leaves(OTHER) for _ in range(5)] == [True] * 5
    assert len(world.reads) == 1


async def test_jobs_that_name_another_release_share_its_lease() -> None:
    world = World()
    for name in "xyz":
        job = {"metadata": {}, "status": {"operator": OTHER}}
        assert await world.releases.leave(JobKey("a", name), job)
    assert len(world.reads) == 1
    assert len(world.events) == 3
    assert not await world.releases.leave(JobKey("a", "x"), None)  # it was deleted
    assert set(world.releases.jobs) == {JobKey("a", "y"), JobKey("a", "z")}
