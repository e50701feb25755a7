"""Samples on their way through engines, graders and the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from longboat_runtime.driver.context import Context
from longboat_runtime.driver.resume import Restored
from longboat_runtime.driver.stages import Stage
from longboat_runtime.reward.combine import applicable
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.rounds import events
from longboat_runtime.samples import (
    FinishReason,
    FleetReport,
    LossCause,
    LostSample,
    MovedSample,
    SampleId,
    SampleRequest,
    StartedSample,
    VersionSpan,
    sample_seed,
)

# Messages of graders and environments may be long; the event log keeps the beginning.
_MESSAGE_LIMIT = 500

# A method of the fleet that takes many requests, or the ids of many.
Order = Callable[[Sequence[Any]], Awaitable[None]]
FleetEvent = events.Generated | events.Stopped | events.Paused | events.Lost | events.Moved | events.EpisodeStarted


class SampleFlow:
    """Launches, stops, grades and discards samples, and puts the outcome into the inbox.

    Requests reach the fleet in the order in which they were made.
    """

    def __init__(self, context: Context) -> None:
        self._components, self._stages, self._inbox = context.components, context.stages, context.inbox
        self._held_out = context.held_out
        job = context.job
        self._seed, self._sampling, self._rewards = job.spec.rounds.seed, job.sampling, job.spec.rewards
        self._orders: asyncio.Queue[tuple[Order, Sequence[Any]]] = asyncio.Queue()
        self._grades: dict[SampleId, asyncio.Task[None]] = {}
        self._grading = 0
        self._stopping: set[SampleId] = set()
        self._pausing: set[SampleId] = set()

    def resume(self, restored: Restored) -> None:
        """Starts from the restored state."""
        self._identity, self._view = restored.boundary.identity, restored.run_state.view
        self._timeouts, self._task_rewards = restored.run_state.timeouts, restored.run_state.task_rewards

    def launch(self, begun: Mapping[SampleId, tuple[VersionSpan, ...]]) -> None:
        """Launches these samples in engines; each continues after the tokens that the store has of it, in the given spans."""
        requests = []
        for sample, spans in begun.items():
            prompt_ids = self._components.source.row(sample.prompt).token_ids
            seed = sample_seed(self._identity, self._seed, sample)
            requests.append(SampleRequest(sample, prompt_ids, seed, self._sampling, begun=spans))
        if requests:
            self._orders.put_nowait((self._components.samples.submit, requests))

    def abort(self, samples: Sequence[SampleId]) -> None:
        """Stops these samples in their engines; the tokens so far are discarded when they come back."""
        if samples:
            self._stopping.update(samples)
            self._orders.put_nowait((self._components.samples.abort, samples))

    def pause(self, samples: Sequence[SampleId]) -> None:
        """Stops these samples in their engines; the store keeps the tokens so far."""
        if samples:
            self._pausing.update(samples)
            self._orders.put_nowait((self._components.samples.abort, samples))

    async def send(self) -> None:
        """Sends requests to the fleet, one after the other, forever; launches in a row, and stops in a row, in one call.

        So a round's prompts reach an engine together: it starts them in one batch, and gets one message instead of one for each.
        """
        while True:
            orders = [await self._orders.get()]
            while not self._orders.empty():
                orders.append(self._orders.get_nowait())
            for order, batch in groupby(orders, key=itemgetter(0)):
                await order([*chain.from_iterable(items for _, items in batch)])

    async def collect(self) -> None:
        """Collects what the fleet finishes, forever."""
        while True:
            received: list[FleetEvent] = []
            for item in await self._components.samples.finished():
                if item.evaluation:
                    self._stages.move(Stage.EVALUATE)
                    if not isinstance(item, MovedSample | StartedSample):  # an evaluation waits for results only
                        self._held_out.put_nowait(item)
                else:
                    self._stages.move(Stage.GENERATE)
                    received.append(
                        as_event(item, stopping=item.id in self._stopping, pausing=item.id in self._pausing)
                    )
            # The store may hold a part of a sample that was given up, and would return it in place of the whole.
            if parts := [
                event.sample
                for event in received
                if isinstance(event, events.Stopped) or (isinstance(event, events.Lost) and not event.begun)
            ]:
                await self._components.store.delete(parts)
            for event in received:
                if not isinstance(event, events.Moved | events.EpisodeStarted):
                    self._stopping.discard(event.sample)
                    self._pausing.discard(event.sample)
                self._inbox.put_nowait(event)

    def generated_all(self) -> None:
        """Sends to graders what waits to be sent with others, once the last samples are there too: nothing more is being generated."""
        asyncio.get_running_loop().call_soon(self._components.rewards.flush)

    def give_up_grades(self, samples: Sequence[SampleId]) -> None:
        """Cancels the grades of these samples, which nobody needs any more: what waits or runs for them makes room for others."""
        for sample in samples:
            if task := self._grades.pop(sample, None):
                task.cancel()

    async def grade(self, sample: SampleId, round_: int) -> None:
        """Grades a stored sample, unless its group has been given up meanwhile, under the limits that were learned before its round."""
        view = self._view
        group, task = view.groups.get(sample.prompt), asyncio.current_task()
        if group is None or group.attempt != sample.attempt or task is None:
            return
        # A group that waits for a round to continue in counts as one of the next round.
        needed_in = view.last_round + 1 if group.prompt in view.carried else group.round
        urgency = Urgency(needed_in, max(0, view.group_size - group.graded))
        self._grades[sample] = task
        limits = self._timeouts.limits(sample, round_) if self._timeouts.rewards else {}
        row = self._components.source.row(sample.prompt)
        by_group = [reward.grades_groups for reward in applicable(self._rewards, row.domain)]
        siblings = group.siblings(view.group_size) if any(by_group) else []
        # A sample that only waits for its siblings isn't being graded.
        graded = bool(siblings) or not all(by_group)
        self._grading += graded
        self._stages.set(Stage.REWARD, self._grading > 0)
        try:
            training = {"global_step": view.step, "max_steps": view.steps, "epoch": sample.epoch}
            grade = await self._components.rewards.grade(
                sample, row, urgency, limits, siblings=siblings, training=training
            )
        except KeyError as error:
            if sample not in error.args:
                raise  # a bug, which would meet the sample again however often it is generated
            self._inbox.put_nowait(events.Lost(sample, "the store has lost its data"))
        else:
            message = grade.message[:_MESSAGE_LIMIT]
            parts, times, metrics = dict(grade.parts), dict(grade.times), dict(grade.metrics)
            self._inbox.put_nowait(
                events.Graded(
                    sample,
                    grade.kind,
                    grade.score,
                    grade.seconds,
                    message,
                    parts,
                    times,
                    metrics,
                    self._task_rewards.task_of(parts),
                )
            )
        finally:
            if self._grades.get(sample) is task:
                del self._grades[sample]
            self._grading -= graded
            self._stages.move(Stage.REWARD)
            self._stages.set(Stage.REWARD, self._grading > 0)


def as_event(item: FleetReport, *, stopping: bool, pausing: bool) -> FleetEvent:
    """Turns the fleet's report into an event; `stopping` or `pausing` if this sample was to be stopped for good, or to resume later.

    A sample that an engine gave up without being asked to is lost: no engine generates it any more.
    """
    if isinstance(item, LostSample):
        reason = item.reason[:_MESSAGE_LIMIT] if item.cause is LossCause.ENVIRONMENT else item.reason
        return events.Lost(item.id, reason, item.engine_died, item.begun, item.cause, item.held_up)
    if isinstance(item, StartedSample):
        return events.EpisodeStarted(item.id, item.waited_seconds)
    if isinstance(item, MovedSample):
        return events.Moved(item.id, item.spans[-1].end if item.spans else 0, item.spans, item.source, item.target)
    if item.finish_reason is FinishReason.ABORT and stopping:
        return events.Stopped(item.id, item.tokens, item.engine, environment_seconds=item.environment_seconds)
    if item.finish_reason is FinishReason.ABORT and pausing:
        return events.Paused(item.id, item.tokens, tuple(item.spans), item.engine)
    if item.finish_reason is FinishReason.ABORT:
        return events.Lost(item.id, f"given up by {item.engine}")
    return events.Generated(
        item.id,
        item.prompt_tokens,
        item.tokens,
        item.finish_reason,
        tuple(item.spans),
        item.engine,
        item.segments,
        item.turns,
        item.environment_seconds,
        item.environment_cpu_seconds,
        item.requests,
    )
