"""Measures, on every rank of a trainer, how long a model loads and what memory loading and a step's gradients take."""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch.distributed.fsdp import FSDPModule

from bench.memory.allocations import Allocations
from bench.memory.models import SHAPES, VOCABULARY, build_model
from bench.record import Recorder
from bench.samples import random_sample
from longboat_crds.job import RLJobSpec
from longboat_runtime.samples import GeneratedSample, SampleId
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.protocol import TrainRequest, TrainSample
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.sharding import load_sharded

PROMPT_TOKENS = 16
# Seconds between two looks at the process's own memory.
LOOK = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m bench.run memory`."""
    parser.add_argument("--sizes", nargs="*", default=["0.5B"], choices=SHAPES, help="parameters of the models")
    parser.add_argument("--ranks", type=int, default=1, help="on GPUs: one each")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--bins", type=int, default=4, help="of each rank in a step; 0: only load, without an optimizer"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="of a bin")
    parser.add_argument(
        "--models", type=Path, help="where models are made and kept; default: in a folder that is deleted"
    )
    parser.add_argument("--commit", help="that is measured, where there is no git to tell")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends one line for each rank and model to `path`."""
    settings = {name: value for name, value in vars(arguments).items() if name != "models"}
    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else None
    recorder = Recorder(path, **settings, gpu=gpu)
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as scratch:
            model = build_model(size, (arguments.models or Path(scratch)) / size)
            for line in measure(size, model, arguments, Path(scratch)):
                recorder.write("rank", size=size, **line)
    recorder.close()


def measure(size: str, model: Path, arguments: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Runs each rank in a process of its own; returns what they have measured, by rank, in bytes and seconds."""
    address = process_group.serve("127.0.0.1")
    rank_arguments = (
        arguments.ranks,
        address,
        size,
        model,
        arguments.device,
        arguments.bins,
        arguments.tokens,
        scratch,
    )
    torch.multiprocessing.spawn(_rank, rank_arguments, nprocs=arguments.ranks)
    return [torch.load(scratch / f"rank-{rank}") for rank in range(arguments.ranks)]


def _rank(
    index: int, ranks: int, address: str, size: str, model: Path, device: str, bins: int, tokens: int, scratch: Path
) -> None:
    if device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        torch.cuda.set_device(index)
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        # It came with torch 2.13. Measurements on an older one don't need it: these models use all of their weights.
        FSDPModule.set_reduce_scatter_unused_params = lambda *_: None
    rank = TrainerRank(spec_of(model, tokens), index, ranks, address)
    line: dict[str, Any] = {"rank": index, "world_size": ranks}
    try:
        with _measured(device) as line["load"]:
            loaded = load_sharded(rank.spec.model, rank.mesh)
        shards = list(loaded.parameters())
        line["shards"] = sum(weight.to_local().nbytes for weight in shards)
        line["weights"] = sum(weight.numel() * 4 for weight in shards)
        line["units"] = _units(loaded)
        del loaded, shards
        gc.collect()  # modules refer to each other
        if bins:
            rank.load()
            line |= _steps(rank, device, bins, tokens, VOCABULARY.get(size, 151936))
        torch.save(line, scratch / f"rank-{index}")
    finally:
        process_group.leave()


def _steps(rank: TrainerRank, device: str, bins: int, tokens: int, vocabulary: int) -> dict[str, Any]:
    """Measures the seconds of the second step, and accumulating gradients in the third. The first also allocates what stays."""
    results: dict[str, Any] = {}
    samples = _samples(rank.world_size * bins, tokens, vocabulary)
    by_id = {sample.id: sample for sample in samples}
    accumulate = rank.updates.accumulate

    def measured(*batches: Any) -> Any:
        with _measured(device) as results["accumulate"]:
            return accumulate(*batches)

    def step(number: int) -> float:
        request = request_of(samples, number)
        started = time.monotonic()
        rank.train(request, lambda ids: [by_id[id_] for id_ in ids])
        return time.monotonic() - started

    step(1)
    results["step_seconds"] = step(2)
    rank.updates.accumulate = measured  # type: ignore[method-assign]
    step(3)
    return results


@contextmanager
def _measured(device: str) -> Iterator[dict[str, float]]:
    """Yields a dict that gets, after the block, its `seconds` and bytes: `largest` of one allocation, `peak` and `held` beyond the start.

    They are of the GPU, by its allocator, or of the CPU, by the storages that operators make. `host` is the most private memory of
    the process beyond the start, as `_host_memory` finds it; pages of mapped files are not in it.
    """
    results: dict[str, float] = {}
    with _host_memory() as host:
        started = time.monotonic()
        if device == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
            yield results
            torch.cuda.synchronize()
            traces = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
            torch.cuda.memory._record_memory_history(enabled=None)
            results["largest"] = max((event["size"] for event in traces if event["action"] == "alloc"), default=0)
            results["peak"] = torch.cuda.max_memory_allocated() - before
            results["held"] = torch.cuda.memory_allocated() - before
        else:
            with Allocations() as allocations:
                yield results
            results |= {"held": allocations.bytes_held(), "largest": allocations.largest, "peak": allocations.peak}
        results["seconds"] = time.monotonic() - started
    results["host"] = host()


@contextmanager
def _host_memory() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the most private memory that looks every LOOK seconds found, beyond that at the start."""
    before = most = _private_memory()
    ended = threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(LOOK):
            most = max(most, _private_memory())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield lambda: most - before
    finally:
        ended.set()
        watcher.join()


def _private_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def _units(model: torch.nn.Module) -> list[int]:
    """Lists the different sizes, in float32 bytes, of the units that are gathered and scattered separately, largest first."""
    sizes = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            inner = {
                id(p) for m in module.modules() if m is not module and isinstance(m, FSDPModule) for p in m.parameters()
            }
            sizes.append(sum(p.numel() * 4 for p in module.parameters() if id(p) not in inner))
    return sorted(set(sizes), reverse=True)


def _samples(count: int, tokens: int, vocabulary: int) -> list[GeneratedSample]:
    """Makes `count` samples of `tokens` tokens, each of which fills a bin."""
    random = np.random.default_rng(0)
    prompts = (random.integers(0, vocabulary, PROMPT_TOKENS).astype(np.int32) for _ in range(count))
    return [
        random_sample(random, SampleId(0, number, 0, 0), prompt, tokens - PROMPT_TOKENS, (0, vocabulary), -12.0)
        for number, prompt in enumerate(prompts)
    ]


def request_of(samples: Sequence[GeneratedSample], step: int) -> TrainRequest:
    """Makes the request of a step over `samples`, whose advantages differ."""
    entries = tuple(TrainSample(sample.id, float(np.sin(1.0 + i)), sample.size) for i, sample in enumerate(samples))
    return TrainRequest(step, step, entries, len(entries))


def spec_of(model: Path, tokens: int, dtype: str = "BFloat16") -> RLJobSpec:
    """Makes the spec of a job that trains `model`, of which `tokens` fill a bin and are what a prompt and its response may have."""
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "bench"},
            "model": {"path": str(model), "dtype": dtype},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "rewards": [{"name": "scorer", "kind": "ReasoningGym"}],
            "algorithm": {"importanceCap": 0},
            "rounds": {"steps": 100, "promptsPerRound": 4},
            "rollout": {"sampling": {"maxTokens": tokens - PROMPT_TOKENS}},
            "trainer": {"maxTokensPerBin": tokens, "gradientCheckpointing": True},
        }
    )
