"""The round loop of one job.

Rooms say what happened; the decision loop (`rounds.loop`) folds it and asks the policy, and the driver carries out what comes of it:
open, launch, (as samples finish) grade, close, advantages, train, commit, publish weights, checkpoint, report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from longboat_crds.reasons import Reason
from longboat_crds.status import TrainingState
from longboat_runtime.checkpoint.volume import volume_full
from longboat_runtime.driver.boundary import take
from longboat_runtime.driver.broker import Broker
from longboat_runtime.driver.engines import EngineWatch
from longboat_runtime.driver.evaluation import Evaluation
from longboat_runtime.driver.flow import SampleFlow
from longboat_runtime.driver.job import Job, spec_changed
from longboat_runtime.driver.lane import Task
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.resume import Beginning, begin
from longboat_runtime.driver.rooms import Rooms
from longboat_runtime.driver.stages import Stage
from longboat_runtime.driver.steps import Steps
from longboat_runtime.driver.watchdog import Watchdog
from longboat_runtime.metrics.record import Record
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import State
from longboat_runtime.samples import FinishedSample, GradeKind, LostSample

# Below the checkpoint directory.
EXPORT_DIRECTORY = "export"


class Outcome(StrEnum):
    """How a driver's run ended."""

    DONE = "done"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    """As suspended, but nobody asked the job to be: its driver's process must end."""


class Driver:
    """Runs a job from its newest checkpoint to its last step, or to its suspension. `clock` is Unix time in seconds."""

    def __init__(
        self, job: Job, rooms: Rooms, policy: Policy, reporter: Reporter, broker: Broker, clock: Callable[[], float]
    ) -> None:
        self._job, self._rooms, self._policy = job, rooms, policy
        self._reporter, self._broker = reporter, broker
        self.now, self.draw = clock, rooms.source.draw
        self._inbox: asyncio.Queue[events.Body | Outcome] = asyncio.Queue()
        self._flow = SampleFlow(job, rooms, reporter.stages, self._inbox.put_nowait, self._spawn)
        self._evaluation = self._held_out()
        inbox = self._inbox.put_nowait
        self._steps = Steps(job, rooms, reporter, self._evaluation, inbox, self._reported, self._spawn)
        self._watchdog = Watchdog(job, rooms, reporter)
        self._engines = EngineWatch(job, rooms.fleet, reporter, self._publish_again)
        self._beside: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[Beginning] | None = None
        self._interrupted: Outcome | None = None
        self._republishing: asyncio.Task[None] | None = None

    async def run(self) -> Outcome:
        """Raises SpecProblem, Superseded, or what else ended the run; the next start goes on from the newest checkpoint."""
        async with asyncio.TaskGroup() as self._tasks:
            for work in (self._watchdog.run(), self._engines.run(), self._suspension(), self._edits()):
                self._spawn(work)
            outcome = await self._begin() or await self._rounds()
            for task in self._beside:
                task.cancel()
        if outcome is Outcome.DONE and self._job.spec.checkpoint.export:
            await self._export()
        if outcome is not Outcome.STOPPED:
            self._reporter.become(TrainingState.SUCCEEDED if outcome is Outcome.DONE else TrainingState.SUSPENDED)
        return outcome

    def _publish_again(self) -> None:
        if not self._republishing:
            self._republishing = self._spawn(self._steps.publish_again())
            self._republishing.add_done_callback(self._published_again)

    def _published_again(self, task: asyncio.Task[None]) -> None:
        self._republishing = None

    def stop(self) -> None:
        """Has `run` save the last step boundary and return STOPPED."""
        self._interrupt(Outcome.STOPPED)

    async def _begin(self) -> Outcome | None:
        """Goes back to the newest checkpoint; an outcome if that was interrupted."""
        self._starting = asyncio.create_task(begin(self._job, self._rooms))
        with self._reporter.stages.running(Stage.START):
            try:
                beginning = await self._starting
            except asyncio.CancelledError:
                if self._interrupted is None:
                    raise
                return self._interrupted
        self._journal, self._view, self._boundary = beginning.journal, beginning.journal.view, beginning.boundary
        self._loop = RoundLoop(self._policy, self, self._journal.ledger, self._job.incarnation)
        self._flow.identity = self._boundary.identity
        self._steps.go_on(self._journal, beginning.saved, beginning.evaluated)
        self._reporter.trains_by(beginning.model.attention)
        self._reporter.skips(self._rooms.source.skipped)
        self._reporter.go_on(self._view, beginning.saved)
        if damaged := "; ".join(self._rooms.checkpoints.damaged):
            text = (
                f"Damaged, so the job went on from an older checkpoint: {damaged}. Check the storage behind the claim."
            )
            self._reporter.problems.put(Reason.CHECKPOINT_CORRUPT, "spec.checkpoint", text)
        for sample in beginning.missing:
            self._inbox.put_nowait(events.Lost(sample, "the store has lost its data"))
        return None

    async def _rounds(self) -> Outcome:
        """Rooms report into the inbox; one event after another is dealt with, until the last step or an interruption."""
        for work in (self._flow.collect(self._evaluated), self._flow.send(), self._steps.overcommits.run()):
            self._spawn(work)
        self._happened(events.Started(self._view.step))
        if self._job.spec.rounds.steps != self._view.steps:
            self._happened(spec_changed(self._job.spec))
        self._steps.introduce(self._boundary)
        self._working = self._spawn(self._steps.lane.run())
        while True:
            body = await self._inbox.get()
            if body is Outcome.DONE and self._view.step < self._view.steps:
                continue  # more steps were asked for meanwhile
            if isinstance(body, Outcome):
                if body is not Outcome.DONE:
                    await self._rest()
                await self._save_boundary()
                return body
            self._happened(body)

    def _happened(self, body: events.Body) -> None:
        """Has the loop decide what follows."""
        if not self._loop.happened(body):
            self._journal.late += 1
            self._discard_if_unwanted(body)
            return
        self._reporter.stages.set(Stage.GENERATE, self._view.counts[State.RUNNING] > 0)

    def carry_out(self, event: Event, effects: Effects) -> None:
        """Logs the event, and sets going what follows from it."""
        if self._journal.audited:
            self._journal.lengths.fold(event.body)
        self._journal.log.append(event)
        match event.body:
            case events.SpecChanged() as changed:
                self._steps.checkpoint_every = changed.checkpoint_every_steps
                self._rooms.checkpoints.keep = changed.checkpoint_keep
            case events.Generated(sample=sample):
                record = self._view.sample(sample)
                if record and record.state is State.GENERATED:
                    self._spawn(self._flow.grade(sample))
                else:
                    self._flow.discard([sample])
            case events.Graded(kind=GradeKind.GRADER_ERROR, message=message):
                self._reporter.problems.put(Reason.GRADER_ERRORS, "spec.rewards", message or "A grader failed.")
            case events.Stopped(sample=sample, finished=True):
                self._flow.discard([sample])
            case events.Launched(prompt=prompt):
                self._flow.launch(dict.fromkeys(self._view.groups[prompt].sample_ids, ()))
            case events.Relaunched(sample=sample):
                self._flow.launch({sample: ()})
            case events.Resumed(samples=samples):
                self._flow.launch({i: record.begun for i in samples if (record := self._view.sample(i))})
            case events.GroupDropped(prompt=prompt) | events.GroupDeferred(prompt=prompt):
                self._flow.discard(effects.given_up)
                self._rooms.source.forget([prompt])
            case events.StepStarted(step=step, round=number):
                self._steps.train(step, number)
            case events.StepCommitted() as committed:
                self._commit(committed)
            case events.PublishStarted(version=version):
                self._steps.publish(version)
        self._flow.abort(effects.stop)
        self._flow.pause(effects.pause)

    def _commit(self, body: events.StepCommitted) -> None:
        """The step boundary: what a checkpoint will hold is taken before anything else happens."""
        source, position = self._rooms.source.state(), self._journal.log.position
        journal = self._journal
        self._boundary = take(self._flow.identity, journal.ledger, source, journal.lengths, position)
        self._flow.discard(body.samples)
        self._rooms.source.forget({sample.prompt for sample in body.samples})
        self._steps.finish(self._boundary)

    def _discard_if_unwanted(self, body: events.Body) -> None:
        """Data that comes late, of a sample that is no part of a live group any more."""
        if isinstance(body, events.Generated | events.Paused | events.Lost):
            record = self._view.sample(body.sample)
            if record is None or record.state is State.SURPLUS:
                self._flow.discard([body.sample])

    async def _export(self) -> None:
        """The finished model as a Hugging Face directory beside the checkpoints."""
        with self._reporter.stages.running(Stage.EXPORT):
            try:
                await self._rooms.trainer.export(self._job.root / EXPORT_DIRECTORY)
            except Exception as error:
                message = f"The model could not be exported: {error}. The checkpoint of the last step is complete."
                raise volume_full(error) or SpecProblem(Reason.EXPORT_FAILED, None, message) from error
        self._reporter.exported(EXPORT_DIRECTORY)

    def _reported(self, record: Record) -> None:
        if record.step >= self._view.steps:
            self._inbox.put_nowait(Outcome.DONE)

    async def _suspension(self) -> None:
        await self._broker.suspended()
        self._interrupt(Outcome.SUSPENDED)

    async def _edits(self) -> None:
        """Follows edits of the spec: rounds and checkpoints from the next step boundary on, a limit at once."""
        spec = self._job.spec
        while True:
            before, spec = spec, await self._broker.edited(spec)
            self._engines.limit = spec.failure_policy.max_rollout_restarts
            if spec_changed(spec) != spec_changed(before):
                self._inbox.put_nowait(spec_changed(spec))

    def _interrupt(self, outcome: Outcome) -> None:
        """Has the run end with `outcome`: at once while it starts, else at the step boundary."""
        self._interrupted = outcome
        if self._starting is not None:
            self._starting.cancel()
        self._inbox.put_nowait(outcome)

    async def _rest(self) -> None:
        """Lets a step that is being computed finish, and gives up open rounds."""
        self._loop.resting = True
        self._flow.abort([sample for group in self._view.groups.values() for sample in group.running])
        self._steps.lane.clear()
        if self._steps.lane.current in (Task.TRAIN, Task.SAVE):
            await self._steps.lane.rest()
        self._working.cancel()
        while not self._inbox.empty():
            body = self._inbox.get_nowait()
            if isinstance(body, events.StepCommitted):
                self._happened(body)

    async def _save_boundary(self) -> None:
        """Saves the last boundary, unless it is: steps may have been lowered to one whose checkpoint nobody had to wait for."""
        await self._steps.written()
        if self._boundary.step > (self._steps.saved.step if self._steps.saved else 0):
            await self._steps.save(self._boundary, needed=True)

    def _held_out(self) -> Evaluation | None:
        spec, rows = self._job.spec.dataset.evaluation, self._rooms.evaluation
        if spec is None or not rows:
            return None
        flow = self._flow
        rewards, sampling = self._job.spec.rewards, self._job.sampling
        return Evaluation(spec, rows, rewards, sampling, self._rooms.fleet, flow.seed, flow.grade_held_out)

    def _evaluated(self, sample: FinishedSample | LostSample) -> bool:
        return self._evaluation is not None and self._evaluation.take(sample)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs `work` beside the loop; an error in it ends the run."""
        task = self._tasks.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task
