"""What rewards are given of responses: all to a prompt at once, their special tokens, their token ids. On a real Ray node."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import ray

from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import DEFAULT_POOL
from longboat_runtime.local.ray import start_ray
from longboat_runtime.reward.scheduler import RayRewardScheduler
from longboat_runtime.reward.slots import resource
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, Response, Row, SampleId, SpecialToken

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A limit, in seconds, that grades never reach if they end by themselves.
LONG = 3600.0
FUNCTIONS = """
import time

def shortest(prompts, completions, log_metric, **kwargs):
    if "hang" in completions:
        time.sleep(1e6)
    log_metric("longest", max(map(len, completions)))
    return [float(len(c) == min(map(len, completions))) for c in completions]

def ids(completions, completion_ids):
    return [float(sum(numbers)) for numbers in completion_ids]

def whole(sample):
    assert sample.token_ids is None
    return float(sample.text.endswith("<end>"))

def numbers(sample):
    assert "<end>" not in sample.text
    return float(sum(sample.token_ids))
"""
TEXTS = ["one", "three", "seven", "two"]
GROUP = [SampleId(0, 0, 0, index) for index in range(len(TEXTS))]


class Store:
    """A store that holds four responses to each prompt; to the second, the last hangs the function that is given it."""

    def __init__(self) -> None:
        self.lost: set[SampleId] = set()

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> dict[SampleId, Response]:
        return {
            i: Response(
                "hang" if i.row and i.index == 3 else TEXTS[i.index],
                FinishReason.STOP,
                2,
                (SpecialToken(len(TEXTS[i.index]), "<end>"),),
                np.array([i.index, 7], np.int32) if token_ids else None,
            )
            for i in ids
            if i not in self.lost
        }


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_ray({resource(DEFAULT_POOL): 2}, object_store=80_000_000)
    yield
    ray.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scheduler(cluster: None, graders: Path, graders_directory: Path) -> AsyncIterator[RayRewardScheduler]:
    path = graders_directory / "group_functions.py"
    path.write_text(FUNCTIONS)
    trl = {"signature": "TRL", "timeoutSeconds": LONG}
    spec = RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": "/model"},
            "dataset": {"files": {"paths": ["/rows.jsonl"]}, "columns": {"domain": "topic"}},
            "rounds": {"steps": 1, "promptsPerRound": 1},
            "rollout": {"sampling": {"maxTokens": 8}},
            "rewards": [
                {"name": "shortest", "function": f"{path}:shortest", **trl, "domains": ["ends"]},
                {"name": "hangs", "function": f"{path}:shortest", **trl, "timeoutSeconds": 0.25, "domains": ["hangs"]},
                {"name": "ids", "function": f"{path}:ids", "batch": "Sample", **trl, "domains": ["ends"]},
                {
                    "name": "whole",
                    "function": f"{path}:whole",
                    "specialTokens": True,
                    "timeoutSeconds": LONG,
                    "domains": ["ends"],
                },
                {
                    "name": "numbers",
                    "function": f"{path}:numbers",
                    "tokenIds": True,
                    "timeoutSeconds": LONG,
                    "domains": ["ends"],
                },
            ],
        }
    )
    scheduler = RayRewardScheduler(spec, Store(), {DEFAULT_POOL: graders})  # type: ignore[arg-type]
    await scheduler.start()
    yield scheduler
    await scheduler.close()


async def test_a_group_is_scored_together_and_each_response_by_what_its_rewards_take(
    scheduler: RayRewardScheduler,
) -> None:
    row = Row(PromptId(0, 0), "?", (1,), "ends")
    first = [asyncio.create_task(scheduler.grade(sample, row)) for sample in GROUP[:3]]
    last = asyncio.create_task(scheduler.grade(GROUP[3], row, siblings=GROUP))
    grades = await asyncio.gather(*first, last)
    assert [grade.message for grade in grades] == [""] * 4
    assert [grade.parts["shortest"] for grade in grades] == [1.0, 0.0, 0.0, 1.0]
    assert [grade.metrics for grade in grades] == [{"shortest/longest": 5.0}] * 4
    assert [grade.parts["ids"] for grade in grades] == [7.0, 8.0, 9.0, 10.0]
    assert [grade.parts["whole"] for grade in grades] == [1.0] * 4
    assert [grade.parts["numbers"] for grade in grades] == [7.0, 8.0, 9.0, 10.0]


async def test_a_group_that_takes_too_long_times_out_as_a_whole(scheduler: RayRewardScheduler) -> None:
    row = Row(PromptId(0, 1), "?", (1,), "hangs")
    group = [SampleId(0, 1, 0, index) for index in range(4)]
    grades = await asyncio.gather(*(scheduler.grade(sample, row, siblings=group) for sample in group))
    assert {(grade.kind, grade.message) for grade in grades} == {(GradeKind.TIMEOUT, "hangs: killed after 1 s")}
