"""Runs that tests of the driver hold or repeat, and what they check afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.eventlog import end_of, surviving
from longboat_runtime.rollout.load import Load
from longboat_runtime.rounds import events
from longboat_runtime.rounds.measurements import Measurement
from longboat_runtime.samples import LostSample, SampleId
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from tests.driver.fakes import Crash, Site, make_spec


def history(site: Site) -> list[events.Body | Measurement]:
    """The surviving events of all incarnations, without times, starts, and publications after a start."""
    kept = [e.body for e in surviving(site.root, end_of(site.root, site.incarnation))]
    return [b for b in kept if not isinstance(b, (events.Started, events.PublishStarted, events.Published))]


def trained(site: Site) -> list[tuple[int, tuple[SampleId, ...]]]:
    return [(b.step, b.samples) for b in history(site) if isinstance(b, events.StepCommitted)]


def manifests(root: Path) -> list[dict[str, Any]]:
    """The driver's state in all complete checkpoints."""
    found = sorted(root.glob("incarnations/*/*/manifest.json"))
    return [json.loads((path.parent / "state.json").read_text()) for path in found]


def saved_steps(root: Path) -> list[int]:
    return [manifest["ledger"]["step"] for manifest in manifests(root)]


def crash_once_saved(site: Site, step: int, saved: int) -> None:
    """Ends the driver before it trains `step`, with the checkpoint of step `saved` as its newest."""
    train, publish, complete = site.trainer.train, site.broker.publish, asyncio.Event()

    def noted(status: DriverStatus) -> None:
        publish(status)
        if status.checkpoint and status.checkpoint.step == saved:
            complete.set()
            site.trainer.may_write.clear()

    async def crashing(request: TrainRequest) -> TrainReport:
        if request.step != step:
            return await train(request)
        await complete.wait()
        raise Crash("a rank died")

    site.broker.publish = noted
    site.trainer.train = crashing


PartT = TypeVar("PartT", bound=Observer)


def part(driver: Driver, kind: type[PartT]) -> PartT:
    """The observer of this kind."""
    return next(observer for observer in driver._observers if isinstance(observer, kind))


async def finished(root: Path, **spec: Any) -> Site:
    site = Site(root, make_spec(**spec))
    assert await site.driver().run() is RunOutcome.DONE
    return site


async def until(condition: Callable[[], bool], driver_task: asyncio.Task) -> None:
    while not condition():
        assert not driver_task.done(), driver_task.exception()
        await asyncio.sleep(0)


# Preemptions of a round, more than it has responses.
MANY = 100


def with_loads(site: Site) -> Site:
    """Its engines have been busy in each round."""
    made = site.driver

    def driver(*arguments: Any, **named: Any) -> Any:
        started = made(*arguments, **named)

        async def loads() -> dict[str, Load]:
            size = site.fleet.tensor_parallel
            return {f"engine-{i}": Load(size, preemptions=MANY, generated_tokens=100) for i in range(4 // size)}

        site.fleet.loads = loads
        return started

    site.driver = driver
    return site


# The response that hangs in `held`.
SLOW = SampleId(0, 0, 0, 0)


@asynccontextmanager
async def held(site: Site) -> AsyncIterator[Callable[[Callable[[], bool]], Awaitable[None]]]:
    """A job in whose first round a response hangs until the block ends; the job then runs to its end."""
    driver = site.driver()
    site.fleet.hang = {SLOW}
    job = asyncio.create_task(driver.run())

    async def until(true: Callable[[], bool]) -> None:
        while not true():
            assert not job.done(), job.result()
            await asyncio.sleep(0)

    await until(lambda: site.fleet.running.keys() == site.fleet.hang)
    yield until
    site.fleet.hang.clear()
    site.rewards.loads = {}
    site.fleet.done.put_nowait(LostSample(SLOW, "its engine is gone"))
    assert await job is RunOutcome.DONE
