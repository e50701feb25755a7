"""Held-out evaluation: responses to rows of their own, sampled greedily (or as the spec says) and graded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import structlog

from longboat_crds.dataset import EvaluationSpec
from longboat_crds.rewards import RewardSpec
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.driver.run_state import Evaluated
from longboat_runtime.driver.stages import Stage
from longboat_runtime.metrics.groups import pass_rates
from longboat_runtime.reward.combine import batch_rewards
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.rules import failure_of
from longboat_runtime.samples import (
    UNSCORED,
    FinishedSample,
    FinishReason,
    Grade,
    GradeKind,
    LossCause,
    LostSample,
    PromptId,
    Row,
    SampleId,
    SampleRequest,
    Sampling,
    VersionSpan,
    sample_seed,
)
from longboat_runtime.status_fragment import StatusFragment

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
    """Decides how held-out samples are drawn: like training samples, except for what the evaluation's `spec` has values of its own for."""
    own = {field.name: getattr(spec, field.name, None) for field in fields(Sampling)}
    return replace(training, **{name: value for name, value in own.items() if value is not None})


class Evaluation(Observer):
    """Evaluates the weights before a round, where an evaluation is due: the round would take engines away from it.

    The next optimizer step waits for the evaluation in any case.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._job, self._components = context, context.job, context.components
        self._data = context.data
        self._spec = context.job.spec.dataset.evaluation
        self._waiting: dict[SampleId, asyncio.Future[FinishedSample | LostSample]] = {}
        self._graded: list[SampleId] = []
        # How many episodes of the evaluation under way are left out since their environments have lost them too often.
        self._failed = 0
        self._metrics: dict[int, dict[str, float]] = {}
        self._accuracy: str | None = None

    def resume(self, restored: Restored) -> None:
        self._run_state, self._identity = restored.run_state, restored.boundary.identity

    async def run(self) -> None:
        """Takes the samples that the fleet finished. What isn't awaited, as after an evaluation that was given up, is discarded."""
        while True:
            sample = await self._context.held_out.get()
            waiting = self._waiting.get(sample.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(sample)
            elif isinstance(sample, FinishedSample):
                self._data.discard([sample.id])

    async def before_round(self, version: int) -> None:
        """Evaluates the weights of a step if that is due and isn't done."""
        steps, last, spec = self._run_state.view.steps, self._run_state.evaluated, self._spec
        done = last is not None and last.step == version
        if spec is None or not self._components.evaluation or done or not is_due(version, steps, spec.every_steps):
            return
        with self._context.stages.running(Stage.EVALUATE):
            metrics = await self._evaluate(spec, version, steps)
        self._run_state.evaluated = Evaluated(version, metrics.get("val/score/mean"))
        self._metrics[version] = metrics
        if (accuracy := metrics.get("val/accuracy/mean")) is not None:
            self._accuracy = format(accuracy, ".4g")
            self._context.news.set()

    async def metrics(self, step: int) -> Mapping[str, float]:
        return self._metrics.pop(step, {})

    def status(self) -> StatusFragment:
        return StatusFragment({"accuracy": self._accuracy})

    async def _evaluate(self, spec: EvaluationSpec, step: int, steps: int) -> dict[str, float]:
        """Evaluates the weights that serve after `step` of `steps` and returns the `val/...` metrics.

        Grader errors are counted, not scored, and so are episodes that fail. Lost samples are retried, as often as those of
        training (`rules.failure_of`).
        """
        rows = self._components.evaluation
        self._sampling = held_out_sampling(spec, self._job.sampling)
        count = spec.samples_per_prompt
        samples = {evaluation_id(step, row, index): row for row in rows for index in range(count)}
        self._failed = 0
        await self._submit(samples)
        training = {"global_step": step, "max_steps": steps, "epoch": 0}
        results = await asyncio.gather(
            *(
                self._outcomes([evaluation_id(step, row, index) for index in range(count)], row, training)
                for row in rows
            )
        )
        self._data.discard([*self._waiting])
        self._waiting.clear()
        self._graded.clear()
        metrics = evaluation_metrics(
            [*chain.from_iterable(results)], self._job.spec.rewards, self._run_state.task_rewards
        )
        if self._job.spec.environments is not None:
            metrics["val/environment_errors"] = float(self._failed)
        return metrics

    async def _submit(self, samples: Mapping[SampleId, Row], begun: tuple[VersionSpan, ...] = ()) -> None:
        """Submits samples in one call, so that engines start them in one batch. `begun` are the spans of what the store has of them."""
        loop, seed = asyncio.get_running_loop(), self._job.spec.rounds.seed
        self._waiting |= {sample: loop.create_future() for sample in samples}
        await self._components.samples.submit(
            [
                SampleRequest(
                    sample,
                    row.token_ids,
                    sample_seed(self._identity, seed, sample),
                    self._sampling,
                    evaluation=True,
                    begun=begun,
                )
                for sample, row in samples.items()
            ]
        )

    def _discard_graded(self, sample: SampleId) -> None:
        """Discards a graded sample, DISCARDED_TOGETHER at a time: the store needn't be called for each, nor hold many that are graded."""
        self._graded.append(sample)
        if len(self._graded) >= DISCARDED_TOGETHER:
            self._data.discard(self._graded)
            for graded in self._graded:
                del self._waiting[graded]
            self._graded = []

    async def _outcomes(
        self, samples: Sequence[SampleId], row: Row, training: Mapping[str, float]
    ) -> list[EvaluatedSample]:
        """Waits for the outcomes of a row's samples, which have been submitted; those of samples that are left out are missing.

        They are graded once all have been generated, since rewards may be given all of them at once. One that the store has lost is
        generated again, and those that weren't graded by then wait for it.
        """
        generated = await asyncio.gather(*(self._finished(sample, row) for sample in samples))
        finished = {result.id: result for result in generated if result is not None}
        graded: dict[SampleId, EvaluatedSample] = {}

        async def grade(sample: SampleId) -> None:
            outcome = await self._components.rewards.grade(sample, row, siblings=[*finished], training=training)
            graded[sample] = EvaluatedSample(row.domain, finished[sample], outcome)

        while waiting := [sample for sample in finished if sample not in graded]:
            lost: list[SampleId] = []
            try:
                async with asyncio.TaskGroup() as tasks:
                    for sample in waiting:
                        tasks.create_task(grade(sample))
            except* KeyError as missing:
                lost = [sample for error in missing.exceptions for sample in error.args]
            for sample in lost:
                del finished[sample]
                await self._submit({sample: row})
                if (again := await self._finished(sample, row)) is not None:
                    finished[sample] = again
        for sample in graded:
            self._discard_graded(sample)
        return [graded[sample] for sample in samples if sample in graded]

    async def _finished(self, sample: SampleId, row: Row) -> FinishedSample | None:
        """Waits for a sample that has been submitted; None if it is left out."""
        deaths = losses = 0
        while True:
            result = await self._waiting[sample]
            begun: tuple[VersionSpan, ...] = ()
            if isinstance(result, LostSample):
                begun = result.begun
                deaths += result.engine_died
                losses += result.cause is LossCause.ENVIRONMENT
                why = failure_of(deaths, losses, episode=self._components.episodes is not None)
                if why is not None:
                    log.warning("a held-out sample is left out", sample=str(sample), cause=why, reason=result.reason)
                    self._failed += why is DropReason.ENVIRONMENT_ERROR
                    return None
            elif result.finish_reason is not FinishReason.ABORT:
                return result
            await self._submit({sample: row}, begun)


def evaluation_metrics(
    results: Sequence[EvaluatedSample], rewards: Sequence[RewardSpec], task_rewards: TaskRewards
) -> dict[str, float]:
    """Returns the scores in total and by reward function (each by domain too if rows have one), lengths in tokens, and grades by kind.

    `val/accuracy` is the share of solved samples among those of which that can be told, by reward in `val/solved`; `val/pass@K` is there
    for prompts with several of them. Grader errors and samples to which no function applies have no score; timeouts are scored as in a
    batch that is trained. `rewards` are the job's. Empty without results.
    """
    if not results:
        return {}
    scored: dict[str, list[float]] = {}
    for result in results:
        task_rewards.observe(result.grade)
    graded = [result for result in results if result.grade.kind not in UNSCORED]
    sample_rewards = batch_rewards(rewards, [result.grade for result in graded])
    prompts: dict[str, dict[PromptId, list[bool]]] = {}
    for result, reward in zip(graded, sample_rewards, strict=True):
        assert reward is not None
        solved = task_rewards.solved(result.grade)
        for name in {"", result.domain}:
            scored.setdefault(f"val/score/{name}", []).append(reward)
            if solved is not None:
                prompts.setdefault(name, {}).setdefault(result.finished.id.prompt, []).append(solved)
                scored.setdefault(f"val/accuracy/{name}", []).append(float(solved))
            for part, score in result.grade.parts.items():
                if score is not None:
                    scored.setdefault(f"val/reward/{part}/{name}", []).append(score)
    lengths = [result.finished.tokens for result in results]
    cut = sum(result.finished.finish_reason is FinishReason.LENGTH for result in results)
    passed = {
        f"val/{rate}/{name}": value
        for name, by_prompt in prompts.items()
        for rate, value in pass_rates(list(by_prompt.values())).items()
        if rate != "pass@1"  # val/accuracy
    }
    kinds = Counter(result.grade.kind for result in results)
    return {
        **{f"{name.removesuffix('/')}/mean": sum(scores) / len(scores) for name, scores in sorted(scored.items())},
        **{f"{name.removesuffix('/')}/mean": value for name, value in sorted(passed.items())},
        **task_rewards.shares("val/solved", [result.grade for result in graded]),
        "val/response_length/mean": sum(lengths) / len(lengths),
        "val/response_length/clip_ratio": cut / len(lengths),
        **{f"val/grades/{kind}": float(kinds[kind]) for kind in GradeKind},
    }
