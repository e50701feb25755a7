"""The trainer's work for each step, one task at a time: chunks, train, publish, save, export, report.

A checkpoint is copied in turn and written in the background while the next steps run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from longboat_crds.algorithm import resolve
from longboat_crds.checkpoint import KEPT_EXPORTS
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rounds import RoundPolicyName
from longboat_crds.status import LINE_LENGTH, CheckpointStatus
from longboat_runtime.checkpoint import exports
from longboat_runtime.checkpoint.digests import knows_weights, with_weights
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.checkpoint.volume import volume_full
from longboat_runtime.driver.batch import Batch, assemble, skip_problem
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.learning import learning, learning_problem
from longboat_runtime.driver.observer import Observers
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import iso_time
from longboat_runtime.driver.resume import Restored
from longboat_runtime.driver.run_state import StepBoundary
from longboat_runtime.driver.stages import Stage
from longboat_runtime.driver.trainer_queue import Task, TrainerQueue
from longboat_runtime.metrics.batch import ExtraMetrics, batch_metrics, round_metrics, staleness, stream_metrics
from longboat_runtime.metrics.groups import GroupOutcome, group_metrics
from longboat_runtime.metrics.queue import queue_metrics
from longboat_runtime.rollout.protocol import PublicationReport
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import GroupRecord, RoundRecord, SampleRecord, equal_scores
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.status_fragment import Problems, StatusFragment
from longboat_runtime.trainer.errors import NotStreamed, TrainerLost
from longboat_runtime.trainer.protocol import ChunkRequest, TrainReport, TrainRequest

log = structlog.get_logger()

T = TypeVar("T")

# Names of stages in metrics: verl's where it has them.
_TIMINGS = {
    Stage.GENERATE: "gen",
    Stage.STREAM: "stream",
    Stage.REWARD: "reward",
    Stage.TRAIN: "update_actor",
    Stage.PUBLISH: "update_weights",
    Stage.RESHAPE: "reshape",
    Stage.EVALUATE: "testing",
    Stage.CHECKPOINT: "save_checkpoint",
    Stage.WRITE: "write_checkpoint",
    Stage.EXPORT: "export",
}


class Steps:
    """Queues and does the work of steps, waits for observers where they ask for it, and puts the outcome into the inbox."""

    def __init__(self, context: Context, observers: Observers) -> None:
        self._context, self._observers = context, observers
        self._job, self._spec, self._components = context.job, context.job.spec, context.components
        self._stages, self._reports, self._inbox = context.stages, context.reports, context.inbox
        self.problems = Problems(context.news)
        self._algorithm = resolve(self._spec.algorithm)
        self._exports = exports.Exports(
            self._job.root, self._spec.checkpoint.keep_exports or KEPT_EXPORTS, self._job.incarnation
        )
        self.queue = TrainerQueue()
        self.saved: Manifest | None = None
        # Groups that were dropped for their equal scores, by round.
        self._dropped_groups: dict[int, list[GroupOutcome]] = {}
        self._engines = 0
        self.checkpoint_every = self._spec.checkpoint.every_steps
        self._writing: asyncio.Task[None] | None = None
        # Whether the newest step is to be saved although its number calls for no checkpoint.
        self._saves_next = False
        self._republishing = False
        self._checkpoint = context.broker.previous.checkpoint
        self._export_path: str | None = None
        self._round: Callable[[], dict[str, float]] = dict
        self._computed = self._overlap = 0.0

    def resume(self, restored: Restored, *, streams: bool) -> None:
        """Starts from the restored state; `streams` if steps have chunks."""
        self._model, self._digests, self._extra = restored.loaded.model, restored.loaded.digests, ExtraMetrics()
        self._run_state, self.saved, self._streams = restored.run_state, restored.saved, streams
        self._task_rewards = self._run_state.task_rewards
        # The step that the trainer's state belongs to: that of the newest boundary, or the next one, which isn't committed yet.
        self._trained = restored.boundary.step
        newest, saved = self._checkpoint, restored.saved
        # What is known of it already, such as when it was completed, stays.
        if saved and (newest is None or (newest.incarnation, newest.step) != (saved.incarnation, saved.step)):
            self._show(saved)
        if damaged := "; ".join(self._components.checkpoints.damaged):
            text = (
                f"Damaged, so the job resumed from an older checkpoint: {damaged}. Check the storage behind the claim."
            )
            self.problems.put(Reason.CHECKPOINT_CORRUPT, "spec.checkpoint", text)

    def status(self) -> StatusFragment:
        """Returns the newest checkpoint, how samples are batched, rows left out, and what is wrong with steps; only once resumed."""
        attention, skipped = self._model.attention[:LINE_LENGTH], self._components.source.skipped
        training = {"attention": attention or None, "skipped_prompts": skipped}
        return StatusFragment(training, checkpoint=self._checkpoint, problems=self.problems.present)

    def stream(self, chunk: events.ChunkStarted) -> None:
        """Queues the chunk."""
        self.queue.put(chunk.step, Task.STREAM, partial(self._stream, chunk))

    def train(self, step: int, round_: int) -> None:
        """Queues the optimizer step."""
        self.queue.put(step, Task.TRAIN, partial(self._train, step, round_))

    def publish(self, version: int) -> None:
        """Queues a publication of the weights."""
        self.queue.put(version, Task.PUBLISH, partial(self._publish, version))

    def finish(self, boundary: StepBoundary) -> None:
        """Queues what follows a commit: a checkpoint and an export if they are due, and the report."""
        step, last = boundary.step, boundary.step >= self._run_state.view.steps
        # Measured only now, since responses of the round come back until the commit.
        self._reports.add(step, self._round())
        if last or step % self.checkpoint_every == 0 or self._saves_next:
            self.queue.put(step, Task.SAVE, partial(self.save, boundary, needed=last))
        if exports.is_due(step, self._run_state.view.steps, self._spec.checkpoint):
            self.queue.put(step, Task.EXPORT, partial(self._export, step))
        self.queue.put(step, Task.REPORT, partial(self._report, step, timed=True))

    def save_soon(self, boundary: StepBoundary) -> None:
        """Has the step of the newest boundary saved, unless it already is.

        If the next step has been trained by then, that one is saved instead, once it is committed.
        """
        self._saves_next = True
        self.queue.put(boundary.step, Task.SAVE, partial(self._save_newest, boundary))

    def report_start(self, boundary: StepBoundary) -> None:
        """Queues the record of what precedes this driver's first step: the first publication and evaluation.

        If the job starts at or past its last step (from a checkpoint of another job), it is saved first.
        """
        step = boundary.step
        if step >= self._run_state.view.steps and self.saved is None:
            self.queue.put(step, Task.SAVE, partial(self.save, boundary, needed=True))
        self.queue.put(step, Task.EXPORT, partial(self._resume_exports, step))
        self.queue.put(step, Task.REPORT, partial(self._report, step, timed=False))

    async def _stream(self, chunk: events.ChunkStarted) -> None:
        with self._stages.running(Stage.STREAM):
            before = self._stages.seconds(Stage.GENERATE)
            await self._with_retry(chunk.step - 1, partial(self._accumulate, chunk))
            self._overlap += self._stages.seconds(Stage.GENERATE) - before

    async def _accumulate(self, chunk: events.ChunkStarted) -> None:
        """Has the chunk's gradient added to those before it. If a sample is gone, or what was added before, the step's chunks are lost."""
        view = self._run_state.view
        samples = assemble(view, chunk.prompts, self._spec.rewards, self._algorithm).samples
        before = view.rounds[chunk.round].accumulated - 1
        try:
            seconds = await self._components.trainer.accumulate(
                ChunkRequest(chunk.step, samples, self._job.full_batch, before)
            )
        except TrainerLost:
            raise
        except Exception as error:
            lost = await self._lost(sample.id for sample in samples)
            if not lost and not isinstance(error, NotStreamed):
                raise
            log.warning("the step's chunks are lost; their groups are trained again", step=chunk.step, error=str(error))
            self._lose(lost)
            self._inbox.put_nowait(events.ChunksLost(chunk.step))
            return
        self._computed += seconds
        self._inbox.put_nowait(events.ChunkDone(chunk.step, chunk.number))

    async def _train(self, step: int, number: int) -> None:
        with self._stages.running(Stage.TRAIN):
            await self._with_retry(step - 1, partial(self._compute, step, number))

    async def _compute(self, step: int, number: int) -> None:
        """Computes advantages and one optimizer step from the groups that the round kept.

        The gradient of streamed ones is there already; if it isn't, the step is started again without chunks. The weights stay the same if
        there is no sample to learn from or no minibatch has a finite gradient. The step counts all the same and its weights get its number;
        in the second case its prompts are dropped. Raises SpecProblem if too many steps in a row trained nothing.
        """
        view, reports = self._run_state.view, self._reports
        round_, waiting = view.rounds[number], queue_metrics(view, number)
        batch = assemble(view, round_.kept, self._spec.rewards, self._algorithm)
        samples = tuple(sample for sample in batch.samples if sample.id.prompt not in round_.streamed)
        request = TrainRequest(step, view.steps, samples, self._job.full_batch, round_.accumulated)
        report = TrainReport(step, {})
        try:
            if batch.records:
                report = await self._components.trainer.train(request)
        except TrainerLost:
            raise
        except NotStreamed as error:
            log.warning("the step's chunks are lost; the whole batch is trained again", step=step, error=str(error))
            self._inbox.put_nowait(events.ChunksLost(step))
            self._inbox.put_nowait(events.StepFailed(step, number, str(error)))
            return
        except Exception:
            if not (lost := await self._lost(sample.id for sample in samples)):
                raise
            log.warning("the batch is incomplete; the step will be computed again", step=step, lost=len(lost))
            self._lose(lost)
            self._inbox.put_nowait(events.StepFailed(step, number, "the store has lost data"))
            return
        self._computed += report.seconds
        self._trained = step
        if batch.records:
            self._report_skips(report)
        dropped = None if report.trained else DropReason.NOT_FINITE
        records = list(batch.records.values())
        reports.add(step, batch_metrics(records, batch.rewards, batch.advantages) | self._extra.means(records))
        for record in records:
            self._task_rewards.observe(record)
        outcomes = self._outcomes(batch)
        dropped_groups = [
            group
            for earlier in sorted(self._dropped_groups)
            if earlier <= number
            for group in self._dropped_groups.pop(earlier)
        ]
        reports.add(step, group_metrics(outcomes, dropped_groups))
        reports.add(step, self._task_rewards.shares("critic/solved", records))
        outcome = self._learning(step, batch, [*outcomes, *dropped_groups], round_)
        reports.add(
            step, {**staleness(records, step - 1), **report.metrics, **self._utilisation(records, report), **waiting}
        )
        if self._streams:
            reports.add(step, stream_metrics(round_, batch.records, self._overlap))
        self._computed = self._overlap = 0.0
        self._round = partial(round_metrics, round_, sum(record.tokens for record in records), dropped)
        await self._observers.before_commit(number, batch)
        self._inbox.put_nowait(
            events.StepCommitted(step, step, number, tuple(batch.records), report.skipped, dropped, outcome)
        )

    def dropped_for_equal_scores(self, group: GroupRecord) -> None:
        """Takes notice of a group that was dropped because its scores are equal."""
        for sample in group.scored:
            self._task_rewards.observe(sample)
        rewards = [sample.score for sample in group.scored]
        self._dropped_groups.setdefault(group.round, []).append(self._outcome(group.prompt, group.scored, rewards))

    def _learning(
        self, step: int, batch: Batch, groups: Sequence[GroupOutcome], round_: RoundRecord
    ) -> events.Learning:
        """Decides whether the step had anything to learn from, and reports it if not."""
        in_loss = batch.advantages_in_loss(mask_truncated=self._algorithm.mask_truncated)
        outcome = learning(in_loss, groups)
        problem = learning_problem(step, outcome, groups, round_.dropped)
        for reason in (Reason.NO_LEARNING_SIGNAL, Reason.NOTHING_LEFT_TO_LEARN):
            self.problems.clear(reason)
        if problem is not None:
            log.warning("the step had nothing to learn from", step=step, seen=problem.message)
            self.problems.put(Reason(problem.reason), problem.field, problem.message)
        return outcome

    def _outcomes(self, batch: Batch) -> list[GroupOutcome]:
        """Returns the batch by groups."""
        members: dict[PromptId, list[tuple[SampleRecord, float | None]]] = {}
        for (sample, record), reward in zip(batch.records.items(), batch.rewards, strict=True):
            members.setdefault(sample.prompt, []).append((record, reward))
        return [self._outcome(prompt, *zip(*group, strict=True)) for prompt, group in members.items()]

    def _outcome(
        self, prompt: PromptId, records: Sequence[SampleRecord], rewards: Sequence[float | None]
    ) -> GroupOutcome:
        solved = self._task_rewards.solved
        scored = [record for record, reward in zip(records, rewards, strict=True) if reward is not None]
        return GroupOutcome(
            self._components.source.domain(prompt.row),
            [reward for reward in rewards if reward is not None],
            [record.tokens for record in records],
            [outcome for record in records if (outcome := solved(record)) is not None],
            equal_scores(scored),
        )

    def _utilisation(self, records: Sequence[SampleRecord], report: TrainReport) -> dict[str, float]:
        """Computes `perf/mfu/actor` (verl's name); empty if that can't be told, or nothing was trained."""
        flops = self._model.flops
        if flops is None or not report.trained:
            return {}
        lengths = [segment.computed for record in records for segment in record.size.segments]
        share = flops.utilisation(lengths, self._computed, self._spec.trainer.ranks)
        return {} if share is None else {"perf/mfu/actor": share}

    def _report_skips(self, report: TrainReport) -> None:
        """Reports skipped minibatches. Raises SpecProblem if too many steps in a row trained nothing."""
        problem = skip_problem(report, self._run_state.ledger.skipped_steps, self._spec.trainer.max_skipped_steps)
        if problem is None:
            self.problems.clear(Reason.LOSS_NOT_FINITE)
            return
        log.warning("minibatches were skipped", step=report.step, skipped=report.skipped, of=report.minibatches)
        if problem.fatal:
            raise problem
        self.problems.put(Reason.LOSS_NOT_FINITE, problem.field, problem.message)

    async def _with_retry(self, committed: int, work: Callable[[], Awaitable[T]]) -> T:
        """Does `work` on the trainer's state after step `committed`; retries once if the trainer is lost but its state isn't.

        The state survives if nothing was trained yet, or if the newest checkpoint is of exactly that step; a checkpoint that is
        being written is waited for. Otherwise TrainerLost ends the run (FilesDamaged if the checkpoint is damaged), and the next start
        resumes from the newest checkpoint.
        """
        try:
            return await work()
        except TrainerLost as lost:
            await self.wait_for_write()
            if committed and (self.saved is None or self.saved.step != committed):
                raise
            log.warning("the trainer is lost; its state is loaded again", step=committed, error=str(lost))
            message = f"{lost}; the state of step {committed} is loaded again."
            self.problems.put(Reason.TRAINER_LOST, None, message)
        await self._components.trainer.load()
        if committed and self.saved:
            await self._components.trainer.restore(self.saved.model, self.saved.model_files)
        result = await work()
        self.problems.clear(Reason.TRAINER_LOST)
        return result

    async def _lost(self, samples: Iterable[SampleId]) -> list[SampleId]:
        """Returns those of these samples that the store has lost, sorted."""
        return sorted(set(samples) - set(await self._components.store.held_ids()))

    def _lose(self, samples: Iterable[SampleId]) -> None:
        """Has these samples generated again."""
        for sample in samples:
            self._inbox.put_nowait(events.Lost(sample, "the store has lost its data"))

    async def _publish(self, version: int) -> None:
        """Makes the commit durable, publishes the weights to the engines, and waits for observers before the next round.

        If the volume is full, that is reported, and the commit becomes durable with a later one. Under BoundedAsync the next round doesn't
        wait: there rounds overlap steps anyway, and nothing races.
        """
        await self._sync_log()
        with self._stages.running(Stage.PUBLISH):
            publication = await self._with_retry(version, lambda: self._components.trainer.publish(version))
        if not knows_weights(self._digests):
            self._digests = with_weights(self._digests, publication.checksum, self._spec.model.dtype)
        await self._observers.before_publication(version)
        with self._stages.running(Stage.PUBLISH):
            report = await self._components.fleet.publish(publication)
        self._add_publication(report)
        if overlaps := self._spec.rounds.policy is RoundPolicyName.BOUNDED_ASYNC:
            self._inbox.put_nowait(events.Published(version))
        await self._observers.before_round(version)
        if not overlaps:
            self._inbox.put_nowait(events.Published(version))

    def publish_again(self) -> None:
        """Publishes the weights that should serve once more, since the data of their publication can't be fetched.

        It waits for its turn at the trainer, except during an evaluation, when the trainer is idle and the evaluation waits for
        engines. Does nothing if newer weights are about to be published, or these are being published again.
        """
        view = self._run_state.view
        version = view.serving if view.publishing is None else view.publishing
        if self._republishing or version is None or version != view.step:
            return
        self._republishing, again = True, partial(self._publish_again, version)
        if Stage.EVALUATE in self._stages.active:
            self._context.background.spawn(again())
        else:
            self.queue.put(version, Task.PUBLISH, again)

    async def _publish_again(self, version: int) -> None:
        if version == self._run_state.view.step:
            log.warning("no engine can fetch the weights; they are published again", step=version)
            with self._stages.running(Stage.PUBLISH):
                publication = await self._with_retry(version, lambda: self._components.trainer.publish(version))
                await self._components.fleet.publish(publication)
        self._republishing = False

    async def _sync_log(self) -> None:
        try:
            await self._run_state.log.sync()
        except OSError as error:
            self._report_full_volume(error)

    def _add_publication(self, report: PublicationReport) -> None:
        self._engines = len(report.serving)
        metrics = {"bytes": report.bytes, "seconds": report.seconds, "parity_max": report.parity}
        counts = {"engines": len(report.serving), "refused": len(report.refused)}
        self._reports.add(report.version, {f"sync/{n}": float(v) for n, v in {**metrics, **counts}.items()})

    async def save(self, boundary: StepBoundary, *, needed: bool) -> None:
        """Saves a checkpoint of the boundary: copies its state now and writes it in the background while the next steps run.

        Checkpoints are written one at a time: the next one waits. One that is `needed` (the last step, a suspension) has been
        written when this returns, since steps would be lost without it.
        """
        self._saves_next = False
        with self._stages.running(Stage.CHECKPOINT):
            await self.wait_for_write()
            await self._components.trainer.snapshot()
            state = boundary.to_state(self._run_state.evaluated)
            state |= {"digests": self._digests, "spec": self._spec.to_json()}
            write = self._write(boundary.step, state, needed=needed)
            if needed:
                await write
            else:
                self._writing = self._context.background.spawn(write)

    async def _save_newest(self, boundary: StepBoundary) -> None:
        if not self._saves_next or self._trained != boundary.step:
            return  # a later step has been saved, or will be
        await self.wait_for_write()
        if self.is_unsaved(boundary):
            await self.save(boundary, needed=False)
        self._saves_next = False

    def is_unsaved(self, boundary: StepBoundary) -> bool:
        """Whether the step isn't in the newest complete checkpoint. The state that a job begins with needn't be saved."""
        return boundary.step > (self.saved.step if self.saved else 0)

    async def _resume_exports(self, step: int) -> None:
        """Removes unfinished exports of earlier drivers, and exports the step that this one resumed from if that is due and isn't done."""
        await asyncio.to_thread(self._exports.tidy)
        if self._spec.checkpoint.export_every_steps is None:
            return
        if newest := await asyncio.to_thread(self._exports.newest, step):
            self._exported(str(newest.relative_to(self._job.root)))
        due = exports.is_due(step, self._run_state.view.steps, self._spec.checkpoint)
        if due and newest != self._exports.path(step):
            await self._export(step)

    async def _export(self, step: int) -> None:
        """Exports the model of a step, then removes the oldest exports. A full volume is reported; the next export is the next attempt."""
        directory = self._exports.path(step)
        partial_ = exports.aside(directory, self._job.incarnation)
        with self._stages.running(Stage.EXPORT):
            try:
                await self._with_retry(step, lambda: self._components.trainer.export(directory, partial_))
            except OSError as error:
                self._report_full_volume(error)
                return
            await asyncio.to_thread(self._exports.prune, step)
        self._exported(str(directory.relative_to(self._job.root)))

    async def export_last(self) -> None:
        """Writes the finished model as a Hugging Face directory next to the checkpoints. Raises SpecProblem if it can't."""
        with self._stages.running(Stage.EXPORT):
            try:
                directory = self._job.root / exports.LAST
                await self._components.trainer.export(directory, exports.aside(directory, self._job.incarnation))
            except Exception as error:
                message = f"The model could not be exported: {error}. The checkpoint of the last step is complete."
                raise volume_full(error) or SpecProblem(Reason.EXPORT_FAILED, None, message) from error
        self._exported(exports.LAST)

    def _exported(self, path: str) -> None:
        """Shows that the newest exported model is at `path` below the checkpoint directory, or will with the first checkpoint."""
        self._export_path = path
        if self._checkpoint:
            self._checkpoint = self._checkpoint.model_copy(update={"export": path})
        self._context.news.set()

    def _show(self, manifest: Manifest) -> None:
        """Shows the newest complete checkpoint."""
        self._checkpoint = CheckpointStatus(
            incarnation=manifest.incarnation,
            step=manifest.step,
            path=str(manifest.directory.relative_to(self._job.root)),
            export=self._export_path,
            time=iso_time(self._context.clock()),
        )
        self._context.news.set()

    async def wait_for_write(self) -> None:
        """Waits until the checkpoint that is being written, if any, is complete or has failed."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self, step: int, state: Mapping[str, Any], *, needed: bool) -> None:
        """Writes the copied state; the checkpoint counts, and is reported, once its manifest is in place.

        A full volume is reported, and the next checkpoint is the next attempt: the newest complete checkpoint is untouched, and
        training can continue. It ends the job only if this checkpoint is `needed`.
        """
        with self._stages.running(Stage.WRITE):
            try:
                await self._run_state.log.sync()
                self.saved = await self._components.checkpoints.save(step, state, self._components.trainer.write)
            except Exception as error:
                problem = self._report_full_volume(error)
                if needed:
                    raise SpecProblem(problem.reason, problem.field, problem.message) from error
                return
        self.problems.clear(Reason.CHECKPOINT_VOLUME_FULL)
        self.problems.clear(Reason.CHECKPOINT_CORRUPT)
        self._show(self.saved)

    def _report_full_volume(self, error: BaseException) -> SpecProblem:
        """Reports that the volume is full if that is what `error` means, else raises it."""
        problem = volume_full(error)
        if problem is None:
            raise error
        if self._spec.checkpoint.claim_name is not None:
            problem = SpecProblem(problem.reason, "spec.checkpoint.claimName", problem.message, problem.fatal)
        log.warning("nothing could be saved", problem=problem.message)
        self.problems.put(Reason.CHECKPOINT_VOLUME_FULL, problem.field, problem.message)
        return problem

    async def _report(self, step: int, *, timed: bool) -> None:
        """Writes the step's record, the last of its tasks; `timed` if this driver made the step. Ends the run with the last step."""
        seconds = self._stages.take()
        self._reports.add(step, await self._observers.metrics(step))
        if timed:
            timings = {f"timing_s/{name}": seconds.get(stage, 0.0) for stage, name in _TIMINGS.items()}
            self._reports.add(step, {**timings, "training/late_events": float(self._run_state.late_events)})
        if (skipped := self._components.source.skipped) is not None:
            self._reports.add(step, {"data/skipped_prompts": float(skipped)})
        devices = self._engines * self._components.fleet.tensor_parallel + self._spec.trainer.ranks
        record = self._reports.finish(step, timed=timed, devices=devices)
        log.info("step", step=step, reward=record.metrics.get("critic/score/mean"), seconds=sum(seconds.values()))
        ledger = self._run_state.ledger
        if not ledger.learned and ledger.idle_steps >= self._spec.rounds.max_idle_steps:
            self.queue.close()  # a later step might learn
            self._inbox.put_nowait(RunOutcome.IDLE)
        elif step >= self._run_state.view.steps:
            self._inbox.put_nowait(RunOutcome.DONE)
