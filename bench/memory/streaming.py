"""Peak memory of ranks in a streamed step, by that in the same step without streaming: `python -m bench.memory.streaming`.

Memory is what torch's CPU allocator gives and takes, by its own events. Computes in float32, since bfloat16 is emulated on most CPUs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch.profiler import ProfilerActivity, profile

from bench.memory.measure import _samples, request_of, spec_of
from bench.memory.models import SHAPES, VOCABULARY, build_model
from bench.record import Recorder, raw_file
from longboat_runtime.samples import GeneratedSample, SampleId
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.protocol import ChunkRequest, TrainRequest
from longboat_runtime.trainer.rank import TrainerRank

RANKS, BINS, CHUNKS = 4, 4, 4


def main() -> None:
    """Appends one line for each rank to the raw file, and prints each way's peak of the largest rank."""
    parser = argparse.ArgumentParser(prog="bench.memory.streaming", description=__doc__)
    parser.add_argument("--size", default="70M", choices=SHAPES, help="parameters of the model")
    parser.add_argument("--tokens", type=int, default=256, help="of a bin")
    arguments = parser.parse_args()
    recorder = Recorder(raw_file("memory_streaming"), **vars(arguments), ranks=RANKS, bins=BINS, chunks=CHUNKS)
    with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
        scratch = Path(folder)
        model = build_model(arguments.size, scratch / "model")
        address = process_group.serve("127.0.0.1")
        shared = (address, arguments.size, model, arguments.tokens, scratch)
        torch.multiprocessing.spawn(_rank, shared, nprocs=RANKS)
        lines = [torch.load(scratch / f"rank-{number}") for number in range(RANKS)]
    for number, line in enumerate(lines):
        recorder.write("rank", rank=number, **line)
    # Which rank holds one more gathered unit at its peak is a matter of timing: so the largest of the ranks counts.
    largest = {name: max(line["state"] + line["peaks"][name] for line in lines) for name in lines[0]["peaks"]}
    for name, bytes_ in largest.items():
        print(f"{name}: {bytes_ / 2**20:.1f} MiB, {bytes_ / largest['whole']:.4f} of whole")
    print(f"gradient shards: {lines[0]['gradient'] / 2**20:.1f} MiB")
    recorder.close()


def _rank(index: int, address: str, size: str, model: Path, tokens: int, scratch: Path) -> None:
    torch.set_num_threads(1)
    rank = TrainerRank(spec_of(model, tokens, "Float32"), index, RANKS, address)
    try:
        rank.load()
        samples = {sample.id: sample for sample in _samples(RANKS * BINS, tokens, VOCABULARY.get(size, 151936))}
        whole = request_of([*samples.values()], 1)
        ways: dict[str, Callable[[], Any]] = {
            "whole": lambda: rank.train(whole, _fetch_from(samples)),
            "streamed": lambda: _stream(rank, whole, samples, publishes=False),
            "published": lambda: _stream(rank, whole, samples, publishes=True),
        }
        for work in ways.values():  # what stays is allocated the first time
            work()
        peaks = {name: allocator_peak(work) for name, work in ways.items()}
        weights = [weight.to_local() for weight in rank.updates.parameters.values()]
        states = [
            value.to_local()
            for state in rank.updates.optimizer.state.values()
            for value in state.values()
            if hasattr(value, "to_local")
        ]
        state_bytes = sum(tensor.nbytes for tensor in (*weights, *states))
        torch.save(
            {"state": state_bytes, "gradient": sum(tensor.nbytes for tensor in weights), "peaks": peaks},
            scratch / f"rank-{index}",
        )
    finally:
        process_group.leave()


def _stream(
    rank: TrainerRank, whole: TrainRequest, samples: dict[SampleId, GeneratedSample], *, publishes: bool
) -> None:
    """Trains the step in CHUNKS chunks, the last of which is the step itself. With `publishes`, the first is followed by a publication."""
    size = len(whole.samples) // CHUNKS
    parts = [whole.samples[first : first + size] for first in range(0, len(whole.samples), size)]
    for chunks, part in enumerate(parts[:-1]):
        rank.accumulate(ChunkRequest(whole.step, part, whole.denominator, chunks), _fetch_from(samples))
        if publishes and not chunks:
            for _ in rank.weights():
                pass
    rank.train(replace(whole, samples=parts[-1], chunks=len(parts) - 1), _fetch_from(samples))


def _fetch_from(samples: dict[SampleId, GeneratedSample]) -> Callable[[Any], list[GeneratedSample]]:
    return lambda ids: [samples[id_] for id_ in ids]


def allocator_peak(work: Callable[[], object]) -> int:
    """Returns the most bytes beyond the start that the CPU allocator had given at one time during `work`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    events = (event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = sorted((event.start_ns(), event.nbytes()) for event in events)
    return max(accumulate(bytes_ for _, bytes_ in changes))


if __name__ == "__main__":
    main()
