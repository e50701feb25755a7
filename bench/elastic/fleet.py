"""A fleet of paced engines without Ray. Engines of every size stay up; those of one size serve at a time."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.driver import instant_components
from bench.elastic.paced import PacedEngine, Punctuality, engine_config, serve
from bench.elastic.roofline import Roofline
from longboat_runtime.rollout.environment import NO_BINDING, CpuShare, environment
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.protocol import PublicationReport, ReshapePhase, ReshapeReport
from longboat_runtime.rollout.router import Router
from longboat_runtime.samples import FinishedSample, SampleId, SampleRequest
from longboat_runtime.simulate.lengths import LengthDistribution
from longboat_runtime.weights.publication import WeightPublication


class EngineProcess:
    """The driver's end of an engine. What that finishes goes to `finished_in` of the attached fleet, on the loop."""

    def __init__(self, engine: PacedEngine) -> None:
        self.engine = engine
        context = multiprocessing.get_context("forkserver")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=serve, args=(child_end, engine), daemon=True, name=engine.name)
        self._process.start()
        child_end.close()
        self._loads: asyncio.Queue[tuple[Load, Punctuality]] = asyncio.Queue()
        self._fleet: PacedFleet | None = None

    def wait(self) -> None:
        """Returns once vLLM is up."""
        self._pipe.recv()

    def attach(self, fleet: PacedFleet) -> None:
        """Sends the engine's messages to this fleet, on the running loop, from now on."""
        first, self._fleet = self._fleet is None, fleet
        self._loop = asyncio.get_running_loop()
        self._loads = asyncio.Queue()
        if first:
            threading.Thread(target=self._receive, daemon=True).start()

    def send(self, command: str, argument: Any = None) -> None:
        self._pipe.send((command, argument))

    async def load(self) -> tuple[Load, Punctuality]:
        """Returns the load and the punctuality since the last call."""
        self.send("load")
        return await self._loads.get()

    def end(self) -> None:
        with suppress(OSError):
            self.send("end")
        self._process.join(5.0)
        self._process.kill()

    def _receive(self) -> None:
        with suppress(EOFError, OSError, RuntimeError):
            while True:
                message, value = self._pipe.recv()
                if message == "load":
                    self._loop.call_soon_threadsafe(self._loads.put_nowait, value)
                elif self._fleet is not None:
                    self._loop.call_soon_threadsafe(self._fleet.finished_in, self.engine.name, value)


Engines = Mapping[int, Sequence[EngineProcess]]


def start_engines(roofline: Roofline, model: Path, longest: int, devices: int, sizes: Sequence[int]) -> Engines:
    """Starts, for each size, as many engines as `devices` have room for. Returns once all are up. Call it once in a process."""
    wanted = {
        size: [PacedEngine(f"tp{size}/{number}", size, roofline, model, longest) for number in range(devices // size)]
        for size in sizes
    }
    # vLLM is imported once, by the process from which engines are forked, which gets the environment as it is then.
    config = engine_config(wanted[sizes[0]][0])
    os.environ |= {**environment(config, CpuShare(NO_BINDING, 1), in_process=True), "VLLM_LOGGING_LEVEL": "ERROR"}
    multiprocessing.set_forkserver_preload(["bench.elastic.preloaded"])
    engines = {size: [EngineProcess(engine) for engine in of_size] for size, of_size in wanted.items()}
    for of_size in engines.values():
        for process in of_size:
            process.wait()
    return engines


class PacedFleet(instant_components.Fleet):
    """`RolloutFleet` of one job: the production router over engines of one size, whose responses have the lengths of a distribution.

    A change of size lasts what `cost` states, by phase. Nothing runs then, under a policy that is strictly on-policy.
    """

    def __init__(
        self, engines: Engines, tensor_parallel: int, lengths: LengthDistribution, cost: Mapping[ReshapePhase, float]
    ) -> None:
        super().__init__()
        self._engines, self._lengths, self._cost = engines, lengths, cost
        self._size = tensor_parallel
        self._router = Router()
        self._ended = asyncio.Event()
        self.punctuality = Punctuality()
        for of_size in engines.values():
            for engine in of_size:
                engine.attach(self)
        self._open()

    @property
    def _serving(self) -> dict[str, EngineProcess]:
        return {engine.engine.name: engine for engine in self._engines[self._size]}

    def _open(self) -> None:
        for name in self._serving:
            self._router.add(name)

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        by_id = {
            request.id: replace(request, sampling=replace(request.sampling, max_tokens=self._lengths(request.id)))
            for request in requests
        }
        for name, ids in self._router.route([*by_id]).items():
            self._serving[name].send("submit", [by_id[sample] for sample in ids])

    async def abort(self, ids: Sequence[SampleId]) -> None:
        for name, samples in self._router.engines_of(ids).items():
            self._serving[name].send("abort", samples)

    def finished_in(self, engine: str, samples: Sequence[FinishedSample]) -> None:
        """Takes the samples that an engine has finished, except those that the router doesn't know to run there."""
        self._done += [sample for sample in samples if self._router.finished(engine, sample.id)]
        self._ended.set()
        if self._done:
            self._news.set()

    @property
    def tensor_parallel(self) -> int:
        return self._size

    async def reshape(self, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        """Takes the stated seconds once what was told to stop has stopped."""
        del one_by_one
        await self.idle()
        for name in self._serving:
            self._router.remove(name)
        for phase in ReshapePhase:
            await asyncio.sleep(self._cost[phase])
        self._size = tensor_parallel
        self._tell_version()
        self._open()
        return ReshapeReport(tensor_parallel, self._cost)

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        self.version = publication.version
        self._tell_version()
        return PublicationReport(publication.version, 0.0, 0, 0.0, tuple(sorted(self._serving)))

    def _tell_version(self) -> None:
        for engine in self._serving.values():
            engine.send("version", self.version)

    async def loads(self) -> Mapping[str, Load]:
        loads = {}
        for name, engine in self._serving.items():
            loads[name], punctuality = await engine.load()
            self.punctuality += punctuality
        return loads

    def forget(self) -> None:
        """Forgets how punctual engines were until now."""
        self.punctuality = Punctuality()

    async def drain(self, engines: Collection[str]) -> None:
        raise NotImplementedError(f"no pod leaves: {engines}")

    async def idle(self) -> None:
        """Waits until nothing runs."""
        while any(self._router.running(name) for name in self._serving):
            self._ended.clear()
            await self._ended.wait()
