"""However the two processes are delayed or suspended, never may both write."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from longboat_operator.kube.config import ConfigurationError
from longboat_operator.kube.errors import AlreadyExistsError, ConflictError, NotFoundError, TransportError
from longboat_operator.lease import Elector, Leadership, LeadershipLostError, Seen, may_take, see
from tests.support.examples import examples

DURATION, RETRY, REQUEST = 15.0, 2.0, 5.0


class World:
    """One clock, one lease; every request takes as long as told, and may lose its answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lease: dict[str, Any] | None = None
        self.version = 0


class LeaseClient:
    """The three requests an elector makes. The write takes effect after `before` and is answered after `after` seconds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.before = self.after = 0.0
        self.answer_lost = False

    async def get(self, *_: Any) -> dict[str, Any]:
        self.world.now += self.before
        if self.world.lease is None:
            raise NotFoundError(404, "NotFound", "no lease")
        lease = copy.deepcopy(self.world.lease)
        self.world.now += self.after
        return lease

    async def create(self, _: Any, body: Any, **__: Any) -> dict[str, Any]:
        if self.world.lease is not None:
            raise AlreadyExistsError(409, "AlreadyExists", "there is one")
        return self._store(body)

    async def replace(self, _: Any, body: Any) -> dict[str, Any]:
        if self.world.lease is None or body["metadata"]["resourceVersion"] != str(self.world.version):
            raise ConflictError(409, "Conflict", "changed meanwhile")
        return self._store(body)

    def _store(self, body: Any) -> dict[str, Any]:
        self.world.now += self.before
        self.world.version += 1
        self.world.lease = copy.deepcopy(
            {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.world.version)}}
        )
        self.world.now += self.after
        if self.answer_lost:
            raise TransportError("no answer")
        return copy.deepcopy(self.world.lease)


def elector(world: World, identity: str) -> tuple[Elector, LeaseClient]:
    client = LeaseClient(world)
    made = Elector(client, "a", "lease", identity, REQUEST, DURATION, RETRY, clock=lambda: world.now)  # type: ignore[arg-type]
    return made, client


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),  # who moves
        st.sampled_from([0.0, 1.0, 2.0, 5.0, 7.9, 8.1, 9.0, 14.0, 15.0, 40.0]),  # after how long (suspension included)
        st.sampled_from([0.0, 0.1, REQUEST / 2]),  # request on its way
        st.sampled_from([0.0, 0.1, REQUEST / 2]),  # answer on its way
        st.booleans(),  # answer lost
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=examples(100))
@given(STEPS)
def test_never_two_writers(steps: list[tuple[int, float, float, float, bool]]) -> None:
    world = World()
    pair = [elector(world, "first"), elector(world, "second")]

    async def play() -> None:
        for who, pause, before, after, lost in steps:
            world.now += pause
            elector_, client = pair[who]
            client.before, client.after, client.answer_lost = before, after, lost
            await elector_._try_once()
            held = [each.leadership.may_write for each, _ in pair]
            assert not all(held), (world.now, world.lease)
            # A write begun now ends within REQUEST: nobody else may hold the lease by then at the earliest takeover.
            for (each, _), holds in zip(pair, held, strict=True):
                if holds:
                    assert each.leadership.remaining() + REQUEST < DURATION

    asyncio.run(play())


@pytest.mark.parametrize("tenths", range(0, 200, 5))
async def test_nobody_takes_over_while_the_holders_last_write_may_be_under_way(tenths: int) -> None:
    world = World()
    (first, _), (second, _) = elector(world, "first"), elector(world, "second")
    await first._try_once()
    await second._try_once()  # sees the renewal the moment it is made: the earliest takeover there is
    world.now = (
        first.leadership.remaining() + REQUEST - 0.001
    )  # the last write began at the last moment and takes its time
    assert not await second._try_once()
    world.now = tenths / 10
    assert (await second._try_once()) is (world.now >= DURATION)


async def test_a_standby_takes_over_when_the_holder_falls_silent_and_the_old_one_may_not_write() -> None:
    world = World()
    (first, _), (second, _) = elector(world, "first"), elector(world, "second")
    assert await first._try_once()
    first.leadership.check()
    assert not await second._try_once()
    world.now += DURATION
    assert await second._try_once()
    second.leadership.check()
    with pytest.raises(LeadershipLostError):
        first.leadership.check()
    world.now += 1.0
    assert not await first._try_once()
    with pytest.raises(LeadershipLostError):
        first.leadership.check()


async def test_a_released_lease_is_taken_at_once() -> None:
    world = World()
    (first, _), (second, _) = elector(world, "first"), elector(world, "second")
    await first._try_once()
    assert not await second._try_once()
    await first.release()
    with pytest.raises(LeadershipLostError):
        first.leadership.check()
    assert await second._try_once()
    assert world.lease is not None
    assert world.lease["spec"]["holderIdentity"] == "second"
    assert world.lease["spec"]["leaseTransitions"] == 2


class SlowToAnswer(LeaseClient):
    """Stores a lease at once, but answers only once `answer` is set."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.answer = asyncio.Event()

    async def replace(self, *lease: Any) -> dict[str, Any]:
        stored = await super().replace(*lease)
        await self.answer.wait()
        return stored


async def test_a_lease_is_released_although_a_renewal_is_under_way() -> None:
    world = World()
    (first, _), (second, _) = elector(world, "first"), elector(world, "second")
    first._client = slow = SlowToAnswer(world)  # type: ignore[assignment]
    await first._try_once()
    renewing, releasing = asyncio.create_task(first._try_once()), asyncio.create_task(first.release())
    for _ in range(10):
        await asyncio.sleep(0)
    slow.answer.set()
    assert await renewing
    await releasing
    with pytest.raises(LeadershipLostError):
        first.leadership.check()
    assert await second._try_once()


async def test_a_renewal_whose_answer_got_lost_keeps_the_lease() -> None:
    world = World()
    first, client = elector(world, "first")
    assert await first._try_once()
    client.answer_lost = True
    assert not await first._try_once()
    client.answer_lost = False
    assert await first._try_once()
    first.leadership.check()


def test_once_lost_is_lost_for_ever() -> None:
    now = 0.0
    leadership = Leadership(write_seconds=9.0, clock=lambda: now)
    with pytest.raises(LeadershipLostError, match="not the leader"):
        leadership.check()
    leadership.renewed(0.0)
    leadership.check()
    now = 9.0
    with pytest.raises(LeadershipLostError, match="lost"):
        leadership.check()
    leadership.renewed(9.0)
    with pytest.raises(LeadershipLostError, match="lost"):
        leadership.check()


def test_only_a_change_of_the_lease_resets_the_wait() -> None:
    lease = {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "t1", "leaseTransitions": 0}}
    first = see(None, lease, 10.0)
    assert see(first, lease, 20.0).since == 10.0
    renewed = {"spec": {**lease["spec"], "renewTime": "t2"}}
    assert see(first, renewed, 20.0).since == 20.0


@pytest.mark.parametrize(
    ("seen", "now", "expected"),
    [
        (None, 0.0, True),
        (Seen("", 15.0, ("", "", ""), 0.0), 1.0, True),
        (Seen("me", 15.0, ("", "", ""), 0.0), 1.0, True),
        (Seen("other", 15.0, ("", "", ""), 0.0), 14.9, False),
        (Seen("other", 15.0, ("", "", ""), 0.0), 15.0, True),
    ],
)
def test_who_may_take(seen: Seen | None, now: float, expected: bool) -> None:
    assert may_take(seen, "me", now) is expected


def test_a_lease_too_short_for_its_requests_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"--lease-duration: .* above 8, which is 3 more than --request-timeout, not 8$"
    ):
        Elector(LeaseClient(World()), "a", "lease", "me", request_seconds=5.0, duration_seconds=8.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_lease_without_an_end_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="--lease-duration: must be a finite number"):
        Elector(LeaseClient(World()), "a", "lease", "me", request_seconds=5.0, duration_seconds=seconds)  # type: ignore[arg-type]
