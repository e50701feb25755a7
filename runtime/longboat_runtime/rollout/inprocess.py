"""vLLM in this process, stepped by a thread of our own."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
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
    from vllm import LLMEngine, RequestOutput

T = TypeVar("T")

PROBE = "probe"


class InProcessEngine(BaseEngine):
    """Its thread alone touches vLLM: it applies commands (submit, abort, update) between steps and steps while samples run.

    Commands that are waiting are all applied before the next step, so what is submitted in one call reaches vLLM before the same step:
    the same requests on the same weights give the same tokens and log-probs, bit for bit.
    """

    def __init__(self, config: EngineConfig, arguments: dict[str, Any]) -> None:
        """Starts vLLM (seconds) with `arguments` of `rollout.arguments`. Raises what vLLM raises."""
        super().__init__(config, arguments)
        self._commands = Commands()
        self._own_names: dict[str, str] = {}  # vLLM's own names of running samples
        self._arrivals = 0
        self._closing = False
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"engine {config.name}", daemon=True)
        self._thread.start()
        started.result()

    # Called from other threads

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        """Raises ValueError for a request that the engine can't take, UpdateFailed if the last update failed, and EngineDead.

        Then no request is taken. A running sample's id is passed over.
        """
        self._check_requests(requests)
        self._commands.give(partial(self._submit, tuple(requests), tuple(begun)))

    def abort(self, ids: Sequence[SampleId]) -> None:
        self._end([str(sample) for sample in ids])

    def end_turns(self) -> None:
        self._end(None)

    def update_weights(self, publication: WeightPublication, calibrated: float | None = None) -> float:
        """Raises UpdateFailed: PublicationRefused if the gate does not pass. Then nothing is served until an update succeeds.

        Any other error ends the engine.
        """
        return self._commands.call(partial(self._update_weights, publication, calibrated), UpdateFailed)

    def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        return list(self._commands.call(partial(self._vllm.collective_rpc, method, args=arguments), Exception))

    def shutdown(self) -> None:
        """Ends vLLM and the thread; samples that run are forgotten."""
        with suppress(EngineDead):  # it has ended already
            self._commands.give(self._close)
        self._thread.join()

    def _begin_turn(self, name: str, turn: Turn) -> None:
        self._commands.give(partial(self._turn, name, turn))

    def _end(self, names: Sequence[str] | None) -> None:
        self._commands.give(partial(self._abort, names))

    # The engine's thread

    def _run(self, started: Future[None]) -> None:
        try:
            self._start()
        except BaseException as error:  # noqa: BLE001 - raised where the start is awaited
            started.set_exception(error)
            return
        started.set_result(None)
        reason = EngineDead(f"engine {self._config.name} was shut down")
        try:
            while not self._closing:
                self._commands.apply(wait=not self._running)
                if self._running:
                    self._step()
        except Exception as error:
            reason = EngineDead(f"engine {self._config.name} has failed: {cause_in(error)}")
            reason.__cause__ = error
            raise
        finally:
            self._commands.end(reason)
            self._outbox.fail(reason)
            self._vllm.engine_core.shutdown()

    def _start(self) -> None:
        from vllm import EngineArgs, LLMEngine

        from longboat_runtime.rollout.counters import EngineCounters

        self._vllm: LLMEngine = LLMEngine.from_engine_args(EngineArgs(**self._arguments), stat_loggers=[EngineCounters])
        self._vllm.set_weight_version(str(NO_VERSION))
        self._know(self._vllm)
        # The first request sets kernels up lazily, for seconds.
        self._probe([1, 1])

    def _submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample]) -> None:
        for name, sample in self._startable(requests, begun).items():
            self._draw(name, sample)

    def _turn(self, name: str, turn: Turn) -> None:
        if self._startable_turn(turn):
            self._draw(name, turn)

    def _draw(self, name: str, drawn: Sample | Turn) -> None:
        request, begun = drawn.request, drawn.begun
        own_name = self._add(name, prompt_of(request, begun), sampling_params(request, begun))
        continue_text(self._vllm.output_processor.request_states[own_name], request, begun)
        self._own_names[name] = own_name
        self._started(name, drawn)

    def _add(self, name: str, prompt: Any, params: Any, priority: int = 0) -> str:
        """Gives vLLM a request; arrivals are numbered, not timed, so that the order is the same in every run."""
        self._arrivals += 1
        arrival = float(self._arrivals)
        own_name: str = self._vllm.add_request(name, prompt, params, arrival_time=arrival, priority=priority)
        return own_name

    def _abort(self, names: Sequence[str] | None) -> None:
        from vllm.v1.engine import FinishReason

        for name in self._those_that_run(names):
            # What AsyncLLM does on abort; LLMEngine throws the output away.
            own_name = self._own_names.pop(name)
            state = self._vllm.output_processor.request_states[own_name]
            output = state.make_request_output([], None, FinishReason.ABORT, None)
            self._vllm.abort_request([own_name], internal=True)
            self._finish(name, output)

    def _step(self) -> RequestOutput | None:
        """Makes one step of vLLM; returns the probe's output if it has come."""
        probe = None
        for output in self._vllm.step():
            if output.request_id == PROBE:
                probe = output
            else:
                del self._own_names[output.request_id]
                self._finish(output.request_id, output)
        return probe

    def _update_weights(self, publication: WeightPublication, calibrated: float | None) -> float:
        self._counters.steps.interrupt()
        self._outbox.hold()
        try:
            self._check_probe(publication)
            check_receipts(self._load(publication), publication.payload.checksum)
            self._vllm.set_weight_version(str(publication.version))
            # Running samples continue, with keys and values of the new weights.
            self._counters.interrupted(self._decoding)
            self._vllm.reset_prefix_cache(reset_running_requests=True)
            measured = self._check_parity(publication, self._probe(publication.probe_ids), calibrated)
        except UpdateFailed as error:
            failed = self._explained(publication, error)
            self._vllm.abort_request([*self._own_names.values()], internal=True)
            self._own_names.clear()
            raise self._stop_serving(publication, failed) from error
        self._serve(publication, measured)
        return measured

    def _load(self, publication: WeightPublication) -> list[dict[str, Any]]:
        """Has all workers load the publication; returns their receipts."""
        call = self._vllm.collective_rpc
        contents = fetched(publication.payload)
        call("start_weight_update")
        try:
            with HandoverFile() as file:
                for bucket in contents:
                    if isinstance(bucket, SentBucket):
                        check_received(call("receive_weights", args=(bucket.entries, bucket.nbytes, bucket.sender)))
                    elif self._config.tensor_parallel == 1:
                        call("update_weights", args=({"entries": bucket.entries, "data": bucket.data},))
                    else:
                        call("update_weights", args=({"entries": bucket.entries, "path": file.write(bucket)},))
                    del bucket  # the next one may need its memory
        except FetchFailed:
            call("abandon_weight_update")
            raise
        call("finish_weight_update")
        receipts: list[dict[str, Any]] = call("weight_receipt")
        return receipts

    def _explained(self, publication: WeightPublication, failed: UpdateFailed) -> UpdateFailed:
        """Returns the error; if log-probs differ, one that also says which tensors differ most from the published ones."""
        if not isinstance(failed, ParityExceeded):
            return failed
        compare = partial(self._vllm.collective_rpc, "weight_differences")
        differences: list[tuple[str, float]] = []
        with suppress(FetchFailed), HandoverFile() as file:
            for number, bucket in enumerate(fetched(publication.payload)):
                assert isinstance(bucket, Bucket), "buckets that are taken once more come through the host's memory"
                compared = compare(args=({"entries": bucket.entries, "path": file.write(bucket)}, number == 0))
                differences += itertools.chain.from_iterable(compared)
        return failed.naming(differences, self._config.dtype)

    def _probe(self, ids: Sequence[int]) -> list[float]:
        """Computes the log-probs of the probe; running samples may continue meanwhile."""
        self._add(PROBE, tokens(ids), probe_params(), PROBE_PRIORITY)
        while (output := self._step()) is None:
            pass
        return probe_logprobs(ids, output)

    def _close(self) -> None:
        self._closing = True


class Commands:
    """Commands from other threads, applied by the one thread that owns the engine, in the order in which they were given."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waited_for: set[Future[Any]] = set()
        self._end: Exception | None = None

    def give(self, command: Callable[[], None]) -> None:
        """Puts the command into the queue without waiting for it. Raises the reason if the owner has ended.

        What the command raises ends the owner.
        """
        with self._lock:
            if self._end is not None:
                raise self._end
            self._queue.put(command)

    def call(self, command: Callable[[], T], expected: type[Exception]) -> T:
        """Waits for the command's result. What it raises is raised here too, and ends the owner unless it is `expected`."""
        future: Future[T] = Future()

        def run() -> None:
            with self._lock:
                self._waited_for.discard(future)
            try:
                future.set_result(command())
            except expected as error:
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)
                raise

        with self._lock:
            if self._end is not None:
                raise self._end
            self._waited_for.add(future)
            self._queue.put(run)
        return future.result()

    def apply(self, *, wait: bool) -> None:
        """Applies all commands that are there; with `wait` waits for one first."""
        if wait:
            self._queue.get()()
        while not self._queue.empty():
            self._queue.get()()

    def end(self, reason: Exception) -> None:
        """Ends the queue: `reason` is raised in callers that wait for a command or give one from now on."""
        with self._lock:
            self._end = reason
            for future in self._waited_for:
                future.set_exception(reason)
            self._waited_for.clear()
