"""Jobs whose samples have several turns, some of them in a segment of their own."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.rounds import events
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleRequest, VersionSpan
from longboat_runtime.trajectories import Turn, trajectory
from tests.driver.fakes import Crash, FakeFleet, Site, make_spec
from tests.driver.runs import history


class EpisodeFleet(FakeFleet):
    """Makes the fake fleet's response the first turn of three: the second continues it, the third begins a new segment."""

    def _sample(self, request: SampleRequest, *arguments: Any) -> GeneratedSample:
        first = super()._sample(request, *arguments)
        if first.finish_reason is FinishReason.ABORT:
            return first
        turns = [Turn(first.prompt_ids, first.token_ids, first.logprobs, first.spans)]
        for context, drawn, continues in (((1, 2, 3), (8, 9), 0), ((5,), (7,), None)):
            spans = (VersionSpan(self.version, 0, len(drawn)),)
            logprobs = np.full(len(drawn), -self.version, np.float32)
            turns.append(Turn(np.array(context, np.int32), np.array(drawn, np.int32), logprobs, spans, continues))
        segments, reply, _ = trajectory(turns)
        return replace(first, segments=segments, reply=reply)


class EpisodeSite(Site):
    def open_fleet(self, order: int) -> FakeFleet:
        return EpisodeFleet(self.store, random.Random(order))


async def test_what_is_trained_is_planned_by_segments_and_counted_by_samples(tmp_path: Path) -> None:
    site = EpisodeSite(tmp_path, make_spec(samples={"every_steps": 1}))
    assert await site.driver().run() is RunOutcome.DONE
    for request in site.trainer.requests:
        for entry in request.samples:
            sample = site.trainer.trained[entry.id]
            first = len(sample.segments[0].token_ids)
            assert entry.size == sample.size, "a rank refuses other sizes"
            assert entry.size.segments == ((first, first - len(sample.prompt_ids) - 3), (2, 1))
    generated = {body.sample: body for body in history(site) if isinstance(body, events.Generated)}
    steps = [json.loads(line) for line in (site.root / "incarnations/1/metrics.jsonl").read_text().splitlines()]
    for request, step in zip(site.trainer.requests, steps[1:], strict=True):
        bodies = [generated[entry.id] for entry in request.samples]
        assert step["training/samples"] == len(bodies)
        assert step["response_length/mean"] == pytest.approx(sum(body.tokens for body in bodies) / len(bodies))
        assert step["perf/total_num_tokens"] == sum(entry.size.computed for entry in request.samples)
        assert step["training/off_policy/trajectory_spans/max"] == 1


async def test_a_job_of_several_turns_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = EpisodeSite(tmp_path / "whole", make_spec())
    assert await whole.driver().run() is RunOutcome.DONE
    site = EpisodeSite(tmp_path / "ended", make_spec())
    driver = site.driver(3)
    site.trainer.crash = (4, "after")
    with pytest.raises(ExceptionGroup) as died:
        await driver.run()
    assert died.group_contains(Crash)
    assert await site.driver(7).run() is RunOutcome.DONE
    assert site.trainer.weights == whole.trainer.weights
