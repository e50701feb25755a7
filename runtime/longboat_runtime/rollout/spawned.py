"""vLLM's own asynchronous engine, whose core is a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from longboat_runtime.rollout.base import BaseEngine, Sample, Turn
from longboat_runtime.rollout.engine import NO_VERSION, EngineConfig, EngineDead
from longboat_runtime.rollout.requests import (
    PROBE_PRIORITY,
    continue_text,
    probe_logprobs,
    probe_params,
    prompt_of,
    sampling_params,
    tokens,
)
from longboat_runtime.samples import GeneratedSample, SampleId, SampleRequest
from longboat_runtime.tracebacks import cause_in
from longboat_runtime.weights.bucket import Bucket
from longboat_runtime.weights.gate import FetchFailed, ParityExceeded, UpdateFailed, check_receipts, check_received
from longboat_runtime.weights.handover import HandoverFile
from longboat_runtime.weights.payload import SentBucket, fetched
from longboat_runtime.weights.publication import WeightPublication

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector

T = TypeVar("T")


class SpawnedEngine(BaseEngine):
    """An event loop in a thread of its own speaks to the core; commands take turns by a lock, in the order they came.

    Samples submitted in one call may start in different steps. Each still draws its tokens by its own seed, but log-probs
    may differ in the last bits from run to run.
    """

    def __init__(self, config: EngineConfig, arguments: dict[str, Any]) -> None:
        """Starts vLLM (tens of seconds) with `arguments` of `rollout.arguments`. Raises what vLLM raises."""
        super().__init__(config, arguments)
        self._collectors: set[asyncio.Task[None]] = set()
        self._failed: EngineDead | None = None
        self._loop = asyncio.new_event_loop()
        self._order = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"engine {config.name}", daemon=True)
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self._end_loop()
            raise

    # Called from other threads

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        """Raises ValueError for a request that the engine can't take, UpdateFailed if the last update failed, and EngineDead.

        Then no request is taken. A running sample's id is passed over.
        """
        self._check_alive()
        self._check_requests(requests)
        self._give(self._submit(tuple(requests), tuple(begun)))

    def abort(self, ids: Sequence[SampleId]) -> None:
        self._end([str(sample) for sample in ids])

    def end_turns(self) -> None:
        self._end(None)

    def update_weights(self, publication: WeightPublication, calibrated: float | None = None) -> float:
        """Raises UpdateFailed: PublicationRefused if the gate does not pass. Then nothing is served until an update succeeds.

        Any other error ends the engine, and is raised as EngineDead.
        """
        self._check_alive()
        return self._call(self._guard(self._update_weights(publication, calibrated)))

    def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        self._check_alive()
        answers: list[Any] = self._call(self._vllm.collective_rpc(method, args=arguments))
        return answers

    def shutdown(self) -> None:
        """Ends vLLM and the thread; samples that run are forgotten."""
        if self._thread.is_alive():
            self._call(self._stop())
            self._end_loop()

    def _begin_turn(self, name: str, turn: Turn) -> None:
        self._check_alive()
        self._give(self._turn(name, turn))

    def _end(self, names: Sequence[str] | None) -> None:
        self._check_alive()
        self._give(self._abort(names))

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _give(self, command: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(self._guard(command), self._loop)

    def _call(self, command: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(command, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the event loop

    async def _start(self) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from longboat_runtime.rollout.counters import EngineCounters

        self._vllm: AsyncLLM = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**self._arguments), stat_loggers=[EngineCounters]
        )
        self._know(self._vllm)
        await self._vllm.update_weight_version(str(NO_VERSION))
        # The first request sets kernels up lazily, for seconds.
        await self._probe([1, 1])

    async def _guard(self, command: Coroutine[Any, Any, T]) -> T:
        """Awaits the command and returns its result. Any failure except UpdateFailed is the engine's end, and is raised as EngineDead."""
        try:
            return await command
        except UpdateFailed:
            raise
        except Exception as error:
            self._failed = EngineDead(f"engine {self._config.name} has failed: {cause_in(error)}")
            self._outbox.fail(self._failed)
            raise self._failed from error

    async def _submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample]) -> None:
        async with self._order:
            for name, sample in self._startable(requests, begun).items():
                await self._draw(name, sample)

    async def _turn(self, name: str, turn: Turn) -> None:
        async with self._order:
            if self._startable_turn(turn):
                await self._draw(name, turn)

    async def _draw(self, name: str, drawn: Sample | Turn) -> None:
        request, begun = drawn.request, drawn.begun
        collector = await self._vllm.add_request(name, prompt_of(request, begun), sampling_params(request, begun))
        processor = self._vllm.output_processor
        for own_name in processor.external_req_ids.get(name, ()):
            continue_text(processor.request_states[own_name], request, begun)
        self._started(name, drawn)
        task = asyncio.create_task(self._collect(name, drawn, collector))
        self._collectors.add(task)
        task.add_done_callback(self._collectors.discard)

    async def _collect(self, name: str, drawn: Sample | Turn, collector: RequestOutputCollector) -> None:
        with suppress(EngineDead):  # the guard has told those who wait
            await self._guard(self._end_drawn(name, drawn, collector))

    async def _end_drawn(self, name: str, drawn: Sample | Turn, collector: RequestOutputCollector) -> None:
        output = await _final_output(collector)
        # Another request of that name may run by now: this one was lost with a failed update.
        if self._running.get(name) is drawn:
            self._finish(name, output)

    async def _abort(self, names: Sequence[str] | None) -> None:
        async with self._order:
            await self._vllm.abort(self._those_that_run(names))

    async def _update_weights(self, publication: WeightPublication, calibrated: float | None) -> float:
        async with self._order:
            await self._vllm.pause_generation(mode="keep", clear_cache=False)
            self._counters.steps.interrupt()
            self._outbox.hold()
            try:
                self._check_probe(publication)
                receipts = await self._load(publication)
                check_receipts(receipts, await asyncio.to_thread(lambda: publication.payload.checksum))
                # Running samples continue, with keys and values of the new weights.
                self._counters.interrupted(self._decoding)
                await self._vllm.reset_prefix_cache(reset_running_requests=True)
                await self._vllm.resume_generation()
                scored = await self._probe(publication.probe_ids)
                measured = self._check_parity(publication, scored, calibrated)
            except UpdateFailed as cause:
                failed = await self._explained(publication, cause)
                names = [*self._running]
                error = self._stop_serving(publication, failed)
                await self._vllm.resume_generation()
                await self._vllm.abort(names)
                raise error from cause
            self._serve(publication, measured)
            return measured

    async def _load(self, publication: WeightPublication) -> list[dict[str, Any]]:
        """Has all workers load the publication; returns their receipts."""
        call = self._vllm.collective_rpc
        contents = await asyncio.to_thread(fetched, publication.payload)
        await call("start_weight_update")
        try:
            with HandoverFile() as file:
                while (bucket := await asyncio.to_thread(next, contents, None)) is not None:
                    if isinstance(bucket, SentBucket):
                        arguments = (bucket.entries, bucket.nbytes, bucket.sender)
                        check_received(await call("receive_weights", args=arguments))
                    else:
                        await call("update_weights", args=({"entries": bucket.entries, "path": file.write(bucket)},))
                    del bucket  # the next one may need its memory
        except FetchFailed:
            await call("abandon_weight_update")
            raise
        await self._vllm.finish_weight_update(str(publication.version))
        receipts: list[dict[str, Any]] = await call("weight_receipt")
        return receipts

    async def _explained(self, publication: WeightPublication, failed: UpdateFailed) -> UpdateFailed:
        """Returns the error; if log-probs differ, one that also says which tensors differ most from the published ones."""
        if not isinstance(failed, ParityExceeded):
            return failed
        differences: list[tuple[str, float]] = []
        with suppress(FetchFailed), HandoverFile() as file:
            contents = await asyncio.to_thread(fetched, publication.payload)
            first = True
            while (bucket := await asyncio.to_thread(next, contents, None)) is not None:
                assert isinstance(bucket, Bucket), "buckets that are taken once more come through the host's memory"
                update = {"entries": bucket.entries, "path": file.write(bucket)}
                compared = await self._vllm.collective_rpc("weight_differences", args=(update, first))
                differences += itertools.chain.from_iterable(compared)
                first = False
        return failed.naming(differences, self._config.dtype)

    async def _probe(self, ids: Sequence[int]) -> list[float]:
        """Computes the log-probs of the probe's tokens, all but the first; running samples may continue meanwhile."""
        collector = await self._vllm.add_request("probe", tokens(ids), probe_params(), priority=PROBE_PRIORITY)
        return probe_logprobs(ids, await _final_output(collector))

    async def _stop(self) -> None:
        for task in self._collectors:
            task.cancel()
        reason = EngineDead(f"engine {self._config.name} was shut down")
        self._failed = self._failed or reason
        self._outbox.fail(reason)
        self._vllm.shutdown()


async def _final_output(collector: RequestOutputCollector) -> RequestOutput:
    """Waits for the only output that a request has (`FINAL_ONLY`), and returns it."""
    output: RequestOutput = await collector.get()
    return output
