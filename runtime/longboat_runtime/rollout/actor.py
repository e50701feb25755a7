"""One engine as a Ray actor in a rollout pod."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.protocol import Engine
from longboat_runtime.samples import FinishedSample, GeneratedSample, SampleId, SampleRequest
from longboat_runtime.stacks import thread_stacks
from longboat_runtime.store.client import StoreClient
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.incoming import Incoming
from longboat_runtime.weights.payload import SentBucket, StoredBucket
from longboat_runtime.weights.publication import WeightPublication

# How long `finished` waits before it returns nothing, so that it doesn't wait for ever when its caller is gone.
POLL_SECONDS = 30.0


class EngineActor:
    """Ray runs its methods on one event loop; what takes time runs in threads. It may run a call before one that was made earlier.

    Nothing here imports torch or vLLM before `start` has set their environment.
    """

    def __init__(self, config: EngineConfig, node: NodeDevices, store: StoreClient) -> None:
        self._config = config
        self._node = node
        self._store = store
        self._unstored: list[GeneratedSample] = []
        self._engine: Engine | None = None
        # The newest update: its number, and the buckets that come for it.
        self._update = (0, Incoming(0))

    async def start(self) -> None:
        """Starts the engine (seconds to minutes). Raises SpecProblem for what a person has to change."""
        from longboat_runtime.rollout.factory import start_engine
        from longboat_runtime.weights.handover_files import sweep

        sweep()
        self._engine = await asyncio.to_thread(start_engine, self._config, self._node)

    async def submit(self, requests: Sequence[SampleRequest]) -> list[SampleId]:
        """Begins samples, or continues them from what the store has; returns those that the store has lost, which are not begun."""
        begun = await self._begun([request for request in requests if request.begun])
        lost = [request.id for request in requests if request.begun and request.id not in begun]
        self._started.submit([request for request in requests if request.id not in lost], [*begun.values()])
        return lost

    async def abort(self, ids: Sequence[SampleId]) -> None:
        """Aborts samples whose `submit` has returned; others are passed over."""
        self._started.abort(ids)

    async def _begun(self, requests: Sequence[SampleRequest]) -> dict[SampleId, GeneratedSample]:
        """Returns the first parts of samples to be continued, by id, as far as the store has exactly those."""
        wanted = {request.id: request.begun for request in requests}
        while wanted:
            try:
                samples = await self._store.get(list(wanted))
            except KeyError as missing:
                wanted = {sample: spans for sample, spans in wanted.items() if sample not in missing.args}
            else:
                return {sample.id: sample for sample in samples if sample.spans == wanted[sample.id]}
        return {}

    async def finished(self) -> list[FinishedSample]:
        """Waits for finished samples, at most `POLL_SECONDS`; returns them once the store holds them.

        If the store fails, they are kept and offered to it again by the next call.
        """
        if not self._unstored:
            self._unstored = await asyncio.to_thread(self._started.drain_finished, POLL_SECONDS)
        if self._unstored:
            await self._store.put(self._unstored)
        stored, self._unstored = self._unstored, []
        return [sample.summary for sample in stored]

    async def update_weights(self, number: int, publication: WeightPublication, calibrated: float | None) -> float:
        """Returns the parity; raises UpdateFailed. Buckets come by `take_weights` of the same number; `publication` says how many."""
        incoming = self._incoming(number, publication.payload)
        try:
            arriving = replace(publication, payload=incoming)
            return await asyncio.to_thread(self._started.update_weights, arriving, calibrated)
        finally:
            incoming.close()

    async def take_weights(self, number: int, index: int, bucket: StoredBucket | SentBucket) -> None:
        """Fetches a bucket; returns once the engine has loaded it. Raises FetchFailed if it never will."""
        incoming = self._incoming(number)
        await incoming.load(index, await bucket.fetch())

    async def conclude_weights(self, number: int, checksum: str) -> bool:
        """Gives the engine the checksum of all buckets; returns True if it wants them once more, False once the update has ended."""
        return await self._incoming(number).conclude(checksum)

    async def give_up_weights(self, number: int, reason: str) -> None:
        """Ends an update for which no more buckets come."""
        self._incoming(number).fail(reason)

    def _incoming(self, number: int, buckets: int = 0) -> Incoming:
        """Returns the buckets of an update. Calls about it may arrive in any order. Raises FetchFailed if a newer one has begun."""
        newest, incoming = self._update
        if number < newest:
            raise FetchFailed("a newer update has begun")
        if number > newest:
            incoming.fail("a newer update has begun")
            self._update = (number, Incoming(buckets))
        self._update[1].count = buckets or self._update[1].count
        return self._update[1]

    async def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        """See protocol.Engine."""
        return await asyncio.to_thread(self._started.call_workers, method, *arguments)

    async def take_load(self) -> Load:
        return self._started.take_load()

    async def stacks(self) -> str:
        """Returns the stacks of all threads of this process, the engine's own among them."""
        return await asyncio.to_thread(thread_stacks)

    async def shutdown(self) -> None:
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown)

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise RuntimeError(f"engine {self._config.name} has not been started")
        return self._engine
