"""A job that streams trains what it would have trained without, whatever is lost on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.stages import Stage
from longboat_runtime.driver.streaming import streams
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rounds import events
from longboat_runtime.samples import SampleId
from longboat_runtime.trainer.errors import TrainerLost
from longboat_runtime.trainer.protocol import ChunkRequest, TrainReport, TrainRequest
from tests.driver.fakes import Crash, Site, make_spec
from tests.driver.runs import finished, held, history, trained, until

# Chunks of at least 16 tokens: two or three of the six groups.
ROUNDS = {"steps": 3, "prompts_per_round": 6, "checkpoint": {"every_steps": 1}}
ALWAYS = {"stream": "Always", "max_tokens_per_bin": 16}


def spec_of(**fields: Any) -> dict[str, Any]:
    return {**ROUNDS, "trainer": ALWAYS, **fields}


def bodies(site: Site, kind: type) -> list[Any]:
    return [body for body in history(site) if isinstance(body, kind)]


@pytest.mark.parametrize("policy", ["Synchronous", "TailBatching", "ContinueUnfinished", "BoundedAsync"])
async def test_it_trains_the_same_in_chunks_and_says_how_much(tmp_path: Path, policy: str) -> None:
    site = await finished(tmp_path, **spec_of(policy=policy))
    assert len(site.trainer.requests) == 3
    for request in site.trainer.requests:
        counted = [sample.id for sample in request.samples]
        assert len(counted) == len(set(counted)) == 12, "with its chunks, a step has each sample once"
    records = [record.metrics for record in read_records(tmp_path) if record.step]
    requests = Counter(request.step for request in site.trainer.chunks)
    assert sum(requests.values()) > 0
    for step, metrics in enumerate(records, start=1):
        assert metrics["stream/chunks"] == requests[step]
        assert (metrics["stream/token_share"] > 0) == (requests[step] > 0)
        assert 0 <= metrics["stream/overlap_s"] <= metrics["timing_s/stream"]
    assert not site.store.samples


async def test_weights_are_those_of_a_job_that_does_not_stream(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = await finished(tmp_path / "streamed", **spec_of())
    assert not whole.trainer.chunks
    assert not any(name.startswith("stream/") for record in read_records(whole.root) for name in record.metrics)
    assert site.trainer.chunks
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_nothing_is_streamed_before_a_chunk_is_full(tmp_path: Path) -> None:
    site = await finished(tmp_path, **spec_of(trainer={**ALWAYS, "max_tokens_per_bin": 8192}))
    assert not site.trainer.chunks


async def test_a_timeout_whose_score_depends_on_the_batch_waits_for_it(tmp_path: Path) -> None:
    whole = Site(tmp_path / "whole", make_spec(**ROUNDS))
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    for run in (whole, site):
        driver = run.driver()
        run.rewards.timeouts = {SampleId(0, 1, 0, 0), SampleId(0, 2, 0, 1)}
        assert await driver.run() is RunOutcome.DONE
    assert not {sample.id.row for chunk in site.trainer.chunks for sample in chunk.samples if chunk.step == 1} & {1, 2}
    assert site.trainer.chunks
    assert site.trainer.weights == whole.trainer.weights


async def test_data_of_a_streamed_group_is_not_asked_for_again(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    async with held(site) as wait:
        await wait(lambda: bool(site.trainer.accumulated))
        gone = site.trainer.chunks[0].samples[0].id
        del site.store.samples[gone]
    assert [request.id for request in site.fleet.requests].count(gone) == 1
    assert not bodies(site, events.ChunksLost)
    assert site.trainer.weights == whole.trainer.weights


@pytest.mark.parametrize("before", [0, 1])
async def test_ranks_lost_in_a_chunk_leave_its_groups_to_be_trained(tmp_path: Path, before: int) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    driver = site.driver()
    site.trainer.lost_in_chunk = [(2, before)]
    assert await driver.run() is RunOutcome.DONE
    assert not site.trainer.lost_in_chunk, "a rank died"
    assert len(bodies(site, events.ChunksLost)) == (before > 0), "a chunk without others before it is computed again"
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_ranks_lost_in_a_streamed_step_have_the_whole_batch_trained(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    driver = site.driver()
    accumulate, steps, lost = site.trainer.accumulate, set[int](), set[SampleId]()

    async def chunk(request: ChunkRequest) -> float:
        seconds = await accumulate(request)
        if request.step not in steps:
            steps.add(request.step)
            site.trainer.lost.add(request.step)
        if not lost:
            lost.add(request.samples[0].id)
            del site.store.samples[request.samples[0].id]
        return seconds

    site.trainer.accumulate = chunk
    assert await driver.run() is RunOutcome.DONE
    assert len(bodies(site, events.ChunksLost)) == len(steps) > 0
    assert [request.id for request in site.fleet.requests].count(*lost) == 2, "now its data is needed"
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_data_lost_before_its_chunk_is_generated_again(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    driver = site.driver()
    accumulate, lost = site.trainer.accumulate, list[SampleId]()

    async def chunk(request: ChunkRequest) -> float:
        if not lost:
            lost.append(request.samples[0].id)
            del site.store.samples[lost[0]]
        return await accumulate(request)

    site.trainer.accumulate = chunk
    assert await driver.run() is RunOutcome.DONE
    assert [request.id for request in site.fleet.requests].count(lost[0]) == 2
    assert len(bodies(site, events.ChunksLost)) == 1
    assert site.trainer.weights == whole.trainer.weights


@pytest.mark.parametrize("where", ["in a chunk", "after a chunk", "in the step"])
async def test_the_next_driver_trains_what_the_one_before_had_streamed(tmp_path: Path, where: str) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    driver = site.driver()
    accumulate, train = site.trainer.accumulate, site.trainer.train

    async def chunk(request: ChunkRequest) -> float:
        if request.step == 2 and (where == "in a chunk" or request.chunks):
            raise Crash("the driver died")
        return await accumulate(request)

    async def step(request: TrainRequest) -> TrainReport:
        if request.step == 2 and where == "in the step":
            raise Crash("the driver died")
        return await train(request)

    site.trainer.accumulate, site.trainer.train = chunk, step
    with pytest.raises(ExceptionGroup):
        await driver.run()
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


@pytest.mark.parametrize("every_steps", [1, 3])
async def test_a_suspension_waits_for_a_chunk_only_if_a_step_has_to_be_saved(tmp_path: Path, every_steps: int) -> None:
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of(checkpoint={"every_steps": every_steps})))
    driver = site.driver()
    site.fleet.hang = {SampleId(1, 1, 0, 0)}  # in the second round
    job = asyncio.create_task(driver.run())
    await until(lambda: bool(site.trainer.requests), job)
    site.trainer.may_accumulate.clear()
    await until(lambda: Stage.STREAM in site.reporter.stages.active, job)
    if every_steps == 1:
        await until(lambda: driver._steps.saved is not None, job)
    driver.stop()
    if every_steps > 1:
        for _ in range(100):
            await asyncio.sleep(0)
        assert not job.done()
        site.trainer.may_accumulate.set()
    assert await job is RunOutcome.STOPPED
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_weights_are_published_again_between_two_chunks(tmp_path: Path) -> None:
    """The ranks are lost with it, and the chunks with them."""
    whole = await finished(tmp_path / "whole", **ROUNDS)
    site = Site(tmp_path / "streamed", make_spec(**spec_of()))
    async with held(site) as wait:
        await wait(lambda: bool(site.trainer.accumulated))
        publish, lost = site.trainer.publish, [True]

        async def lose_once(version: int) -> Any:
            if lost:
                lost.clear()
                raise TrainerLost("a trainer rank failed")
            return await publish(version)

        site.trainer.publish = lose_once
        site.fleet.set_state(FleetState((), unreached={"a": "no route to host"}, fetches=1))
        await wait(lambda: len(site.fleet.published) == 2)
    assert bodies(site, events.ChunksLost)
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


@pytest.mark.parametrize(
    ("device", "trainer", "algorithm", "expected"),
    [
        ("cuda", {}, {}, True),
        ("cuda", {"deterministic": True}, {}, False),
        ("cuda", {"stream": "Never"}, {}, False),
        ("cuda", {"minibatches": 2}, {}, False),
        ("cuda", {}, {"name": "ReinforcePlusPlus"}, False),
        ("cpu", {}, {}, False),
        ("cpu", {"deterministic": False}, {}, False),
        ("cpu", {"stream": "Always"}, {}, True),
        ("cuda", {"stream": "Always", "deterministic": True}, {}, True),
    ],
)
def test_auto_streams_on_gpus_that_need_not_be_deterministic(
    *, device: str, trainer: dict[str, Any], algorithm: dict[str, Any], expected: bool
) -> None:
    assert streams(make_spec(trainer=trainer, algorithm=algorithm), device) is expected
