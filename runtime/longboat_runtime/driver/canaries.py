"""Grades canaries beside the samples: at the lowest urgency, outside the ledger and learned timeouts. Nothing waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Problems
from longboat_runtime.reward.canary import Canary, CanaryScores, as_response, canaries, suspicion
from longboat_runtime.reward.protocol import LEAST_URGENT
from longboat_runtime.samples import UNSCORED, Grade, PromptId, Row, SampleId

log = structlog.get_logger()

# How many rows are checked at a time.
ROWS = 8
# Among how many prompts of a round they are looked for.
MOST_LOOKED_AT = 256


class Canaries:
    """Checks the rewards that have a canary: before the first step of each driver, and every `everySteps` steps.

    `spawn` runs work in the background; an error in it ends the run.
    """

    def __init__(
        self,
        job: Job,
        components: Components,
        problems: Problems,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._job, self._components, self._problems, self._spawn = job, components, problems, spawn
        self._canaries = canaries(job.spec.rewards)
        # Rewards whose canaries are to be checked with the round that runs.
        self.due: set[str] = set()
        self.committed(0)
        self._suspect: dict[str, tuple[str, str]] = {}

    def log(self) -> None:
        """Logs which rewards have no canary."""
        have = {canary.reward.name for canary in self._canaries}
        if without := [reward.name for reward in self._job.spec.rewards if reward.name not in have]:
            log.info("rewards without a canary, which would show whether they tell right from wrong", rewards=without)

    def committed(self, step: int) -> None:
        """Takes notice of a committed step: with the next round the canaries are checked whose time has come."""
        if self._components.tokenizer is not None:
            self.due |= {canary.reward.name for canary in self._canaries if step % canary.every_steps == 0}

    def launched(self, step: int, prompts: Iterable[PromptId]) -> None:
        """Starts to check the canaries that are due, on rows of these prompts, which have been launched. `step` is the last one."""
        launched = sorted(prompts)[:MOST_LOOKED_AT]
        for number, canary in enumerate(self._canaries):
            if canary.reward.name in self.due:
                self._spawn(self._check(canary, number, step, launched))
        self.due.clear()

    async def _check(self, canary: Canary, number: int, step: int, prompts: Iterable[PromptId]) -> None:
        """Grades the canaries of up to ROWS rows, and reports or clears what is suspect of the reward."""
        checked: list[CanaryScores] = []
        reason: str | None = None
        try:
            for prompt in prompts:
                row = self._components.source.row(prompt)
                if (texts := canary.texts(row)) is not None:
                    checked.append(await self._scores(canary, number, step, row, *texts))
                if len(checked) == ROWS:
                    break
            reason = suspicion(checked)
        except ValueError as error:
            reason = str(error)
        log.info("canaries are graded", reward=canary.reward.name, step=step, rows=len(checked), suspect=reason)
        if reason is None:
            self._suspect.pop(canary.reward.name, None)
        else:
            message = f"Reward {canary.reward.name} can't be trusted: {reason}. Compare the function, the columns that it reads and the canary."
            self._suspect[canary.reward.name] = (canary.field, message)
        first = next(iter(self._suspect.values()), ("", ""))
        self._problems.set(Reason.REWARD_SUSPECT, *first, present=bool(self._suspect))

    async def _scores(self, canary: Canary, number: int, step: int, row: Row, right: str, wrong: str) -> CanaryScores:
        tokenizer, store = self._components.tokenizer, self._components.store
        assert tokenizer is not None
        # Epochs below 0 as for evaluations, whose attempts are all 0.
        samples = [SampleId(-1 - step, row.prompt.row, 1 + number, index) for index in range(4)]
        await store.put(
            [
                as_response(sample, row.token_ids, text, tokenizer, self._job.sampling)
                for sample, text in zip(samples, (right, right, wrong, ""), strict=True)
            ]
        )
        try:
            grades = await asyncio.gather(
                *(
                    self._components.rewards.grade(sample, row, LEAST_URGENT, siblings=samples, only=canary.reward.name)
                    for sample in samples
                )
            )
        except KeyError:  # the store is gone, and this driver will be soon
            return CanaryScores(row.prompt.row, None, None, None, None)
        finally:
            await store.delete(samples)
        return CanaryScores(row.prompt.row, *(_score(grade, canary.reward.name) for grade in grades))


def _score(grade: Grade, reward: str) -> float | None:
    return None if grade.kind in UNSCORED else grade.parts.get(reward)
