"""Lost samples, trainers and data, and graders that fail, change nothing else about a job."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from longboat_crds.problems import spec_problem_in
from longboat_crds.reasons import Reason
from longboat_crds.status import TrainingState
from longboat_runtime.driver.grading import Grading
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.trainer.errors import TrainerLost
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import finished, part, saved_steps, trained, until
from tests.support.waiting import DEADLINE_SECONDS


async def test_a_lost_sample_is_generated_again_with_its_seed(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    lost = SampleId(0, 1, 0, 0)
    site.fleet.lose[lost] = 2
    await driver.run()
    made = [request for request in site.fleet.requests if request.id == lost]
    assert len(made) == 3
    assert len({request.seed for request in made}) == 1
    assert site.trainer.weights == whole.trainer.weights


async def test_data_lost_before_training_is_made_and_graded_again(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    train, lost = site.trainer.train, SampleId(0, 0, 0, 1)

    async def train_after_loss(request: TrainRequest) -> TrainReport:
        if request.step == 1 and site.rewards.graded[lost] == 1:
            del site.store.samples[lost]
        return await train(request)

    site.trainer.train = train_after_loss
    assert await driver.run() is RunOutcome.DONE
    assert site.rewards.graded[lost] == 2
    assert [request.id for request in site.fleet.requests].count(lost) == 2
    assert site.trainer.weights == whole.trainer.weights


async def test_a_lost_trainer_computes_the_step_again_from_the_same_state(tmp_path: Path) -> None:
    """Step 1 starts from the model, step 3 from the checkpoint of step 2; no sample is generated again."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    site.trainer.lost = {1, 3}
    assert await driver.run() is RunOutcome.DONE
    assert site.trainer.loads == 3
    assert site.trainer.weights == whole.trainer.weights
    assert len(site.fleet.requests) == len(whole.fleet.requests)
    assert site.broker.status.problem is None


async def test_a_lost_trainer_whose_state_is_gone_ends_the_run(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    site.trainer.lost = {4}
    with pytest.raises(ExceptionGroup) as ended:
        await driver.run()
    assert ended.group_contains(TrainerLost)
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_a_driver_that_is_stopped_saves_and_leaves_the_state(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.fleet.hang = {SampleId(0, 2, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    driver.stop()
    assert await running is RunOutcome.STOPPED
    assert saved_steps(tmp_path) == [1]
    assert site.broker.status.training.state is TrainingState.RUNNING


async def test_a_part_of_a_sample_never_stands_in_for_the_whole(tmp_path: Path) -> None:
    """An engine gives up a sample without being asked to: the store's part of it is deleted before it is generated again."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    given_up = SampleId(0, 0, 0, 0)
    site.fleet.hang = {given_up}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    site.fleet.hang = set()
    await site.fleet.abort([given_up])
    assert await running is RunOutcome.DONE
    assert site.trainer.weights == whole.trainer.weights


async def test_a_grader_error_drops_the_group_and_keeps_the_denominator(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.errors = {PromptId(0, 0)}
    await driver.run()
    (request,) = site.trainer.requests
    assert {sample.id.prompt for sample in request.samples} == {PromptId(0, 1)}
    assert request.denominator == 4
    metrics = read_records(tmp_path)[-1].metrics
    assert metrics["rollout/dropped_groups/grader_error"] == 1
    assert metrics["reward/grades/timeout"] == 0
    assert site.broker.status.problem.reason == "GraderErrors"
    message = site.broker.status.problem.message
    assert "row 0 of the dataset" in message
    assert "the grader crashed" in message
    assert "Correct the reward function or the row" in message


async def test_an_error_before_the_start_is_reported_stays_reported(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.errors = {PromptId(0, 0)}
    problems = part(driver, Grading)._problems
    met, put, tidy = threading.Event(), problems.put, driver._steps._exports.tidy

    def put_and_note(reason: Reason, field: str | None, message: str) -> None:
        put(reason, field, message)
        met.set()

    def tidy_late() -> None:
        assert met.wait(DEADLINE_SECONDS)
        tidy()

    problems.put, driver._steps._exports.tidy = put_and_note, tidy_late
    await driver.run()
    assert site.broker.status.problem.reason == "GraderErrors"


async def test_graders_that_never_work_fail_the_job(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.errors = {PromptId(0, 0), PromptId(0, 1)}
    with pytest.raises(ExceptionGroup) as failed:
        await driver.run()
    problem = spec_problem_in(failed.value)
    assert (problem.reason, problem.field, problem.fatal) == ("GraderErrors", "spec.rewards", True)
    assert "the grader crashed" in problem.message


async def test_a_timeout_is_trained_and_counted_separately(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.timeouts = {PromptId(0, 0)}
    await driver.run()
    metrics = read_records(tmp_path)[-1].metrics
    counts = [metrics[f"reward/grades/{kind}"] for kind in ("scored", "wrong_format", "timeout", "grader_error")]
    assert counts == [2, 0, 2, 0]
    assert metrics["reward/timeout_rate"] == 0.5
    assert len(site.trainer.requests[0].samples) == 4


async def test_being_slow_does_not_pay_where_wrong_answers_cost(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.flat, site.rewards.timeouts = -1.0, {SampleId(0, 0, 0, 1)}
    await driver.run()
    assert [sample.advantage for sample in site.trainer.requests[0].samples] == [0.0] * 4
    assert read_records(tmp_path)[-1].metrics["critic/rewards/max"] == -1.0


async def test_dynamic_sampling_keeps_a_group_with_timeouts_and_scores(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1, algorithm={"drop_zero_variance": True}))
    driver = site.driver()
    site.rewards.flat, site.rewards.timeouts = 0.0, {SampleId(0, 0, 0, 1), PromptId(0, 1)}
    await driver.run()
    (request,) = site.trainer.requests
    assert {sample.id.prompt for sample in request.samples} == {PromptId(0, 0)}, "all of the other one timed out"


async def test_a_step_without_anything_to_learn_leaves_the_weights(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=2, algorithm={"drop_zero_variance": True}))
    driver = site.driver()
    site.rewards.flat = 0.5
    assert await driver.run() is RunOutcome.DONE
    assert not site.trainer.requests
    assert read_records(tmp_path)[-1].metrics["rollout/dropped_groups/zero_variance"] == 20
