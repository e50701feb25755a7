"""Requests the files of `spec.samples`: notes what happened to the groups of a step, and holds the data of those to be written.

The trainer's first rank writes a file in the background while the next step runs; then the data is deleted.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.reasons import Reason
from longboat_runtime.driver.batch import Batch
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord, SampleRecord, SampleState
from longboat_runtime.rounds.view import View
from longboat_runtime.sample_files.contents import (
    Fate,
    SampleFacts,
    SampleFileRequest,
    SampleGroup,
    candidates,
    choose,
    is_due,
)
from longboat_runtime.samples import UNSCORED, LossCause, SampleId
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()

# The store holds the data of samples in these states.
_FINISHED = (SampleState.GENERATED, SampleState.REWARDED, SampleState.KEPT)
# How long the end of a job waits for its last file.
END_SECONDS = 60.0
# Steps whose files may be under way, one being written and one waiting: the store holds their data.
MOST_WRITING = 2


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Says what became of a group and, if it was trained, the reward and the advantage of each of its samples."""

    fate: Fate
    reason: str | None = None
    trained: Mapping[SampleId, tuple[float | None, float]] | None = None


class SampleFiles(Observer):
    """Notes graders' messages, groups that are given up, and batches.

    It holds the groups of the rounds under way that may be chosen, and those of the steps whose files are being written. A file that is due
    is left out while MOST_WRITING others are under way.
    """

    watches = (events.Graded, events.Lost, events.GroupDropped, events.GroupDeferred, events.StepCommitted)

    def __init__(self, context: Context) -> None:
        self._job, self._components, self._background = context.job, context.components, context.background
        self._data, self._problems = context.data, Problems(context.news)
        self._spec = context.job.spec.samples
        self._held: dict[int, list[SampleGroup]] = {}
        self._batch: Batch | None = None
        self._messages: dict[SampleId, str] = {}
        # Why environments have lost samples.
        self._losses: dict[SampleId, str] = {}
        self._writing: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def resume(self, restored: Restored) -> None:
        self._view, self._began = restored.run_state.view, restored.run_state.view.step

    async def edit(self, spec: RLJobSpec) -> None:
        self._spec = spec.samples
        if spec.samples is None:
            self._problems.clear(Reason.SAMPLES_NOT_WRITTEN)

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        match entry.body:
            case events.Graded(sample=sample, message=message) if message and self._spec is not None:
                self._messages[sample] = message
            case events.Lost(sample=sample, cause=LossCause.ENVIRONMENT, reason=reason) if self._spec is not None:
                self._losses[sample] = reason
            case (events.GroupDropped() | events.GroupDeferred()) as body if before is not None:
                self._given_up(body, before)
            case events.StepCommitted() as committed:
                self._committed(committed)

    async def before_commit(self, round_: int, batch: Batch) -> None:
        self._batch = batch

    async def close(self) -> None:
        """Waits until the files that are being written, if any, are complete or have failed, but not for long."""
        if self._writing:
            await asyncio.wait(self._writing.values(), timeout=END_SECONDS)

    def status(self) -> StatusFragment:
        return StatusFragment(problems=self._problems.present)

    def _given_up(self, body: events.GroupDropped | events.GroupDeferred, group: GroupRecord) -> None:
        """Holds the samples of a group that was dropped or deferred if they may be chosen, and no others of its round any more."""
        spec, step = self._spec, step_of(self._view, group.round)
        samples = {group.sample_id(record.index): record for record in group.samples}
        finished = {id_: record for id_, record in samples.items() if record.state in _FINISHED}
        if spec is None or step is None or not is_due(step, self._view.steps, spec.every_steps) or not finished:
            return
        fate = Fate.DROPPED if isinstance(body, events.GroupDropped) else Fate.DEFERRED
        new = self._group(finished, _Outcome(fate, body.reason.value))
        self._data.hold(new.ids)
        groups = [*self._held.get(group.round, ()), new]
        retained = candidates(groups, spec.prompts, self._job.spec.rounds.seed, step)
        self._held[group.round] = retained
        self._data.release(_ids(groups) - _ids(retained))

    def _committed(self, body: events.StepCommitted) -> None:
        """Starts to write the file of the step if one is due, and holds its samples, but no others of its round any more."""
        given_up = self._held.pop(body.round, [])
        written = self._start(body, given_up)
        self._data.hold(_ids(written) - _ids(given_up))
        self._data.release(_ids(given_up) - _ids(written))
        self._batch = None
        self._messages = {sample: text for sample, text in self._messages.items() if self._view.sample(sample)}
        self._losses = {sample: text for sample, text in self._losses.items() if self._view.sample(sample)}

    def _start(self, body: events.StepCommitted, given_up: Sequence[SampleGroup]) -> Sequence[SampleGroup]:
        """Starts to write the file of the step, if it has one; returns the groups that go into it, else none."""
        spec, step = self._spec, body.step
        if spec is None or self._batch is None or not is_due(step, self._view.steps, spec.every_steps):
            return ()
        if len(self._writing) >= MOST_WRITING:
            first = next(iter(self._writing))
            self._report(
                "spec.samples.everySteps",
                f"The file of step {step} is left out, since that of step {first} is still being written. Raise "
                "samples.everySteps, lower samples.prompts, or use a faster volume.",
            )
            return ()
        groups = [*given_up, *self._of_batch(self._batch, body.dropped)]
        chosen = choose(groups, spec.prompts, self._job.spec.rounds.seed, step)
        samples = tuple(sample for group in chosen for sample in group.samples)
        request = SampleFileRequest(self._job.incarnation, step, body.round, samples, spec.keep, self._began)
        self._writing[step] = self._background.spawn(self._write(request))
        return chosen

    async def _write(self, request: SampleFileRequest) -> None:
        """Has the file written, and then lets the data go, whatever came of it. No failure to write ends or delays the job."""
        try:
            async with self._turn:
                await self._components.trainer.write_samples(request, self._job.root)
        except Exception as error:  # noqa: BLE001 - the job is worth more than this file
            self._report(*_problem(request.step, error))
        else:
            self._problems.clear(Reason.SAMPLES_NOT_WRITTEN)
        finally:
            del self._writing[request.step]
        self._data.release(sample.id for sample in request.samples)

    def _report(self, field: str, message: str) -> None:
        log.warning("responses are not written", problem=message)
        message = f"{message} Training goes on without the file."
        self._problems.put(Reason.SAMPLES_NOT_WRITTEN, field, message)

    def _of_batch(self, batch: Batch, dropped: events.DropReason | None) -> list[SampleGroup]:
        """Returns the groups of the batch, which was trained unless it was `dropped`."""
        groups: dict[tuple[int, int, int], dict[SampleId, SampleRecord]] = {}
        for sample, record in batch.records.items():
            groups.setdefault(sample[:3], {})[sample] = record
        trained = dict(zip(batch.records, zip(batch.rewards, batch.advantages, strict=True), strict=True))
        outcome = _Outcome(Fate.DROPPED, dropped.value) if dropped else _Outcome(Fate.KEPT, trained=trained)
        return [self._group(records, outcome) for records in groups.values()]

    def _group(self, records: Mapping[SampleId, SampleRecord], outcome: _Outcome) -> SampleGroup:
        domain = self._components.source.row(next(iter(records)).prompt).domain
        error = None
        if outcome.reason == events.DropReason.ENVIRONMENT_ERROR:
            group = {sample[:3] for sample in records}
            error = next((text for sample, text in self._losses.items() if sample[:3] in group), None)
        return SampleGroup(
            tuple(self._facts(sample, record, domain, outcome, error) for sample, record in records.items())
        )

    def _facts(
        self, sample: SampleId, record: SampleRecord, domain: str, outcome: _Outcome, error: str | None
    ) -> SampleFacts:
        assert record.finish_reason is not None, "it has finished"
        score = record.score if record.kind not in (None, *UNSCORED) else None
        advantage = None
        if outcome.trained is not None:
            score, advantage = outcome.trained[sample]
        return SampleFacts(
            sample,
            domain,
            outcome.fate,
            outcome.reason,
            record.prompt_tokens,
            record.tokens,
            record.finish_reason,
            record.spans,
            record.engine,
            record.kind,
            score,
            record.parts,
            self._messages.get(sample),
            record.grading_seconds if record.kind else None,
            advantage,
            record.size.segments if self._job.spec.environments else (),
            record.environment_seconds if self._job.spec.environments else None,
            self._losses.get(sample, error),
        )


def step_of(view: View, round_: int) -> int | None:
    """Returns the step that a round will feed: rounds are trained in order. None if it isn't under way (pure)."""
    waiting = list(view.rounds)
    return view.step + 1 + waiting.index(round_) if round_ in waiting else None


def _ids(groups: Iterable[SampleGroup]) -> set[SampleId]:
    return {sample for group in groups for sample in group.ids}


def _problem(step: int, error: Exception) -> tuple[str, str]:
    """Returns the field to change, and what is wrong (pure)."""
    what = f"The responses of step {step} could not be written"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        cure = "Enlarge the claim, or lower samples.keep or samples.prompts, which may be edited while the job runs."
        return "spec.samples.keep", f"{what}: no space is left on the checkpoint volume. {cure}"
    return "spec.samples", f"{what}: {str(error) or type(error).__name__}."
