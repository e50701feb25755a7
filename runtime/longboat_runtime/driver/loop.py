"""The round loop of one job.

Components report what happened; the decision loop (`rounds.loop`) folds it and asks the policy, and the driver carries out the
decisions: open, launch, (as samples finish) grade, close, advantages, train, commit, publish weights, checkpoint, report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.status import TrainingState
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.driver.broker import Broker
from longboat_runtime.driver.changes import Changes
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.context import Context, open_context
from longboat_runtime.driver.flow import SampleFlow
from longboat_runtime.driver.job import Job, spec_changed
from longboat_runtime.driver.learning import idle_problem
from longboat_runtime.driver.observer import Observer, Observers
from longboat_runtime.driver.observers import OBSERVERS
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.resume import Restored, load, older, restore
from longboat_runtime.driver.stages import Stage
from longboat_runtime.driver.steps import Steps
from longboat_runtime.driver.streaming import streams, with_chunks
from longboat_runtime.driver.trainer_queue import Task
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason, Event
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.measurements import Measurement, WeightsUnreachable
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState


class Driver:
    """Runs a job from its newest checkpoint to its last step, or to its suspension. `clock` is Unix time in seconds.

    `observers` make the parts that watch events.
    """

    def __init__(
        self,
        job: Job,
        components: Components,
        policy: Policy,
        reporter: Reporter,
        broker: Broker,
        clock: Callable[[], float],
        observers: Sequence[Callable[[Context], Observer]] = OBSERVERS,
    ) -> None:
        self._job, self._components, self._policy = job, components, policy
        self._reporter, self._stages = reporter, reporter.stages
        self.now, self.draw = clock, components.source.draw
        context = open_context(job, components, broker, reporter.stages, reporter.reports, clock)
        self._context, self._inbox = context, context.inbox
        self._changes = Changes(context)
        parts = [self._changes, *(make(context) for make in observers)]
        self._observers = Observers([reporter, *parts])
        self._flow = SampleFlow(context)
        self._steps = Steps(context, self._observers)
        reporter.sources += parts
        self._starting: asyncio.Task[Restored] | None = None
        self._interrupted: RunOutcome | None = None
        self._generating = False

    async def run(self) -> RunOutcome:
        """Runs the job. The next start resumes from the newest checkpoint.

        Raises whatever ended the run, such as SpecProblem or Superseded, in an ExceptionGroup unless it was the export.
        """
        async with self._context.background as background:
            for work in (self._suspension(), self._edits(), *(observer.run() for observer in self._observers)):
                background.spawn(work)
            outcome = await self._begin() or await self._rounds()
            background.cancel()
        idle = self._idle_problem() if outcome is RunOutcome.IDLE else None
        if outcome in (RunOutcome.DONE, RunOutcome.IDLE) and self._job.spec.checkpoint.export:
            reporting = asyncio.create_task(self._reporter.run())
            try:
                await self._steps.export_last()
            except SpecProblem as problem:
                if idle is None:
                    raise
                raise SpecProblem(idle.reason, idle.field, f"{idle.message} {problem.message}") from problem
            finally:
                reporting.cancel()
        if idle is not None:
            raise idle
        if outcome is not RunOutcome.STOPPED:
            self._reporter.set_state(TrainingState.SUCCEEDED if outcome is RunOutcome.DONE else TrainingState.SUSPENDED)
        return outcome

    def stop(self) -> None:
        """Makes `run` save the last step boundary and return STOPPED."""
        self._interrupt(RunOutcome.STOPPED)

    async def _begin(self) -> RunOutcome | None:
        """Restores the newest checkpoint. Returns an outcome if that was interrupted."""
        self._starting = asyncio.create_task(self._start())
        try:
            restored = await self._starting
        except asyncio.CancelledError:
            if self._interrupted is None:
                raise
            return self._interrupted
        self._run_state, self._view, self._boundary = restored.run_state, restored.run_state.view, restored.boundary
        streaming = streams(self._job.spec, restored.loaded.model.device)
        policy = with_chunks(self._policy, self._job.spec) if streaming else self._policy
        self._loop = RoundLoop(policy, self, self._run_state.ledger, self._job.incarnation)
        self._flow.resume(restored)
        self._steps.resume(restored, streams=streaming)
        self._reporter.sources.append(self._steps)
        for observer in self._observers:
            observer.resume(restored)
        for sample in restored.missing:
            self._inbox.put_nowait(events.Lost(sample, "the store has lost its data"))
        return None

    async def _start(self) -> Restored:
        """Loads the model and restores the newest checkpoint, once every difference from its inputs is accepted.

        If a rank finds it damaged, all go back to an older one.
        """
        with self._stages.running(Stage.START):
            loaded = await load(self._job, self._components)
        while True:
            if loaded.saved is not None:
                await self._changes.settle(loaded.differences, loaded.saved)
            with self._stages.running(Stage.START):
                try:
                    return await restore(self._job, self._components, loaded)
                except FilesDamaged as error:
                    loaded = await asyncio.to_thread(older, self._components, loaded, error)

    async def _rounds(self) -> RunOutcome:
        """Handles the events that components put into the inbox, one by one, until the last step or an interruption."""
        for work in (self._flow.collect(), self._flow.send(), self._drains()):
            self._context.background.spawn(work)
        self._run_state.task_rewards.log()
        self._happened(events.Started(self._view.step))
        if self._job.spec.rounds.steps != self._view.steps:
            self._happened(spec_changed(self._job.spec))
        self._steps.report_start(self._boundary)
        self._working = self._context.background.spawn(self._steps.queue.run())
        while True:
            body = await self._inbox.get()
            if body is RunOutcome.DONE and self._view.step < self._view.steps:
                continue  # more steps have been requested meanwhile
            if isinstance(body, RunOutcome):
                if body is not RunOutcome.DONE:
                    await self._wind_down()
                await self._save_boundary()
                for observer in self._observers:
                    await observer.close()
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
        self._stages.set(Stage.GENERATE, generating)

    def _measured(self, measurement: Measurement) -> None:
        """Folds and logs the measurement, unless its round is over, and has observers note it."""
        entry = self._loop.entry(measurement)
        if entry is None:
            self._run_state.late_events += 1
            return
        self._run_state.fold(entry)
        for observer in self._observers.watching(type(measurement)):
            observer.on(entry, None)
        if isinstance(measurement, WeightsUnreachable):
            self._steps.publish_again()

    def carry_out(self, event: Event, effects: Effects) -> None:
        """Starts what follows from an event, in this order: it is folded, logged, noted by observers, and has its effects.

        The effects are those on samples and on the trainer's tasks.
        """
        self._run_state.fold(event)
        if isinstance(event.body, events.StepCommitted):
            # The state for a checkpoint is taken before anything else happens.
            source, calibrations = self._components.source.state(), self._components.fleet.calibrations
            self._boundary = self._run_state.boundary(self._boundary.identity, source, calibrations)
        for observer in self._observers.watching(type(event.body)):
            observer.on(event, effects.given_up)
        match event.body:
            case events.SpecChanged() as changed:
                self._steps.checkpoint_every = changed.checkpoint_every_steps
                self._components.checkpoints.keep = changed.checkpoint_keep
            case events.Generated(sample=sample):
                record = self._view.sample(sample)
                if record and record.state is SampleState.GENERATED:
                    grading = self._flow.grade(sample, self._view.groups[sample.prompt].round)
                    self._context.background.spawn(grading)
                else:
                    self._context.data.discard([sample])
            case events.Aborted(samples=samples):
                # One that was lost after a move may have its first tokens in the store.
                self._context.data.discard([i for i in samples if (record := self._view.sample(i)) and record.stored])
            case events.Stopped(sample=sample, finished=True):
                self._context.data.discard([sample])
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
                self._context.data.discard(effects.given_up.sample_ids)
                self._components.source.forget([body.prompt])
            case events.ChunkStarted() as chunk:
                self._steps.stream(chunk)
            case events.StepStarted(step=step, round=number):
                self._steps.train(step, number)
            case events.StepCommitted(samples=samples):
                self._context.data.discard(samples)
                self._components.source.forget({sample.prompt for sample in samples})
                self._steps.finish(self._boundary)
            case events.PublishStarted(version=version):
                self._steps.publish(version)
        self._flow.abort(effects.stop)
        self._flow.pause(effects.pause)

    def _discard_if_unwanted(self, body: events.Body) -> None:
        """Discards late data of a sample that is surplus, or no longer part of a live group."""
        if isinstance(body, events.Generated | events.Paused | events.Lost):
            record = self._view.sample(body.sample)
            if record is None or record.state is SampleState.SURPLUS:
                self._context.data.discard([body.sample])

    def _idle_problem(self) -> SpecProblem:
        last = self._steps.problems.get(Reason.NO_LEARNING_SIGNAL)
        return idle_problem(self._run_state.ledger.idle_steps, last.message if last else "")

    async def _suspension(self) -> None:
        await self._context.broker.suspended()
        self._interrupt(RunOutcome.SUSPENDED)

    async def _drains(self) -> None:
        """Has the newest step saved each time a node with driver or trainer pods is to be drained."""
        since = None
        while True:
            since = await self._context.broker.drained(since)
            self._steps.save_soon(self._boundary)

    async def _edits(self) -> None:
        """Follows edits of the spec: of rounds and checkpoints from the next step boundary on, of samples, limits and pods at once."""
        spec = self._job.spec
        while True:
            before, spec = spec, await self._context.broker.edited(spec)
            for observer in self._observers:
                await observer.edit(spec)
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
        self._steps.queue.close()
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
        return self._steps.is_unsaved(self._boundary)
