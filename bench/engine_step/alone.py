"""Engines that have nothing beside them but each other, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection

from bench.engine_step.timed import Step, note_steps
from longboat_crds.job import RLJobSpec
from longboat_runtime.rollout.engine import EngineConfig, engine_config
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.samples import SampleRequest

# The requests of each engine in each round.
Rounds = Sequence[Sequence[Sequence[SampleRequest]]]


def steps_alone(spec: RLJobSpec, rounds: Rounds, engines: int) -> list[Step]:
    """Times the steps of `engines` engines that begin each round together, as in a job; returns them engine by engine."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(engines):
        own_end, child_end = context.Pipe()
        config = engine_config(spec, f"alone-{number}", (number,))
        processes.append(context.Process(target=_generate, args=(child_end, config, engines), daemon=True))
        pipes.append(own_end)
        processes[-1].start()
        child_end.close()  # so that its end is noticed here
    try:
        for pipe in pipes:
            pipe.recv()
        for shares in rounds:
            for pipe, requests in zip(pipes, shares, strict=True):
                pipe.send(requests)
            for pipe in pipes:
                pipe.recv()
        for pipe in pipes:
            pipe.send(None)
        return [step for pipe in pipes for step in pipe.recv()]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _generate(pipe: Connection, config: EngineConfig, engines: int) -> None:
    """Runs the engine's process: it answers once it is up, after each round it is sent, and at last with its steps."""
    from longboat_runtime.rollout.factory import start_engine

    engine = start_engine(config, NodeDevices(engines))
    steps = note_steps(engine)
    pipe.send(None)
    while (requests := pipe.recv()) is not None:
        engine.submit(requests)
        missing = len(requests)
        while missing:
            missing -= len(engine.drain_finished(60.0))
        pipe.send(None)
    pipe.send(steps)
