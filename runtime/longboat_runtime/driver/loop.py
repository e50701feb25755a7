"""The round loop of one job.

Components report what happened; the decision loop (`rounds.loop`) folds it and asks the policy, and the driver carries out the
decisions: open, launch, (as samples finish) grade, close, advantages, train, commit, publish weights, checkpoint, report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.status import TrainingState
from longboat_runtime.checkpoint import exports
from longboat_runtime.checkpoint.volume import volume_full
from longboat_runtime.driver.broker import Broker
from longboat_runtime.driver.canaries import Canaries
from longboat_runtime.driver.changes import Changes
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.engines import EngineWatch
from longboat_runtime.driver.evaluation import Evaluation
from longboat_runtime.driver.flow import SampleFlow
from longboat_runtime.driver.job import Job, spec_changed
from longboat_runtime.driver.learning import idle_problem
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.reshapes import Reshapes
from longboat_runtime.driver.resume import Loaded, Restored, changed_fields, load, restore
from longboat_runtime.driver.reward_pools import RewardPools
from longboat_runtime.driver.rollout_pods import RolloutPods
from longboat_runtime.driver.sample_files import SampleFiles
from longboat_runtime.driver.stages import Stage
from longboat_runtime.driver.steps import Steps
from longboat_runtime.driver.streaming import streams, with_chunks
from longboat_runtime.driver.trainer_queue import Task
from longboat_runtime.driver.watchdog import Watchdog
from longboat_runtime.metrics.record import Record
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason, Event
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.measurements import Measurement, Reshaped, RoundMeasured
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.samples import FinishedSample, GradeKind, LostSample, SampleId


class RunOutcome(StrEnum):
    """Says how a driver's run ended."""

    DONE = "done"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    """Saved like a suspended job, but only because the driver's process must end."""
    IDLE = "idle"
    """Saved as well, but failed: it has learned nothing."""


class Driver:
    """Runs a job from its newest checkpoint to its last step, or to its suspension. `clock` is Unix time in seconds."""

    def __init__(
        self,
        job: Job,
        components: Components,
        policy: Policy,
        reporter: Reporter,
        broker: Broker,
        clock: Callable[[], float],
    ) -> None:
        self._job, self._components, self._policy = job, components, policy
        self._reporter, self._broker = reporter, broker
        self.now, self.draw = clock, components.source.draw
        self._inbox: asyncio.Queue[events.Body | Measurement | RunOutcome] = asyncio.Queue()
        self._task_rewards = TaskRewards(job.spec.rewards)
        self._flow = SampleFlow(
            job, components, self._task_rewards, reporter.stages, self._inbox.put_nowait, self._spawn
        )
        self._evaluation = self._open_evaluation()
        inbox = self._inbox.put_nowait
        self._sample_files = SampleFiles(job, components, reporter, self._spawn)
        self._reshapes = Reshapes(job, components, reporter, inbox, self._spawn)
        self._reward_pools = RewardPools(job, components, reporter, broker, inbox)
        self._steps = Steps(
            job,
            components,
            reporter,
            self._evaluation,
            self._sample_files,
            self._reshapes,
            inbox,
            self._reported,
            self._spawn,
        )
        self._canaries = Canaries(job, components, reporter.problems, self._spawn)
        self._watchdog = Watchdog(job, components, reporter)
        self._pods = RolloutPods(job, components.fleet, reporter, broker, inbox)
        self._engines = EngineWatch(job, components.fleet, reporter, self._publish_again)
        self._background: set[asyncio.Task[None]] = set()
        self._changes = Changes(reporter, job.spec.checkpoint.accept_changes, editable=broker.editable)
        self._starting: asyncio.Task[tuple[Loaded, Restored]] | None = None
        self._interrupted: RunOutcome | None = None
        self._idle: SpecProblem | None = None
        self._republishing: asyncio.Task[None] | None = None
        self._generating = False

    async def run(self) -> RunOutcome:
        """Runs the job. The next start resumes from the newest checkpoint.

        Raises whatever ended the run, such as SpecProblem or Superseded, in an ExceptionGroup unless it was the export.
        """
        async with asyncio.TaskGroup() as self._tasks:
            for work in (
                self._watchdog.run(),
                self._engines.run(),
                self._pods.run(),
                self._reward_pools.run(),
                self._suspension(),
                self._edits(),
            ):
                self._spawn(work)
            outcome = await self._begin() or await self._rounds()
            for task in self._background:
                task.cancel()
        if outcome in (RunOutcome.DONE, RunOutcome.IDLE) and self._job.spec.checkpoint.export:
            try:
                await self._export()
            except SpecProblem as problem:
                if outcome is RunOutcome.DONE or self._idle is None:
                    raise
                raise SpecProblem(
                    self._idle.reason, self._idle.field, f"{self._idle.message} {problem.message}"
                ) from problem
        if outcome is RunOutcome.IDLE and self._idle is not None:
            raise self._idle
        if outcome is not RunOutcome.STOPPED:
            self._reporter.set_state(TrainingState.SUCCEEDED if outcome is RunOutcome.DONE else TrainingState.SUSPENDED)
        return outcome

    def _publish_again(self) -> None:
        if not self._republishing:
            self._republishing = self._spawn(self._steps.publish_again())
            self._republishing.add_done_callback(self._published_again)

    def _published_again(self, task: asyncio.Task[None]) -> None:
        self._republishing = None

    def stop(self) -> None:
        """Makes `run` save the last step boundary and return STOPPED."""
        self._interrupt(RunOutcome.STOPPED)

    async def _begin(self) -> RunOutcome | None:
        """Restores the newest checkpoint. Returns an outcome if that was interrupted."""
        self._starting = asyncio.create_task(self._start())
        try:
            loaded, restored = await self._starting
        except asyncio.CancelledError:
            if self._interrupted is None:
                raise
            return self._interrupted
        self._run_state, self._view, self._boundary = restored.run_state, restored.run_state.view, restored.boundary
        streaming = streams(self._job.spec, loaded.model.device)
        policy = with_chunks(self._policy, self._job.spec) if streaming else self._policy
        self._loop = RoundLoop(policy, self, self._run_state.ledger, self._job.incarnation)
        self._flow.identity = self._boundary.identity
        self._steps.resume(self._run_state, restored.saved, restored.evaluated, loaded, streams=streaming)
        self._sample_files.resume(self._view)
        self._reward_pools.resume(self._view)
        self._reshapes.resume(self._run_state.shapes)
        self._reporter.set_attention(loaded.model.attention)
        self._reporter.set_skipped_prompts(self._components.source.skipped)
        self._reporter.resume(self._view, restored.saved)
        if damaged := "; ".join(self._components.checkpoints.damaged):
            text = (
                f"Damaged, so the job resumed from an older checkpoint: {damaged}. Check the storage behind the claim."
            )
            self._reporter.problems.put(Reason.CHECKPOINT_CORRUPT, "spec.checkpoint", text)
        for sample in restored.missing:
            self._inbox.put_nowait(events.Lost(sample, "the store has lost its data"))
        return None

    async def _start(self) -> tuple[Loaded, Restored]:
        """Loads the model and restores the newest checkpoint, once every difference from its inputs is accepted."""
        with self._reporter.stages.running(Stage.START):
            loaded = await load(self._job, self._components)
        if loaded.saved is not None:
            await self._changes.settle(loaded.differences, loaded.saved)
            self._reporter.resumed(loaded.differences, changed_fields(self._job, loaded.saved))
        with self._reporter.stages.running(Stage.START):
            return loaded, await restore(self._job, self._components, loaded, self._task_rewards)

    async def _rounds(self) -> RunOutcome:
        """Handles the events that components put into the inbox, one by one, until the last step or an interruption."""
        for work in (self._flow.collect(self._evaluated), self._flow.send(), self._steps.run()):
            self._spawn(work)
        self._task_rewards.log()
        self._canaries.log()
        self._happened(events.Started(self._view.step))
        if self._job.spec.rounds.steps != self._view.steps:
            self._happened(spec_changed(self._job.spec))
        self._steps.report_start(self._boundary)
        self._working = self._spawn(self._steps.queue.run())
        while True:
            body = await self._inbox.get()
            if body is RunOutcome.DONE and self._view.step < self._view.steps:
                continue  # more steps have been requested meanwhile
            if isinstance(body, RunOutcome):
                if body is not RunOutcome.DONE:
                    await self._wind_down()
                await self._save_boundary()
                await self._sample_files.wait()
                return body
            self._happened(body)

    def _happened(self, body: events.Body | Measurement) -> None:
        """Passes an event to the loop, which decides what follows; logs a measurement."""
        if isinstance(body, Measurement):
            self._measured(body)
            return
        if not self._loop.happened(body):
            self._run_state.late_events += 1
            self._discard_if_unwanted(body)
            return
        generating = self._view.counts[SampleState.RUNNING] > 0
        if self._generating and not generating:
            self._flow.generated_all()
        self._generating = generating
        self._reporter.stages.set(Stage.GENERATE, generating)

    def _measured(self, measurement: Measurement) -> None:
        """Logs the measurement, unless its round is over, and starts what follows from it."""
        entry = self._loop.entry(measurement)
        if entry is None:
            self._run_state.late_events += 1
            return
        self._run_state.fold(entry)
        match measurement:
            case RoundMeasured():
                self._reshapes.measured()
            case Reshaped():
                self._reshapes.reshaped(measurement)

    def carry_out(self, event: Event, effects: Effects) -> None:
        """Folds and logs the event, and starts what follows from it."""
        self._run_state.fold(event)
        timeouts = self._run_state.timeouts
        match event.body:
            case events.SpecChanged() as changed:
                self._steps.checkpoint_every = changed.checkpoint_every_steps
                self._components.checkpoints.keep = changed.checkpoint_keep
            case events.Generated(sample=sample):
                if self._canaries.due:
                    self._canaries.launched(self._view.step, self._view.groups)
                record = self._view.sample(sample)
                if record and record.state is SampleState.GENERATED:
                    limits = timeouts.limits(sample, self._view.groups[sample.prompt].round) if timeouts.rewards else {}
                    self._spawn(self._flow.grade(sample, self._view, limits))
                else:
                    self._flow.discard([sample])
            case events.Graded(sample=sample, kind=kind, message=message) if message or kind is GradeKind.GRADER_ERROR:
                self._sample_files.note(sample, message)
                if kind is GradeKind.GRADER_ERROR:
                    self._reporter.problems.put(Reason.GRADER_ERRORS, "spec.rewards", _grader_error(sample, message))
            case events.Aborted(samples=samples):
                # One that was lost after a move may have its first tokens in the store.
                self._flow.discard([i for i in samples if (record := self._view.sample(i)) and record.stored])
            case events.Stopped(sample=sample, finished=True):
                self._flow.discard([sample])
            case events.Launched(prompt=prompt):
                self._flow.launch(dict.fromkeys(self._view.groups[prompt].sample_ids, ()))
            case events.Relaunched(sample=sample) if record := self._view.sample(sample):
                self._flow.launch({sample: record.stored})
            case events.Resumed(samples=samples):
                self._flow.launch({i: record.stored for i in samples if (record := self._view.sample(i))})
            case (events.GroupDropped() | events.GroupDeferred()) as body if effects.given_up:
                if isinstance(body, events.GroupDropped) and body.reason is DropReason.ZERO_VARIANCE:
                    self._steps.dropped_for_equal_scores(effects.given_up)
                self._flow.give_up_grades(effects.given_up.sample_ids)
                self._flow.discard(self._sample_files.given_up(body, effects.given_up))
                self._components.source.forget([body.prompt])
            case events.RoundOpened(round=number, kind=kind):
                self._steps.begin_round(number, kind)
                self._reward_pools.begin_round(number)
            case events.ChunkStarted() as chunk:
                self._steps.stream(chunk)
            case events.StepStarted(step=step, round=number):
                self._reward_pools.finish(number, step)
                self._steps.train(step, number)
            case events.StepCommitted() as committed:
                self._commit(committed)
            case events.PublishStarted(version=version):
                self._steps.publish(version)
        self._flow.abort(effects.stop)
        self._flow.pause(effects.pause)

    def _commit(self, body: events.StepCommitted) -> None:
        """Ends the step: the state for a checkpoint is taken before anything else happens."""
        self._boundary = self._run_state.boundary(
            self._flow.identity, self._components.source.state(), self._components.fleet.calibrations
        )
        self._flow.discard(self._sample_files.committed(body))
        self._components.source.forget({sample.prompt for sample in body.samples})
        self._steps.finish(self._boundary)
        self._canaries.committed(body.step)

    def _discard_if_unwanted(self, body: events.Body) -> None:
        """Discards late data of a sample that is surplus, or no longer part of a live group."""
        if isinstance(body, events.Generated | events.Paused | events.Lost):
            record = self._view.sample(body.sample)
            if record is None or record.state is SampleState.SURPLUS:
                self._flow.discard([body.sample])

    async def _export(self) -> None:
        """Writes the finished model as a Hugging Face directory next to the checkpoints."""
        with self._reporter.stages.running(Stage.EXPORT):
            try:
                directory = self._job.root / exports.LAST
                await self._components.trainer.export(directory, exports.aside(directory, self._job.incarnation))
            except Exception as error:
                message = f"The model could not be exported: {error}. The checkpoint of the last step is complete."
                raise volume_full(error) or SpecProblem(Reason.EXPORT_FAILED, None, message) from error
        self._reporter.exported(exports.LAST)

    def _reported(self, record: Record) -> None:
        ledger = self._run_state.ledger
        if not ledger.learned and ledger.idle_steps >= self._job.spec.rounds.max_idle_steps:
            # Neither the policy nor the trainer goes on: a later step might learn.
            self._loop.halted = True
            self._steps.queue.clear()
            last = self._reporter.problems.get(Reason.NO_LEARNING_SIGNAL)
            self._idle = idle_problem(ledger.idle_steps, last.message if last else "")
            self._inbox.put_nowait(RunOutcome.IDLE)
        elif record.step >= self._view.steps:
            self._inbox.put_nowait(RunOutcome.DONE)

    async def _suspension(self) -> None:
        await self._broker.suspended()
        self._interrupt(RunOutcome.SUSPENDED)

    async def _edits(self) -> None:
        """Follows edits of the spec: of rounds and checkpoints from the next step boundary on, of samples, limits and pods at once."""
        spec = self._job.spec
        while True:
            before, spec = spec, await self._broker.edited(spec)
            self._engines.limit = spec.failure_policy.max_rollout_restarts
            self._pods.edit(spec.rollout)
            self._changes.edit(spec.checkpoint.accept_changes)
            self._sample_files.edit(spec.samples)
            await self._reshapes.edit(spec.rollout)
            if spec_changed(spec) != spec_changed(before):
                self._inbox.put_nowait(spec_changed(spec))

    def _interrupt(self, outcome: RunOutcome) -> None:
        """Ends the run with `outcome`: immediately while it starts, else after `_wind_down`."""
        self._interrupted = outcome
        if self._starting is not None:
            self._starting.cancel()
        self._inbox.put_nowait(outcome)

    async def _wind_down(self) -> None:
        """Lets a step that is being computed finish, and abandons open rounds. A chunk is waited for if the last step has to be saved."""
        self._loop.halted = True
        self._flow.abort([sample for group in self._view.groups.values() for sample in group.running])
        self._steps.queue.clear()
        current = self._steps.queue.current
        if current in (Task.TRAIN, Task.SAVE) or (current is Task.STREAM and self._unsaved):
            await self._steps.queue.idle()
        self._working.cancel()
        while not self._inbox.empty():
            body = self._inbox.get_nowait()
            if isinstance(body, events.StepCommitted):
                self._happened(body)

    async def _save_boundary(self) -> None:
        """Saves the last boundary unless it is saved: an edit may have lowered the steps to it after its checkpoint was skipped."""
        await self._steps.wait_for_write()
        if self._unsaved:
            await self._steps.save(self._boundary, needed=True)

    @property
    def _unsaved(self) -> bool:
        return self._boundary.step > (self._steps.saved.step if self._steps.saved else 0)

    def _open_evaluation(self) -> Evaluation | None:
        spec, rows = self._job.spec.dataset.evaluation, self._components.evaluation
        if spec is None or not rows:
            return None
        flow, components = self._flow, self._components
        rewards, sampling = self._job.spec.rewards, self._job.sampling
        grade = components.rewards.grade

        def seed(sample: SampleId) -> int:
            return flow.seed(sample)  # whose job the training began as is known only once it has resumed

        return Evaluation(
            spec, rows, rewards, self._task_rewards, sampling, components.fleet, seed, grade, flow.discard
        )

    def _evaluated(self, sample: FinishedSample | LostSample) -> bool:
        return self._evaluation is not None and self._evaluation.take(sample)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs `work` in the background; an error in it ends the run."""
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _grader_error(sample: SampleId, message: str) -> str:
    """Returns what people are told of a grader's error: on which row, and what to do."""
    return (
        f"A response to row {sample.row} of the dataset (from 0 on, through all its files) can't be graded, so its group is dropped: "
        f"{message or 'a grader failed'}. Correct the reward function or the row and resume the job, or start one without this row."
    )
