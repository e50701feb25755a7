"""Measures steps of models with a few layers of Qwen3-8B and Qwen3-30B-A3B on one GPU: peak memory and speed, beside the plan.

Takes at most 8 minutes. Needs torch 2.11 or newer, but neither ray nor vllm. Weights are random. Without a GPU only the shape `tiny` is
of use.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.memory.allocations import Allocations
from bench.memory.measure import _samples, request_of, spec_of
from bench.record import Recorder
from bench.size import predicted
from bench.trainer_step.gpu import serve_older_torch
from longboat_crds.job import RLJobSpec
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.copies import pinned
from longboat_runtime.trainer.machine import Machine
from longboat_runtime.trainer.rank import TrainerRank

_EXAMPLES = Path(__file__).parents[2] / "examples/gpu"
_8B, _A3B = (json.loads((_EXAMPLES / name / "config.json").read_text()) for name in ("qwen3-8b", "qwen3-30b-a3b"))
SHAPES: dict[str, dict[str, Any]] = {
    "8B": _8B,
    "A3B": _A3B,
    "tiny": _8B
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}
BINS = 2  # the second is computed beside the gradients of the first
PRODUCT = 8192
COPIED = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """A way to compute a step: bins of `tokens`, layers `compiled`, the head `fused` if logits are large, activations `offloaded`."""

    shape: str
    tokens: int
    compiled: bool
    fused: bool
    offloaded: bool

    def spec(self, model: Path) -> RLJobSpec:
        """Makes the spec of a job that computes steps this way."""
        spec = spec_of(model, self.tokens)
        fields = {"compile": self.compiled, "offload_activations": self.offloaded}
        return spec.model_copy(update={"trainer": spec.trainer.model_copy(update=fields)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m bench.run size`."""
    parser.add_argument("--shapes", nargs="*", default=["8B", "A3B"], choices=SHAPES, help="of models")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", nargs="*", type=int, default=[8192, 34_816], help="of a bin")
    parser.add_argument("--minutes", type=float, default=8.0, help="to begin cases that should end in time")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compiled", dest="compiled", action="store_false", help="leave compiled layers out")
    parser.add_argument("--commit", help="that is measured, where there is no git to tell")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`: the device's own speed, then a line for each case."""
    began = time.monotonic()
    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else None
    recorder = Recorder(path, **vars(arguments), gpu=gpu)
    device = torch.device(arguments.device)
    rate = product_rate(device, PRODUCT if device.type == "cuda" else 256)
    recorder.write("device", product=rate, copies=copy_rates(device, COPIED if device.type == "cuda" else 1 << 20))
    longest, minutes = 0.0, lambda: (time.monotonic() - began) / 60
    with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
        models = {shape: write_config(Path(folder) / shape, shape, arguments.layers) for shape in arguments.shapes}
        listed = cases(arguments.shapes, sorted(arguments.tokens), compiled=arguments.compiled)
        with predicted.started([(case.spec(models[case.shape]), case.fused) for case in listed]) as predictions:
            for case in listed:
                case_began = minutes()
                if case_began + longest > arguments.minutes:
                    recorder.write("skipped", case=asdict(case))
                    continue
                try:
                    recorder.write("case", case=asdict(case), **measure(case, models[case.shape], rate))
                except torch.OutOfMemoryError as error:
                    recorder.write("too large", case=asdict(case), error=str(error).splitlines()[0])
                _free()
                longest = max(longest, minutes() - case_began)
            for case in listed:
                if minutes() > arguments.minutes:
                    break
                recorder.write("predicted", case=asdict(case), **next(predictions))
    recorder.write("ended", minutes=minutes())
    recorder.close()


def cases(shapes: Sequence[str], tokens: Sequence[int], *, compiled: bool) -> list[Case]:
    """Lists the cases, the most informative first."""
    ways = [(False, False, False), (False, True, False), (False, True, True), (True, True, False), (True, True, True)]
    return [Case(shape, count, *way) for way in ways if compiled or not way[0] for shape in shapes for count in tokens]


def write_config(directory: Path, shape: str, layers: int) -> Path:
    """Writes config.json of a shape with `layers` layers; returns its directory."""
    directory.mkdir()
    content = SHAPES[shape] | {"num_hidden_layers": layers, "max_position_embeddings": 65_536}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


class RandomWeights(Machine):
    """A machine that fills models with random weights instead of reading files. Its copies for checkpoints take no memory."""

    host = torch.device("meta")

    def __init__(self, *, fused: bool) -> None:
        self._fused = fused

    def load_weights(self, model: nn.Module, path: Path, conversions: Sequence[Any]) -> None:
        for name, weight in model.named_parameters():
            local = getattr(weight, "_local_tensor", weight).detach()
            local.fill_(1.0) if "norm" in name else local.normal_(0.0, 0.02)

    def head_can_be_fused(self, config: Any) -> bool:
        return self._fused and super().head_can_be_fused(config)


def measure(case: Case, model: Path, rate: float) -> dict[str, Any]:
    """Loads a model and measures its third step: the first one compiles, the second makes allocations that stay.

    Memory is in bytes: `held` before the step, its `peak` beyond that, and on GPUs what the allocator `reserved` and the device uses
    `outside` of it. `mfu` is the share of `rate`, the device's own speed. It counts attention only where a token sees another (`causal`),
    or as PaLM does for every pair (`palm`).
    """
    serve_older_torch()
    rank = TrainerRank(case.spec(model), 0, 1, process_group.serve("127.0.0.1"), RandomWeights(fused=case.fused))
    try:
        began = time.monotonic()
        flops = rank.load().flops
        result: dict[str, Any] = {"load": time.monotonic() - began, "parameters": flops.weights}
        samples = _samples(BINS, case.tokens, SHAPES[case.shape]["vocab_size"])
        by_id = {sample.id: sample for sample in samples}

        def step(number: int) -> float:
            began = rank.platform.time_done()
            rank.train(request_of(samples, number), lambda ids: [by_id[id_] for id_ in ids])
            return rank.platform.time_done() - began

        result["first"] = step(1)
        step(2)
        with _memory(rank.device, result):
            seconds = step(3)
        lengths = [case.tokens] * BINS
        causal = flops.training(lengths)
        result |= {"seconds": seconds, "mfu": {"causal": causal / seconds / rate}}
        result["mfu"]["palm"] = (causal + 6.0 * flops.attention * sum(n * n for n in lengths)) / seconds / rate
        return result
    finally:
        process_group.leave()


def _free() -> None:
    """Frees the last model: its modules and compiled code are in reference cycles."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _memory(device: torch.device, result: dict[str, Any]) -> Iterator[None]:
    """Adds the memory that the block takes to `result`; on CPUs the memory that operators allocate."""
    if device.type == "cpu":
        with Allocations() as allocations:
            yield
        result |= {"held": 0, "peak": allocations.peak}
        return
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    result |= {"held": before, "peak": torch.cuda.max_memory_allocated() - before}
    result |= {"reserved": torch.cuda.max_memory_reserved(), "outside": total - free - reserved}


def product_rate(device: torch.device, size: int, times: int = 20) -> float:
    """Measures operations per second of the product of two square matrices in BFloat16: 2 x size^3 each, by the median time."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2.0 * size**3 / median(_timed(device, lambda: a @ b) for _ in range(times))


def copy_rates(device: torch.device, size: int, times: int = 5) -> dict[str, float]:
    """Measures bytes per second of copies between device and host, whose memory is pageable or pinned, by the median time."""
    on_device = torch.empty(size, dtype=torch.uint8, device=device)
    memory = {"pageable": torch.zeros(size, dtype=torch.uint8)}
    if device.type == "cuda":
        memory["pinned"] = pinned(size)
    rates = {}
    for name, on_host in memory.items():
        for way, (target, source) in {"out": (on_host, on_device), "in": (on_device, on_host)}.items():
            copy = lambda target=target, source=source: target.copy_(source, non_blocking=True)  # noqa: E731
            copy()
            rates[f"{name} {way}"] = size / median(_timed(device, copy) for _ in range(times))
    return rates


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    """Measures the seconds until the device has done the work."""
    if device.type == "cpu":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    work()
    events[1].record()
    torch.cuda.synchronize()
    return float(events[0].elapsed_time(events[1])) / 1e3
