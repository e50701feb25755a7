"""Answers to the held-out prompts by the weights that serve: the same prompts and seeds every time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from longboat_runtime.driver.components import Components
from longboat_runtime.driver.evaluation import evaluation_id
from longboat_runtime.driver.job import Job
from longboat_runtime.reward.tasks import FULL_SCORE
from longboat_runtime.samples import FinishedSample, Row, SampleRequest, sample_seed


async def answers(components: Components, job: Job, rows: Sequence[Row], each: int) -> list[tuple[int, int, int]]:
    """Draws `each` answers to each of `rows`; returns (row number, tokens, right) of each answer, sorted. `right` is 1 or 0."""
    requested = {evaluation_id(0, row, index): row for row in rows for index in range(each)}
    await components.fleet.submit(
        [
            SampleRequest(sample, row.token_ids, sample_seed("held-out", 0, sample), job.sampling, evaluation=True)
            for sample, row in requested.items()
        ]
    )
    waiting, grading = set(requested), []
    while waiting:
        for finished in await components.fleet.finished():
            if finished.id not in waiting or not isinstance(finished, FinishedSample):
                raise RuntimeError(f"{finished} instead of a held-out answer")
            waiting.remove(finished.id)
            grading.append(asyncio.create_task(_graded(components, finished, requested[finished.id])))
    return sorted(await asyncio.gather(*grading))


async def _graded(components: Components, finished: FinishedSample, row: Row) -> tuple[int, int, int]:
    grade = await components.rewards.grade(finished.id, row)
    await components.store.delete([finished.id])
    return row.prompt.row, finished.tokens, int(grade.score >= FULL_SCORE)
