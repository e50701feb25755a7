"""The start of a driver: restores the newest complete checkpoint, or starts from scratch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from longboat_crds.checkpoint import TrainingInput
from longboat_crds.reward_kinds import RewardKind
from longboat_runtime.checkpoint.digests import Difference, Digests, differences, read, spec_differences, with_weights
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.checkpoint.volume import volume_problem
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.run_state import RunState, StepBoundary, read_boundary
from longboat_runtime.driver.shape_plan import open_shape_plan
from longboat_runtime.eventlog import EventLog, LogPosition
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.policies import races_per_period
from longboat_runtime.rounds.records import STORED
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import SampleId
from longboat_runtime.trainer.protocol import ModelInfo

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The components once they can work: the model as it is in its directory, and the checkpoint `saved` to resume from, if there is one.

    `digests` are those of the inputs at hand. Those of the weights are missing without a checkpoint: their first publication has them.
    """

    model: ModelInfo
    saved: Manifest | None
    digests: Digests

    @property
    def differences(self) -> list[Difference]:
        """The differences between these inputs and those of the checkpoint; none if that is from a release without digests."""
        return differences(read(self.saved.state), self.digests) if self.saved else []


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that a driver starts from.

    `saved` is the newest checkpoint of this job. `missing` are samples that the ledger expects in the store, which has lost them.
    """

    run_state: RunState
    boundary: StepBoundary
    saved: Manifest | None
    missing: list[SampleId]
    loaded: Loaded


async def load(job: Job, components: Components) -> Loaded:
    """Loads the model, while engines and graders start, and finds the newest checkpoint.

    Raises SpecProblem, alone or in an ExceptionGroup.
    """
    saved = await asyncio.to_thread(components.checkpoints.newest)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(components.ready())
        loading = tasks.create_task(components.trainer.load())
    info = loading.result()
    log.info("model is loaded", parameters=info.parameters, max_length=info.max_length, attention=info.attention)
    digests, rewards = components.digests, components.rewards.sources
    graded = {reward.name for reward in job.spec.rewards if reward.kind is not RewardKind.EPISODE}
    if graded and rewards.keys() >= graded:
        items = {f"reward {name}": "no files" for name, made_of in rewards.items() if not made_of}
        items |= {
            f"{item} of reward {name}": text for name, made_of in rewards.items() for item, text in made_of.items()
        }
        digests = {**digests, TrainingInput.REWARDS: items}
    if saved is not None:
        digests = with_weights(digests, await components.trainer.checksum(), job.spec.model.dtype)
    return Loaded(info, saved, digests)


def older(components: Components, loaded: Loaded, damage: FilesDamaged) -> Loaded:
    """Returns the same with an older checkpoint. Raises SpecProblem (CheckpointCorrupt) if there is none."""
    assert loaded.saved is not None, "only a checkpoint can be damaged"
    log.warning("checkpoint is damaged", checkpoint=str(loaded.saved.directory), error=str(damage))
    components.checkpoints.pass_over(loaded.saved, str(damage))
    return replace(loaded, saved=components.checkpoints.newest())


async def restore(job: Job, components: Components, loaded: Loaded) -> Restored:
    """Restores the checkpoint and opens this incarnation's log. Raises SpecProblem.

    Raises FilesDamaged, before anything is restored, if any rank of the trainer finds one of the checkpoint's files damaged.

    A checkpoint of another job (`checkpoint.resumeFrom`) is a starting point and not part of this job's past. Its log stays where it is,
    incarnations are counted by this job, and rounds that were under way start over under this job's policy.

    What that job learned of grading times and scores isn't taken over: its rows, tests and reward functions may be others. Nor is what this
    job learned with other rows or rewards.
    """
    timeouts = LearnedTimeouts(job.spec.rewards, components.source.domain)
    task_rewards = TaskRewards(job.spec.rewards)
    manifest = loaded.saved
    parallelism: Mapping[str, Any] = {}
    if manifest is None:
        ledger, lengths = Ledger(job.spec.algorithm.group_size, job.spec.rounds.steps), LengthHistory()
        evaluated, identity, resumes = None, job.identity, None
    else:
        await components.trainer.restore(manifest.model, manifest.model_files)
        boundary, ledger, lengths, evaluated = read_boundary(manifest.state, job.spec.algorithm.group_size, timeouts)
        components.source.restore(boundary.source)
        parallelism = boundary.parallelism
        components.fleet.calibrate(boundary.calibrations)
        identity, resumes = boundary.identity, boundary.log
        graded_alike = not any(each.input in (TrainingInput.DATA, TrainingInput.REWARDS) for each in loaded.differences)
        if not manifest.directory.is_relative_to(job.root):
            ledger.start_over()
            ledger.incarnation, manifest, resumes, graded_alike = 0, None, None, False
        if graded_alike:
            task_rewards.restore(boundary.unclear)
        else:
            timeouts = LearnedTimeouts(job.spec.rewards, components.source.domain)
            ledger.idle_steps = 0
        log.info("resumed", step=ledger.step, incarnation=boundary.log.incarnation)
    run_state = RunState(
        ledger,
        lengths,
        timeouts,
        await asyncio.to_thread(open_shape_plan, job, View(ledger), components.fleet.tensor_parallel, parallelism),
        task_rewards,
        _opened_log(job, ledger, resumes),
        audited=races_per_period(job.spec) > 0,
    )
    run_state.evaluated = evaluated
    stored = set(await components.store.held_ids())
    wanted = _stored(ledger)
    await components.store.delete(sorted(stored - wanted))
    boundary = run_state.boundary(identity, components.source.state(), components.fleet.calibrations)
    return Restored(run_state, boundary, manifest, sorted(wanted - stored), loaded)


def changed_fields(job: Job, saved: Manifest) -> list[str]:
    """Lists the fields in which the spec differs from that of another job's checkpoint, with both values; none for one of this job. Pure.

    Nothing is said of `checkpoint` and `suspend`, nor of a checkpoint from a release before it had the spec.
    """
    spec = saved.state.get("spec")
    if spec is None or saved.directory.is_relative_to(job.root):
        return []
    return spec_differences(spec, job.spec.to_json(), ("checkpoint", "suspend"))


def _opened_log(job: Job, ledger: Ledger, resumes: LogPosition | None) -> EventLog:
    try:
        return EventLog(job.root, job.incarnation, to_snapshot(ledger), resumes)
    except OSError as error:
        raise volume_problem(error) or error from error


def _stored(ledger: Ledger) -> set[SampleId]:
    return {
        group.sample_id(record.index)
        for group in ledger.groups.values()
        for record in group.samples
        if record.state in STORED or (record.resumable and record.stored)
    }
