"""A driver has engines reshaped beside training, as measured rounds ask for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_runtime.driver import shape_plan as module
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.shape_plan import starting_shape
from longboat_runtime.eventlog import end_of, surviving
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rollout.protocol import ReshapeReport
from longboat_runtime.rounds import events, measurements
from longboat_runtime.samples import FinishedSample, LostSample
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from tests.driver.fakes import FakeFleet, FakeTrainer, Site, make_spec
from tests.driver.runs import MANY, history, manifests

ADAPTIVE = ParallelismSpec(mode=ParallelismMode.ADAPTIVE)
DEVICES = 4


class TimedSite(Site):
    """Has 10 seconds pass with each response, however often the clock is read, which depends on how busy the machine is."""

    def open_fleet(self, order: int) -> FakeFleet:
        fleet = super().open_fleet(order)
        finished = fleet.finished

        async def timed() -> list[FinishedSample | LostSample]:
            samples = await finished()
            self.seconds += 10.0 * len(samples)
            return samples

        fleet.finished = timed  # type: ignore[method-assign]
        return fleet


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bounds_of", lambda job: Bounds((1, 2, 4), job.spec.rollout.tensor_parallel))


def site_of(root: Path, parallelism: ParallelismSpec = ADAPTIVE, **rounds: Any) -> Site:
    spec = make_spec(**{"steps": 4, "checkpoint": {"every_steps": 1}, **rounds})
    return TimedSite(
        root, spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"parallelism": parallelism})})
    )


async def run(site: Site, *preemptions: int, unfit: frozenset[int] = frozenset(), start: int = 1) -> None:
    """A run whose rounds have these preemptions."""
    driver = site.driver()
    site.fleet.tensor_parallel, site.fleet.unfit = start, set(unfit)

    async def loads() -> dict[str, Load]:
        number, size = driver._view.last_round, site.fleet.tensor_parallel
        if not number:
            return {}
        first = Load(size, preemptions=preemptions[number - 1], generated_tokens=100)
        return {"engine-0": first, **{f"engine-{other}": Load(size) for other in range(1, DEVICES // size)}}

    site.fleet.loads = loads  # type: ignore[method-assign]
    assert await driver.run() is RunOutcome.DONE


def reshapes(site: Site) -> list[measurements.Reshaped]:
    return [body for body in history(site) if isinstance(body, measurements.Reshaped)]


async def test_engines_are_reshaped_before_the_next_round(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    await run(site, MANY, MANY, MANY, MANY)
    assert site.fleet.reshaped == [(2, False)]
    (body,) = reshapes(site)
    assert (body.tensor_parallel, body.seconds, body.failure) == (2, {"start": 2.0}, "")
    assert body.reason == (
        "2 short rounds had many preemptions, and 2 is untried for such rounds: 1 -> 2 devices per engine"
    )
    bodies = history(site)
    opened = [i for i, one in enumerate(bodies) if isinstance(one, events.RoundOpened)]
    assert opened[1] < bodies.index(body) < opened[2], "beside the training of the second round"
    measured = [one.tensor_parallel for one in bodies if isinstance(one, measurements.RoundMeasured)]
    assert measured == [1, 1, 2, 2]
    status = site.broker.status.training
    assert status.tensor_parallel == 2
    assert [(one.step, one.tensor_parallel, one.reason) for one in status.reshapes] == [(2, 2, body.reason)]
    saved = manifests(tmp_path)[-1]["parallelism"]
    assert saved["tensor_parallel"] == 2


async def test_nothing_is_reshaped_after_the_last_round(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    await run(site, 1, 1, MANY, MANY)
    assert site.fleet.reshaped == []


async def test_a_shape_that_fails_is_told_and_not_tried_again(tmp_path: Path) -> None:
    site = site_of(tmp_path, steps=6)
    await run(site, *[MANY] * 6, unfit=frozenset({2, 4}))
    assert site.fleet.reshaped == [(2, False), (4, False)]
    assert [(body.tensor_parallel, body.failure) for body in reshapes(site)] == [(1, "it doesn't fit")] * 2
    assert site.broker.status.training.reshapes[-1].failure == "it doesn't fit"


async def test_off_policy_rounds_go_on_in_other_pods(tmp_path: Path) -> None:
    site = site_of(tmp_path, policy="BoundedAsync", max_staleness=1)
    await run(site, *[MANY] * 50)
    assert site.fleet.reshaped[0] == (2, True)


async def test_rounds_with_a_pause_between_them_are_reshaped_at_once(tmp_path: Path) -> None:
    site = site_of(tmp_path, policy="ContinueUnfinished", prompt_overcommit=1.5)
    await run(site, *[MANY] * 50)
    assert site.fleet.reshaped[0] == (2, False)


async def test_a_reshape_waits_for_a_publication_that_can_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer that made the last one is gone when the second round has been measured."""
    answers = [False]

    async def holds(self: FakeTrainer) -> bool:
        return answers.pop() if answers else self.holds

    monkeypatch.setattr(FakeTrainer, "holds_publication", holds)
    site = site_of(tmp_path)
    await run(site, MANY, MANY, MANY, MANY)
    assert site.fleet.reshaped == [(2, False)]
    (body,) = reshapes(site)
    bodies = [event.body for event in surviving(site.root, end_of(site.root, site.incarnation))]
    started, published = bodies.index(events.PublishStarted(2)), bodies.index(events.Published(2))
    assert started < bodies.index(body) < published, (
        "engines have the next weights, and the round waits for their shape"
    )


async def test_off_policy_steps_go_on_beside_a_reshape_that_waited_for_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, trained = [False], asyncio.Event()
    train, reshape = FakeTrainer.train, FakeFleet.reshape
    begun: list[int] = []

    async def holds(self: FakeTrainer) -> bool:
        return answers.pop() if answers else self.holds

    async def training(self: FakeTrainer, request: TrainRequest) -> TrainReport:
        if begun:
            trained.set()
        return await train(self, request)

    async def reshaping(self: FakeFleet, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        begun.append(tensor_parallel)
        await trained.wait()
        return await reshape(self, tensor_parallel, one_by_one=one_by_one)

    monkeypatch.setattr(FakeTrainer, "holds_publication", holds)
    monkeypatch.setattr(FakeTrainer, "train", training)
    monkeypatch.setattr(FakeFleet, "reshape", reshaping)
    site = site_of(tmp_path, policy="BoundedAsync", max_staleness=1, steps=8)
    await run(site, *[MANY] * 50)
    assert not answers
    assert site.fleet.reshaped[0] == (2, True)


async def test_a_failure_that_has_nothing_to_do_with_the_shape_does_not_rule_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [ReshapeReport(1, {}, "bucket 1 is gone", unfit=False)]
    reshape = FakeFleet.reshape

    async def once_failing(self: FakeFleet, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        done = await reshape(self, tensor_parallel, one_by_one=one_by_one)
        if results:
            self.tensor_parallel = 1
            return results.pop()
        return done

    monkeypatch.setattr(FakeFleet, "reshape", once_failing)
    site = site_of(tmp_path)
    await run(site, MANY, MANY, MANY, MANY)
    assert site.fleet.reshaped == [(2, False), (2, False)]
    assert [body.failure for body in reshapes(site)] == ["bucket 1 is gone", ""]


async def test_what_has_failed_is_tried_again_on_other_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(tmp_path, steps=10)
    reshape = FakeFleet.reshape

    async def then_others_come(self: FakeFleet, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        done = await reshape(self, tensor_parallel, one_by_one=one_by_one)
        if tensor_parallel == 4:
            self.set_state(replace(self.state, pods=("a", "b")))
        return done

    monkeypatch.setattr(FakeFleet, "reshape", then_others_come)
    await run(site, *[MANY] * 10, unfit=frozenset({2, 4}))
    assert [tensor_parallel for tensor_parallel, _ in site.fleet.reshaped] == [2, 4, 2, 4], (
        "without other pods, only 2 and 4"
    )


async def test_a_reshape_has_seconds_of_its_own(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    reshape = FakeFleet.reshape

    async def slow(tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        site.seconds += 1000.0
        return await reshape(site.fleet, tensor_parallel, one_by_one=one_by_one)

    driver_of = site.driver

    def driver() -> Driver:
        made = driver_of()
        site.fleet.reshape = slow  # type: ignore[method-assign]
        return made

    site.driver = driver  # type: ignore[method-assign]
    await run(site, MANY, MANY, MANY, MANY)
    text = (tmp_path / "incarnations" / "1" / "metrics.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    seconds = [
        sum(record.get(name, 0.0) for record in records) for name in ("timing_s/reshape", "timing_s/update_weights")
    ]
    assert seconds[0] > 1000.0 > seconds[1]


async def test_a_fixed_shape_stays(tmp_path: Path) -> None:
    site = site_of(tmp_path, ParallelismSpec())
    await run(site, MANY, MANY, MANY, MANY)
    assert not site.fleet.reshaped


async def test_the_plan_survives_the_driver(tmp_path: Path) -> None:
    site = site_of(tmp_path, steps=2)
    await run(site, MANY, MANY)
    assert not site.fleet.reshaped
    state = manifests(tmp_path)[-1]
    job = Job("job-uid", site.spec, tmp_path, 2)
    assert starting_shape(job, state) == state["parallelism"]["tensor_parallel"]
    assert starting_shape(replace(job, spec=make_spec()), state) == 1, "fixed by the spec"
    site.spec = site.spec.model_copy(update={"rounds": site.spec.rounds.model_copy(update={"steps": 4})})
    await run(site, MANY, MANY, MANY, MANY)
    assert site.fleet.reshaped == [(2, False)], "the third round follows two like it"


@pytest.mark.parametrize(("saved", "bounds", "started"), [(4, {"max_tensor_parallel": 2}, 2), (8, {}, 4), (2, {}, 2)])
def test_engines_start_within_bounds_that_were_edited_while_the_job_was_suspended(
    tmp_path: Path, saved: int, bounds: dict[str, int], started: int
) -> None:
    site = site_of(tmp_path, ParallelismSpec(mode=ParallelismMode.ADAPTIVE, **bounds))
    state = {"parallelism": {"tensor_parallel": saved}}
    assert starting_shape(Job("job-uid", site.spec, tmp_path, 2), state) == started
