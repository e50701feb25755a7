"""Workers on the queue: nobody waits while there is work, and a key is never in two hands."""

from __future__ import annotations

import asyncio

from longboat_operator.health import PLANS_STUCK_SECONDS, Health, judge
from longboat_operator.queue import WorkQueue


async def test_every_key_is_worked_on_and_none_twice_at_once() -> None:
    queue: WorkQueue[int] = WorkQueue(rate=1e6, burst=1000)
    busy: set[int] = set()
    rounds: dict[int, int] = {}

    async def work() -> None:
        while (key := await queue.get()) is not None:
            assert key not in busy
            busy.add(key)
            await asyncio.sleep(0)
            rounds[key] = rounds.get(key, 0) + 1
            if rounds[key] < 3:
                queue.add(key)  # while in work: comes again
            busy.remove(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    for key in range(50):
        queue.add(key)
    while any(rounds.get(key, 0) < 3 for key in range(50)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert queue.idle(60)
    queue.close()
    await asyncio.gather(*workers)
    assert rounds == dict.fromkeys(range(50), 3)


async def test_one_wake_is_handed_on_when_several_timers_end_together() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue(clock=lambda: now)
    taken: list[str] = []

    async def work() -> None:
        key = await queue.get()
        assert key is not None
        taken.append(key)  # and never done: a second worker must take the other key

    workers = [asyncio.create_task(work()) for _ in range(2)]
    await asyncio.sleep(0)
    assert queue.idle(60)
    queue.add_after("a", 5)
    assert queue.idle(4)
    assert not queue.idle(5)
    queue.add_after("b", 5)
    await asyncio.sleep(0)
    assert not taken
    now = 5.0
    queue.add_after("c", 100)  # wakes one worker, which must wake the next
    await asyncio.gather(*workers)
    assert sorted(taken) == ["a", "b"]


async def test_failures_in_a_row_wait_longer_until_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = queue.failed("a"), queue.failed("a")
    assert second == 2 * first
    queue.succeeded("a")
    assert queue.failed("a") == first


async def test_a_closed_queue_sends_its_workers_home() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    assert await asyncio.gather(*workers) == [None, None, None]


async def test_ten_thousand_keys_of_one_namespace_look_healthy_and_hold_up_no_other() -> None:
    now, keys, plan_seconds = 0.0, 10_000, 0.3
    queue: WorkQueue[tuple[str, int]] = WorkQueue(rate=1e9, burst=keys, clock=lambda: now, group=lambda key: key[0])
    taken: list[tuple[str, int]] = []
    waited = 0.0

    async def work() -> None:
        nonlocal now, waited
        while (key := await queue.get()) is not None:
            taken.append(key)
            if len(taken) == keys // 2:
                queue.add(("small", 0))
            await asyncio.sleep(0)
            now += plan_seconds
            queue.done(key)
            if len(taken) % 50 == 0:
                assert judge([], watch_dead=False, stalled_seconds=queue.stalled_seconds, leading=True) == Health()
                waited = max(waited, queue.oldest_seconds)
            if len(taken) > keys and queue.idle(0.0):
                queue.close()

    for number in range(keys):
        queue.add(("big", number))
    await asyncio.gather(*(work() for _ in range(32)))
    assert len(taken) == keys + 1
    assert waited > PLANS_STUCK_SECONDS, "the last key's plan is long in coming, which is nothing to restart for"
    assert taken.index(("small", 0)) - keys // 2 <= 100
