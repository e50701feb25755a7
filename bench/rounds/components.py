"""Components that serve one block after the other: engines, graders and trainer start once for a task."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.rounds.drawn import DrawnFleet
from bench.rounds.paced import engines_of
from bench.rounds.tasks import CONFIG_MAP, QUICKSTART, Task
from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.data.source import open_prompts, open_source
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.trainer.protocol import ModelInfo, TrainerGroup

# A fleet that is silent for this long after its engines have emptied has said everything.
_QUIET_SECONDS = 0.3


class KeptTrainer:
    """A trainer that goes back to the model as it was loaded first, instead of starting new ranks."""

    def __init__(self, trainer: TrainerGroup, folder: Path) -> None:
        self._trainer, self._beginning = trainer, folder / "beginning"
        self._info: ModelInfo | None = None
        self._files: Sequence[FileEntry] = ()

    async def load(self) -> ModelInfo:
        if self._info is None:
            self._info = await self._trainer.load()
            self._beginning.mkdir()
            await self._trainer.snapshot()
            self._files = await self._trainer.write(self._beginning)
        else:
            await self._trainer.restore(self._beginning, self._files)
        return self._info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


@asynccontextmanager
async def task_components(task: Task, spec: RLJobSpec, folder: Path) -> AsyncIterator[Components]:
    """Yields everything that a task's blocks share, engines and graders ready. `spec` is that of any of its blocks."""
    import ray

    from longboat_runtime.driver.assembly import open_components
    from longboat_runtime.local.graders import link_config_maps, local_graders
    from longboat_runtime.local.ray import object_store, start_ray
    from longboat_runtime.reward.slots import resource

    with tempfile.TemporaryDirectory(prefix="longboat-bench-") as scratch:
        rewards = link_config_maps(Path(scratch) / "rewards", {CONFIG_MAP: QUICKSTART})
        graders = local_graders(spec.reward_pools, Path(scratch), rewards)
        with graders as sockets, engines_of(task.actor):
            resources = {"longboat-store": 1, "longboat-rollout": task.engines, "longboat-trainer": 1}
            resources |= {resource(pool.name): pool.graders_per_pod for pool in spec.reward_pools}
            try:
                store, _ = object_store(spec)
                start_ray(resources, store)
                job = Job("bench", spec, folder / "unused", 1)
                async with open_components(job, sockets) as components:
                    await components.ready()
                    yield replace(components, trainer=KeptTrainer(components.trainer, Path(scratch)))
            finally:
                ray.shutdown()


def block_components(components: Components, job: Job, task: Task) -> Components:
    """Makes the components for one block: the shared ones with its own source of prompts and checkpoints, and without evaluation."""
    spec = job.spec
    return replace(
        components,
        fleet=components.fleet if task.learns else DrawnFleet(components.fleet, spec.rounds.seed),
        source=open_source(spec.dataset, open_prompts(spec)),
        checkpoints=CheckpointStore(job.root, spec.checkpoint.keep, job.incarnation),
        evaluation=(),
    )


async def quiet(components: Components) -> None:
    """Waits for what engines were told to stop: the next block uses the same names again."""
    while await _take(components) or any(load.running for load in (await components.fleet.loads()).values()):
        pass


async def _take(components: Components) -> bool:
    try:
        await asyncio.wait_for(components.fleet.finished(), _QUIET_SECONDS)
    except TimeoutError:
        return False
    return True
