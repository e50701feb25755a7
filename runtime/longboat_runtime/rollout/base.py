"""Keeps what both kinds of engine share: the samples that run, those that have finished, and the outcomes of publications."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from longboat_runtime.rollout.engine import NO_VERSION, EngineConfig, EngineDead
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.message_parser import MessageParser
from longboat_runtime.rollout.requests import (
    Request,
    check_request,
    check_sampling,
    generated_sample,
    turn_reply,
    unstarted_sample,
)
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, SampleRequest
from longboat_runtime.special_tokens import special_texts
from longboat_runtime.turns import TurnReply, TurnRequest
from longboat_runtime.weights.gate import PublicationRefused, UpdateFailed, check_parity, parity
from longboat_runtime.weights.publication import WeightPublication

if TYPE_CHECKING:
    from longboat_runtime.rollout.counters import EngineCounters


# How long finished samples wait for others while more are running, in seconds. Handing them to the store and to the driver takes
# milliseconds of the CPU and of the interpreter that the engine's next step needs.
GATHER_SECONDS = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A turn that an engine was asked for, and where its reply goes."""

    request: TurnRequest
    begun: TurnReply | None
    reply: Future[TurnReply]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A sample that an engine was asked for."""

    request: SampleRequest
    begun: GeneratedSample | None


class BaseEngine:
    """State of an engine. `_running` holds what vLLM has, by name: that of a sample is its id as text; turns are numbered."""

    _counters: EngineCounters
    _parser: MessageParser
    _tokenizer: Any
    # The texts of its special tokens, by id.
    _special: Mapping[int, str]
    _vocabulary: int

    def __init__(self, config: EngineConfig, arguments: dict[str, Any]) -> None:
        self._config = config
        self._arguments = arguments
        self._outbox = Outbox()
        self._running: dict[str, Sample | Turn] = {}
        self._turns = itertools.count()
        self._version = NO_VERSION
        self._calibrated: float | None = None
        self._failed_update: UpdateFailed | None = None

    def drain_finished(self, timeout: float) -> list[GeneratedSample]:
        """Raises EngineDead once vLLM has failed or was shut down, and nothing finished is left."""
        return self._outbox.take(timeout, lambda: bool(self._running))

    async def turn(self, request: TurnRequest, begun: TurnReply | None = None) -> TurnReply:
        """Raises ValueError for a request that the engine can't take; see protocol.Engine."""
        self._check_requests([request])
        check_sampling(request, begun)
        name, turn = f"turn {next(self._turns)}", Turn(request, begun, self._outbox.promise())
        try:
            self._begin_turn(name, turn)
            reply = await asyncio.wrap_future(turn.reply)
        except asyncio.CancelledError:
            with suppress(EngineDead):
                self._end([name])
            raise
        finally:
            self._outbox.forget(turn.reply)
        if reply.finish_reason is FinishReason.ABORT:
            return reply
        return replace(reply, message=await asyncio.to_thread(self._parser.message, request, reply))

    def take_load(self) -> Load:
        return self._counters.take()

    def _begin_turn(self, name: str, turn: Turn) -> None:
        """Has vLLM begin a turn, under this name. Raises EngineDead."""
        raise NotImplementedError

    def _end(self, names: Sequence[str] | None) -> None:
        """Has vLLM end what runs under these names; None: all turns. Others are passed over."""
        raise NotImplementedError

    @property
    def _decoding(self) -> int:
        """The number of samples that vLLM still runs, as of the end of its last step."""
        return min(self._counters.running, len(self._running))

    def _check_requests(self, requests: Sequence[Request]) -> None:
        """Raises UpdateFailed if the last update failed, ValueError for a request that the engine can't take."""
        if self._failed_update is not None:
            raise self._update_failure()
        for request in requests:
            check_request(request, self._arguments["max_model_len"], self._vocabulary)

    def _startable(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample]) -> dict[str, Sample]:
        """Returns those that don't run yet, by name, and wakes the engine.

        If an update has failed since they were taken, it returns none: all go back as they came.
        """
        by_id = {sample.id: sample for sample in begun}
        if self._failed_update is None:
            self._wake()
            samples = {str(request.id): Sample(request, by_id.get(request.id)) for request in requests}
            return {name: sample for name, sample in samples.items() if name not in self._running}
        for request in requests:
            self._outbox.put(unstarted_sample(request, by_id.get(request.id), self._config.name))
        return {}

    def _startable_turn(self, turn: Turn) -> bool:
        """Whether the turn can begin, and wakes the engine. If an update has failed since it was taken, it fails."""
        if self._failed_update is None:
            self._wake()
            return True
        turn.reply.set_exception(self._update_failure())
        return False

    def _wake(self) -> None:
        """Has steps timed from now on if nothing runs."""
        if not self._running:
            self._counters.steps.begin(time.perf_counter())

    def _those_that_run(self, names: Sequence[str] | None) -> list[str]:
        """Returns those of the names that run; None: those of all turns."""
        if names is None:
            return [name for name, running in self._running.items() if isinstance(running, Turn)]
        return [name for name in names if name in self._running]

    def _know(self, vllm: Any) -> None:
        """Takes what vLLM worked out at its start."""
        (self._counters,) = vllm.logger_manager.stat_loggers
        self._vocabulary = vllm.model_config.get_vocab_size()
        self._tokenizer = vllm.get_tokenizer()
        self._special = special_texts(self._tokenizer)
        if self._config.parsers is not None:
            self._parser = MessageParser(self._config.parsers, self._tokenizer, vllm.model_config)

    def _started(self, name: str, drawn: Sample | Turn) -> None:
        """Notes that vLLM has it, under this name."""
        self._running[name] = drawn

    def _finish(self, name: str, output: Any) -> None:
        """Notes that vLLM has ended what has this name, and puts the sample or turn into the outbox."""
        match self._running.pop(name):
            case Turn(request, begun, reply):
                self._outbox.put(EndedTurn(reply, turn_reply(request, begun, output, self._tokenizer)))
            case Sample(request, begun):
                engine = self._config.name
                self._outbox.put(generated_sample(request, begun, output, engine, self._tokenizer, self._special))

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
        lost = []
        for running in self._running.values():
            match running:
                case Sample(request):
                    lost.append(request.id)
                case Turn():
                    running.reply.set_exception(self._update_failure())
        lost += self._outbox.drop(self._failed_update)
        self._running.clear()
        return type(failed)(reason, lost)

    def _update_failure(self) -> UpdateFailed:
        """Returns the last update's failure, as an error of its own."""
        assert self._failed_update is not None
        return type(self._failed_update)(self._failed_update.reason)


class EndedTurn(NamedTuple):
    """A turn's reply, and where it goes."""

    reply: Future[TurnReply]
    result: TurnReply


class Outbox:
    """Finished samples and turns on their way out of an engine's thread, which fills it; other threads take samples, or wait for a turn.

    While it is held (a publication is being verified) they are kept back, until they are released or dropped.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: list[GeneratedSample] = []
        self._promised: set[Future[TurnReply]] = set()
        self._kept_back: list[GeneratedSample | EndedTurn] | None = None
        self._failure: Exception | None = None

    def promise(self) -> Future[TurnReply]:
        """Makes the place of a turn's reply, until `forget`. A waiter that is cancelled doesn't cancel it."""
        reply: Future[TurnReply] = Future()
        reply.set_running_or_notify_cancel()
        with self._changed:
            self._promised.add(reply)
        return reply

    def forget(self, reply: Future[TurnReply]) -> None:
        """Forgets a place that nobody waits at any more."""
        with self._changed:
            self._promised.discard(reply)

    def put(self, ended: GeneratedSample | EndedTurn) -> None:
        with self._changed:
            if self._kept_back is not None:
                self._kept_back.append(ended)
            else:
                self._let_go(ended)

    def hold(self) -> None:
        """Keeps back what is put from now on, until `release` or `drop`."""
        with self._changed:
            self._kept_back = []

    def release(self) -> None:
        """Lets go what was kept back."""
        with self._changed:
            for ended in self._kept_back or ():
                self._let_go(ended)
            self._kept_back = None

    def drop(self, failure: Exception) -> list[SampleId]:
        """Forgets what was kept back: returns which samples that were, and fails turns."""
        with self._changed:
            dropped, self._kept_back = self._kept_back or [], None
        for ended in dropped:
            if isinstance(ended, EndedTurn):
                ended.reply.set_exception(failure)
        return [ended.id for ended in dropped if isinstance(ended, GeneratedSample)]

    def fail(self, failure: Exception) -> None:
        """Makes `take` raise `failure` once what is ready has been taken, and fails all turns: nothing more will come."""
        with self._changed:
            self._failure = failure
            for reply in self._promised:
                if not reply.done():
                    reply.set_exception(failure)
            self._changed.notify_all()

    def _let_go(self, ended: GeneratedSample | EndedTurn) -> None:
        if isinstance(ended, EndedTurn):
            if not ended.reply.done():  # it has failed with the engine, in which others still end
                ended.reply.set_result(ended.result)
        else:
            self._ready.append(ended)
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
