from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.status import TrainingState
from longboat_runtime.driver.eventlog import LogPosition, end_of, replay, surviving
from longboat_runtime.driver.loop import Outcome
from longboat_runtime.interfaces import ModelInfo, TrainReport, TrainRequest
from longboat_runtime.metrics.record import read_records
from longboat_runtime.problems import spec_problem_in
from longboat_runtime.rounds import events
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.trainer.errors import TrainerLost
from tests.driver.fakes import Crash, Site, make_spec
from tests.rounds.policies import TwoAhead


def history(site: Site) -> list[events.Body]:
    """What survives of all incarnations, without times, starts and publications after a start."""
    kept = [e.body for e in surviving(site.root, end_of(site.root, site.incarnation))]
    return [b for b in kept if not isinstance(b, (events.Started, events.PublishStarted, events.Published))]


def trained(site: Site) -> list[tuple[int, tuple[SampleId, ...]]]:
    return [(b.step, b.samples) for b in history(site) if isinstance(b, events.StepCommitted)]


def manifests(root: Path) -> list[dict[str, Any]]:
    """The driver's part of all complete checkpoints."""
    found = sorted(root.glob("incarnations/*/*/manifest.json"))
    return [json.loads((path.parent / "state.json").read_text()) for path in found]


def saved_steps(root: Path) -> list[int]:
    return [manifest["ledger"]["step"] for manifest in manifests(root)]


async def finished(root: Path, **spec: Any) -> Site:
    site = Site(root, make_spec(**spec))
    assert await site.driver().run() is Outcome.DONE
    return site


async def test_a_job_trains_publishes_checkpoints_and_exports(tmp_path: Path) -> None:
    site = await finished(tmp_path)
    assert [len(samples) for _, samples in trained(site)] == [4] * 5
    assert site.fleet.published == [0, 1, 2, 3, 4, 5]
    assert saved_steps(tmp_path) == [2, 4, 5]
    assert (tmp_path / "export" / "weights").read_text() == site.trainer.weights
    status = site.broker.status
    assert (status.training.state, status.training.step) == (TrainingState.SUCCEEDED, 5)
    assert (status.checkpoint.step, status.checkpoint.export) == (5, "export")
    assert status.problem is None
    assert not site.store.samples, "what was trained is not held"


async def test_one_record_a_step(tmp_path: Path) -> None:
    await finished(tmp_path, steps=3)
    records = read_records(tmp_path)
    assert [record.step for record in records] == [0, 1, 2, 3]
    expected = {
        "critic/score/mean", "critic/advantages/max", "response_length/mean", "response_length/p99",
        "response_length/clip_ratio", "actor/grad_norm", "timing_s/gen", "timing_s/update_actor", "timing_s/step",
        "reward/grades/scored", "reward/grades/timeout", "sync/parity_max", "perf/throughput", "rollout/kept_groups",
    }  # fmt: skip
    for record in records[1:]:
        assert expected <= record.metrics.keys()
    assert records[1].metrics["reward/grades/scored"] == 4


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [1, 2, 3, 5])
async def test_a_driver_that_dies_repeats_the_same_events(tmp_path: Path, step: int, when: str) -> None:
    """Whether a rank died or the driver did between train and commit: bit for bit as if never stopped."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver(order=5)
    site.trainer.crash = step, when
    with pytest.raises(ExceptionGroup) as died:
        await driver.run()
    assert died.group_contains(Crash)
    assert await site.driver(order=6).run() is Outcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights
    assert site.trainer.requests[-1] == whole.trainer.requests[-1]


async def test_a_resumed_job_has_the_same_events_in_the_same_order(tmp_path: Path) -> None:
    """With the same order of finishing, the surviving events are the same, one by one."""
    whole = Site(tmp_path / "whole", make_spec(checkpoint={"every_steps": 1}))
    await whole.driver().run()
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    site.trainer.crash = (1, "before")
    with pytest.raises(ExceptionGroup):
        await driver.run()
    await site.driver().run()
    assert history(site) == history(whole)
    assert {e.incarnation for e in surviving(site.root, end_of(site.root, 2))} == {2}, (
        "nothing of the first one survived"
    )


async def test_a_manifest_holds_the_state_that_its_log_gives(tmp_path: Path) -> None:
    await finished(tmp_path)
    assert saved_steps(tmp_path) == [2, 4, 5]
    for manifest in manifests(tmp_path):
        assert to_snapshot(replay(tmp_path, LogPosition(**manifest["log"]))) == manifest["ledger"]


async def test_the_order_of_finishing_changes_nothing(tmp_path: Path) -> None:
    first, second = Site(tmp_path / "a", make_spec()), Site(tmp_path / "b", make_spec())
    await first.driver(order=1).run()
    await second.driver(order=2).run()
    assert first.trainer.weights == second.trainer.weights


async def until(condition: Callable[[], bool], driver_task: asyncio.Task) -> None:
    for _ in range(100_000):
        if condition():
            return
        assert not driver_task.done(), driver_task.exception()
        await asyncio.sleep(0)
    driver_task.cancel()
    pytest.fail("it never came")


async def test_suspend_keeps_the_last_boundary(tmp_path: Path) -> None:
    """Suspended in the middle of step 4, with step 3 not saved by the schedule: nothing committed is lost."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    site.fleet.hang = {SampleId(1, 2, 0, 1)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    assert site.fleet.version == 3
    site.broker.suspend()
    assert await running is Outcome.SUSPENDED
    assert site.broker.status.training.state is TrainingState.SUSPENDED
    assert (site.broker.status.checkpoint.step, site.broker.status.training.step) == (3, 3)
    assert site.fleet.aborted == [SampleId(1, 2, 0, 1)]
    assert await site.driver().run() is Outcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_suspended_while_pods_are_missing(tmp_path: Path) -> None:
    """A job may be suspended before it could begin: there is nothing to save, and nothing is waited for."""
    site = Site(tmp_path, make_spec())
    driver = site.driver()

    async def never() -> ModelInfo:
        await asyncio.Event().wait()
        raise AssertionError

    site.trainer.load = never
    running = asyncio.create_task(driver.run())
    await until(lambda: site.broker.status.training and site.broker.status.training.stage == "start", running)
    site.broker.suspend()
    assert await running is Outcome.SUSPENDED
    assert site.broker.status.training.state is TrainingState.SUSPENDED
    assert await site.driver().run() is Outcome.DONE


async def test_suspend_lets_a_step_that_is_computed_finish(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    train = site.trainer.train

    async def train_while_suspended(request: TrainRequest) -> TrainReport:
        site.broker.suspend()
        for _ in range(50):
            await asyncio.sleep(0)
        return await train(request)

    site.trainer.train = train_while_suspended
    assert await driver.run() is Outcome.SUSPENDED
    assert site.broker.status.checkpoint.step == 1
    assert site.fleet.published == [0]


async def test_a_lost_sample_is_made_again_with_its_seed(tmp_path: Path) -> None:
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
    assert await driver.run() is Outcome.DONE
    assert site.rewards.graded[lost] == 2
    assert site.trainer.weights == whole.trainer.weights


async def test_a_lost_trainer_computes_the_step_again_from_the_same_state(tmp_path: Path) -> None:
    """Step 1 starts from the model, step 3 from the checkpoint of step 2: nothing is generated again."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    site.trainer.lost = {1, 3}
    assert await driver.run() is Outcome.DONE
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
    assert await site.driver().run() is Outcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_a_driver_that_is_stopped_saves_and_leaves_the_state(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.fleet.hang = {SampleId(0, 2, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    driver.stop()
    assert await running is Outcome.STOPPED
    assert saved_steps(tmp_path) == [1]
    assert site.broker.status.training.state is TrainingState.RUNNING


async def test_a_part_of_a_sample_never_stands_in_for_the_whole(tmp_path: Path) -> None:
    """An engine gives a sample up without being asked to: what the store got of it goes before it is made again."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver()
    given_up = SampleId(0, 0, 0, 0)
    site.fleet.hang = {given_up}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    site.fleet.hang = set()
    await site.fleet.abort([given_up])
    assert await running is Outcome.DONE
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
    assert "the grader crashed" in site.broker.status.problem.message


async def test_graders_that_never_work_fail_the_job(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.errors = {PromptId(0, 0), PromptId(0, 1)}
    with pytest.raises(ExceptionGroup) as failed:
        await driver.run()
    problem = spec_problem_in(failed.value)
    assert (problem.reason, problem.field, problem.fatal) == ("GraderErrors", "spec.rewards", True)
    assert "the grader crashed" in problem.message


async def test_a_timeout_is_trained_and_counted_apart(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.timeouts = {PromptId(0, 0)}
    await driver.run()
    metrics = read_records(tmp_path)[-1].metrics
    counts = [metrics[f"reward/grades/{kind}"] for kind in ("scored", "wrong_format", "timeout", "grader_error")]
    assert counts == [2, 0, 2, 0]
    assert metrics["reward/timeout_rate"] == 0.5
    assert len(site.trainer.requests[0].samples) == 4


async def test_a_step_without_anything_to_learn_leaves_the_weights(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=2, algorithm={"drop_zero_variance": True}))
    driver = site.driver()
    site.rewards.flat = True
    assert await driver.run() is Outcome.DONE
    assert not site.trainer.requests
    assert read_records(tmp_path)[-1].metrics["rollout/dropped_groups/zero_variance"] == 20


async def test_evaluation_before_every_so_many_and_after_the_last(tmp_path: Path) -> None:
    site = await finished(tmp_path, evaluation={"every_steps": 2, "samples_per_prompt": 2})
    records = {record.step: record.metrics for record in read_records(tmp_path)}
    assert [step for step, metrics in records.items() if "val/score/mean" in metrics] == [0, 2, 4, 5]
    held_out = [request for request in site.fleet.requests if request.evaluation]
    assert len(held_out) == 4 * 3 * 2
    assert {request.sampling.temperature for request in held_out} == {0.0}
    assert len({request.id for request in held_out}) == len(held_out)
    assert site.broker.status.training.accuracy is not None
    assert not site.store.samples


async def test_evaluation_changes_nothing_about_training_and_is_not_repeated(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "evaluated", make_spec(evaluation={"every_steps": 1}))
    driver = site.driver()
    site.trainer.crash = (3, "before")
    site.fleet.lose[SampleId(-1, 0, 0, 0)] = 1
    with pytest.raises(ExceptionGroup):
        await driver.run()
    await site.driver().run()
    assert site.trainer.weights == whole.trainer.weights
    assert {request.id.epoch for request in site.fleet.requests if request.evaluation} == {-4, -5, -6}


async def test_a_full_volume_is_told_and_tried_again(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.trainer.full = {1}
    seen = []
    publish = site.broker.publish
    site.broker.publish = lambda status: (seen.append(status), publish(status))
    assert await driver.run() is Outcome.DONE
    problems = {status.problem.reason for status in seen if status.problem}
    assert problems == {"CheckpointVolumeFull"}
    assert not any(status.problem.fatal for status in seen if status.problem)
    assert site.broker.status.problem is None
    assert saved_steps(tmp_path) == [4, 5]


async def test_a_full_volume_at_the_end_is_fatal(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=2))
    driver = site.driver()
    site.trainer.full = {1}
    with pytest.raises(ExceptionGroup) as failed:
        await driver.run()
    problem = spec_problem_in(failed.value)
    assert (problem.reason, problem.fatal) == ("CheckpointVolumeFull", True)


async def test_a_checkpoint_of_another_group_size_is_refused(tmp_path: Path) -> None:
    site = await finished(tmp_path)
    site.spec = make_spec(algorithm={"group_size": 4})
    with pytest.raises(ExceptionGroup) as refused:
        await site.driver().run()
    assert spec_problem_in(refused.value).field == "spec.algorithm.groupSize"


async def test_two_rounds_ahead(tmp_path: Path) -> None:
    """A policy that keeps two rounds generated while one trains: whole groups, each round with its weight version."""
    site = Site(tmp_path, make_spec(steps=6), TwoAhead(6, 2, 2))
    assert await site.driver().run() is Outcome.DONE
    log = [event.body for event in surviving(tmp_path, end_of(tmp_path, 1))]
    open_rounds = most = 0
    for body in log:
        open_rounds += isinstance(body, events.RoundOpened) - isinstance(body, events.StepCommitted)
        most = max(most, open_rounds)
    assert most == 3
    versions = [body.version for body in log if isinstance(body, events.RoundOpened)]
    assert versions[:3] == [0, 0, 0]
    assert versions == sorted(versions)
    batches = trained(site)
    assert [step for step, _ in batches] == [1, 2, 3, 4, 5, 6]
    assert len({sample for _, samples in batches for sample in samples}) == 6 * 4
    staleness = [r.metrics["training/off_policy/trajectory_staleness/max"] for r in read_records(tmp_path)[1:]]
    assert max(staleness) == 2


async def test_two_rounds_ahead_survives_a_crash(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=6), TwoAhead(6, 2, 2))
    driver = site.driver()
    site.trainer.crash = (4, "after")
    with pytest.raises(ExceptionGroup):
        await driver.run()
    driver = site.driver()
    assert await driver.run() is Outcome.DONE
    batches = trained(site)
    assert [step for step, _ in batches] == [1, 2, 3, 4, 5, 6]
    prompts = [sample.prompt for _, samples in batches for sample in samples]
    assert all(prompts.count(prompt) == 2 for prompt in prompts), "every prompt once, as a whole group"
    ledger = replay(tmp_path, end_of(tmp_path, 2))
    assert set(prompts) | set(ledger.queue) == {PromptId(*divmod(n, 5)) for n in range(ledger.drawn)}
    assert not set(prompts) & set(ledger.queue)


async def test_a_later_start_shows_what_the_earlier_one_left_until_it_knows_better(tmp_path: Path) -> None:
    site = await finished(tmp_path, evaluation={"every_steps": 5})
    left = site.broker.status
    driver = site.driver(previous=left)
    site.reporter.tell()
    shown = site.broker.status
    assert (shown.training.step, shown.training.reward, shown.training.accuracy) == (
        5, left.training.reward, left.training.accuracy,
    )  # fmt: skip
    assert shown.checkpoint == left.checkpoint
    assert await driver.run() is Outcome.DONE
