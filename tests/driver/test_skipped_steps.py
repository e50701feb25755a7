"""Minibatches whose gradient is not finite: the job continues without them, for some time."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem, spec_problem_in
from longboat_runtime.driver.batch import skip_problem
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import crash_once_saved, history, manifests

MINIBATCHES = 2


def skip(site: Site, steps: Collection[int], skipped: int = MINIBATCHES) -> None:
    """Makes the trainer skip `skipped` minibatches in these steps."""
    train = site.trainer.train

    async def train_or_skip(request: TrainRequest) -> TrainReport:
        if request.step not in steps:
            return await train(request)
        if skipped < MINIBATCHES:
            await train(request)
        return TrainReport(request.step, {"training/skipped_minibatches": float(skipped)}, MINIBATCHES, skipped)

    site.trainer.train = train_or_skip


def commits(site: Site) -> list[events.StepCommitted]:
    return [body for body in history(site) if isinstance(body, events.StepCommitted)]


def allowing(spec: RLJobSpec, steps: int) -> RLJobSpec:
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"max_skipped_steps": steps})})


async def failing(site: Site, skipped: Collection[int]) -> SpecProblem:
    """The problem that ends a driver whose trainer skips these steps."""
    driver = site.driver()
    skip(site, skipped)
    with pytest.raises(ExceptionGroup) as failed:
        await driver.run()
    problem = spec_problem_in(failed.value)
    assert problem is not None
    return problem


POLICIES = (
    {},
    {"quotas": [{"domain": "even", "prompts": 1}, {"domain": "odd", "prompts": 1}]},
    {"policy": "TailBatching", "prompt_overcommit": 1.5},
    {"policy": "ContinueUnfinished", "prompt_overcommit": 1.5},
    {"policy": "BoundedAsync", "max_staleness": 1},
)


@pytest.mark.parametrize(
    "rounds", POLICIES, ids=lambda rounds: f"{rounds.get('policy')}{'-quotas' * ('quotas' in rounds)}"
)
async def test_a_step_that_trained_nothing_drops_its_prompts_and_the_job_continues(
    tmp_path: Path, rounds: dict
) -> None:
    site = Site(tmp_path, make_spec(**rounds))
    driver = site.driver()
    skip(site, {2, 4})
    assert await driver.run() is RunOutcome.DONE
    reasons = [body.dropped for body in commits(site)]
    assert reasons == [None, DropReason.NOT_FINITE, None, DropReason.NOT_FINITE, None]
    assert [request.step for request in site.trainer.requests] == [1, 3, 5]
    ended = [prompt for body in commits(site) for prompt in {sample.prompt for sample in body.samples}]
    assert len(ended) == len(set(ended)) == 10, "each prompt ended once, and none was replaced"
    (*_, last) = manifests(tmp_path)
    assert (last["ledger"]["trained"], last["ledger"]["dropped"]) == (6, {"not_finite": 4})


async def test_the_weights_of_a_skipped_step_are_served_under_its_number(tmp_path: Path) -> None:
    """On-policy: the next samples have that version, and the trainer's weights have not changed."""
    site = Site(tmp_path, make_spec(steps=3))
    driver = site.driver()
    publish, weights = site.fleet.publish, {}

    async def publish_and_note(publication):
        weights[publication.version] = publication.payload.checksum
        return await publish(publication)

    site.fleet.publish = publish_and_note
    skip(site, {2})
    assert await driver.run() is RunOutcome.DONE
    assert list(weights) == [0, 1, 2, 3]
    assert weights[0] != weights[1] == weights[2] != weights[3]
    (_, _, third) = commits(site)
    made = {body.sample: body for body in history(site) if isinstance(body, events.Generated)}
    assert {span.version for sample in third.samples for span in made[sample].spans} == {2}


async def test_a_skipped_step_is_in_its_record_and_in_the_status(tmp_path: Path) -> None:
    quotas = [{"domain": "even", "prompts": 1}, {"domain": "odd", "prompts": 1}]
    site = Site(tmp_path, make_spec(steps=2, quotas=quotas))
    driver = site.driver()
    skip(site, {2})
    assert await driver.run() is RunOutcome.DONE
    trained, skipped = (record.metrics for record in read_records(tmp_path)[1:])
    assert (trained["rollout/kept_groups"], trained["rollout/dropped_groups/not_finite"]) == (2, 0)
    assert (skipped["rollout/kept_groups"], skipped["rollout/dropped_groups/not_finite"]) == (0, 2)
    assert [skipped[f"rollout/domains/{domain}/dropped_groups"] for domain in ("even", "odd")] == [1, 1]
    assert skipped["training/skipped_minibatches"] == MINIBATCHES
    assert site.broker.status.training.recent_rounds[-1].kept == 0
    problem = site.broker.status.problem
    assert (problem.reason, problem.fatal) == ("LossNotFinite", False)
    assert problem.field == "spec.trainer.optimizer.learningRate"


async def test_a_step_with_some_minibatches_skipped_trains_its_prompts(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=4))
    driver = site.driver()
    skip(site, {1, 2, 3}, skipped=1)
    publish, told = site.broker.publish, set[str]()

    def publish_and_note(status: DriverStatus) -> None:
        told.add(status.problem.message if status.problem else "")
        publish(status)

    site.broker.publish = publish_and_note
    assert await driver.run() is RunOutcome.DONE, "it isn't counted as a step that trained nothing"
    assert [(body.skipped, body.dropped) for body in commits(site)] == [(1, None)] * 3 + [(0, None)]
    assert any("1 of 2 minibatches of step 3" in message for message in told)
    assert site.broker.status.problem is None, "it is over"
    assert manifests(tmp_path)[-1]["ledger"]["trained"] == 8


async def test_too_many_skipped_steps_in_a_row_fail_the_job(tmp_path: Path) -> None:
    """Fewer in a row don't, however many there are in total."""
    site = Site(tmp_path, make_spec(steps=9))
    problem = await failing(site, {1, 2, 4, 5, 7, 8, 9})
    assert (problem.reason, problem.field, problem.fatal) == (
        "LossNotFinite",
        "spec.trainer.optimizer.learningRate",
        True,
    )
    assert "No minibatch of the last 3 steps" in problem.message
    assert "trainer.maxSkippedSteps is 3" in problem.message
    assert "Lower the learning rate" in problem.message
    assert [body.step for body in commits(site)] == list(range(1, 9))


async def test_a_new_driver_continues_counting(tmp_path: Path) -> None:
    site = Site(tmp_path, allowing(make_spec(steps=6), 2))
    driver = site.driver()
    skip(site, {2})
    crash_once_saved(site, step=3, saved=2)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    assert (await failing(site, {3})).fatal


async def test_one_skipped_step_can_be_too_many(tmp_path: Path) -> None:
    site = Site(tmp_path, allowing(make_spec(), 1))
    assert (await failing(site, {1})).reason == "LossNotFinite"


@given(minibatches=st.integers(1, 64), skipped=st.integers(0, 64), before=st.integers(0, 10), limit=st.integers(1, 10))
def test_only_steps_that_trained_nothing_fail_a_job(minibatches: int, skipped: int, before: int, limit: int) -> None:
    report = TrainReport(7, {}, minibatches, min(skipped, minibatches))
    problem = skip_problem(report, before, limit)
    assert (problem is None) == (report.skipped == 0)
    if problem:
        assert problem.fatal == (skipped >= minibatches and before + 1 >= limit)
        assert problem.field == "spec.trainer.optimizer.learningRate"
        assert "ower the learning rate" in problem.message
