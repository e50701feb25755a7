"""Policies that train on tokens of older weights, through the driver: every prompt once, with the right versions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rounds import events
from longboat_runtime.samples import SampleId, VersionSpan, continued_seed, sample_seed
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history, trained

STEPS, PROMPTS, GROUP = 9, 2, 2
CONTINUE = {"policy": "ContinueUnfinished", "prompt_overcommit": 2.0}
ASYNC = {"policy": "BoundedAsync", "max_staleness": 2}
CRASHES = [None, (1, "before"), (3, "before"), (4, "after"), (7, "before")]


def site_of(root: Path, rounds: dict[str, Any]) -> Site:
    return Site(root, make_spec(**rounds, steps=STEPS, prompts_per_round=PROMPTS))


def start(site: Site, order: int = 0) -> Driver:
    """Starts a driver whose engine returns two tokens of each sample that it has to pause."""
    driver = site.driver(order)
    site.fleet.cut_at = 2
    return driver


def bodies(site: Site, kind: type) -> list:
    return [body for body in history(site) if isinstance(body, kind)]


@pytest.mark.parametrize("rounds", [CONTINUE, ASYNC], ids=lambda rounds: rounds["policy"])
@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("crash", CRASHES)
async def test_every_prompt_is_trained_once_with_the_versions_that_drew_it(
    tmp_path: Path, rounds: dict, order: int, crash: tuple[int, str] | None
) -> None:
    site = site_of(tmp_path, rounds)
    driver = start(site, order)
    seen: dict[SampleId, Any] = {}
    if crash:
        site.trainer.crash = crash
        with pytest.raises(ExceptionGroup):
            await driver.run()
        seen |= site.trainer.trained
        driver = start(site, order + 10)
    assert await driver.run() is RunOutcome.DONE
    seen |= site.trainer.trained
    batches = trained(site)
    prompts = [prompt for _, samples in batches for prompt in {sample.prompt for sample in samples}]
    assert [len(samples) for _, samples in batches] == [PROMPTS * GROUP] * STEPS
    assert len(prompts) == len(set(prompts)) == STEPS * PROMPTS
    assert {body.prompt for body in bodies(site, events.Launched)} == set(prompts), "nothing that was begun is left out"
    spans = {body.sample: body.spans for body in bodies(site, events.Generated)}
    for step, samples in batches:
        for sample in samples:
            data = seen[sample]
            assert spans[sample] == data.spans, "the log says what the trainer got"
            assert [-float(v) for v, start, end in data.spans for _ in range(start, end)] == data.logprobs.tolist()
            oldest = step - 1 - data.spans[0].version
            assert 0 <= oldest <= (rounds.get("max_staleness") or oldest)
    assert not site.store.samples, "nothing is left in the store"


async def test_unfinished_responses_continue_after_their_tokens(tmp_path: Path) -> None:
    site = site_of(tmp_path, CONTINUE)
    assert await start(site).run() is RunOutcome.DONE
    paused = {body.sample: body for body in bodies(site, events.Paused)}
    resumed = [sample for body in bodies(site, events.Resumed) for sample in body.samples]
    assert set(paused) == set(resumed)
    assert not bodies(site, events.Stopped), "nothing is thrown away"
    generated = {body.sample: body for body in bodies(site, events.Generated)}
    several = [body for body in generated.values() if len(body.spans) > 1]
    assert several
    for body in several:
        assert all(before.end == after.start for before, after in pairwise(body.spans))
        assert body.spans[-1].end == body.tokens > paused[body.sample].tokens
    again = [request for request in site.fleet.requests if request.begun]
    for request in again:
        tokens = request.begun[-1].end
        assert request.seed == sample_seed("job-uid", site.spec.rounds.seed, request.id)
        assert request.next_seed == continued_seed(request.seed, tokens) != request.seed


async def test_metrics_show_what_was_carried_and_how_old_tokens_are(tmp_path: Path) -> None:
    site = site_of(tmp_path, CONTINUE)
    assert await start(site).run() is RunOutcome.DONE
    steps = [record.metrics for record in read_records(tmp_path)][1:]
    carried = [metrics["rollout/carried_groups"] for metrics in steps]
    adopted = [metrics["rollout/adopted_groups"] for metrics in steps]
    assert adopted == [0.0, *carried[:-1]]
    assert sum(carried) > 0 == carried[-1]
    made, kept = (
        sum(metrics["rollout/generated_tokens"] for metrics in steps),
        sum(metrics["response_length/mean"] * metrics["training/samples"] for metrics in steps),
    )
    assert made == pytest.approx(kept), "every token that was made is trained, once"
    assert max(metrics["training/off_policy/token_staleness/max"] for metrics in steps) >= 1
    assert max(metrics["fully_async/partial/partial_ratio"] for metrics in steps) > 0


async def test_rollout_runs_ahead_and_grades_are_recorded_meanwhile(tmp_path: Path) -> None:
    site = site_of(tmp_path, ASYNC)
    assert await start(site).run() is RunOutcome.DONE
    log = history(site)
    open_rounds = most = 0
    for body in log:
        open_rounds += isinstance(body, events.RoundOpened) - isinstance(body, events.StepCommitted)
        most = max(most, open_rounds)
    assert most == 1 + ASYNC["max_staleness"]
    worst = [
        record.metrics["training/off_policy/trajectory_staleness_worst/max"] for record in read_records(tmp_path)[1:]
    ]
    assert max(worst) == ASYNC["max_staleness"]
    assert bodies(site, events.Generated)[0].spans == (VersionSpan(0, 0, bodies(site, events.Generated)[0].tokens),)
