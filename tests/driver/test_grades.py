"""When the driver asks for grades, what it says of them, and when it no longer wants them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.stages import Stage
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.rounds import events
from longboat_runtime.samples import Grade, GradeKind, SampleId
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history
from tests.driver.test_loop import until


async def test_grades_of_a_group_that_the_round_leaves_are_given_up_and_are_no_errors(tmp_path: Path) -> None:
    """The third prompt has one response that is being graded and one that doesn't end; then the other two are complete."""
    site = Site(tmp_path, make_spec(policy="TailBatching", prompt_overcommit=1.5, steps=4))
    driver = site.driver()
    unfinished, grading, last = SampleId(0, 2, 0, 1), SampleId(0, 2, 0, 0), SampleId(0, 0, 0, 0)
    site.fleet.hang, site.rewards.held = {unfinished, last}, {grading}
    running = asyncio.create_task(driver.run())
    await until(lambda: grading in site.rewards.asked, running)
    site.fleet.hang = {unfinished}
    await site.fleet.submit([request for request in site.fleet.requests if request.id == last])
    assert await running is RunOutcome.DONE
    assert site.rewards.given_up == {grading}
    bodies = history(site)
    assert not [body for body in bodies if isinstance(body, events.Graded | events.Lost) and body.sample == grading]
    assert {body.kind for body in bodies if isinstance(body, events.Graded)} == {GradeKind.SCORED}
    assert Stage.REWARD not in site.reporter.stages.active
    assert SampleId(0, 2, 1, 0) in site.rewards.graded, "its next attempt is graded like any other"


async def test_a_response_is_graded_while_others_of_its_group_are_generated(tmp_path: Path) -> None:
    """So what a group still lacks is known when the next one is asked for."""
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    last = SampleId(0, 0, 0, 1)
    site.fleet.hang = {last}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.samples == "2 kept, 1 rewarded, 1 running", running)
    site.fleet.hang = set()
    await site.fleet.submit([request for request in site.fleet.requests if request.id == last])
    assert await running is RunOutcome.DONE
    assert site.rewards.asked[SampleId(0, 0, 0, 0)] == Urgency(round=1, missing=2)
    assert site.rewards.asked[last] == Urgency(round=1, missing=1)


async def test_grading_overlaps_the_next_rounds_where_the_policy_allows(tmp_path: Path) -> None:
    """While a grade of the first round is awaited, a response of the second is generated and graded."""
    site = Site(tmp_path, make_spec(policy="BoundedAsync", max_staleness=2, steps=4))
    driver = site.driver()
    held = SampleId(0, 0, 0, 0)
    site.rewards.held = {held}
    running = asyncio.create_task(driver.run())
    await until(lambda: any(asked.round == 2 for asked in site.rewards.asked.values()), running)
    second = {sample for sample, asked in site.rewards.asked.items() if asked.round == 2}
    await until(lambda: any(site.rewards.graded[sample] for sample in second), running)
    assert not site.rewards.graded[held]
    site.rewards.held = set()
    assert await running is RunOutcome.DONE


async def test_data_that_the_store_has_lost_is_generated_again(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    lost = site.rewards.held = {SampleId(0, 0, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: lost <= site.rewards.asked.keys(), running)
    await site.store.delete([*lost])
    site.rewards.held = set()
    assert await running is RunOutcome.DONE
    assert [body.sample for body in history(site) if isinstance(body, events.Relaunched)] == [*lost]


async def test_an_error_in_grading_that_is_no_loss_of_data_ends_the_run(tmp_path: Path) -> None:
    """Else a bug would have its sample generated again, forever."""
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    asked: set[SampleId] = set()

    async def broken(sample: SampleId, *_: object, **__: object) -> Grade:
        assert sample not in asked, "generated again"
        asked.add(sample)
        raise KeyError("text")

    site.rewards.grade = broken
    with pytest.raises(ExceptionGroup) as ended:
        await driver.run()
    assert ended.group_contains(KeyError, match="text")


async def test_an_evaluation_s_grades_come_first(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1, evaluation={"every_steps": 1}))
    assert await site.driver().run() is RunOutcome.DONE
    evaluated = {asked for sample, asked in site.rewards.asked.items() if sample.epoch < 0}
    assert evaluated
    assert max(evaluated) < min(asked for sample, asked in site.rewards.asked.items() if sample.epoch >= 0)
