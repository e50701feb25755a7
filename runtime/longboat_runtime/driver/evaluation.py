"""Held-out evaluation: responses to rows of their own, sampled greedily (or as the spec says) and graded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import structlog

from longboat_crds.dataset import EvaluationSpec
from longboat_crds.rewards import RewardSpec
from longboat_runtime.metrics.groups import FULL_SCORE, pass_rates
from longboat_runtime.reward.combine import batch_rewards
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rounds.rules import MOST_ENGINE_DEATHS
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    Grade,
    GradeKind,
    LostSample,
    PromptId,
    Row,
    SampleId,
    SampleRequest,
    Sampling,
    VersionSpan,
)

log = structlog.get_logger()

# How many graded samples are removed from the store at a time.
DISCARDED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class EvaluatedSample:
    """One response and its grade."""

    domain: str
    finished: FinishedSample
    grade: Grade


def is_due(step: int, steps: int, every: int) -> bool:
    """Whether to evaluate after `step`: before the first step, after each `every` steps, and after the last of `steps`."""
    return step % every == 0 or step >= steps


def evaluation_id(step: int, row: Row, index: int) -> SampleId:
    """Makes an id that no training sample and no other step's evaluation has: epochs below 0, one for each step."""
    return SampleId(-1 - step, row.prompt.row, 0, index)


def held_out_sampling(spec: EvaluationSpec, training: Sampling) -> Sampling:
    """Decides how held-out samples are drawn: like training samples, except for what the evaluation's `spec` has fields of its own for."""
    own = {field.name: getattr(spec, field.name) for field in fields(Sampling) if field.name in type(spec).model_fields}
    return replace(training, **own)


class Evaluation:
    """Runs one evaluation at a time. `take` gets the samples that the fleet finished.

    `seed`, `grade` (of a stored sample; raises KeyError if the store has lost it) and `discard` (from the store) are the driver's.
    """

    def __init__(
        self,
        spec: EvaluationSpec,
        rows: Sequence[Row],
        rewards: Sequence[RewardSpec],
        sampling: Sampling,
        fleet: RolloutFleet,
        seed: Callable[[SampleId], int],
        grade: Callable[[SampleId, Row], Awaitable[Grade]],
        discard: Callable[[Sequence[SampleId]], None],
    ) -> None:
        self._spec, self._rows, self._rewards, self._fleet = spec, rows, rewards, fleet
        self._sampling = held_out_sampling(spec, sampling)
        self._seed, self._grade, self._discard = seed, grade, discard
        self._waiting: dict[SampleId, asyncio.Future[FinishedSample | LostSample]] = {}
        self._graded: list[SampleId] = []

    async def run(self, step: int) -> dict[str, float]:
        """Evaluates the weights that serve after `step` and returns the `val/...` metrics. Grader errors are counted, not scored.

        Lost samples are retried, until MOST_ENGINE_DEATHS engines have died with one.
        """
        count = self._spec.samples_per_prompt
        samples = {evaluation_id(step, row, index): row for row in self._rows for index in range(count)}
        await self._submit(samples)
        results = await asyncio.gather(*(self._outcome(sample, row) for sample, row in samples.items()))
        self._discard([*self._waiting])
        self._waiting.clear()
        self._graded.clear()
        return evaluation_metrics([result for result in results if result is not None], self._rewards)

    def take(self, sample: FinishedSample | LostSample) -> bool:
        """Takes one result; returns False if it isn't awaited (a duplicate, or from an evaluation that was given up)."""
        waiting = self._waiting.get(sample.id)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(sample)
        return True

    async def _submit(self, samples: Mapping[SampleId, Row], begun: tuple[VersionSpan, ...] = ()) -> None:
        """Submits samples in one call, so that engines start them in one batch. `begun` are the spans of what the store has of them."""
        loop = asyncio.get_running_loop()
        self._waiting |= {sample: loop.create_future() for sample in samples}
        await self._fleet.submit(
            [
                SampleRequest(sample, row.token_ids, self._seed(sample), self._sampling, evaluation=True, begun=begun)
                for sample, row in samples.items()
            ]
        )

    def _discard_graded(self, sample: SampleId) -> None:
        """Discards a graded sample, DISCARDED_TOGETHER at a time: the store needn't be called for each, nor hold many that are graded."""
        self._graded.append(sample)
        if len(self._graded) >= DISCARDED_TOGETHER:
            self._discard(self._graded)
            for graded in self._graded:
                del self._waiting[graded]
            self._graded = []

    async def _outcome(self, sample: SampleId, row: Row) -> EvaluatedSample | None:
        """Waits for the outcome of a sample that has been submitted; None if it is left out."""
        deaths = 0
        while True:
            result = await self._waiting[sample]
            begun: tuple[VersionSpan, ...] = ()
            if isinstance(result, LostSample):
                begun = result.begun
                deaths += result.engine_died
                if deaths >= MOST_ENGINE_DEATHS:
                    log.warning("engines die with a held-out sample, which is left out", sample=str(sample))
                    return None
            elif result.finish_reason is not FinishReason.ABORT:
                with suppress(KeyError):  # the store lost it
                    grade = await self._grade(sample, row)
                    self._discard_graded(sample)
                    return EvaluatedSample(row.domain, result, grade)
            await self._submit({sample: row}, begun)


def evaluation_metrics(results: Sequence[EvaluatedSample], rewards: Sequence[RewardSpec]) -> dict[str, float]:
    """Returns the scores in total and by reward function (each by domain too if rows have one), lengths in tokens, and grades by kind.

    `val/accuracy` is the share of graded samples with at least FULL_SCORE, `val/pass@K` is there for prompts with several of them.
    Grader errors have no score; timeouts are scored as in a batch that is trained. `rewards` are the job's. Empty without results.
    """
    if not results:
        return {}
    scored: dict[str, list[float]] = {}
    graded = [result for result in results if result.grade.kind is not GradeKind.GRADER_ERROR]
    sample_rewards = batch_rewards(rewards, [result.grade for result in graded])
    prompts: dict[str, dict[PromptId, list[float]]] = {}
    for result, reward in zip(graded, sample_rewards, strict=True):
        for name in {"", result.domain}:
            prompts.setdefault(name, {}).setdefault(result.finished.id.prompt, []).append(reward)
            scored.setdefault(f"val/score/{name}", []).append(reward)
            scored.setdefault(f"val/accuracy/{name}", []).append(float(reward >= FULL_SCORE))
            for part, score in result.grade.parts.items():
                if score is not None:
                    scored.setdefault(f"val/reward/{part}/{name}", []).append(score)
    lengths = [result.finished.tokens for result in results]
    cut = sum(result.finished.finish_reason is FinishReason.LENGTH for result in results)
    passed = {
        f"val/{rate}/{name}": value
        for name, rewards_of in prompts.items()
        for rate, value in pass_rates(list(rewards_of.values())).items()
        if rate != "pass@1"  # val/accuracy
    }
    kinds = Counter(result.grade.kind for result in results)
    return {
        **{f"{name.removesuffix('/')}/mean": sum(scores) / len(scores) for name, scores in sorted(scored.items())},
        **{f"{name.removesuffix('/')}/mean": value for name, value in sorted(passed.items())},
        "val/response_length/mean": sum(lengths) / len(lengths),
        "val/response_length/clip_ratio": cut / len(lengths),
        **{f"val/grades/{kind}": float(kinds[kind]) for kind in GradeKind},
    }
