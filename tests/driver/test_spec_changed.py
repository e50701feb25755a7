"""Edits of a running job's spec, through the driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import spec_problem_in
from longboat_crds.status import TrainingState
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.driver.engines import EngineWatch
from longboat_runtime.driver.kubernetes_broker import KubernetesBroker
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.eventlog import LogPosition
from longboat_runtime.metrics.record import Record
from longboat_runtime.rollout.protocol import FleetState, PublicationReport
from longboat_runtime.rounds import events
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.samples import SampleId
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from longboat_runtime.weights.publication import WeightPublication
from tests.driver.fakes import Crash, Site, make_spec
from tests.driver.runs import crash_once_saved, finished, history, manifests, part, saved_steps, trained, until
from tests.support.replay import replay

POLICIES = ({}, {"policy": "TailBatching"}, {"policy": "ContinueUnfinished"}, {"policy": "BoundedAsync"})
every_policy = pytest.mark.parametrize("rounds", POLICIES, ids=lambda rounds: rounds.get("policy", "Synchronous"))


def at_step(site: Site, step: int, happen: Callable[[], object]) -> None:
    """Something happens while the trainer computes this step, and the driver gets to know of it."""
    train = site.trainer.train

    async def trains(request: TrainRequest) -> TrainReport:
        if request.step == step:
            happen()
            for _ in range(10):
                await asyncio.sleep(0)
        return await train(request)

    site.trainer.train = trains


def once_saved(site: Site, number: int, happen: Callable[[], object]) -> None:
    """Something happens while this checkpoint is written, and the driver gets to know of it."""
    write = site.trainer.write

    async def writes(directory: Path) -> Sequence[FileEntry]:
        if site.trainer.writes + 1 == number:
            happen()
            for _ in range(10):
                await asyncio.sleep(0)
        return await write(directory)

    site.trainer.write = writes


def before_report(driver: Driver, step: int, happen: Callable[[], object]) -> None:
    """Something happens just before the report of this step is handled."""
    finish = driver._context.reports.finish

    def finish_and_happen(number: int, **options: Any) -> Record:
        if number == step:
            happen()
        return finish(number, **options)

    driver._context.reports.finish = finish_and_happen


def horizons(site: Site) -> list[tuple[int, int]]:
    return [(request.step, request.steps) for request in site.trainer.requests]


def changes(site: Site) -> list[tuple[int, events.SpecChanged]]:
    """The recorded edits, each with the number of steps committed before it."""
    found, step = [], 0
    for body in history(site):
        if isinstance(body, events.SpecChanged):
            found.append((step, body))
        step += isinstance(body, events.StepCommitted)
    return found


@every_policy
async def test_more_steps_while_the_job_runs(tmp_path: Path, rounds: dict[str, str]) -> None:
    site = Site(tmp_path, make_spec(steps=4, **rounds))
    driver = site.driver()
    at_step(site, 2, lambda: site.broker.edit(rounds={"steps": 7}))
    assert await driver.run() is RunOutcome.DONE
    assert [len(samples) for _, samples in trained(site)] == [4] * 7
    assert changes(site) == [(1, events.SpecChanged(7, 2, 10))], "before the commit of the step that was being made"
    assert horizons(site) == [(1, 4), (2, 4), (3, 7), (4, 7), (5, 7), (6, 7), (7, 7)]
    assert saved_steps(tmp_path) == [2, 4, 6, 7]
    for manifest in manifests(tmp_path):
        assert manifest["ledger"]["steps"] == 7
        assert to_snapshot(replay(tmp_path, LogPosition(**manifest["log"]))) == manifest["ledger"]
    status = site.broker.status.training
    assert (status.state, status.step, status.steps) == (TrainingState.SUCCEEDED, 7, 7)


@every_policy
async def test_more_steps_while_the_last_one_is_made(tmp_path: Path, rounds: dict[str, str]) -> None:
    site = Site(tmp_path, make_spec(steps=3, **rounds))
    driver = site.driver()
    at_step(site, 3, lambda: site.broker.edit(rounds={"steps": 5}))
    assert await driver.run() is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4, 5]
    assert saved_steps(tmp_path) == [2, 4, 5], "step 3 was not the last one any more"


@every_policy
@pytest.mark.parametrize("when", ["saved", "reported"])
async def test_more_steps_when_the_last_one_is_committed(tmp_path: Path, rounds: dict[str, str], when: str) -> None:
    site = Site(tmp_path, make_spec(steps=3, **rounds))
    driver = site.driver()
    if when == "saved":
        once_saved(site, 2, lambda: site.broker.edit(rounds={"steps": 5}))
    else:
        # Both wait in the inbox: the edit, and after it the end of the job.
        before_report(driver, 3, lambda: driver._inbox.put_nowait(events.SpecChanged(5, 2, 10)))
    assert await driver.run() is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4, 5]
    assert saved_steps(tmp_path) == [2, 3, 4, 5]
    assert changes(site) == [(3, events.SpecChanged(5, 2, 10))]


async def test_more_steps_requested_after_the_end_are_left_to_the_next_driver(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=3, checkpoint={"export": False}))
    driver = site.driver()
    site.broker.publish, publish = (
        lambda status: (publish(status), status.training.state is TrainingState.SUCCEEDED and edit()),
        site.broker.publish,
    )

    def edit() -> None:
        site.broker.edit(rounds={"steps": 5})

    assert await driver.run() is RunOutcome.DONE
    status = site.broker.status.training
    assert (status.state, status.step, status.steps) == (TrainingState.SUCCEEDED, 3, 3), "which the operator sees"
    site.spec = make_spec(steps=5)
    assert await site.driver().run() is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4, 5]
    assert horizons(site) == [(4, 5), (5, 5)]
    assert changes(site) == [(3, events.SpecChanged(5, 2, 10))]


@every_policy
async def test_fewer_steps_than_are_done_end_the_job_with_the_step_that_is_made(
    tmp_path: Path, rounds: dict[str, str]
) -> None:
    site = Site(tmp_path, make_spec(steps=9, **rounds))
    driver = site.driver()
    at_step(site, 3, lambda: site.broker.edit(rounds={"steps": 1}))
    assert await driver.run() is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [1, 2, 3]
    assert saved_steps(tmp_path) == [2, 3]
    status = site.broker.status.training
    assert (status.state, status.step, status.steps) == (TrainingState.SUCCEEDED, 3, 1)


@every_policy
async def test_fewer_steps_when_the_last_one_is_published_leave_nothing_unsaved(
    tmp_path: Path, rounds: dict[str, str]
) -> None:
    """Step 3 was not the last step when it was committed, and the checkpoint of step 2 is still being written."""
    site = Site(tmp_path, make_spec(steps=9, **rounds))
    driver = site.driver()
    site.trainer.may_write.clear()
    publish = site.fleet.publish

    async def publishes(publication: WeightPublication) -> PublicationReport:
        if publication.version == 3:
            site.broker.edit(rounds={"steps": 3})
            site.trainer.may_write.set()
            for _ in range(10):
                await asyncio.sleep(0)
        return await publish(publication)

    site.fleet.publish = publishes
    assert await driver.run() is RunOutcome.DONE
    last, _ = trained(site)[-1]
    assert last in (3, 4), "a step that was being made is the last one"
    assert saved_steps(tmp_path) == [2, last]


@every_policy
@pytest.mark.parametrize("steps", [3, 5, 7])
async def test_a_job_that_resumes_follows_its_current_spec(tmp_path: Path, rounds: dict[str, str], steps: int) -> None:
    """Past its last step there is nothing more to do, and the job has succeeded."""
    site = await finished(tmp_path, steps=5, **rounds)
    site.spec = make_spec(steps=steps, **rounds)
    assert await site.driver().run() is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [*range(1, max(5, steps) + 1)]
    assert changes(site) == ([] if steps == 5 else [(5, events.SpecChanged(steps, 2, 10))])
    assert site.broker.status.training.state is TrainingState.SUCCEEDED


@pytest.mark.parametrize("steps", [2, 4, 6])
async def test_a_job_from_the_checkpoint_of_another_has_its_own_number_of_steps(tmp_path: Path, steps: int) -> None:
    before = await finished(tmp_path / "first", steps=4)
    after = Site(tmp_path / "second", make_spec(steps=steps), adopted=before.root)
    assert await after.driver().run() is RunOutcome.DONE
    assert [step for step, _ in trained(after)] == [*range(5, steps + 1)]
    assert after.broker.status.checkpoint.step == max(4, steps)
    assert after.broker.status.checkpoint.export is not None


async def test_after_an_edit_a_resumed_job_repeats_bit_for_bit(tmp_path: Path) -> None:
    weights = []
    for name, crashes in (("whole", False), ("broken", True)):
        site = Site(tmp_path / name, make_spec(steps=4))
        driver = site.driver()
        at_step(site, 3, lambda site=site: site.broker.edit(rounds={"steps": 7}))
        if crashes:
            crash_once_saved(site, step=6, saved=4)
            with pytest.raises(ExceptionGroup) as died:
                await driver.run()
            assert died.group_contains(Crash)
            site.spec = make_spec(steps=7)
            driver = site.driver(order=3)
        assert await driver.run() is RunOutcome.DONE
        weights.append(site.trainer.weights)
        assert horizons(site)[-3:] == [(5, 7), (6, 7), (7, 7)]
    assert weights[0] == weights[1]


async def test_an_edit_of_what_no_running_job_follows_is_no_event(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    at_step(site, 2, lambda: site.broker.edit(checkpoint={"grace_seconds": 7}))
    assert await driver.run() is RunOutcome.DONE
    assert changes(site) == []


async def test_checkpoints_are_made_and_kept_as_the_spec_says_now(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=9))
    driver = site.driver()
    at_step(site, 5, lambda: site.broker.edit(checkpoint={"every_steps": 3, "keep": 2}))
    assert await driver.run() is RunOutcome.DONE
    assert saved_steps(tmp_path) == [6, 9], "of 2, 4, 6 and 9"
    assert changes(site) == [(4, events.SpecChanged(9, 3, 2))]


@pytest.mark.parametrize("limit", [1, 5])
async def test_the_limit_of_engines_that_die_is_that_of_the_spec_now(tmp_path: Path, limit: int) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.fleet.hang = {SampleId(0, 0, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    site.broker.edit(failure_policy={"max_rollout_restarts": limit})
    await until(lambda: part(driver, EngineWatch).limit == limit, running)
    site.fleet.set_state(FleetState(("a",), deaths=3, last_death="engine a died: out of memory"))
    if limit < 3:
        with pytest.raises(ExceptionGroup) as failed:
            await running
        assert spec_problem_in(failed.value).field == "spec.failurePolicy.maxRolloutRestarts"
    else:
        site.broker.suspend()
        assert await running is RunOutcome.SUSPENDED


class StoredJob:
    """Stands in for the API server's RLJob: the watch sees what is put into `news`."""

    def __init__(self, spec: RLJobSpec) -> None:
        self.news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._object = {"metadata": {"uid": "uid", "resourceVersion": "1"}, "spec": spec.to_json()}

    async def get(self) -> dict[str, Any]:
        return self._object

    async def watch(self, resource_version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        while True:
            yield "MODIFIED", {**self._object, "spec": await self.news.get()}

    async def close(self) -> None: ...


async def test_the_broker_returns_every_edit_that_it_understands() -> None:
    specs = [make_spec(steps=steps) for steps in (3, 5, 7)]
    stored = StoredJob(specs[0])
    broker = KubernetesBroker(stored, lambda: 0.0)  # type: ignore[arg-type]
    await broker.start()
    hearing = asyncio.create_task(broker.edited(specs[0]))
    stored.news.put_nowait(specs[0].to_json())
    stored.news.put_nowait({**specs[1].to_json(), "ofANewerVersion": True})
    for _ in range(20):
        await asyncio.sleep(0)
    assert not hearing.done()
    stored.news.put_nowait(specs[1].to_json())
    assert await hearing == specs[1]
    stored.news.put_nowait(specs[2].to_json())
    assert await broker.edited(specs[1]) == specs[2]
    assert await broker.edited(specs[1]) == specs[2], "also one that nobody waited for"
    await broker.close()
