"""Puts the real components together."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import structlog
from ray.exceptions import ActorAlreadyExistsError

from longboat_crds.checkpoint import ResumeFrom
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.data.protocol import RowCheck
from longboat_runtime.data.source import open_evaluation, open_prompts, open_source
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.episodes import SampleTasks, open_episodes
from longboat_runtime.driver.inputs import digests_of
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.shape_plan import check_profile, starting_shape
from longboat_runtime.episodes.protocol import EpisodePods
from longboat_runtime.episodes.tasks import Tasks
from longboat_runtime.model_config import checked_model
from longboat_runtime.plan.capacity import claim_size
from longboat_runtime.plan.job import JobPlan, Past
from longboat_runtime.reward.canary import canaries
from longboat_runtime.reward.protocol import RewardScheduler
from longboat_runtime.reward.rows import row_check
from longboat_runtime.reward.scheduler import RayRewardScheduler
from longboat_runtime.reward.tasks import task_rewards
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rollout.ray_cluster import RESOURCE as ROLLOUT_RESOURCE
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.trainer.group import RayTrainerGroup
from longboat_runtime.trainer.placement import RESOURCE as TRAINER_RESOURCE
from longboat_runtime.trainer.protocol import TrainerGroup

if TYPE_CHECKING:
    from ray.actor import ActorHandle

log = structlog.get_logger()

# Where the claim of `checkpoint.resumeFrom` is mounted.
RESUME = Path("/resume")
# How long a driver waits for the other engines once the first one is up, before its first round.
ENGINES_SECONDS = 60.0
# How often the name of the sample store is tried, in seconds.
_STORE_SECONDS = 0.5


class AdoptingStore(CheckpointStore):
    """A job's own checkpoints, or the checkpoints of the claim it resumes from while it has none of its own."""

    def __init__(self, root: Path, keep: int, incarnation: int, adopted: Path, resume: ResumeFrom) -> None:
        super().__init__(root, keep, incarnation)
        self._adopted, self._resume = CheckpointStore(adopted, keep, incarnation), resume

    def newest(self, step: int | None = None) -> Manifest | None:
        """Finds the newest checkpoint of this job, or else the newest (of `resumeFrom.step`, if given) of the claim it resumes from.

        Raises SpecProblem if neither has one, or the first that has some has only damaged ones: the job must not silently start over.
        """
        own = super().newest(step)
        adopted = own or self._adopted.newest(self._resume.step)
        self.damaged = self.damaged if own else self._adopted.damaged
        if adopted is None:
            wanted = "a complete checkpoint" if self._resume.step is None else f"one of step {self._resume.step}"
            raise SpecProblem(
                Reason.RESUME_CHECKPOINT_NOT_FOUND,
                "spec.checkpoint.resumeFrom",
                f"The claim {self._resume.claim_name} doesn't hold {wanted}; name another claim or step.",
            )
        return adopted

    def pass_over(self, checkpoint: Manifest, cause: str) -> None:
        """See protocol.Checkpoints."""
        if checkpoint.directory.is_relative_to(self.root):
            super().pass_over(checkpoint, cause)
        else:
            self._adopted.pass_over(checkpoint, cause)

    def newest_state(self, step: int | None = None) -> Mapping[str, Any] | None:
        """Returns the driver's state in the checkpoint that the job starts from; see `newest`."""
        return super().newest_state(step) or self._adopted.newest_state(self._resume.step)


@asynccontextmanager
async def open_components(
    job: Job,
    sockets: Mapping[str, Path] | None = None,
    resume: Path = RESUME,
    environments: Mapping[str, Path] | None = None,
) -> AsyncIterator[Components]:
    """Opens all components, and checks the data while engines and graders start (see `Components.ready`). Raises SpecProblem.

    `ray.init` must have been called. `sockets` is where graders listen on the nodes of each reward pool (by default as in pods),
    `environments` where those of environment pools listen, `resume` the mount point of the claim of `checkpoint.resumeFrom`.
    """
    spec = job.spec
    await asyncio.to_thread(checked_model, Path(spec.model.path))
    task_rewards(spec.rewards)
    canaries(spec.rewards, implied=spec.environments is None)
    await asyncio.to_thread(check_profile, job)
    async with AsyncExitStack() as stack:
        store = StoreClient(await _own_store())
        stack.callback(ray.kill, store.actor)
        rewards = RayRewardScheduler(spec, store, sockets)
        stack.push_async_callback(_close, rewards)
        fleet = RayRolloutFleet(spec, store)
        checkpoints = _checkpoints(job, resume)
        state = await asyncio.to_thread(checkpoints.newest_state)
        fleet.start_in(starting_shape(job, state))
        stack.push_async_callback(_close, fleet)
        past = await asyncio.to_thread(_past, job, checkpoints, in_pods=sockets is None)
        plan = JobPlan(spec, TRAINER_RESOURCE, ROLLOUT_RESOURCE, past)
        trainer = RayTrainerGroup(spec, store, plan)
        stack.push_async_callback(_close, trainer)

        # Engines take longest to start, and graders are needed too; neither needs the data.
        starting = asyncio.create_task(
            _start(
                rewards, fleet, plan, spec.rollout.replicas * (spec.rollout.devices_per_pod // fleet.tensor_parallel)
            )
        )
        stack.push_async_callback(_give_up, starting)
        tasks = Tasks(spec) if spec.environments else None
        quotas, check = spec.rounds.quotas or (), _row_check(spec, tasks)
        prompts = await asyncio.to_thread(open_prompts, spec, state)
        source = await asyncio.to_thread(open_source, spec.dataset, prompts, quotas, check)
        evaluation = await asyncio.to_thread(open_evaluation, spec.dataset, prompts, check)

        digests = await asyncio.to_thread(digests_of, spec, source, evaluation)

        episodes = None
        if tasks is not None:
            of_samples = SampleTasks(tasks, source, evaluation)
            episodes = open_episodes(job, prompts, of_samples, fleet, store, environments)
            stack.push_async_callback(_close, episodes)

        async def ready() -> None:
            await starting
            if episodes is not None:
                await episodes.ready()

        held_out, tokenizer = tuple(evaluation), prompts.tokenizer
        yield Components(
            store, fleet, rewards, trainer, source, checkpoints, held_out, tokenizer, ready, digests, episodes
        )


def _row_check(spec: RLJobSpec, tasks: Tasks | None) -> RowCheck:
    """Makes the check whether a row can be graded and, with environments, played."""
    graded = row_check(spec.rewards)

    def check(columns: Mapping[str, Any], domain: str, truth: Any, place: str) -> None:
        graded(columns, domain, truth, place)
        if tasks is not None:
            tasks.check(columns, domain, truth, place)

    return check


async def _own_store() -> ActorHandle:
    """Starts a new store once the previous driver's is gone. That dies with its driver, but Ray may not have noticed yet."""
    while True:
        try:
            return start_store()
        except ActorAlreadyExistsError:
            log.info("the previous driver's sample store is not gone yet")
            await asyncio.sleep(_STORE_SECONDS)


async def _close(component: RolloutFleet | EpisodePods | RewardScheduler | TrainerGroup) -> None:
    """Closes a component. One that can no longer be closed (its pods or Ray are gone) ends with this process anyway."""
    try:
        await component.close()
    except Exception as error:  # noqa: BLE001
        log.warning("a component could not be closed", component=type(component).__name__, error=str(error))


async def _start(rewards: RayRewardScheduler, fleet: RayRolloutFleet, plan: JobPlan, engines: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rewards.start())
        tasks.create_task(_engines_started(fleet, plan, engines))


async def _give_up(starting: asyncio.Task[None]) -> None:
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def _engines_started(fleet: RayRolloutFleet, plan: JobPlan, engines: int) -> None:
    """Waits for all engines, so that every round has the same ones, but at most ENGINES_SECONDS after the first is up.

    None starts on a GPU before the plan says that the job fits.
    """
    await plan.engines_may_start()
    await fleet.wait_started(1)
    try:
        await asyncio.wait_for(fleet.wait_started(engines), ENGINES_SECONDS)
    except TimeoutError:
        log.warning("not all engines are up; the others join later", wanted=engines, seconds=ENGINES_SECONDS)


def _past(job: Job, checkpoints: CheckpointStore, *, in_pods: bool) -> Past:
    """Describes the checkpoint directory. In pods its file system is the claim's, which may be larger than the job requested."""
    claim = max(claim_size(job.spec.checkpoint) or 0, shutil.disk_usage(job.root).total) if in_pods else None
    return Past(job.root, claim, checkpoints.has_own)


def _checkpoints(job: Job, resume: Path) -> CheckpointStore:
    checkpoint = job.spec.checkpoint
    if checkpoint.resume_from is None:
        return CheckpointStore(job.root, checkpoint.keep, job.incarnation)
    return AdoptingStore(job.root, checkpoint.keep, job.incarnation, resume, checkpoint.resume_from)
