"""Runs all ranks as one trainer: `protocol.TrainerGroup` on Ray."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.object_store import store_shortage
from longboat_runtime.ray_nodes import ROLLOUT_RESOURCE, TRAINER_RESOURCE, have_gpus
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.store.client import StoreUnreachable
from longboat_runtime.store.protocol import SampleStore
from longboat_runtime.tracebacks import cause_in
from longboat_runtime.trainer.actor import CONCURRENCY_GROUPS, TrainerActor
from longboat_runtime.trainer.errors import NotStreamed, TrainerLost
from longboat_runtime.trainer.placement import gpu_shortage, placed, pod_nodes
from longboat_runtime.trainer.protocol import ChunkRequest, ModelInfo, Plan, TrainReport, TrainRequest
from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.layout import BucketLayout, sender_ranks
from longboat_runtime.weights.publication import WeightPublication
from longboat_runtime.weights.source import TrainerSource, actor_result

log = structlog.get_logger()

# When one rank fails the others do too, or hang in a collective with it. This is how long they get to answer, in seconds.
ANSWER_SECONDS = 5.0
# Errors that leave a rank's state as it was, or end the run: settings, samples that are gone, files, chunks that aren't held.
HARMLESS = (SpecProblem, KeyError, StoreUnreachable, OSError, FilesDamaged, NotStreamed)
# Tokens of the probe by which engines are compared with the trainer.
PROBE_TOKENS = 32


class RayTrainerGroup:
    """One actor for each rank, on the node of its pod (see `placement`): rank r is in pod r // devicesPerPod.

    Methods that call all ranks, except `stacks`, raise TrainerLost if one is gone, or failed in a way that leaves its state in doubt.
    All ranks are then ended, and `load` starts new ones, as soon as Ray has a node of each pod. A rank's SpecProblem is raised instead.
    """

    def __init__(self, spec: RLJobSpec, store: SampleStore, plan: Plan | None = None) -> None:
        self._spec, self._store, self._plan = spec, store, plan
        self._actors: list[Any] = []
        self._info: ModelInfo | None = None
        self._writing: asyncio.Task[list[Any]] | None = None
        self._layout: tuple[BucketLayout, ...] = ()
        self._publishers: list[Any] = []
        self._shortage: str | None = None
        self._gathering: asyncio.Task[list[Any]] | None = None

    async def load(self) -> ModelInfo:
        """Starts the ranks and loads the model. Raises SpecProblem if it can't be trained as the spec says."""
        self._end()
        fits = self._plan is None or await self._plan.fits()
        await self._start()
        [address] = await self._gather([self._actors[0].address.remote()])
        self._info, *_ = await self._call("load", address, fits)
        [self._layout] = await self._gather([self._actors[0].layout.remote()])
        if self._spec.samples is not None:
            self._actors[0].prepare_samples.remote()
        return self._info

    async def _start(self) -> None:
        """Starts the ranks in their pods. Raises TrainerLost if they can't be started there.

        Starts them again if a pod has meanwhile been replaced or its node has died, which Ray notices late.
        """
        trainer = self._spec.trainer
        while True:
            nodes = await placed(trainer)
            if shortage := gpu_shortage(nodes, trainer.devices_per_pod):
                raise TrainerLost(shortage)
            # An actor that asks for no GPU sees none.
            options: dict[str, Any] = {
                "num_cpus": 0,
                "num_gpus": int(have_gpus(nodes)),
                "resources": {TRAINER_RESOURCE: 1},
            }
            actor = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(TrainerActor)
            ids = [node["NodeID"] for node in nodes]
            places = [
                NodeAffinitySchedulingStrategy(node, soft=False) for node in ids for _ in range(trainer.devices_per_pod)
            ]
            self._actors = [
                actor.options(scheduling_strategy=place, **options).remote(self._spec, rank, trainer.ranks, self._store)
                for rank, place in enumerate(places)
            ]
            try:
                await self._call("alive")
            except TrainerLost as lost:
                current = pod_nodes(ray.nodes(), trainer.replicas, trainer.devices_per_pod)
                if current is not None and [node["NodeID"] for node in current] == ids:
                    raise
                log.warning("trainer pods have changed; ranks are started again", error=str(lost))
            else:
                return

    async def accumulate(self, request: ChunkRequest) -> float:
        """See protocol.TrainerGroup."""
        seconds: list[float] = await self._call("accumulate", request)
        return seconds[0]

    async def train(self, request: TrainRequest) -> TrainReport:
        """See protocol.TrainerGroup. Raises KeyError, without having changed anything, if the store lacks a sample."""
        reports: list[TrainReport] = await self._call("train", request)
        return reports[0]

    async def publish(self, version: int) -> WeightPublication:
        """See protocol.TrainerGroup."""
        assert self._info is not None, "load the model first"
        await self._gathered()
        await self._check_stores()
        ids = probe_ids(self._info)
        probe, *_ = await self._call("begin_publication", version, ids)
        self._publishers = [
            self._actors[rank] for rank in sender_ranks(len(self._actors), self._spec.trainer.devices_per_pod)
        ]
        self._gathering = asyncio.create_task(self._call("gather_publication"))
        return WeightPublication(version, TrainerSource(version, self._layout, self._publishers), ids, tuple(probe))

    async def _check_stores(self) -> None:
        """Warns if a node of the trainer or of engines has too small an object store for buckets, once for the same nodes."""
        stores = {
            str(node.get("NodeName") or node["NodeID"]): node["Resources"].get("object_store_memory", 0.0)
            for node in await asyncio.to_thread(ray.nodes)
            if node["Alive"] and node["Resources"].keys() & {TRAINER_RESOURCE, ROLLOUT_RESOURCE}
        }
        shortage = store_shortage(stores, max(bucket.nbytes for bucket in self._layout))
        if shortage is not None and shortage != self._shortage:
            log.warning(shortage)
        self._shortage = shortage

    async def published(self) -> str:
        """See protocol.TrainerGroup."""
        assert self._gathering is not None, "publish first"
        return _checksum(await asyncio.shield(self._gathering))

    async def _gathered(self) -> None:
        """Waits for the gather that is under way, whatever its outcome."""
        if self._gathering is not None and not self._gathering.done():
            await asyncio.wait([self._gathering])

    async def checksum(self) -> str:
        """See protocol.TrainerGroup."""
        await self._gathered()
        return _checksum(await self._call("checksum"))

    async def holds_publication(self) -> bool:
        """See protocol.TrainerGroup. Each sender has a part of it, as long as its process lives."""
        if not self._publishers or not self._actors or self._publishers[0] is not self._actors[0]:
            return False
        try:
            await asyncio.gather(*(publisher.alive.remote() for publisher in self._publishers))
        except RayActorError:
            return False
        return True

    async def snapshot(self) -> None:
        """See protocol.TrainerGroup."""
        await self._written()
        await self._call("snapshot")

    async def write(self, directory: Path) -> tuple[FileEntry, ...]:
        """See protocol.TrainerGroup."""
        self._writing = asyncio.create_task(self._call("write", directory))
        try:
            return tuple(itertools.chain.from_iterable(await self._writing))
        finally:
            self._writing = None

    async def _written(self) -> None:
        """Waits for the write that is under way, whatever its outcome; not for the one that asks."""
        if self._writing is not None and self._writing is not asyncio.current_task():
            await asyncio.wait([self._writing])

    async def write_samples(self, request: SampleFileRequest, root: Path) -> None:
        """See protocol.TrainerGroup. The first rank writes; a failure says nothing about its state. Raises RayActorError if it is gone."""
        if not self._actors:
            raise TrainerLost("the trainer is not loaded")
        await actor_result(self._actors[0].write_samples.remote(request, root))

    async def restore(self, directory: Path, entries: Sequence[FileEntry]) -> None:
        """See protocol.TrainerGroup."""
        await self._written()
        await self._call("restore", directory, entries)

    async def export(self, directory: Path, partial: Path) -> None:
        """See protocol.TrainerGroup."""
        await self._call("export", directory, partial)

    async def stacks(self) -> Mapping[str, str]:
        """See driver.watchdog.Inspectable."""
        actors = self._actors
        answers = await asyncio.gather(*(actor.stacks.remote() for actor in actors), return_exceptions=True)
        return {f"trainer-{rank}": str(answer) for rank, answer in enumerate(answers)}

    async def close(self) -> None:
        """Ends the ranks."""
        self._end()

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Calls all ranks and returns their answers, rank 0 first."""
        return await self._gather([getattr(actor, method).remote(*arguments) for actor in self._actors])

    async def _gather(self, answers: Sequence[Any]) -> list[Any]:
        """Returns what the ranks answered, or raises the first failure if all have answered and each failure is HARMLESS.

        Otherwise ends the ranks, and raises a rank's SpecProblem if there is one, else TrainerLost. Ranks are ended once a write that is
        under way has ended too: its copy of the state may be the one that the job resumes from. If one of its ranks is gone, it fails too.
        """
        if not answers:
            raise TrainerLost("the trainer is not loaded")
        waiting = [asyncio.ensure_future(actor_result(answer)) for answer in answers]
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        if pending:
            await asyncio.wait(pending, timeout=ANSWER_SECONDS)
        errors = [task.exception() for task in waiting if task.done()]
        if len(errors) == len(waiting) and not any(errors):
            return [task.result() for task in waiting]
        for task in waiting:
            task.cancel()
        failures = [error for error in errors if error is not None]
        if len(errors) == len(waiting) and all(isinstance(error, HARMLESS) for error in failures):
            raise failures[0]
        await self._written()
        self._end()
        problem = next((error for error in failures if isinstance(error, SpecProblem)), None)
        if problem is not None:
            raise problem
        log.warning("the trainer is lost", errors=[repr(error) for error in failures])
        raise TrainerLost(f"a trainer rank failed: {cause_in(failures[0])}") from failures[0]

    def _end(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


def probe_ids(info: ModelInfo) -> tuple[int, ...]:
    """Returns tokens spread over the vocabulary, the same for every publication. Pure."""
    count = min(PROBE_TOKENS, info.max_length)
    return tuple((position * 7919 + 1) % info.vocabulary for position in range(count))


def _checksum(ranks: Sequence[Mapping[int, list[bytes]]]) -> str:
    """Returns the checksum of a publication, given the digests of each rank's buckets by their numbers."""
    buckets = sorted(itertools.chain.from_iterable(digests.items() for digests in ranks))
    return checksum_of(digest for _, digests in buckets for digest in digests)
