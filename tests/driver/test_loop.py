from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from longboat_crds.problems import spec_problem_in
from longboat_crds.reward_kinds import RewardIsolation
from longboat_crds.status import TrainingState
from longboat_graders.messages import IsolationInForce
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.eventlog import LogPosition, end_of, surviving
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.samples import SampleId, SampleRequest
from longboat_runtime.trainer.protocol import ModelInfo, TrainReport, TrainRequest
from tests.driver.fakes import Crash, Site, make_spec
from tests.driver.runs import crash_once_saved, finished, history, manifests, saved_steps, trained, until
from tests.support.replay import replay


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


async def test_graders_are_told_when_the_last_sample_of_a_round_has_reached_them(tmp_path: Path) -> None:
    site = await finished(tmp_path)
    generated = [sum(len(samples) for _, samples in trained(site)[:step]) for step in range(1, 6)]
    flushed = [len(asked) for asked in site.rewards.flushed]
    assert set(generated) <= set(flushed), "a round waited for graders that waited for more"


async def test_the_status_says_how_samples_are_trained_and_how_many_prompts_are_skipped(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=2))
    driver = site.driver()
    site.source.skipped, site.trainer.attention = 7, "padded (eager)"
    await driver.run()
    training = site.broker.status.training
    assert (training.skipped_prompts, training.attention) == (7, "padded (eager)")
    assert [record.metrics["data/skipped_prompts"] for record in read_records(tmp_path) if record.step] == [7, 7]


async def test_the_status_says_how_grades_are_kept_apart(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1))
    driver = site.driver()
    site.rewards.isolation = {
        "main": IsolationInForce(RewardIsolation.PER_GRADE, "executes code (/reward.py line 3)"),
        "short": IsolationInForce(RewardIsolation.AUTO),
    }
    await driver.run()
    shown = [reward.to_json() for reward in site.broker.status.training.rewards or []]
    assert shown == [
        {"name": "main", "isolation": "PerGrade", "reason": "executes code (/reward.py line 3)"},
        {"name": "short", "isolation": "Auto"},
    ]


async def test_a_dataset_that_skips_nothing_says_nothing(tmp_path: Path) -> None:
    site = await finished(tmp_path, steps=1)
    assert site.broker.status.training.skipped_prompts is None
    assert "data/skipped_prompts" not in read_records(tmp_path)[-1].metrics


async def test_throughput_has_verls_unit_and_the_status_shows_that_of_the_whole_job(tmp_path: Path) -> None:
    """Tokens per second and device: one engine of two devices and three ranks."""
    spec = make_spec(steps=1)
    rollout = spec.rollout.model_copy(update={"tensor_parallel": 2})
    trainer = spec.trainer.model_copy(update={"replicas": 3})
    site = Site(tmp_path, spec.model_copy(update={"rollout": rollout, "trainer": trainer}))
    await site.driver().run()
    metrics = read_records(tmp_path)[-1].metrics
    speed = metrics["perf/total_num_tokens"] / metrics["timing_s/step"]
    assert metrics["perf/throughput"] == pytest.approx(speed / 5)
    assert metrics["perf/tokens_per_second"] == pytest.approx(speed)
    assert site.broker.status.training.tokens_per_second == round(speed)


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
    """Whether a rank died, or the driver between train and commit: bit for bit as if it had never stopped."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "broken", whole.spec)
    driver = site.driver(order=5)
    site.trainer.crash = step, when
    with pytest.raises(ExceptionGroup) as died:
        await driver.run()
    assert died.group_contains(Crash)
    assert await site.driver(order=6).run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights
    assert site.trainer.requests[-1] == whole.trainer.requests[-1]


async def test_a_resumed_job_has_the_same_events_in_the_same_order(tmp_path: Path) -> None:
    """If samples finish in the same order, the surviving events are the same, one by one."""
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
    assert await running is RunOutcome.SUSPENDED
    assert site.broker.status.training.state is TrainingState.SUSPENDED
    assert (site.broker.status.checkpoint.step, site.broker.status.training.step) == (3, 3)
    assert site.fleet.aborted == [SampleId(1, 2, 0, 1)]
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_suspended_while_pods_are_missing(tmp_path: Path) -> None:
    """A job may be suspended before it could start: it has nothing to save and waits for nothing."""
    site = Site(tmp_path, make_spec())
    driver = site.driver()

    async def never() -> ModelInfo:
        await asyncio.Event().wait()
        raise AssertionError

    site.trainer.load = never
    running = asyncio.create_task(driver.run())
    await until(lambda: site.broker.status.training and site.broker.status.training.stage == "start", running)
    site.broker.suspend()
    assert await running is RunOutcome.SUSPENDED
    assert site.broker.status.training.state is TrainingState.SUSPENDED
    assert await site.driver().run() is RunOutcome.DONE


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
    assert await driver.run() is RunOutcome.SUSPENDED
    assert site.broker.status.checkpoint.step == 1
    assert site.fleet.published == [0]


async def test_evaluation_runs_before_the_first_every_n_and_after_the_last_step(tmp_path: Path) -> None:
    site = await finished(tmp_path, evaluation={"every_steps": 2, "samples_per_prompt": 2})
    records = {record.step: record.metrics for record in read_records(tmp_path)}
    assert [step for step, metrics in records.items() if "val/score/mean" in metrics] == [0, 2, 4, 5]
    held_out = [request for request in site.fleet.requests if request.evaluation]
    assert len(held_out) == 4 * 3 * 2
    assert {request.sampling.temperature for request in held_out} == {0.0}
    assert len({request.id for request in held_out}) == len(held_out)
    assert site.broker.status.training.accuracy is not None
    assert not site.store.samples


@pytest.mark.parametrize(("each", "calls"), [(2, [6]), (24, [64, 8])])
async def test_an_evaluation_is_submitted_in_one_call_and_discarded_in_few(
    tmp_path: Path, each: int, calls: list[int]
) -> None:
    site = Site(tmp_path, make_spec(steps=1, evaluation={"every_steps": 1, "samples_per_prompt": each}))
    driver = site.driver()
    submitted: list[int] = []
    deleted: list[int] = []
    submit, delete = site.fleet.submit, site.store.delete

    async def count_submitted(requests: Sequence[SampleRequest]) -> None:
        if requests[0].evaluation:
            submitted.append(len(requests))
        await submit(requests)

    async def count_deleted(ids: Sequence[SampleId]) -> None:
        if ids and ids[0].epoch < 0:
            deleted.append(len(ids))
        await delete(ids)

    site.fleet.submit, site.store.delete = count_submitted, count_deleted
    site.fleet.lose[SampleId(-1, 0, 0, 0)] = 1
    await driver.run()
    assert submitted == [3 * each, 1, 3 * each]
    assert deleted == [*calls, *calls]
    assert not site.store.samples


@pytest.mark.parametrize(("policy", "meanwhile"), [("Synchronous", False), ("BoundedAsync", True)])
async def test_rounds_generate_during_an_evaluation_only_where_they_wait_for_nothing(
    tmp_path: Path, policy: str, *, meanwhile: bool
) -> None:
    site = Site(tmp_path, make_spec(policy=policy, evaluation={"every_steps": 1}))
    driver = site.driver()
    site.fleet.hang = {SampleId(-1, 0, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.hang < {request.id for request in site.fleet.requests}, running)
    for _ in range(100):
        await asyncio.sleep(0)
    assert any(not request.evaluation for request in site.fleet.requests) is meanwhile
    assert site.fleet.published == [0]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_evaluation_changes_nothing_about_training_and_is_not_repeated(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "evaluated", make_spec(evaluation={"every_steps": 1}))
    driver = site.driver()
    crash_once_saved(site, step=3, saved=2)
    site.fleet.lose[SampleId(-1, 0, 0, 0)] = 1
    with pytest.raises(ExceptionGroup):
        await driver.run()
    await site.driver().run()
    assert site.trainer.weights == whole.trainer.weights
    assert {request.id.epoch for request in site.fleet.requests if request.evaluation} == {-4, -5, -6}


@pytest.mark.parametrize("file", ["state.json", "trainer/weights"])
async def test_a_damaged_checkpoint_is_reported_until_there_is_another_and_the_steps_are_repeated(
    tmp_path: Path, file: str
) -> None:
    """The driver finds what is wrong with its own file, and the trainer with the others."""
    whole = await finished(tmp_path / "whole")
    site = Site(tmp_path / "damaged", make_spec())
    driver = site.driver()
    crash_once_saved(site, step=5, saved=4)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    newest = max((tmp_path / "damaged").rglob("step-*"))
    (newest / file).write_bytes(bytes((newest / file).stat().st_size))
    driver = site.driver()
    seen = []
    publish = site.broker.publish
    site.broker.publish = lambda status: (seen.append(status), publish(status))
    assert await driver.run() is RunOutcome.DONE
    (problem,) = {(p.reason, p.field, p.message) for status in seen if (p := status.problem)}
    assert problem[:2] == ("CheckpointCorrupt", "spec.checkpoint")
    assert newest.name in problem[2]
    assert seen[-1].problem is None
    assert site.trainer.weights == whole.trainer.weights


async def test_a_full_volume_is_reported_and_retried(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.trainer.full = {1}
    seen = []
    publish = site.broker.publish
    site.broker.publish = lambda status: (seen.append(status), publish(status))
    assert await driver.run() is RunOutcome.DONE
    problems = {status.problem.reason for status in seen if status.problem}
    assert "CheckpointVolumeFull" in problems
    assert not any(status.problem.fatal for status in seen if status.problem)
    assert site.broker.status.problem is None
    assert saved_steps(tmp_path) == [4, 5]


@pytest.mark.parametrize(
    ("checkpoint", "field"),
    [({}, "spec.checkpoint.volume.size"), ({"claim_name": "ours"}, "spec.checkpoint.claimName")],
)
async def test_a_full_volume_is_reported_with_the_field_that_names_it(
    tmp_path: Path, checkpoint: dict[str, str], field: str
) -> None:
    site = Site(tmp_path, make_spec(steps=2, checkpoint=checkpoint))
    driver = site.driver()
    site.trainer.full = {1}
    with pytest.raises(ExceptionGroup) as failed:
        await driver.run()
    assert spec_problem_in(failed.value).field == field


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


async def test_a_later_start_shows_what_the_earlier_one_left_until_it_knows_better(tmp_path: Path) -> None:
    site = await finished(tmp_path, evaluation={"every_steps": 5})
    left = site.broker.status
    driver = site.driver(previous=left)
    site.reporter.publish()
    shown = site.broker.status
    assert (shown.training.step, shown.training.reward, shown.training.accuracy) == (
        5, left.training.reward, left.training.accuracy,
    )  # fmt: skip
    assert shown.checkpoint == left.checkpoint
    assert await driver.run() is RunOutcome.DONE
