"""A job that starts from a checkpoint of another job, whatever policy either has."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from longboat_runtime.driver.loop import RunOutcome
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import crash_once_saved, trained

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
