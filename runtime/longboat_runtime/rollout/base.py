"""Keeps what both kinds of engine share: the samples that run, those that have finished, and the outcomes of publications."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longboat_runtime.rollout.engine import NO_VERSION, EngineConfig
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.requests import check_request, generated_sample, unstarted_sample
from longboat_runtime.samples import GeneratedSample, SampleId, SampleRequest
from longboat_runtime.special_tokens import special_texts
from longboat_runtime.weights.gate import PublicationRefused, UpdateFailed, check_parity, parity
from longboat_runtime.weights.publication import WeightPublication

if TYPE_CHECKING:
    from longboat_runtime.rollout.counters import EngineCounters


# How long finished samples wait for others while more are running, in seconds. Handing them to the store and to the driver takes
# milliseconds of the CPU and of the interpreter that the engine's next step needs.
GATHER_SECONDS = 0.05


class BaseEngine:
    """State of an engine. `_running` holds the running samples' requests by name, which is the sample id as text.

    `_begun` holds the first parts of those that continue a sample.
    """

    _counters: EngineCounters
    _tokenizer: Any
    # The texts of its special tokens, by id.
    _special: Mapping[int, str]
    _vocabulary: int

    def __init__(self, config: EngineConfig, arguments: dict[str, Any]) -> None:
        self._config = config
        self._arguments = arguments
        self._outbox = Outbox()
        self._running: dict[str, SampleRequest] = {}
        self._begun: dict[str, GeneratedSample] = {}
        self._version = NO_VERSION
        self._calibrated: float | None = None
        self._failed_update: UpdateFailed | None = None

    def drain_finished(self, timeout: float) -> list[GeneratedSample]:
        """Raises EngineDead once vLLM has failed or was shut down, and nothing finished is left."""
        return self._outbox.take(timeout, lambda: bool(self._running))

    def take_load(self) -> Load:
        return self._counters.take()

    @property
    def _decoding(self) -> int:
        """The number of samples that vLLM still runs, as of the end of its last step."""
        return min(self._counters.running, len(self._running))

    def _check_requests(self, requests: Sequence[SampleRequest]) -> None:
        """Raises UpdateFailed if the last update failed, ValueError for a request that the engine can't take."""
        if self._failed_update is not None:
            raise type(self._failed_update)(self._failed_update.reason)
        for request in requests:
            check_request(request, self._arguments["max_model_len"], self._vocabulary)

    def _startable(
        self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample]
    ) -> list[tuple[SampleRequest, GeneratedSample | None]]:
        """Returns the requests that don't run yet, each with its first part or None. If nothing runs, steps are timed from now on.

        If an update has failed since they were taken, it returns none: all go back as they came.
        """
        by_id = {sample.id: sample for sample in begun}
        if self._failed_update is None:
            if not self._running:
                self._counters.steps.begin(time.perf_counter())
            return [(request, by_id.get(request.id)) for request in requests if str(request.id) not in self._running]
        for request in requests:
            self._outbox.put(unstarted_sample(request, by_id.get(request.id), self._config.name))
        return []

    def _know(self, vllm: Any) -> None:
        """Takes what vLLM worked out at its start."""
        (self._counters,) = vllm.logger_manager.stat_loggers
        self._vocabulary = vllm.model_config.get_vocab_size()
        self._tokenizer = vllm.get_tokenizer()
        self._special = special_texts(self._tokenizer)

    def _started(self, name: str, request: SampleRequest, begun: GeneratedSample | None) -> None:
        """Notes that vLLM has the request, under this name."""
        self._running[name] = request
        if begun is not None:
            self._begun[name] = begun

    def _finish(self, name: str, output: Any) -> None:
        """Notes that vLLM has ended the request of this name, and puts its sample into the outbox."""
        request, begun = self._running.pop(name), self._begun.pop(name, None)
        self._outbox.put(generated_sample(request, begun, output, self._config.name, self._tokenizer, self._special))

    def _check_probe(self, publication: WeightPublication) -> None:
        """Refuses a publication whose probe the engine can't score, before any weights change."""
        ids = publication.probe_ids
        if not 2 <= len(ids) < self._arguments["max_model_len"] or not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise PublicationRefused(f"the probe of {len(ids)} tokens can't be scored")

    def _check_parity(self, publication: WeightPublication, scored: Sequence[float], calibrated: float | None) -> float:
        """Returns the parity of the probe's log-probs; raises PublicationRefused if it is beyond the bound."""
        measured = parity(scored, publication.probe_logprobs)
        check_parity(measured, self._config.dtype, self._calibrated if calibrated is None else calibrated)
        return measured

    def _serve(self, publication: WeightPublication, measured: float) -> None:
        """Serves the publication, which has passed the gate."""
        if self._calibrated is None:
            self._calibrated = measured
        self._version = publication.version
        self._failed_update = None
        self._outbox.release()

    def _stop_serving(self, publication: WeightPublication, failed: UpdateFailed) -> UpdateFailed:
        """Stops serving after a failed update: nothing that was drawn since it began leaves. Returns an error that names what is lost."""
        what = "refused" if isinstance(failed, PublicationRefused) else "could not get"
        reason = f"engine {self._config.name} {what} version {publication.version}: {failed.reason}"
        self._failed_update = type(failed)(reason)
        lost = [request.id for request in self._running.values()] + self._outbox.drop()
        self._running.clear()
        self._begun.clear()
        return type(failed)(reason, lost)


class Outbox:
    """Finished samples on their way out of an engine's thread, which fills it; another thread empties it.

    While it is held (a publication is being verified) samples are kept back, until they are released or dropped.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: list[GeneratedSample] = []
        self._kept_back: list[GeneratedSample] | None = None
        self._failure: Exception | None = None

    def put(self, sample: GeneratedSample) -> None:
        with self._changed:
            if self._kept_back is not None:
                self._kept_back.append(sample)
                return
            self._ready.append(sample)
            self._changed.notify_all()

    def hold(self) -> None:
        """Keeps back what is put from now on, until `release` or `drop`."""
        with self._changed:
            self._kept_back = []

    def release(self) -> None:
        """Lets go what was kept back."""
        with self._changed:
            self._ready += self._kept_back or []
            self._kept_back = None
            self._changed.notify_all()

    def drop(self) -> list[SampleId]:
        """Forgets what was kept back and says what it was."""
        with self._changed:
            dropped = [sample.id for sample in self._kept_back or []]
            self._kept_back = None
            return dropped

    def fail(self, failure: Exception) -> None:
        """Makes `take` raise `failure` once what is ready has been taken: nothing more will come."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def take(self, timeout: float, more: Callable[[], bool] = lambda: False) -> list[GeneratedSample]:
        """Waits up to `timeout` seconds for at least one sample; returns all there are, in the order they finished.

        Once there is one, it waits up to GATHER_SECONDS for others as long as there will be `more`.
        """
        with self._changed:
            if self._changed.wait_for(lambda: self._ready or self._failure is not None, timeout):
                self._changed.wait_for(lambda: not more() or self._failure is not None, GATHER_SECONDS)
            taken, self._ready = self._ready, []
            if not taken and self._failure is not None:
                raise self._failure
            return taken
