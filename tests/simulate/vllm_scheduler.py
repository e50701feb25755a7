"""vLLM's own scheduler in a process of its own: with the real engine around it, or with tokens that nothing computes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.samples import SampleId, SampleRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sample that comes before step `step` (from 0).

    Each of `further` turns comes after a number of steps from the end of the one before, with new tokens behind all others, and draws some.
    """

    step: int
    sample: SampleId
    prompt_tokens: int
    tokens: int
    further: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """An engine with so many KV blocks, vLLM's own one included. `published` are the steps before which weights are replaced."""

    blocks: int
    block_size: int
    limit: int
    arrivals: tuple[Arrival, ...]
    published: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Scheduled:
    """In which step each turn ended (from 1), in the order in which they did; how many tokens of prompts, and of samples that had been
    preempted, each step computed; and the number of preemptions for want of KV cache."""

    ended: tuple[tuple[SampleId, int], ...]
    computed: tuple[int, ...]
    preemptions: int


class VllmScheduler:
    """An engine of the project; also schedules cases with a scheduler as that engine's, and nothing else of it."""

    def __init__(self, config: EngineConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, config))
        self.process.start()
        self.blocks, self.block_size = self._result()

    def run(self, requests: Sequence[SampleRequest]) -> tuple[Scheduled, dict[SampleId, int]]:
        """Has the engine answer the requests, all at once; also says how many tokens each response has."""
        return self._call("run", requests)

    def schedule(self, case: Case) -> Scheduled:
        """Schedules all steps of a case."""
        return self._call("schedule", case)

    def close(self) -> None:
        self.process.kill()
        self.process.join()

    def _call(self, method: str, argument: Any) -> Any:
        self._connection.send((method, argument))
        return self._result()

    def _result(self) -> Any:
        result = self._connection.recv()
        if isinstance(result, BaseException):
            raise result
        return result


def _serve(connection: Connection, config: EngineConfig) -> None:
    from longboat_runtime.rollout.factory import start_engine

    engine: Any = start_engine(config, NodeDevices(1))
    core = engine._vllm.engine_core.engine_core
    connection.send((core.scheduler.kv_cache_config.num_blocks, core.scheduler.block_size))
    served = {
        "run": lambda requests: _run(engine, core.scheduler, requests),
        "schedule": lambda case: _schedule(core, case),
    }
    while True:
        method, argument = connection.recv()
        try:
            connection.send(served[method](argument))
        except Exception as error:  # noqa: BLE001 - the test gets it
            connection.send(RuntimeError(repr(error)))


def _computed(output: Any) -> int:
    """Tokens of requests that start or start again in this step."""
    started = [request.req_id for request in output.scheduled_new_reqs] + [
        *output.scheduled_cached_reqs.resumed_req_ids
    ]
    return sum(output.num_scheduled_tokens[name] for name in started)


def _run(engine: Any, scheduler: Any, requests: Sequence[SampleRequest]) -> tuple[Scheduled, dict[SampleId, int]]:
    outputs: list[Any] = []
    schedule = scheduler.schedule

    def recording(*arguments: Any, **named: Any) -> Any:
        outputs.append(schedule(*arguments, **named))
        return outputs[-1]

    engine.take_load()
    scheduler.schedule = recording
    engine.submit(requests)
    finished: list[Any] = []
    while len(finished) < len(requests):
        finished += engine.drain_finished(60.0)
    scheduler.schedule = schedule
    last: dict[str, int] = {}
    for step, output in enumerate(outputs, 1):
        last.update(dict.fromkeys(output.num_scheduled_tokens, step))
    # vLLM's names begin with those of the requests.
    ended = [
        (sample.id, next(step for name, step in last.items() if name.startswith(str(sample.id)))) for sample in finished
    ]
    scheduled = Scheduled(tuple(ended), tuple(map(_computed, outputs)), engine.take_load().preemptions)
    return scheduled, {sample.id: len(sample.token_ids) for sample in finished}


def _schedule(core: Any, case: Case) -> Scheduled:
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    present = core.scheduler
    cache = replace(present.kv_cache_config, num_blocks=case.blocks)
    groups = [
        replace(group, kv_cache_spec=replace(group.kv_cache_spec, block_size=case.block_size))
        for group in cache.kv_cache_groups
    ]
    cache = replace(cache, kv_cache_groups=groups, hash_block_size=case.block_size)
    config = present.vllm_config
    kept = config.scheduler_config.max_num_seqs, config.cache_config.block_size, config.cache_config.num_gpu_blocks
    config.scheduler_config.max_num_seqs, config.cache_config.block_size = case.limit, case.block_size
    config.cache_config.num_gpu_blocks = case.blocks
    scheduler = type(present)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=core.structured_output_manager,
        block_size=case.block_size,
        hash_block_size=case.block_size,
        log_stats=True,
    )
    config.scheduler_config.max_num_seqs, config.cache_config.block_size, config.cache_config.num_gpu_blocks = kept
    hasher = get_request_block_hasher(
        case.block_size, get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    )
    requests: dict[str, tuple[SampleId, Any, tuple[tuple[int, int, int], ...]]] = {}
    ended: list[tuple[SampleId, int]] = []
    computed: list[int] = []
    arrivals = [
        (
            arrival.step,
            arrival.sample,
            [1000 * (1 + arrival.sample.row) + place for place in range(arrival.prompt_tokens)],
            arrival.tokens,
            arrival.further,
        )
        for arrival in case.arrivals
    ]
    interrupted = step = 0
    while len(ended) < sum(1 + len(arrival.further) for arrival in case.arrivals):
        for came, sample, prompt, most, further in arrivals:
            if came == step:
                request = Request(
                    f"{sample}/{len(requests)}",
                    prompt,
                    SamplingParams(max_tokens=most, ignore_eos=True),
                    None,
                    arrival_time=float(len(requests)),
                    block_hasher=hasher,
                )
                requests[request.request_id] = sample, request, further
                scheduler.add_request(request)
        if step in case.published:
            interrupted += len(scheduler.running)
            scheduler.reset_prefix_cache(reset_running_requests=True)
        step += 1
        output = scheduler.schedule()
        computed.append(_computed(output))
        order = [*output.num_scheduled_tokens]
        # A turn's tokens are its own, so that no other has the same blocks.
        tokens = [[10**6 * (1 + [*requests].index(name)) + step] for name in order]
        drawn = ModelRunnerOutput(order, {name: place for place, name in enumerate(order)}, tokens)
        for outputs in scheduler.update_from_output(output, drawn).values():
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    sample, request, further = requests[output.request_id]
                    ended.append((sample, step))
                    if further:
                        (away, added, most), *rest = further
                        new = [-(10**6) * len(ended) - place for place in range(added)]
                        arrivals.append((step + away, sample, [*request.all_token_ids, *new], most, tuple(rest)))
    preemptions = sum(request.num_preemptions for _, request, _ in requests.values()) - interrupted
    return Scheduled(tuple(ended), tuple(computed), preemptions)
