"""A job that starts from a checkpoint of another job, whatever policy either has."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.checkpoint import ResumeFrom
from longboat_crds.rewards import RewardSpec
from longboat_runtime.driver.assembly import AdoptingStore
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.eventlog import LogPosition, surviving
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.samples import TimeLimit
from tests.driver.fakes import FakeSource, Site, make_spec
from tests.driver.runs import crash_once_saved, manifests, trained

STEPS, PROMPTS, GROUP = 7, 2, 2
POLICIES: dict[str, dict[str, Any]] = {
    "Synchronous": {},
    "TailBatching": {"prompt_overcommit": 1.5},
    "ContinueUnfinished": {"prompt_overcommit": 2.0},
    "BoundedAsync": {"max_staleness": 2},
}
STALE = ("ContinueUnfinished", "BoundedAsync")


def site_of(root: Path, policy: str, adopted: Path | None = None) -> Site:
    rounds = {"policy": policy, **POLICIES[policy], "steps": STEPS, "prompts_per_round": PROMPTS}
    return Site(root, make_spec(**rounds, checkpoint={"every_steps": 1}), adopted=adopted)


@pytest.mark.parametrize(("first", "second"), [*product(POLICIES, repeat=2)])
@pytest.mark.parametrize("crash", [None, (5, "before")])
async def test_each_prompt_is_trained_once_by_the_two_jobs(
    tmp_path: Path, first: str, second: str, crash: tuple[int, str] | None
) -> None:
    before = site_of(tmp_path / "first", first)
    driver = before.driver()
    crash_once_saved(before, step=4, saved=3)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    after = site_of(tmp_path / "second", second, adopted=before.root)
    driver = after.driver(order=7)
    if crash:
        after.trainer.crash = crash
        with pytest.raises(ExceptionGroup):
            await driver.run()
        driver = after.driver(order=8)
    assert await driver.run() is RunOutcome.DONE
    batches = [*(of for of in trained(before) if of[0] <= 3), *trained(after)]
    assert [step for step, _ in batches] == [*range(1, STEPS + 1)]
    assert all(len(samples) == PROMPTS * GROUP for _, samples in batches)
    prompts = [prompt for _, samples in batches for prompt in {sample.prompt for sample in samples}]
    assert len(prompts) == len(set(prompts))
    if second not in STALE:
        for step, samples in trained(after):
            spans = [after.trainer.trained[sample].spans for sample in samples if sample in after.trainer.trained]
            assert all(span.version == step - 1 for of in spans for span in of)


async def test_a_damaged_checkpoint_of_another_job_is_passed_over_too(tmp_path: Path) -> None:
    before = site_of(tmp_path / "first", "Synchronous")
    assert await before.driver().run() is RunOutcome.DONE
    [weights] = before.root.glob(f"incarnations/*/*{STEPS}/trainer/weights")
    weights.write_bytes(bytes(weights.stat().st_size))
    after = site_of(tmp_path / "second", "Synchronous", before.root)
    assert await after.driver().run() is RunOutcome.DONE
    assert [step for step, _ in trained(after)] == [STEPS]
    assert after.trainer.weights == before.trainer.weights


async def test_engines_start_in_the_shape_of_the_checkpoint_that_the_job_starts_from(tmp_path: Path) -> None:
    before, after = tmp_path / "first", tmp_path / "second"
    assert await site_of(before, "Synchronous").driver().run() is RunOutcome.DONE
    for step in (None, 3):
        checkpoints = AdoptingStore(after, 10, 1, before, ResumeFrom(claim_name="other", step=step))
        assert checkpoints.newest_state() == manifests(before)[(step or STEPS) - 1]
    assert await site_of(after, "Synchronous", before).driver().run() is RunOutcome.DONE
    assert checkpoints.newest_state() == manifests(after)[-1]


async def test_what_another_job_learned_of_grading_times_is_not_taken_over(tmp_path: Path) -> None:
    """Rows and rewards of the same names may be others: nothing is known, so the first round runs to the hard limit."""
    reward = RewardSpec.model_validate({"name": "main", "function": "m:f", "learnedTimeout": {"minSeconds": 0.1}})

    def site(root: Path, steps: int, adopted: Path | None = None) -> Site:
        spec = make_spec(steps=steps, checkpoint={"every_steps": 1}).model_copy(update={"rewards": [reward]})
        return Site(root, spec, adopted=adopted)

    before = site(tmp_path / "first", 10)
    assert await before.driver().run() is RunOutcome.DONE
    assert manifests(before.root)[-1]["timeouts"]["rewards"]["main"]["problems"]
    after = site(tmp_path / "second", 20, before.root)
    assert await after.driver().run() is RunOutcome.DONE
    first = trained(after)[0][1]
    assert {after.rewards.limits[sample] for sample in first} == {TimeLimit()}
    fresh = LearnedTimeouts([reward], FakeSource().domain)
    last = manifests(after.root)[-1]
    for event in surviving(after.root, LogPosition(**last["log"])):
        fresh.fold(event)
    assert last["timeouts"] == fresh.to_snapshot(), "what this job's log teaches"
    assert any(limit.seconds is not None for limit in after.rewards.limits.values())
