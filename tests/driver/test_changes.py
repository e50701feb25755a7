"""A driver resumes only with the inputs of its checkpoint, or with those that somebody accepts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.checkpoint import TrainingInput
from longboat_crds.problems import SpecProblem, spec_problem_in
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import RewardSpec
from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_crds.status import TrainingState
from longboat_runtime.driver.broker import Superseded
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.main import superseded
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.resume import load, restore
from longboat_runtime.driver.stages import Stage
from longboat_runtime.rounds import measurements
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history, manifests, trained, until

INPUTS = {
    TrainingInput.MODEL: {"config.json": "1" * 32},
    TrainingInput.TOKENIZER: {"tokenizer.json": "2" * 32, "chat template": "3" * 32},
    TrainingInput.DATA: {"number of rows": "5", "row 3": "4" * 32},
}
SOURCES = {"main": {"rewards.py": "5" * 32}}
CHANGES: dict[str, tuple[str, str]] = {
    "Model": ("config.json", "config.json has changed"),
    "Tokenizer": ("chat template", "chat template has changed"),
    "Data": ("row 3", "row 3 has changed"),
    "Rewards": ("rewards.py", "rewards.py of reward main has changed"),
}


def site_of(root: Path, steps: int = 2, adopted: Path | None = None, **spec: Any) -> Site:
    site = Site(root, make_spec(steps=steps, **spec), adopted=adopted)
    site.digests, site.sources = dict(INPUTS), {name: dict(items) for name, items in SOURCES.items()}
    return site


def change(site: Site, name: str) -> None:
    item, _ = CHANGES[name]
    if name == "Rewards":
        site.sources = {"main": {item: "0"}}
    else:
        site.digests = {**site.digests, TrainingInput(name): {**INPUTS[TrainingInput(name)], item: "0" * 32}}


async def turns() -> None:
    """Lets everything that can happen do so."""
    for _ in range(1000):
        await asyncio.sleep(0)


async def first_run(root: Path) -> Site:
    site = site_of(root)
    assert await site.driver().run() is RunOutcome.DONE
    site.spec = make_spec(steps=4)
    return site


async def waiting(site: Site) -> tuple[Driver, asyncio.Task[RunOutcome]]:
    """A driver that has found its inputs changed, and its run."""
    driver = site.driver()
    running = asyncio.create_task(driver.run())
    await until(lambda: site.broker.status.problem is not None, running)
    await turns()
    status = site.broker.status
    assert not running.done()
    assert (status.problem.reason, status.problem.fatal) == (Reason.CHECKPOINT_MISMATCH, False)
    assert status.training.state is TrainingState.STARTING
    assert not site.reporter.stages.active, "nothing is stuck, however long it waits"
    assert not site.fleet.published
    assert not site.trainer.requests
    return driver, running


async def test_a_job_whose_inputs_are_the_same_resumes(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    assert await site.driver().run() is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4]
    assert site.broker.status.problem is None
    assert site.broker.status.training.resumed is None


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_is_named_and_waits_until_it_is_accepted(tmp_path: Path, name: str) -> None:
    site = await first_run(tmp_path)
    change(site, name)
    _, running = await waiting(site)
    problem = site.broker.status.problem
    text = f"{name}: {CHANGES[name][1]}"
    assert problem.field == "spec.checkpoint.acceptChanges"
    assert text in problem.message
    assert f"add {name} to checkpoint.acceptChanges" in problem.message
    site.broker.edit(checkpoint={"accept_changes": [i for i in TrainingInput if i != name]})
    await turns()
    assert site.broker.status.problem.reason == Reason.CHECKPOINT_MISMATCH, "another one was accepted"
    site.broker.edit(checkpoint={"accept_changes": [TrainingInput(name)]})
    assert await running is RunOutcome.DONE
    status = site.broker.status
    assert status.problem is None
    assert status.training.resumed.accepted == [text]
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4]
    # The checkpoints that followed were made with what was accepted: nothing needs to be accepted for them.
    site.spec = make_spec(steps=5)
    assert await site.driver(previous=status).run() is RunOutcome.DONE
    assert site.broker.status.training.resumed.accepted == [text], "it is still said"


async def test_a_reward_of_episodes_hides_no_change_of_another(tmp_path: Path) -> None:
    """No grader loads it, so nothing digests it."""
    site = await first_run(tmp_path)
    site.spec = site.spec.model_copy(
        update={"rewards": [*site.spec.rewards, RewardSpec(name="game", kind=RewardKind.EPISODE)]}
    )
    change(site, "Rewards")
    driver, running = await waiting(site)
    assert f"Rewards: {CHANGES['Rewards'][1]}" in site.broker.status.problem.message
    driver.stop()
    assert await running is RunOutcome.STOPPED


async def test_all_changes_are_named_at_once_and_those_accepted_beforehand_do_not_wait(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    for name in CHANGES:
        change(site, name)
    driver, running = await waiting(site)
    message = site.broker.status.problem.message
    assert all(f"{name}: {text}" in message for name, (_, text) in CHANGES.items())
    driver.stop()
    assert await running is RunOutcome.STOPPED
    site.spec = make_spec(steps=4, checkpoint={"accept_changes": [*TrainingInput]})
    assert await site.driver().run() is RunOutcome.DONE
    assert len(site.broker.status.training.resumed.accepted) == len(CHANGES)


async def test_other_weights_of_the_same_shape_are_a_change(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    driver = site.driver()

    async def checksum() -> str:
        return "other weights"

    site.trainer.checksum = checksum  # type: ignore[method-assign]
    running = asyncio.create_task(driver.run())
    await until(lambda: site.broker.status.problem is not None, running)
    assert "Model: weights in " in site.broker.status.problem.message
    site.broker.suspend()
    assert await running is RunOutcome.SUSPENDED


async def test_a_job_that_waits_can_be_suspended_and_stopped(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    change(site, "Data")
    before = manifests(site.root)
    _, running = await waiting(site)
    site.broker.suspend()
    assert await running is RunOutcome.SUSPENDED
    assert site.broker.status.training.state is TrainingState.SUSPENDED
    driver, running = await waiting(site)
    driver.stop()
    assert await running is RunOutcome.STOPPED
    assert manifests(site.root) == before
    site.digests = dict(INPUTS)
    assert await site.driver().run() is RunOutcome.DONE, "what had changed is as it was"


async def test_a_job_that_waits_ends_when_it_is_deleted(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    change(site, "Rewards")
    driver, gone = site.driver(), asyncio.Event()

    async def suspended() -> None:
        await gone.wait()
        raise Superseded("the job was deleted")

    site.broker.suspended = suspended
    running = asyncio.create_task(driver.run())
    await until(lambda: site.broker.status.problem is not None, running)
    gone.set()
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert superseded(ended.value)
    assert driver._starting is not None
    assert driver._starting.cancelled()


@pytest.mark.parametrize("name", CHANGES)
async def test_what_was_learned_of_grading_times_is_forgotten_with_other_rows_or_rewards(
    tmp_path: Path, name: str
) -> None:
    reward = RewardSpec.model_validate({"name": "main", "function": "m:f", "learnedTimeout": {"minSeconds": 0.1}})
    site = site_of(tmp_path, 4)
    site.spec = site.spec.model_copy(update={"rewards": [reward]})
    assert await site.driver().run() is RunOutcome.DONE
    learned = manifests(tmp_path)[-1]["timeouts"]["rewards"]
    change(site, name)
    spec = make_spec(steps=5, checkpoint={"accept_changes": [*TrainingInput]})
    site.spec = spec.model_copy(update={"rewards": [reward]})
    driver = site.driver()
    loaded = await load(driver._job, driver._components)
    restored = await restore(driver._job, driver._components, loaded)
    forgotten = restored.run_state.timeouts.to_snapshot()["rewards"] != learned
    assert forgotten is (name in ("Data", "Rewards"))


async def test_another_number_of_rows_waits_however_much_is_accepted(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    site.digests[TrainingInput.DATA] = {"number of rows": "6", "row 3": "4" * 32}
    site.spec = make_spec(steps=4, checkpoint={"accept_changes": [*TrainingInput]})
    driver, running = await waiting(site)
    problem = site.broker.status.problem
    assert problem.field == "spec.dataset"
    assert "number of rows was 5, and is 6" in problem.message
    assert "acceptChanges" not in problem.message
    driver.stop()
    assert await running is RunOutcome.STOPPED


async def test_a_checkpoint_without_digests_resumes_and_the_next_one_has_them(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    manifest = site.checkpoints.newest()
    assert manifest
    del manifest.state["digests"], manifest.state["spec"]  # type: ignore[attr-defined]
    for name in CHANGES:
        change(site, name)
    driver = site.driver()
    site.checkpoints.newest = lambda: manifest
    assert await driver.run() is RunOutcome.DONE
    digests = manifests(tmp_path)[-1]["digests"]
    assert digests["Model"] == {"config.json": "0" * 32, "weights in BFloat16 (by tensor)": "start"}
    assert digests["Rewards"] == {"rewards.py of reward main": "0"}
    assert digests.keys() == {str(name) for name in TrainingInput}


async def test_a_checkpoint_of_another_job_may_be_resumed_with_another_spec(tmp_path: Path) -> None:
    """A lower learning rate is a cure, and is listed; another row has to be accepted."""
    await first_run(tmp_path / "first")
    lower = {"optimizer": {"learning_rate": 1e-7}}
    site = site_of(tmp_path / "second", 4, tmp_path / "first", trainer=lower)
    change(site, "Data")
    _, running = await waiting(site)
    site.broker.edit(checkpoint={"accept_changes": [TrainingInput.DATA]})
    assert await running is RunOutcome.DONE
    resumed = site.broker.status.training.resumed
    assert resumed.accepted == ["Data: row 3 has changed"]
    assert resumed.spec == ["rounds.steps: 2 -> 4", "trainer.optimizer.learningRate: 1e-06 -> 1e-07"]
    status = site.broker.status
    site.spec = make_spec(steps=5, trainer=lower)
    assert await site.driver(previous=status).run() is RunOutcome.DONE
    assert site.broker.status.training.resumed == resumed, "it is the job's own checkpoint now"


async def test_where_the_spec_can_not_be_edited_the_run_ends(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    change(site, "Tokenizer")
    driver = site.driver()
    driver._changes._editable = False
    with pytest.raises((SpecProblem, ExceptionGroup)) as failed:
        await driver.run()
    problem = spec_problem_in(failed.value)
    assert problem
    assert (problem.reason, problem.field) == (Reason.CHECKPOINT_MISMATCH, "spec.checkpoint.acceptChanges")
    assert "Tokenizer: chat template has changed" in problem.message
    assert Stage.START not in site.reporter.stages.active


async def test_other_edits_are_followed_once_the_job_resumes(tmp_path: Path) -> None:
    site = await first_run(tmp_path)
    change(site, "Data")
    _, running = await waiting(site)
    site.broker.edit(rollout={"parallelism": ParallelismSpec(mode=ParallelismMode.ADAPTIVE, max_tensor_parallel=1)})
    await turns()
    site.broker.edit(checkpoint={"accept_changes": [TrainingInput.DATA]})
    assert await running is RunOutcome.DONE
    assert measurements.ShapesAllowed((1,), 1) in history(site)
