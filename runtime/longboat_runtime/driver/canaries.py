"""Grades canaries beside the samples: at the lowest urgency, outside the ledger and learned timeouts. Nothing waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.reward.canary import Canary, CanaryScores, as_response, canaries, suspicion
from longboat_runtime.reward.protocol import LEAST_URGENT
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.samples import UNSCORED, Grade, PromptId, Row, SampleId
from longboat_runtime.special_tokens import special_texts
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()

# How many rows are checked at a time, and how many are read to find so many that have an answer.
ROWS, MOST_READ = 8, 64


class Canaries(Observer):
    """Checks the rewards that have a canary: before the first step of each driver, and every `everySteps` steps."""

    watches = (events.Generated, events.StepCommitted)

    def __init__(self, context: Context) -> None:
        self._job, self._components, self._background = context.job, context.components, context.background
        self._problems = Problems(context.news)
        self._canaries = {
            canary.reward.name: canary
            for canary in canaries(self._job.spec.rewards, implied=self._job.spec.environments is None)
        }
        self._special = {} if self._components.tokenizer is None else special_texts(self._components.tokenizer)
        # Rewards whose canaries are to be checked with the round that runs, and those that are being checked.
        self._due: set[str] = set()
        self._checking: set[str] = set()
        self._suspect: dict[str, tuple[str, str]] = {}
        self._committed(0)

    def resume(self, restored: Restored) -> None:
        """Logs which rewards have no canary."""
        self._view = restored.run_state.view
        if without := [reward.name for reward in self._job.spec.rewards if reward.name not in self._canaries]:
            log.info("rewards without a canary, which would show whether they tell right from wrong", rewards=without)

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        """Checks the canaries that are due with the first response of a round, on rows of prompts that have been launched."""
        match entry.body:
            case events.Generated() if self._due:
                self._launched(self._view.step, self._view.groups)
            case events.StepCommitted(step=step):
                self._committed(step)

    def status(self) -> StatusFragment:
        return StatusFragment(problems=self._problems.present)

    def _committed(self, step: int) -> None:
        """Settles which canaries are checked with the next round. One whose last check isn't over is left out."""
        if self._components.tokenizer is not None:
            due = {name for name, canary in self._canaries.items() if step % canary.every_steps == 0}
            self._due |= due - self._checking

    def _launched(self, step: int, prompts: Iterable[PromptId]) -> None:
        live = [*prompts]
        for number, (name, canary) in enumerate(self._canaries.items()):
            if name in self._due:
                self._checking.add(name)
                try:
                    responses = self._responses(canary, live)
                except ValueError as error:
                    self._judge(canary, step, 0, str(error))
                else:
                    self._background.spawn(self._check(canary, number, step, responses))
        self._due.clear()

    def _responses(self, canary: Canary, prompts: Iterable[PromptId]) -> list[tuple[Row, tuple[str, str]]]:
        """Returns up to ROWS rows with their right and wrong responses. Raises ValueError if a template fails."""
        domains, source = canary.reward.domains, self._components.source
        applicable = (prompt for prompt in prompts if not domains or source.domain(prompt.row) in domains)
        responses = []
        for _, prompt in zip(range(MOST_READ), applicable, strict=False):
            row = source.row(prompt)
            if (texts := canary.responses(row)) is not None:
                responses.append((row, texts))
            if len(responses) == ROWS:
                break
        return responses

    async def _check(
        self, canary: Canary, number: int, step: int, responses: Sequence[tuple[Row, tuple[str, str]]]
    ) -> None:
        checked = [await self._scores(canary, number, step, row, *texts) for row, texts in responses]
        if scores := [scores for scores in checked if scores is not None]:
            self._judge(canary, step, len(scores), suspicion(scores))
        else:
            self._checking.discard(canary.reward.name)

    def _judge(self, canary: Canary, step: int, rows: int, reason: str | None) -> None:
        """Reports or clears what is suspect of the reward."""
        name = canary.reward.name
        self._checking.discard(name)
        log.info("canaries are graded", reward=name, step=step, rows=rows, suspect=reason)
        if reason is None:
            self._suspect.pop(name, None)
        else:
            message = f"Reward {name} can't be trusted: {reason}. Compare the function, the columns that it reads and the canary."
            self._suspect[name] = (canary.field, message)
        first = next(iter(self._suspect.values()), ("", ""))
        self._problems.set(Reason.REWARD_SUSPECT, *first, present=bool(self._suspect))

    async def _scores(
        self, canary: Canary, number: int, step: int, row: Row, right: str, wrong: str
    ) -> CanaryScores | None:
        """Grades the canaries of a row; None if the store has lost them."""
        tokenizer, store = self._components.tokenizer, self._components.store
        assert tokenizer is not None
        # Epochs below 0 as for evaluations, whose attempts are all 0.
        samples = [SampleId(-1 - step, row.prompt.row, 1 + number, index) for index in range(4)]
        await store.put(
            [
                as_response(sample, row.token_ids, text, tokenizer, self._special, self._job.sampling)
                for sample, text in zip(samples, (right, right, wrong, ""), strict=True)
            ]
        )
        training = {"global_step": step, "max_steps": self._job.spec.rounds.steps, "epoch": row.prompt.epoch}
        try:
            grades = await asyncio.gather(
                *(
                    self._components.rewards.grade(
                        sample, row, LEAST_URGENT, siblings=samples, training=training, only=canary.reward.name
                    )
                    for sample in samples
                )
            )
        except KeyError as error:
            if not set(error.args) & set(samples):
                raise
            return None
        finally:
            await store.delete(samples)
        scores = [_score(grade, canary.reward.name) for grade in grades]
        return CanaryScores(row.prompt.row, scores[0], scores[1], scores[2], scores[3], grades[0].message)


def _score(grade: Grade, reward: str) -> float | None:
    return None if grade.kind in UNSCORED else grade.parts.get(reward)
