"""Engines whose steps last what a roofline says: real vLLM without a model's computation, each in a process of its own.

Scheduler, KV blocks and preemptions are vLLM's own. A step schedules, draws random tokens, and then waits for its stated end.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.elastic.roofline import Roofline
from longboat_runtime.rollout.engine import EngineConfig, kv_token_bytes
from longboat_runtime.samples import GeneratedSample, SampleRequest

# The smallest that vLLM's kernels for CPUs take.
BLOCK_TOKENS = 32
# How much later than stated a step may end, in parts of what it lasts, and how many steps of a block have to be in time.
LATE = 0.1
IN_TIME = 0.99
# Who goes before whom, the highest first. The driver takes what engines leave: it sits on a machine of its own elsewhere.
DRIVING, COMPUTING, WAKING = 1, 2, 3


@dataclass(frozen=True, slots=True)
class PacedEngine:
    """An engine of `devices` devices: `model` is a directory, `longest` the most tokens of a sequence."""

    name: str
    devices: int
    roofline: Roofline
    model: Path
    longest: int


def engine_config(engine: PacedEngine) -> EngineConfig:
    """Makes the config of an engine with the tiny model and a single rank."""
    return EngineConfig(engine.name, str(engine.model), "float32", max_length=engine.longest, enforce_eager=True)


@dataclass(frozen=True, slots=True)
class Punctuality:
    """Counts `steps`, `late` of which took more than 1 + LATE times as long as stated. `stated`, `taken`, `computing`: seconds of all."""

    steps: int = 0
    late: int = 0
    stated: float = 0.0
    taken: float = 0.0
    computing: float = 0.0

    def __add__(self, other: Punctuality) -> Punctuality:
        return Punctuality(
            self.steps + other.steps,
            self.late + other.late,
            self.stated + other.stated,
            self.taken + other.taken,
            self.computing + other.computing,
        )

    @property
    def on_time(self) -> float:
        """Share of steps."""
        return 1 - self.late / self.steps if self.steps else 1.0

    @property
    def void(self) -> bool:
        """Whether too many were late for the block to say anything."""
        return self.on_time < IN_TIME


class Pace:
    """Lets every step end when the roofline says, counted from the end of the one before or, after a rest, from its own beginning.

    `sleep_until` returns when the `clock` has reached a time.
    """

    def __init__(
        self,
        roofline: Roofline,
        devices: int,
        clock: Callable[[], float] = time.monotonic,
        sleep_until: Callable[[float], None] | None = None,
    ) -> None:
        self._roofline, self._devices = roofline, devices
        self._clock, self._sleep_until = clock, sleep_until or _sleep_until
        self._contexts: dict[str, int] = {}
        self._end: float | None = None
        self.stated = 0.0
        self.punctuality = Punctuality()

    def scheduled(self, output: Any) -> None:
        """Takes from vLLM's scheduler what the step works on."""
        decoded = computed = tokens = 0
        before = computed_before(output)
        for name, count in output.num_scheduled_tokens.items():
            tokens += before[name] + count
            decoded += 1
            computed += count - 1
        self.stated = self._roofline.step_seconds(self._devices, max(1, decoded), tokens, computed)

    def rested(self) -> None:
        """Records that there was nothing to do until now."""
        self._end = None

    def step(self, step: Any) -> Any:
        """Runs a step of vLLM's and waits for its stated end."""
        began = self._clock()
        begin = began if self._end is None else self._end
        self.stated = 0.0
        outputs = step()
        computed = self._clock()
        if self.stated:
            self._sleep_until(begin + self.stated)
            ended = self._clock()
            late = ended - begin > (1 + LATE) * self.stated
            self.punctuality += Punctuality(1, int(late), self.stated, ended - begin, computed - began)
            # The next step isn't late because this one was.
            self._end = ended if late else begin + self.stated
        return outputs


class RandomModel:
    """Stands in the model's place: draws a token of this vocabulary for every request whose tokens have all been computed.

    A step then takes what vLLM's scheduler and outputs take; a model's own computation would make steps late on slower CPUs. Tokens are
    random: equal responses to a prompt would share their KV blocks, which a model's responses don't.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary, self._random = vocabulary, random.Random(0)
        self._lengths: dict[str, int] = {}

    def draw(self, scheduled: Any) -> dict[str, list[int]]:
        """Returns the tokens drawn for each request that vLLM's scheduler has scheduled: one, or none while its tokens are computed."""
        for name in scheduled.finished_req_ids:
            self._lengths.pop(name, None)
        for request in scheduled.scheduled_new_reqs:
            self._lengths[request.req_id] = len(request.prompt_token_ids)
        drawn: dict[str, list[int]] = {}
        for name, computed in computed_before(scheduled).items():
            complete = computed + scheduled.num_scheduled_tokens[name] >= self._lengths[name]
            self._lengths[name] += complete
            drawn[name] = [self._random.randrange(self._vocabulary)] if complete else []
        return drawn


def _output(drawn: dict[str, list[int]]) -> Any:
    """Makes vLLM's ModelRunnerOutput with these tokens, each of log-prob 0."""
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    rows = len(drawn)
    ids = np.array([[tokens[0] if tokens else 0] for tokens in drawn.values()], np.int32)
    logprobs = LogprobsLists(ids, np.zeros((rows, 1), np.float32), np.ones(rows, np.int32))
    return ModelRunnerOutput([*drawn], {name: row for row, name in enumerate(drawn)}, [*drawn.values()], logprobs)


def computed_before(scheduled: Any) -> dict[str, int]:
    """Reads the tokens of each scheduled request that earlier steps have computed."""
    cached = scheduled.scheduled_cached_reqs
    before = {request.req_id: request.num_computed_tokens for request in scheduled.scheduled_new_reqs}
    return before | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


def _sleep_until(end: float) -> None:
    """Sleeps until `end`. If permitted, whoever wakes goes before those that compute, which have until their own step's end."""
    go_first(WAKING)
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(remaining)
    go_first(COMPUTING)


def go_first(priority: int) -> None:
    """Has this thread, and those that it starts, run before all ordinary ones: a device isn't slowed by what else a machine does.

    `priority` is among those that go first. Only root may. For others, blocks may be void if something else runs.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))


def serve(pipe: Connection, engine: PacedEngine) -> None:
    """Runs the engine's process: sends `up` once it is, then carries out commands (name, argument), and sends what it has finished.

    Commands are `submit`, `abort`, `version`, `load` and `end`; messages are (`finished`, summaries), (`load`, (load, punctuality)).
    """
    vllm = _start(engine)
    go_first(COMPUTING)
    pipe.send("up")
    gc.collect()
    gc.freeze()
    sending = threading.Lock()

    def report() -> None:
        while True:
            finished = vllm.drain_finished(3600.0)
            with sending:
                pipe.send(("finished", [sample.summary for sample in finished]))

    threading.Thread(target=report, daemon=True).start()
    while True:
        command, argument = pipe.recv()
        match command:
            case "submit":
                vllm.submit(argument)
            case "abort":
                vllm.abort(argument)
            case "version":
                vllm.serve_version(argument)
            case "load":
                load = replace(vllm.take_load(), tensor_parallel=engine.devices)
                with sending:
                    pipe.send(("load", (load, vllm.take_punctuality())))
            case _:
                os._exit(0)


def _start(engine: PacedEngine) -> Any:
    """Starts vLLM with as many KV blocks as the engine's devices have room for."""
    from longboat_runtime.rollout import base
    from longboat_runtime.rollout.arguments import engine_arguments
    from longboat_runtime.rollout.factory import read_model_config

    config = engine_config(engine)
    # Tokens here stand for many: what waits 50 ms elsewhere waits no step here.
    base.GATHER_SECONDS = 0.0
    model = read_model_config(config)
    blocks = engine.roofline.kv_tokens(engine.devices) // BLOCK_TOKENS
    cache = blocks * BLOCK_TOKENS * kv_token_bytes(model, "float32", 1)
    config = replace(config, kv_cache_bytes=cache)
    arguments = engine_arguments(config, max_length=engine.longest, accelerator=False)
    arguments["block_size"] = BLOCK_TOKENS
    return _paced(config, arguments, engine)


def _paced(config: EngineConfig, arguments: dict[str, Any], engine: PacedEngine) -> Any:
    from longboat_runtime.rollout.inprocess import InProcessEngine

    class Paced(InProcessEngine):
        def _start(self) -> None:
            super()._start()
            go_first(COMPUTING)
            self._pace = Pace(engine.roofline, engine.devices)
            vocabulary = self._vllm.model_config.get_vocab_size()
            model, step = RandomModel(vocabulary), self._vllm.step

            def execute(scheduled: Any, non_block: bool) -> Future[Any]:
                if scheduled.total_num_scheduled_tokens:
                    self._pace.scheduled(scheduled)
                done: Future[Any] = Future()
                done.set_result(_output(model.draw(scheduled)))
                return done

            self._vllm.engine_core.engine_core.model_executor.execute_model = execute
            self._vllm.step = lambda: self._pace.step(step)

        def _submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample]) -> None:
            if not self._running:
                self._pace.rested()
            super()._submit(requests, begun)

        def serve_version(self, version: int) -> None:
            """Takes on the version of new weights without loading any, and drops cached prefixes, in the engine's thread."""

            def serve() -> None:
                self._vllm.set_weight_version(str(version))
                self._vllm.reset_prefix_cache()
                self._version = version

            self._commands.give(serve)

        def take_punctuality(self) -> Punctuality:
            """Returns the punctuality of the steps since the last call."""
            taken, self._pace.punctuality = self._pace.punctuality, Punctuality()
            return taken

    return Paced(config, arguments)
