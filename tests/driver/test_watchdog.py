from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from longboat_crds.status import Problem
from longboat_runtime.driver.stages import Stage
from longboat_runtime.driver.watchdog import Watchdog, message
from longboat_runtime.samples import SampleId
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import part
from tests.driver.test_loop import until


def shown(site: Site) -> Problem | None:
    site.reporter.publish()
    return site.broker.status.problem


def reported(site: Site) -> Problem:
    problem = shown(site)
    assert problem is not None
    return problem


async def test_a_stage_that_hangs_is_named_with_stacks_until_it_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample never finishes: reported after the deadline, with the stacks of all processes; cleared once it continues."""
    monkeypatch.setattr(Watchdog, "run", lambda _: asyncio.Event().wait())  # one watchdog is enough
    site = Site(tmp_path, make_spec(steps=1, stage_deadline_seconds=100))
    driver = site.driver()
    hanging = SampleId(0, 0, 0, 0)
    site.fleet.hang = {hanging}

    async def stacks() -> Mapping[str, str]:
        return {"engine-0": "Thread main:\n  step of the engine"}

    monkeypatch.setattr(site.fleet, "stacks", stacks, raising=False)
    running = asyncio.create_task(driver.run())
    await until(lambda: site.samples == "2 kept, 1 rewarded, 1 running", running)
    watchdog = part(driver, Watchdog)
    await watchdog.look()
    assert shown(site) is None
    site.seconds += 101
    await watchdog.look()
    problem = reported(site)
    assert (problem.reason, problem.fatal) == ("StageStuck", False)
    assert "in stage generate (101 s)." in problem.message
    assert "step of the engine" in problem.message
    assert "1 running" in problem.message
    assert "SampleFlow.collect waits at" in problem.message
    assert site.broker.status.training.stage == "generate"
    site.fleet.hang = set()
    request = next(request for request in site.fleet.requests if request.id == hanging)
    await site.fleet.submit([request])
    await until(lambda: Stage.GENERATE not in site.reporter.stages.active, running)
    await watchdog.look()
    assert shown(site) is None
    await running


async def test_a_component_that_does_not_answer_is_listed_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, make_spec(stage_deadline_seconds=1))
    driver = site.driver()

    async def broken() -> Mapping[str, str]:
        raise ConnectionError("the actor is gone")

    monkeypatch.setattr(site.trainer, "stacks", broken, raising=False)
    site.reporter.stages.set(Stage.TRAIN, True)
    site.seconds += 2
    await part(driver, Watchdog).look()
    assert "trainer: ...gave no stacks: ConnectionError('the actor is gone')" in reported(site).message


def test_a_thread_that_is_stuck_is_shown_whatever_its_place_and_idle_ones_once() -> None:
    idle = "".join(f'  File "pool.py", line {line}, in wait\n' for line in range(20))
    others = [f"Thread {number}:\n{idle}" for number in range(9)]
    stacks = "\n".join(['Thread engine:\n  File "engine.py", line 7, in step\n', *others, "Thread 9 (asked)"])
    text = message("generate (101 s)", "1 running", {"engine-0": stacks, "engine-1": stacks})
    assert text.count("line 7, in step") == 1
    assert text.count("line 19, in wait") == 1
    assert "engine-0: ...Thread engine" in text


async def test_missing_graders_are_reported_until_one_answers(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    watchdog = part(driver, Watchdog)
    site.reporter.stages.set(Stage.START, True)
    site.rewards.unserved = ("default",)
    await watchdog.look()
    assert shown(site) is None, "the first ones are waited for"
    site.reporter.stages.set(Stage.START, False)
    await watchdog.look()
    problem = reported(site)
    assert (problem.reason, problem.field, problem.fatal) == ("NoGraders", "spec.rewardPools[0].replicas", False)
    assert "pool default" in problem.message
    site.rewards.unserved = ()
    await watchdog.look()
    assert shown(site) is None
