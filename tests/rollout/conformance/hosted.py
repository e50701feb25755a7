"""An engine in a process of its own, as in a rollout pod: starting one sets its process's environment for good."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.protocol import Engine
from longboat_runtime.samples import GeneratedSample, SampleId, SampleRequest
from longboat_runtime.weights.publication import WeightPublication

T = TypeVar("T")


class HostedEngine:
    """The `Engine` protocol, forwarded call by call."""

    def __init__(self, config: EngineConfig, *, spawned: bool, output: Path | None = None) -> None:
        """With `output` all that its processes write goes to that file."""
        self.spawned = spawned
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, config, spawned, output))
        self.process.start()
        theirs.close()  # otherwise the end of the process would go unnoticed
        self._has(config)

    def wait_started(self) -> None:
        self._result()

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        self._call("submit", requests, begun)

    def abort(self, ids: Sequence[SampleId]) -> None:
        self._call("abort", ids)

    def drain_finished(self, timeout: float) -> list[GeneratedSample]:
        return self._call("drain_finished", timeout)

    def update_weights(self, publication: WeightPublication, calibrated: float | None = None) -> float:
        return self._call("update_weights", publication, calibrated)

    def take_load(self) -> Load:
        load: Load = self._call("take_load")
        self.load += load
        return load

    def kv_tokens(self) -> int:
        """Tokens of the KV cache that vLLM has made."""
        tokens: int = self._call("kv_tokens")
        return tokens

    def shutdown(self) -> None:
        self._call("shutdown")

    def replace(self, config: EngineConfig) -> None:
        """Ends the engine and starts another one in the same process: most of a start is importing vLLM. In-process engines only."""
        self._call("replace", config)
        self._has(config)

    def play(self, script: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Runs a coroutine of a module, which gets the engine, in the engine's process, as its actor does."""
        result: T = self._call("play", script, arguments)
        return result

    def probe(self, ids: Sequence[int]) -> list[float]:
        """Log-probs of the tokens, all but the first. In-process engines only."""
        logprobs: list[float] = self._call("probe", ids)
        return logprobs

    def replace_reading_files(self, config: EngineConfig) -> None:
        """Like `replace`, but the engine starts with the weights in the files of its model."""
        self._call("replace_reading_files", config)
        self._has(config)

    def pack_experts_no_more(self) -> None:
        """As if what keeps the packed weights of experts up to date were missing. Of an engine in its own process."""
        self._call("pack_experts_no_more")

    def kill_a_worker(self) -> None:
        """Kills the last of vLLM's processes, a worker."""
        psutil.Process(self.process.pid).children(recursive=True)[-1].kill()

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        self.process.kill()
        self.process.join()

    def _has(self, config: EngineConfig) -> None:
        self.config, self.name, self.model = config, config.name, Path(config.model)
        self.load = Load(0)  # all that was taken

    def _call(self, method: str, *arguments: Any) -> Any:
        self._connection.send((method, arguments))
        return self._result()

    def _result(self) -> Any:
        result = self._connection.recv()
        if isinstance(result, BaseException):
            raise result
        return result


def _serve(connection: Connection, config: EngineConfig, spawned: bool, output: Path | None) -> None:
    from longboat_runtime.rollout import factory

    # As a pod template may ask for: engines run the other model runner, which vLLM would refuse here.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if output is not None:
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    if spawned:
        factory.in_process = lambda *, accelerator: accelerator  # type: ignore[assignment]
    try:
        engine = factory.start_engine(config, NodeDevices(config.tensor_parallel))
    except Exception as error:
        connection.send(RuntimeError(str(error)))
        raise
    connection.send(None)
    while True:
        method, arguments = connection.recv()
        if method == "replace":
            engine.shutdown()
            engine = _start_again(*arguments)
            connection.send(None)
            continue
        if method == "replace_reading_files":
            engine.shutdown()
            arguments_of = factory.engine_arguments  # type: ignore[attr-defined]
            factory.engine_arguments = partial(_reading_files, arguments_of)  # type: ignore[attr-defined]
            engine = _start_again(*arguments)
            factory.engine_arguments = arguments_of  # type: ignore[attr-defined]
            connection.send(None)
            continue
        if method == "play":
            script, rest = arguments
            try:
                connection.send(asyncio.run(script(engine, *rest)))
            except Exception as error:  # noqa: BLE001 - the test gets it
                connection.send(error)
            continue
        if method == "probe":
            connection.send(engine._commands.call(partial(engine._probe, *arguments), Exception))  # type: ignore[attr-defined]
            continue
        if method == "kv_tokens":
            cache = engine._vllm.vllm_config.cache_config  # type: ignore[attr-defined]
            connection.send(cache.num_gpu_blocks * cache.block_size)
            continue
        if method == "pack_experts_no_more":
            from longboat_runtime.weights import backend

            backend._packed_experts = lambda model: iter(())  # type: ignore[assignment]
            connection.send(None)
            continue
        try:
            connection.send(getattr(engine, method)(*arguments))
        except Exception as error:  # noqa: BLE001 - the test gets it
            connection.send(error)


def _reading_files(arguments_of: Callable[..., dict[str, Any]], *config: Any, **options: Any) -> dict[str, Any]:
    return arguments_of(*config, **options) | {"load_format": "auto"}


def _start_again(config: EngineConfig) -> Engine:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from longboat_runtime.rollout.factory import start_engine

    cleanup_dist_env_and_memory()
    return start_engine(config, NodeDevices(config.tensor_parallel))


def lent(config: EngineConfig, request: pytest.FixtureRequest, kind: str) -> Iterator[HostedEngine]:
    """Yields an engine for a module: of kind `in-process` the one that modules have in turn (`in_process`), else one of its own."""
    if kind == "in-process":
        hosted: HostedEngine = request.getfixturevalue("in_process")
        hosted.replace(config)
        yield hosted
        return
    hosted = HostedEngine(config, spawned=kind == "spawned")
    try:
        hosted.wait_started()
        yield hosted
    finally:
        hosted.close()
